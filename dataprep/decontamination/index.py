"""The index of all items: which grams there are, which items hold them, and the tables that find them in documents.

On disk, per array a ``.npy`` that all tasks of a machine map into memory (so it is there once), and ``items.parquet``
(benchmark, split, item, question, answer, words, grams, status) in the order of item numbers. Every item has a row,
also those that cannot match. ``forms.parquet`` (text). Gram numbers count up in order of their first form, so
they are a function of the items alone.

A form is a text by which an item is found: form i is question and answer of item i, later ones have a joint between
them or are questions alone. Shapes: I items, F forms, G distinct grams, R occurrences of grams in forms, L forms of
all grams together ("postings").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError, JobError
from loader.files import write_atomic
from loader.shards.access import npy_bytes

from ..arrays import load_array
from ..screen_config import DecontaminateConfig
from .items import ALLOWED, DUPLICATE, MATCHABLE, UNMATCHABLE, Item, Words, split, text_array

if TYPE_CHECKING:
    import pyarrow as pa

    from ..kernels.item_grams import GramTables

__all__ = ["ItemIndex", "build_index", "check_matchable", "load_index", "save_index"]

_ARRAYS = ("filter_B", "lead_key_P", "lead_lengths_P", "gram_key_Q", "gram_Q")
_OWN_ARRAYS = ("item_F", "grams_F", "place_G3", "posting_start_G", "posting_L")
_FILTER_BITS_PER_GRAM = 16
_LEAST_SLOTS = 1 << 10


@dataclass(frozen=True)
class ItemIndex:
    """The items, ready to be looked for.

    Attributes:
        items, status_I, words_I: the items, what became of each, the words of its text.
        form_F, item_F, grams_F: text and item (int64) of each form, its distinct grams that count (0 = cannot match).
        place_G3: int64: form, first word and number of words of each gram where it stands first.
        posting_start_G, posting_L: forms (int32, ascending) that hold each gram; starts with one entry more.
        tables: what the kernel searches with.
    """

    items: Sequence[Item]
    status_I: Sequence[str]
    words_I: NDArray[np.int64]
    form_F: Sequence[str]
    item_F: NDArray[np.int64]
    grams_F: NDArray[np.int64]
    place_G3: NDArray[np.int64]
    posting_start_G: NDArray[np.int64]
    posting_L: NDArray[np.int32]
    tables: GramTables

    def gram_text(self, gram: int) -> str:
        """The words of a gram as the first form that holds it writes them, spaces and line ends made one space."""
        from ..kernels.item_grams import bound_words
        from ..normalize import load_table
        from .search import read_only_buffers

        form, first, length = self.place_G3[gram].tolist()
        buffers = read_only_buffers(text_array([self.form_F[form]]))
        size = int(buffers.offset_N[-1])
        bound_T2 = np.zeros((size + 1, 2), np.int64)
        bound_words(buffers.data, (0, size), load_table(), bound_T2)
        raw = bytes(buffers.data[bound_T2[first, 0] : bound_T2[first + length - 1, 1]])
        return " ".join(raw.decode("utf-8", "replace").split())


def _grams(words: Words, length_I: NDArray[np.int64]) -> NDArray[np.int64]:
    """Occurrences of grams (R, 3): start in ``token_T``, length, text; ``length_I`` 0 leaves a text out."""
    count_I = np.where(length_I > 0, words.count_I - length_I + 1, 0)
    text_R = np.repeat(np.arange(len(length_I)), count_I)
    behind_R = np.arange(len(text_R)) - np.repeat(np.cumsum(count_I) - count_I, count_I)
    return np.stack((words.start_I[text_R] + behind_R, length_I[text_R], text_R), axis=1)


def _keys(words: Words, place_R3: NDArray[np.int64], lead: int) -> NDArray[np.uint64]:
    from ..kernels.item_grams import hash_grams

    key_R2 = np.zeros((len(place_R3), 2), np.uint64)
    hash_grams(words.token_T, place_R3, lead, key_R2)
    return key_R2


def _is_duplicate(items: Sequence[Item], words: Words) -> NDArray[np.bool_]:
    """Items whose words an earlier item of the same benchmark and split has."""
    seen: set[tuple[str, str, bytes]] = set()
    found = np.zeros(len(items), np.bool_)
    for i, (item, start, stop) in enumerate(zip(items, words.start_I, words.start_I[1:], strict=False)):
        name = (item.benchmark, item.split, words.token_T[start:stop].tobytes())
        found[i] = name in seen
        seen.add(name)
    return found


def _allowed_keys(allow: Sequence[str], lengths: Sequence[int]) -> NDArray[np.uint64]:
    """Keys of all grams of these lengths in the allowed texts."""
    words = split(allow)
    parts = [np.zeros(0, np.uint64)]
    for length in lengths:
        length_I = np.where(words.count_I >= length, length, 0)
        parts.append(_keys(words, _grams(words, length_I), 1)[:, 1])
    return np.unique(np.concatenate(parts))


def _power_of_two(count: int) -> int:
    return max(_LEAST_SLOTS, 1 << int(count - 1).bit_length()) if count else _LEAST_SLOTS


def _tables(
    lead_R: NDArray[np.uint64], length_R: NDArray[np.int64], key_G: NDArray[np.uint64], lead: int
) -> GramTables:
    """Tables of grams by key, and of what they begin with."""
    from ..kernels.item_grams import GramTables, fill_filter, fill_slots

    filter_B = np.zeros(_power_of_two(len(key_G) * _FILTER_BITS_PER_GRAM // 64), np.uint64)
    fill_filter(lead_R, filter_B)
    lead_K, group_R = np.unique(lead_R | np.uint64(1), return_inverse=True)
    lengths_K = np.zeros(len(lead_K), np.uint64)
    np.bitwise_or.at(lengths_K, group_R, np.uint64(1) << (length_R - 1).astype(np.uint64))
    lead_key_P = np.zeros(2 * _power_of_two(len(lead_K)), np.uint64)
    slot_K = np.zeros(len(lead_K), np.int64)
    fill_slots(lead_K, slot_K, lead_key_P)
    lead_lengths_P = np.zeros(len(lead_key_P), np.uint64)
    lead_lengths_P[slot_K] = lengths_K
    gram_key_Q = np.zeros(2 * _power_of_two(len(key_G)), np.uint64)
    slot_G = np.zeros(len(key_G), np.int64)
    fill_slots(key_G, slot_G, gram_key_Q)
    gram_Q = np.zeros(len(gram_key_Q), np.int32)
    gram_Q[slot_G] = np.arange(len(key_G))
    arrays = (filter_B, lead_key_P, lead_lengths_P, gram_key_Q, gram_Q)
    for array in arrays:
        array.flags.writeable = False  # as they are when mapped: kernels are compiled for one kind of array
    return GramTables(*arrays, lead)


def _forms(items: Sequence[Item], config: DecontaminateConfig) -> tuple[list[str], NDArray[np.int64]]:
    """Text and item of each form: all items' texts, then those with a joint, then questions alone."""
    answered = [number for number, item in enumerate(items) if item.answer]
    forms = [item.text() for item in items]
    for joint in config.joints:
        forms += [items[number].text(joint) for number in answered]
    if config.question_alone:
        forms += [items[number].question for number in answered]
    repeats = len(config.joints) + config.question_alone
    return forms, np.concatenate((np.arange(len(items)), np.tile(np.array(answered, np.int64), repeats)))


def _gram_lengths(
    items: Sequence[Item], item_F: NDArray[np.int64], words: Words, config: DecontaminateConfig
) -> NDArray[np.int64]:
    """Words of the grams of each form (int64, F); 0 where it cannot match."""
    num_alone = sum(bool(item.answer) for item in items) if config.question_alone else 0
    least_F = np.full(len(item_F), config.min_words)
    least_F[len(item_F) - num_alone :] = config.n
    out_I = (words.count_I[: len(items)] < config.min_words) | _is_duplicate(items, words)
    out_F = (words.count_I < least_F) | out_I[item_F]
    return np.where(out_F, 0, np.minimum(words.count_I, config.n))


def _status(items: Sequence[Item], words: Words, matchable: set[int], min_words: int) -> list[str]:
    """What becomes of each item."""
    duplicates = _is_duplicate(items, words).tolist()
    return [
        UNMATCHABLE if count < min_words else DUPLICATE if duplicate else MATCHABLE if number in matchable else ALLOWED
        for number, (count, duplicate) in enumerate(zip(words.count_I.tolist(), duplicates, strict=False))
    ]


def build_index(items: Sequence[Item], config: DecontaminateConfig) -> ItemIndex:
    """Index items: texts with n words or more by their distinct n-grams, shorter ones whole from ``min_words``;
    questions alone from n words.

    Grams that stand in an ``allow`` text are no part of any item, neither of what is found nor of what it is a share
    of. Cost: 2 s for a million grams, 150 B a gram.
    """
    form_F, item_F = _forms(items, config)
    words = split(form_F)
    length_F = _gram_lengths(items, item_F, words, config)
    place_R3 = _grams(words, length_F)
    lead = int(place_R3[:, 1].min()) if len(place_R3) else config.n
    key_R2 = _keys(words, place_R3, lead)
    allowed = _allowed_keys(config.allow, np.unique(place_R3[:, 1]).tolist())
    counts_R = ~np.isin(key_R2[:, 1], allowed)
    place_R3, key_R2 = place_R3[counts_R], key_R2[counts_R]
    sorted_G, first_G, group_R = np.unique(key_R2[:, 1], return_index=True, return_inverse=True)
    order_G = np.argsort(first_G, kind="stable")
    gram_of = np.empty(len(sorted_G), np.int64)
    gram_of[order_G] = np.arange(len(sorted_G))
    pairs = np.unique(gram_of[group_R] * len(item_F) + place_R3[:, 2])  # (gram, form), each once
    gram_L, form_L = np.divmod(pairs, max(1, len(item_F)))
    grams_F = np.bincount(form_L, minlength=len(item_F))
    place_G3 = place_R3[first_G[order_G]]
    own_G3 = np.stack((place_G3[:, 2], place_G3[:, 0] - words.start_I[place_G3[:, 2]], place_G3[:, 1]), axis=1)
    return ItemIndex(
        items=items,
        status_I=_status(items, words, set(item_F[grams_F > 0].tolist()), config.min_words),
        words_I=words.count_I[: len(items)],
        form_F=form_F,
        item_F=item_F,
        grams_F=grams_F,
        place_G3=own_G3,
        posting_start_G=np.searchsorted(gram_L, np.arange(len(sorted_G) + 1)),
        posting_L=form_L.astype(np.int32),
        tables=_tables(key_R2[:, 0], place_R3[:, 1], sorted_G[order_G], lead),
    )


def check_matchable(index: ItemIndex, config: DecontaminateConfig) -> None:
    """Fail where a benchmark cannot be found at all: a silent zero would read as clean.

    Raises:
        JobError: naming the benchmark.
    """
    matchable = {
        item.benchmark for item, status in zip(index.items, index.status_I, strict=True) if status == MATCHABLE
    }
    for name in sorted(set(config.benchmarks) - matchable):
        count = sum(item.benchmark == name for item in index.items)
        raise JobError(
            "TR-DECONTAMINATE-ITEMS",
            f"benchmark {name!r}: none of its {count} items can match",
            f"decontaminate.benchmarks.{name}",
            f"items of at least {config.min_words} words that no allowed text covers",
            "name other fields, lower decontaminate.min_words, or leave the benchmark out",
        )


def save_index(index: ItemIndex, folder: Path) -> None:
    """Write the index; ``items.parquet`` comes last."""
    import pyarrow as pa

    from ..tables import write_parquet

    arrays = {name: getattr(index.tables, name) for name in _ARRAYS}
    arrays |= {name: getattr(index, name) for name in _OWN_ARRAYS}
    arrays["lead"] = np.array([index.tables.lead], np.int64)
    for name, array in arrays.items():
        write_atomic(folder / f"{name}.npy", npy_bytes(array))
    columns = {
        "benchmark": pa.array([item.benchmark for item in index.items], pa.string()),
        "split": pa.array([item.split for item in index.items], pa.string()),
        "item": pa.array([item.id for item in index.items], pa.string()),
        "question": text_array([item.question for item in index.items]),
        "answer": text_array([item.answer for item in index.items]),
        "words": pa.array(index.words_I, pa.int64()),
        "grams": pa.array(index.grams_F[: len(index.items)], pa.int64()),
        "status": pa.array(index.status_I, pa.string()),
    }
    write_parquet(folder / "forms.parquet", pa.table({"text": text_array(index.form_F)}))
    write_parquet(folder / "items.parquet", pa.table(columns))


def _load(folder: Path, name: str) -> NDArray[Any]:
    return np.asarray(load_array(folder / f"{name}.npy", mapped=True))


def load_index(folder: Path, *, with_texts: bool = True) -> ItemIndex:
    """The index as written, its arrays mapped read-only. A search needs no texts: without them ``items``,
    ``status_I``, ``words_I`` and ``form_F`` are empty, and 100,000 items are there at once instead of in 0.6 s.

    Raises:
        DamageError: a file of it is missing or damaged.
    """
    from ..kernels.item_grams import GramTables

    items, status_I, words_I, form_F = [], [], np.zeros(0, np.int64), []
    if with_texts:
        table = _table(folder / "items.parquet")
        names = [table.column(name).to_pylist() for name in ("benchmark", "split", "item", "question", "answer")]
        items = [Item(*row) for row in zip(*names, strict=True)]
        status_I, words_I = table.column("status").to_pylist(), table.column("words").to_numpy()
        form_F = _table(folder / "forms.parquet").column("text").to_pylist()
    tables = GramTables(**{name: _load(folder, name) for name in _ARRAYS}, lead=int(_load(folder, "lead")[0]))
    arrays = {name: _load(folder, name) for name in _OWN_ARRAYS}
    return ItemIndex(items=items, status_I=status_I, words_I=words_I, form_F=form_F, tables=tables, **arrays)


def _table(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (OSError, ValueError) as error:
        message = f"the index of items cannot be read: {error}"
        raise DamageError("TR-WORK-DAMAGED", message, str(path), "a finished stage") from error
