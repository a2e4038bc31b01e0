"""A build with every screen, every method and cuts: each segment is still the text it says, each byte accounted for,
and a later job against its Index keeps nothing that the first one kept."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dataprep.run import prepare, run_build, run_until
from loader.cli import main
from loader.cli_options import Output
from loader.errors import RefusedError
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.verify import verify_dataset
from loader.text.tokenizers import load_tokenizer

Key = tuple[str, str, int]
METHODS = ["exact", "minhash", "simhash", "ngram"]
ITEM = "Natalia sold clips to forty eight of her friends in April and then she sold half as many clips in May how many"


def words(start: str, count: int) -> str:
    rng = random.Random(start)
    return " ".join(f"{start}{rng.randrange(10**6)}" for _ in range(count))


PASSAGE = words("passage", 70)


def web_texts() -> list[str]:
    """Plain documents, then one of each kind that something must act on."""
    texts = [f"Überschrift {number}\n" + words(f"web{number}x", 40 + number) for number in range(24)]
    texts += [texts[2], texts[3] + " nearly"]  # an exact and a near copy
    texts += [words("front", 90) + "\u2028" + PASSAGE + " " + words("rear", 90)]
    texts += ["先頭 " + words("other", 120) + "\n" + PASSAGE.upper() + "\n" + words("tail", 120) + " 末尾"]
    texts += [words("leak", 60) + " " + ITEM.replace(" ", "\n", 9) + " " + words("after", 60)]
    texts += ["abc " * 200]
    return texts


@dataclass(frozen=True)
class Built:
    folder: Path
    config: Path
    result: dict[str, Any]
    texts: dict[Key, str]

    @property
    def datasets(self) -> list[Dataset]:
        return [open_dataset(self.result[name]) for name in ("output", "validation") if self.result[name]]

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(Path(self.result["output"]) / name).to_pylist()
        return rows


def write_job(folder: Path, sources: dict[str, Sequence[str]], output: str = "out", **changes: Any) -> Path:
    for source, texts in sources.items():
        place = folder / source / "a.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    (folder / "items.jsonl").write_text(json.dumps({"question": ITEM, "answer": "72"}) + "\n", encoding="utf-8")
    config: dict[str, Any] = {
        "version": 1,
        "output": output,
        "sources": {source: {"root": source} for source in sources},
        "quality": [{"filter": "periodic"}],
        "decontaminate": {"benchmarks": {"gsm": {"path": "items.jsonl"}}},
        "dedup": {"methods": METHODS, "write_index": True},
        "holdout": {"fraction": 0.2},
        "tokenizer": {"sentencepiece": {"train": {"vocab_size": 400, "sample_bytes": 30000}}},
        "pack": {"seq_len": 64},
        **changes,
    }
    path = folder / f"{output}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def build(config: Path) -> dict[str, Any]:
    return run_build(prepare(config, (), read_only=False), Output(quiet=True))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("screens")
    sources = {"web": web_texts(), "code": [f"def f{n}():\n    " + words(f"code{n}y", 60) for n in range(20)]}
    config = write_job(folder, sources)
    texts = {(source, "a.jsonl", i): text for source, many in sources.items() for i, text in enumerate(many)}
    return Built(folder, config, build(config), texts)


def segments(dataset: Dataset) -> dict[Key, list[tuple[int, int, bytes]]]:
    """Document -> (first byte, bytes, what its tokens say) of every segment with text."""
    tokenizer = load_tokenizer(dataset.path / "tokenizer")
    found = defaultdict(list)
    for source in dataset.source_names:
        count = int(dataset.shard_samples(source).sum())
        tokens_NT = dataset.read_samples(source, np.arange(count))
        table = dataset.segments_of(source, np.arange(count))
        for row in np.flatnonzero(~table.padding_S).tolist():
            start = int(table.token_start_S[row])
            tokens_T = tokens_NT[table.sample_index_S[row]][start : start + int(table.num_tokens_S[row])]
            place = (source, dataset.file_path(int(table.file_S[row])), int(table.record_S[row]))
            first, size = int(table.byte_start_S[row]), int(table.byte_count_S[row])
            found[place].append((first, size, tokenizer.decode_bytes(tokens_T)))
    return found


def test_what_went_and_why(built: Built) -> None:
    removed = {(row["source"], row["record"]): row for row in built.table("removed.parquet")}
    methods = {key: row["method"] for key, row in removed.items()}
    assert methods[("web", 24)] == "exact"
    assert methods[("web", 3)] in ("minhash", "simhash")  # its near copy is longer
    assert removed[("web", 3)]["witness_record"] == 25
    assert methods[("web", 28)] == "contaminated"
    assert methods[("web", 29)] == "quality"
    assert "periodic" in removed[("web", 29)]["reason"]
    assert "gsm" in removed[("web", 28)]["reason"]
    assert removed[("web", 28)]["witness_document"] is None
    assert len(removed) == 4
    rows = built.result["accounting"]["sources"]
    assert rows["web"]["removed"]["quality"] == rows["web"]["removed"]["contaminated"] == 1


def test_segments_around_cuts_are_the_text_they_say(built: Built) -> None:
    cuts = defaultdict(list)
    for row in built.table("cuts.parquet"):
        assert row["method"] == "ngram"
        cuts[row["source"], row["file"], row["record"]].append((row["byte_start"], row["byte_count"]))
    assert list(cuts) == [("web", "a.jsonl", 26)]  # the shorter of the two that hold the passage
    ((start, count),) = cuts["web", "a.jsonl", 26]
    text = built.texts["web", "a.jsonl", 26].encode()
    assert text[start : start + count].decode() == PASSAGE
    seen: set[Key] = set()
    for dataset in built.datasets:
        for key, pieces in segments(dataset).items():
            whole = built.texts[key].encode()
            covered = np.zeros(len(whole), np.int64)
            for first, size, said in pieces:
                assert said == whole[first : first + size]
                covered[first : first + size] += 1
            expected = np.ones(len(whole), np.int64)
            for first, size in cuts.get(key, []):
                expected[first : first + size] = 0
            assert (covered == expected).all()
            seen.add(key)
        assert [finding.to_text() for finding in verify_dataset(dataset.path)] == []
    removed = {(row["source"], row["file"], row["record"]) for row in built.table("removed.parquet")}
    assert seen == built.texts.keys() - removed


def test_a_witness_that_passages_took_whole_hands_on_its_own(tmp_path: Path) -> None:
    """Dedup removes ``near`` for ``middle``; then every passage of ``middle`` stands in the longer document."""
    middle = words("middle", 100)
    near = middle.removesuffix(middle.split()[-1]).strip()
    long = words("before", 200) + " " + middle + " " + words("after", 200)
    rest = [words(f"rest{n}r", 60) for n in range(12)]
    dedup = {"methods": ["exact", "minhash", "ngram"]}
    small = {"tokenizer": {"sentencepiece": {"train": {"vocab_size": 310, "sample_bytes": 30000}}}}
    config = write_job(tmp_path, {"web": [near, middle, long, *rest]}, dedup=dedup, holdout={"fraction": 0}, **small)
    result = build(config)
    rows = pq.read_table(Path(result["output"]) / "removed.parquet").to_pylist()
    assert [(row["record"], row["method"], row["witness_record"]) for row in rows] == [
        (0, "minhash", 2),
        (1, "ngram", 2),
    ]
    assert "cut whole" in rows[0]["reason"]
    assert rows[0]["similarity"] >= 0.8
    assert result["accounting"]["sources"]["web"]["trained"] == 13


def test_places_shape_no_dataset(built: Built) -> None:
    """Where items, Indexes and tokenizers lie is no part of what the Dataset is."""
    config = json.dumps(built.datasets[0].manifest.config)
    assert "items.jsonl" not in config
    assert str(built.folder) not in config


def test_bytes_add_up(built: Built) -> None:
    cut = sum(row["byte_count"] for row in built.table("cuts.parquet"))
    assert built.result["accounting"]["cut_bytes"] == cut > 0
    for name, row in built.result["accounting"]["sources"].items():
        size = sum(len(text.encode()) for key, text in built.texts.items() if key[0] == name)
        gone = sum(row["removed_bytes"].values())
        assert size == row["bytes"] == row["trained_bytes"] + row["trained_cut_bytes"] + row["held_out_bytes"] + gone


def test_again_with_one_worker_and_little_memory(built: Built, tmp_path: Path) -> None:
    sources = {name: [t for (s, _, _), t in built.texts.items() if s == name] for name in ("web", "code")}
    config = write_job(tmp_path, sources, run={"workers": 1, "memory": "64MiB"})
    again = build(config)
    assert (again["digest"], again["validation_digest"]) == (built.result["digest"], built.result["validation_digest"])
    index = Path(str(built.result["output"]) + "-index")
    other = tmp_path / "out-index"
    names = sorted(path.name for path in index.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    assert all((index / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_later_job_against_the_index(built: Built, tmp_path: Path) -> None:
    """Everything that the first job kept is a duplicate now; a better late copy is listed, not swapped in."""
    kept = [built.texts[key] for dataset in built.datasets for key in segments(dataset) if key[0] == "web"]
    new = [words(f"new{n}z", 50) for n in range(12)]
    longer = kept[0] + " one more"
    dedup = {"methods": ["exact", "minhash", "simhash"], "against": [str(built.folder / "out")]}
    changes = {
        "dedup": {**dedup, "max_removed_fraction": 1.0},
        "tokenizer": {"sentencepiece": {"load": str(built.folder / "out" / "tokenizer")}},
    }
    config = write_job(tmp_path, {"web": [*new, *kept, longer]}, **changes)
    result = build(config)
    row = result["accounting"]["sources"]["web"]
    assert row["trained"] + row["held_out"] == len(new)
    witnesses = pq.read_table(Path(result["output"]) / "removed.parquet").column("witness_document").to_pylist()
    assert None not in witnesses
    superseded = pq.read_table(Path(result["output"]) / "superseded.parquet").to_pylist()
    assert result["accounting"]["dedup"]["figures"]["superseded"] == len(superseded)
    page = (Path(result["output"]) / "report.html").read_text(encoding="utf-8")
    assert "Deduplication" in page
    assert "superseded.parquet" in page
    assert len(new) + len(kept) in [row["record"] for row in superseded]


def test_an_index_of_other_settings_is_refused_before_anything_is_read(built: Built, tmp_path: Path) -> None:
    config = write_job(
        tmp_path, {"web": ["a b c"]}, dedup={"methods": ["exact"], "against": [str(built.folder / "out")]}
    )
    for last in ("dedup", "build"):
        assert main([last, str(config), "--plan", "--quiet"]) == 4
    with pytest.raises(RefusedError, match=r"TR-INDEX-OTHER.*methods"):
        build(config)
    assert [path.name for path in (tmp_path / "out.work").iterdir() if path.is_dir()] == []


def test_items_that_change_while_the_job_runs_are_refused(tmp_path: Path) -> None:
    """The digest of the stage names those that were there when it was planned."""
    config = write_job(tmp_path, {"web": web_texts()}, dedup={"methods": ["exact"]})
    prepared = prepare(config, (), read_only=False)
    (tmp_path / "items.jsonl").write_text(json.dumps({"question": ITEM, "answer": "73"}) + "\n", encoding="utf-8")
    with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
        run_build(prepared, Output(quiet=True))
    assert "items" in build(config)["stages_s"]


def test_an_index_asked_for_later_or_moved_away_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dedup: dict[str, Any] = {"methods": ["exact"]}
    changes: dict[str, Any] = {"quality": [], "decontaminate": {}, "holdout": {"fraction": 0}}
    sources = {"web": web_texts()}
    first = build(write_job(tmp_path, sources, **changes, dedup=dedup))
    config = write_job(tmp_path, sources, **changes, dedup={**dedup, "write_index": True})
    index = tmp_path / "out-index" / "index.json"
    for _ in range(2):
        assert not index.exists()
        assert main(["build", str(config), "--plan", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert not plan["finished"]
        assert plan["stages"][-1]["stage"] == "index"
        assert build(config)["digest"] == first["digest"]
        assert json.loads(index.read_bytes())["count"] == first["accounting"]["sources"]["web"]["trained"]
        assert main(["build", str(config), "--plan", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["finished"]
        shutil.rmtree(index.parent)


def test_verbs(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decontaminate", str(built.config), "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decontaminate"]["benchmarks"][0]["items_hit"] == 1
    assert main(["dedup", str(built.config), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "bytes cut" in said
    assert str(built.folder / "out-index") in said
    for line in ("removed", "cut whole", "rejected"):
        (path,) = [Path(row.split()[-1]) for row in said.splitlines() if row.startswith(line)]
        assert path.is_file()
    assert main(["dedup", str(built.config), "--plan"]) == 0
    plan = capsys.readouterr().out
    assert "0.80" in plan
    assert len({line.index(" tasks") for line in plan.splitlines() if " tasks" in line}) == 1


def test_the_tokenizer_sees_nothing_that_is_cut(built: Built) -> None:
    tables = [pa.ipc.open_file(path).read_all() for path in (built.folder / "out.work").glob("sample-*/*.arrow")]
    texts = [text for table in tables for text in table.column("text").to_pylist()]
    before, after = built.texts["web", "a.jsonl", 26].split(PASSAGE)
    assert before + after in texts
    assert not any(PASSAGE in text for text in texts)


def test_an_index_that_is_replaced_behind_the_plan_is_refused(built: Built, tmp_path: Path) -> None:
    index = tmp_path / "earlier"
    shutil.copytree(str(built.result["output"]) + "-index", index)
    dedup = {"methods": ["exact", "minhash", "simhash"], "against": ["earlier"]}
    prepared = prepare(write_job(tmp_path, {"web": web_texts()}, dedup=dedup), (), read_only=False)
    record = json.loads((index / "index.json").read_bytes())
    (index / "index.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    with pytest.raises(RefusedError, match=r"TR-INPUT-CHANGED.*replaced"):
        run_until(prepared, "decide", Output(quiet=True))
