"""What mosaicml-streaming is used for: reading our shards with it, unmodified, and fetching from stores that it knows.

The only module that imports it (extra ``[mosaic]``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .remote.store import is_url
from .run_config import default_stages
from .shards.dataset import Dataset
from .sources import open_sources

if TYPE_CHECKING:
    from .stream.stream import Stream
    from .torch_adapter import SampleDataset

__all__ = ["mosaic_download", "mosaic_style", "read_with_stock", "stock_setup"]


_SCHEMES = frozenset({"alipan", "dbfs", "hf", "oci", "sftp"})


def mosaic_download(url: str) -> Callable[[str, str, float], None] | None:
    """``download(url of an object, path, timeout_s)`` of mosaicml-streaming for the scheme of ``url``; None if it is
    not installed or knows no such scheme.

    The scheme is looked up before anything is imported: importing mosaicml-streaming takes seconds. Each call makes a
    downloader of its own, so that threads share none and credentials are read again.
    """
    if url.partition("://")[0] not in _SCHEMES:
        return None
    try:
        from streaming.base.storage.download import CloudDownloader
    except ImportError:
        return None
    try:
        CloudDownloader.get(url)
    except ValueError:
        return None
    return CloudDownloader.direct_download


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


def mosaic_style(stream: Stream, epoch_size: int | None = None) -> SampleDataset:
    """A stream with the interface of ``streaming.StreamingDataset`` for Composer and llm-foundry: ``len``, items,
    iteration by epochs, ``state_dict(num_samples, from_beginning)``, ``load_state_dict``. mosaicml-streaming need not
    be installed; unlike stock reading it verifies, masks, and resumes on any number of ranks.

    Raises:
        ConfigError: as ``torch_adapter.SampleDataset``.
    """
    from .torch_adapter import SampleDataset

    return SampleDataset(stream, epoch_size)


def stock_setup(dataset: Dataset) -> str:
    """Python text that makes ``dataset``, a stock ``StreamingDataset`` over the same files in the same proportions.

    A Stream has one proportion, so of a mixture in stages these are those of the first; sources that it does not read
    are left out. Stock reading knows no documents, no skip list and no replay, and it compares a hash only with what
    it has just downloaded (``remote=``), never with files that are there: ``tokenreel verify`` does that.
    """
    if not any(source.num_samples for source in dataset.manifest.sources):
        return "# no samples\n"
    stages = default_stages(open_sources([dataset]))
    weights = {name: weight for name, weight in stages[0].weights.items() if weight}
    total = sum(weights.values())
    lines = ["# the same files through mosaicml-streaming, which compares hashes with what it downloads only (remote=)"]
    if len(stages) > 1:
        lines.append(f"# the first of {len(stages)} stages of the mixture: shares change at sample {stages[1].start:,}")
    lines += ["from streaming import Stream, StreamingDataset", "", "dataset = StreamingDataset(", "    streams=["]
    for name in dataset.source_names:
        if name in weights:
            if is_url(dataset.location):
                place = f"remote={dataset.location + '/' + name!r}"
            else:
                place = f"local={str((dataset.path / name).resolve())!r}"
            lines.append(f"        Stream({place}, proportion={weights[name] / total!r}),")
    lines += ["    ],", '    validate_hash="xxh3_128",', "    batch_size=8,", "    shuffle=True,", ")"]
    return "\n".join(lines) + "\n"
