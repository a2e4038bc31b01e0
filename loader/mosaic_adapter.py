"""Our shards read by stock mosaicml-streaming, unmodified. The only module that imports it (extra ``[mosaic]``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

__all__ = ["read_with_stock"]


def read_with_stock(dataset: Path, source: str) -> Iterator[NDArray[np.unsignedinteger]]:  # type: ignore[type-arg]
    """tokens_T of each sample of a source, in source sample order, as ``streaming.StreamingDataset`` reads them.

    Stock reading verifies nothing, masks nothing and knows no documents; it is for tools that expect MDS.

    Raises:
        ConfigError: mosaicml-streaming is not installed, or there is no such source.
    """
    try:
        from streaming import StreamingDataset
    except ImportError as error:
        raise ConfigError(
            "TR-MOSAIC-MISSING", "mosaicml-streaming is not installed", None, "the extra [mosaic]",
            "pip install 'tokenreel[mosaic]'",
        ) from error  # fmt: skip
    folder = dataset / source
    if not (folder / "index.json").is_file():
        raise ConfigError("TR-SOURCE-UNKNOWN", f"no source {source!r}", str(dataset), "a source of this Dataset")
    stock = StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    for sample in range(stock.num_samples):
        yield np.asarray(stock[sample]["tokens"])
