"""What a Dataset is: digests, counts, shares, sizes; and, counted from its shards, what its documents are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from .census import count_documents
from .dataset import Dataset, open_dataset

__all__ = ["inspect_dataset"]


def inspect_dataset(
    place: Dataset | Path | str, documents: Literal["none", "sampled", "exact"] = "none"
) -> dict[str, Any]:
    """A JSON-able description of a Dataset.

    Args:
        place: the Dataset, or its folder.
        documents: ``none``: only the manifest and shards.npy are read, both verified; ``sampled`` and ``exact``: each
            source also gets ``counted``, see :func:`census.count_documents`.

    Raises:
        ConfigError: there is no Dataset.
        DamageError: what was read is damaged.
    """
    dataset = place if isinstance(place, Dataset) else open_dataset(place)
    manifest = dataset.manifest
    counted = {} if documents == "none" else count_documents(dataset, documents == "exact")
    sources = []
    for index, source in enumerate(manifest.sources):
        mine_R = dataset.shards_R[dataset.shards_R["source"] == index]
        room = source.num_samples * manifest.seq_len
        sources.append(
            {
                **vars(source),
                "size_bytes": int(mine_R["size_bytes"].sum()),
                "padding": 1 - source.num_tokens / room if room else 0.0,
                "max_segments": int(mine_R["max_segments"].max(initial=0)),
                **({"counted": counted[source.name]} if counted else {}),
            }
        )
    tokenizer = {name: value for name, value in manifest.tokenizer.items() if name != "golden"}
    names = ("num_shards", "num_samples", "num_segments", "num_tokens", "num_documents", "size_bytes")
    return {
        "kind": "dataset",
        "path": dataset.location,
        "digest": dataset.digest,
        "seq_len": manifest.seq_len,
        "vocab_size": manifest.vocab_size,
        "dtype": manifest.dtype,
        "max_segments": manifest.max_segments,
        "totals": {name: int(np.sum([source[name] for source in sources], dtype=np.int64)) for name in names},
        "sources": sources,
        "tokenizer": tokenizer,
        "salt": manifest.salt,
        "parents": dict(manifest.parents),
        "order": dict(manifest.order),
        "mixture": manifest.mixture.to_json() if manifest.mixture is not None else None,
        "package_version": manifest.package_version,
        "accounting": dict(manifest.accounting),
        "files": {name: vars(record) for name, record in sorted(manifest.files_hashed.items())},
    }
