"""What comes when: pure functions."""
