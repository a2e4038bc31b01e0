"""What a training configuration needs of this machine beside packages: torch and its libraries, Datasets, room for
checkpoints. torch is asked in a process of its own: a broken one may end the process, and it takes seconds to import.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from loader.doctor.datasets import check_datasets
from loader.doctor.finding import Check, State
from loader.doctor.machine import check_disk, check_gpu, check_host, check_writable
from loader.errors import TokenreelError
from loader.order.skips import SkipList
from loader.run_config import build_plan
from loader.settings import Loaded, cache_folder, child_environment
from loader.stream.ahead import live_bytes
from loader.stream.store import StoreOptions, folder_of

from .config import TrainConfig
from .job import Job, open_job_sources, resolve_job
from .plan.report import TrainingPlan, plan_training, to_json
from .plan.request import Assumptions

__all__ = ["TORCH_FACTS", "check_plan", "check_torch", "training_checks"]

TORCH_FACTS = """
import json, torch
import torch.distributed as dist
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__,
    "built_for": torch.version.cuda,
    "cuda": cuda,
    "devices": torch.cuda.device_count() if cuda else 0,
    "bf16": torch.cuda.is_bf16_supported() if cuda else False,
    "nccl": dist.is_nccl_available(),
    "gloo": dist.is_gloo_available(),
    "cpu": torch.backends.cpu.get_cpu_capability(),
}))
"""
_TIMEOUT_S = 180


def _ask_torch() -> dict[str, Any] | Check:
    """What torch says of itself, or the line that says why it does not."""
    install = "pip install 'torch>=2.13,<2.15'"
    if importlib.util.find_spec("torch") is None:
        return Check("torch", "missing", "not installed: nothing can be trained", install)
    command = [sys.executable, "-c", TORCH_FACTS]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return Check("torch", "missing", f"import torch does not end within {_TIMEOUT_S} s", install)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Check("torch", "missing", f"cannot be imported: {last}", install)
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


def check_torch(device: str, processes: int) -> list[Check]:
    """torch, the device, and what processes talk over."""
    facts = _ask_torch()
    if isinstance(facts, Check):
        return [facts]
    built = f"CUDA {facts['built_for']}" if facts["built_for"] else "no CUDA"
    found = [Check("torch", "ok", f"{facts['version']}, built for {built}, CPU kernels {facts['cpu']}")]
    if device == "cuda":
        if not facts["cuda"]:
            message = f"torch sees no card (built for {built})"
            found.append(Check("cuda", "missing", message, "nvidia-smi; a torch wheel for this driver's CUDA"))
        else:
            found.append(Check("cuda", "ok", f"{facts['devices']} cards, bfloat16: {facts['bf16']}"))
    backend = "nccl" if device == "cuda" else "gloo"
    if facts[backend]:
        found.append(Check(backend, "ok", "in this torch"))
    elif processes > 1:
        found.append(Check(backend, "missing", f"this torch is built without {backend}", "the wheels of pytorch.org"))
    return found


def check_plan(plan: TrainingPlan, root: Path) -> list[Check]:
    """Room for checkpoints, and meshes that cannot work."""
    facts = to_json(plan)
    needed = facts["checkpoints"]["disk_bytes"]
    found = [check_disk("checkpoints", root, needed, "free space there, or a smaller checkpoint.keep_last")]
    for finding in plan.findings:
        state: State = "missing" if finding.fatal else "warn"
        found.append(Check(f"plan {finding.name}", state, finding.message, "tokenreel plan CONFIG"))
    return found


def training_checks(loaded: Loaded[TrainConfig], cards: int | None = None) -> list[Check]:
    """Everything that a training configuration needs beside packages and extras.

    Args:
        cards: processes in all, where torchrun starts them; None: ``run.processes``.
    """
    job = resolve_job(loaded)
    config, base = loaded.config, loaded.path.parent
    device, processes = str(config.run.device), cards or config.run.processes
    found = check_torch(device, processes)
    if device == "cuda":
        found.append(check_gpu(needed=True))
    if processes > 1:
        found.append(check_host(processes))
    mixture = {name for stage in job.config.data.mixture for name, weight in stage.weights.items() if weight}
    options = StoreOptions(job.config.run.cache, job.config.run.cache_bytes)
    found += check_datasets(base, config.data.datasets, config.validation, mixture, options)
    found.append(check_writable("run folder", job.paths.root))
    plan = plan_training(job, Assumptions(cards=cards))
    found += check_plan(plan, job.paths.root)
    if any(folder_of(one) is None for one in (*config.data.datasets, *config.validation)):
        found += _check_cache(job)
    return found


def _check_cache(job: Job) -> list[Check]:
    """Whether the cache can be written, and its limit in force: a shard that it cannot hold ends the run at once, live
    windows that it cannot hold make their shards be fetched again and again."""
    run = job.config.run
    cache = Path(run.cache) if run.cache is not None else cache_folder()
    writable = check_writable("run.cache", cache)
    if writable.state != "ok":
        return [writable]
    remedy = "another run.cache, on a larger local disk" if run.cache_bytes is None else "a larger run.cache_bytes"
    try:
        sources = open_job_sources(job)  # as the run would, so it is refused as that would be
        job.open(job.config.validation)
    except TokenreelError as error:
        if error.code != "TR-STORE-CACHE-SMALL":
            return [writable]  # the lines of the Datasets say it
        return [writable, Check("run.cache room", "missing", f"{error.message}: {error.expected}", remedy)]
    limit = StoreOptions(run.cache, run.cache_bytes).open_cache().limit_bytes()
    needed = live_bytes(build_plan(job.config.data, sources, SkipList()), sources)
    message = f"{limit:,} bytes may be kept in {cache}; the shards that are open at once have up to {needed:,}"
    if limit < needed:
        return [writable, Check("run.cache room", "warn", f"{message}: they are fetched again and again", remedy)]
    return [writable, Check("run.cache room", "ok", message)]
