"""Replicas that come and go while the run goes on, over torchft: docs/torchft.md."""
