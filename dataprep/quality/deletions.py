"""Was a text only shortened, and where: the ranges of a text that a filter's output consists of.

A token must be able to name its bytes, so of what a filter makes of a text only left-out parts can be followed. Any
line end counts as ``\\n`` while looking; if that does not fit, any white space as a space; and if that does not either,
any run of white space in the output as one space. So a filter that joins lines or sentences by its own separator leaves
those of the original. The work is linear in the length of the text.

The output is looked for line by line (each in the first line that it can have come from: that never spoils a later
one), then by longer stretches, then character by character, which finds it if it is there at all.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["Range", "compose", "first_difference", "kept_ranges", "to_bytes"]

Range = tuple[int, int]
"""``[start, stop)``."""
_LINE_ENDS = {ord(character): "\n" for character in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"}
_WHITE_SPACE = {
    ord(character): " "
    for character in "\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
}
_STRETCHES = (32, 8, 2)
_MAX_MISSES = 64
_BLOCK = 512


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


def kept_ranges(before: str, after: str) -> list[Range] | None:
    """Ascending ranges ``[start, stop)`` of characters of ``before`` that are left in ``after``; None where ``after``
    is not ``before`` with parts left out. What the ranges hold may differ from ``after`` in white space."""
    at = before.find(after)
    if at >= 0:
        return _joined([(at, at + len(after))])
    for same, collapsed in ((_LINE_ENDS, False), (_WHITE_SPACE, False), (_WHITE_SPACE, True)):
        whole = before.replace("\r\n", " \n").translate(same)
        part = " ".join(after.split()) if collapsed else after.replace("\r\n", " \n").translate(same)
        for search in (_by_lines, _by_characters):
            found = search(whole, part)
            if found is not None:
                return _joined(found)
    return None


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
