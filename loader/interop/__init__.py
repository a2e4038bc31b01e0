"""Datasets in the formats of other stacks: one file a format, one table of them in ``export.py``."""
