"""How much memory a process and its device use, from counters that the host holds: no device is asked or waited for.

Host: the resident set of this process, and how full the machine is: by its cgroup's limit if it has one, by
``MemAvailable`` otherwise. Device: what torch's allocator has reserved and has had in use at most, as it counts itself;
what other libraries take beside it (NCCL, cuBLAS) is not in there. The device's part never ran where there is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DeviceCounters", "MemoryMeter", "MemoryUse", "cuda_counters", "host_share", "resident_bytes"]

_SAMPLE_S = 1.0


@dataclass(frozen=True)
class MemoryUse:
    """One look at memory.

    Attributes:
        rss_bytes: resident in this process; 0 where the system does not tell.
        host_share: of the machine's (or container's) memory that is in use by anybody; None where nobody tells.
        device_peak_bytes: most that tensors had at once. device_share: reserved by torch, of the device's memory.
        device_use: share of the last second in which the device computed anything.
    """

    rss_bytes: int = 0
    host_share: float | None = None
    device_peak_bytes: int | None = None
    device_share: float | None = None
    device_use: float | None = None

    def line(self) -> dict[str, Any]:
        """As a step's line holds it; what there is not is left out."""
        found: dict[str, Any] = {
            "rss_bytes": self.rss_bytes,
            "host_memory_share": self.host_share,
            "device_peak_bytes": self.device_peak_bytes,
            "device_memory_share": self.device_share,
            "device_use": self.device_use,
        }
        return {name: value for name, value in found.items() if value is not None}


def resident_bytes(proc: Path = Path("/proc")) -> int:
    """The resident set of this process; elsewhere than on Linux its maximum so far."""
    try:
        return int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        import resource
        import sys

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def host_share(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The fuller of the machine and the innermost cgroup with a limit; files that can be dropped do not count."""
    shares = [share for share in (_machine_share(proc), _cgroup_share(proc, cgroups)) if share is not None]
    return max(shares, default=None)


def _numbers(text: str) -> dict[str, int]:
    """``name 1`` and ``name: 1 kB`` lines."""
    out = {}
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdecimal():
            out[words[0]] = int(words[1])
    return out


def _machine_share(proc: Path) -> float | None:
    try:
        numbers = _numbers((proc / "meminfo").read_text())
        return 1.0 - numbers["MemAvailable"] / numbers["MemTotal"]
    except (OSError, KeyError, ZeroDivisionError):
        return None


def _cgroup_share(proc: Path, cgroups: Path) -> float | None:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
        own = next(line.split(":", 2)[2] for line in lines if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = cgroups / own.strip("/")
    while True:
        try:
            limit = int((folder / "memory.max").read_text())
            droppable = _numbers((folder / "memory.stat").read_text()).get("inactive_file", 0)
            return (int((folder / "memory.current").read_text()) - droppable) / limit
        except (OSError, ValueError, ZeroDivisionError):  # no such file at the root, "max" where there is no limit
            if folder == cgroups or cgroups not in folder.parents:
                return None
            folder = folder.parent


@dataclass(frozen=True)
class DeviceCounters:
    """Functions that read a device's counters on the host.

    Attributes:
        peak_bytes: most that tensors had at once. reserved_bytes: held by torch now. total_bytes: of the device.
        use: share of the last second in which it computed, or None.
    """

    peak_bytes: Callable[[], int]
    reserved_bytes: Callable[[], int]
    total_bytes: int
    use: Callable[[], float | None] = field(default=lambda: None)


def cuda_counters(device: Any) -> DeviceCounters | None:
    """Counters of a CUDA device, None for any other. Written without such a device at hand; never executed."""
    if device.type != "cuda":
        return None
    import torch

    def use() -> float | None:
        try:
            return torch.cuda.utilization(device) / 100.0  # asks the driver through NVML, not the stream
        except Exception:  # no nvidia-ml-py, or the driver refuses
            return None

    total_bytes = int(torch.cuda.get_device_properties(device).total_memory)
    return DeviceCounters(
        lambda: int(torch.cuda.max_memory_allocated(device)),
        lambda: int(torch.cuda.memory_reserved(device)),
        total_bytes,
        use,
    )


class MemoryMeter:
    """Looks at memory at most once a second; in between the last look stands."""

    def __init__(self, device: DeviceCounters | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._device, self._now = device, now
        self._looked_s = -float("inf")
        self._last = MemoryUse()

    def look(self) -> tuple[MemoryUse, bool]:
        """What is in use, and whether that is a new look."""
        now_s = self._now()
        if now_s - self._looked_s < _SAMPLE_S:
            return self._last, False
        self._looked_s = now_s
        self._last = MemoryUse(resident_bytes(), host_share(), **self._of_device())
        return self._last, True

    def _of_device(self) -> Mapping[str, Any]:
        device = self._device
        if device is None:
            return {}
        return {
            "device_peak_bytes": device.peak_bytes(),
            "device_share": device.reserved_bytes() / device.total_bytes,
            "device_use": device.use(),
        }
