"""Distributed trainer with spike detection, attribution and rollback."""
