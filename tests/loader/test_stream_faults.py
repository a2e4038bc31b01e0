"""Injected faults: each is raised in the consumer, at the step it belongs to, in time; repairing the file heals it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.faulty_streams import run_into

from loader.errors import ConfigError, DamageError, JobError, RefusedError, TokenreelError
from loader.sources import Sources, open_sources
from loader.stream.batch import Batch
from loader.stream.open import open_stream
from loader.stream.store import fetch_dataset, within
from loader.stream.stream import Stream, StreamConfig

_SPEC = DatasetSpec(documents={"web": 80, "code": 30}, seq_len=32, samples_per_shard=12)
_CONFIG = StreamConfig(threads=3, prefetch_steps=4, timeout_s=10)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("faults"), _SPEC)


@pytest.fixture
def copy(made: MadeDataset, tmp_path: Path) -> Path:
    shutil.copytree(made.path, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="module")
def plain(made: MadeDataset) -> list[Batch]:
    with open_stream(made.path, 6) as stream:
        return [next(stream) for _ in range(60)]


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def _cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


def _remove(path: Path, at: int) -> None:
    path.unlink()


def _run_into(stream: Stream, plain: list[Batch]) -> TokenreelError:
    return run_into(stream, 60, lambda step, batch: np.array_equal(batch.tokens_BT, plain[step].tokens_BT))


@pytest.mark.parametrize("damage", [_flip, _cut, _remove])
@pytest.mark.parametrize("suffix", [".mds", ".segments", ".docs"])
def test_damage_on_disk_is_raised_and_heals(
    copy: Path, made: MadeDataset, plain: list[Batch], damage: Callable[[Path, int], None], suffix: str
) -> None:
    path = copy / "web" / f"shard.00003{suffix}"
    damage(path, path.stat().st_size - 30)
    with open_stream(copy, 6, None, _CONFIG) as stream:
        error = _run_into(stream, plain)
        assert isinstance(error, DamageError)
        assert path.name in str(error)
        step = stream.next_step
        state = stream.state_dict()
        with pytest.raises(DamageError, match=path.name):
            next(stream)
        shutil.copyfile(made.path / "web" / path.name, path)
    with open_stream(copy, 6, None, _CONFIG, state) as stream:
        for expected in plain[step:]:
            assert np.array_equal(next(stream).labels_BT, expected.labels_BT)


def test_one_flipped_token_names_file_and_sample(copy: Path, made: MadeDataset, plain: list[Batch]) -> None:
    path = copy / "code" / "shard.00000.mds"
    sample_bytes = 2 * _SPEC.seq_len
    _flip(path, path.stat().st_size - 5 * sample_bytes + 7)
    victim = made.shard_samples["code"][0] - 5
    with open_stream(copy, 6, None, _CONFIG) as stream:
        error = _run_into(stream, plain)
        names = stream.sources.names
    assert isinstance(error, DamageError)
    assert path.name in str(error)
    assert str(victim) in str(error)
    code = names.index("code")
    first = next(b.step for b in plain if ((b.source_B == code) & (b.sample_B == victim)).any())
    assert stream.next_step == first


def test_a_sample_repaired_in_place_heals_the_open_stream(copy: Path, made: MadeDataset, plain: list[Batch]) -> None:
    path = copy / "web" / "shard.00002.mds"
    at = path.stat().st_size - 100
    _flip(path, at)
    with open_stream(copy, 6, None, _CONFIG) as stream:
        _run_into(stream, plain)
        step = stream.next_step
        with open(path, "r+b") as file:
            file.seek(at)
            file.write((made.path / "web" / path.name).read_bytes()[at : at + 1])
        for expected in plain[step:]:
            assert np.array_equal(next(stream).tokens_BT, expected.tokens_BT)


@pytest.mark.parametrize("damage", [_flip, _cut, _remove])
@pytest.mark.parametrize("name", ["manifest.json", "shards.npy"])
def test_damaged_manifests_are_refused_at_once(copy: Path, damage: Callable[[Path, int], None], name: str) -> None:
    path = copy / name
    damage(path, path.stat().st_size // 2)
    with pytest.raises((DamageError, ConfigError), match=r"data"):
        open_stream(copy, 6)


class _Slow(Sources):
    """Sources whose storage hangs at one source sample until it is let go."""

    go_on = threading.Event()

    def read_samples_into(self, *arguments: Any) -> None:
        self.go_on.wait(30)
        super().read_samples_into(*arguments)


def test_storage_that_hangs_is_named_in_time(made: MadeDataset) -> None:
    with open_stream(made.path, 6) as good:
        slow = _Slow(**vars(good.sources))
        stream = Stream(good.plan, slow, StreamConfig(timeout_s=0.2))
        with pytest.raises(JobError, match=r"0\.2 s: reading samples of step 0") as caught:
            next(stream)
        assert str(made.path) in str(caught.value)
        with pytest.raises(JobError, match="did not end"):
            stream.close()
        slow.go_on.set()


def test_close_ends_threads_and_the_stream(made: MadeDataset) -> None:
    stream = open_stream(made.path, 6, None, _CONFIG)
    next(stream)
    stream.close()
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tokenreel-prefetch") and t.is_alive()]
    with pytest.raises(ConfigError, match="closed"):
        next(stream)


def test_datasets_that_do_not_fit_are_refused(made: MadeDataset, tmp_path: Path) -> None:
    longer = make_dataset(tmp_path, DatasetSpec(documents={"x": 5}, seq_len=64), "longer")
    with pytest.raises(RefusedError, match="sequence length"):
        open_sources([made.open(), longer.open()])
    with pytest.raises(RefusedError, match="also in"):
        open_sources([made.open(), made.open()])
    with pytest.raises(RefusedError, match="no Dataset"):
        open_sources([])


def test_options_that_do_not_fit_are_named(made: MadeDataset) -> None:
    with pytest.raises(ConfigError, match="data rank 2 of 2"):
        StreamConfig(2, 2)
    with pytest.raises(ConfigError, match="threads is 0"):
        StreamConfig(threads=0)
    with pytest.raises(ConfigError, match="no store for s5"):
        open_stream("s5://bucket/data", 4)
    with pytest.raises(ConfigError, match="no Dataset"):
        open_stream(made.path.parent / "nothing", 4)


def test_waits_for_storage_end() -> None:
    go_on = threading.Event()
    with pytest.raises(JobError, match=r"0\.1 s[\s\S]*the moon"):
        within(0.1, "asking the moon", lambda: go_on.wait(30))
    go_on.set()
    assert within(10.0, "asking", lambda: 7) == 7
    with pytest.raises(ValueError, match="own error"):
        within(10.0, "asking", lambda: int("own error"))


def test_fetching_is_opening(made: MadeDataset) -> None:
    assert fetch_dataset(str(made.path)).digest == made.digest
    assert fetch_dataset(f"file://{made.path}").digest == made.digest
