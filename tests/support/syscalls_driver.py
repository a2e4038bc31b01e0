"""Sweeps of one small job with every stage, each in a process of its own: ``run_plan`` from a test.

``{"mode": "chain", "faults": [...], "share": "all"}`` fails at all points with each fault; ``"share": "each"`` at one
point of each kind of call in each stage, faults taking turns; ``"share": 5`` at so many random ones. ``"single"``: the
same from scratch each time. ``"random"``: at random calls of a job with two workers, whose order is never the same
twice. ``"other_device"``: a chain over what publishing does when the work folder is on another file system. ``"lost"``:
outputs of a finished job are taken away. ``"twins"`` and ``"orphans"``: see ``syscalls_race``. ``"job"``: one of
``syscalls_jobs.JOBS``. ``"match"``: only points whose call and path have this pattern. ``"broken"``: one of
``syscalls_broken.BROKEN``.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loader.settings import child_environment

__all__ = ["memory_folder", "run_plan"]


def memory_folder(fallback: Path) -> Path:
    """Where syncing costs nothing: the models know what was synced, the disk need not do it."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else fallback


def run_plan(folder: Path, limit_s: float = 1500, **plan: Any) -> dict[str, Any]:
    """Run a sweep; its report: ``points`` by call, ``visited``, ``attempts``, ``missed``, ``problems``."""
    tests = Path(__file__).resolve().parents[1]
    environment = child_environment(OMP_NUM_THREADS="1", LOGURU_DIAGNOSE="NO", LOGURU_BACKTRACE="NO")
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent)])
    with tempfile.TemporaryDirectory(prefix="crash-", dir=memory_folder(folder)) as place:
        command = [sys.executable, "-m", "support.syscalls_driver", json.dumps({**plan, "folder": place})]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (out + err)[-8000:]
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def _drive(plan: Mapping[str, Any]) -> dict[str, Any]:
    from .syscalls_broken import break_code
    from .syscalls_jobs import JOBS, warm_up
    from .syscalls_sweep import Sweep

    folder = Path(plan["folder"])
    mode, name = plan["mode"], plan.get("job", "build")
    workers = 1 if mode in ("chain", "single", "other_device", "lost") else 2
    for needed in ("build",) if name == "build" else ("build", name):
        warm_up(JOBS[needed](folder, workers), folder / needed, last=needed == name)
    break_code(plan.get("broken", ""))
    sweep = Sweep(folder / "job", JOBS[name](folder, workers), other_device=mode == "other_device")
    sweep.undisturbed()
    said, missed = _run(plan, sweep)
    return {
        "said": said,
        "points": dict(Counter(point.name for point in sweep.points)),
        "stages": sorted({point.stage for point in sweep.points}),
        "visited": {f: sum(got == f for _, got in sweep.visited) for f in plan.get("faults", ())},
        "visited_kinds": sorted({(p.stage, p.name) for p, _ in sweep.visited}),
        "kinds": sorted({(p.stage, p.name) for p in sweep.points}),
        "windows": {" ".join(there): count for there, count in sweep.windows.items()},
        "attempts": sweep.attempts,
        "missed": missed,
        "problems": sweep.problems,
    }


def _run(plan: Mapping[str, Any], sweep: Any) -> tuple[list[str], dict[str, Any]]:
    """What the plan says; what the jobs said, and the points that were not reached."""
    from .syscalls_race import orphan, twins

    mode, seed, share = plan["mode"], plan.get("seed", 0), plan.get("share", 0)
    said, missed, rng = list[str](), dict[str, Any](), random.Random(seed)
    if mode in ("chain", "other_device", "single"):
        points = [point for point in sweep.points if re.search(plan.get("match", ""), f"{point.name} {point.path}")]
        if sweep.other_device:
            points = [point for point in points if re.match(r"\.tmp-|out[/-]|out$|\.$", point.path)]
        for name, faults in _shares(points, plan["faults"], share, seed).items():
            if mode == "single":
                missed[name] = [point for point, fault in faults.items() if not sweep.single(point, fault, seed)]
            else:
                missed[name] = sorted(sweep.chain(faults, seed))
    elif mode == "lost":
        sweep.lost()
    else:
        for _ in range(share):
            if mode == "random":
                sweep.at_random(rng, plan["faults"])
            else:
                said += (twins if mode == "twins" else orphan)(sweep, rng)
    return said, missed


def _shares(points: Sequence[Any], faults: Sequence[str], share: str | int, seed: int) -> dict[str, dict[Any, str]]:
    """The chains to run: name -> point -> fault."""
    rng = random.Random(seed)
    if share == "all":
        return {fault: dict.fromkeys(points, fault) for fault in faults}
    if share == "each":
        groups: dict[tuple[str, str], list[Any]] = {}
        for point in points:
            groups.setdefault((point.stage, point.name), []).append(point)
        names = sorted({name for _, name in groups})
        turns = Counter[str]()
        chosen = {}
        for (_, name), group in groups.items():
            chosen[rng.choice(group)] = faults[(turns[name] + names.index(name)) % len(faults)]
            turns[name] += 1
        return {"each": chosen}
    return {"some": {point: rng.choice(faults) for point in rng.sample(list(points), min(int(share), len(points)))}}


if __name__ == "__main__":
    print(json.dumps(_drive(json.loads(sys.argv[1]))))
