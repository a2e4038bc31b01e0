"""Real lossy tokenizers through build and repack: ranges cover exactly their documents, whatever normalising did."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.tokenizer_models import small_model

from dataprep.repack import RepackOptions, repack
from dataprep.run import prepare, run_build
from loader.cli_options import Output
from loader.errors import RefusedError
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.verify import verify_dataset

QUIET = Output(quiet=True)
PIECES = [*"reel ﬁne Ａｂｃ ① \u200b e\u0301 東京 \u1112\u1161\u11ab \x00 ﷺ \u00ad".split(" "), "\u3000", "\n"]  # noqa: SIM905


def check_ranges(dataset: Dataset, texts: list[bytes]) -> dict[int, list[int]]:
    """Each document's segments, in order, are its text, cut between code points; returns its tokens."""
    count = int(dataset.shard_samples("web").sum())
    tokens_NT, table = dataset.read_samples("web", np.arange(count)), dataset.segments_of("web", np.arange(count))
    pieces: dict[int, list[tuple[int, int, int, list[int]]]] = {}
    for row in np.flatnonzero(~table.padding_S).tolist():
        start = int(table.token_start_S[row])
        ids = tokens_NT[table.sample_index_S[row], start : start + int(table.num_tokens_S[row])].tolist()
        place = (int(table.document_token_start_S[row]), int(table.byte_start_S[row]), int(table.byte_count_S[row]))
        pieces.setdefault(int(table.record_S[row]), []).append((*place, ids))
    assert sorted(pieces) == list(range(len(texts)))
    for record, parts in pieces.items():
        parts.sort()
        parts_of_text = [texts[record][first : first + size] for _, first, size, _ in parts]
        assert b"".join(parts_of_text) == texts[record]
        assert all(part.decode().encode() == part for part in parts_of_text)
    return {record: [token for *_, ids in parts for token in ids] for record, parts in pieces.items()}


@pytest.mark.parametrize("kind", ["sentencepiece", "huggingface"])
def test_ranges_cover_their_documents_after_build_and_repack(kind: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    texts = [
        f"{number} " + "".join(rng.choice(PIECES) + rng.choice([" ", "", "  "]) for _ in range(rng.randrange(1, 90)))
        for number in range(40)
    ]
    (tmp_path / "web").mkdir()
    (tmp_path / "web/a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "model").write_bytes(small_model(kind, lossless=False))
    config = {
        "version": 1,
        "output": "out",
        "sources": {"web": {"root": "web"}},
        "dedup": {"methods": ["exact"]},
        "holdout": {"fraction": 0.0},
        "tokenizer": {kind: {"load": "model"}},
        "pack": {"seq_len": 16},
        "run": {"workers": 1},
    }
    (tmp_path / "build.yaml").write_text(yaml.safe_dump(config))
    run_build(prepare(tmp_path / "build.yaml", (), read_only=False), QUIET)
    built = open_dataset(tmp_path / "out")
    assert built.manifest.tokenizer["lossless"] is False
    data = [text.encode() for text in texts]
    tokens = check_ranges(built, data)
    repack(tmp_path / "out", tmp_path / "longer", RepackOptions(48), 1, QUIET)
    assert verify_dataset(tmp_path / "longer") == []
    assert check_ranges(open_dataset(tmp_path / "longer"), data) == tokens
    with pytest.raises(RefusedError, match="lossy") as caught:
        repack(tmp_path / "out", tmp_path / "odd", RepackOptions(24), 1, QUIET)
    assert caught.value.code == "TR-REPACK-LOSSY"
    assert not (tmp_path / "odd").exists()
