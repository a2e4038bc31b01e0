"""What comes when: pure functions from positions to samples and back."""

from .cursor import Cursor, check_cursor, make_cursor
from .exhaustion import DerivedStages, Exhaustion, derive_stages
from .mixture import Mixture, MixtureStage, compile_mixture
from .order import SourceOrder
from .plan import ORDER_VERSION, BatchStage, Plan, PlanConfig, SampleRefs, SourceShape
from .skips import DocumentResolver, SkipEntry, SkipList
from .traffic import Traffic, order_traffic
from .weights import BLOCK, POSITION_LIMIT

__all__ = [
    "BLOCK",
    "ORDER_VERSION",
    "POSITION_LIMIT",
    "BatchStage",
    "Cursor",
    "DerivedStages",
    "DocumentResolver",
    "Exhaustion",
    "Mixture",
    "MixtureStage",
    "Plan",
    "PlanConfig",
    "SampleRefs",
    "SkipEntry",
    "SkipList",
    "SourceOrder",
    "SourceShape",
    "Traffic",
    "check_cursor",
    "compile_mixture",
    "derive_stages",
    "make_cursor",
    "order_traffic",
]
