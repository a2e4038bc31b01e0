"""Document dedup: one file per method that proposes pairs, and ``decide.py``, the one rule that removes."""

from collections.abc import Mapping

from ..documents import Status
from . import exact, minhash
from .table import Method

__all__ = ["METHODS"]

METHODS: Mapping[str, Method] = {
    "exact": Method(exact.propose, False, Status.REMOVED_EXACT),
    "minhash": Method(minhash.propose, True, Status.REMOVED_MINHASH),
}
"""Method name -> what it proposes. A new method is one file and one line here, under the contract tests of
``test_methods.py``."""
