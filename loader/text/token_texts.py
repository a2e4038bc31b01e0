"""Texts of a Dataset that was imported as tokens: there is no file of text, so its documents are decoded.

With a lossless tokenizer this is the very text whose bytes the segments count; with a lossy one it is what the
tokenizer makes of the tokens, and the segments count no bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError, DamageError
from .records import RecordPlace, document_id
from .tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from ..shards.dataset import Dataset
    from ..shards.manifest import InputFile

__all__ = ["TokenTexts", "is_imported"]


def is_imported(dataset: Dataset) -> bool:
    """Whether the Dataset's documents came as tokens."""
    return "import" in dataset.manifest.config


class TokenTexts:
    """Decoded documents of one imported Dataset."""

    def __init__(self, dataset: Dataset) -> None:
        """Load the Dataset's tokenizer.

        Raises:
            ConfigError: it was imported without one.
        """
        folder = dataset.tokenizer_folder()
        if folder is None:
            raise ConfigError(
                "TR-TEXT-TOKENS",
                "the Dataset was imported as tokens, without a tokenizer: its documents have no text",
                dataset.location,
                "a tokenizer",
                "tokenreel import ... --tokenizer FOLDER",
            )
        self._dataset = dataset
        self._tokenizer: Tokenizer = load_tokenizer(folder)

    def texts(self, entry: InputFile, places: Sequence[RecordPlace]) -> dict[RecordPlace, str]:
        """Texts of records of one file of the imported set.

        Raises:
            DamageError: the Dataset holds no such record, or is damaged.
        """
        return {place: self._text(entry, place.record) for place in places}

    def _text(self, entry: InputFile, record: int) -> str:
        document = document_id(entry.source, entry.path, record, self._dataset.manifest.salt)
        pieces: list[tuple[int, list[int]]] = []
        for source, samples_N in self._dataset.samples_of_document(document):
            table = self._dataset.segments_of(source, samples_N)
            tokens_NT = self._dataset.read_samples(source, samples_N)
            for row in np.flatnonzero(table.document_id_S == np.uint64(document)).tolist():
                start = int(table.token_start_S[row])
                ids_T = tokens_NT[table.sample_index_S[row], start : start + int(table.num_tokens_S[row])]
                pieces.append((int(table.document_token_start_S[row]), ids_T.tolist()))
        if not pieces:
            place = f"{self._dataset.path}: {entry.path} record {record}"
            raise DamageError("TR-TEXT-RECORD", "the Dataset holds no such record", place)
        ids: list[int] = []
        for start, tokens in sorted(pieces):
            if start != len(ids):
                place = f"{self._dataset.path}: {entry.path} record {record}"
                raise DamageError("TR-TEXT-RECORD", f"no tokens {len(ids)} to {start} of the document", place)
            ids += tokens
        return self._decoded(ids)

    def _decoded(self, ids: list[int]) -> str:
        """The text of ids; one that no tokenizer knows (of a padded vocabulary) shows as U+FFFD."""
        known, data = self._tokenizer.vocab_size, b""
        for inside, run in itertools.groupby(ids, lambda token: token < known):
            run_ids = list(run)
            data += self._tokenizer.decode_bytes(run_ids) if inside else "\ufffd".encode() * len(run_ids)
        return data.decode("utf-8", "replace")
