"""``tokenreel demo``: the whole story on text that every Python installation holds; no network, no GPU, no data.

Gathers real text, plants a fifth source of degenerate documents, builds a Dataset, trains a small model until the
planted source makes it spike, and shows what the tool found, cut and left behind. Each stage is the real verb in a
process of its own; a second call does nothing twice.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from .cli_options import Output, output_options
from .demo_corpus import CorpusCaps, Record, gather, write_source
from .demo_poison import planted
from .demo_story import Story, read_story, story_text
from .errors import ConfigError, JobError, RefusedError
from .files import write_atomic
from .settings import canonical_json, child_environment

__all__ = ["DemoSize", "demo", "prepare", "run_demo"]

_DEFAULT_SEED = 1
_SEED_LINE = re.compile(r"^(\s*seed: )17\b", re.MULTILINE)
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "stdlib": (".jsonl", ".jsonl.zst"),
    "packages": (".jsonl.zst", ".jsonl.zst"),
    "docs": (".jsonl.gz",),
    "meta": (".jsonl",),
    "planted": (".jsonl",),
}


@dataclass(frozen=True)
class DemoSize:
    """How large the demo is.

    Attributes:
        caps: of the real text. planted_documents: how many degenerate documents.
        build, train: dotted keys of the two configurations and the values that replace the templates'.
    """

    caps: CorpusCaps = field(default_factory=CorpusCaps)
    planted_documents: int = 480
    build: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


QUICK = DemoSize(
    caps=CorpusCaps(700_000, 700_000, 300_000, 400_000, package_bytes=60_000, file_bytes=20_000),
    planted_documents=160,
    build={
        "tokenizer.sentencepiece.train.vocab_size": 1024,
        "tokenizer.sentencepiece.train.sample_bytes": 300_000,
        "pack.seq_len": 128,
        "shards.size_bytes": 262_144,
    },
    train={
        "steps": 160,
        "run.threads": 1,
        "data.mixture.1.start": 1024,
        "model.dim": 64,
        "model.layers": 2,
        "model.heads": 2,
        "model.ffn": 192,
        "checkpoint.every_steps": 10,
        "evaluate.every_steps": 0,
        "spikes.detectors.warmup_steps": 60,
        "spikes.detectors.window_steps": 48,
        "spikes.attribution.baseline_segments": 400,
        "spikes.attribution.baseline_source_segments": 40,
    },
)
"""Small enough for a test; everything else is the same."""


def _template(name: str) -> str:
    """A shipped configuration: beside the packages in a clone, inside this package when installed."""
    here = Path(__file__).resolve().parent
    for folder in (here / "demo_configs", here.parent / "configs" / "demo"):
        path = folder / name
        if path.is_file():
            return path.read_text("utf-8")
    raise ConfigError("TR-DEMO-TEMPLATE", f"the installation lacks the demo's {name}", str(here))


def _configuration(name: str, seed: int, changes: Mapping[str, Any]) -> str:
    """The template with the seed put in and, for other sizes, keys replaced (which costs the comments)."""
    text = _SEED_LINE.sub(rf"\g<1>{seed}", _template(name))
    if not changes:
        return text
    import yaml

    tree = yaml.safe_load(text)
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            node = node[int(parent)] if isinstance(node, list) else node.setdefault(parent, {})
        node[last] = value
    return str(yaml.safe_dump(tree, sort_keys=False))


def _words(records: Sequence[Record]) -> list[str]:
    """Words of real documents, for the planted ones that repeat or shuffle words."""
    found = re.findall(r"[A-Za-z]{3,12}", " ".join(text[:2000] for _, text in records[:200]))
    return sorted(set(found))


def _require_text(sources: Mapping[str, Sequence[Record]], caps: CorpusCaps) -> None:
    """Refuse an installation that holds too little text to train on.

    Raises:
        JobError: a source has less than a quarter of its cap.
    """
    for name, records in sources.items():
        size, cap = sum(len(text.encode("utf-8")) for _, text in records), getattr(caps, f"{name}_bytes")
        if size < cap // 4:
            raise JobError(
                "TR-DEMO-TEXT",
                f"this Python installation holds too little text for source {name!r}: {size / 1e6:.1f} MB",
                sysconfig.get_paths()["stdlib" if name == "stdlib" else "purelib"],
                f"at least {cap / 4e6:.1f} MB; sources of the standard library and installed packages",
            )


def prepare(folder: Path, seed: int, size: DemoSize) -> dict[str, Any]:
    """Writes corpus and configurations, once.

    Returns:
        What is in ``demo.json``: seed and, per source, documents and bytes of text.

    Raises:
        RefusedError: the folder holds a demo of another seed or size.
    """
    shape = {"seed": seed, "quick": size == QUICK}
    stamp = folder / "demo.json"
    if stamp.exists():
        told: dict[str, Any] = json.loads(stamp.read_text("utf-8"))
        if {key: told.get(key) for key in shape} != shape:
            quick = " --quick" if size == QUICK else ""
            raise RefusedError(
                "TR-DEMO-OTHER",
                "this folder holds another demo",
                str(stamp),
                f"seed {told.get('seed')}" + (", quick" if told.get("quick") else ""),
                f"tokenreel demo --seed {seed} --folder {shlex.quote(f'{folder}-{seed}')}{quick}",
            )
        return told
    if folder.exists() and any(folder.iterdir()) and not (folder / "corpus").is_dir():
        raise RefusedError("TR-DEMO-FOLDER", "the folder holds other things", str(folder), "a new or empty folder")
    sources = gather(size.caps)
    _require_text(sources, size.caps)
    sources["planted"] = planted(seed, size.planted_documents, _words(sources["docs"]))
    counts = {
        name: {
            "documents": len(records),
            "text_bytes": write_source(folder / "corpus" / name, records, _SUFFIXES[name]),
        }
        for name, records in sources.items()
    }
    for name, changes in (("build.yaml", size.build), ("train.yaml", size.train)):
        write_atomic(folder / name, _configuration(name, seed, changes).encode("utf-8"))
    told = {**shape, "sources": counts}
    write_atomic(stamp, canonical_json(told) + b"\n")
    return told


def _verb(output: Output, *words: str) -> None:
    """Runs a verb of the real command line in a process of its own; its results are not shown, its progress is.

    Raises:
        JobError: it failed; what went wrong it has said itself.
    """
    output.note(f"\n$ tokenreel {shlex.join(words)}")
    quiet = ["--quiet"] if output.quiet else []
    child = subprocess.Popen(
        [sys.executable, "-m", "loader.cli", *words, *quiet], env=child_environment(), stdout=subprocess.DEVNULL
    )
    try:
        code = child.wait()
    except BaseException:
        child.terminate()  # training saves first, so that the same command goes on from there
        child.wait()
        raise
    if code:
        raise JobError(
            "TR-DEMO-STAGE",
            f"`tokenreel {words[0]}` ended with exit code {code}",
            words[1],
            None,
            f"tokenreel {shlex.join(words)}",
        )


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def run_demo(folder: Path, seed: int, size: DemoSize, output: Output) -> Story:
    """The whole demo in ``folder``.

    Raises:
        RefusedError: the folder holds something else. JobError: a stage failed.
    """
    output.note(f"Gathering text of this Python installation into {folder} ...")
    told = prepare(folder, seed, size)
    _verb(output, "build", str(folder / "build.yaml"))
    _verb(output, "train", str(folder / "train.yaml"))
    _verb(output, "report", str(folder / "run"))
    return read_story(folder, told)


@click.command()
@click.option("--seed", type=click.IntRange(0, 2**31), default=_DEFAULT_SEED, show_default=True, help="Of everything.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default="tokenreel-demo",
    show_default=True,
    help="Where to work.",
)
@click.option("--quick", is_flag=True, help="A tenth of the size, for a look or a test.")
@output_options
def demo(output: Output, seed: int, folder: str, quick: bool) -> None:
    """The whole story on text that every Python installation holds: no network, no GPU, no data.

    Real text and a planted source of degenerate documents are deduplicated, tokenised and packed; a small model trains
    until the planted source makes it spike; the tool names the documents, rolls back, cuts them and goes on.
    """
    signal.signal(signal.SIGTERM, _interrupted)  # or a stage would go on without us
    story = run_demo(Path(folder), seed, QUICK if quick else DemoSize(), output)
    output.result(story.to_json(), lambda: story_text(story))
    if not story.found and output.json:
        raise click.exceptions.Exit(1)  # the document says it: `found` is false
    if not story.found:
        raise JobError(
            "TR-DEMO-MISSED",
            f"the planted documents were not found (seed {seed})",
            str(Path(folder) / "run"),
            "at least 90 % of the planted tokens named",
            f"tokenreel history {shlex.quote(str(Path(folder) / 'run'))}",
        )
