"""Numba kernels on Arrow buffers."""
