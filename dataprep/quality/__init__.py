"""Quality filters in front of dedup: our own fast ones (``filters``) and datatrove's (``adapter``), one screen
(``steps``). Imports datatrove."""

from .check import check_steps, quality_versions
from .filters import FILTERS, FILTERS_VERSION
from .steps import QualityDocuments

__all__ = ["FILTERS", "FILTERS_VERSION", "QualityDocuments", "check_steps", "quality_versions"]
