"""Document dedup: one file per method, and ``decide.py``, the one rule that removes."""

from collections.abc import Mapping

from ..documents import Status
from . import exact, minhash, simhash
from .table import Method

__all__ = ["METHODS"]

METHODS: Mapping[str, Method] = {
    "exact": Method(Status.REMOVED_EXACT, "pairs", "content", lambda config: 1, exact.keys),
    "minhash": Method(Status.REMOVED_MINHASH, "pairs", "rows", lambda config: config.minhash.bands, minhash.keys),
    "simhash": Method(Status.REMOVED_SIMHASH, "pairs", "bits", lambda config: simhash.NUM_TABLES, simhash.keys),
    "ngram": Method(Status.REMOVED_NGRAM, "spans"),
}
"""Method name -> what it proposes, or that its own stages cut passages. A new method is one file and one line here,
under the contract tests of ``test_methods.py``."""
