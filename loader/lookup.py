"""From steps to documents and back. Every answer comes from the functions that the stream itself reads with.

All results are JSON-able dictionaries. Document ids are 16 hex digits, ranges half-open; bytes count in the document's
decoded UTF-8 text, tokens inside their sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .order.weights import POSITION_LIMIT
from .stream.batch import BatchSegments, read_batch, read_segments

if TYPE_CHECKING:
    from .order.plan import Plan
    from .run_view import RunView
    from .shards.dataset import Dataset
    from .sources import Sources

__all__ = [
    "again_step",
    "document_places",
    "document_steps",
    "locate_positions",
    "locate_step",
    "parse_document",
    "segments_json",
]


def parse_document(text: str) -> int:
    """A document id from its 16 hex digits.

    Raises:
        ConfigError: something else.
    """
    if len(text) != 16 or not all(digit in "0123456789abcdefABCDEF" for digit in text):
        raise ConfigError("TR-LOOKUP-DOCUMENT", f"no document id: {text!r}", "--document", "16 hex digits")
    return int(text, 16)


def locate_step(view: RunView, step: int) -> dict[str, Any]:
    """What one step reads on all ranks together.

    ``consumed`` says whether the branch has done the step, ``matches_ledger`` whether these tokens are the ones it then
    recorded (null before the step is done).

    Raises:
        ConfigError: no such step.
        DamageError: a shard is damaged.
    """
    if step < 0:
        raise ConfigError("TR-LOOKUP-STEP", f"no step {step}", "--step", "0 or more")
    batch = read_batch(view.plan, view.sources, step)
    consumed = step < view.num_steps
    return {
        "branch": view.branch.number,
        "step": step,
        "first_position": int(view.plan.first_position(step)),
        "next_position": batch.next_position,
        "consumed": consumed,
        "token_digest": f"{batch.token_digest:016x}",
        "matches_ledger": int(view.ledger_N["token_digest"][step]) == batch.token_digest if consumed else None,
        "samples": list(_samples(view.sources, batch.positions_B, batch.epoch_B, batch.segments)),
    }


def locate_positions(view: RunView, start: int, stop: int) -> dict[str, Any]:
    """What lies at positions ``[start, stop)``, by the tables alone: no token is read.

    ``cut`` lists positions that the skip list cuts, ``behind_end`` those behind the last whole step of the plan.

    Raises:
        ConfigError: no such range, or more than 65,536 positions.
        DamageError: a segment or document table is damaged.
    """
    if not 0 <= start < stop <= min(start + (1 << 16), POSITION_LIMIT):
        raise ConfigError(
            "TR-LOOKUP-RANGE", f"no range {start}:{stop}", "--position", "A:B with at most 65,536 positions, below 2^36"
        )
    positions_N = np.arange(start, stop)
    steps_N = view.plan.steps_of(positions_N)
    read_B = positions_N[steps_N >= 0]
    segments = read_segments(view.plan, view.sources, read_B)
    samples = _samples(view.sources, read_B, view.plan.samples(read_B).epoch_N, segments)
    cut, behind_end = _unread(view.plan, positions_N[steps_N < 0])
    return {
        "branch": view.branch.number,
        "positions": [start, stop],
        "cut": cut,
        "behind_end": behind_end,
        "samples": [{"step": int(steps_N[sample["position"] - start]), **sample} for sample in samples],
    }


def _unread(plan: Plan, positions_N: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Positions that no step reads: those that were cut, and those behind the last whole step."""
    end = plan.next_position(plan.num_steps - 1)
    return positions_N[positions_N < end].tolist(), positions_N[positions_N >= end].tolist()


def _samples(
    sources: Sources, positions_B: NDArray[np.int64], epoch_B: NDArray[np.int64], segments: BatchSegments
) -> Iterator[dict[str, Any]]:
    """One dictionary a sample, in batch order."""
    borders = np.searchsorted(segments.sample_index_S, np.arange(len(positions_B) + 1)).tolist()
    for row, (start, stop) in enumerate(itertools.pairwise(borders)):
        own = segments.take(slice(start, stop))
        yield {
            "position": int(positions_B[row]),
            "source": sources.names[int(own.source_S[0])],
            "epoch": int(epoch_B[row]),
            "shard": int(own.shard_S[0]),
            "sample": int(own.sample_S[0]),
            "padding_tokens": int(own.num_tokens_S[own.padding_S].sum()),
            "segments": segments_json(sources, own.take(~own.padding_S)),
        }


def segments_json(sources: Sources, segments: BatchSegments) -> list[dict[str, Any]]:
    """Segments as ``locate`` prints them."""
    names = ("source_S", "document_id_S", "file_S", "record_S", "record_start_S", "byte_start_S", "byte_count_S",
             "token_start_S", "num_tokens_S", "masked_S")  # fmt: skip
    rows = zip(*(getattr(segments, name).tolist() for name in names), strict=True)
    return [
        {
            "document": f"{document:016x}",
            "file": sources.dataset(source).file_path(file),
            "record": record,
            "record_start": record_start,
            "byte_start": byte_start,
            "byte_stop": byte_start + byte_count,
            "token_start": token_start,
            "token_stop": token_start + count,
            "masked": masked,
        }
        for source, document, file, record, record_start, byte_start, byte_count, token_start, count, masked in rows
    ]


def document_steps(plan: Plan, sources: Sources, document: int, stop_position: int) -> dict[str, Any]:
    """Each reading of a document at positions below ``stop_position``, oldest first, in closed form.

    ``cut`` holds readings that a skipped range of positions removes; ``masked`` ones were read without being learned.

    Raises:
        ConfigError: no Dataset holds the document.
    """
    places = sources.samples_of_document(document, proven=False)
    if not places:
        raise _unknown(f"no Dataset holds document {document:016x}", sources.datasets, sources.place)
    found: list[NDArray[np.int64]] = []
    for name, samples_N in places:
        if name in sources.names:
            found.append(plan.positions_of_samples(name, samples_N, stop_position)[0])
    positions_N = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
    steps_N = plan.steps_of(positions_N)
    alive_N = steps_N >= 0
    segments = read_segments(plan, sources, positions_N[alive_N])
    segments = segments.take(segments.document_id_S == np.uint64(document))
    step_at = dict(zip(positions_N.tolist(), steps_N.tolist(), strict=True))
    readings = [
        {
            "step": step_at[position],
            "position": position,
            "source": sources.names[source],
            "sample": sample,
            "byte_start": byte_start,
            "byte_stop": byte_start + byte_count,
            "masked": masked,
        }
        for position, source, sample, byte_start, byte_count, masked in zip(
            segments.position_S.tolist(),
            segments.source_S.tolist(),
            segments.sample_S.tolist(),
            segments.byte_start_S.tolist(),
            segments.byte_count_S.tolist(),
            segments.masked_S.tolist(),
            strict=True,
        )
    ]
    return {
        "document": f"{document:016x}",
        "stop_position": stop_position,
        "steps": sorted({reading["step"] for reading in readings}),
        "again_step": again_step(readings),
        "readings": readings,
        "cut": _unread(plan, positions_N[~alive_N])[0],
        **_searched(sources.datasets),
    }


def again_step(readings: Sequence[Mapping[str, Any]]) -> int | None:
    """The first step that reads a sample of the document again, of readings oldest first; None if none does."""
    seen: set[tuple[str, int, int, int]] = set()
    for reading in readings:
        segment = (reading["source"], reading["sample"], reading["byte_start"], reading["byte_stop"])
        if segment in seen:
            return int(reading["step"])
        seen.add(segment)
    return None


def document_places(dataset: Dataset, document: int) -> dict[str, Any]:
    """Where a Dataset holds a document: its Origin, and its segments with their sample numbers.

    Raises:
        ConfigError: the Dataset does not hold it.
    """
    segments: list[dict[str, Any]] = []
    origin: dict[str, Any] = {}
    for source, samples_N in dataset.samples_of_document(document, proven=False):
        table = dataset.segments_of(source, samples_N)
        table = table.take(table.document_id_S == np.uint64(document))
        for row in range(len(table)):
            origin = {
                "source": source,
                "file": dataset.file_path(int(table.file_S[row])),
                "record": int(table.record_S[row]),
                "record_start": int(table.record_start_S[row]),
            }
            segments.append(
                {
                    "source": source,
                    "shard": int(table.shard_S[row]),
                    "sample": int(samples_N[table.sample_index_S[row]]),
                    "token_start": int(table.token_start_S[row]),
                    "token_stop": int(table.token_start_S[row] + table.num_tokens_S[row]),
                    "byte_start": int(table.byte_start_S[row]),
                    "byte_stop": int(table.byte_start_S[row] + table.byte_count_S[row]),
                }
            )
    if not segments:
        raise _unknown(f"no document {document:016x}", [dataset], dataset.location)
    return {"document": f"{document:016x}", **origin, "segments": segments, **_searched([dataset])}


def _unknown(message: str, datasets: Sequence[Dataset], place: str) -> ConfigError:
    searched = _searched(datasets)
    if searched:
        message += (
            f" ({searched['searched_rows'][0]:,} of {searched['searched_rows'][1]:,} rows of documents.npy were read,"
            " and its hash was not checked)"
        )
    return ConfigError("TR-LOOKUP-DOCUMENT", message, place, "the id of a document there")


def _searched(datasets: Sequence[Dataset]) -> dict[str, list[int]]:
    """``searched_rows``: [rows of documents.npy read, rows it has] where not all of it was read and verified: what is
    said is proven, that there is no more is not."""
    found = [dataset.searched_rows for dataset in datasets]
    counts = [rows for rows in found if rows is not None]
    return {"searched_rows": [sum(rows[i] for rows in counts) for i in (0, 1)]} if counts else {}
