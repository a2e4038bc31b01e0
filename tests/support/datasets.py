"""Small real Datasets for tests: generated documents in JSONL, byte tokens, packed, written by the shard writer.

``make_dataset(folder)`` returns all that an oracle needs: the documents, and each sample's tokens and segments as plain
Python values, made without reading the Dataset.

Tokens: 0 is EOS (and the filler of masked tokens), 1 BOS, 2 padding, byte b is b + 3.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loader.files import hash_file, write_atomic
from loader.shards.commit import DatasetInfo, write_dataset_manifest
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.layout import PADDING_ROW
from loader.shards.manifest import InputFile
from loader.shards.segments import make_segments
from loader.shards.writer import ShardRecord, ShardSpec, ShardWriter
from loader.text.records import document_id

__all__ = ["BOS", "EOS", "FIRST_BYTE", "PAD", "VOCAB_SIZE", "DatasetSpec", "MadeDataset", "decode", "make_dataset"]

EOS, BOS, PAD, FIRST_BYTE = 0, 1, 2, 3
VOCAB_SIZE = 259
_WORDS = r"""the reel winds on under naïve 光 and Ω while tokens stream past \ "quoted" and 🙂 ends""".split()  # noqa: SIM905


@dataclass(frozen=True)
class DatasetSpec:
    """What to make. ``texts`` (source -> documents) replaces the generated ones."""

    documents: Mapping[str, int] = field(default_factory=lambda: {"web": 60, "code": 40, "books": 25})
    seq_len: int = 64
    samples_per_shard: int = 16
    files_per_source: int = 2
    suffixes: Sequence[str] = (".jsonl",)
    seed: int = 0
    salt: int = 7
    max_words: int = 40
    texts: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Document:
    """A document and its Origin."""

    id: int
    source: str
    path: str
    record: int
    record_start: int
    text: str


@dataclass(frozen=True)
class Piece:
    """A segment as the oracle knows it; ``document`` is None for padding."""

    document: Document | None
    token_start: int
    token_stop: int
    document_token_start: int
    byte_start: int
    byte_stop: int


@dataclass(frozen=True)
class MadeDataset:
    """``samples[source][i]`` = (tokens, pieces) of source sample i; ``shard_samples`` = samples of each shard."""

    path: Path
    corpus: Path
    spec: DatasetSpec
    digest: str
    documents: dict[int, Document]
    samples: dict[str, list[tuple[list[int], list[Piece]]]]
    shard_samples: dict[str, list[int]]

    def open(self) -> Dataset:
        """The Dataset, freshly opened."""
        return open_dataset(self.path)


def decode(tokens: Sequence[int]) -> bytes:
    """Bytes of byte tokens; control tokens have none."""
    return bytes(token - FIRST_BYTE for token in tokens if token >= FIRST_BYTE)


def make_dataset(folder: Path, spec: DatasetSpec | None = None, name: str = "data") -> MadeDataset:
    """Write ``folder/corpus-<name>/<source>/*.jsonl`` and the Dataset ``folder/<name>``."""
    spec = spec or DatasetSpec()
    path, corpus = folder / name, folder / f"corpus-{name}"
    texts = spec.texts or {source: _texts(source, count, spec) for source, count in spec.documents.items()}
    documents: dict[int, Document] = {}
    samples: dict[str, list[tuple[list[int], list[Piece]]]] = {}
    records: list[ShardRecord] = []
    files: list[InputFile] = []
    for source, source_texts in texts.items():
        own, own_files = _write_corpus(corpus / source, source, source_texts, spec)
        documents.update((document.id, document) for document in own)
        samples[source] = _pack(own, spec.seq_len)
        records += _write_shards(path, source, samples[source], spec, [*files, *own_files])
        files += own_files
    info = DatasetInfo(
        sources=tuple(texts),
        seq_len=spec.seq_len,
        vocab_size=VOCAB_SIZE,
        shards=tuple(records),
        files=tuple(files),
        tokenizer={"digest": "0" * 32, "kind": "bytes", "bos_id": BOS, "eos_id": EOS, "lossless": True},
        salt=spec.salt,
        package_version="0",
        config={"sources": [{"name": source, "format": "jsonl", "text": "text"} for source in texts]},
    )
    digest = write_dataset_manifest(path, info)
    roots = {source: f"../corpus-{name}/{source}" for source in texts}
    write_atomic(path / "job.json", json.dumps({"roots": roots}).encode())
    counts = {source: [r.num_samples for r in records if r.source == source] for source in texts}
    return MadeDataset(path, corpus, spec, digest, documents, samples, counts)


def _texts(source: str, count: int, spec: DatasetSpec) -> list[str]:
    rng = random.Random(f"{spec.seed}/{source}")
    return [
        f"{source} {number}: " + " ".join(rng.choice(_WORDS) for _ in range(rng.randrange(1, spec.max_words)))
        for number in range(count)
    ]


def _compress(data: bytes, suffix: str) -> bytes:
    if suffix.endswith(".gz"):
        return gzip.compress(data, mtime=0)
    if suffix.endswith(".bz2"):
        return bz2.compress(data)
    if suffix.endswith(".xz"):
        return lzma.compress(data)
    if suffix.endswith(".zst"):
        import zstandard

        return zstandard.compress(data)
    return data


def _write_corpus(
    folder: Path, source: str, texts: Sequence[str], spec: DatasetSpec
) -> tuple[list[Document], list[InputFile]]:
    folder.mkdir(parents=True, exist_ok=True)
    documents, files = [], []
    share = -(-len(texts) // spec.files_per_source) or 1
    for number in range(spec.files_per_source):
        suffix = spec.suffixes[number % len(spec.suffixes)]
        path = f"part{number}{suffix}"
        data = bytearray()
        for record, text in enumerate(texts[number * share : (number + 1) * share]):
            identity = document_id(source, path, record, spec.salt)
            documents.append(Document(identity, source, path, record, len(data), text))
            # A duplicate key whose last value counts, and raw or escaped text by turns.
            line = json.dumps({"n": record, "text": text}, ensure_ascii=record % 2 == 0)
            data += b'{"text": "not this", ' * (record % 3 == 0) + line[record % 3 == 0 :].encode() + b"\n"
        (folder / path).write_bytes(_compress(bytes(data), suffix))
        files.append(InputFile(source, path, (folder / path).stat().st_size, hash_file(folder / path)))
    return documents, files


def _pack(documents: Sequence[Document], seq_len: int) -> list[tuple[list[int], list[Piece]]]:
    """One document after the other; one that does not fit is cut at the sample's end if longer than a sample, else
    the rest of the sample is padding."""
    samples: list[tuple[list[int], list[Piece]]] = []
    tokens: list[int] = []
    pieces: list[Piece] = []

    def flush() -> None:
        nonlocal tokens, pieces
        if len(tokens) < seq_len:
            pieces.append(Piece(None, len(tokens), seq_len, 0, 0, 0))
            tokens += [PAD] * (seq_len - len(tokens))
        samples.append((tokens, pieces))
        tokens, pieces = [], []

    for document in documents:
        raw = document.text.encode()
        ids = [BOS, *(byte + FIRST_BYTE for byte in raw), EOS]
        if tokens and len(tokens) + len(ids) > seq_len and len(ids) <= seq_len:
            flush()
        start = 0
        while start < len(ids):
            stop = min(len(ids), start + seq_len - len(tokens))
            byte_start, byte_stop = min(max(start - 1, 0), len(raw)), min(max(stop - 1, 0), len(raw))
            pieces.append(Piece(document, len(tokens), len(tokens) + stop - start, start, byte_start, byte_stop))
            tokens += ids[start:stop]
            start = stop
            if len(tokens) == seq_len:
                flush()
    if tokens:
        flush()
    return samples


def _write_shards(
    path: Path, source: str, samples: list[tuple[list[int], list[Piece]]], spec: DatasetSpec, files: list[InputFile]
) -> list[ShardRecord]:
    records = []
    file_numbers = {(file.source, file.path): number for number, file in enumerate(files)}
    for number, first in enumerate(range(0, len(samples), spec.samples_per_shard)):
        writer = ShardWriter(path, ShardSpec(source, number, spec.seq_len, VOCAB_SIZE))
        rows: dict[int, int] = {}
        for tokens, pieces in samples[first : first + spec.samples_per_shard]:
            for piece in pieces:
                document = piece.document
                if document is not None and document.id not in rows:
                    file = file_numbers[document.source, document.path]
                    rows[document.id] = writer.add_document(document.id, file, document.record, document.record_start)
            writer.add_sample(
                np.array(tokens),
                make_segments(
                    [piece.token_start for piece in pieces],
                    [PADDING_ROW if piece.document is None else rows[piece.document.id] for piece in pieces],
                    [piece.document_token_start for piece in pieces],
                    [piece.byte_start for piece in pieces],
                    [piece.byte_stop - piece.byte_start for piece in pieces],
                ),
            )
        records.append(writer.close())
    return records
