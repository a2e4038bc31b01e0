"""What a run would need, from arithmetic alone: no torch, nothing written. One concept a file."""
