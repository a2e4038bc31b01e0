"""Where the job's tokenizer comes from: trained on a keyed sample of the kept documents, or loaded.

Three small stages, so that a sample of a large corpus is read in parallel: ``choose`` (one task) picks records,
``sample`` (one task a
file) reads them, ``tokenizer`` (one task) trains or loads, and writes the tokenizer folder that the Dataset will hold.

Training is lossless: identity normalisation, all whitespace kept, no dummy prefix, byte fallback. It is a function of
the sample in
key order and of the configuration; sentencepiece runs on one thread, because it notes the number of threads in the
model.

Legend: D documents of a file or source.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.errors import ConfigError, DamageError, RefusedError
from loader.files import digest_bytes, write_atomic
from loader.shards.access import npy_bytes
from loader.text.records import document_ids
from loader.text.tokenizer_probe import check_tokenizer_speed
from loader.text.tokenizers import write_tokenizer

from .arrays import load_array
from .config import SentencepieceTrainConfig, TokenizerConfig
from .cuts import kept_pieces
from .dedup.signatures import load_summary
from .documents import DocumentBatch, Status
from .fates import Fates
from .formats import read_file, read_options
from .job import Job
from .keys import document_keys
from .mix import keep_prefix
from .stages import check_unchanged
from .token_facts import facts_of_tokenizer, write_facts
from .tokenizer_config import LoadedModel

__all__ = ["ChooseSample", "MakeTokenizer", "SampleTexts", "train_sentencepiece"]

_MIN_CAP_BYTES = 1 << 16
_SENTENCE_BYTES = 1 << 13
_COVERAGES = (0.9995, 0.998, 0.99, 0.97, 0.94, 0.9, 0.8, 0.6)
_RESERVED = {0: " ", 0x2581: " ", 0x2585: " "}  # marks that sentencepiece's trainer uses itself


def _kept_documents(signed: Path, fates: Fates, file: int) -> NDArray[np.void]:
    """Rows (record, record_start, size_bytes, ...) of a file's documents whose status is KEPT."""
    documents_D = load_array(signed / f"documents.{file:05d}.npy")
    status_R = fates.status_of_file(file)
    kept: NDArray[np.void] = documents_D[status_R[documents_D["record"]] == Status.KEPT]
    return kept


class ChooseSample(PipelineStep):  # type: ignore[misc]
    """One task: the documents with the smallest keys, up to each source's share of ``sample_bytes``."""

    name = "choose tokenizer sample"
    type = "tokenreel"

    def __init__(self, job: Job, fates: Fates, folders: tuple[Path, Path]) -> None:
        """``folders``: the sign stage's, and the one to write to."""
        super().__init__()
        self.job = job
        self.fates = fates
        self.signed, self.out = folders

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write ``records.<file>.npy``: record numbers to read, ascending."""
        train = self.job.config.tokenizer.train
        assert train is not None
        kept = {file: _kept_documents(self.signed, self.fates, file) for file in range(len(self.job.inputs))}
        sizes = dict.fromkeys(self.job.config.sources, 0)
        for file, documents_D in kept.items():
            sizes[self.job.inputs[file].source] += int(documents_D["size_bytes"].sum())
        weights = self.job.config.mix.ratios or sizes
        whole = sum(weights.values()) or 1
        for source in self.job.config.sources:
            budget = int(train.sample_bytes * weights[source] / whole)
            self._choose(source, budget, {f: d for f, d in kept.items() if self.job.inputs[f].source == source})
        return iter(())

    def _choose(self, source: str, budget_bytes: int, kept: Mapping[int, NDArray[np.void]]) -> None:
        """The sample of one source."""
        if not kept:
            return
        cap = _cap_bytes(budget_bytes)
        keys, sizes = [], []
        for file, documents_D in kept.items():
            ids_D = document_ids(source, self.job.inputs[file].path, documents_D["record"], self.job.config.seed)
            keys.append(document_keys(ids_D, self.job.config.seed, "tokenizer sample"))
            sizes.append(np.minimum(documents_D["size_bytes"], cap))
        chosen_D = keep_prefix(np.concatenate(keys), np.concatenate(sizes), budget_bytes)
        start = 0
        for file, documents_D in kept.items():
            mine_D = chosen_D[start : start + len(documents_D)]
            start += len(documents_D)
            write_atomic(self.out / f"records.{file:05d}.npy", npy_bytes(documents_D["record"][mine_D]))
            self.stat_update("documents", value=int(mine_D.sum()), unit="file")


def _cap_bytes(budget_bytes: int) -> int:
    """Most bytes that one document gives to the sample: one huge document must not be all of it."""
    return max(_MIN_CAP_BYTES, budget_bytes // 16)


class SampleTexts(PipelineStep):  # type: ignore[misc]
    """One task a file: the chosen texts, without what is cut from them, with their keys, as Arrow IPC
    ``texts.<file>.arrow``."""

    name = "sample texts"
    type = "tokenreel"

    def __init__(self, job: Job, fates: Fates, folders: tuple[Path, Path, Path]) -> None:
        """``folders``: the sign and the choose stage's, and the one to write to."""
        super().__init__()
        self.job = job
        self.fates = fates
        self.signed, self.chosen, self.out = folders

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """See the class.

        Raises:
            RefusedError: the file is not, to the byte, the one that was signed.
        """
        inputs = self.job.inputs[rank]
        records = load_array(self.chosen / f"records.{rank:05d}.npy")
        tables = []
        if len(records):
            keep_R = np.zeros(int(records[-1]) + 1, np.bool_)
            keep_R[records] = True
            ranges = self.fates.ranges_of_file(rank)
            check_unchanged([self.job.raw[rank]])
            options = read_options(self.job.config.ingest)
            expected = load_summary(self.signed, rank)
            for batch in read_file(inputs, rank, options=options, keep_R=keep_R, expected=expected):
                ids_D = document_ids(inputs.source, inputs.path, batch.record_N, self.job.config.seed)
                keys_D = document_keys(ids_D, self.job.config.seed, "tokenizer sample")
                tables.append(pa.table({"key": pa.array(keys_D), "text": _uncut(batch, ranges)}))
            check_unchanged([self.job.raw[rank]])
        schema = pa.schema([("key", pa.uint64()), ("text", pa.large_string())])
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, schema) as writer:
            for table in tables:
                writer.write_table(table)
        write_atomic(self.out / f"texts.{rank:05d}.arrow", sink.getvalue())
        self.stat_update("documents", value=len(records), unit="file")
        return iter(())


def _uncut(batch: DocumentBatch, ranges: Mapping[int, list[tuple[int, int]]]) -> pa.LargeStringArray:
    """The batch's texts without what is cut from them."""
    if not any(record in ranges for record in batch.record_N.tolist()):
        return batch.text
    texts = []
    for record, text in zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True):
        data = text.encode()
        texts.append(b"".join(data[start:stop] for start, stop in kept_pieces(ranges.get(record, []), len(data))))
    return pa.array([text.decode() for text in texts], pa.large_string())


class MakeTokenizer(PipelineStep):  # type: ignore[misc]
    """One task: train on the sample (``sampled`` given), or take the model that the configuration names."""

    name = "make tokenizer"
    type = "tokenreel"

    def __init__(self, config: TokenizerConfig, out: Path, sampled: Path | None, loaded: LoadedModel | None) -> None:
        """``sampled``: the sample stage's folder; ``loaded``: the model file to take instead."""
        super().__init__()
        self.config = config
        self.out = out
        self.sampled = sampled
        self.loaded = loaded

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write the tokenizer folder ``tokenizer/``.

        Raises:
            ConfigError: the sample is too small, the policy does not fit the model, or its pattern is too slow.
            DamageError: the model cannot be understood.
            RefusedError: the model file is not the one that the stage's digest names.
        """
        if self.sampled is not None:
            train = self.config.train
            assert train is not None
            model = train_sentencepiece(self._texts(self.sampled, _cap_bytes(train.sample_bytes)), train)
        else:
            assert self.loaded is not None
            model = self.loaded.path.read_bytes()
            if digest_bytes(model) != self.loaded.model_hash:
                message = "the tokenizer model changed while the job was running"
                expected = f"xxh3-128 {self.loaded.model_hash}"
                raise RefusedError("TR-INPUT-CHANGED", message, str(self.loaded.path), expected)
        policy = self.loaded.policy if self.loaded is not None else self.config.policy(None)
        try:
            tokenizer = write_tokenizer(self.out / "tokenizer", self.config.kind, model, policy)
        except DamageError as error:
            if error.place is None and self.loaded is not None:
                error.place = str(self.loaded.path)
            raise
        write_facts(self.out, facts_of_tokenizer(tokenizer))
        if self.loaded is not None:
            check_tokenizer_speed(self.out / "tokenizer", tokenizer)
        self.stat_update("pieces", value=tokenizer.vocab_size, unit="model")
        return iter(())

    @staticmethod
    def _texts(folder: Path, cap: int) -> Iterator[str]:
        """The sample's texts in key order."""
        parts = []
        for path in sorted(folder.glob("texts.*.arrow")):
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
                parts.append(reader.read_all())
        table = pa.concat_tables(parts).sort_by("key")
        for text in table.column("text"):
            yield text.as_py()[:cap]


def train_sentencepiece(texts: Iterator[str], config: SentencepieceTrainConfig) -> bytes:
    """Train a lossless model; the same texts in the same order give the same bytes.

    Raises:
        ConfigError: the sample is too small for the vocabulary (``TR-TOKENIZER-VOCAB``).
    """
    sentences = [sentence for text in texts for sentence in _sentences(text.translate(_RESERVED))]
    if not sentences:
        raise ConfigError(
            "TR-TOKENIZER-SAMPLE", "there is no text to train the tokenizer on", "tokenizer.sentencepiece.train"
        )
    failure = ""
    for coverage in _COVERAGES:
        try:
            return _train(sentences, config, coverage)
        except RuntimeError as error:  # sentencepiece knows no finer kind
            failure = str(error)
            if "required_chars" not in failure:
                break
    raise ConfigError(
        "TR-TOKENIZER-VOCAB",
        "sentencepiece cannot train a vocabulary of this size on this sample",
        "tokenizer.sentencepiece.train.vocab_size",
        failure.splitlines()[-1] if failure else None,
        "set another vocab_size, or a larger sample_bytes",
    )


def _train(sentences: list[str], config: SentencepieceTrainConfig, coverage: float) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        character_coverage=coverage,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        byte_fallback=True,
        max_sentence_length=4 * _SENTENCE_BYTES,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def _sentences(text: str) -> Iterator[str]:
    """Pieces of at most 8,192 characters, cut in front of a space where there is one; sentencepiece drops long ones."""
    start = 0
    while len(text) - start > _SENTENCE_BYTES:
        cut = text.rfind(" ", start + 1, start + _SENTENCE_BYTES)
        cut = cut if cut > 0 else start + _SENTENCE_BYTES
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]
