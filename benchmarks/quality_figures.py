"""Quality filters against datatrove's: rate, and how often both judge alike.

    python benchmarks/quality_figures.py [--json]

Rates are MB of text per CPU second of this process. datatrove splits words by spaCy; where spaCy is not installed, a
regular expression stands in for it, which is several times faster, so that the ratio is then too small. The peer sees a
slice of whole documents, spread over the corpus, that it can do in seconds; agreement is counted on this slice.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dataprep.quality.adapter import DatatroveStep
from dataprep.quality.check import make_steps
from dataprep.quality.judges import Judge
from dataprep.screen_config import QualityStep

PEERS = {"gopher_repetition": "GopherRepetitionFilter", "gopher_quality": "GopherQualityFilter"}
OTHERS = {"periodic": {}, "length": {"min_words": 10}}


def cpu_s(work: Callable[[], object], repeats: int = 1) -> float:
    """Fewest CPU seconds of ``work``."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@contextmanager
def words_of_datatrove() -> Iterator[str]:
    """datatrove's English words: its own, or a regular expression's where spaCy is missing; says which."""
    from datatrove.utils import text, word_tokenizers

    if importlib.util.find_spec("spacy") is not None:
        yield "spaCy"
        return

    class Plain(word_tokenizers.WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return re.findall(r"\w+|[^\w\s]", text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [text]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [(0, len(text))]

    original = word_tokenizers.load_tokenizer_assignments
    word_tokenizers.load_tokenizer_assignments = lambda: {"eng": Plain}
    caches = (word_tokenizers.load_word_tokenizer, text.split_into_parts)
    for cache in caches:
        cache.cache_clear()
    try:
        yield "regex"
    finally:
        word_tokenizers.load_tokenizer_assignments = original
        for cache in caches:
            cache.cache_clear()


def size_mb(texts: Sequence[str]) -> float:
    """MB of UTF-8."""
    return sum(len(text.encode()) for text in texts) / 1e6


def spread(texts: Sequence[str], limit_mb: float) -> list[str]:
    """Every k-th text, about ``limit_mb`` together."""
    step = max(1, int(size_mb(texts) / limit_mb))
    return list(texts[::step])


def our_rate(name: str, options: dict[str, Any], texts: Sequence[str], repeats: int) -> tuple[float, Judge]:
    """(MB/s, the filter), in batches of about 4 MB as the reader gives them."""
    judge = make_steps([QualityStep(filter=name, options=options)])[0][1]
    if not isinstance(judge, Judge):
        raise TypeError(name)
    size = size_mb(texts)
    step = max(1, int(len(texts) / max(size / 4, 1)))
    batches = [pa.array(texts[start : start + step], pa.large_string()) for start in range(0, len(texts), step)]
    judge.judge(batches[0])
    return size / cpu_s(lambda: [judge.judge(batch) for batch in batches], repeats), judge


def compare(name: str, texts: Sequence[str], peer_mb: float, repeats: int) -> dict[str, Any]:
    """Our filter ``name`` and datatrove's on the same texts."""
    ours, judge = our_rate(name, {}, texts, repeats)
    some = spread(texts, peer_mb)
    mine = judge.judge(pa.array(some, pa.large_string())) > 0
    with words_of_datatrove() as words:
        peer = make_steps([QualityStep(datatrove=PEERS[name])])[0][1]
        if not isinstance(peer, DatatroveStep):
            raise TypeError(name)
        theirs: list[bool] = []
        seconds = cpu_s(lambda: theirs.extend(peer.apply(text, "")[0] is not None for text in some))
    pairs = list(zip(mine.tolist(), theirs, strict=True))
    return {
        "ours_mb_s": ours,
        "datatrove_mb_s": size_mb(some) / seconds,
        "ratio": ours / (size_mb(some) / seconds),
        "words_of_datatrove": words,
        "documents": len(some),
        "agree": sum(first == second for first, second in pairs) / len(pairs),
        "both_drop": sum(first and second for first, second in pairs),
        "only_ours": sum(first and not second for first, second in pairs),
        "only_datatrove": sum(second and not first for first, second in pairs),
    }


def quality_figures(texts: Sequence[str], peer_mb: float = 1.0, repeats: int = 3) -> dict[str, dict[str, Any]]:
    """Filter -> its figures: ``ours_mb_s``, and for those that datatrove has too its rate, the ratio and agreement."""
    figures = {name: compare(name, texts, peer_mb, repeats) for name in PEERS}
    for name, options in OTHERS.items():
        figures[name] = {"ours_mb_s": our_rate(name, options, texts, repeats)[0]}
    return figures


def corpus(limit_mb: float) -> list[str]:
    """Texts of the running Python installation, as many MB of .rst, .md and .txt as there are of .py."""
    paths = sysconfig.get_paths()
    roots = dict.fromkeys((paths["stdlib"], paths["purelib"]))
    found: list[str] = []
    for endings in ((".rst", ".md", ".txt"), (".py",)):
        taken = 0.0
        for path in sorted(path for root in roots for path in Path(root).rglob("*") if path.suffix in endings):
            if taken >= limit_mb / 2:
                break
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if 200 < len(text) < 200_000:
                found.append(text)
                taken += len(text) / 1e6
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    figures = quality_figures(corpus(20.0))
    if parser.parse_args().json:
        print(json.dumps(figures, indent=1))
        return
    for name, values in figures.items():
        shown = (
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
        )
        print(f"{name}: {', '.join(shown)}")


if __name__ == "__main__":
    main()
