"""What both sides read."""
