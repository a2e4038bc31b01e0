"""One peer's dedup of JSONL files, run by the Python of the peer's own environment; needs nothing of this project.

    python run.py PEER RESULT SCRATCH FILE...

Writes JSON to RESULT: CPU seconds (user + system, children included) of each phase, peak resident memory, ids of the
removed documents. Every peer compares at J = 0.8 with word 5-grams and 25 bands of 5 rows, in one process, the way
its own documentation puts the parts together:

* datasketch: MinHash (128 permutations, xxh32), MinHashLSH; a document with any candidate among those kept before it
  is removed, since the index's answer is what its users act on.
* rensa: RMinHash (125 permutations) and RMinHashDeduplicator, which removes at an estimate of 0.8.
* gaoya: MinHashStringIndex with its own words; a document is removed if a query finds one kept at an estimate of 0.8.
* datatrove: its four MinHash stages with spaCy's English words: clusters by union-find, one kept of each;
  datatrove-14x8: the same with its default bands.
* text-dedup, text-dedup-checked: its stages as ``text_dedup.minhash.main`` runs them, without and with the check of
  false positives. What it passes over as too short is ``filtered``, not removed.

datasketch and rensa bring no words: both get lower-case ``\\w+`` runs joined by blanks.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PEERS", "Run"]

THRESHOLD = 0.8
BANDS, ROWS, WORDS = 25, 5, 5
BATCH = 256
_WORD = re.compile(r"\w+")


def cpu_s() -> float:
    """User and system seconds of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """Largest resident memory of this process or of one child, in MB. ``ru_maxrss`` of the process itself would count
    the memory of the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    own = int(status.split("VmHWM:")[1].split()[0])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1e3


class Run:
    """The documents of one run and what it cost; ``removed`` holds document numbers."""

    def __init__(self, files: list[Path], scratch: Path) -> None:
        self.files = files
        self.scratch = scratch
        self.phases: dict[str, float] = {}
        self.extra: dict[str, object] = {}
        self.removed: list[int] = []
        with self.phase("read"):
            records = [json.loads(line) for file in files for line in file.open("rb")]
            self.ids = [record["id"] for record in records]
            self.texts = [record["text"] for record in records]
        self.read_mb = peak_mb()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the CPU seconds of the block to a phase."""
        start = cpu_s()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + cpu_s() - start

    def batches(self) -> Iterator[tuple[int, list[str]]]:
        """Numbers of first documents, and texts: token lists of all at once would be the peer's peak memory."""
        for first in range(0, len(self.texts), BATCH):
            yield first, self.texts[first : first + BATCH]

    def result(self) -> dict[str, object]:
        """Everything that was measured."""
        text_mb = sum(len(text.encode()) for text in self.texts) / 1e6
        return {
            "documents": len(self.texts),
            "text_mb": text_mb,
            "cpu_s": self.phases,
            "total_cpu_s": sum(s for name, s in self.phases.items() if name != "read"),
            "peak_rss_mb": peak_mb(),
            "read_rss_mb": self.read_mb,
            **self.extra,
            "removed": [self.ids[number] for number in self.removed],
        }


def shingles(text: str) -> list[str]:
    """Word 5-grams; one of everything where there are fewer words, none without words."""
    words = _WORD.findall(text.lower())
    return [" ".join(words[i : i + WORDS]) for i in range(max(1, len(words) - WORDS + 1))] if words else []


def run_datasketch(run: Run) -> None:
    """datasketch 2."""
    import xxhash
    from datasketch import MinHash, MinHashLSH

    lsh = MinHashLSH(num_perm=128, params=(BANDS, ROWS))
    prototype = MinHash(num_perm=128, hashfunc=xxhash.xxh32_intdigest)
    for first, texts in run.batches():
        with run.phase("tokenise"):
            sets = [[shingle.encode() for shingle in set(shingles(text))] for text in texts]
        with run.phase("sign"):
            sketches = [prototype.copy() for _ in sets]
            for sketch, values in zip(sketches, sets, strict=True):
                sketch.update_batch(values)
        with run.phase("match"):
            for number, sketch in enumerate(sketches, first):
                if not sets[number - first]:
                    continue
                if lsh.query(sketch):
                    run.removed.append(number)
                else:
                    lsh.insert(number, sketch, check_duplication=False)


def run_rensa(run: Run) -> None:
    """rensa 0.5."""
    import rensa

    dedup = rensa.RMinHashDeduplicator(THRESHOLD, BANDS * ROWS, True, BANDS)
    for first, texts in run.batches():
        with run.phase("tokenise"):
            sets = [shingles(text) for text in texts]
        with run.phase("sign"):
            sketches = rensa.RMinHash.from_token_sets(sets, BANDS * ROWS, 42)
        with run.phase("match"):
            numbers = [number for number in range(len(texts)) if sets[number]]
            kept = dedup.add_pairs([(str(first + number), sketches[number]) for number in numbers])
            run.removed += [first + number for number, keep in zip(numbers, kept, strict=True) if not keep]


def run_gaoya(run: Run) -> None:
    """gaoya 0.2; it signs within query and insert, so signing is also measured alone, outside the total."""
    import gaoya

    def index() -> object:
        return gaoya.minhash.MinHashStringIndex(32, THRESHOLD, BANDS, ROWS, None, "word", True, (WORDS, WORDS))

    found = index()
    with run.phase("sign and match"):
        for number, text in enumerate(run.texts):
            if found.query(text):
                run.removed.append(number)
            else:
                found.insert_document(number, text)
    start, alone = cpu_s(), index()
    for number, text in enumerate(run.texts):
        alone.insert_document(number, text)
    run.extra["sign_alone_cpu_s"] = cpu_s() - start


def run_datatrove(run: Run, bands: int = BANDS, rows: int = ROWS) -> None:
    """datatrove 0.10."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup import MinhashDedupBuckets as Buckets
    from datatrove.pipeline.dedup import MinhashDedupCluster as Cluster
    from datatrove.pipeline.dedup import MinhashDedupFilter as Filter
    from datatrove.pipeline.dedup import MinhashDedupSignature as Signature
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from loguru import logger

    logger.remove()
    config = MinhashConfig(n_grams=WORDS, num_buckets=bands, hashes_per_bucket=rows)
    signed, matched, marked = (str(run.scratch / name) for name in ("signed", "matched", "marked"))
    documents = [Document(text=text, id=id_) for text, id_ in zip(run.texts, run.ids, strict=True)]
    step = Signature(signed, config)
    step.get_shingles("the first text loads the model of words")
    with run.phase("tokenise and sign"):
        step.run(iter(documents), 0, 1)
    with run.phase("match"):
        for bucket in range(bands):
            Buckets(signed, matched, config=config).run(None, bucket, bands)
    with run.phase("cluster"):
        Cluster(matched, marked, config=config).run(None, 0, 1)
    with run.phase("filter"):
        kept = {document.id for document in Filter(marked).run(iter(documents), 0, 1)}
    run.removed = [number for number, id_ in enumerate(run.ids) if id_ not in kept]


def run_datatrove_default(run: Run) -> None:
    """datatrove 0.10 with the bands that it uses if told nothing."""
    run_datatrove(run, 14, 8)


def run_text_dedup(run: Run, checked: bool = False) -> None:
    """text-dedup 0.4.1."""
    from text_dedup import minhash
    from text_dedup.config import Config, LocalInputConfig, MinHashAlgorithmConfig, OutputConfig
    from text_dedup.config.debug import DebugConfig

    files = [str(file) for file in run.files]
    cache = str(run.scratch / "cache")
    reading = {"path": "json", "data_files": files, "split": "train", "cache_dir": cache}
    algorithm = MinHashAlgorithmConfig(
        algorithm_name="minhash",
        text_column="text",
        num_perm=BANDS * ROWS,
        bands=BANDS,
        rows=ROWS,
        ngram_size=WORDS,
        threshold=THRESHOLD,
        check_false_positive=checked,
        num_proc=1,
    )
    # settings sources leave out arguments of the class, so the parts are put in directly
    config = Config.model_construct(
        input=LocalInputConfig(file_type="json", read_arguments=reading),
        algorithm=algorithm,
        output=OutputConfig(output_dir=str(run.scratch / "output")),
        debug=DebugConfig(),
    )
    with run.phase("load and filter"):
        dataset, _, _ = minhash.load_and_preprocess(config)
    with run.phase("tokenise and sign"):
        embedded = minhash.fingerprint(config, dataset)
    with run.phase("match"):
        clusters = minhash.cluster(config, embedded)
        assigned = minhash.assign(config, dataset, clusters)
    if checked:
        with run.phase("check"):
            assigned, _ = minhash.check_false_positives(config, assigned)
    with run.phase("filter"):
        kept = set(minhash.remove_duplicates(config, assigned)["id"])
    compared = set(dataset["id"])
    run.extra["filtered"] = len(run.ids) - len(compared)
    run.removed = [number for number, id_ in enumerate(run.ids) if id_ in compared and id_ not in kept]


def run_text_dedup_checked(run: Run) -> None:
    """text-dedup 0.4.1 with its check of false positives."""
    run_text_dedup(run, checked=True)


PEERS: dict[str, Callable[[Run], None]] = {
    "datasketch": run_datasketch,
    "rensa": run_rensa,
    "gaoya": run_gaoya,
    "datatrove": run_datatrove,
    "datatrove-14x8": run_datatrove_default,
    "text-dedup": run_text_dedup,
    "text-dedup-checked": run_text_dedup_checked,
}


def main() -> None:
    """Run the peer, write the result."""
    peer, result, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    run = Run([Path(name) for name in sys.argv[4:]], scratch)
    PEERS[peer](run)
    result.write_text(json.dumps(run.result()), encoding="utf-8")


if __name__ == "__main__":
    main()
