"""What lies on disk: Datasets of token shards, written once, verified as they are read."""

from __future__ import annotations

from .commit import DatasetInfo, write_dataset_manifest
from .dataset import Dataset, open_dataset
from .documents import DocumentPlace
from .layout import DOCUMENT_DTYPE, PADDING_ROW, SEGMENT_DTYPE, max_samples
from .manifest import InputFile, Manifest, SourceInfo
from .segments import SegmentArray, SegmentTable, make_segments
from .writer import ShardRecord, ShardSpec, ShardWriter

__all__ = [
    "DOCUMENT_DTYPE",
    "PADDING_ROW",
    "SEGMENT_DTYPE",
    "Dataset",
    "DatasetInfo",
    "DocumentPlace",
    "InputFile",
    "Manifest",
    "SegmentArray",
    "SegmentTable",
    "ShardRecord",
    "ShardSpec",
    "ShardWriter",
    "SourceInfo",
    "make_segments",
    "max_samples",
    "open_dataset",
    "write_dataset_manifest",
]
