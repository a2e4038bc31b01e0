"""Benchmark items in training documents: the items, the index of their words, the search, and what is made of it.

Imports of kernels and pyarrow stay inside functions of the modules, so that configuration stays light.
"""
