"""What ``inspect`` says of an account: a row a source in the Dataset's order, columns where something happened."""

from __future__ import annotations

from typing import Any

from loader.inspect_text import dataset_text

SOURCE = {"share": 0.5, "num_tokens": 10, "num_samples": 2, "num_documents": 4, "num_segments": 4, "padding": 0.0}
TOTALS = {"num_tokens": 20, "num_samples": 4, "num_documents": 8, "num_shards": 2, "size_bytes": 99}


def lines_of(accounts: dict[str, Any]) -> list[list[str]]:
    value = {
        "path": "d",
        "digest": "00",
        "seq_len": 8,
        "dtype": "uint16",
        "vocab_size": 9,
        "totals": TOTALS,
        "sources": [{"name": "web", **SOURCE}, {"name": "code", **SOURCE}],
        "files": {},
        "streaming": "s",
        **dict.fromkeys(("tokenizer", "parents", "order", "mixture", "package_version")),
        "accounting": {"mix": ["long"], "sources": accounts} if accounts else {},
    }
    return [line.split() for line in dataset_text(value).splitlines()[5:]]


def test_the_account_is_a_row_a_source_and_a_column_a_fate_that_befell_one() -> None:
    removed = {"exact": 0, "minhash": 2000, "mix": 0}
    rows = {
        "code": {"records": 5, "rejected": 1, "removed": dict.fromkeys(removed, 0), "held_out": 0, "trained": 4},
        "web": {"records": 2007, "rejected": 0, "removed": removed, "held_out": 3, "trained": 4, "packing": {}},
    }
    assert lines_of(rows)[:3] == [
        ["records", "of", "read", "rejected", "minhash", "held", "out", "trained"],
        ["web", "2,007", "0", "2,000", "3", "4"],
        ["code", "5", "1", "0", "0", "4"],
    ]


def test_no_account_is_no_table() -> None:
    assert lines_of({})[0] == ["files:", "0", "covered", "by", "hash", "beside", "the", "shards"]
