"""Engines that run stages."""
