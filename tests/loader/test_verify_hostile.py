"""Manifests made by somebody who means harm, every hash right: each verb answers with a code, never with a traceback,
and never allocates what a number asks for. All run in one process whose address space is limited (RLIMIT_AS).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from support.datasets import DatasetSpec, make_dataset

from loader.canonical import canonical_json
from loader.cli import main
from loader.sealed import seal, unseal
from loader.settings import child_environment

ROOT = Path(__file__).resolve().parents[2]
ROOM_BYTES = 256 << 20
NUMBERS = [2**63, 2**62, 2**31, -1, 1.5, 1e308, None, "7", True, [], {}]
NAMES = ["..", "../..", "/etc", "a/../..", "a\x00b", "a\nb", "\ud800", "x" * 5000, "CON/..", "", ".", 7, None, ["web"]]
TOP = ["seq_len", "vocab_size", "max_segments", "version", "salt", "sources", "files_hashed", "order", "parents"]
COUNTS = [
    "num_shards",
    "num_samples",
    "num_segments",
    "num_tokens",
    "num_documents",
    "share",
    "file_start",
    "file_stop",
]

Change = Callable[[dict[str, Any]], None]


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = {"a": value}
    return value


def cases() -> dict[str, Change]:
    """name -> what is done to a sound manifest before it is sealed again."""
    found: dict[str, Change] = {}
    for key in TOP:
        for value in NUMBERS:
            found[f"{key}={value!r}"] = lambda m, k=key, v=value: m.update({k: v})  # type: ignore[misc]
    for key in COUNTS:
        for value in NUMBERS:
            found[f"source {key}={value!r}"] = lambda m, k=key, v=value: m["sources"][0].update({k: v})  # type: ignore[misc]
    for name in ("shards.npy", "documents.npy", "files.txt", "web/index.json"):
        for value in NUMBERS:
            found[f"{name} size={value!r}"] = lambda m, n=name, v=value: m["files_hashed"][n].update(size_bytes=v)  # type: ignore[misc]
        found[f"{name} hash"] = lambda m, n=name: m["files_hashed"][n].update(xxh3_128="0" * 31 + "g")  # type: ignore[misc]
        found[f"{name} list"] = lambda m, n=name: m["files_hashed"].update({n: [1, 2]})  # type: ignore[misc]
    for value in NAMES:
        found[f"name {value!r:.40}"] = lambda m, v=value: m["sources"][0].update(name=v)  # type: ignore[misc]
        if isinstance(value, str):
            record = {"size_bytes": 1, "xxh3_128": "0" * 32}
            found[f"file {value!r:.40}"] = lambda m, v=value, r=record: m["files_hashed"].update({v: r})  # type: ignore[misc]
    found["many sources"] = lambda m: m.update(sources=m["sources"] * 40_000)
    found["sources of names"] = lambda m: m.update(sources=["web"] * 10)
    found["no sources"] = lambda m: m.update(sources=[])
    found["nested configuration"] = lambda m: m.update(config=deep(60))
    found["deep configuration"] = lambda m: m.update(config=deep(64))
    found["format"] = lambda m: m.update(format="tokenreel-dataset-2")
    found["mixture"] = lambda m: m.update(mixture={"policy": "repeat", "total_positions": 2**63, "stages": [{}]})
    return found


SURVIVORS = {
    # These are no damage: a Dataset may be so.
    "order={}", "parents={}", "salt=9223372036854775808", "salt=4611686018427387904", "salt=2147483648",
    "nested configuration",
}  # fmt: skip

SCRIPT = """
import contextlib, io, json, resource, sys
from pathlib import Path
from loader.cli import main
import loader.diff, loader.dataset_diff, loader.interop.export, loader.inspect_text, loader.mosaic_adapter
import loader.shards.describe, loader.shards.verify
sound, folder = sys.argv[1], Path(sys.argv[2])
def run(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, "--json", "--quiet"])
    return [words[0], int(code or 0), out.getvalue(), err.getvalue()]
def all_verbs(path, some=False):
    out = str(folder / "out")
    yield run("verify", path)
    yield run("inspect", path, "--no-shards")
    if some:
        return
    yield run("inspect", path)
    yield run("diff", sound, path)
    yield run("export", path, "--format", "mds", "--output", out + "-mds", "--plan")
    yield run("export", path, "--format", "datatrove", "--output", out + "-ds", "--plan")
list(all_verbs(sound))  # everything is imported now
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
names = json.loads((folder / "cases.json").read_text())
target = Path(sys.argv[3])
results = {}
for number, name in enumerate(names):
    (target / "manifest.json").write_bytes((folder / f"{number}.json").read_bytes())
    results[name] = list(all_verbs(str(target), number % 4 > 0))
print(json.dumps(results))
""".replace("ROOM", str(ROOM_BYTES))


def run_script(sound: Path, target: Path, folder: Path) -> dict[str, list[tuple[str, int, str, str]]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(sound), str(folder), str(target)],
        cwd=ROOT,
        env=child_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def write_cases(made: Path, folder: Path, chosen: dict[str, Change]) -> None:
    folder.mkdir()
    for number, change in enumerate(chosen.values()):
        value = unseal((made / "manifest.json").read_bytes(), "manifest")
        change(value)
        try:
            data = seal(value)
        except ValueError:  # a lone surrogate has no UTF-8; as JSON escapes it does
            data = json.dumps({**value, "self_hash": "0" * 32}).encode()
        (folder / f"{number}.json").write_bytes(data)
    (folder / "cases.json").write_text(json.dumps(list(chosen)))


def check_answers(name: str, answers: list[tuple[str, int, str, str]]) -> None:
    for verb, code, out, err in answers:
        assert "Traceback" not in err, (name, verb, err)
        value = json.loads(out)
        if name in SURVIVORS:
            assert code in (0, 1), (name, verb, code, out)
        elif "error" in value:
            assert code in (2, 3, 4), (name, verb, out)
            assert value["error"]["code"] not in ("TR-INTERNAL", "TR-USAGE"), (name, verb, out)
        else:
            assert code in (0, 1, 3), (name, verb, code)
    verify = answers[0]
    assert (verify[1] in (3, 4)) == (name not in SURVIVORS), (name, verify)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc")
def test_hostile_manifests_are_answered_with_codes_in_bounded_memory(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 4, "code": 3}, seq_len=32))
    target = Path(shutil.copytree(made.path, tmp_path / "target"))
    chosen = cases()
    assert len(chosen) > 200
    write_cases(made.path, tmp_path / "cases", chosen)
    results = run_script(made.path, target, tmp_path / "cases")
    assert list(results) == list(chosen)
    for name, answers in results.items():
        check_answers(name, answers)
    assert not list((tmp_path / "cases").glob("out*"))


def nested_manifest(made: Path, levels: int) -> bytes:
    """A manifest with a right self-hash whose configuration is nested so deeply that no encoder would write it."""
    value = unseal((made / "manifest.json").read_bytes(), "manifest")
    mark, nested = b'"config":"@"', b'"config":' + b'{"a":' * levels + b"0" + b"}" * levels
    digest = xxhash.xxh3_128_hexdigest(canonical_json({**value, "config": "@"}).replace(mark, nested))
    return canonical_json({**value, "config": "@", "self_hash": digest}).replace(mark, nested) + b"\n"


def test_no_depth_of_nesting_is_an_unexpected_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parser, encoder and walkers each give up at another depth; none may be reached."""
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 4}, seq_len=32))
    sound = Path(shutil.copytree(made.path, tmp_path / "sound"))
    for levels in (10, 60, 70, 150, 300, 450, *range(900, 1000, 3), 2000, 100_000):
        (made.path / "manifest.json").write_bytes(nested_manifest(sound, levels))
        for words in (("verify", made.path), ("inspect", made.path), ("diff", sound, made.path)):
            code = main([str(word) for word in words])
            captured = capsys.readouterr()
            assert code == (3 if levels > 60 else words[0] == "diff"), (levels, words, captured)
            assert "Traceback" not in captured.err
