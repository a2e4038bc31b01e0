"""``replay RUN --steps A:B``: the batches a branch saw, scored segment by segment with a checkpoint's weights.

Shape legend: B samples, T tokens of a sample, n labels of a segment, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from loader.errors import ConfigError, DamageError
from loader.lookup import segments_json
from loader.run_past import views_of_steps
from loader.run_view import RunView, open_run
from loader.stream.batch import read_batch

from .checkpoint import Checkpoint
from .context import vocabulary_bytes
from .frozen import frozen_model
from .job import job_of_run
from .lineage import named_checkpoint, newest_valid
from .spikes.attribute import SegmentColumns, concatenate, loss_z
from .spikes.baseline import LEAST_BASELINE, read_baseline
from .spikes.config import AttributionConfig
from .spikes.records import FrozenModel
from .spikes.score import score_batch, scored_rows

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = ["Replay", "replay_run", "replay_text"]

_SHOWN_BYTES = 120
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Replay:
    """What to replay: steps ``[start, stop)`` of a branch (None: the current one) with a checkpoint's weights.

    Attributes:
        run: folder of the run. checkpoint: name below RUN/checkpoints, or None: the newest at or before ``start``.
        text: decode each segment's text.
    """

    run: Path
    start: int
    stop: int
    checkpoint: str | None = None
    branch: int | None = None
    text: bool = True


def replay_run(request: Replay, say: Callable[[str], None]) -> dict[str, Any]:
    """Losses (nats a label), head gradient norms and z of every segment, with its document and text; JSON-able.

    ``z`` is the loss against the steps in front of the range, in deviations, as an investigation of the spike watch
    would have it; null where those hold too few segments. ``matches_ledger`` says whether the tokens of a step are the
    ones that the run recorded for it.

    Raises:
        ConfigError: no such run, branch or checkpoint, more steps than one call holds, or steps before a remap whose
            Datasets are gone.
        DamageError: the checkpoint or a shard is damaged.
    """
    job, view = job_of_run(request.run), open_run(request.run, request.branch)
    _check_range(request)
    checkpoint = _checkpoint(request, view, say)
    torch.set_num_threads(job.config.run.threads)
    frozen = frozen_model(job, view.sources, checkpoint)
    words = vocabulary_bytes(view.sources) if request.text else None
    steps: list[dict[str, Any]] = []
    segments = 0
    for one, own in [*views_of_steps(view, range(request.start, request.stop))][::-1]:
        clean = _baseline(one, frozen, own.start, job.config.spikes.attribution)
        segments += 0 if clean is None else len(clean)
        steps += [_replay_step(one, (frozen, clean), step, words) for step in own]
    return {
        "branch": view.branch.number,
        "checkpoint": checkpoint.path.name,
        "checkpoint_step": checkpoint.facts.step,
        "baseline_segments": segments,
        "steps": steps,
    }


def _baseline(view: RunView, frozen: FrozenModel, stop: int, rules: AttributionConfig) -> SegmentColumns | None:
    """Scored segments of the steps in front of ``stop`` that the same plan read, as many as an investigation reads;
    None: too few to compare with."""

    def score(step: int) -> SegmentColumns:
        return score_batch(frozen, read_batch(view.plan, view.sources, step), None, True)

    first = 0 if view.force.start is None else view.force.start.step
    parts = read_baseline(score, (first, stop), rules)
    return concatenate(parts) if sum(map(len, parts)) >= LEAST_BASELINE else None


def _check_range(request: Replay) -> None:
    """Every step is scored and its result held in memory, so a range of millions is a slip of the hand."""
    if request.stop - request.start > _MOST_STEPS:
        raise ConfigError(
            "TR-REPLAY-RANGE",
            f"{request.stop - request.start:,} steps at once",
            f"steps {request.start}:{request.stop}",
            f"at most {_MOST_STEPS:,}",
        )


def _checkpoint(request: Replay, view: RunView, say: Callable[[str], None]) -> Checkpoint:
    folder = view.paths.checkpoints
    if request.checkpoint is not None:
        return named_checkpoint(folder, request.checkpoint)

    def damaged(error: DamageError) -> None:
        say(f"damaged checkpoint, left alone: {error}")

    from loader.runs import read_branches

    branches = read_branches(view.paths)[: view.branch.number + 1]
    found = newest_valid(folder, branches, request.start, damaged)
    if found is None:
        known = ", ".join(sorted(child.name for child in folder.glob("step_*"))) or "none"
        raise ConfigError(
            "TR-REPLAY-CHECKPOINT",
            f"no valid checkpoint at or before step {request.start}",
            str(folder),
            f"--checkpoint with one of: {known}",
        )
    return found


def _replay_step(
    view: RunView, scoring: tuple[FrozenModel, SegmentColumns | None], step: int, words: list[bytes] | None
) -> dict[str, Any]:
    """One step; ``scoring``: with these weights, against these clean segments."""
    batch = read_batch(view.plan, view.sources, step)
    consumed = step < view.num_steps
    columns, z_R = _score(scoring, batch)
    scored = {row: at for at, row in enumerate(scored_rows(batch).tolist())}
    table = batch.segments
    known = np.flatnonzero(~table.padding_S)
    described = segments_json(view.sources, table.take(known))
    segments = []
    for row, facts in zip(known.tolist(), described, strict=True):
        index, at = int(table.sample_index_S[row]), scored.get(row)
        position, source = int(batch.positions_B[index]), view.sources.names[int(table.source_S[row])]
        entry = {"position": position, "source": source, **facts, **_numbers(columns, z_R, at)}
        if words is not None and not facts["masked"]:
            tokens_T = batch.tokens_BT[index, facts["token_start"] : facts["token_stop"]]
            entry["text"] = b"".join(words[token] for token in tokens_T.tolist()).decode("utf-8", "replace")
        segments.append(entry)
    labels = int(columns.num_labels_S.sum())
    return {
        "step": step,
        "token_digest": f"{batch.token_digest:016x}",
        "matches_ledger": int(view.ledger_N["token_digest"][step]) == batch.token_digest if consumed else None,
        "loss": _finite(float(columns.loss_S @ columns.num_labels_S) / labels) if labels else None,
        "recorded_loss": _recorded_loss(view, step),
        "segments": segments,
    }


def _score(
    scoring: tuple[FrozenModel, SegmentColumns | None], batch: Batch
) -> tuple[SegmentColumns, NDArray[np.float64] | None]:
    """The rows of a batch's segments with labels, and the z of each."""
    frozen, clean = scoring
    columns = score_batch(frozen, batch, None, False)
    return columns, None if clean is None else loss_z(concatenate([clean, columns]))[len(clean) :]


def _numbers(columns: SegmentColumns, z_R: NDArray[np.float64] | None, at: int | None) -> dict[str, Any]:
    """What row ``at`` of the table says of its segment; None: the segment has no labels."""
    if at is None:
        return {"num_labels": 0, "loss": None, "head_gradient_norm": None, "z": None}
    return {
        "num_labels": int(columns.num_labels_S[at]),
        "loss": _finite(columns.loss_S[at]),
        "head_gradient_norm": _finite(columns.head_grad_S[at]),
        "z": None if z_R is None else _finite(z_R[at]),
    }


def _finite(value: float) -> float | None:
    """A number for JSON; None where broken weights gave none."""
    return float(value) if math.isfinite(value) else None


def _recorded_loss(view: RunView, step: int) -> float | None:
    """What the ledger says of a step's loss; None before it is done, or without labels."""
    if step >= view.num_steps or not view.ledger_N["label_count"][step]:
        return None
    loss = float(view.ledger_N["loss"][step])
    return loss if math.isfinite(loss) else None


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def replay_text(found: dict[str, Any]) -> str:
    """The result of :func:`replay_run` for people."""
    lines = [f"branch {found['branch']}, weights of {found['checkpoint']}"]
    for step in found["steps"]:
        same = {True: "same tokens as recorded", False: "OTHER TOKENS THAN RECORDED", None: "not done yet"}
        loss = "no labels" if step["loss"] is None else f"loss {step['loss']:.4f}"
        lines.append(f"step {step['step']}: {loss}, {same[step['matches_ledger']]}")
        for segment in step["segments"]:
            loss, norm, z = (_number(segment[key]) for key in ("loss", "head_gradient_norm", "z"))
            scored = f"loss {loss} grad {norm} z {z}" if segment["num_labels"] else "no labels"
            scored = "masked" if segment["masked"] else scored
            where = f"{segment['file']} record {segment['record']} bytes {segment['byte_start']}:{segment['byte_stop']}"
            lines.append(f"  {segment['document']} {segment['source']} {scored} {where}")
            if "text" in segment:
                lines.append(f"    {segment['text'][:_SHOWN_BYTES]!r}")
    return "\n".join(lines)
