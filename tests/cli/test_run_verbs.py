"""``locate``, ``skip`` and ``history`` as typed: results on stdout, exit codes, nothing of torch imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, roll_back, train

from loader.cli import main
from loader.order import SkipEntry
from loader.run_folder import HALF_NAME
from loader.run_view import open_run
from loader.runs import RunPaths, lock_run
from loader.settings import child_environment


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("verbs"), DatasetSpec(documents={"web": 30, "code": 12}, seq_len=40))


@pytest.fixture
def run(made: MadeDataset, tmp_path: Path) -> RunPaths:
    paths = make_run(tmp_path, [made])
    train(paths, 5)
    return paths


def _call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    out, err = capsys.readouterr()
    return int(code or 0), out, err


def _json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = _call(capsys, *arguments, "--json")
    assert code == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


def test_locate_step_document_grep_position(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    step = _json(capsys, "locate", run.root, "--step", 3)
    assert (step["step"], step["consumed"], step["matches_ledger"]) == (3, True, True)
    assert len(step["samples"]) == 8
    document = step["samples"][0]["segments"][0]["document"]
    assert 3 in _json(capsys, "locate", run.root, "--document", document)["steps"]
    positions = _json(capsys, "locate", run.root, "--position", "24:32")
    assert [sample["position"] for sample in positions["samples"]] == list(range(24, 32))
    words = made.documents[int(document, 16)].text.split()[0]
    hits = _json(capsys, "locate", run.root, "--grep", words, "--steps", "3:4")["hits"]
    assert {hit["step"] for hit in hits} == {3}
    places = _json(capsys, "locate", made.path, "--document", document)
    assert places["document"] == document
    assert _json(capsys, "locate", made.path, "--grep", words)["hits"]
    with_text = _json(capsys, "locate", run.root, "--step", 3, "--text")
    text = with_text["samples"][0]["segments"][0]["text"]
    assert text.strip("\ufffd") in made.documents[int(document, 16)].text


def test_a_run_without_a_step_knows_which_documents_there_are(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was read yet, and a document that is held is none the less told from one that is not."""
    run = make_run(tmp_path, [made])
    document = f"{next(iter(made.documents)):016x}"
    assert _json(capsys, "locate", run.root, "--document", document)["steps"] == []
    assert _json(capsys, "locate", run.root, "--document", document, "--stop-step", 40)["steps"]
    code, out, err = _call(capsys, "locate", run.root, "--document", "0123456789abcdef")
    assert (code, out) == (2, "")
    assert "TR-LOOKUP-DOCUMENT" in err


def test_text_output_is_readable(made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    document = next(iter(made.documents))
    for arguments, needle in (
        (["locate", run.root, "--step", 1, "--text"], "step 1: positions 8 .. 16, as recorded"),
        (["locate", run.root, "--position", "3"], "position 3"),
        (["locate", run.root, "--document", f"{document:016x}", "--stop-step", 40], f"document {document:016x}"),
        (["locate", run.root, "--grep", "reel"], "hits in"),
        (["locate", made.path, "--document", f"{document:016x}"], "shard 0 sample"),
        (["history", run.root], "attempt 0: steps 0 .. 5"),
        (["skip", run.root, "--source", "code", "--plan"], "would be entry 000001: mask source code"),
    ):
        code, out, err = _call(capsys, *arguments)
        assert code == 0, err
        assert needle in out
    assert open_run(run.root).entries == ()


def test_what_the_files_say_is_printed_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = make_dataset(tmp_path, DatasetSpec(texts={"web": ["\x1b[2J bell \x07 \u202e backwards"] * 3}, seq_len=40))
    run = make_run(tmp_path, [evil], global_batch=1)
    code, out, _ = _call(capsys, "locate", run.root, "--step", 0, "--text")
    assert code == 0
    assert "bell" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


@pytest.mark.parametrize(
    ("arguments", "kind", "mode"),
    [
        (["--steps", "7:9"], "positions", "drop"),
        (["--positions", "60:61"], "positions", "drop"),
        (["--source", "code"], "source", "mask"),
        (["--source", "code", "--samples", "0:3"], "samples", "mask"),
        (["--source", "code", "--samples", "0:3", "--mode", "drop"], "samples", "drop"),
    ],
)
def test_skip_appends_an_entry_from_the_next_position_on(
    run: RunPaths, capsys: pytest.CaptureFixture[str], arguments: list[str], kind: str, mode: str
) -> None:
    before = open_run(run.root)
    result = _json(capsys, "skip", run.root, *arguments, "--reason", "noise")
    assert (result["number"], result["written"]) == (1, True)
    (entry,) = open_run(run.root).entries
    assert (entry.kind, entry.mode, entry.stamp, entry.reason) == (kind, mode, before.next_position, "noise")
    assert result["entry"] == entry.to_json()
    after = train(run, 4)
    changed = after.ledger_N["token_digest"][:5] != before.ledger_N["token_digest"]
    assert not changed.any()
    if arguments[0] == "--steps":
        assert _json(capsys, "locate", run.root, "--position", "56:72")["cut"] == list(range(56, 72))
    history = _json(capsys, "history", run.root)
    assert [skip["number"] for skip in history["skips"]] == [1]
    assert [event["kind"] for event in history["events"]] == ["stop", "skip", "stop"]


@pytest.mark.parametrize("mode", ["mask", "drop"])
def test_skip_documents_and_print_what_goes_with_them(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    web = [document for document in made.documents.values() if document.source == "web"][:3]
    options = [part for document in web for part in ("--document", f"{document.id:016x}")]
    result = _json(capsys, "skip", run.root, *options, "--mode", mode)
    collateral = result["collateral"]
    assert collateral["documents"] == 3
    assert (collateral["other_tokens"] > 0) == (mode == "drop")
    view = train(run, 30)
    for document in web:
        found = _json(capsys, "locate", run.root, "--document", f"{document.id:016x}")["readings"]
        later = [reading for reading in found if reading["position"] >= 40]
        assert all(reading["masked"] for reading in later)
        assert bool(later) == (mode == "mask")
    assert view.num_steps == 35


@pytest.mark.parametrize(
    "question",
    [
        ["--positions", "60:61"],
        ["--source", "code"],
        ["--source", "code", "--samples", "0:3"],
        ["--source", "code", "--samples", "0:3", "--mode", "drop"],
        ["--document", "DOCUMENT"],
        ["--document", "DOCUMENT", "--mode", "drop"],
    ],
)
def test_what_is_cut_already_is_not_cut_again(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str], question: list[str]
) -> None:
    document = f"{next(iter(made.documents)):016x}"
    words = [document if word == "DOCUMENT" else word for word in question]
    first = _json(capsys, "skip", run.root, *words)
    tokens = first["collateral"]["tokens"]
    assert (first["number"], first["written"], first["new_tokens"], first["cut_already_by"]) == (1, True, tokens, [])
    files, events = sorted(run.skips.iterdir()), run.events.read_bytes()
    for more in ((), ("--plan",)):
        code, out, err = _call(capsys, "skip", run.root, *words, *more)
        assert (code, err) == (0, "")
        assert out == f"nothing to add: entry 000001 cut all of its {tokens:,} tokens already\n"
    again = _json(capsys, "skip", run.root, *words)
    assert (again["number"], again["written"], again["new_tokens"], again["cut_already_by"]) == (None, False, 0, [1])
    assert (sorted(run.skips.iterdir()), run.events.read_bytes()) == (files, events)


def test_of_what_is_partly_cut_the_new_tokens_are_told(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the sizes that each alone is said to have, across kinds of entries and of two modes."""
    one, two = [f"{document.id:016x}" for document in made.documents.values() if document.source == "web"][:2]
    code = _json(capsys, "skip", run.root, "--source", "code", "--samples", "0:3", "--plan")["collateral"]["tokens"]
    sizes = [_json(capsys, "skip", run.root, "--document", each, "--plan")["new_tokens"] for each in (one, two)]
    _json(capsys, "skip", run.root, "--document", one)
    both = ["skip", run.root, "--document", one, "--document", two]
    told = _json(capsys, *both, "--plan")
    assert (told["collateral"]["tokens"], told["new_tokens"], told["cut_already_by"]) == (sum(sizes), sizes[1], [1])
    _, out, _ = _call(capsys, *both)
    assert f"{sizes[1]:,} of these tokens are new; 000001 cut the others already" in out
    dropped = _json(capsys, *both, "--mode", "drop")
    assert (dropped["number"], dropped["new_tokens"]) == (3, sum(sizes)), "to drop what was masked moves the rest"
    assert _json(capsys, *both)["cut_already_by"] == [1, 2]
    _json(capsys, "skip", run.root, "--source", "code", "--samples", "0:3", "--mode", "drop")
    masked = _json(capsys, "skip", run.root, "--source", "code", "--samples", "2:6", "--plan")
    rest = _json(capsys, "skip", run.root, "--source", "code", "--samples", "3:6", "--plan")["collateral"]["tokens"]
    assert (masked["new_tokens"], masked["cut_already_by"]) == (rest, [4])
    whole = _json(capsys, "skip", run.root, "--source", "code")
    assert whole["new_tokens"] == whole["collateral"]["tokens"] - code


def test_an_entry_that_acts_from_later_on_covers_nothing_before(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _json(capsys, "skip", run.root, "--source", "code")["number"] == 1
    roll_back(run, 2, SkipEntry("positions", "drop", 16, None, ((20, 22),)))
    again = _json(capsys, "skip", run.root, "--source", "code")
    assert (again["number"], again["written"], again["cut_already_by"]) == (3, True, [])
    beside = _json(capsys, "skip", run.root, "--positions", "20:30", "--plan")
    assert beside["cut_already_by"] == [2]
    alone = _json(capsys, "skip", run.root, "--positions", "22:30", "--plan")
    assert beside["new_tokens"] == alone["new_tokens"] == alone["collateral"]["tokens"]


def test_history_shows_branches_and_cuts(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    roll_back(run, 2, SkipEntry("source", "mask", 16, "web", reason="bad source"))
    train(run, 3)
    history = _json(capsys, "history", run.root)
    assert [(b["branch"], b["parent"], b["from_step"]) for b in history["branches"]] == [(0, None, 0), (1, 0, 2)]
    assert [skip["branch"] for skip in history["skips"]] == [1]
    code, out, _ = _call(capsys, "history", run.root)
    assert code == 0
    assert "branch 1 from branch 0 at step 2" in out
    assert "cut 000001: mask source web, from position 16 on (bad source)" in out
    trunk = _json(capsys, "locate", run.root, "--step", 4, "--branch", 0)
    now = _json(capsys, "locate", run.root, "--step", 4)
    assert trunk["matches_ledger"] is now["matches_ledger"] is True
    assert trunk["token_digest"] != now["token_digest"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["locate", "RUN"], 2, "exactly one of"),
        (["locate", "RUN", "--step", "1", "--grep", "x"], 2, "exactly one of"),
        (["locate", "RUN", "--document", "xyz"], 2, "16 hex digits"),
        (["locate", "RUN", "--document", "0123456789abcdef"], 2, "no Dataset holds"),
        (["locate", "RUN", "--position", "9:3"], 2, "no range"),
        (["locate", "RUN", "--step", "1", "--branch", "5"], 2, "no branch 5"),
        (["locate", "RUN", "--position", "68719476735:68719476737"], 2, "below 2^36"),
        (["locate", "RUN", "--step", "9" * 30], 2, "no step"),
        (["locate", "RUN", "--document", "0123456789abcdef", "--stop-step", "9" * 30], 2, "no step"),
        (["locate", "RUN", "--grep", "x", "--steps", "0:" + "9" * 12], 2, "no step"),
        (["locate", "RUN", "--step", "1", "--steps", "1:2"], 2, "--steps goes with --grep"),
        (["locate", "RUN", "--step", "1", "--stop-step", "2"], 2, "--stop-step goes with --document"),
        (["locate", "RUN", "--grep", "x", "--text"], 2, "--text goes with --step"),
        (["locate", "DATA", "--grep", "x", "--branch", "0"], 2, "--branch goes with the folder of a run"),
        (["locate", "DATA", "--step", "1"], 2, "no steps"),
        (["locate", "NOTHING", "--step", "1"], 2, "no Dataset"),
        (["locate", "RUN", "--document", "0123456789abcdef"], 2, "no Dataset holds document 0123456789abcdef"),
        (["locate", "RUN", "--document", "0123456789abcdef", "--stop-step", "0"], 2, "no Dataset holds document"),
        (["history", "NOTHING"], 2, "no run"),
        (["skip", "NOTHING", "--source", "web"], 2, "no run"),
        (["skip", "RUN"], 2, "exactly one of"),
        (["skip", "RUN", "--steps", "7:9", "--source", "web"], 2, "exactly one of"),
        (["skip", "RUN", "--samples", "1:2"], 2, "exactly one of"),
        (["skip", "RUN", "--steps", "7:9", "--mode", "mask"], 2, "cannot be masked"),
        (["skip", "RUN", "--steps", "1:9"], 4, "read already"),
        (["skip", "RUN", "--steps", "7:" + "9" * 30], 2, "no step"),
        (["skip", "RUN", "--positions", "40:68719476736"], 2, "at most 16,777,216"),
        (["skip", "RUN", "--positions", "39:50"], 4, "rollback"),
        (["skip", "RUN", "--source", "mars"], 2, "no source"),
        (["skip", "RUN", "--source", "web", "--samples", "0:100000"], 2, "samples"),
        (["skip", "RUN", "--source", "web", "--mode", "drop"], 4, "drops all"),
        (["skip", "RUN", "--document", "0123456789abcdef"], 2, "holds 0123456789abcdef"),
    ],
)
def test_mistakes_are_explained(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    places = {"RUN": run.root, "DATA": made.path, "NOTHING": made.path.parent}
    got, out, err = _call(capsys, *(places.get(argument, argument) for argument in arguments))
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert open_run(run.root).entries == ()


def test_damage_is_exit_3(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.ledger / "0" / "0.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    code, _, err = _call(capsys, "locate", run.root, "--step", 0)
    assert code == 3
    assert "0.bin record 0" in err


def test_a_run_that_is_being_trained_is_not_cut(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    with lock_run(run):
        code, _, err = _call(capsys, "skip", run.root, "--source", "web")
        assert (code, "another process" in err) == (4, True)
        assert _json(capsys, "locate", run.root, "--step", 0)["matches_ledger"] is True


def test_looking_up_imports_nothing_heavy(run: RunPaths) -> None:
    script = (
        "import sys; from loader.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'numba', 'datatrove', 'streaming', 'pyarrow'} & set(sys.modules);"
        "assert not code and not heavy, heavy"
    )
    for arguments in (["locate", str(run.root), "--step", "1", "--json"], ["history", str(run.root)]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True,
            text=True,
            env=child_environment(),
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_folder_that_is_half_replaced_by_a_newer_upload_is_changed_by_nobody(
    made: MadeDataset, run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.root / HALF_NAME).write_text("{}")
    before = {path: path.read_bytes() for path in run.root.rglob("*.json")}
    verbs = (
        ["skip", run.root, "--source", "code"],
        ["rollback", run.root, "--to", 2],
        ["remap", run.root, "--dataset", made.path],
    )
    for verb in verbs:
        code, _, err = _call(capsys, *verb)
        assert (code, "TR-RUN-HALF" in err) == (3, True), (verb, err)
    assert {path: path.read_bytes() for path in run.root.rglob("*.json")} == before
