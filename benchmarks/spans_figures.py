"""Span cuts beside a table of all n-grams: rates, coverage, and what is left for a second pass.

    python benchmarks/spans_figures.py CORPUS.jsonl

Rates are MB of text per CPU second (user + system of this process), tokenising included, best of the repeats. All
documents take part, in record order of priority.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dataprep.cuts import kept_pieces, load_cuts, union_by_record
from dataprep.dedup.config import DecideConfig, DedupConfig, NgramConfig, SignConfig
from dataprep.dedup.steps import SignDocuments
from dataprep.documents import InputFile, Status
from dataprep.formats import read_file
from dataprep.kernels.documents import text_buffers
from dataprep.kernels.located import Tokens, split_located
from dataprep.kernels.spans import token_room
from dataprep.normalize import load_table
from dataprep.spans import SpanFolders
from dataprep.spans.steps import CutSpans, FindAnchors, FindRepeats, ListGrams

STEPS = (FindAnchors, FindRepeats, ListGrams, CutSpans)
Ranges = dict[int, list[tuple[int, int]]]
_MIXED = 0x9E3779B97F4A7C15
"""Base of the reference's polynomial: not that of the kernels' anchors and n-grams, which begin with other powers."""


def _cpu_s(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def prepare(inputs: InputFile, folder: Path, config: DecideConfig) -> SpanFolders:
    """Sign, and decide that everything is kept in record order."""
    folders = SpanFolders(*(folder / name for name in ("signed", "decided", "anchors", "repeats", "grams", "spans")))
    list(SignDocuments([inputs], SignConfig(config.ingest, config.dedup), folders.signed).run())
    documents = np.load(folders.signed / "documents.00000.npy")
    records = json.loads((folders.signed / "file.00000.json").read_bytes())["summary"]["num_records"]
    status_R = np.full(records, Status.BLANK, np.uint8)
    status_R[documents["record"]] = Status.KEPT
    folders.decided.mkdir(exist_ok=True)
    np.save(folders.decided / "status.00000.npy", status_R)
    np.save(folders.decided / "rank.00000.npy", np.arange(len(documents), dtype=np.int64))
    return folders


def run_stages(inputs: InputFile, config: DecideConfig, folders: SpanFolders, memory_bytes: int) -> list[float]:
    """CPU seconds of each stage."""
    return [_cpu_s(lambda s=step: list(s([inputs], config, folders, memory_bytes).run())) for step in STEPS]


def _tokens(inputs: InputFile) -> tuple[Tokens, NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of all documents one after another, the end of each document's, and its record number."""
    parts: list[Tokens] = []
    stops: list[int] = []
    records: list[NDArray[np.int64]] = []
    total = 0
    for batch in read_file(inputs, 0):
        texts = text_buffers(batch.text)
        room = token_room(int(np.diff(texts.offset_N).max()))
        tokens = Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))
        for start, stop in zip(texts.offset_N[:-1].tolist(), texts.offset_N[1:].tolist(), strict=True):
            count = split_located(texts.data, (start, stop), load_table(), tokens)
            parts.append(Tokens(*(column[:count].copy() for column in tokens)))
            total += count
            stops.append(total)
        records.append(batch.record_N)
    joined = Tokens(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return joined, np.array(stops, np.int64), np.concatenate(records)


def reference_ranges(inputs: InputFile, n: int) -> tuple[Ranges, int]:
    """Byte ranges to cut by record, from all n-grams of the corpus sorted in memory; and the number of words."""
    tokens, stop_N, record_N = _tokens(inputs)
    start_N = np.concatenate(([0], stop_N[:-1]))
    size = len(tokens.hash_T) - n + 1
    hash_G = np.zeros(size, np.uint64)
    with np.errstate(over="ignore"):
        for j in range(n):  # no rolling hash: each n-gram by itself
            value = tokens.hash_T[j : j + size] ^ np.uint64(j + 1)
            value = (value ^ (value >> np.uint64(31))) * np.uint64(_MIXED)
            hash_G = (hash_G ^ value) * np.uint64(0xD6E8FEB86659FD93)
            hash_G ^= hash_G >> np.uint64(32)
    document_G = np.searchsorted(stop_N, np.arange(size), side="right")
    inside = np.arange(size) + n <= stop_N[document_G]
    place = np.flatnonzero(inside)
    order = place[np.argsort(hash_G[place], kind="stable")]
    again = np.zeros(size, np.bool_)
    again[order[1:]] = hash_G[order[1:]] == hash_G[order[:-1]]
    ranges: Ranges = {}
    word_stop = -1
    for word in np.flatnonzero(again).tolist():
        document = int(document_G[word])
        start, stop = int(tokens.start_T[word]), int(tokens.stop_T[word + n - 1])
        mine = ranges.setdefault(int(record_N[document]), [])
        if mine and word <= word_stop:
            mine[-1] = (mine[-1][0], stop)
        else:
            mine.append((start, stop))
        word_stop = word + n
        assert word >= start_N[document]
    return ranges, len(tokens.hash_T)


def own_ranges(folders: SpanFolders, inputs: InputFile) -> tuple[Ranges, set[int]]:
    """Byte ranges to cut by record, and the records that went whole."""
    status_R = np.load(folders.spans / "status.00000.npy")
    return union_by_record(load_cuts([folders.spans], 0)), set(
        np.flatnonzero(status_R == Status.REMOVED_NGRAM).tolist()
    )


def _bytes(ranges: Ranges) -> int:
    return sum(stop - start for mine in ranges.values() for start, stop in mine)


def second_pass(inputs: InputFile, folder: Path, config: DecideConfig, cut: tuple[Ranges, set[int]]) -> tuple[int, int]:
    """Bytes that the stages would cut from their own output, as joins of kept pieces make new n-grams; and how many
    documents are removed with text left, or kept with none."""
    ranges, removed = cut
    wrong = 0
    path = folder / "again.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for batch in read_file(inputs, 0):
            for record, text in zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True):
                data = text.encode()
                left = b"".join(data[a:b] for a, b in kept_pieces(ranges.get(record, []), len(data))).decode()
                wrong += bool(left.strip()) == (record in removed)
                if left.strip():
                    file.write(json.dumps({"text": left}) + "\n")
    again = InputFile("again", 0, str(folder), path.name)
    folders = prepare(again, folder / "again", config)
    run_stages(again, config, folders, 1 << 28)
    account = json.loads((folders.spans / "spans.json").read_bytes())["sources"]["again"]
    return int(account["bytes_cut"] + account["bytes_removed"]), wrong


def measure(inputs: InputFile, folder: Path, repeats: int = 2, n: int = 50) -> dict[str, Any]:
    """All figures of one corpus; ``folder`` is scratch."""
    config = DecideConfig(dedup=DedupConfig(methods=("exact",), ngram=NgramConfig(n)))
    folders = prepare(inputs, folder / "first", config)
    text_mb = float(np.load(folders.signed / "documents.00000.npy")["size_bytes"].sum()) / 1e6
    run_stages(inputs, config, folders, 1 << 28)  # compiles, or loads what was compiled
    stages = min((run_stages(inputs, config, folders, 1 << 28) for _ in range(repeats)), key=sum)
    found: list[tuple[Ranges, int]] = []
    reference_s = _cpu_s(lambda: found.append(reference_ranges(inputs, n)))
    reference, words = found[0]
    own, removed = own_ranges(folders, inputs)
    own |= {record: reference.get(record, []) for record in removed}
    extra = sum(1 for record, mine in own.items() if mine != reference.get(record))
    missed = {record: mine for record, mine in reference.items() if own.get(record) != mine}
    cut_bytes = _bytes(reference)
    again_bytes, wrong = second_pass(inputs, folder, config, (own, removed))
    return {
        "text_mb": text_mb,
        "words": words,
        "mb_per_s": text_mb / sum(stages),
        "stage_s": dict(zip((step.__name__ for step in STEPS), stages, strict=True)),
        "reference_mb_per_s": text_mb / reference_s,
        "cut_share": cut_bytes / 1e6 / text_mb,
        "coverage": 1 - _bytes(missed) / max(1, cut_bytes),
        "documents_with_other_cuts": extra,
        "documents_removed": len(removed),
        "removed_wrongly": wrong,
        "second_pass_share": again_bytes / 1e6 / text_mb,
    }


def main() -> None:
    """Measure one JSONL file and print what was found."""
    path = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        figures = measure(InputFile(path.stem, 0, str(path.parent), path.name), Path(name))
    for key, value in figures.items():
        print(f"{key:<28} {value if not isinstance(value, float) else round(value, 5)}")


if __name__ == "__main__":
    main()
