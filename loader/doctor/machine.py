"""This machine: limits, memory for collectives, names, ports, clock, processor, GPU. Standard library alone."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from ..errors import ConfigError
from .finding import Check, State

__all__ = [
    "MASTER_PORT",
    "check_clock",
    "check_disk",
    "check_gpu",
    "check_host",
    "check_open_files",
    "check_port",
    "check_processor",
    "check_shadowing",
    "check_shared_memory",
    "check_writable",
    "nearest_folder",
]

MASTER_PORT = 29_500
"""torchrun's default."""
_PACKAGES = ("loader", "dataprep", "train")
_FEW_FILES, _ENOUGH_FILES = 256, 4096
_SHARED_BYTES = 1 << 30
_TIMEOUT_S = 10.0
_CLOCK_SKEW_S = 60.0


def check_open_files() -> Check:
    """The limit on open files: every shard that is live is one, every process keeps sockets to all others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _ENOUGH_FILES:
        return Check("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}")
    shown = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    most = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    state: State = "missing" if soft < _FEW_FILES else "warn"
    return Check("open files", state, f"{soft:,} (may be raised to {shown})", f"ulimit -n {most}")


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Check:  # noqa: S108 - looked at, not written
    """NCCL and gloo between processes of one machine; the loader itself uses none."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("shared memory", "warn", f"{error.strerror}: NCCL falls back to slower ways", "mount tmpfs there")
    if free < _SHARED_BYTES:
        return Check("shared memory", "warn", f"{free / 1e6:,.0f} MB free, NCCL wants 1 GB", "docker run --shm-size=8g")
    return Check("shared memory", "ok", f"{free / 1e9:,.1f} GB free")


def _resolved(name: str) -> str | None:
    """The host's address, None if it has none or nobody answers in time."""
    found: list[str] = []

    def ask() -> None:
        try:
            found.append(socket.gethostbyname(name))
        except OSError:
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return found[0] if found else None


def check_host(processes: int = 1) -> Check:
    """torchrun's rendezvous and gloo resolve the host's own name."""
    name = socket.gethostname()
    address = _resolved(name)
    if address is None:
        state: State = "missing" if processes > 1 else "warn"
        command = f"add a line for {name} to /etc/hosts, or torchrun --rdzv-endpoint=127.0.0.1:0"
        return Check("host name", state, f"{name} resolves to nothing", command)
    return Check("host name", "ok", f"{name} is {address}")


def check_port(port: int = MASTER_PORT) -> Check:
    """The port that torchrun takes when it is told none."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            message = f"{port} cannot be taken: {error.strerror}"
            return Check("port", "warn", message, f"torchrun --master-port {port + 1}, or --rdzv-endpoint=127.0.0.1:0")
    return Check("port", "ok", f"{port} is free")


def check_clock(folder: Path) -> Check:
    """This clock against that of the file system below ``folder``: object stores refuse a quarter of an hour."""
    probe = nearest_folder(folder)
    newest = Path(__file__).stat().st_mtime
    now = time.time()
    if now < newest - _CLOCK_SKEW_S:
        message = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC lies before these very files"
        return Check("clock", "warn", message, "timedatectl set-ntp true")
    try:
        path = probe / f".tokenreel-clock-{os.getpid()}"
        path.touch()
        skew = path.stat().st_mtime - time.time()
        path.unlink()
    except OSError:
        return Check("clock", "ok", "not compared: the folder cannot be written")
    if abs(skew) > _CLOCK_SKEW_S:
        return Check("clock", "warn", f"{skew:+.0f} s from the file system's", "timedatectl set-ntp true")
    return Check("clock", "ok", f"{skew:+.2f} s from the file system's")


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above that exists."""
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def check_writable(name: str, folder: Path) -> Check:
    """Whether files can be made in ``folder``, or in what exists above it; a probe is made and removed."""
    place = nearest_folder(folder)
    probe = place / f".tokenreel-doctor-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return Check(name, "missing", f"{place}: {error.strerror}", f"chown or chmod {place}, or name another folder")
    return Check(name, "ok", f"{folder} can be written")


def check_disk(name: str, folder: Path, needed_bytes: int, remedy: str) -> Check:
    """Whether the file system below ``folder`` has room."""
    try:
        free = shutil.disk_usage(nearest_folder(folder)).free
    except OSError as error:
        return Check(name, "warn", f"{folder}: {error.strerror}", remedy)
    message = f"{free / 1e9:,.1f} GB free, {needed_bytes / 1e9:,.1f} GB needed in {folder}"
    if free < needed_bytes:
        return Check(name, "missing", message, remedy)
    return Check(name, "warn" if free < 1.2 * needed_bytes else "ok", message, remedy if free < 1.2 * needed_bytes
                 else None)  # fmt: skip


def check_processor(info: Path = Path("/proc/cpuinfo")) -> Check:
    """Whether the processor multiplies bfloat16; without it bf16 on the CPU is several times slower than fp32."""
    try:
        flags = set(info.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return Check("bfloat16", "ok", f"not known on {sys.platform}")
    found = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    if found:
        return Check("bfloat16", "ok", f"in hardware ({', '.join(found)})")
    return Check("bfloat16", "warn", "the CPU converts every product: bf16 is slow here", "--set precision=fp32")


def check_gpu(needed: bool) -> Check:
    """The driver and its cards, as nvidia-smi shows them."""
    command = shutil.which("nvidia-smi")
    state: State = "missing" if needed else "ok"
    install = "install the NVIDIA driver, or --set run.device=cpu" if needed else None
    if command is None:
        return Check("gpu", state, "no nvidia-smi: training runs on the CPU", install)
    query = [command, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("gpu", state, f"nvidia-smi does not answer: {type(error).__name__}", install)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return Check("gpu", state, f"nvidia-smi: {(done.stderr or done.stdout).strip()[:200] or 'no card'}", install)
    return Check("gpu", "ok", f"{len(lines)} x {lines[0]}")


def check_shadowing(folder: Path) -> list[Check]:
    """Files of the user's that would be imported in place of the three packages."""
    from ..cli import check_packages

    try:
        check_packages()
    except ConfigError as error:
        return [Check("packages' own", "missing", f"{error.message}: {error.place}", error.next_command)]
    own = Path(__file__).resolve().parents[2]
    found = []
    for place in dict.fromkeys((Path.cwd(), folder.absolute())):
        names = [name for name in _PACKAGES if (place / f"{name}.py").is_file() or (place / name).is_dir()]
        if names and place.resolve() != own and not sys.flags.safe_path:
            message = f"{', '.join(names)} in {place}: python -m and torchrun started there import them"
            found.append(Check("packages' own", "warn", message, "PYTHONSAFEPATH=1 torchrun -m train.main ..."))
    return found or [Check("packages' own", "ok", str(own))]
