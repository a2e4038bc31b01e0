"""Spikes: detect, attribute, roll back, cut."""
