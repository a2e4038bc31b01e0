"""Trials of the attribution benchmark: which windows, and their score tables, recorded under a folder.

A recorded base is one file: the rows of its baseline and of every window, so that a rule can be judged again in
seconds. Tuning and confirmation share neither base nor window. The windows with poison of two confirmation bases came
with the repository; this command records them, with the text of the machine at hand (``docs/attribution.md``):

    python benchmarks/spike_trials.py --out benchmarks/data/spike_scores.npz [--bases N] [--work FOLDER] [--quick]
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.spike_poison import KINDS
from benchmarks.spike_text import Text, load_text, small_text
from benchmarks.spike_world import Bench, Plan, Run
from train.spikes.attribute import SegmentColumns, concatenate
from train.spikes.score import score_batch

__all__ = [
    "BASELINE_STEPS",
    "BASE_STEPS",
    "CONFIRMATION",
    "RECORDED",
    "SHARES",
    "TUNING",
    "WORK",
    "Lab",
    "Recorded",
    "Size",
    "load_tables",
    "plans",
    "record",
    "save_tables",
    "trained",
]

BASE_STEPS, BASELINE_STEPS = 300, 100
TUNING, CONFIRMATION = (0,), (1, 10, 11)
"""Bases that thresholds were chosen on, and bases that they were not."""
SHARES = {"14 %": 0.25, "4-5 %": 0.08}
"""Share of the window's tokens -> share of its dirty half's."""
RECORDED = Path(__file__).resolve().parent / "data" / "spike_scores.npz"
WORK = Path("~/.cache/tokenreel-benchmarks/spikes").expanduser()
_RECORDED_BITS = 10
"""Of each float's mantissa that the file in the repository keeps."""
_NEW = ("c", "perl", "polish", "vimscript", "turkish")


@dataclass(frozen=True)
class Size:
    """Clean steps that a base is trained on, the last ones of them that are its baseline, and windows a group."""

    steps: int = BASE_STEPS
    baseline: int = BASELINE_STEPS
    windows: int | None = None


@dataclass(frozen=True)
class Lab:
    """The text, the folder that keeps what was trained and scored, who is told, and how much is done."""

    text: Text
    work: Path
    say: Callable[[str], None]
    size: Size = Size()

    def path(self, what: str, seed: int, end: str) -> Path:
        """A file of one base."""
        size = "" if self.size == Size() else f"-{self.size.steps}-{self.size.baseline}-{self.size.windows}"
        return self.work / f"{what}-{self.text.digest}-{seed}{size}{end}"


@dataclass(frozen=True)
class Recorded:
    """One window of one base: its name, the plan's group, and the rows of window and baseline."""

    seed: int
    group: str
    name: str
    columns: SegmentColumns


def _mixed_domains(number: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The new source's domain, and what is new inside of known sources; they differ from trial to trial."""
    new = _NEW[number % len(_NEW)]
    language = "turkish" if new == "polish" else "polish"
    code = next(domain for domain in ("perl", "c", "vimscript") if domain != new and (number % 2 or domain != "perl"))
    return new, (("man", language), ("code", code))


def plans(seed: int) -> list[tuple[str, str, Plan]]:
    """(group, name, plan) of one base: 26 windows with poison, 5 + 5 of sources that change whole."""
    out: list[tuple[str, str, Plan]] = []
    for g, (group, share) in enumerate(SHARES.items()):
        ways = [((kind,), "scattered", kind) for kind in KINDS]
        ways += [(tuple(KINDS), "scattered", "mixed"), (tuple(KINDS), "planted", "planted mixed")]
        ways.append(((tuple(KINDS)[seed % len(KINDS)],), "planted", "planted one kind"))
        for i, (kinds, place, name) in enumerate(ways):
            new, within = _mixed_domains(seed + i)
            out.append((group, name, Plan(kinds, share, place, 100 * seed + 20 * g + i, new, within, 0.03)))
    for i, source in enumerate(("english", "code", "man", "intl", "math")):
        kinds = tuple(KINDS) if (seed + i) % 2 else (tuple(KINDS)[(seed + 3 * i) % len(KINDS)],)
        new, within = _mixed_domains(seed + i)
        name = f"{source}: {'mixed' if len(kinds) > 1 else kinds[0]}"
        out.append(("whole source bad", name, Plan(kinds, 0, source, 100 * seed + 60 + i, new, within, 0.03)))
    shifts = (("code", "c"), ("code", "perl"), ("man", "polish"), ("english", "turkish"), ("code", "vimscript"))
    for i, (source, domain) in enumerate(shifts):
        plan = Plan((), 0, source, 100 * seed + 80 + i, "", (), 0, domain)
        out.append(("whole source shifts", f"{source}: {domain}", plan))
    return out


def trained(lab: Lab, seed: int) -> tuple[Bench, Run]:
    """A base after its clean steps; kept under ``lab.work``, with a checkpoint from before the baseline."""
    bench, run = Bench(lab.text, seed), Run(seed, lab.text.tokenizer.vocab_size)
    path = lab.path("base", seed, ".pt")
    if path.exists():
        run.load(torch.load(path)["last"])
        return bench, run
    kept, start = {}, time.process_time()
    for batch in bench.clean(lab.size.steps):
        loss = run.step(batch)
        if batch.step == lab.size.steps - lab.size.baseline - 1:
            kept["older"] = run.tensors()
        if batch.step % 50 == 49:
            lab.say(f"base {seed} step {batch.step + 1} loss {loss:.2f} CPU {time.process_time() - start:.0f} s")
    kept["last"] = run.tensors()
    lab.work.mkdir(parents=True, exist_ok=True)
    torch.save(kept, path)
    return bench, run


def record(lab: Lab, seed: int, chosen: Sequence[str] = (), old: bool = False) -> list[Recorded]:
    """The windows of one base, of all groups or of ``chosen`` ones, scored, from ``lab.work`` where they are recorded.

    What this machine has no text for is left out. With ``old`` the checkpoint is older than the baseline: neither
    baseline nor window has been trained on.
    """
    groups = tuple(chosen) or (*SHARES, "whole source bad", "whole source shifts")
    known = [(group, name, plan) for group, name, plan in plans(seed) if _possible(lab.text, plan)]
    paths = {group: _path(lab, seed, group, old) for group in groups if any(g == group for g, _, _ in known)}
    missing = [group for group, path in paths.items() if not path.exists()]
    if missing:
        size, (bench, run) = lab.size, trained(lab, seed)
        if old:
            run.load(torch.load(lab.path("base", seed, ".pt"))["older"])
        token_bytes, frozen = lab.text.token_bytes(), run.frozen()
        start = time.process_time()
        batches = bench.clean(size.steps)[-size.baseline :]
        baseline = concatenate([score_batch(frozen, batch, token_bytes, True) for batch in batches])
        lab.say(f"base {seed} baseline {len(baseline)} segments CPU {time.process_time() - start:.0f} s")
        for group in missing:
            wanted = [(name, plan) for g, name, plan in known if g == group]
            tables = [
                Recorded(
                    seed, group, name, concatenate([baseline, *(score_batch(frozen, b, token_bytes, False) for b in w)])
                )
                for name, w in ((name, bench.window(size.steps, plan)) for name, plan in wanted[: size.windows])
            ]
            save_tables(paths[group], tables, lab.text.digest)
            lab.say(f"base {seed} {group}: {len(tables)} windows CPU {time.process_time() - start:.0f} s")
    return [one for path in paths.values() for one in load_tables(path)]


def _possible(text: Text, plan: Plan) -> bool:
    return (plan.place in ("scattered", "planted") or plan.place in text.documents) and (
        not plan.shift or plan.shift in text.innocents
    )


def _path(lab: Lab, seed: int, group: str, old: bool) -> Path:
    return lab.path("scores", seed, f"-{group.replace(' ', '').replace('%', '')}{'-old' if old else ''}.npz")


def save_tables(path: Path, windows: Sequence[Recorded], digest: str = "", bits: int = 23) -> None:
    """Windows of any number of bases in one file; each base's baseline once. Floats keep ``bits`` of their mantissa."""
    parts: list[SegmentColumns] = []
    for seed in dict.fromkeys(one.seed for one in windows):
        mine = [one.columns for one in windows if one.seed == seed]
        parts += [_rows(mine[0], mine[0].baseline_S), *(_rows(c, ~c.baseline_S) for c in mine)]
    whole = concatenate(parts)
    arrays = {f.name: getattr(whole, f.name) for f in fields(whole)}
    arrays = {k: _short(a, bits) if a.dtype == np.float64 else a for k, a in arrays.items()}
    np.savez_compressed(
        path,
        seeds=np.array([one.seed for one in windows]),
        names=np.array([one.name for one in windows]),
        groups=np.array([one.group for one in windows]),
        sizes=np.array([len(part) for part in parts]),
        digest=np.array(digest),
        **arrays,
    )


def _short(values: NDArray[np.float64], bits: int) -> NDArray[np.float32]:
    """Floats of 32 bits, the last of the mantissa 0."""
    dropped = 23 - bits
    raw = values.astype(np.float32).view(np.uint32)
    return (((raw + np.uint32((1 << dropped) >> 1)) >> dropped) << dropped).astype(np.uint32).view(np.float32)


def load_tables(path: Path = RECORDED) -> list[Recorded]:
    """What ``save_tables`` wrote (default: the file in the repository, by ``--out``); each window comes with its base's
    baseline."""
    with np.load(path) as file:
        arrays = {f.name: file[f.name] for f in fields(SegmentColumns)}
        stops = np.concatenate([[0], np.cumsum(file["sizes"])])
        seeds, names, groups = file["seeds"].tolist(), file["names"].tolist(), file["groups"].tolist()
    whole = SegmentColumns(**{k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in arrays.items()})
    out: list[Recorded] = []
    part, base, seen = 0, slice(0, 0), None
    for seed, name, group in zip(seeds, names, groups, strict=True):
        if seed != seen:
            base, seen, part = slice(stops[part], stops[part + 1]), seed, part + 1
        rows = np.r_[base, stops[part] : stops[part + 1]]
        out.append(Recorded(seed, group, name, _rows(whole, rows)))
        part += 1
    return out


def _rows(c: SegmentColumns, rows: NDArray[np.bool_] | NDArray[np.int64]) -> SegmentColumns:
    return SegmentColumns(**{f.name: getattr(c, f.name)[rows] for f in fields(c)})


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--bases", type=int, default=2, help="confirmation bases, one after the other")
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--quick", action="store_true", help="hardly trained bases on little text, a window a group")
    options = parser.parse_args()
    say = functools.partial(print, file=sys.stderr, flush=True)
    if options.quick:
        lab = Lab(small_text(), options.work, say, Size(4, 2, 1))
    else:
        lab = Lab(load_text(options.work), options.work, say)
    windows = [one for seed in CONFIRMATION[: options.bases] for one in record(lab, seed, tuple(SHARES))]
    save_tables(options.out, windows, lab.text.digest, _RECORDED_BITS)


if __name__ == "__main__":
    main()
