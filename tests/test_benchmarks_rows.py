"""The verdicts of benchmark rows: what was not measured is never said to hold."""

from __future__ import annotations

import pytest

from benchmarks.rows import row


@pytest.mark.parametrize(
    ("more", "holds"),
    [
        ({}, None),
        ({"target": (">=", 2)}, True),
        ({"target": ("<=", 1)}, False),
        ({"peer_value": 4, "ratio_target": (">=", 0.5)}, True),
        ({"peer_value": 4, "ratio_target": (">=", 0.6)}, False),
        ({"peer_value": None, "ratio_target": (">=", 0.5)}, None),
        ({"peer_value": None, "target": (">=", 2), "ratio_target": (">=", 0.5)}, None),
        ({"peer_value": None, "target": (">=", 3), "ratio_target": (">=", 0.5)}, False),
        ({"peer_value": 4, "target": (">=", 2), "ratio_target": (">=", 0.6)}, False),
    ],
)
def test_a_row_holds_where_everything_it_promises_was_measured(more: dict[str, object], holds: bool | None) -> None:
    assert row("it", 2.0, "s", peer="peer", **more)["holds"] is holds
