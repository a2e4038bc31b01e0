"""A run that went wrong, what may be cut of it, and the same Dataset with other content in what is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loader.lookup import document_steps
from loader.order.skips import SkipEntry
from loader.run_view import open_run
from loader.runs import append_skips
from loader.settings import load_config
from train.config import TrainConfig
from train.job import establish, open_job_sources, resolve_job

from .datasets import DatasetSpec, MadeDataset, make_dataset
from .training import write_job

__all__ = [
    "BACK_TO",
    "BATCH",
    "KEEP_ALL",
    "SPEC",
    "STEPS",
    "Lived",
    "entries_for",
    "live",
    "other_content",
    "prepare_zero",
]

STEPS, BATCH, BACK_TO = 24, 4, 8
KEEP_ALL = {"every_steps": 4, "keep_last": 9}
SPEC = DatasetSpec(documents={"web": 60, "code": 30}, seq_len=32, samples_per_shard=4, files_per_source=1, max_words=7)


@dataclass(frozen=True)
class Lived:
    """A run that went wrong: its Dataset, its end, its folder, and what could be cut from ``stamp`` on."""

    made: MadeDataset
    result: Any
    root: Path
    stamp: int
    documents: list[int]


def live(folder: Path, train: Callable[[Path], Any], **job: Any) -> Lived:
    """Train a run to its end below ``folder``."""
    made = make_dataset(folder, SPEC)
    result = train(write_job(folder, made.path, steps=STEPS, checkpoint=KEEP_ALL, **job))
    view = open_run(folder / "run")
    stamp, stop = BACK_TO * BATCH, STEPS * BATCH
    fresh = []
    for document in made.documents:
        readings = document_steps(view.plan, view.sources, document, stop)["readings"]
        positions = [reading["position"] for reading in readings]
        if positions and min(positions) >= stamp:
            fresh.append(document)
    assert len(fresh) >= 4, "too few documents are first read behind the rollback"
    return Lived(made, result, folder / "run", stamp, fresh)


def entries_for(lived: Lived, kind: str) -> tuple[SkipEntry, list[int]]:
    """An entry, and documents all of whose tokens it cuts."""
    documents = sorted(lived.documents)[:3]
    if kind == "mask documents":
        return SkipEntry("documents", "mask", lived.stamp, documents=tuple(documents)), documents
    if kind == "drop documents":
        return SkipEntry("documents", "drop", lived.stamp, documents=tuple(documents)), documents
    dataset = lived.made.open()
    source = "web"
    samples: dict[int, list[int]] = {}
    for document in lived.documents:
        places = dataset.samples_of_document(document)
        if len(places) == 1 and places[0][0] == source and len(places[0][1]) == 1:
            samples.setdefault(int(places[0][1][0]), []).append(document)
    assert samples, "no document lies in one sample alone"
    numbers = sorted(samples)[:2]
    ranges = tuple((number, number + 1) for number in numbers)
    mode = "mask" if kind == "mask samples" else "drop"
    entry = SkipEntry("samples", mode, lived.stamp, source=source, ranges=ranges)  # type: ignore[arg-type]
    return entry, [document for number in numbers for document in samples[number]]


def other_content(lived: Lived, documents: list[int], folder: Path) -> MadeDataset:
    """The same Dataset with the bytes of some documents replaced; ids, lengths and places stay."""
    texts: dict[str, list[str]] = {}
    changed = 0
    for document in lived.made.documents.values():
        text = document.text
        if document.id in documents:
            text = "".join(chr(ord("a") + (ord(c) + 8) % 26) if c.isascii() and c.isalpha() else c for c in text)
            changed += text != document.text
        texts.setdefault(document.source, []).append(text)
    assert changed == len(documents)
    made = make_dataset(folder, replace(SPEC, texts=texts), "other")
    assert list(made.documents) == list(lived.made.documents)
    assert made.digest != lived.made.digest
    return made


def prepare_zero(folder: Path, dataset: Path, entry: SkipEntry, **job: Any) -> Path:
    """The job of a run whose list holds the entry before its first step."""
    path = write_job(folder, dataset, steps=STEPS, **job)
    resolved = resolve_job(load_config(path, TrainConfig))
    establish(resolved, open_job_sources(resolved))
    append_skips(resolved.paths, [entry])
    return path
