"""A whole build, finished once, and what tests of builds and of their Datasets ask of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.corpora import Corpus, make_corpus, write_config

from dataprep.run import prepare, run_build
from loader.cli import main
from loader.cli_options import Output
from loader.shards.dataset import Dataset, open_dataset

__all__ = ["Built", "borrow_work", "built", "run", "segments_of"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    """Run a verb with --json and return what it printed."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json", "--quiet"]) == code
    return json.loads(capsys.readouterr().out)


class Built:
    """A finished build: its corpus, configuration and result, and its two Datasets."""

    def __init__(self, corpus: Corpus, config: Path, result: dict[str, Any]) -> None:
        self.corpus, self.config, self.result = corpus, config, result
        self.datasets = [open_dataset(result["output"]), open_dataset(result["validation"])]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The corpus of ``make_corpus``, built."""
    folder = tmp_path_factory.mktemp("build")
    corpus = make_corpus(folder / "corpus")
    config = write_config(folder / "build.yaml", corpus)
    return Built(corpus, config, run_build(prepare(config, (), read_only=False), Output(quiet=True)))


def borrow_work(built: Built, folder: Path) -> Path:
    """A configuration in ``folder`` whose finished stages are those of ``built``, except the last one."""
    config = write_config(folder / "build.yaml", built.corpus)
    shutil.copytree(built.config.parent / "out.work", folder / "out.work", symlinks=True)
    return config


def segments_of(dataset: Dataset) -> Iterator[tuple[str, Any, int, Any]]:
    """(source, table, row, tokens of the sample) of every segment."""
    for source in dataset.source_names:
        count = int(dataset.shard_samples(source).sum())
        tokens_NT = dataset.read_samples(source, np.arange(count))
        table = dataset.segments_of(source, np.arange(count))
        for row in range(len(table.token_start_S)):
            yield source, table, row, tokens_NT[table.sample_index_S[row]]
