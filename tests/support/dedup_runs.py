"""Small corpora on disk, through the two dedup stages, and their outputs in a form that tests can compare."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dataprep.dedup.config import DecideConfig, DedupConfig, HoldoutConfig, IngestConfig, SignConfig
from dataprep.dedup.steps import DecideDocuments, SignDocuments
from dataprep.documents import InputFile, Status

Key = tuple[str, str, int]
"""(source, relative path, record): names a document however the files were listed."""


@dataclass(frozen=True)
class Source:
    """A source as a test wants it: texts per file, priority, and what it opts out of."""

    files: Mapping[str, Sequence[str]]
    rank: int
    opt_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What the stages left, keyed by document."""

    status: dict[Key, Status]
    witness: dict[Key, Key]
    method: dict[Key, str]
    similarity: dict[Key, float]
    counts: dict[str, Any]


def write_sources(root: Path, sources: Mapping[str, Source]) -> list[InputFile]:
    """Write JSONL files and list them in order."""
    inputs = []
    for name, source in sources.items():
        for path, texts in source.files.items():
            target = root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
            inputs.append(InputFile(name, source.rank, str(root / name), path, opt_out=source.opt_out))
    return inputs


def configuration(dedup: DedupConfig, fraction: float = 0.0, seed: int = 0) -> DecideConfig:
    """A configuration without limits on rejects and removals."""
    return DecideConfig(IngestConfig(max_reject_fraction=1.0), dedup, HoldoutConfig(fraction), salt=9, seed=seed)


def run_stages(
    inputs: Sequence[InputFile], config: DecideConfig, work: Path, num_tasks: int = 1, **options: Any
) -> Outcome:
    """Sign in ``num_tasks`` tasks, decide (with ``options`` of ``DecideDocuments``), and read everything back."""
    sign = SignDocuments(inputs, SignConfig(config.ingest, config.dedup), work / "signed")
    for rank in range(num_tasks):
        list(sign.run(None, rank, num_tasks))
    list(DecideDocuments(inputs, config, work / "signed", work / "decided", **options).run(None, 0, 1))
    assert not list((work / "decided").glob(".tmp-*"))
    return read_outcome(inputs, work / "decided")


def write_screen(
    inputs: Sequence[InputFile], verdicts: Mapping[tuple[str, str], Sequence[int]], folder: Path, labels: Sequence[str]
) -> None:
    """Leave what a screen leaves: verdicts by (source, relative path), 0 for all records of files that are absent."""
    folder.mkdir(parents=True)
    for file, one in enumerate(inputs):
        count = len(one.location.read_bytes().splitlines())
        verdict_R = np.array(verdicts.get((one.source, one.path), [0] * count), np.uint8)
        np.save(folder / f"verdict.{file:05d}.npy", verdict_R)
        (folder / f"screen.{file:05d}.json").write_text(json.dumps({"labels": list(labels), "report": {}}))


def read_outcome(inputs: Sequence[InputFile], folder: Path) -> Outcome:
    """The files of a finished decision."""
    status: dict[Key, Status] = {}
    for file, one in enumerate(inputs):
        for record, value in enumerate(np.load(folder / f"status.{file:05d}.npy").tolist()):
            status[one.source, one.path, record] = Status(value)
    witness, method, similarity = {}, {}, {}
    for row in pq.read_table(folder / "removed.parquet").to_pylist():
        key = (row["source"], row["file"], row["record"])
        method[key] = row["method"]
        if row["reason"] is None:
            witness[key] = (row["witness_source"], row["witness_file"], row["witness_record"])
            similarity[key] = row["similarity"]
    return Outcome(status, witness, method, similarity, json.loads((folder / "counts.json").read_bytes()))


def near_copies(randomness: random.Random, count: int, vocabulary: int = 40, longest: int = 60) -> list[str]:
    """Texts among which there are exact copies, near copies, chains of near copies, short ones and strangers."""
    words = [f"w{chr(97 + index % 26)}{chr(97 + index // 26)}" for index in range(vocabulary)]
    texts: list[str] = []
    for _ in range(count):
        kind = randomness.random()
        if texts and kind < 0.2:
            texts.append(randomness.choice(texts))
        elif texts and kind < 0.75:
            tokens = randomness.choice(texts).split(" ")
            for _ in range(randomness.choice([1, 1, 1, 2, 4])):
                place = randomness.randrange(len(tokens) + 1)
                tokens[place : place + randomness.choice([0, 1])] = [randomness.choice(words)]
            texts.append(randomness.choice(["{}", "{}", "{}.", "{} "]).format(" ".join(tokens)))
        else:
            texts.append(" ".join(randomness.choice(words) for _ in range(randomness.randrange(1, longest))))
    return texts
