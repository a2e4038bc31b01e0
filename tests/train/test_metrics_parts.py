"""Averages, clock, memory, thresholds and the console, each against a plain statement of what it promises."""

from __future__ import annotations

import io
import math
import mmap
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.ledger import ledger_dtype
from train.metrics.averages import DECAY, HISTORY_STEPS, MEDIAN_STEPS, LossAverages
from train.metrics.clock import StepClock, StepTimes
from train.metrics.console import StepConsole, step_text
from train.metrics.memory import DeviceCounters, MemoryMeter, MemoryUse, cuda_counters, host_share, resident_bytes
from train.metrics.warn import THRESHOLDS, WARM_UP_STEPS, WINDOW_S, WINDOW_STEPS, StepWatch, Warned

NAMES = ("web", "code")


class Now:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


# Averages.


def random_steps(count: int) -> list[tuple[float, int, dict[str, tuple[float, int]]]]:
    rng = np.random.default_rng(3)
    out = []
    for _ in range(count):
        labels = {name: int(rng.integers(0, 9)) for name in NAMES}
        losses = {name: float(rng.normal(3, 1)) * labels[name] for name in NAMES}
        total = sum(labels.values())
        loss = sum(losses.values()) / total if total else math.nan
        out.append((loss, total, {name: (losses[name], labels[name]) for name in NAMES if labels[name]}))
    return out


def test_averages_are_what_they_say() -> None:
    averages, steps = LossAverages(NAMES), random_steps(300)
    assert math.isnan(averages.mean)
    assert math.isnan(averages.median)
    assert averages.by_source() == {}
    for number, step in enumerate(steps, 1):
        averages.add(*step)
        counted = [one for one in steps[:number] if one[1]]
        weights = [DECAY**age for age in range(len(counted))][::-1]
        pairs = list(zip(weights, counted, strict=True))
        assert averages.mean == pytest.approx(sum(w * one[0] for w, one in pairs) / sum(weights))
        assert averages.median == statistics.median([one[0] for one in counted][-MEDIAN_STEPS:])
        for name, found in averages.by_source().items():
            nats = sum(w * one[2].get(name, (0.0, 0))[0] for w, one in pairs)
            labels = sum(w * one[2].get(name, (0.0, 0))[1] for w, one in pairs)
            assert found == pytest.approx(nats / labels)


def test_a_broken_step_does_not_hide_the_others() -> None:
    averages = LossAverages(NAMES)
    averages.add(2.0, 4, {"web": (8.0, 4)})
    for loss in (math.nan, math.inf):
        averages.add(loss, 4, {"web": (loss, 4)})
    averages.add(math.nan, 0, {})
    assert (averages.mean, averages.median, averages.by_source()) == (2.0, 2.0, {"web": 2.0})


def test_averages_go_on_from_the_ledger() -> None:
    """The end of the ledger is enough; a ledger that knew fewer sources too."""
    steps = random_steps(HISTORY_STEPS + 400)
    whole, resumed = LossAverages(NAMES), LossAverages(NAMES)
    records_N = np.zeros(len(steps) - 5, ledger_dtype(2))
    for record, (loss, labels, by_source) in zip(records_N, steps, strict=False):
        record["loss"], record["label_count"] = loss, labels
        record["source_loss_S"] = [by_source.get(name, (0.0, 0))[0] for name in NAMES]
        record["source_labels_S"] = [by_source.get(name, (0.0, 0))[1] for name in NAMES]
    for step in steps:
        whole.add(*step)
    resumed.seed(records_N)
    for step in steps[-5:]:
        resumed.add(*step)
    assert resumed.median == whole.median
    assert resumed.mean == pytest.approx(whole.mean, rel=1e-8)
    assert resumed.by_source() == pytest.approx(whole.by_source(), rel=1e-8)
    fewer, more = LossAverages(NAMES), LossAverages((*NAMES, "books"))
    fewer.seed(records_N)
    more.seed(records_N)
    assert more.by_source() == fewer.by_source()


# The clock.


def test_a_lap_is_divided_without_loss() -> None:
    now = Now()
    clock = StepClock(now)
    for part, seconds in (("loader", 0.5), ("ledger", 0.25), ("loader", 0.5), ("checkpoint", 2.0), ("evaluation", 3.0)):
        with clock.part(part):  # type: ignore[arg-type]
            now.s += seconds
    now.s += 10.0
    times = clock.lap()
    assert times == StepTimes(16.25, loader=1.0, checkpoint=2.0, evaluation=3.0, ledger=0.25)
    assert times.step == 11.25
    now.s += 1.0
    assert clock.lap() == StepTimes(1.0)


def test_a_part_that_fails_is_counted_too() -> None:
    now = Now()
    clock = StepClock(now)

    def ends() -> None:
        with clock.part("loader"):
            now.s += 1.5
            raise StopIteration

    with pytest.raises(StopIteration):
        ends()
    assert clock.lap() == StepTimes(1.5, loader=1.5)


# Memory.


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_resident_set_grows_with_what_is_touched() -> None:
    before = resident_bytes()
    assert 10e6 < before < 100e9
    # Fresh pages of its own: what malloc hands out may have been resident all along.
    with mmap.mmap(-1, 64_000_000) as pages:
        pages.write(bytes(64_000_000))
        assert resident_bytes() - before > 30e6
    assert resident_bytes(Path("/nowhere")) >= before  # elsewhere: its maximum


def test_the_fuller_of_machine_and_container_counts(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    assert host_share(proc, cgroups) is None
    write(proc, {"meminfo": "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  250 kB\n"})
    assert host_share(proc, cgroups) == 0.75
    write(proc, {"self/cgroup": "0::/pod/box\n"})
    write(cgroups, {"pod/memory.max": "1000\n", "pod/memory.current": "930\n", "pod/memory.stat": "inactive_file 30\n"})
    write(cgroups, {"pod/box/memory.max": "max\n", "pod/box/memory.current": "1\n", "pod/box/memory.stat": "anon 1\n"})
    assert host_share(proc, cgroups) == 0.9
    write(cgroups, {"pod/memory.max": "9000\n"})
    assert host_share(proc, cgroups) == 0.75
    here = host_share()
    assert here is None or 0 < here <= 1.5


def test_memory_is_looked_at_once_a_second() -> None:
    now, reads = Now(), []

    def count(value: int) -> int:
        reads.append(value)
        return value

    device = DeviceCounters(lambda: count(30), lambda: count(60), 80, lambda: 0.5)
    meter = MemoryMeter(device, now)
    first, is_new = meter.look()
    assert is_new
    assert (first.device_peak_bytes, first.device_share, first.device_use) == (30, 0.75, 0.5)
    now.s += 0.9
    assert meter.look() == (first, False)
    now.s += 0.2
    assert meter.look()[1]
    assert reads == [30, 60, 30, 60]
    assert first.line()["device_memory_share"] == 0.75
    assert "device_use" not in MemoryMeter(None, now).look()[0].line()


def test_only_a_cuda_device_has_counters() -> None:
    import torch

    assert cuda_counters(torch.device("cpu")) is None


# Thresholds.


def watched(watch: StepWatch, now: Now, count: int, times: StepTimes, mfu: float | None = None) -> list[Warned]:
    out = []
    for _ in range(count):
        now.s += times.wall
        out += watch.step(times, mfu)
    return out


def test_an_incident_is_told_once_and_again_after_a_good_window() -> None:
    now = Now()
    watch = StepWatch(mfu=True, now=now)
    good, slow = StepTimes(2.0, loader=0.019, ledger=0.0019), StepTimes(2.0, loader=0.021, ledger=0.0021)
    assert watched(watch, now, WARM_UP_STEPS, StepTimes(60.0, loader=50.0), 0.01) == []
    assert watched(watch, now, 5 * WINDOW_STEPS, good, 0.31) == []
    found = watched(watch, now, 3 * WINDOW_STEPS, slow, 0.29)
    assert sorted(one.what for one in found) == ["ledger", "loader_wait", "mfu"]
    assert {one.what: round(one.share, 5) for one in found} == {"ledger": 0.00105, "loader_wait": 0.0105, "mfu": 0.29}
    assert watched(watch, now, WINDOW_STEPS, good, 0.31) == []
    assert len(watched(watch, now, 2 * WINDOW_STEPS, slow, 0.29)) == 3


def test_a_window_has_enough_steps_and_seconds() -> None:
    now = Now()
    watch = StepWatch(mfu=False, now=now)
    slow = StepTimes(0.01, loader=0.009)
    assert watched(watch, now, WARM_UP_STEPS + WINDOW_STEPS, slow) == []
    few = math.ceil(WINDOW_S / 0.01) - WINDOW_STEPS + 1
    assert [one.what for one in watched(watch, now, few, slow)] == ["loader_wait"]
    watch = StepWatch(mfu=False, now=now)
    assert watched(watch, now, WARM_UP_STEPS + WINDOW_STEPS - 1, StepTimes(60.0, loader=30.0)) == []
    assert len(watched(watch, now, 1, StepTimes(60.0, loader=30.0))) == 1


def test_utilisation_is_judged_on_accelerators_alone() -> None:
    now = Now()
    for judged, mfu, expected in ((True, 0.1, 1), (False, 0.1, 0), (True, None, 0)):
        watch = StepWatch(mfu=judged, now=now)
        assert len(watched(watch, now, WARM_UP_STEPS + WINDOW_STEPS, StepTimes(2.0), mfu)) == expected


def test_memory_is_told_once_until_there_is_room_again() -> None:
    watch = StepWatch(mfu=False)
    shares = [0.5, 0.951, 0.97, 0.94, 0.96, 0.89, 0.96, None]
    told = [[one.what for one in watch.memory(MemoryUse(0, share, 0, share))] for share in shares]
    both = ["host_memory", "device_memory"]
    assert told == [[], both, [], [], [], [], both, []]


def test_the_thresholds_of_the_field() -> None:
    assert {name: row.limit for name, row in THRESHOLDS.items()} == {
        "mfu": 0.30, "loader_wait": 0.01, "host_memory": 0.95, "device_memory": 0.95, "ledger": 0.001,
    }  # fmt: skip
    text = str(Warned("loader_wait", 0.0213, 40))
    assert "0.0213 of the step spent waiting for data over 40 steps, more than 0.01" in text
    assert "run.reader_threads" in text


# The console.


def line(step: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 3.25,
        "loss_average": 3.5,
        "grad_norm": 0.5,
        "lr": 3e-4,
        "tokens_per_s": 12345.6,
        "loader_wait_share": 0.004,
        "left_s": 90061.0,
        **more,
    }


def test_a_step_in_words() -> None:
    assert step_text(line(4, mfu=0.4125), 1000) == (
        "step 5/1000  loss 3.2500 (mean 3.5000)  grad 0.500  lr 0.0003  12,346 tokens/s  mfu 41.2 %  wait 0.4 %  "
        "left 1 d 1:01:01"
    )
    assert "mfu" not in step_text(line(4), 10)
    assert step_text(line(4, left_s=math.nan), 10).endswith("wait 0.4 %")


def test_lines_come_every_so_many_steps_and_after_half_a_minute() -> None:
    now, said = Now(), list[str]()
    console = StepConsole(said.append, 10, 100, now=now)
    for step in range(25):
        now.s += 1.0
        console.show(line(step))
    assert [text.split()[1] for text in said] == ["1/100", "11/100", "21/100"]
    said.clear()
    for step in range(25, 31):
        now.s += 8.0  # 12, 20, 28, 36 s after step 20 was said
        console.show(line(step))
    assert [text.split()[1] for text in said] == ["29/100", "31/100"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_newest_step_stands_below() -> None:
    now, said, terminal = Now(), list[str](), Terminal()
    console = StepConsole(said.append, 10, 100, terminal, now)
    for step in range(9):
        now.s += 0.1
        console.show(line(step))
    console.close()
    console.close()
    shown = terminal.getvalue()
    drawn = [step for step in range(9) if f"step {step + 1}/100" in shown]
    assert drawn == [0, 3, 6]  # four times a second at most
    assert len(said) == 1
    assert shown.endswith(("\x1b[2K", "\x1b[?25h"))
