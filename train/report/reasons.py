"""Why a document was cut, in plain words: the pieces of evidence of ``train.spikes.attribute`` as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..spikes.attribute import CLIP, WHOLE_SOURCE_SCORE

__all__ = ["EVIDENCE_WORDS", "how_to_read", "reason_of"]

EVIDENCE_WORDS: dict[str, str] = {
    "echo": "it repeats itself more than its source does",
    "excess": "its loss does not fit the variety of its words",
    "order": "its word order says nothing: shuffled, it is hardly harder to predict",
    "pull": "it pulls on the model's output weights unlike its source does",
    "squeeze": "it compresses unlike its source: too repetitive, or too random",
    "surprise": "the model's loss on it is far from that of its source",
}
"""Evidence -> what it means that it is high; the keys of ``train.spikes.attribute.EVIDENCE``, and those of runs of an
earlier version."""


def how_to_read(names: Iterable[str], threshold: float) -> str:
    """What the scores of a run mean, in a paragraph.

    Args:
        names: the pieces of evidence that the run noted. threshold: above which a document was flagged.
    """
    pieces = "; ".join(f"{name}: {EVIDENCE_WORDS.get(name, name)}" for name in sorted(names))
    scale = f" {pieces}. 1.0 means as odd as the oddest 5 % of clean text, {CLIP:.1f} is the most." if pieces else ""
    return (
        "How odd a document is was measured in several ways against clean text from before the spike."
        f"{scale} The score puts them together; a document above {threshold:g} is flagged. {WHOLE_SOURCE_SCORE:.1f} "
        "stands for a source that was new to the run and was cut as a whole."
    )


_ODD = 1.0
_MOST_PIECES = 3


def reason_of(told: Mapping[str, Any], threshold: float, *, is_whole: bool = False) -> str:
    """One sentence about a flagged document.

    Args:
        told: what the investigation said of it: ``score`` and, where it was recorded, ``evidence`` (name -> oddness).
        threshold: above which a document is flagged. is_whole: its whole source was cut.
    """
    evidence = {str(name): float(value) for name, value in (told.get("evidence") or {}).items()}
    odd = sorted((name for name in evidence if evidence[name] >= _ODD), key=lambda name: -evidence[name])
    parts = [f"{EVIDENCE_WORDS.get(name, name)} ({name} {evidence[name]:.1f})" for name in odd[:_MOST_PIECES]]
    whole = "its source was new to the run and was cut as a whole" if is_whole else ""
    if parts:
        return "; ".join([*([whole] if whole else []), *parts])
    if whole:
        return whole + (": this document alone is not odd" if evidence else "")
    score = told.get("score")
    if score is None:
        return "flagged by the investigation"
    if evidence:
        return f"a little odd in every way, together above the threshold (score {score:g} > {threshold:g})"
    return f"odd by all evidence together (score {score:g} > {threshold:g})"
