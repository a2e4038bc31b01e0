"""Jobs whose input lies in a real S3 server: the same Datasets as from a disk, whatever happens on the way, and texts
read back by the bytes they need.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import Corpus, make_corpus, write_config
from support.object_store import ACCESS_KEY, SECRET_KEY, Fault, FaultProxy, S3Server, fault_proxy, static_http

from dataprep.config import BuildConfig
from dataprep.inputs import find_inputs
from dataprep.run import prepare, run_build
from loader.cli import main
from loader.cli_options import Output
from loader.errors import ConfigError, DamageError, RefusedError
from loader.files import hash_file
from loader.remote.store import open_store
from loader.settings import child_environment, load_config
from loader.shards.dataset import open_dataset
from loader.shards.manifest import InputFile
from loader.text.records import RecordPlace
from loader.text.remote_texts import RemoteTexts
from loader.text.roots import TextSource, parse_roots

BUCKET = "corpus"
CANARIES = (SECRET_KEY, ACCESS_KEY)


@dataclass(frozen=True)
class Remote:
    """A corpus on a disk and in a bucket, and the digests of its Datasets built from the disk."""

    corpus: Corpus
    digests: dict[str, Any]
    output: Path


@pytest.fixture(scope="module")
def remote(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Remote:
    folder = tmp_path_factory.mktemp("remote")
    corpus = make_corpus(folder / "corpus", documents=30)
    upload(s3_server, corpus.root)
    config = write_config(folder / "build.yaml", corpus)
    result = run_build(prepare(config, (), read_only=False), Output(quiet=True))
    return Remote(corpus, digests_of(result), folder / "out")


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with fault_proxy(s3_server) as running:
        for name, value in s3_server.environment(running.endpoint).items():
            monkeypatch.setenv(name, value)
        yield running


def upload(server: S3Server, root: Path, bucket: str = BUCKET) -> None:
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    server.put(bucket, files)


def digests_of(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("build", "digest", "validation_digest")}


def remote_config(path: Path, corpus: Corpus, bucket: str = BUCKET, **changes: object) -> Path:
    """The job of ``remote`` with its sources in ``bucket``."""
    sources = {name: {"root": f"s3://{bucket}/{name}"} for name in ("web", "code")}
    return write_config(path, corpus, **{"sources": sources, **changes})


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    """Run a verb with --json; what it printed, parsed, or the text of its error."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == code
    said = capsys.readouterr()
    for canary in CANARIES:
        assert canary not in said.out + said.err
    return json.loads(said.out) if code == 0 else said.out + said.err


def assert_no_canary(folder: Path) -> None:
    """No file below ``folder``, binary ones included, holds a credential."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not any(canary.encode() in data for canary in CANARIES), path


def gets(proxy: FaultProxy) -> list[str]:
    """Keys of the objects that were asked for."""
    targets = [target for method, target, _ in proxy.requests if method == "GET" and "list-type" not in target]
    return [target.removeprefix(f"/{BUCKET}/") for target in targets]


def test_a_build_from_a_store_is_the_build_from_the_disk(
    remote: Remote, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = remote_config(tmp_path / "build.yaml", remote.corpus)
    size = sum(path.stat().st_size for path in remote.corpus.root.rglob("*") if path.is_file())

    plan = run(capsys, "build", config, "--plan")
    assert (plan["digest"], plan["finished"]) == (None, False)
    assert plan["to_fetch"] == {"files": 4, "size_bytes": size}
    assert plan["sources"]["web"]["files"] == 2
    assert all(stage["digest"] is None for stage in plan["stages"])
    assert gets(proxy) == [], "a plan fetches nothing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.yaml"], "and writes nothing"

    assert digests_of(run(capsys, "build", config)) == remote.digests
    assert sorted(gets(proxy)) == ["code/x.jsonl", "code/y.jsonl.gz", "web/a.jsonl", "web/deep/b.jsonl"], "each once"
    assert_no_canary(tmp_path)
    job = json.loads((tmp_path / "out" / "job.json").read_bytes())
    assert job["roots"] == {"web": f"s3://{BUCKET}/web", "code": f"s3://{BUCKET}/code"}

    proxy.requests.clear()
    plan = run(capsys, "build", config, "--plan")
    assert (plan["digest"], plan["finished"]) == (remote.digests["build"], True)
    assert plan["to_fetch"] == {"files": 0, "size_bytes": 0}
    assert digests_of(run(capsys, "build", config)) == remote.digests
    assert gets(proxy) == [], "the mirror is used"
    run(capsys, "build", config, "--set", "run.rehash=true")
    assert len(gets(proxy)) == 4, "all is fetched again"


def test_the_text_of_a_plan_says_what_is_fetched(
    remote: Remote, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", str(remote_config(tmp_path / "build.yaml", remote.corpus)), "--plan"]) == 0
    text = capsys.readouterr().out
    assert "digest  not known before the remote files are fetched" in text
    assert re.search(r"fetch +4 files +[\d,]+ bytes", text)


def test_files_named_one_by_one_are_looked_up_alone(remote: Remote, proxy: FaultProxy, tmp_path: Path) -> None:
    """Neither a list nor the names in the configuration need a listing, and the job is the same."""
    (tmp_path / "web.txt").write_text("# two\ndeep/b.jsonl\na.jsonl\n")
    sources = {
        "web": {"root": f"s3://{BUCKET}/web/", "file_list": "web.txt"},
        "code": {"root": f"s3://{BUCKET}/code", "files": ["y.jsonl.gz", "x.jsonl"]},
    }
    config = write_config(tmp_path / "build.yaml", remote.corpus, sources=sources)
    prepared = prepare(config, (), read_only=False)
    assert prepared.pipeline.digest == remote.digests["build"]
    assert not any("list-type" in target for _, target, _ in proxy.requests)
    assert [method for method, _, _ in proxy.requests].count("HEAD") == 4


def test_faults_on_the_way_do_not_show(
    remote: Remote, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.faults = {"list-type": Fault("503"), "a.jsonl": Fault("cut"), "x.jsonl": Fault("short"), "b.j": Fault("403")}
    prepared = prepare(remote_config(tmp_path / "build.yaml", remote.corpus), (), read_only=False)
    assert prepared.pipeline.digest == remote.digests["build"]
    assert [fault.times for fault in proxy.faults.values()] == [0, 0, 0, 0]


def kill_when(config: Path, happened: Callable[[], bool]) -> None:
    command = [sys.executable, "-c", "import sys; from loader.cli import main; sys.exit(main())", "build", str(config)]
    process = subprocess.Popen(command, env=child_environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and not happened() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, "killed while it fetched"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_killed_while_fetching_the_same_command_goes_on(
    remote: Remote, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = remote_config(tmp_path / "build.yaml", remote.corpus)
    proxy.faults = {"b.jsonl": Fault("stall", times=100)}
    mirror = tmp_path / "out.work" / "remote"
    kill_when(config, lambda: len(list(mirror.rglob("object.json"))) == 3)
    assert not (tmp_path / "out").exists()
    proxy.faults.clear()
    proxy.requests.clear()
    assert digests_of(run(capsys, "build", config)) == remote.digests
    assert gets(proxy) == ["web/deep/b.jsonl"], "what was fetched is kept"
    assert [path for path in tmp_path.rglob(".*") if path.is_file()] == []


def test_a_changed_object_is_another_input(
    remote: Remote, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Changed content is noticed by its ETag though its size is the same; what the old one left goes away."""
    upload(s3_server, remote.corpus.root, "moving")
    config = remote_config(tmp_path / "build.yaml", remote.corpus, "moving")
    first = prepare(config, (), read_only=False).pipeline
    data = (remote.corpus.root / "web" / "a.jsonl").read_bytes()
    s3_server.put("moving", {"web/a.jsonl": data.replace(b'"id": 1,', b'"id": 7,')})
    plan = prepare(config, (), read_only=True)
    assert [raw.relative for raw in plan.to_fetch] == ["a.jsonl"]
    second = prepare(config, (), read_only=False).pipeline
    assert second.digest != first.digest
    old, new = (next(raw for raw in p.job.raw if raw.relative == "a.jsonl") for p in (first, second))
    assert (old.size_bytes, old.digest) != (new.size_bytes, new.digest)
    assert old.size_bytes == new.size_bytes
    assert not Path(old.path).exists()
    assert hash_file(Path(new.path)) == new.digest
    s3_server.put("moving", {"web/a.jsonl": data})
    assert prepare(config, (), read_only=False).pipeline.digest == first.digest
    s3_server.delete("moving", "web/a.jsonl")
    assert prepare(config, (), read_only=False).pipeline.digest not in (first.digest, second.digest)


def test_a_mirror_that_was_touched_is_fetched_again(remote: Remote, proxy: FaultProxy, tmp_path: Path) -> None:
    config = remote_config(tmp_path / "build.yaml", remote.corpus)
    raw = prepare(config, (), read_only=False).pipeline.job.raw[0]
    Path(raw.path).write_bytes(Path(raw.path).read_bytes()[:-1])
    proxy.requests.clear()
    again = prepare(config, (), read_only=False).pipeline
    assert again.digest == remote.digests["build"]
    assert len(gets(proxy)) == 1


def test_a_damaged_note_is_no_note(remote: Remote, proxy: FaultProxy, tmp_path: Path) -> None:
    config = remote_config(tmp_path / "build.yaml", remote.corpus)
    prepare(config, (), read_only=False)
    for number, note in enumerate(sorted((tmp_path / "out.work" / "remote").rglob("object.json"))):
        note.write_bytes((b"", b"[]", b"{}", note.read_bytes()[:-9])[number])
    proxy.requests.clear()
    assert prepare(config, (), read_only=False).pipeline.digest == remote.digests["build"]
    assert len(gets(proxy)) == 4


def places_of(corpus: Corpus, source: str, path: str) -> dict[RecordPlace, str]:
    """Every readable record of a file: its place and its text, by the standard library."""
    import gzip

    data = (corpus.root / source / path).read_bytes()
    data = gzip.decompress(data) if path.endswith(".gz") else data
    starts, start = [], 0
    for line in data.split(b"\n"):
        starts.append(start)
        start += len(line) + 1
    return {
        RecordPlace(starts[record], record): text
        for (of, name, record), text in corpus.texts.items()
        if (of, name) == (source, path)
    }


@pytest.fixture
def moved(remote: Remote, tmp_path: Path) -> Path:
    """The Dataset of the local build as one from the store: it differs in job.json alone."""
    shutil.copytree(remote.output, tmp_path / "moved")
    job = json.loads((tmp_path / "moved" / "job.json").read_bytes())
    job["roots"] = {name: f"s3://{BUCKET}/{name}" for name in ("web", "code")}
    (tmp_path / "moved" / "job.json").write_text(json.dumps(job))
    return tmp_path / "moved"


def test_texts_are_read_back_from_the_store(
    remote: Remote, proxy: FaultProxy, moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = moved.with_name("scratch")
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    dataset = open_dataset(moved)
    texts = TextSource(dataset, {})
    for file, entry in enumerate(dataset.input_files()):
        wanted = places_of(remote.corpus, entry.source, entry.path)
        assert wanted
        assert texts.texts(file, list(wanted)) == wanted
        one = next(iter(wanted))
        assert texts.texts(file, [one]) == {one: wanted[one]}
    assert gets(proxy).count("code/y.jsonl.gz") == 1, "a compressed file is fetched once, whole"
    del texts
    gc.collect()
    assert list(scratch.iterdir()) == [], "and is removed"


def test_rows_of_other_formats_are_read_back_too(s3_server: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    texts = [f"row {number}" for number in range(50)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=20)
    data = (tmp_path / "a.parquet").read_bytes()
    s3_server.put("rows", {"web/a.parquet": data})
    reader = RemoteTexts(open_store("s3://rows/web"))
    wanted = {RecordPlace(0, 3): "row 3", RecordPlace(2, 49): "row 49"}
    entry = InputFile("web", "a.parquet", len(data))
    assert reader.texts(entry, ("parquet", "text"), list(wanted)) == wanted


def test_only_the_bytes_of_the_records_are_asked_for(
    remote: Remote, s3_server: S3Server, proxy: FaultProxy, moved: Path
) -> None:
    """Two records of a file of 9 MB, one of them 300 kB long: some hundred kilobytes travel."""
    dataset = open_dataset(moved)
    file, entry = next((f, e) for f, e in enumerate(dataset.input_files()) if e.path == "a.jsonl")
    lines = [json.dumps({"text": f"{n} " + "x" * (300_000 if n == 400 else 10_000)}).encode() for n in range(900)]
    data = b"\n".join(lines)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    s3_server.put("wide", {"web/a.jsonl": data})
    object.__setattr__(entry, "size_bytes", len(data))
    wanted = {RecordPlace(starts[n], n): json.loads(lines[n])["text"] for n in (3, 4, 400, 899)}
    proxy.body_bytes = 0
    found = TextSource(dataset, {"web": "s3://wide/web"}).texts(file, list(wanted))
    assert found == wanted
    assert 310_000 < proxy.body_bytes < 900_000
    with pytest.raises(DamageError, match="TR-TEXT") as caught:
        TextSource(dataset, {"web": "s3://wide/web"}).texts(file, [RecordPlace(starts[3] + 5, 3)])
    assert "s3://wide/web/a.jsonl" in str(caught.value.place)


def test_a_remote_file_of_another_size_is_not_the_one_that_was_built(
    remote: Remote, s3_server: S3Server, proxy: FaultProxy, moved: Path
) -> None:
    dataset = open_dataset(moved)
    s3_server.put("shorter", {"web/a.jsonl": b"{}\n"})
    file = next(f for f, e in enumerate(dataset.input_files()) if e.path == "a.jsonl")
    with pytest.raises(DamageError, match="TR-FILE-SIZE"):
        TextSource(dataset, {"web": "s3://shorter/web"}).texts(file, [RecordPlace(0, 0)])
    with pytest.raises(ConfigError, match="TR-REMOTE-MISSING"):
        TextSource(dataset, {"web": "s3://shorter/nowhere"}).texts(file, [RecordPlace(0, 0)])


def test_plain_http_is_a_root_too(remote: Remote, tmp_path: Path) -> None:
    """From a server without ranges or listing: the same job, and the same texts."""
    with static_http(remote.corpus.root) as url:
        sources = {
            "web": {"root": f"{url}/web", "files": ["a.jsonl", "deep/b.jsonl"]},
            "code": {"root": f"{url}/code", "files": ["x.jsonl", "y.jsonl.gz"]},
        }
        config = write_config(tmp_path / "build.yaml", remote.corpus, sources=sources)
        assert prepare(config, (), read_only=False).pipeline.digest == remote.digests["build"]
        dataset = open_dataset(remote.output)
        wanted = places_of(remote.corpus, "web", "a.jsonl")
        file = next(f for f, e in enumerate(dataset.input_files()) if e.path == "a.jsonl")
        assert TextSource(dataset, parse_roots([f"web={url}/web"])).texts(file, list(wanted)) == wanted
        listing = write_config(tmp_path / "list.yaml", remote.corpus, sources={"web": {"root": f"{url}/web"}})
        with pytest.raises(ConfigError, match="TR-REMOTE-LIST"):
            prepare(listing, (), read_only=True)


def test_roots_of_the_command_line() -> None:
    url = "s3://bucket/a=b"
    assert parse_roots([f"web={url}", url]) == {"web": url, "": url}
    with pytest.raises(ConfigError, match="TR-REMOTE-URL") as caught:
        parse_roots(["web=https://user:CANARY@host/x"])
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ({"root": "s3://user:CANARYSECRET@corpus/web"}, 2),
        ({"root": "https://127.0.0.1/web?X-Amz-Signature=CANARYSECRET"}, 2),
        ({"root": "s3://corpus/nothing"}, 2),
        ({"root": "s3://corpus/web", "files": ["gone.jsonl"]}, 2),
        ({"root": "s3://corpus/web", "paths": ["*.none"]}, 2),
        ({"root": "nothing-knows-this://corpus/web"}, 2),
        ({"root": "s3://no-such-bucket-at-all/web"}, 2),
    ],
)
def test_mistakes_are_said_without_credentials(
    remote: Remote,
    proxy: FaultProxy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: dict[str, Any],
    code: int,
) -> None:
    config = write_config(tmp_path / "build.yaml", remote.corpus, sources={"web": source})
    said = run(capsys, "build", config, code=code)
    assert "TR-" in said
    assert "Traceback" not in said
    assert "CANARYSECRET" not in said


@pytest.mark.parametrize("name", ["x" * 260 + ".jsonl", "a\nb.jsonl", "a\x7f.jsonl"])
def test_names_that_no_disk_should_hold_are_refused(tmp_path: Path, name: str) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe({f"/names/{len(name)}/web/{name}": b"{}"})
    sources = {"web": {"root": f"memory://names/{len(name)}/web"}}
    path = write_config(tmp_path / "build.yaml", Corpus(tmp_path, {}), sources=sources)
    with pytest.raises(ConfigError, match="TR-SOURCE-NAME"):
        find_inputs(load_config(path, BuildConfig).config, tmp_path)


def test_a_finished_dataset_of_other_remote_input_is_refused(
    remote: Remote, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    shutil.copytree(remote.output, tmp_path / "out")
    shutil.copytree(remote.output.with_name("out-validation"), tmp_path / "out-validation")
    upload(s3_server, remote.corpus.root, "other")
    s3_server.put("other", {"web/c.jsonl": b'{"text": "one more document"}\n'})
    config = remote_config(tmp_path / "build.yaml", remote.corpus, "other")
    with pytest.raises(RefusedError, match="TR-DATASET-OTHER"):
        run_build(prepare(config, (), read_only=False), Output(quiet=True))
