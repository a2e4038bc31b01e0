"""What a mix becomes on disk: how large the shards are predicted to be, and the default Mixture in positions.

The Mixture is known once documents are packed: a source with more padding needs more positions for the same tokens, so
its weight is its share of the stage's tokens times its samples over its tokens. Weights are integers of sum 2^26, as
the loader's are; that is all that is rounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from loader.errors import JobError
from loader.order.weights import WEIGHT_BITS
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage
from loader.shards.layout import max_samples, token_dtype

from .mix import text_table
from .mix_plan import largest_remainder
from .mix_stage import Mix, read_mix
from .pack import shards_of_windows
from .pipeline import Pipeline
from .places import SPLITS
from .stages import read_json
from .token_facts import read_facts

__all__ = [
    "OutputSize",
    "check_output",
    "dataset_mixture",
    "mix_json",
    "mixture_rows",
    "mixture_text",
    "packed_output",
    "position_mixture",
    "predicted_output",
    "predicted_text",
]

_SLACK_BYTES = 1 << 26
_SLACK_SHARDS = 256
_FAR = 2


@dataclass(frozen=True)
class OutputSize:
    """Samples, shards and bytes of the samples' tokens, both splits together."""

    num_samples: int
    num_shards: int
    size_bytes: int

    def to_json(self) -> dict[str, int]:
        """As a JSON-able dictionary."""
        return asdict(self)


def predicted_output(pipeline: Pipeline) -> OutputSize:
    """What the mix says the shards will be: every sample full, every shard as large as configured, one a bucket at
    least."""
    mix = read_mix(pipeline.folder("mix"))
    trained = {row.source: row.kept_tokens for row in mix.rows}
    samples = shards = 0
    sample_bytes, most = _sample_bytes(pipeline)
    for split in range(len(SPLITS)):
        for source, tokens in (trained, mix.held_out_tokens)[split].items():
            count = -(-tokens // pipeline.job.config.pack.seq_len)
            buckets = sum((bucket.split, bucket.source) == (split, source) for bucket in pipeline.buckets)
            samples += count
            shards += max(-(-count // most), min(buckets, count))
    return OutputSize(samples, shards, samples * sample_bytes)


def packed_output(pipeline: Pipeline) -> OutputSize:
    """What packing made of it; exactly what the write stage will write."""
    sample_bytes, most = _sample_bytes(pipeline)
    samples = [_bucket_samples(pipeline, task) for task in range(len(pipeline.buckets))]
    shards = sum(1 + shards_of_windows(windows, most)[-1] for windows in samples if windows)
    count = sum(map(sum, samples))
    return OutputSize(count, shards, count * sample_bytes)


def check_output(pipeline: Pipeline) -> None:
    """Stop before anything is written if that would be far more than was predicted.

    Raises:
        JobError: ``TR-OUTPUT-SIZE``.
    """
    predicted, packed = predicted_output(pipeline), packed_output(pipeline)
    too_large = packed.size_bytes > _FAR * predicted.size_bytes + _SLACK_BYTES
    if too_large or packed.num_shards > _FAR * predicted.num_shards + _SLACK_SHARDS:
        raise JobError(
            "TR-OUTPUT-SIZE",
            f"packing would write {packed.num_shards:,} shards of {packed.size_bytes:,} bytes, mostly padding",
            "pack",
            f"about {predicted.num_shards:,} shards of {predicted.size_bytes:,} bytes",
            "raise pack.window_documents or shards.size_bytes, or lower pack.seq_len",
        )


def predicted_text(size: OutputSize) -> str:
    """The prediction as a line."""
    return f"shards  about {size.num_shards:,} of {size.size_bytes:,} bytes together, in {size.num_samples:,} samples"


def mix_json(pipeline: Pipeline) -> dict[str, Any]:
    """What the verb ``mix`` prints: ``mix`` by source, ``stages`` of the plan in tokens, ``predicted`` output."""
    mix = read_mix(pipeline.folder("mix"))
    stages = [
        {
            "asked": stage.asked,
            "start_tokens": stage.start_tokens,
            "stop_tokens": stage.stop_tokens,
            "tokens": dict(stage.tokens),
        }
        for stage in mix.stages
    ]
    predicted = predicted_output(pipeline).to_json()
    return {"mix": [row.to_json() for row in mix.rows], "stages": stages, "predicted": predicted}


def dataset_mixture(pipeline: Pipeline) -> DefaultMixture | None:
    """The default Mixture of the training Dataset, once the pack stage is finished; None where nothing is asked for,
    so that the natural shares say it all."""
    config = pipeline.job.config
    if not config.mix.asks:
        return None
    mix = read_mix(pipeline.folder("mix"))
    return position_mixture(mix, _trained_samples(pipeline), config.pack.seq_len, config.mix.exhaustion)


def position_mixture(mix: Mix, samples: Mapping[str, int], seq_len: int, policy: str) -> DefaultMixture:
    """Stages of positions that give the tokens of a plan.

    Args:
        mix: the plan, and tokens kept.
        samples: source -> its samples.
        seq_len: tokens of a sample.
        policy: what the plan did about sources that run out.
    """
    tokens = {row.source: row.kept_tokens for row in mix.rows}
    stages: list[DefaultMixtureStage] = []
    for stage in mix.stages:
        exact = {source: Fraction(share * samples[source], tokens[source]) for source, share in stage.shares.items()}
        weights = {s: weight for s, weight in largest_remainder(exact, 1 << WEIGHT_BITS).items() if weight}
        if not stages or stages[-1].weights != weights:
            stages.append(DefaultMixtureStage(stage.start_tokens // seq_len, weights))
    total = mix.stages[-1].stop_tokens // seq_len
    return DefaultMixture(policy, max(total, stages[-1].start + 1), tuple(stages))


def mixture_rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The default Mixture as it is realised, stage by stage; [] where there is none.

    Returns:
        A row a stage: ``start`` and ``positions``; ``sources``: source -> ``share`` of the stage's tokens, ``error``
        against what was asked for (in the block in which a source runs out: against what it has left).
    """
    config = pipeline.job.config
    if not config.mix.asks:
        return []
    mix, samples = read_mix(pipeline.folder("mix")), _trained_samples(pipeline)
    mixture = position_mixture(mix, samples, config.pack.seq_len, config.mix.exhaustion)
    density = {row.source: Fraction(row.kept_tokens, samples[row.source]) for row in mix.rows}
    planned = {stage.start_tokens // config.pack.seq_len: stage.shares for stage in mix.stages}
    stops = [*(stage.start for stage in mixture.stages[1:]), mixture.total_positions]
    rows = []
    for stage, stop in zip(mixture.stages, stops, strict=True):
        tokens = {source: weight * density[source] for source, weight in stage.weights.items()}
        whole, asked = sum(tokens.values()), planned[stage.start]
        shares = {source: Fraction(count) / whole for source, count in tokens.items()}
        sources = {
            source: {"share": float(share), "error": float(share - Fraction(asked[source], sum(asked.values())))}
            for source, share in shares.items()
        }
        rows.append({"start": stage.start, "positions": stop - stage.start, "sources": sources})
    return rows


def mixture_text(pipeline: Pipeline) -> str:
    """The tables that are printed after packing and before writing: the default Mixture, and what will be written."""
    cells = [["from position", "samples", "shares of tokens", "largest error"]]
    for row in mixture_rows(pipeline):
        shares = "  ".join(f"{source} {100 * value['share']:.3f}%" for source, value in row["sources"].items())
        error = max(abs(value["error"]) for value in row["sources"].values())
        cells.append([f"{row['start']:,}", f"{row['positions']:,}", shares, f"{100 * error:.1e}%"])
    packed = packed_output(pipeline)
    size = f"shards  {packed.num_shards:,} of {packed.size_bytes:,} bytes together, in {packed.num_samples:,} samples"
    return "\n".join([*(["mixture", *text_table(cells, left=(2,))] if len(cells) > 1 else []), size])


def _sample_bytes(pipeline: Pipeline) -> tuple[int, int]:
    """Bytes of a sample, and the most samples of a shard."""
    config = pipeline.job.config
    vocab_size = read_facts(pipeline.folder("tokenizer")).vocab_size
    most = max_samples(config.pack.seq_len, vocab_size, config.shards.size_bytes)
    return config.pack.seq_len * token_dtype(vocab_size).itemsize, max(most, 1)


def _bucket_samples(pipeline: Pipeline, task: int) -> list[int]:
    """Samples of each window of a bucket."""
    samples: list[int] = read_json(pipeline.folder("pack") / f"samples.{task:05d}.json")["samples"]
    return samples


def _trained_samples(pipeline: Pipeline) -> dict[str, int]:
    """Samples of each source in the training Dataset."""
    samples = dict.fromkeys(pipeline.job.config.sources, 0)
    for task, bucket in enumerate(pipeline.buckets):
        if bucket.split == 0:
            samples[bucket.source] += sum(_bucket_samples(pipeline, task))
    return samples
