"""What the dedup benchmark rests on: a corpus that its inputs alone decide, a truth without misses, an honest judge."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from support.text_oracle import jaccard, shingles_of

from benchmarks import dedup_archives, dedup_corpus
from benchmarks.dedup_corpus import RECIPES, document_family, html_text
from benchmarks.dedup_peers import ENVIRONMENTS, REQUIREMENTS, slice_corpus
from benchmarks.dedup_truth import FLOOR, Truth, all_pairs, check_truth, judge, load_truth, recall_curve, theory
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.jaccard import Sets

SEEDS = range(3)


def near_copies(seed: int, count: int = 60) -> list[str]:
    """Texts of which many are edits of others, some equal, one without a word."""
    draw = random.Random(seed)
    words = [f"word{i}" for i in range(300)]
    texts = ["... --- ..."]
    while len(texts) < count:
        if len(texts) < 4 or draw.random() < 0.3:
            text = [draw.choice(words) for _ in range(draw.randint(3, 120))]
        else:
            text = draw.choice(texts).split()
            for _ in range(draw.randint(0, 3)):
                text[draw.randrange(len(text))] = draw.choice(words)
        texts.append(" ".join(text))
    return texts


def corpus_of(folder: Path, sources: dict[str, list[tuple[str, str]]]) -> dedup_corpus.Corpus:
    return dedup_corpus._write_corpus(folder, iter((name, iter(rows)) for name, rows in sources.items()), ())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("floor", [0.5, 0.8])
def test_the_truth_is_every_pair_that_sets_of_strings_have(seed: int, floor: float) -> None:
    texts = near_copies(seed)
    value_S, sizes = DocumentHasher().sets(pa.array(texts, pa.large_string()))
    stop_N = np.cumsum(sizes)
    first_P, second_P, similarity_P = all_pairs(Sets(value_S, stop_N - sizes, stop_N), floor)
    sets = [shingles_of(text) for text in texts]
    exact = {(a, b): jaccard(sets[a], sets[b]) for b in range(len(texts)) for a in range(b)}
    expected = {pair: similarity for pair, similarity in exact.items() if similarity >= floor}
    assert len(expected) > 10
    assert dict(zip(zip(first_P.tolist(), second_P.tolist(), strict=True), similarity_P, strict=True)) == expected


def test_the_truth_of_a_corpus_is_kept_and_counts_equal_texts_without_words(tmp_path: Path) -> None:
    rows = [(f"a/{i}", text) for i, text in enumerate(near_copies(1))]
    corpus = corpus_of(tmp_path, {"man": rows, "books": [("b/0", "... --- ..."), ("b/1", "?")]})
    truth = load_truth(corpus)
    assert check_truth(corpus, truth, 40, 40) > 100
    silent = [truth.ids.index(id_) for id_ in ("man-000000", "books-000000")]
    assert silent in np.stack((truth.first_P, truth.second_P), 1).tolist()
    again = load_truth(corpus)
    assert np.array_equal(again.similarity_P, truth.similarity_P)
    assert len(list(tmp_path.glob("truth-*.npz"))) == 1


def truth_of(pairs: dict[tuple[int, int], float], count: int) -> Truth:
    first_P, second_P = np.array(list(pairs), np.int32).T
    return Truth(first_P, second_P, np.array(list(pairs.values())), [str(i) for i in range(count)])


def test_a_removal_is_wrong_without_a_kept_near_copy_and_a_pair_leaks_if_both_stay() -> None:
    truth = truth_of({(0, 1): 0.95, (1, 2): 0.85, (0, 2): 0.6, (3, 4): 0.8, (5, 6): 0.75}, 8)
    judged = judge(truth, ["1", "2", "6", "7"])
    assert judged["removed"] == 4
    # 1 has 0; 2 has only 0 at 0.6, since 1 is gone; 6 has 5 at 0.75; 7 has nobody
    assert [judged[f"wrong_{t}"] for t in (0.8, 0.7, 0.5)] == [3, 2, 1]
    assert (judged["pairs_0.8"], judged["leaked_0.8"], judged["pairs_0.9"], judged["leaked_0.9"]) == (3, 1, 1, 0)
    mask_N = np.isin(np.arange(8), [1, 2, 6, 7])
    assert judge(truth, mask_N) == judged


def test_a_slice_is_judged_by_its_own_documents() -> None:
    truth = truth_of({(0, 1): 0.95, (1, 2): 0.85}, 3)
    judged = judge(truth, ["1"], ["1", "2"])
    assert (judged["documents"], judged["wrong_0.8"], judged["pairs_0.8"], judged["leaked_0.8"]) == (2, 0, 1, 0)
    with pytest.raises(ValueError, match="took no part"):
        judge(truth, ["0"], ["1", "2"])
    with pytest.raises(ValueError, match="does not have"):
        judge(truth, ["x"])


def test_recall_is_counted_by_bins_whose_upper_end_is_the_next_one() -> None:
    truth = truth_of({(0, 1): 0.5, (0, 2): 0.6, (0, 3): 0.69, (0, 4): 1.0}, 5)
    proposed_P: NDArray[np.bool_] = np.array([False, True, False, True])
    curve = recall_curve(truth, proposed_P, 0.1)
    assert [row["pairs"] for row in curve] == [1, 2, 0, 0, 1]
    assert [row["recall"] for row in curve if row["pairs"]] == [0.0, 0.5, 1.0]
    assert curve[1]["theory"] == pytest.approx(float(theory(np.array([0.6, 0.69])).mean()))
    assert curve[0]["low"] == FLOOR


def test_html_becomes_its_text() -> None:
    page = "<html><head><title>no</title></head><body><h1>A &amp; B</h1><!-- no --><script>no</script><p>c<b>d</b>"
    assert html_text(page) == "A & B\n\ncd"


def test_versions_and_translations_of_a_file_are_one_family() -> None:
    assert document_family("kernel_a", "linux-source-6.1/mm/slab.c") == document_family(
        "kernel_b", "linux-source-6.12/mm/slab.c"
    )
    assert document_family("man", "manpages/man1/ls.1.gz") == document_family("man", "manpages-ja/ja/man1/ls.1.gz")
    assert document_family("boost_a", "a/x/y.html") != document_family("javadoc", "a/x/y.html")


def wheel(folder: Path, name: str, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def test_a_corpus_depends_on_its_archives_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = dedup_corpus._Recipe("wheel", ("tool==1.0",), ("tool==1.0",))
    monkeypatch.setattr(dedup_corpus, "RECIPES", {"pypkg": recipe})
    monkeypatch.setattr(dedup_archives, "LOCK", tmp_path / "lock.json")
    long, latin = "line of code\n" * 20, "caf\xe9 " * 30
    files = {"b.py": long, "a.py": long, "short.py": "x", "c.so": long, "d.txt": latin}
    digests = set()
    for run, order in enumerate((list(files), list(reversed(files)))):
        wheel(tmp_path / f"{run}/archives", "tool-1.0-py3-none-any.whl", {path: files[path] for path in order})
        if run == 0:
            dedup_archives.write_lock(tmp_path / "0/archives", ["tool==1.0"])
        corpus = dedup_corpus.ensure_corpus(tmp_path / str(run))
        digests.add(corpus.digest)
        assert [record["path"] for record in corpus.records()] == [f"tool-1.0/{p}" for p in ("a.py", "b.py", "d.txt")]
        assert (corpus.sources[0].exact_duplicates, corpus.sources[0].non_ascii_documents) == (1, 1)
        assert bool(corpus.differences) == (run == 1)  # other bytes of the archive are told, not hidden
        assert dedup_corpus.ensure_corpus(tmp_path / str(run)) == corpus
    assert len(digests) == 1
    quick = dedup_corpus.ensure_corpus(tmp_path / "0", quick=True)
    assert quick.documents == 3


def test_a_slice_keeps_families_together_and_the_order(tmp_path: Path) -> None:
    rows = [(f"p{i % 4}/man1/page{i // 4}.gz", f"text {i} " * 20) for i in range(80)]
    corpus = corpus_of(tmp_path, {"man": rows})
    (path,), ids = slice_corpus(corpus, 40)
    assert ids == sorted(ids)
    assert [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()] == ids
    pages = [rows[int(id_.split("-")[1])][0].rpartition("/")[2] for id_ in ids]
    assert len(ids) == 40
    assert len(set(pages)) == 10


def test_every_package_is_locked_and_every_peer_is_pinned() -> None:
    archives = json.loads(dedup_archives.LOCK.read_text(encoding="utf-8"))["archives"]
    assert set(archives) == {package for recipe in RECIPES.values() for package in recipe.packages}
    for recipe in RECIPES.values():
        assert set(recipe.small) <= set(recipe.packages)
    for environment, _ in ENVIRONMENTS.values():
        lines = (REQUIREMENTS / f"{environment}.txt").read_text(encoding="utf-8").split()
        assert lines
        assert all("==" in line for line in lines)
        assert any(line.startswith(f"{environment}==") for line in lines)
