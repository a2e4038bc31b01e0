"""Tokenising of whole files: every kind, cuts, lossy models, fast backends; an oracle that encodes piece by piece."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.corpora import Corpus, make_corpus, write_config
from support.tokenizer_models import sentencepiece_model, small_model, small_policy

from dataprep import tokenize
from dataprep.documents import Status
from dataprep.fates import Fates
from dataprep.formats import read_options
from dataprep.job import Job
from dataprep.pipeline import plan_pipeline
from dataprep.run import prepare, run_until
from dataprep.token_facts import stored_dtype
from loader.cli_options import Output
from loader.errors import ConfigError, JobError
from loader.shards.verify import verify_dataset
from loader.text import fast
from loader.text.encoded import EncodedParts, joined_parts
from loader.text.fast import Backend
from loader.text.tokenizers import Tokenizer, load_tokenizer, write_tokenizer

MODELS = {
    "sentencepiece": ("sentencepiece", lambda: small_model("sentencepiece")),
    "sentencepiece prefix": ("sentencepiece", lambda: small_model("sentencepiece", lossless=False)),
    "unigram without bytes": ("sentencepiece", lambda: sentencepiece_model("unigram", byte_fallback=False)),
    "huggingface": ("huggingface", lambda: small_model("huggingface")),
    "huggingface lower case": ("huggingface", lambda: small_model("huggingface", lossless=False)),
    "tiktoken": ("tiktoken", lambda: small_model("tiktoken")),
}
FILES = ("documents.00000.npy", "tokens.00000.bin", "gaps.00000.npy")


@dataclass(frozen=True)
class CutFates(Fates):
    """The job's fates, with cuts of its own in every third record."""

    ranges: dict[int, list[tuple[int, int]]] | None = None

    def ranges_of_file(self, file: int) -> dict[int, list[tuple[int, int]]]:
        return dict(self.ranges or {})


@dataclass(frozen=True)
class Signed:
    corpus: Corpus
    job: Job
    fates: CutFates
    sign: Path

    def tokenize(self, tokenizer: Path, out: Path, mode: str = "off") -> dict[str, bytes]:
        """Tokenise file 0; the files that it leaves."""
        config = replace(self.job.config, run=replace(self.job.config.run, fast=mode))
        step = tokenize.TokenizeDocuments(replace(self.job, config=config), self.fates, (self.sign, tokenizer, out))
        list(step.run(None, 0, 4))
        return {name: (out / name).read_bytes() for name in FILES}

    def text(self, record: int) -> bytes:
        inputs = self.job.inputs[0]
        return self.corpus.texts[inputs.source, inputs.path, record].encode()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    folder = tmp_path_factory.mktemp("signed")
    corpus = make_corpus(folder / "corpus")
    prepared = prepare(write_config(folder / "build.yaml", corpus), (), read_only=False)
    run_until(prepared, "decide", Output(quiet=True))
    pipeline = prepared.pipeline
    fates, inputs = pipeline.fates(), pipeline.job.inputs[0]
    rng, ranges = random.Random(4), {}
    for source, path, record in corpus.texts:
        if (source, path) == (inputs.source, inputs.path) and record % 3 == 0:
            ranges[record] = random_cuts(rng, corpus.texts[source, path, record])
    cut = CutFates(fates.status, fates.cuts, fates.tables, fates.signed, ranges)
    return Signed(corpus, pipeline.job, cut, pipeline.folder("sign"))


def random_cuts(rng: random.Random, text: str) -> list[tuple[int, int]]:
    """Disjoint ascending byte ranges on code-point borders; now and then the whole text, its start or its end."""
    borders = [len(text[:place].encode()) for place in range(len(text) + 1)]
    chosen = sorted(rng.sample(borders, 2 * rng.randrange(1, 4)))
    if rng.random() < 0.3:
        chosen[0] = 0
    if rng.random() < 0.3:
        chosen[-1] = borders[-1]
    if rng.random() < 0.1:
        chosen = [0, borders[-1]]
    return list(zip(chosen[::2], chosen[1::2], strict=True))


def kept(cuts: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """What is left, byte by byte."""
    gone = np.zeros(size + 1, np.bool_)
    gone[size] = True
    for start, stop in cuts:
        gone[start:stop] = True
    start = None
    for place in range(size + 1):
        if not gone[place] and start is None:
            start = place
        elif gone[place] and start is not None:
            yield start, place
            start = None


def make_folder(folder: Path, name: str) -> Tokenizer:
    kind, model = MODELS[name]
    return write_tokenizer(folder / "tokenizer", kind, model(), small_policy(kind))


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_gaps_are_those_of_the_pieces(signed: Signed, tmp_path: Path, name: str) -> None:
    tokenizer = make_folder(tmp_path, name)
    signed.tokenize(tmp_path, tmp_path)
    table_D = np.load(tmp_path / FILES[0])
    tokens_T = np.fromfile(tmp_path / FILES[1], stored_dtype(tokenizer.vocab_size, not tokenizer.lossless))
    gaps = {}
    for record, token, num_bytes in np.load(tmp_path / FILES[2]).tolist():
        gaps.setdefault(record, []).append((token, num_bytes))
    status_R = signed.fates.status_of_file(0)
    wanted = np.flatnonzero((status_R == Status.KEPT) | (status_R == Status.HELD_OUT))
    assert sorted(table_D["record"].tolist()) == wanted.tolist()
    assert int(table_D["num_tokens"].sum()) == len(tokens_T)
    for row in table_D:
        record, text = int(row["record"]), signed.text(int(row["record"]))
        pieces = list(kept(signed.fates.ranges_of_file(0).get(record, []), len(text)))
        mine_T = tokens_T[int(row["place"]) :][: int(row["num_tokens"])]
        ids, sizes, expected_gaps, end = [], [], [], 0
        for start, stop in pieces:
            if start > end:
                expected_gaps.append((len(ids), start - end))
            ids_T, num_bytes_T = tokenizer.encode(text[start:stop])
            assert num_bytes_T.sum() == stop - start
            ids += ids_T.tolist()
            sizes += num_bytes_T.tolist()
            end = stop
        assert gaps.pop(record, []) == expected_gaps
        assert int(row["num_bytes"]) == sum(stop - start for start, stop in pieces) == sum(sizes)
        assert int(row["num_bytes"]) + int(row["cut_bytes"]) == len(text)
        if tokenizer.lossless:
            assert mine_T.tolist() == ids
        else:
            assert mine_T["id"].tolist() == ids
            assert mine_T["num_bytes"].tolist() == sizes
    assert gaps == {}


@pytest.mark.parametrize("name", ["sentencepiece", "huggingface", "tiktoken"])
def test_fast_backends_and_slices_do_not_show(
    signed: Signed, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(fast.BACKENDS[name][0].package)
    make_folder(tmp_path, name)
    expected = signed.tokenize(tmp_path, tmp_path / "off")
    assert signed.tokenize(tmp_path, tmp_path / "fast", "require") == expected
    monkeypatch.setattr(tokenize, "_SLICE_BYTES", 300)
    monkeypatch.setattr(tokenize, "_RUN_TOKENS", 1 << 30)
    monkeypatch.setattr(tokenize, "read_options", lambda ingest: read_options(ingest, batch_bytes=3000))
    assert signed.tokenize(tmp_path, tmp_path / "slices", "auto") == expected


def test_a_difference_while_running_names_the_document(
    signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path, "sentencepiece")

    def load(tokenizer: Tokenizer, definition: str) -> fast.RawEncoder:
        def encode(parts: list[str]) -> EncodedParts:
            letters = [[*part] if "y.jsonl" in part or "30" in part else [part] for part in parts]
            return joined_parts([tokenizer.raw_encode(one).ids_T for one in letters])

        return encode  # type: ignore[return-value]

    monkeypatch.setattr(fast, "BACKENDS", {"sentencepiece": (Backend("numpy", lambda _: "", load, 0),)})
    monkeypatch.setattr(fast, "_SAMPLE_DOCUMENTS", 1)
    monkeypatch.setattr(fast, "COMPARE_EVERY", 1)
    with pytest.raises(JobError) as caught:
        signed.tokenize(tmp_path, tmp_path / "lies", "auto")
    assert caught.value.code == "TR-TOKENIZER-FAST"
    inputs = signed.job.inputs[0]
    assert caught.value.place is not None
    assert caught.value.place.startswith(f"{inputs.path} record ")
    record = int(caught.value.place.rsplit(" ", 1)[1])
    assert b"30" in signed.text(record)


def test_a_required_backend_that_is_missing_is_a_configuration_error(
    signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path, "tiktoken")
    monkeypatch.setattr(fast, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="not installed"):
        signed.tokenize(tmp_path, tmp_path / "out", "require")


def test_a_build_with_ranks_and_one_with_its_own_folder_are_the_same(tmp_path: Path) -> None:
    """Pattern and control tokens come from the folder where the configuration says nothing of them."""
    corpus = make_corpus(tmp_path / "corpus", documents=12)
    (tmp_path / "small.tiktoken").write_bytes(small_model("tiktoken"))
    policy = small_policy("tiktoken")
    ranks = {"load": "small.tiktoken", "pattern": "gpt2", "special_tokens": dict(policy.special_tokens)}
    first = prepare(write_config(tmp_path / "a.yaml", corpus, tokenizer={"tiktoken": ranks}), (), read_only=False)
    from dataprep.run import run_build

    result = run_build(first, Output(quiet=True))
    assert verify_dataset(Path(result["output"])) == []
    folder = Path(result["output"]) / "tokenizer"
    assert load_tokenizer(folder).bos_id == policy.special_tokens["<s>"]
    again = write_config(tmp_path / "b.yaml", corpus, tokenizer={"tiktoken": {"load": str(folder)}}, output="other")
    second = prepare(again, (), read_only=False)
    assert second.pipeline.digest == first.pipeline.digest
    other = yaml.safe_load(again.read_text())
    other["tokenizer"]["tiktoken"]["pattern"] = "cl100k"
    again.write_text(yaml.safe_dump(other))
    changed = prepare(again, (), read_only=False)
    assert changed.pipeline.digest != first.pipeline.digest
    assert (
        plan_pipeline(changed.pipeline.job, tmp_path / "w", folder / "ranks.tiktoken").digest == changed.pipeline.digest
    )


def test_a_loaded_model_without_a_known_bos_lists_what_there_is(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", documents=3)
    (tmp_path / "small.tiktoken").write_bytes(small_model("tiktoken"))
    special = {"<|endoftext|>": 900}
    tokenizer = {"tiktoken": {"load": "small.tiktoken", "pattern": "gpt2", "special_tokens": special}}
    prepared = prepare(write_config(tmp_path / "a.yaml", corpus, tokenizer=tokenizer), (), read_only=False)
    step = prepared.pipeline.stages["tokenizer"].make_steps()[0]
    with pytest.raises(ConfigError) as caught:
        list(step.run(None, 0, 1))
    assert caught.value.code == "TR-TOKENIZER-BORDER"
    assert "'<|endoftext|>'" in str(caught.value)
    assert "add_bos: false" in str(caught.value)
