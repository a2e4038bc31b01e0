"""``diff``, ``report``, ``export`` and the verbs of runs on Datasets in a real S3 server: what they say of a folder,
they say of a URL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.builds import Built, built
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.object_store import Fault, FaultProxy, S3Server
from support.remote_datasets import cached_files, proxy, upload
from support.runs import make_run, train

from loader.cli import main
from loader.errors import ConfigError, DamageError, RefusedError
from loader.interop.export import EXPORTS
from loader.runs import RunPaths

__all__ = ["built", "proxy"]

_SPEC = DatasetSpec(documents={"web": 40, "code": 15}, seq_len=48, samples_per_shard=10, max_words=60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("remote-verbs"), _SPEC)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    """Another Dataset of the same salt: documents are the same as far as there are as many."""
    spec = DatasetSpec(**{**vars(_SPEC), "documents": {"web": 33, "code": 18}, "seed": 4})
    return make_dataset(tmp_path_factory.mktemp("remote-verbs-other"), spec)


@pytest.fixture(scope="module")
def url(made: MadeDataset, s3_server: S3Server) -> str:
    return upload(s3_server, "verbs-made", made.path)


@pytest.fixture(scope="module")
def other_url(other: MadeDataset, s3_server: S3Server) -> str:
    return upload(s3_server, "verbs-other", other.path)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("default-cache")
    monkeypatch.setenv("TOKENREEL_CACHE", str(folder))
    return folder


Capture = pytest.CaptureFixture[str]


def result(capsys: Capture, *words: object, code: int = 0) -> Any:
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capture, *words: object) -> tuple[str, str | None]:
    """(code, next command) of an error."""
    assert main([*map(str, words), "--json"]) in (ConfigError.exit_code, RefusedError.exit_code)
    error = json.loads(capsys.readouterr().out)["error"]
    return error["code"], error.get("next_command", error.get("next"))


# diff -----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("proxy")
def test_diff_of_urls(
    made: MadeDataset, other: MadeDataset, url: str, other_url: str, cache: Path, capsys: Capture
) -> None:
    assert result(capsys, "diff", url, made.path)["same"] is True
    here = result(capsys, "diff", made.path, other.path, code=1)
    assert here["documents"]["removed"]["count"]
    for left, right in ((url, other_url), (url, other.path), (f"{url}/manifest.json", f"{other_url}/")):
        there = result(capsys, "diff", left, right, code=1)
        for value in (there, here):
            value["left"].pop("path", None), value["right"].pop("path", None)
        assert there == here
    assert not list(cached_files(cache))
    assert main(["diff", url, str(made.path / "nowhere")]) == ConfigError.exit_code


def test_diff_names_a_damaged_object(
    made: MadeDataset, other_url: str, s3_server: S3Server, proxy: FaultProxy, capsys: Capture
) -> None:
    url = upload(s3_server, "verbs-diff-damaged", made.path)
    data = bytearray((made.path / "documents.npy").read_bytes())
    data[-20] ^= 1
    s3_server.put("verbs-diff-damaged", {"data/documents.npy": bytes(data)})
    assert main(["diff", url, other_url]) == DamageError.exit_code
    assert f"{url}/documents.npy" in capsys.readouterr().err


# report ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("proxy")
def test_report_of_a_url(url: str, made: MadeDataset, tmp_path: Path, capsys: Capture) -> None:
    """These Datasets were made without a page; those that a build wrote are in ``test_report_of_a_build``."""
    code, then = refused(capsys, "report", url)
    assert (code, then) == ("TR-REPORT-TARGET", "--out report.html")
    assert refused(capsys, "report", url, "--out", "s3://bucket/report.html") == (
        "TR-REPORT-TARGET",
        "--out report.html",
    )
    assert not (tmp_path / "s3:").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("proxy")
def test_report_of_a_build(built: Built, s3_server: S3Server, tmp_path: Path, capsys: Capture) -> None:
    path = built.datasets[0].path
    url = upload(s3_server, "verbs-built", path)
    assert result(capsys, "report", url)["report"] == f"{url}/report.html"
    result(capsys, "report", url, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (path / "report.html").read_bytes()
    s3_server.put("verbs-built", {"data/report.html": b"another page"})
    assert result(capsys, "report", url, code=DamageError.exit_code)["error"]["code"] == "TR-FILE-SIZE"
    (found,) = result(capsys, "verify", url, code=DamageError.exit_code)["findings"]
    assert found["file"] == "report.html"


# export ---------------------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("name", sorted(EXPORTS))
def test_exports_of_a_url_are_those_of_the_folder(
    name: str, made: MadeDataset, url: str, cache: Path, tmp_path: Path, capsys: Capture
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    planned = result(capsys, "export", url, "--format", name, "--output", there, "--plan")
    assert (
        planned["files"] == result(capsys, "export", made.path, "--format", name, "--output", here, "--plan")["files"]
    )
    assert result(capsys, "export", made.path, "--format", name, "--output", here)["written"]
    assert result(capsys, "export", url, "--format", name, "--output", there)["written"]
    assert files_of(there) == files_of(here)
    assert not list(cached_files(cache)), "shards leave nothing behind"
    assert not result(capsys, "export", url, "--format", name, "--output", there)["written"]


@pytest.mark.usefixtures("proxy")
def test_exports_that_cannot_be_say_what_can(
    url: str, made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for dataset in (url, made.path):
        words = ("export", dataset, "--format", "mds", "--output")
        code, then = refused(capsys, *words, "s3://bucket/export")
        assert (code, then) == ("TR-EXPORT-OUTPUT", "export to a folder, then upload it")
    assert refused(capsys, "export", url, "--format", "mds", "--link", "--output", "out")[0] == "TR-EXPORT-OPTION"
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_object_leaves_no_export(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, capsys: Capture
) -> None:
    url = upload(s3_server, "verbs-export-damaged", made.path)
    data = bytearray((made.path / "web" / "shard.00001.mds").read_bytes())
    data[-3] ^= 1
    s3_server.put("verbs-export-damaged", {"data/web/shard.00001.mds": bytes(data)})
    for name in EXPORTS:
        out = tmp_path / name
        assert main(["export", url, "--format", name, "--output", str(out), "--quiet"]) == DamageError.exit_code
        assert f"{url}/web/shard.00001.mds" in capsys.readouterr().err
        assert not out.exists()


def test_an_export_goes_on_over_what_networks_do(
    made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path, capsys: Capture
) -> None:
    proxy.faults.update({"web/shard.00000.mds": Fault("cut"), "code/shard.00000.segments": Fault("503", times=2)})
    assert result(capsys, "export", url, "--format", "megatron", "--output", tmp_path / "there")["written"]
    assert result(capsys, "export", made.path, "--format", "megatron", "--output", tmp_path / "here")["written"]
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


def test_texts_are_found_where_the_job_at_the_url_remembers_them(
    made: MadeDataset, s3_server: S3Server, proxy: FaultProxy, capsys: Capture
) -> None:
    """Only URLs count: a folder in it would be one of this machine, which the Dataset knows nothing of."""
    url = upload(s3_server, "verbs-texts", made.path)
    words = ("locate", url, "--grep", "reel")
    assert refused(capsys, *words)[0] == "TR-TEXT-ROOT"
    assert f"{url}/job.json" in refused_place(capsys, *words)
    remembered = {source: upload(s3_server, "verbs-texts", made.corpus / source, source) for source in ("web", "code")}
    s3_server.put("verbs-texts", {"data/job.json": json.dumps({"roots": remembered}).encode()})
    found = result(capsys, *words)
    assert found["hits"]
    assert found == result(capsys, "locate", made.path, "--grep", "reel")
    s3_server.put(
        "verbs-texts", {"data/job.json": json.dumps({"roots": {"web": "/", "code": "s3://a:b@c/d"}}).encode()}
    )
    assert refused(capsys, *words)[0] == "TR-TEXT-ROOT"


def refused_place(capsys: Capture, *words: object) -> str:
    main([*map(str, words), "--json"])
    return str(json.loads(capsys.readouterr().out)["error"]["place"])


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(made: MadeDataset, url: str, proxy: FaultProxy, tmp_path: Path) -> tuple[RunPaths, RunPaths]:
    """The same run over the folder and over the URL, 9 steps done."""
    pair = make_run(tmp_path, [made], name="here"), make_run(tmp_path, [made], name="there", urls=[url])
    for paths in pair:
        train(paths, 9)
    return pair


def roots(made: MadeDataset) -> list[str]:
    return [word for source in ("web", "code") for word in ("--root", f"{source}={made.corpus / source}")]


Question = Callable[[MadeDataset], tuple[object, ...]]
QUESTIONS: dict[str, Question] = {
    "locate-step": lambda made: ("locate", "RUN", "--step", 3),
    "locate-text": lambda made: ("locate", "RUN", "--step", 3, "--text", *roots(made)),
    "locate-position": lambda made: ("locate", "RUN", "--position", "5:30"),
    "locate-document": lambda made: ("locate", "RUN", "--document", f"{next(iter(made.documents)):016x}"),
    "locate-grep": lambda made: ("locate", "RUN", "--grep", "reel", *roots(made)),
    "locate-twice": lambda made: ("locate", "RUN", "--twice", "--stop-step", 40),
    "history": lambda made: ("history", "RUN"),
    "skip-document": lambda made: ("skip", "RUN", "--document", f"{next(iter(made.documents)):016x}", "--mode", "drop"),
    "skip-source": lambda made: ("skip", "RUN", "--source", "code", "--samples", "0:3", "--plan"),
    "locate-after-skip": lambda made: ("locate", "RUN", "--step", 12),
    "verify": lambda made: ("verify", "RUN"),
    "inspect": lambda made: ("inspect", "RUN"),
}


def test_runs_over_urls_answer_as_runs_over_folders(
    runs: tuple[RunPaths, RunPaths], made: MadeDataset, url: str, cache: Path, capsys: Capture
) -> None:
    for name, question in QUESTIONS.items():
        answers = []
        for paths in runs:
            words = [paths.root if word == "RUN" else word for word in question(made)]
            text = json.dumps(result(capsys, *words))
            text = text.replace(str(paths.root), "RUN").replace(f'"{url}"', '"../data"')
            answers.append(re.sub(r'1\d{9}\.\d+|"(?:[^"]*/)?data"', '""', text))
        assert answers[0] == answers[1], name
    assert not list(cached_files(cache))


def test_a_run_goes_over_to_a_url_and_from_one_to_another(
    runs: tuple[RunPaths, RunPaths], made: MadeDataset, other: MadeDataset, url: str, other_url: str, capsys: Capture
) -> None:
    here, there = runs
    assert refused(capsys, "remap", there.root, "--dataset", made.path)[0] == "TR-REMAP-SAME"
    assert refused(capsys, "remap", here.root, "--dataset", url)[0] == "TR-REMAP-SAME"
    for paths, target in ((here, other.path), (there, other_url)):
        planned = result(capsys, "remap", paths.root, "--dataset", target, "--plan")
        assert planned["written"] is False
        assert result(capsys, "remap", paths.root, "--dataset", target)["written"] is True
        train(paths, 6)
    for step in range(15):
        one, two = (result(capsys, "locate", paths.root, "--step", step) for paths in runs)
        assert one == two
        assert one["matches_ledger"] is True
    assert result(capsys, "diff", here.root, there.root)["same"] is True


def test_another_dataset_at_the_url_of_a_run_is_refused_with_the_next_command(
    made: MadeDataset, other: MadeDataset, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, capsys: Capture
) -> None:
    url = upload(s3_server, "verbs-replaced", made.path)
    paths = make_run(tmp_path, [made], urls=[url])
    train(paths, 3)
    upload(s3_server, "verbs-replaced", other.path)
    for words in (("locate", paths.root, "--step", 1), ("skip", paths.root, "--source", "web")):
        code, then = refused(capsys, *words)
        assert (code, then) == ("TR-RUN-DATASET", f"tokenreel remap {paths.root} --dataset {url}")
    assert result(capsys, "history", paths.root)["branches"]
    assert result(capsys, "remap", paths.root, "--dataset", url, code=3)["error"]["code"] == "TR-REMAP-UNKNOWN"


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("verb", ["history", "skip", "replay", "report", "remap", "rollback"])
def test_verbs_of_runs_say_that_a_url_is_none(
    verb: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    more = {
        "skip": ("--source", "web"),
        "replay": ("--steps", "1:2"),
        "remap": ("--dataset", url),
        "rollback": ("--to", "1"),
    }
    code, _ = refused(capsys, verb, url, *more.get(verb, ()))
    assert code.startswith(("TR-RUN", "TR-REPORT", "TR-USAGE")), code
    assert list(tmp_path.iterdir()) == []
