"""What comes when: pure functions from positions to samples and back."""

from .cursor import Cursor, check_cursor, make_cursor
from .mixture import Mixture, MixtureStage, compile_mixture
from .order import SourceOrder
from .plan import ORDER_VERSION, BatchStage, Plan, PlanConfig, SampleRefs, SourceShape
from .skips import DocumentResolver, SkipEntry, SkipList
from .weights import BLOCK, POSITION_LIMIT

__all__ = [
    "BLOCK",
    "ORDER_VERSION",
    "POSITION_LIMIT",
    "BatchStage",
    "Cursor",
    "DocumentResolver",
    "Mixture",
    "MixtureStage",
    "Plan",
    "PlanConfig",
    "SampleRefs",
    "SkipEntry",
    "SkipList",
    "SourceOrder",
    "SourceShape",
    "check_cursor",
    "compile_mixture",
    "make_cursor",
]
