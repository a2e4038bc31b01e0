"""``replay RUN --steps A:B``: the batches a branch saw, scored segment by segment with a checkpoint's weights.

Shape legend: B samples, T tokens of a sample, n labels of a segment, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from loader.errors import ConfigError, DamageError
from loader.lookup import segments_json
from loader.run_past import views_of_steps
from loader.run_view import RunView, open_run
from loader.stream.batch import read_batch

from .checkpoint import Checkpoint, open_checkpoint, verify_checkpoint
from .context import frozen_model, vocabulary_bytes
from .job import job_of_run
from .lineage import newest_valid
from .spikes.records import FrozenModel
from .spikes.score import gradient_norm_gram, gradient_norm_tiles

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
    """Losses (nats a label) and head gradient norms of every segment, with its document and text; JSON-able.

    ``matches_ledger`` says whether the tokens of a step are the ones that the run recorded for it.

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
    parts = [*views_of_steps(view, range(request.start, request.stop))][::-1]
    return {
        "branch": view.branch.number,
        "checkpoint": checkpoint.path.name,
        "checkpoint_step": checkpoint.facts.step,
        "steps": [_replay_step(one, frozen, step, words) for one, steps in parts for step in steps],
    }


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
        path = folder / request.checkpoint
        # Only a plain name: the same name in another run's folder would be other weights.
        if path.parent != folder or not path.name.startswith("step_") or not path.is_dir():
            known = ", ".join(sorted(child.name for child in folder.glob("step_*"))) or "none"
            raise ConfigError("TR-REPLAY-CHECKPOINT", f"no checkpoint {request.checkpoint!r}", str(folder), known)
        checkpoint = open_checkpoint(path)
        verify_checkpoint(checkpoint)
        return checkpoint

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


def _replay_step(view: RunView, frozen: FrozenModel, step: int, words: list[bytes] | None) -> dict[str, Any]:
    batch = read_batch(view.plan, view.sources, step)
    consumed = step < view.num_steps
    scores = list(_score(frozen, batch))
    table = batch.segments
    known = np.flatnonzero(~table.padding_S)
    described = segments_json(view.sources, table.take(known))
    segments = []
    for row, facts in zip(known.tolist(), described, strict=True):
        loss, norm, count = scores[row]
        index = int(table.sample_index_S[row])
        position, source = int(batch.positions_B[index]), view.sources.names[int(table.source_S[row])]
        scored = {"num_labels": count, "loss": loss, "head_gradient_norm": norm}
        entry = {"position": position, "source": source, **facts, **scored}
        if words is not None and not facts["masked"]:
            tokens_T = batch.tokens_BT[index, facts["token_start"] : facts["token_stop"]]
            entry["text"] = b"".join(words[token] for token in tokens_T.tolist()).decode("utf-8", "replace")
        segments.append(entry)
    labels = sum(count for _, _, count in scores)
    total = sum(loss * count for loss, _, count in scores if loss is not None)
    return {
        "step": step,
        "token_digest": f"{batch.token_digest:016x}",
        "matches_ledger": int(view.ledger_N["token_digest"][step]) == batch.token_digest if consumed else None,
        "loss": total / labels if labels else None,
        "recorded_loss": _recorded_loss(view, step),
        "segments": segments,
    }


def _recorded_loss(view: RunView, step: int) -> float | None:
    """What the ledger says of a step's loss; None before it is done, or without labels."""
    if step >= view.num_steps or not view.ledger_N["label_count"][step]:
        return None
    loss = float(view.ledger_N["loss"][step])
    return loss if math.isfinite(loss) else None


@torch.no_grad()
def _score(frozen: FrozenModel, batch: Batch) -> Iterator[tuple[float | None, float | None, int]]:
    """(loss, head gradient norm, labels) of each row of the segment table; None where there is no label."""
    hidden_BTD = frozen.hidden(batch).float()
    weight_VD = frozen.head_weight_VD.float()
    table = batch.segments
    for row in range(len(table)):
        index, start = int(table.sample_index_S[row]), int(table.token_start_S[row])
        tokens = slice(start, start + int(table.num_tokens_S[row]))
        labels_T = torch.from_numpy(batch.labels_BT[index, tokens].astype(np.int64)).to(hidden_BTD.device)
        kept_n = torch.nonzero(labels_T >= 0)[:, 0]
        if not len(kept_n):
            yield None, None, 0
            continue
        hidden_nD, labels_n = hidden_BTD[index, start + kept_n], labels_T[kept_n]
        log_p_nV = torch.log_softmax(hidden_nD @ weight_VD.T, dim=1)
        loss = -log_p_nV.gather(1, labels_n[:, None]).mean()
        errors_nV = log_p_nV.exp()
        errors_nV[torch.arange(len(labels_n)), labels_n] -= 1.0
        norm = gradient_norm_gram if len(labels_n) < hidden_nD.shape[1] else gradient_norm_tiles
        yield float(loss), norm(errors_nV, hidden_nD), len(labels_n)


def replay_text(found: dict[str, Any]) -> str:
    """The result of :func:`replay_run` for people."""
    lines = [f"branch {found['branch']}, weights of {found['checkpoint']}"]
    for step in found["steps"]:
        same = {True: "same tokens as recorded", False: "OTHER TOKENS THAN RECORDED", None: "not done yet"}
        loss = "no labels" if step["loss"] is None else f"loss {step['loss']:.4f}"
        lines.append(f"step {step['step']}: {loss}, {same[step['matches_ledger']]}")
        for segment in step["segments"]:
            scored = "masked" if segment["loss"] is None else ""
            scored = scored or f"loss {segment['loss']:.3f} grad {segment['head_gradient_norm']:.3f}"
            where = f"{segment['file']} record {segment['record']} bytes {segment['byte_start']}:{segment['byte_stop']}"
            lines.append(f"  {segment['document']} {segment['source']} {scored} {where}")
            if "text" in segment:
                lines.append(f"    {segment['text'][:_SHOWN_BYTES]!r}")
    return "\n".join(lines)
