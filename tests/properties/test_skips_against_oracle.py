"""Skip entries of every kind, added at random times of a run: the stream, look-up both ways and the printed collateral
against an oracle that walks position by position over plain Python values and asks every entry about everything.

From the package the oracle takes what other tests settle: each position's source and each source's endless order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.datasets import EOS, DatasetSpec, MadeDataset, Piece, make_dataset

from loader.collateral import collateral_of
from loader.errors import RefusedError
from loader.lookup import document_steps
from loader.order import (
    BatchStage,
    MixtureStage,
    Plan,
    PlanConfig,
    SkipEntry,
    SkipList,
    SourceShape,
    check_cursor,
    make_cursor,
)
from loader.order.skips import SkipKind, SkipMode
from loader.sources import Sources, open_sources
from loader.stream.batch import IGNORED_LABEL, read_batch

STOP = 330
BATCH = (BatchStage(0, 7), BatchStage(100, 11))
STAGES = (MixtureStage(0, {"a": 3, "b": 2, "c": 1}), MixtureStage(256, {"a": 1, "c": 2}))
_KINDS: list[tuple[SkipKind, SkipMode]] = [
    ("positions", "drop"), ("samples", "drop"), ("samples", "mask"), ("segments", "mask"), ("documents", "drop"),
    ("documents", "mask"), ("source", "mask"),
]  # fmt: skip


@dataclass(frozen=True, repr=False)
class World:
    """A Dataset, what an oracle knows of it, and its plan without skips."""

    made: MadeDataset
    sources: Sources
    bare: Plan
    holds: dict[int, dict[str, set[int]]]
    number: dict[tuple[str, int, int], int]

    def plan(self, entries: Sequence[SkipEntry]) -> Plan:
        return Plan(self.bare.config, SkipList(entries), self.sources)

    def pieces(self, name: str, sample: int) -> list[Piece]:
        return self.made.samples[name][sample][1]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    spec = DatasetSpec(documents={"a": 22, "b": 13, "c": 6}, seq_len=48, samples_per_shard=7, max_words=12)
    made = make_dataset(tmp_path_factory.mktemp("skips"), spec)
    sources = open_sources([made.open()])
    shapes = tuple(SourceShape(name, sources.shard_samples(name)) for name in sources.names)
    holds: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    number = {}
    for name, samples in made.samples.items():
        at = count()
        for sample, (_, pieces) in enumerate(samples):
            for place, piece in enumerate(pieces):
                number[name, sample, place] = next(at)
                if piece.document is not None:
                    holds[piece.document.id][name].add(sample)
    return World(made, sources, Plan(PlanConfig(shapes, 3, STAGES, BATCH, 2, 2)), dict(holds), number)


def drops(world: World, entry: SkipEntry, name: str, sample: int) -> bool:
    if entry.mode != "drop" or entry.kind == "positions":
        return False
    if entry.kind == "samples":
        return entry.source == name and any(start <= sample < stop for start, stop in entry.ranges)
    return any(sample in world.holds[document].get(name, ()) for document in entry.documents)


def masks(world: World, entry: SkipEntry, name: str, sample: int, place: int) -> bool:
    document = world.pieces(name, sample)[place].document
    if entry.mode != "mask" or document is None:
        return False
    if entry.kind == "documents":
        return document.id in entry.documents
    numbers = {"samples": sample, "segments": world.number[name, sample, place]}
    inside = entry.kind == "source" or any(a <= numbers[entry.kind] < b for a, b in entry.ranges)
    return entry.source == name and inside


Reading = tuple[str, int, list[bool]]


def walk(world: World, entries: Sequence[SkipEntry]) -> tuple[dict[int, Reading], set[int]]:
    """{position: (source, sample, which segments are masked)} and the positions that are cut."""
    endless = {name: endless_of(world, number) for number, name in enumerate(world.sources.names)}
    reads, cut = {}, set()
    for position, source in enumerate(world.bare.mixture.locate(np.arange(STOP))[0].tolist()):
        name = world.sources.names[source]
        acting = [entry for entry in entries if entry.stamp <= position]
        sample = next(s for s in endless[name] if not any(drops(world, entry, name, s) for entry in acting))
        places = range(len(world.pieces(name, sample)))
        reads[position] = (name, sample, [any(masks(world, e, name, sample, p) for e in acting) for p in places])
        if any(e.kind == "positions" and any(a <= position < b for a, b in e.ranges) for e in acting):
            cut.add(position)
    return reads, cut


def endless_of(world: World, source: int) -> Iterator[int]:
    order = world.bare.orders[source]
    for epoch in count():
        yield from order.locate(np.arange(order.num_samples) + epoch * order.num_samples)[1].tolist()


def steps_of(cut: set[int]) -> list[list[int]]:
    left, steps = [position for position in range(STOP) if position not in cut], []
    while left:
        size = [stage.global_batch for stage in BATCH if stage.start <= left[0]][-1]
        if len(left) < size:
            break
        steps.append(left[:size])
        left = left[size:]
    return steps


def arrays_of(world: World, reading: Reading) -> tuple[list[int], list[int]]:
    """(tokens, labels) of a row: a label is the next token of the same segment."""
    name, sample, masked = reading
    stored, pieces = world.made.samples[name][sample]
    tokens, labels = list(stored), [IGNORED_LABEL] * len(stored)
    for piece, hidden in zip(pieces, masked, strict=True):
        for token in range(piece.token_start, piece.token_stop):
            if hidden:
                tokens[token] = EOS
            elif piece.document is not None and token + 1 < piece.token_stop:
                labels[token] = stored[token + 1]
    return tokens, labels


def check_stream(world: World, plan: Plan, reads: dict[int, Reading], steps: list[list[int]]) -> list[int]:
    """Each step's batch is the plan without what is skipped; returns the digests."""
    digests = []
    for step, positions in enumerate(steps):
        batch = read_batch(plan, world.sources, step)
        assert batch.positions_B.tolist() == positions
        expected = [arrays_of(world, reads[position]) for position in positions]
        assert batch.tokens_BT.tolist() == [tokens for tokens, _ in expected]
        assert batch.labels_BT.tolist() == [labels for _, labels in expected]
        digests.append(batch.token_digest)
    return digests


def check_look_up(world: World, plan: Plan, reads: dict[int, Reading], steps: list[list[int]], cut: set[int]) -> None:
    """document -> steps finds each reading of each document, sample -> positions each of each sample, nothing else."""
    step_of = {position: step for step, positions in enumerate(steps) for position in positions}
    stop = steps[-1][-1] + 1
    assert [plan.step_of(position) for position in range(stop)] == [step_of.get(position) for position in range(stop)]
    seen: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    gone: dict[int, set[int]] = defaultdict(set)
    at: dict[tuple[str, int], list[int]] = defaultdict(list)
    for position in range(stop):
        name, sample, masked = reads[position]
        at[name, sample].append(position)
        for piece, hidden in zip(world.pieces(name, sample), masked, strict=True):
            if piece.document is not None and position in cut:
                gone[piece.document.id].add(position)
            elif piece.document is not None:
                seen[piece.document.id].append((step_of[position], position, hidden))
    for document in world.holds:
        found = document_steps(plan, world.sources, document, stop)
        assert [(r["step"], r["position"], r["masked"]) for r in found["readings"]] == seen[document]
        assert found["cut"] == sorted(gone[document])
    for name, samples in world.made.samples.items():
        position_M, which_M = plan.positions_of_samples(name, np.arange(len(samples)), stop)
        by_sample: dict[tuple[str, int], list[int]] = defaultdict(list)
        for position, sample in zip(position_M.tolist(), which_M.tolist(), strict=True):
            by_sample[name, sample].append(position)
        assert by_sample == {key: value for key, value in at.items() if key[0] == name}


def check_collateral(world: World, plan: Plan, entry: SkipEntry) -> None:
    """What is printed of an entry, counted by hand."""
    if entry.kind == "positions":
        numbers = {p for a, b in entry.ranges for p in range(max(a, entry.stamp), b)}
        refs = plan.samples(np.array(sorted(numbers), np.int64))
        pairs = [
            (world.sources.names[s], n) for s, n in zip(refs.source_N.tolist(), refs.sample_N.tolist(), strict=True)
        ]
    else:
        pairs = [(name, sample) for name, some in world.made.samples.items() for sample in range(len(some))]
    by_source: dict[str, int] = defaultdict(int)
    tokens, documents, beside = 0, set(), list[Piece]()
    for name, sample in pairs:
        pieces = [
            (place, piece) for place, piece in enumerate(world.pieces(name, sample)) if piece.document is not None
        ]
        asked, other = [], []
        for place, piece in pieces:
            assert piece.document is not None
            if entry.kind == "documents":
                mine = piece.document.id in entry.documents
            elif entry.mode == "mask":
                mine = masks(world, entry, name, sample, place)
            else:
                mine = entry.kind == "positions" or drops(world, entry, name, sample)
            (asked if mine else other).append(piece)
        if asked:
            by_source[name] += 1
            tokens += sum(piece.token_stop - piece.token_start for piece in asked)
            documents |= {piece.document.id for piece in asked if piece.document is not None}
            beside += other if entry.mode == "drop" else []
    found = collateral_of(plan, world.sources, entry)
    assert found["by_source"] == dict(by_source)
    assert found["samples"] == sum(by_source.values())
    assert (found["tokens"], found["documents"]) == (tokens, len(documents))
    assert found["other_tokens"] == sum(piece.token_stop - piece.token_start for piece in beside)
    others = {piece.document.id for piece in beside if piece.document is not None}
    assert found["other_documents"] == len(others - documents)
    if entry.mode == "drop":
        assert dict(plan.removed_by_source(entry)) == dict(by_source)


def entry_at(world: World, position: int, random: Random) -> SkipEntry:
    """An entry of any kind, stamped here or later; its ranges may lie before, overlap and repeat."""
    kind, mode = random.choice(_KINDS)
    stamp = position + random.choice([0, 0, 0, 1, 9, 60])
    if kind == "positions":
        starts = [random.randint(max(0, position - 30), position + 80) for _ in range(random.randint(1, 3))]
        return SkipEntry("positions", "drop", stamp, ranges=tuple((a, a + random.randint(1, 20)) for a in starts))
    if kind == "documents":
        documents = tuple(random.choices(sorted(world.holds), k=random.randint(1, 3)))
        return SkipEntry("documents", mode, stamp, documents=documents)
    name = random.choice(world.sources.names)
    if kind == "source":
        return SkipEntry("source", "mask", stamp, name)
    most = len(world.made.samples[name]) if kind == "samples" else sum(key[0] == name for key in world.number)
    starts = [random.randrange(most) for _ in range(random.randint(1, 2))]
    ranges = tuple((start, min(most, start + random.randint(1, 4))) for start in starts)
    return SkipEntry(kind, mode, stamp, name, ranges)


def loses_a_source(world: World, entries: Sequence[SkipEntry]) -> bool:
    """Whether nothing would be left of a source, which the plan refuses."""
    return any(
        all(any(drops(world, entry, name, sample) for entry in entries) for sample in range(len(samples)))
        for name, samples in world.made.samples.items()
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_entries_added_at_random_times(world: World, seed: int) -> None:
    random, entries = Random(seed), list[SkipEntry]()
    plan, step, done = world.plan([]), 0, list[int]()
    for _ in range(random.randint(1, 5)):
        stop = step + random.randint(0, 8)
        done += [read_batch(plan, world.sources, k).token_digest for k in range(step, stop)]
        step, cursor = stop, make_cursor(plan, world.sources.digest_by_source, next_step=stop)
        for entry in [entry_at(world, cursor.next_position, random) for _ in range(random.randint(0, 3))]:
            grown = [*entries, *[entry] * random.choice([1, 1, 2])]
            if loses_a_source(world, grown):
                with pytest.raises(RefusedError, match="drops all"):
                    world.plan(grown)
                continue
            check_collateral(world, plan, entry)
            entries = grown
        plan = world.plan(random.sample(entries, len(entries)))
        check_cursor(cursor, plan, world.sources.digest_by_source)
    reads, cut = walk(world, entries)
    steps = steps_of(cut)
    refs = plan.samples(np.arange(STOP))
    assert np.array_equal(refs.source_N, world.bare.mixture.locate(np.arange(STOP))[0])  # dropping keeps the ratios
    digests = check_stream(world, plan, reads, steps)
    assert digests[: len(done)] == done  # what was read before the stamps is what it was
    check_look_up(world, plan, reads, steps, cut)
