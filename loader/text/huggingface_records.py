"""Files of a Hugging Face dataset on disk, Arrow or Parquet by suffix: texts read again without ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .arrow_records import read_arrow_again
from .parquet_records import read_parquet_again

if TYPE_CHECKING:
    from .records import RecordPlace

__all__ = ["huggingface_kind", "read_huggingface_again"]


def huggingface_kind(path: Path) -> str:
    """``arrow`` or ``parquet``: what the file is, and the name of its builder in ``datasets``.

    Raises:
        ConfigError: neither.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("arrow", "parquet"):
        message = f"no file of a Hugging Face dataset ends in {path.suffix!r}"
        raise ConfigError("TR-INPUT-FORMAT", message, str(path), "*.arrow or *.parquet")
    return kind


def read_huggingface_again(path: Path, places: Sequence[RecordPlace], text_field: str) -> Iterator[str]:
    """Texts of rows at ascending ``places``."""
    reader = read_arrow_again if huggingface_kind(path) == "arrow" else read_parquet_again
    return reader(path, places, text_field)
