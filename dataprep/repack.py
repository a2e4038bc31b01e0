"""``repack``: a Dataset at another sequence length, without tokenising again.

Every document keeps its id, Origin, tokens and byte ranges; only where samples begin and end is new. Buckets, windows
and keys are those of a build, so the shards of a repacked Dataset are, byte for byte, those of a fresh build at that
length (as long as the source fits the same buckets).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loader.canonical import digest_of
from loader.cli_options import Output
from loader.errors import ConfigError, DamageError, RefusedError
from loader.files import hash_file, write_atomic
from loader.shards.access import read_npy, resolve
from loader.shards.commit import DatasetInfo
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.default_mixture import DefaultMixture
from loader.shards.layout import DOCUMENT_INDEX_DTYPE, token_dtype
from loader.text.tokenizers import load_tokenizer

from .buckets import PACKING_COUNTS, bucket_bits
from .config import PackConfig, ShardsConfig
from .mix_repack import repacked_mixture
from .pack import PACKERS
from .places import SPLITS
from .repack_join import Joining, JoinShards, ShardRun
from .run import package_version
from .token_dataset import (
    TokenJob,
    WrittenSet,
    finished_set,
    remove_work,
    run_token_job,
    write_roots,
)
from .token_facts import TokenFacts

__all__ = ["RepackOptions", "repack"]

_VERSION = 1
_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class RepackOptions:
    """What may be asked for; None: as the Dataset was packed."""

    seq_len: int
    strategy: str | None = None
    window_documents: int | None = None
    shard_bytes: int | None = None


def repack(path: Path, out: Path, options: RepackOptions, workers: int, output: Output) -> dict[str, Any]:
    """Pack the Dataset at ``path`` anew into ``out``.

    Returns:
        Digests, places, what packing did by source, and the validation Dataset beside ``path``, if there is one.

    Raises:
        ConfigError: no Dataset, or options that cannot be.
        RefusedError: the output is taken; ``TR-REPACK-LOSSY``: byte ranges cannot be known.
        DamageError: the Dataset is damaged.
    """
    dataset = open_dataset(path)
    pack, shards = _packing(dataset, options)
    asked = {
        "version": _VERSION,
        "dataset": dataset.digest,
        "pack": vars(pack),
        "shards": vars(shards),
    }
    digest = digest_of(asked)
    if not finished_set(out, "repack", digest):
        job = _job(dataset, out, digest, pack, shards)
        run_token_job(job, workers, output, lambda written, folder: _describe(dataset, job, written, folder))
    remove_work(out)
    made = open_dataset(out)
    sibling = path.with_name(f"{path.name}-validation")
    rows = made.manifest.accounting.get("sources", {})
    return {
        "dataset": str(path),
        "dataset_digest": dataset.digest,
        "output": str(out),
        "digest": made.digest,
        "repack": digest,
        "sources": {name: rows[name] for name in made.source_names},
        "validation": str(sibling) if (sibling / "manifest.json").is_file() else None,
    }


def _packing(dataset: Dataset, options: RepackOptions) -> tuple[PackConfig, ShardsConfig]:
    """The new pack and shards block: the Dataset's own where nothing else is asked for."""
    config = dataset.manifest.config
    old, sizes = _block(config, "pack"), _block(config, "shards")
    strategy = options.strategy or str(old.get("strategy", PackConfig.strategy))
    if strategy not in PACKERS:
        raise ConfigError("TR-CONFIG-NAME", f"no strategy {strategy!r}", "--strategy", ", ".join(PACKERS))
    window = options.window_documents or _count(old, "window_documents", PackConfig.window_documents)
    size_bytes = options.shard_bytes or _count(sizes, "size_bytes", ShardsConfig.size_bytes)
    try:
        return PackConfig(options.seq_len, strategy, window), ShardsConfig(size_bytes)
    except ValueError as error:  # also of a manifest, whose configuration nobody checked
        raise ConfigError("TR-CONFIG-INVALID", str(error), str(dataset.path), "sizes that a build accepts") from None


def _block(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _count(block: Mapping[str, Any], key: str, default: int) -> int:
    value = block.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _job(dataset: Dataset, out: Path, digest: str, pack: PackConfig, shards: ShardsConfig) -> TokenJob:
    manifest = dataset.manifest
    facts = _facts(dataset)
    if facts.paired and pack.strategy == "concat":
        raise RefusedError(
            "TR-REPACK-LOSSY",
            "concat cuts documents anywhere, and with a lossy tokenizer the bytes on each side of a new border are not"
            " known",
            str(dataset.path),
            "best_fit or first_fit, at a multiple of the old sequence length",
            "build again from the raw documents with pack.strategy=concat",
        )
    runs, parts = _shard_runs(dataset)
    split = SPLITS.index(manifest.config["split"]) if manifest.config.get("split") in SPLITS else 0
    joining = Joining(pack.seq_len, pack.strategy, split, manifest.salt, facts)
    size = token_dtype(manifest.vocab_size).itemsize
    return TokenJob(
        kind="repack",
        digest=digest,
        output=out,
        split=split,
        seed=manifest.salt,
        pack=pack,
        shards=shards,
        parts=parts,
        bits={source.name: bucket_bits(source.num_tokens * size) for source in manifest.sources},
        facts=facts,
        make_step=lambda folder: JoinShards((dataset.path, dataset.digest), runs, joining, folder),
    )


def _facts(dataset: Dataset) -> TokenFacts:
    """What is known of the tokens: all of it with the Dataset's own lossless tokenizer; else, byte counts come from
    the segments."""
    manifest = dataset.manifest
    about = manifest.tokenizer
    imported = "import" in manifest.config  # its documents are as they were found: nothing was put around them
    bos, eos = (None if imported else about.get(name) for name in ("bos_id", "eos_id"))
    pad = about.get("pad_id")
    lengths_V = None
    if about.get("lossless") is True and "tokenizer/tokenizer.json" in manifest.files_hashed:
        folder = dataset.tokenizer_folder()
        assert folder is not None
        lengths_V = load_tokenizer(folder).bytes_of_ids()
    return TokenFacts(
        vocab_size=manifest.vocab_size,
        bos_id=bos,
        eos_id=eos,
        pad_id=int(pad) if isinstance(pad, int) else 0,
        lengths_V=lengths_V,
        paired=lengths_V is None,
    )


def _shard_runs(dataset: Dataset) -> tuple[tuple[ShardRun, ...], dict[str, tuple[int, ...]]]:
    """Runs of shards that hold their documents whole, and the parts of each source; one shard a run, unless a document
    lies in several."""
    manifest = dataset.manifest
    rows_R = dataset.shards_R
    reach_R = np.arange(len(rows_R))
    if int(rows_R["num_documents"].sum()) != sum(source.num_documents for source in manifest.sources):
        place = str(dataset.path / "documents.npy")
        index_M = read_npy(dataset.read_file("documents.npy"), DOCUMENT_INDEX_DTYPE, place)
        same_M = index_M["id"][1:] == index_M["id"][:-1]
        np.maximum.at(reach_R, index_M["shard"][:-1][same_M].astype(np.int64), index_M["shard"][1:][same_M])
    runs: list[ShardRun] = []
    parts: dict[str, tuple[int, ...]] = {}
    row = 0
    for source in manifest.sources:
        first, first_run = row, len(runs)
        while row < first + source.num_shards:
            start = row
            reach = int(reach_R[row])
            while row < reach:
                row += 1
                reach = max(reach, int(reach_R[row]))
            row += 1
            runs.append(ShardRun(source.name, start - first, row - first))
        parts[source.name] = tuple(range(first_run, len(runs)))
    return tuple(runs), parts


def _describe(dataset: Dataset, job: TokenJob, written: WrittenSet, folder: Path) -> DatasetInfo:
    """Side files of the new Dataset, and its manifest."""
    manifest = dataset.manifest
    _check_written(dataset, written)
    accounting = _accounting(manifest.accounting, written)
    config = {**manifest.config, "pack": vars(job.pack), "shards": vars(job.shards)}
    made = {"shards.npy", "documents.npy", "files.txt", "report.html"}
    made |= {f"{source.name}/index.json" for source in manifest.sources}
    extra = []
    for name in sorted(set(manifest.files_hashed) - made):
        _copy_verified(dataset, name, folder)
        extra.append(name)
    if "report.html" in manifest.files_hashed:
        from .report import dataset_page

        write_atomic(folder / "report.html", dataset_page(config, accounting, manifest.tokenizer).encode())
        extra.append("report.html")
    write_roots(folder, _moved_roots(dataset.path, job.output))
    return DatasetInfo(
        sources=dataset.source_names,
        seq_len=job.pack.seq_len,
        vocab_size=manifest.vocab_size,
        shards=(),
        files=dataset.input_files(),
        tokenizer=manifest.tokenizer,
        salt=manifest.salt,
        package_version=package_version(),
        parents={"dataset": dataset.digest, "repack": job.digest},
        config=config,
        accounting=accounting,
        order=manifest.order,
        mixture=_mixture(dataset, job.pack.seq_len, written),
        extra_files=tuple(extra),
    )


def _check_written(dataset: Dataset, written: WrittenSet) -> None:
    """Documents and tokens in = documents and tokens out, whatever lay between.

    Raises:
        DamageError: ``TR-ACCOUNT-WRONG``: some are lost or there twice.
    """
    for source in dataset.manifest.sources:
        out = written.counts[source.name]
        if (out["documents"], out["tokens"]) != (source.num_documents, source.num_tokens):
            raise DamageError(
                "TR-ACCOUNT-WRONG",
                f"source {source.name!r}: {source.num_documents:,} documents of {source.num_tokens:,} tokens were read,"
                f" {out['documents']:,} of {out['tokens']:,} tokens written",
                source.name,
                "the same documents and tokens",
                "remove the work folder and repack again; if it repeats, please report it",
            )


def _mixture(dataset: Dataset, seq_len: int, written: WrittenSet) -> DefaultMixture | None:
    """The Mixture that the Dataset was mixed for, over the new samples.

    Raises:
        RefusedError: a stage is too short for them.
    """
    manifest = dataset.manifest
    if manifest.mixture is None:
        return None
    new = Counter[str]()
    for record in written.records:
        new[record.source] += record.num_samples
    samples = {source.name: (source.num_samples, new[source.name]) for source in manifest.sources}
    return repacked_mixture(manifest.mixture, samples, (manifest.seq_len, seq_len))


def _accounting(old: Mapping[str, Any], written: WrittenSet) -> dict[str, Any]:
    """The account of documents as it was, with the new padding and packing; positions of the old samples are gone."""
    sources = {}
    for name, counts in written.counts.items():
        row = dict(old.get("sources", {}).get(name, {}))
        row["padding_tokens"] = counts["padding"]
        row["packing"] = {key: counts[key] for key in PACKING_COUNTS}
        row.pop("validation_packing", None)
        sources[name] = row
    return {**{key: value for key, value in old.items() if key != "mixture"}, "sources": sources}


def _copy_verified(dataset: Dataset, name: str, folder: Path) -> None:
    """Copy a side file in pieces, and compare the copy with the recorded hash."""
    source, target = resolve(dataset.path, name), folder / name

    def pieces() -> Any:
        with open(source, "rb") as file:
            while piece := file.read(_COPY_BYTES):
                yield piece

    write_atomic(target, pieces())
    if hash_file(target) != dataset.manifest.files_hashed[name].xxh3_128:
        target.unlink()
        dataset.read_file(name)  # says what is wrong


def _moved_roots(old: Path, new: Path) -> dict[str, str]:
    """Roots of job.json, as seen from the new Dataset; an unreadable job.json says nothing."""
    try:
        roots = json.loads((old / "job.json").read_bytes()).get("roots", {})
        pairs = {str(source): str(root) for source, root in roots.items()}
    except (OSError, ValueError, AttributeError):
        return {}
    return {
        source: root if os.path.isabs(root) or "://" in root else os.path.relpath(old / root, new)
        for source, root in pairs.items()
    }
