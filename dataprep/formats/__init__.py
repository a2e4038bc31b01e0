"""Input formats: one reader per file, one table, one way to read (``read_file``)."""

from .base import REJECT_DTYPE, FileSummary, ReadOptions, RejectSink, read_options
from .read import FORMATS, read_file

__all__ = ["FORMATS", "REJECT_DTYPE", "FileSummary", "ReadOptions", "RejectSink", "read_file", "read_options"]
