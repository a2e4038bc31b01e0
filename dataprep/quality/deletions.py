"""Was a text only shortened, and where: the ranges of a text that a filter's output consists of.

A token must be able to name its bytes, so of what a filter makes of a text only left-out parts can be followed. Any
line end counts as ``\\n`` while looking, and if that does not fit, white space does not count at all: a filter that
joins lines or sentences by its own separator leaves those of the original. The work is linear in the length of both.

The output is looked for line by line (each in the first line that it can have come from: that never spoils a later
one), then by longer stretches, then character by character, which finds it if it is there at all.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

__all__ = ["Range", "compose", "first_difference", "kept_ranges", "to_bytes"]

Range = tuple[int, int]
"""``[start, stop)``."""
_LINE_ENDS = {ord(character): "\n" for character in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"}
_SPACE = re.compile(r"\s")
_STRETCHES = (32, 8, 2)
_MAX_MISSES = 64
_BLOCK = 512
_MAX_SLIDE = 200


def first_difference(first: str, second: str) -> int:
    """Characters that both texts begin with."""
    at, end = 0, min(len(first), len(second))
    while at < end and first[at : at + _BLOCK] == second[at : at + _BLOCK]:
        at += _BLOCK
    while at < end and first[at] == second[at]:
        at += 1
    return min(at, end)


def _same_end(first: str, second: str, at_most: int) -> int:
    """Characters, up to ``at_most``, that both texts end with."""
    size = 0
    while size + _BLOCK <= at_most and first.endswith(
        second[len(second) - size - _BLOCK : len(second) - size], 0, len(first) - size
    ):
        size += _BLOCK
    while size < at_most and first[-1 - size] == second[-1 - size]:
        size += 1
    return size


def _joined(ranges: list[Range]) -> list[Range]:
    """Ascending ranges without empty ones and without touching ones."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return joined


def _greedy(before: str, after: str, start: int, stop: int) -> list[Range] | None:
    """``after`` in ``before[start:stop]``, each character at the first place that is left."""
    ranges: list[Range] = []
    for character in after:
        at = before.find(character, start, stop)
        if at < 0:
            return None
        if ranges and ranges[-1][1] == at:
            ranges[-1] = (ranges[-1][0], at + 1)
        else:
            ranges.append((at, at + 1))
        start = at + 1
    return ranges


def _by_stretches(before: str, after: str, start: int, stop: int) -> list[Range] | None:
    """``after`` in ``before[start:stop]`` by long stretches; misses some that are there."""
    ranges: list[Range] = []
    done = misses = 0
    while done < len(after):
        for stretch in _STRETCHES:
            piece = after[done : done + stretch]
            at = before.find(piece, start, stop)
            if at >= 0:
                break
            misses += 1
        if at < 0 or misses > _MAX_MISSES:
            return None
        size = len(piece)
        while before[at + size : at + size + _BLOCK] == after[done + size : done + size + _BLOCK] != "":
            size += _BLOCK
        while at + size < stop and done + size < len(after) and before[at + size] == after[done + size]:
            size += 1
        size = min(size, len(after) - done, stop - at)
        ranges.append((at, at + size))
        start, done = at + size, done + size
    return ranges


def _by_characters(before: str, after: str) -> list[Range] | None:
    """``after`` as ``before`` with parts left out, with what begins and ends alike kept whole where that works."""
    head = first_difference(before, after)
    tail = _same_end(before, after, min(len(after) - head, len(before) - head))
    middle, stop = after[head : len(after) - tail], len(before) - tail
    for search in (_by_stretches, _greedy):
        found = search(before, middle, head, stop)
        if found is not None:
            return [(0, head), *found, (stop, len(before))]
    return None


def _from_line(line: str, wanted: str) -> list[Range] | None:
    """How ``wanted`` comes from one line: the line, a stripped one, or one with less than half left out."""
    if line == wanted:
        return [(0, len(line))]
    content = line.strip()
    if not wanted or 2 * len(wanted) < len(content) or len(wanted) > len(line):
        return [] if not wanted and not content else None
    at = line.find(wanted)
    return [(at, at + len(wanted))] if at >= 0 else _by_characters(line, wanted)


def _by_lines(before: str, after: str) -> list[Range] | None:
    """``after`` line by line from lines of ``before``."""
    lines, wanted = before.split("\n"), after.split("\n")
    ranges: list[Range] = []
    found = start = 0
    for line in lines:
        mine = _from_line(line, wanted[found])
        if mine is not None:
            ranges += [(start + first, start + last) for first, last in mine]
            found += 1
            if found == len(wanted):
                return ranges
            ranges.append((start + len(line), start + len(line) + 1))
        start += len(line) + 1
    return None


def _slide(before: str, left: Range, start: int) -> int:
    """By how many characters the border between ``left`` and a range that begins at ``start`` moves to the left, with
    no change of what both hold, to lie behind white space: a sentence shall not begin in one that was left out."""
    for size in range(min(_MAX_SLIDE, left[1] - left[0]) + 1):
        at = left[1] - size
        if at == left[0] or before[at - 1].isspace():
            return size
        if before[at - 1] != before[start - 1 - size]:
            break
    return 0


def _slid(before: str, ranges: list[Range]) -> list[Range]:
    """The ranges with their borders behind white space where that is possible."""
    slid: list[Range] = []
    for start, stop in ranges:
        size = _slide(before, slid[-1], start) if slid else 0
        if size:
            slid[-1] = (slid[-1][0], slid[-1][1] - size)
        slid.append((start - size, stop))
    return _joined(slid)


def _apart_from_white_space(before: str, after: str) -> list[Range] | None:
    """``after`` in ``before`` where white space does not count: stretches keep theirs, and where something is left out
    between two words, one character of white space stays if there was any."""
    words = after.split()
    found = _by_characters("".join(before.split()), "".join(words))
    if found is None:
        return None
    places = [place for place, character in enumerate(before) if not character.isspace()]
    borders = set(accumulate(len(word) for word in words))
    ranges: list[Range] = []
    done = 0
    for first, last in _joined(found):
        start = places[first]
        if ranges:
            size = _slide(before, ranges[-1], start)
            ranges[-1] = (ranges[-1][0], ranges[-1][1] - size)
            border = done - sum(not character.isspace() for character in before[start - size : start])
            start -= size
            space = _SPACE.search(before, ranges[-1][1], start)
            if border in borders and space is not None and not before[ranges[-1][1] - 1].isspace():
                ranges.append(space.span())
        ranges.append((start, places[last - 1] + 1))
        done += last - first
    return ranges


def kept_ranges(before: str, after: str) -> list[Range] | None:
    """Ascending ranges ``[start, stop)`` of characters of ``before`` that are left in ``after``; None where ``after``
    is not ``before`` with parts left out. What the ranges hold may differ from ``after`` in white space."""
    at = before.find(after)
    if at >= 0:
        return _joined([(at, at + len(after))])
    whole, part = (text.replace("\r\n", " \n").translate(_LINE_ENDS) for text in (before, after))
    for search in (_by_lines, _by_characters):
        found = search(whole, part)
        if found is not None:
            return _slid(whole, _joined(found))
    found = _apart_from_white_space(before, after)
    return None if found is None else _joined(found)


def to_bytes(text: str, ranges: list[Range]) -> list[Range]:
    """Ascending ranges of characters of ``text`` as ranges of its UTF-8 bytes."""
    if text.isascii():
        return ranges
    found: list[Range] = []
    character = byte = 0
    for start, stop in ranges:
        first = byte + len(text[character:start].encode())
        byte = first + len(text[start:stop].encode())
        character = stop
        found.append((first, byte))
    return found


def compose(pieces: list[Range], inner: list[Range]) -> list[Range]:
    """Ranges of a text that consists of ``pieces`` of another one, as ranges of that other one."""
    starts, total = [], 0
    for start, stop in pieces:
        starts.append(total)
        total += stop - start
    found: list[Range] = []
    for at, stop in inner:
        start, piece = at, bisect_right(starts, at) - 1
        while start < stop:
            origin = pieces[piece][0] - starts[piece]
            end = min(stop, pieces[piece][1] - origin)
            found.append((origin + start, origin + end))
            start, piece = end, piece + 1
    return _joined(found)
