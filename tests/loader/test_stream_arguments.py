"""What a program hands to a stream: every wrong value is an error by a code that names it, before a sample is read."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.errors import ConfigError, DamageError, RefusedError, TokenreelError
from loader.order import Cursor, SkipEntry, SkipList, compile_mixture
from loader.order.weights import MixtureStage
from loader.stream.open import OrderOptions, open_stream
from loader.stream.stream import StreamConfig
from loader.torch_adapter import SampleDataset, TorchStream

NAN = math.nan
HUGE = 10**400


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("arguments"), DatasetSpec(documents={"a": 30, "b": 12}, seq_len=24))


def refused(code: str, call: Callable[[], Any]) -> TokenreelError:
    with pytest.raises(TokenreelError) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    return caught.value


@pytest.mark.parametrize("value", [0, -1, (1 << 24) + 1, HUGE, 2.0, "8", None, True, NAN])
def test_a_global_batch_that_means_nothing(made: MadeDataset, value: Any) -> None:
    assert "global_batch" in refused("TR-STREAM-CONFIG", lambda: open_stream(made.path, value)).message


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("seed", [-1, 1 << 63, HUGE, 1.0, "1", None, True]),
        ("window_shards", [0, 1 << 31, HUGE, 1.5, "8"]),
        ("slices", [0, 1025, HUGE, 2.5, "2"]),
        ("weights", [{}, {"a": 0}, {"a": -1}, {"a": "x"}, {"a": NAN}, {"a": math.inf}, {1: 1}, [1, 2], 5]),
        ("skips", [None, 5]),
    ],
)
def test_an_order_that_means_nothing(name: str, values: list[Any]) -> None:
    for value in values:
        assert name in refused("TR-STREAM-CONFIG", lambda value=value: OrderOptions(**{name: value})).message


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("data_rank", [-1, 0.5, "0", None, HUGE]),
        ("num_data_ranks", [0, 1.0, "2", HUGE]),
        ("threads", [0, 1.5, "2", 1025, HUGE]),
        ("prefetch_steps", [0, 2.5, "2", HUGE]),
        ("timeout_s", [0, -1, NAN, math.inf, "5", None, True, 1e300, HUGE]),
        ("cache", [5, b"folder"]),
        ("cache_bytes", [0, -1, 1.5, "1"]),
    ],
)
def test_a_configuration_that_means_nothing(name: str, values: list[Any]) -> None:
    for value in values:
        assert name in refused("TR-STREAM-CONFIG", lambda value=value: StreamConfig(**{name: value})).message
    assert refused("TR-STREAM-RANK", lambda: StreamConfig(2, 2)).place == "StreamConfig"


def test_all_that_is_wrong_is_said_at_once() -> None:
    message = refused("TR-STREAM-CONFIG", lambda: StreamConfig(threads=0, prefetch_steps=0, timeout_s=0)).message
    assert all(name in message for name in ("threads", "prefetch_steps", "timeout_s"))


@pytest.mark.parametrize("where", [[], 5, None, {"a": 1}, b"x", [5], ["x", None]])
def test_places_that_are_none(where: Any) -> None:
    refused("TR-STREAM-CONFIG", lambda: open_stream(where, 4))


def test_weights_and_skips_that_do_not_fit(made: MadeDataset) -> None:
    for code, order in (
        ("TR-CONFIG-SOURCE", OrderOptions(weights={"zz": 1})),
        ("TR-MIXTURE-WEIGHT", OrderOptions(weights={"a": 1, "b": 1e-12})),
        ("TR-MIXTURE-WEIGHT", OrderOptions(weights={"a": HUGE})),
        ("TR-SKIP-SOURCE", OrderOptions(skips=[SkipEntry("source", "mask", 0, "zz")])),
        ("TR-SKIP-SAMPLES", OrderOptions(skips=[SkipEntry("samples", "drop", 0, "a", ((0, 10**6),))])),
        ("TR-SKIP-DOCUMENT", OrderOptions(skips=[SkipEntry("documents", "drop", 0, documents=(5,))])),
        ("TR-SKIP-EMPTY", OrderOptions(skips=[SkipEntry("positions", "drop", 0, ranges=((0, 1 << 36),))])),
        ("TR-SKIP-ENTRY", OrderOptions(skips=[1])),  # type: ignore[list-item]
    ):
        refused(code, lambda order=order: open_stream(made.path, 4, order))
    refused("TR-MIXTURE-WEIGHT", lambda: compile_mixture(["a"], [MixtureStage(0, {"a": HUGE})], 0))


def test_a_skip_list_is_as_good_as_its_entries(made: MadeDataset) -> None:
    entry = SkipEntry("positions", "drop", 0, ranges=((1, 3),))
    for skips in ([entry], SkipList([entry])):
        with open_stream(made.path, 2, OrderOptions(skips=skips)) as stream:
            assert next(stream).positions_B.tolist() == [0, 3]


@pytest.fixture(scope="module")
def state(made: MadeDataset) -> dict[str, Any]:
    with open_stream(made.path, 4, OrderOptions(skips=[SkipEntry("source", "mask", 5, "b")])) as stream:
        next(stream), next(stream), next(stream)
        return stream.state_dict()


def _resume(made: MadeDataset, state: Any) -> int:
    with open_stream(made.path, 4, OrderOptions(skips=[SkipEntry("source", "mask", 5, "b")]), state=state) as stream:
        return stream.next_step


@pytest.mark.parametrize("value", [5, "x", [], [1], b"x", {}, {"a": 1}, True, ("a", 1)])
def test_a_state_that_is_none(made: MadeDataset, value: Any) -> None:
    refused("TR-CURSOR-DAMAGED", lambda: _resume(made, value))
    with open_stream(made.path, 4) as stream:
        refused("TR-CURSOR-DAMAGED", lambda: SampleDataset(stream).load_state_dict(value))
        refused("TR-CURSOR-DAMAGED", lambda: SampleDataset(stream).load_state_dict({"cursor": value}))
        assert next(stream).step == 0  # the stream stands where it stood


def test_a_state_with_other_values(made: MadeDataset, state: dict[str, Any]) -> None:
    assert _resume(made, state) == 3
    wrong: list[Any] = [-1, 1 << 80, 1 << 63, 1 << 36, (1 << 36) - 1, 1.5, "1", None, [], {}, True, NAN, "g" * 32]
    wrong += ["0" * 32, "\ud800" * 32, {"a": 5}, {"\ud800": "0" * 8}, {"a": "\ud800"}, {1: "0" * 8}, {"a": ["0"]}]
    for name in state:
        for value in wrong:
            if (name, value) != ("sources", {}):  # they are left out where there are too many
                with pytest.raises((DamageError, RefusedError)):
                    _resume(made, {**state, name: value})
        with pytest.raises(DamageError):
            _resume(made, {key: state[key] for key in state if key != name})


def test_every_flipped_bit_of_a_state_is_refused(made: MadeDataset, state: dict[str, Any]) -> None:
    """Bit by bit over the JSON of a state: it is no JSON any more, or no Cursor, or not this run's."""
    data = json.dumps(state, separators=(",", ":")).encode()
    with open_stream(made.path, 4, OrderOptions(skips=[SkipEntry("source", "mask", 5, "b")])) as stream:
        stream.load_state_dict(json.loads(data))
        for place in range(len(data)):
            for bit in range(8):
                try:
                    value = json.loads(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
                except ValueError:
                    continue
                with pytest.raises((DamageError, RefusedError)):
                    stream.load_state_dict(value)


def test_a_state_of_many_sources_leaves_their_names_out_and_is_one() -> None:
    value = Cursor(0, 0, *["0" * 32] * 5, 0, {f"source {number}": "0" * 8 for number in range(256)}).to_json()
    assert value["sources"] == {}
    assert Cursor.from_json(copy.deepcopy(value)).to_json() == value


@pytest.mark.parametrize("step", [-1, 3, 10**6, HUGE, 1.0, "1", True])
def test_no_state_of_a_step_that_was_not_reached(made: MadeDataset, step: Any) -> None:
    """Resumed there a run would never see the batches between, and nobody would hear of it."""
    with open_stream(made.path, 4) as stream:
        next(stream), next(stream)
        states = [stream.state_dict(done) for done in (0, 1, 2)]
        assert [one["next_position"] for one in states] == [0, 4, 8]
        assert "next_step" in refused("TR-STREAM-CONFIG", lambda: stream.state_dict(step)).message


def test_a_torch_stream_whose_stream_was_turned_back_has_no_state(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream:
        dataset, state = TorchStream(stream), stream.state_dict()
        next(iter(dataset))
        stream.load_state_dict(state)
        refused("TR-STREAM-CONFIG", dataset.state_dict)
        dataset.load_state_dict(state)
        assert dataset.state_dict() == state


@pytest.mark.parametrize("num_samples", [-4, 4.0, "4", 1 << 40])
def test_samples_that_cannot_be_counted(made: MadeDataset, num_samples: Any) -> None:
    with open_stream(made.path, 4) as stream:
        dataset = SampleDataset(stream, 24)
        list(dataset)
        for from_beginning in (True, False):
            refused("TR-STREAM-CONFIG", lambda beginning=from_beginning: dataset.state_dict(num_samples, beginning))
    for size in (0, -1, 8.0, "8", HUGE):
        with open_stream(made.path, 4) as stream:
            refused("TR-STREAM-CONFIG", lambda size=size, stream=stream: SampleDataset(stream, size))


def test_a_plan_that_has_ended_is_no_epoch(made: MadeDataset) -> None:
    """The last epoch is what is left of the plan; after it, a trainer that counts epochs would go on for ever."""
    skips = [SkipEntry("positions", "drop", 0, ranges=((42, 1 << 36),))]
    with open_stream(made.path, 4, OrderOptions(skips=skips)) as stream:
        dataset = SampleDataset(stream, 24)
        assert [len(list(dataset)) for _ in range(2)] == [24, 16]
        error = refused("TR-STREAM-ENDED", lambda: list(dataset))
        assert isinstance(error, ConfigError)
        assert (error.place, error.expected) == ("step 10", "at most 10 steps")
        assert dataset.state_dict(16, True)["cursor"]["next_position"] == 40


def test_a_folder_without_a_dataset(tmp_path: Path) -> None:
    for place in (tmp_path, str(tmp_path / "nowhere"), [tmp_path]):
        with pytest.raises(TokenreelError):
            open_stream(place, 4)
