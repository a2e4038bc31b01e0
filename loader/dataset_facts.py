"""What a plan takes from the manifests of its Datasets. A run notes it beside their digests, so that where each source
stood can still be said when a Dataset was replaced where it lay (``remap_before``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .run_config import MixtureStageConfig, default_weights

if TYPE_CHECKING:
    from .sources import Sources

__all__ = ["facts_of", "samples_of", "stages_of"]


def facts_of(sources: Sources) -> list[dict[str, Any]]:
    """JSON-able facts of each Dataset, in order.

    ``samples``: source -> samples of an epoch. ``weights``: source -> its default weight beside other Datasets.
    ``stages``: [[start, weights]] that the Dataset was mixed for where it is the only one, else null. And what tokens
    mean: ``seq_len``, ``vocab_size``, ``tokenizer`` (its digest, or null).
    """
    weights = default_weights(sources)
    found = []
    for dataset in sources.datasets:
        manifest, names = dataset.manifest, dataset.source_names
        mixture = manifest.mixture if len(sources.datasets) == 1 else None
        found.append(
            {
                "seq_len": manifest.seq_len,
                "vocab_size": manifest.vocab_size,
                "tokenizer": manifest.tokenizer.get("digest"),
                "samples": {name: int(dataset.shard_samples(name).sum()) for name in names},
                "weights": {name: weights[name] for name in names if name in weights},
                "stages": mixture and [[stage.start, dict(stage.weights)] for stage in mixture.stages],
            }
        )
    return found


def samples_of(facts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Source -> samples of an epoch, over Datasets."""
    return {name: int(count) for one in facts for name, count in one["samples"].items()}


def stages_of(facts: Sequence[Mapping[str, Any]]) -> tuple[MixtureStageConfig, ...]:
    """``run_config.default_stages`` of the Datasets that have these facts, for a run that begins with them."""
    if len(facts) == 1 and facts[0]["stages"]:
        return tuple(MixtureStageConfig(start, weights) for start, weights in facts[0]["stages"])
    return (MixtureStageConfig(0, {name: weight for one in facts for name, weight in one["weights"].items()}),)
