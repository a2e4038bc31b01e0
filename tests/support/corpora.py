"""Small hostile corpora for dataprep tests, with the texts that a build must find, read by the standard library's own
parser.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["Corpus", "make_corpus", "write_config"]

_WORDS = [
    "reel",
    "token",
    "shard",
    "stream",
    "window",
    "order",
    "cursor",
    "ledger",
    "sample",
    "segment",
    "source",
    "mixture",
    "record",
    "document",
    "origin",
    "witness",
    "bucket",
    "packer",
    "kernel",
    "naïve",
    "café",
    "東京",
    "データ",
    "привет",
    "▁mark",
    "<s>",
    "</s>",
    "<unk>",
    "tab\there",
    "for",
    "while",
    "return",
    "lambda",
    "import",
    "class",
    "def",
    "pass",
    "break",
    "yield",
]


@dataclass(frozen=True)
class Corpus:
    """``texts``: (source, relative path, record) -> text of every readable record."""

    root: Path
    texts: dict[tuple[str, str, int], str]


def make_corpus(root: Path, documents: int = 60, seed: int = 1) -> Corpus:
    """Two sources, ``code`` (plain and gzip) and ``web`` (plain), with exact and near duplicates and broken records."""
    rng = random.Random(seed)
    texts: dict[tuple[str, str, int], str] = {}
    for source, paths in (("web", ("a.jsonl", "deep/b.jsonl")), ("code", ("x.jsonl", "y.jsonl.gz"))):
        for path in paths:
            lines: list[bytes] = []
            for number in range(documents):
                text = _text(rng, f"{source} {path} {number}")
                lines.append(json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0).encode())
            lines.insert(3, b"")
            lines.insert(5, json.dumps({"text": _text(random.Random(9), "copied everywhere")}).encode())
            if source == "web":
                lines.insert(7, b'{"text": 12}')
                lines.append(json.dumps({"text": json.loads(lines[0])["text"] + " nearly"}).encode())
            _write(root / source / path, b"\n".join(lines) + b"\n")
            for record, line in enumerate(lines):
                value = json.loads(line) if line else {}
                if isinstance(value.get("text"), str):
                    texts[source, path, record] = value["text"]
    return Corpus(root, texts)


def _text(rng: random.Random, start: str) -> str:
    words = [
        rng.choice(_WORDS) + rng.choice(["", "", "", str(rng.randrange(100))]) for _ in range(rng.randrange(3, 90))
    ]
    return start + rng.choice([" ", "\n", "  ", "\u00a0", "\x00"]) + rng.choice([" ", "\n", " \n  "]).join(words)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def write_config(path: Path, corpus: Corpus, **changes: object) -> Path:
    """A configuration for ``corpus`` next to which the output ``out`` will lie."""
    config: dict[str, object] = {
        "version": 1,
        "output": "out",
        "sources": {
            "web": {"root": str(corpus.root / "web")},
            "code": {"root": str(corpus.root / "code")},
        },
        "ingest": {"max_reject_fraction": 0.1},
        "holdout": {"fraction": 0.1},
        "tokenizer": {"sentencepiece": {"train": {"vocab_size": 420, "sample_bytes": 30000}}},
        "pack": {"seq_len": 64, "window_documents": 32},
        "shards": {"size_bytes": 12000},
        "run": {"workers": 2},
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path
