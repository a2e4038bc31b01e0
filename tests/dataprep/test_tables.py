"""Tables of a job: no row is lost between batches, and their bytes depend on the rows alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep import tables

SCHEMA = pa.schema([("record", pa.int64()), ("reason", pa.string())])


def batches(cuts: list[int], first: int = 0) -> list[pa.RecordBatch]:
    found = []
    for count in cuts:
        rows = range(first, first + count)
        found.append(pa.RecordBatch.from_pydict({"record": [*rows], "reason": [f"r{row % 3}" for row in rows]}, SCHEMA))
        first += count
    return found


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 23), max_size=8))
def test_how_rows_come_does_not_show(cuts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS_PER_GROUP", 10)
    tables.write_batches(tmp_path / "a.parquet", SCHEMA, batches(cuts))
    tables.write_batches(tmp_path / "b.parquet", SCHEMA, batches([1] * sum(cuts)))
    assert pq.read_table(tmp_path / "a.parquet").column("record").to_pylist() == [*range(sum(cuts))]
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_tables_are_put_together_and_lacking_columns_are_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS_PER_GROUP", 10)
    tables.write_batches(tmp_path / "a.parquet", SCHEMA, batches([25]))
    tables.write_batches(tmp_path / "b.parquet", SCHEMA.remove(1), [b.select([0]) for b in batches([7], 25)])
    tables.copy_tables(tmp_path / "c.parquet", [tmp_path / "a.parquet", tmp_path / "b.parquet"], SCHEMA)
    table = pq.read_table(tmp_path / "c.parquet")
    assert table.column("record").to_pylist() == [*range(32)]
    assert table.column("reason").to_pylist() == [f"r{row % 3}" for row in range(25)] + [None] * 7


def test_a_table_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> list[pa.RecordBatch]:
        raise RuntimeError("no more rows")

    with pytest.raises(RuntimeError):
        tables.write_batches(tmp_path / "a.parquet", SCHEMA, (batch for _ in range(2) for batch in broken()))
    assert list(tmp_path.iterdir()) == []


def removed(*rows: tuple[int, int | None]) -> pa.Table:
    """Rows of removed.parquet: (document, witness)."""
    wanted = [
        {
            "document": one,
            "witness_document": other,
            "witness_source": f"s{other}" if other else None,
            "similarity": 0.9,
        }
        for one, other in rows
    ]
    return pa.Table.from_pylist(wanted, tables.REMOVED_SCHEMA)


def test_witnesses_that_were_removed_later_hand_on_theirs() -> None:
    """4 went to 5 and 6 to 7 by passages; 5 is cut whole by several stages together and has no witness."""
    first, spans, emptied = removed((1, 4), (2, 9), (3, None), (8, 6)), removed((6, 7), (4, 5)), removed((5, None))
    followed = tables.followed_rows(first.to_batches(), spans)
    rows = [
        row for batch in tables.followed_rows([*followed, *spans.to_batches()], emptied) for row in batch.to_pylist()
    ]
    assert [(row["document"], row["witness_document"], row["witness_source"]) for row in rows] == [
        (1, None, None),
        (2, 9, "s9"),
        (3, None, None),
        (8, 7, "s7"),
        (6, 7, "s7"),
        (4, None, None),
    ]
    ways = {row["document"]: row["reason"] for row in rows if row["reason"]}
    assert ways == {n: f"by way of {way:016x}, cut whole" for n, way in ((1, 5), (8, 6), (4, 5))}
    assert {row["similarity"] for row in rows} == {0.9}
