"""Tokens and epochs of each source, as far as they are known before a job has run.

Once the mix stage is done they are exact. Before it they are estimated from the sizes of the input files: 4 bytes of
text a token (what byte-pair encoders of 32,000 to 128,000 entries give on English web text) and 3 bytes of text a byte
of a compressed file. Deduplication is not guessed: what it will remove is still counted. The plan itself (stages,
shares, epochs) is the mix's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loader.errors import TokenreelError

from .config import BuildConfig
from .mix_plan import plan_mix
from .pipeline import Pipeline

__all__ = ["BYTES_A_TOKEN", "COMPRESSION", "estimated_tokens", "planned_tokens", "tokens_text"]

BYTES_A_TOKEN = 4
"""Bytes of text a token: an estimate."""
COMPRESSION = 3
"""Bytes of text a byte of a compressed file: an estimate."""
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".parquet")


def estimated_tokens(files: Sequence[tuple[str, str, int]]) -> dict[str, int]:
    """Source -> tokens of its (source, path, size in bytes)."""
    found: dict[str, int] = {}
    for source, path, size_bytes in files:
        text_bytes = size_bytes * (COMPRESSION if path.endswith(_COMPRESSED) else 1)
        found[source] = found.get(source, 0) + text_bytes // BYTES_A_TOKEN
    return found


def _rows(config: BuildConfig, tokens: Mapping[str, int]) -> list[dict[str, Any]]:
    plan = plan_mix(tokens, config.mix, config.pack.seq_len)
    return [
        {
            "source": source,
            "available_tokens": available,
            "planned_tokens": plan.planned_tokens(source),
            "epochs": plan.planned_tokens(source) / max(1, min(available, plan.keep_tokens[source])),
        }
        for source, available in tokens.items()
    ]


def planned_tokens(pipeline: Pipeline) -> dict[str, Any]:
    """``estimated`` (whether), ``sources`` (rows) and ``problem`` (why there are no rows), JSON-able; reads results of
    finished stages, writes nothing.
    """
    config = pipeline.job.config
    stage = pipeline.stages.get("mix")
    known = all(raw.digest for raw in pipeline.job.raw)
    if stage is not None and known and not stage.incomplete_ranks():
        from .mix_stage import read_mix

        mix = read_mix(stage.folder)
        rows = [
            {key: getattr(row, key) for key in ("source", "available_tokens", "planned_tokens", "epochs")}
            for row in mix.rows
        ]
        return {"estimated": False, "sources": rows, "problem": None}
    files = [(raw.source, raw.relative, raw.size_bytes) for raw in pipeline.job.raw]
    try:
        return {"estimated": True, "sources": _rows(config, estimated_tokens(files)), "problem": None}
    except TokenreelError as error:
        return {"estimated": True, "sources": [], "problem": f"{error.code}: {error.message}"}


def tokens_text(planned: Any) -> list[str]:
    """The value of :func:`planned_tokens` as lines."""
    how = "estimated from file sizes, before deduplication" if planned["estimated"] else "as mixed"
    if planned["problem"] is not None:
        return [f"tokens ({how})", f"  {planned['problem']}"]
    width = max((len(row["source"]) for row in planned["sources"]), default=0)
    return [
        f"tokens ({how})",
        *(
            f"  {row['source']:<{width}}  {row['available_tokens']:>18,} there  {row['planned_tokens']:>18,} planned  "
            f"{row['epochs']:.2f} epochs"
            for row in planned["sources"]
        ),
    ]
