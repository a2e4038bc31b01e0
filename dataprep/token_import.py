"""``import``: token sets that others wrote (``dataprep.imports``) become Datasets.

Every record of a set is a document, and its provenance names file and record; what the set has put around documents
(BOS, EOS) is part of them and stays. Which bytes of text its tokens stand for is known only with a lossless tokenizer,
and then counted in the text that they decode to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loader.canonical import digest_of
from loader.cli_options import Output
from loader.errors import ConfigError, DamageError
from loader.files import write_atomic
from loader.settings import to_plain
from loader.shards.commit import DatasetInfo
from loader.shards.dataset import open_dataset
from loader.shards.layout import token_dtype
from loader.shards.writer import check_source_name
from loader.text.tokenizers import MODEL_FILES, Tokenizer, load_tokenizer

from .buckets import PACKING_COUNTS, bucket_bits
from .imports import IMPORTS
from .imports.base import SetFile
from .run import package_version
from .stages import hash_inputs, read_json
from .token_dataset import (
    TokenJob,
    WrittenSet,
    finished_set,
    remove_work,
    run_token_job,
    write_roots,
)
from .token_facts import TokenFacts
from .token_import_files import FoundFiles, ImportFiles, ImportOptions

__all__ = ["ImportOptions", "import_set", "parse_sources"]

_VERSION = 1
_MOST_VOCABULARY = 1 << 31


def import_set(options: ImportOptions, out: Path, workers: int, output: Output) -> dict[str, Any]:
    """Import token sets as a Dataset into ``out``.

    Returns:
        Digest, places, and what came in and went out by source.

    Raises:
        ConfigError: options that cannot be, or no such files.
        DamageError: a file is not what its index says.
        RefusedError: the output is taken; see ``ImportFiles.run``.
    """
    if options.tokenizer is not None and not (options.tokenizer / "tokenizer.json").is_file():
        place, expected = str(options.tokenizer), "the folder tokenizer/ of a Dataset"
        raise ConfigError("TR-IMPORT-TOKENIZER", "no tokenizer folder here", place, expected)
    tokenizer = None if options.tokenizer is None else load_tokenizer(options.tokenizer)
    facts = _facts(options, tokenizer)
    found = _find(options)
    config = {
        "import": {
            "format": options.format,
            "column": options.set.column,
            "dtype": options.set.dtype,
            "keep_samples": options.keep_samples,
            "bytes": facts.lengths_V is not None,
        },
        "sources": [{"name": name, "format": options.format} for name in options.sources],
        "pack": to_plain(options.pack),
        "shards": to_plain(options.shards),
        "seed": options.seed,
    }
    inputs = digest_of([raw.identity() for raw in found.raw])
    vocabulary = [facts.vocab_size, facts.pad_id, None if tokenizer is None else tokenizer.digest]
    digest = digest_of({"version": _VERSION, "config": config, "inputs": inputs, "vocabulary": vocabulary})
    if not finished_set(out, "import", digest):
        job = _job(options, found, facts, out, digest)
        parents = {"import": digest, "inputs": inputs}
        run_token_job(
            job,
            workers,
            output,
            lambda written, folder: _describe(options, found, job, written, folder, (config, parents)),
        )
    remove_work(out)
    made = open_dataset(out)
    rows = made.manifest.accounting["sources"]
    return {
        "output": str(out),
        "digest": made.digest,
        "import": digest,
        "sources": {name: rows[name] for name in made.source_names},
    }


def _facts(options: ImportOptions, tokenizer: Tokenizer | None) -> TokenFacts:
    vocab_size = options.vocab_size
    if vocab_size is None:
        if tokenizer is None:
            raise ConfigError(
                "TR-IMPORT-VOCABULARY", "how many ids there are is not known", "--vocab-size", "it, or --tokenizer"
            )
        vocab_size = tokenizer.vocab_size
    least = 1 if tokenizer is None else tokenizer.vocab_size
    if not least <= vocab_size <= _MOST_VOCABULARY:
        raise ConfigError(
            "TR-IMPORT-VOCABULARY", f"a vocabulary of {vocab_size:,}", "--vocab-size", f"from {least:,} to 2^31"
        )
    pad_id = options.pad_id
    if pad_id is None:
        pad_id = 0 if tokenizer is None else tokenizer.pad_id
    if not 0 <= pad_id < vocab_size:
        raise ConfigError("TR-IMPORT-VOCABULARY", f"pad id {pad_id}", "--pad-id", f"below {vocab_size:,}")
    lengths_V = None if tokenizer is None else tokenizer.bytes_of_ids()
    if lengths_V is not None:  # a vocabulary padded for the hardware: its further ids stand for nothing
        lengths_V = np.concatenate([lengths_V, np.zeros(vocab_size - len(lengths_V), np.int32)])
    return TokenFacts(vocab_size, None, None, pad_id, lengths_V)


def _find(options: ImportOptions) -> FoundFiles:
    if options.format not in IMPORTS:
        raise ConfigError("TR-CONFIG-NAME", f"no format {options.format!r}", "--format", ", ".join(IMPORTS))
    files: list[SetFile] = []
    owners: list[str] = []
    roots: dict[str, Path] = {}
    named: list[tuple[str, str, Path]] = []
    for source, paths in options.sources.items():
        check_source_name(source)
        mine = [file for path in paths for file in IMPORTS[options.format].find(Path(os.path.abspath(path)))]
        mine = sorted({file.path: file for file in mine}.values(), key=lambda file: file.path.as_posix())
        if not mine:
            raise ConfigError("TR-IMPORT-NONE", "the set has no shards", f"source {source!r}", "at least one")
        roots[source] = Path(os.path.commonpath([file.path.parent for file in mine]))
        beside = {path: None for file in mine for path in (file.path, *file.beside)}
        named += [(source, os.path.relpath(path, roots[source]).replace(os.sep, "/"), path) for path in beside]
        files += mine
        owners += [source] * len(mine)
    return FoundFiles(tuple(files), tuple(owners), roots, hash_inputs(named, None))


def _job(options: ImportOptions, found: FoundFiles, facts: TokenFacts, out: Path, digest: str) -> TokenJob:
    parts = {
        source: tuple(part for part, owner in enumerate(found.owners) if owner == source) for source in options.sources
    }
    size = token_dtype(facts.vocab_size).itemsize
    bits = {}
    for source in options.sources:
        read = sum(
            file.path.stat().st_size for file, owner in zip(found.files, found.owners, strict=True) if owner == source
        )
        bits[source] = bucket_bits(read * size // 2)
    return TokenJob(
        kind="import",
        digest=digest,
        output=out,
        split=0,
        seed=options.seed,
        pack=options.pack,
        shards=options.shards,
        parts=parts,
        bits=bits,
        facts=facts,
        make_step=lambda folder: ImportFiles(options, found, facts, folder),
        inputs=found.raw,
    )


def _describe(
    options: ImportOptions,
    found: FoundFiles,
    job: TokenJob,
    written: WrittenSet,
    folder: Path,
    said: tuple[Mapping[str, Any], Mapping[str, str]],
) -> DatasetInfo:
    """Side files and manifest; ``said`` = configuration and parents."""
    config, parents = said
    accounting = {"sources": _accounting(found, job, written)}
    about: dict[str, Any] = {
        "kind": "unknown",
        "vocab_size": job.facts.vocab_size,
        "bos_id": None,
        "eos_id": None,
        "pad_id": job.facts.pad_id,
        "lossless": False,
    }
    extra = []
    if options.tokenizer is not None:
        about = read_json(options.tokenizer / "tokenizer.json")
        for name in sorted(("tokenizer.json", MODEL_FILES[about["kind"]])):  # whatever else lies there is no part of it
            write_atomic(folder / "tokenizer" / name, (options.tokenizer / name).read_bytes())
            extra.append(f"tokenizer/{name}")
        load_tokenizer(folder / "tokenizer")
        del about["version"]
    from .report import dataset_page

    write_atomic(folder / "report.html", dataset_page(config, accounting, about).encode())
    write_roots(
        folder, {source: os.path.relpath(root, os.path.abspath(job.output)) for source, root in found.roots.items()}
    )
    return DatasetInfo(
        sources=tuple(options.sources),
        seq_len=options.pack.seq_len,
        vocab_size=job.facts.vocab_size,
        shards=(),
        files=found.input_files(),
        tokenizer=about,
        salt=options.seed,
        package_version=package_version(),
        parents=parents,
        config=config,
        accounting=accounting,
        extra_files=(*extra, "report.html"),
    )


def _accounting(found: FoundFiles, job: TokenJob, written: WrittenSet) -> dict[str, dict[str, Any]]:
    """Records in = documents + empty ones, tokens in = tokens out; checked."""
    sources = {}
    for source, parts in job.parts.items():
        read = [read_json(written.folder / f"counts.{part:05d}.json") for part in parts]
        records, empty, tokens = (sum(counts[name] for counts in read) for name in ("records", "empty", "tokens"))
        out = written.counts[source]
        if (records, tokens) != (out["documents"] + empty, out["tokens"]):
            raise DamageError(
                "TR-ACCOUNT-WRONG",
                f"source {source!r}: {records:,} records of {tokens:,} tokens were read, {out['documents']:,} documents"
                f" of {out['tokens']:,} tokens written, {empty:,} records are empty",
                source,
                "records = documents + empty ones",
                "remove the work folder and import again; if it repeats, please report it",
            )
        sources[source] = {
            "files": len(parts),
            "records": records,
            "empty": empty,
            "trained": out["documents"],
            "trained_bytes": out["bytes"],
            "trained_tokens": out["tokens"],
            "padding_tokens": out["padding"],
            "packing": {name: out[name] for name in PACKING_COUNTS},
        }
    return sources


def parse_sources(arguments: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """``SOURCE=PATH`` arguments; a source may be named several times.

    Raises:
        ConfigError: one has another form.
    """
    sources: dict[str, tuple[Path, ...]] = {}
    for argument in arguments:
        name, found, path = argument.partition("=")
        if not found or not name or not path:
            raise ConfigError("TR-USAGE", f"{argument!r} names no source", "SOURCE=PATH", "web=folder")
        sources[name] = (*sources.get(name, ()), Path(path))
    return sources
