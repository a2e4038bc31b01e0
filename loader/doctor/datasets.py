"""Whether the Datasets of a configuration are there, intact in their manifests, and made by one tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RefusedError, TokenreelError
from ..remote.store import is_url
from .finding import Check, State

if TYPE_CHECKING:
    from ..shards.dataset import Dataset
    from ..stream.store import StoreOptions

__all__ = ["check_datasets"]


def check_datasets(
    base: Path,
    train: Sequence[str],
    validation: Sequence[str],
    mixture: Collection[str] = (),
    options: StoreOptions | None = None,
) -> list[Check]:
    """Open every Dataset, without fetching shards, and compare them.

    Args:
        base: the configuration's folder. train, validation: URLs, or folders relative to it.
        mixture: sources that are trained on; none: all of the training Datasets.
        options: how Datasets at URLs are reached: the cache is the run's.
    """
    found: list[Check] = []
    opened: list[Dataset | None] = []
    for location in (*train, *validation):
        check, dataset = _open(base, location, options)
        found.append(check)
        opened.append(dataset)
    whole = [dataset for dataset in opened if dataset is not None]
    if whole:
        found.append(_tokenizer(whole))
    if validation and len(whole) == len(opened):
        found += _validated(mixture or _held(whole[: len(train)]), _held(whole[len(train) :]))
    return found


def _held(datasets: Sequence[Dataset]) -> list[str]:
    """Sources with tokens, each once."""
    return list(
        dict.fromkeys(source.name for dataset in datasets for source in dataset.manifest.sources if source.num_tokens)
    )


def _validated(trained: Collection[str], held_out: Collection[str]) -> list[Check]:
    """A warning where a source is trained on and nothing of it is held out: its loss would be missing in silence."""
    without = sorted(set(trained) - set(held_out))
    if not without:
        return []
    message = (
        f"nothing held out of {', '.join(without)}: no loss will be said of {'it' if len(without) == 1 else 'them'}"
    )
    return [
        Check("validation", "warn", message, "a larger holdout.fraction in the build, or another validation Dataset")
    ]


def _open(base: Path, location: str, options: StoreOptions | None) -> tuple[Check, Dataset | None]:
    from ..stream.store import look_into_dataset

    place = location if is_url(location) else str(base / location)
    name = f"dataset {location}"
    if not is_url(place) and not Path(place).is_dir():
        return Check(name, "missing", f"no folder {place}", "tokenreel build CONFIG"), None
    try:
        dataset = look_into_dataset(place, options)
    except TokenreelError as error:
        following = error.next_command or f"tokenreel verify {place}"
        return Check(name, "missing", f"{error.code}: {error.message}", following), None
    tokens = sum(source.num_tokens for source in dataset.manifest.sources)
    return Check(name, "ok", f"{tokens:,} tokens, digest {dataset.digest}"), dataset


def _tokenizer(datasets: Sequence[Dataset]) -> Check:
    """One sequence length, vocabulary and tokenizer; and the tokenizer encodes here as it did where it was made."""
    from ..text.tokenizers import load_tokenizer

    first = datasets[0]
    for dataset in datasets:
        for what, here, there in (
            ("sequence length", dataset.manifest.seq_len, first.manifest.seq_len),
            ("vocabulary", dataset.manifest.vocab_size, first.manifest.vocab_size),
            ("tokenizer", dataset.manifest.tokenizer.get("digest"), first.manifest.tokenizer.get("digest")),
        ):
            if here != there:
                message = f"{what} {here} in {dataset.location}, {there} in {first.location}"
                return Check("tokenizer", "missing", message, "build both with one tokenizer, or `tokenreel repack`")
    folder = first.tokenizer_folder() if not is_url(first.location) else None
    if folder is None:
        return Check("tokenizer", "ok", f"the same for all ({first.manifest.tokenizer.get('kind', 'unknown')})")
    try:
        load_tokenizer(folder)
    except (TokenreelError, ImportError) as error:
        state: State = "warn" if isinstance(error, RefusedError) else "missing"
        return Check("tokenizer", state, f"{folder}: {error}".splitlines()[0], f"tokenreel verify {first.location}")
    return Check("tokenizer", "ok", f"the same for all, and encodes as where it was made ({folder.parent})")
