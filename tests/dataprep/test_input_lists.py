"""Files named one by one, in the configuration or in a list: the same job as a pattern that matches them, every mistake
named; and hashes of input files, which are trusted as long as size and time of change are the same."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dataprep import stages
from dataprep.config import BuildConfig, semantic_of
from dataprep.input_names import name_problem
from dataprep.inputs import find_inputs, load_job
from dataprep.pipeline import plan_pipeline
from dataprep.run import prepare, run_build
from dataprep.stages import hash_inputs
from loader.cli_options import Output
from loader.errors import ConfigError
from loader.files import hash_file
from loader.settings import digest_of, load_config

NAMES = ("b.jsonl", "a.jsonl", "deep/er/c.jsonl", "odd name é#1.jsonl")
WORDS = ("reel", "token", "shard", "stream", "window", "order", "cursor")
OLD_NS = 1_600_000_000_000_000_000


def write_job(folder: Path, **source: Any) -> Path:
    config = {
        "version": 1,
        "output": "out",
        "sources": {"web": {"root": "a", **source}},
        "tokenizer": {"sentencepiece": {"train": {"vocab_size": 300, "sample_bytes": 20000}}},
        "pack": {"seq_len": 64},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    return path


def load(folder: Path, **source: Any) -> BuildConfig:
    return load_config(write_job(folder, **source), BuildConfig).config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = random.Random(3)
    for name in NAMES:
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = (
            " ".join(rng.choices(["reel", "token", "shard", "stream", "window", "order", "cursor"], k=30))
            for _ in range(30)
        )
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        os.utime(path, ns=(OLD_NS, OLD_NS))
    return tmp_path


def paths_of(folder: Path, **source: Any) -> list[str]:
    return [file.path for file in find_inputs(load(folder, **source), folder)]


def digest(folder: Path, **source: Any) -> tuple[str, str]:
    """Build digest, and digest of what of the configuration is in the manifest."""
    config = load(folder, **source)
    return plan_pipeline(load_job(config, folder, None), folder / "work", None).digest, digest_of(semantic_of(config))


def test_named_files_are_the_same_job_as_a_pattern_in_any_order(folder: Path) -> None:
    (folder / "list.txt").write_text("\ufeff# a list\n\n  b.jsonl  \r\n" + "\n".join(NAMES[1:]), encoding="utf-8")
    (folder / "other").mkdir()
    (folder / "other" / "names").write_text("\n".join(reversed(NAMES)) + "\n", encoding="utf-8")
    wanted = digest(folder)
    assert paths_of(folder) == sorted(NAMES)
    for source in (
        {"files": list(NAMES)},
        {"files": list(reversed(NAMES))},
        {"file_list": "list.txt"},
        {"file_list": "other/names"},
    ):
        assert paths_of(folder, **source) == sorted(NAMES)
        assert digest(folder, **source) == wanted
    assert digest(folder, files=list(NAMES[1:]))[0] != wanted[0]


def test_what_is_wrong_with_a_list_is_named_with_its_line(folder: Path) -> None:
    listed = folder / "list.txt"
    for content, line, words in (
        (b"b.jsonl\n# x\nb.jsonl\n", 3, "stands in line 1 already"),
        (b"b.jsonl\n../job.yaml\n", 2, "must stay below root"),
        (b"/etc/passwd\n", 1, "must stay below root"),
        (b"a//b.jsonl\n", 1, "empty parts"),
        (b"./b.jsonl\n", 1, "'.'"),
        (b"a\x01.jsonl\n", 1, "control characters"),
        (b"x" * 300 + b".jsonl\n", 1, "more than 255 bytes"),
        (b"b.jsonl\n\xff\n", None, "not UTF-8 at byte 8"),
        (b"# nothing\n\n", None, "names no file"),
    ):
        listed.write_bytes(content)
        with pytest.raises(ConfigError, match="TR-SOURCE-LIST") as caught:
            find_inputs(load(folder, file_list="list.txt"), folder)
        assert words in caught.value.message
        assert caught.value.place == (f"{listed}:{line}" if line else str(listed))
    listed.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        find_inputs(load(folder, file_list="list.txt"), folder)


def test_a_named_file_that_is_not_there_is_named(folder: Path) -> None:
    (folder / "list.txt").write_text("b.jsonl\nnowhere/x.jsonl\n")
    (folder / "a" / "pipe.jsonl").mkdir()
    for source, path, words in (
        ({"files": ["b.jsonl", "gone.jsonl"]}, "gone.jsonl", "no such file"),
        ({"file_list": "list.txt"}, "nowhere/x.jsonl", "no such file"),
        ({"files": ["pipe.jsonl"]}, "pipe.jsonl", "no file, though it is named"),
    ):
        with pytest.raises(ConfigError, match="TR-SOURCE-FILE") as caught:
            find_inputs(load(folder, **source), folder)
        assert words in caught.value.message
        assert caught.value.place == str(folder / "a" / path)


def test_what_is_wrong_with_names_in_the_configuration_is_said_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(folder, files=["a.jsonl", "../b", "/c", "x/./y", "a\x07b", "a.jsonl"])
    message = caught.value.message
    for words in ("'../b' must stay", "'/c' must stay", "'x/./y' has empty", "control characters", "'a.jsonl' stands"):
        assert words in message
    with pytest.raises(ConfigError, match="one of paths, files, file_list"):
        load(folder, files=["a.jsonl"], file_list="list.txt")


def test_a_list_that_is_no_file_is_named(folder: Path) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(folder / "pipe")
    for name in ("pipe", "a"):
        with pytest.raises(ConfigError, match=r"TR-SOURCE-LIST(.|\n)*is no file"):
            find_inputs(load(folder, file_list=name), folder)


@contextmanager
def without_privileges(path: Path) -> Iterator[None]:
    """While inside, ``path`` cannot be read; not by root either."""
    mode = path.stat().st_mode
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user reaches."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        for path in ("b.jsonl", "deep/c.jsonl", "deep/er/d.jsonl"):
            (Path(name) / "a" / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / "a" / path).write_text('{"text": "one"}\n')
        yield Path(name)


def test_a_folder_that_cannot_be_read_is_named_and_not_passed_over(open_folder: Path) -> None:
    root = open_folder / "a"
    for locked, source in (
        ("deep", {}),
        ("deep/er", {}),
        ("", {}),
        ("", {"paths": ["*.jsonl"]}),
        ("deep", {"paths": ["b.jsonl", "*/c.jsonl"]}),
        ("deep", {"paths": ["deep/*"]}),
    ):
        config = load(open_folder, **source)
        with (
            without_privileges(root / locked),
            pytest.raises(
                ConfigError, match=r"TR-SOURCE-FILE(.|\n)*a folder cannot be read: Permission denied"
            ) as caught,
        ):
            find_inputs(config, open_folder)
        assert caught.value.place == str(root / locked)


def test_a_folder_that_no_pattern_looks_into_may_be_locked(open_folder: Path) -> None:
    for locked, source, found in (
        ("deep", {"paths": ["*.jsonl"]}, ["b.jsonl"]),
        ("deep/er", {"paths": ["b.jsonl", "*/c.jsonl"]}, ["b.jsonl", "deep/c.jsonl"]),
        ("deep/er", {"paths": ["deep/*.jsonl"]}, ["deep/c.jsonl"]),
        ("deep", {"files": ["b.jsonl"]}, ["b.jsonl"]),
    ):
        config = load(open_folder, **source)
        with without_privileges(open_folder / "a" / locked):
            assert [file.path for file in find_inputs(config, open_folder)] == found
    (open_folder / "a" / "deep" / "er").rename(open_folder / "a" / "lost+found")
    config = load(open_folder)
    with without_privileges(open_folder / "a" / "lost+found"):
        assert [file.path for file in find_inputs(config, open_folder)] == ["b.jsonl", "deep/c.jsonl"]


def test_a_folder_named_like_a_file_is_read_or_named(folder: Path) -> None:
    parts = folder / "a" / "web.jsonl"
    parts.mkdir()
    assert paths_of(folder) == sorted(NAMES), "nothing is in it"
    (parts / "part-00000").write_text('{"text": "one"}\n')
    with pytest.raises(ConfigError, match=r"TR-SOURCE-FILE(.|\n)*a folder with the name of a file") as caught:
        paths_of(folder)
    assert caught.value.place == str(parts)
    assert paths_of(folder, paths=["**/*.jsonl", "web.jsonl/*"]) == sorted([*NAMES, "web.jsonl/part-00000"])


@given(st.lists(st.text("ab./\\ é\x00\n~*", min_size=0, max_size=6), min_size=1, max_size=5))
def test_a_good_name_stays_below_any_root(parts: list[str]) -> None:
    name = "/".join(parts)
    if name_problem(name) is None:
        place = os.path.normpath(f"/srv/folder/{name}")
        assert place == f"/srv/folder/{name}", "one spelling of a place"
        assert name.isprintable()


def hashed(folder: Path, **options: Any) -> list[str]:
    files = [("web", name, folder / "a" / name) for name in sorted(NAMES)]
    return [raw.digest for raw in hash_inputs(files, folder / "inputs.json", **options)]


def test_hashes_are_noted_by_size_and_time_and_rehash_sees_through_both(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def counted(path: Path) -> str:
        calls.append(path)
        return hash_file(path)

    monkeypatch.setattr(stages, "hash_file", counted)
    first = hashed(folder)
    assert len(calls) == len(NAMES)
    assert hashed(folder) == first
    assert len(calls) == len(NAMES), "nothing is read again"
    target = folder / "a" / "b.jsonl"
    data = target.read_bytes()
    target.write_bytes(data.replace(b"reel", b"rEEl"))
    os.utime(target, ns=(OLD_NS, OLD_NS))
    assert hashed(folder) == first, "same size, same time: this is what rehash is for"
    seen = hashed(folder, rehash=True)
    assert [a == b for a, b in zip(first, seen, strict=True)] == [True, False, True, True]
    assert hashed(folder) == seen, "and is noted"
    os.utime(target, ns=(OLD_NS + 1, OLD_NS + 1))
    target.write_bytes(data)
    os.utime(target, ns=(OLD_NS + 1, OLD_NS + 1))
    assert hashed(folder) == first, "a nanosecond is another time"
    target.write_bytes(data + b"\n")
    os.utime(target, ns=(OLD_NS + 1, OLD_NS + 1))
    assert hashed(folder) != first, "another size"


def test_a_file_changed_just_now_is_hashed_again(folder: Path) -> None:
    """A second change within the clock of a file system may leave the same time."""
    target = folder / "a" / "b.jsonl"
    data = target.read_bytes()
    target.write_bytes(data)
    first = hashed(folder)
    status = target.stat()
    target.write_bytes(data.replace(b"reel", b"rEEl"))
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert hashed(folder) != first


def test_read_only_notes_nothing(folder: Path) -> None:
    hashed(folder, write=False)
    assert not (folder / "inputs.json").exists()


def test_a_finished_build_notices_a_hidden_edit_with_rehash_alone(folder: Path) -> None:
    config = write_job(folder)
    run_build(prepare(config, (), read_only=False), Output(quiet=True))
    target = folder / "a" / "b.jsonl"
    target.write_bytes(target.read_bytes().replace(b"reel", b"rEEl"))
    os.utime(target, ns=(OLD_NS, OLD_NS))
    old = prepare(config, (), read_only=True).pipeline
    assert prepare(config, ("run.rehash=true",), read_only=True).pipeline.digest != old.digest
    again = prepare(config, ("run.rehash=true", "output=again", "run.work=out.work"), read_only=False)
    result = run_build(again, Output(quiet=True))
    assert result["accounting"]["sources"]["web"]["documents"] == 120
    text = {raw.relative: raw.digest for raw in again.pipeline.job.raw}
    assert text["b.jsonl"] == hash_file(target)
