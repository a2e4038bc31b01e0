"""Dedup methods and the one rule that removes."""
