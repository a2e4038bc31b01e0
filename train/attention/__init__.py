"""Attention in which a token sees only earlier tokens of its own segment: one table of backends with one signature.

A backend splits its work: ``prepare`` turns the segment numbers of a micro-batch into whatever the kernel needs (once,
on the host), ``attend`` runs in every layer and never waits for the device. All rows obey one contract, which the tests
check for each of them: values and gradients against float64, and outputs of one segment that do not change by one bit
when another segment does.
"""

from .backend import AttentionBackend, Availability, LayoutOptions, segment_borders
from .choice import ATTENTION, Choice, available_backends, choose_attention, pick_attention

__all__ = [
    "ATTENTION",
    "AttentionBackend",
    "Availability",
    "Choice",
    "LayoutOptions",
    "available_backends",
    "choose_attention",
    "pick_attention",
    "segment_borders",
]
