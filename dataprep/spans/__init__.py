"""Passages that occur in several documents, cut wherever they occur again.

A word is cut if an n-gram of words covers it whose first occurrence, by (priority of the document, word offset), lies
elsewhere. N-grams do not reach over the end of a document. The result is that of a table of all n-grams, by four
stages in bounded memory (see ``steps``):

1. ``anchors`` (a task per file) hashes each document's winnowed anchors: equal n-grams have equal ones. The n-grams of
   one anchor are a stretch, of which all tokens are hashed too.
2. ``repeats`` (one task) finds the anchors that occur at least twice anywhere, and whether all their stretches are
   equal: then the n-grams of the first stretch are the first occurrences, and one row stands for all of them.
3. ``grams`` (a task per file) lists the stretches and, where they differ, the n-grams of repeated anchors, sorted by
   hash. Documents without one are passed over unread.
4. ``spans`` (one task) finds the first occurrence of each; all others are covered.

No word is lost: the word of a covered n-gram has a counterpart in the first occurrence, which lies before it by
(priority, word). If that one is covered too, the same holds for it, and so on; as the order falls at each step, the
last one is not covered and stays, in a document that stays. What is not promised is that a whole passage stays in one
piece: where the first occurrence of a passage is itself covered by two better ones that overlap in it, its words stay
there; and periodic text, whose first n-gram is overlapped by its own repeats, shrinks to one period.

N-grams and stretches are compared by 64-bit hashes: among G listed ones about G^2 / 2^65 pairs are taken for equal
that are not (one pair among 6 billion rows).
"""

from .store import SpanFolders

__all__ = ["SpanFolders"]
