"""Other tools' dedup of the benchmark's corpus, each in an environment of its own with pinned requirements.

    python benchmarks/dedup_peers.py [--folder FOLDER] [--venvs VENVS] [--documents N] [--quick] [PEER ...]

Environments are made at the first run from ``peers/<environment>.txt``, for text-dedup with Python 3.12, which it
needs. What a peer removed is judged by `benchmarks.dedup_truth`, never by itself. ``--documents`` cuts the corpus to
the families of file names that come first by hash, so that versions and translations stay together.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_corpus import DEFAULT_FOLDER, Corpus, ensure_corpus, family_rank

__all__ = ["DEFAULT_VENVS", "ENVIRONMENTS", "ensure_environment", "failure_of", "run_peer", "slice_corpus"]

DEFAULT_VENVS = Path("~/.cache/tokenreel-benchmarks/venvs").expanduser()
REQUIREMENTS = Path(__file__).with_name("peers")
ENVIRONMENTS = {
    "datasketch": ("datasketch", ""),
    "rensa": ("rensa", ""),
    "gaoya": ("gaoya", ""),
    "datatrove": ("datatrove", ""),
    "datatrove-14x8": ("datatrove", ""),
    "text-dedup": ("text-dedup", "3.12"),
    "text-dedup-checked": ("text-dedup", "3.12"),
}
"""Peer -> its environment and the Python that this needs ('' = the running one)."""


def run_peer(
    name: str, corpus: Corpus, venvs: Path = DEFAULT_VENVS, limit_documents: int | None = None
) -> dict[str, Any] | None:
    """Dedup the corpus, or a slice of it, with a peer.

    Returns what ``peers/run.py`` wrote (``cpu_s`` by phase, ``total_cpu_s`` without reading, ``peak_rss_mb``,
    ``text_mb``, ``removed`` ids), ``mb_per_cpu_s`` of each phase and of ``all``, and ``considered``: the ids of the
    slice, None for the whole corpus. None where the environment cannot be made or the peer fails; `failure_of` then
    has the reason.
    """
    python = ensure_environment(*ENVIRONMENTS[name], venvs)
    reason = venvs / f"{name}.failure.txt"
    if python is None:
        reason.write_text(failure_of(ENVIRONMENTS[name][0], venvs) or "", encoding="utf-8")
        return None
    files, considered = (corpus.files, None) if limit_documents is None else slice_corpus(corpus, limit_documents)
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        command = [str(python), str(REQUIREMENTS / "run.py"), name, str(result), scratch, *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(scratch))
        if done.returncode or not result.exists():
            reason.write_text(f"exit status {done.returncode}: {done.stderr[-2000:]}", encoding="utf-8")
            return None
        measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    reason.unlink(missing_ok=True)
    seconds = {**measured["cpu_s"], "all": measured["total_cpu_s"]}
    rates = {phase: measured["text_mb"] / s if s else None for phase, s in seconds.items()}
    return {"peer": name, **measured, "mb_per_cpu_s": rates, "considered": considered}


def failure_of(name: str, venvs: Path = DEFAULT_VENVS) -> str | None:
    """Why a peer or an environment has no result."""
    path = venvs / f"{name}.failure.txt"
    return path.read_text(encoding="utf-8") if path.exists() else None


def ensure_environment(name: str, version: str, venvs: Path = DEFAULT_VENVS) -> Path | None:
    """The Python of an environment that holds exactly the pinned requirements; None, with the reason in a file, where
    there is no Python of that version or the requirements cannot be installed."""
    pinned = REQUIREMENTS / f"{name}.txt"
    stamp = hashlib.sha256(pinned.read_bytes()).hexdigest()
    python, marker = venvs / name / "bin/python", venvs / name / "requirements.sha256"
    if marker.exists() and marker.read_text(encoding="utf-8") == stamp:
        return python
    venvs.mkdir(parents=True, exist_ok=True)
    reason = venvs / f"{name}.failure.txt"
    base = _interpreter(version) if version else sys.executable
    if base is None:
        reason.write_text(f"needs Python {version}, which is not on this machine", encoding="utf-8")
        return None
    commands = [
        [base, "-m", "venv", "--clear", str(venvs / name)],
        [str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", str(pinned)],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason.write_text(done.stderr[-2000:], encoding="utf-8")
            return None
    marker.write_text(stamp, encoding="utf-8")
    reason.unlink(missing_ok=True)
    return python


def slice_corpus(corpus: Corpus, limit_documents: int) -> tuple[list[Path], list[str]]:
    """A JSONL file of at most that many documents, in their order, and their ids; kept beside the corpus."""
    path = corpus.folder / f"slice-{limit_documents}.jsonl"
    ranked = []
    for number, record in enumerate(corpus.records()):
        source = record["id"].rpartition("-")[0]
        ranked.append((family_rank(source, record["path"]), number))
    chosen = {number for _, number in sorted(ranked)[:limit_documents]}
    records = [record for number, record in enumerate(corpus.records()) if number in chosen]
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")
    return [path], [record["id"] for record in records]


def _interpreter(version: str) -> str | None:
    """A Python of that version that starts, on PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    for path in filter(None, found):
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def _environment(scratch: str) -> dict[str, str]:
    """One thread everywhere, no hub, caches in the scratch folder."""
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS", "ARROW_NUM_THREADS")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": scratch, "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **dict.fromkeys(names, "1"), **offline}


def main() -> None:
    """Run peers, print what they cost and how the truth judges them."""
    from benchmarks.dedup_truth import judge, load_truth

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("peers", nargs="*")
    options = parser.parse_args()
    corpus = ensure_corpus(options.folder, options.quick)
    truth = load_truth(corpus)
    for name in options.peers or ENVIRONMENTS:
        result = run_peer(name, corpus, options.venvs, options.documents)
        if result is None:
            print(json.dumps({"peer": name, "failure": failure_of(name, options.venvs)}))
            continue
        judged = judge(truth, result["removed"], result["considered"])
        shown = {key: value for key, value in result.items() if key not in ("removed", "considered")}
        print(json.dumps({**shown, **judged}))


if __name__ == "__main__":
    main()
