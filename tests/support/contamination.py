"""Decontamination on small corpora: the stages run in a folder, and the rule again in plain Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from support.text_oracle import Token, tokens_of

from dataprep.cuts import load_cuts, union_by_record
from dataprep.decontaminate import FindItems, IndexItems, JudgeDocuments
from dataprep.documents import InputFile
from dataprep.screen_config import BenchmarkConfig, DecontaminateConfig

Gram = tuple[Token, ...]
Parts = tuple[str, str]
"""(question, answer)"""
Cuts = dict[int, list[tuple[int, int]]]
SALT = 5


def configuration(names: Sequence[str] = ("exam",), **changes: Any) -> DecontaminateConfig:
    """Benchmarks in JSONL files of their names."""
    benchmarks = {name: BenchmarkConfig(path=f"{name}.jsonl") for name in names}
    return DecontaminateConfig(**{"benchmarks": benchmarks, **changes})


def write_items(base: Path, texts: Sequence[str], name: str = "exam", answer: str = "") -> None:
    """A benchmark of these questions, with one answer to all."""
    base.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question": text, "answer": answer}) + "\n" for text in texts]
    (base / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class Screened:
    """What the judging stage left: per file verdicts, cuts and screen; the tables as rows; the report."""

    folder: Path
    verdicts: list[NDArray[np.uint8]]
    cuts: list[Cuts]
    screens: list[dict[str, Any]]
    hits: list[dict[str, Any]]
    frequent: list[dict[str, Any]]
    items: list[dict[str, Any]]
    report: dict[str, Any]

    def dropped(self, file: int = 0) -> set[int]:
        """Records of a file that do not go on."""
        return set(np.flatnonzero(self.verdicts[file]).tolist())

    def scores(self) -> dict[tuple[str, int, str], float]:
        """(path, record, item) -> score of every hit."""
        return {(hit["file"], hit["record"], hit["item"]): hit["score"] for hit in self.hits}


def screen(
    inputs: Sequence[InputFile],
    config: DecontaminateConfig,
    base: Path,
    *,
    num_tasks: int = 1,
    work: str = "work",
    screens: Sequence[Path] = (),
) -> Screened:
    """Run all three stages below ``base``, where the benchmark files are."""
    folders = [base / work / name for name in ("index", "found", "judged")]
    list(IndexItems(config, base, folders[0], SALT).run())
    for rank in range(num_tasks):
        list(FindItems(inputs, config, folders[0], folders[1], screens).run(None, rank, num_tasks))
    list(JudgeDocuments(inputs, config, *folders, SALT).run())
    judged, files = folders[2], range(len(inputs))
    tables = [pq.read_table(judged / f"{name}.parquet").to_pylist() for name in ("contamination", "frequent", "items")]
    return Screened(
        judged,
        [np.load(judged / f"verdict.{file:05d}.npy") for file in files],
        [union_by_record(load_cuts([judged], file)) for file in files],
        [json.loads((judged / f"screen.{file:05d}.json").read_bytes()) for file in files],
        *tables,
        json.loads((judged / "report.json").read_bytes()),
    )


def runs(tokens: Sequence[Token], length: int) -> list[Gram]:
    """All runs of ``length`` tokens, in order."""
    return [tuple(tokens[start : start + length]) for start in range(len(tokens) - length + 1)]


def forms_of(items: Sequence[Parts], config: DecontaminateConfig) -> list[list[set[Gram]]]:
    """Per item of one benchmark the distinct grams that count, of its text and, where it counts, of the question."""
    found: list[list[set[Gram]]] = []
    seen: set[Gram] = set()
    for question, answer in items:
        tokens = tuple(tokens_of(f"{question}\n{answer}"))
        forms: list[set[Gram]] = []
        if len(tokens) >= config.min_words and tokens not in seen:
            forms.append(set(runs(tokens, min(config.n, len(tokens)))))
            for joint in config.joints if answer else ():
                joined = tokens_of(f"{question}\n{joint}\n{answer}")
                forms.append(set(runs(joined, min(config.n, len(joined)))))
            if answer and config.question_alone:
                forms.append(set(runs(tokens_of(question), config.n)))
        seen.add(tokens)
        for allowed in map(tokens_of, config.allow):
            forms = [{gram for gram in form if gram not in runs(allowed, len(gram))} for form in forms]
        found.append([form for form in forms if form])
    return found


def shares(document: str, forms: Sequence[set[Gram]]) -> list[float]:
    """Share of each form's grams that the document holds."""
    tokens = tokens_of(document)
    return [sum(gram in set(runs(tokens, len(gram))) for gram in form) / len(form) for form in forms]


def scores_of(document: str, items: Sequence[Parts], config: DecontaminateConfig) -> dict[int, float]:
    """Item -> share of the grams of its better form that the document holds, where that is enough."""
    found = {}
    for number, forms in enumerate(forms_of(items, config)):
        score = max(shares(document, forms), default=0.0)
        if score >= config.threshold:
            found[number] = score
    return found


def hit_grams(document: str, items: Sequence[Parts], config: DecontaminateConfig) -> dict[int, set[Gram]]:
    """Item -> grams that the document holds, of its forms that are hit."""
    found: dict[int, set[Gram]] = {}
    tokens = tokens_of(document)
    for number, forms in enumerate(forms_of(items, config)):
        for form, share in zip(forms, shares(document, forms), strict=True):
            if share >= config.threshold:
                here = {gram for gram in form if gram in runs(tokens, len(gram))}
                found[number] = found.get(number, set()) | here
    return found


def covered_words(document: str, grams: set[Gram]) -> list[int]:
    """Numbers of the words of a document that these grams cover, ascending."""
    tokens = tokens_of(document)
    covered: set[int] = set()
    for length in {len(gram) for gram in grams}:
        for start, run in enumerate(runs(tokens, length)):
            if run in grams:
                covered |= set(range(start, start + length))
    return sorted(covered)
