"""Input files in object stores: which ones a source names there, and their mirror in the work folder."""
