"""The examples of the documentation run, resume, and read what the stream reads."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.datasets import VOCAB_SIZE, DatasetSpec, MadeDataset, make_dataset
from support.training import count_threads

from loader.stream.open import open_stream
from loader.torch_adapter import to_torch

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("examples"), DatasetSpec(documents={"web": 30, "b": 12}, seq_len=32))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other's threads."""
    with count_threads(1):
        yield


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_its_test() -> None:
    tests = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'_example("{path.stem}")' in tests


def test_a_plain_loop(made: MadeDataset, tmp_path: Path) -> None:
    module = _example("plain_loop")
    state = tmp_path / "state.json"
    seen = module.train(str(made.path), state, 4) + module.train(str(made.path), state, 3)
    with open_stream(made.path, 8) as stream:
        batches = [next(stream) for _ in range(7)]
        assert seen == [(batch.step, f"{batch.token_digest:016x}") for batch in batches]
    assert len(state.read_bytes()) < 1024
    source = (EXAMPLES / "plain_loop.py").read_text()
    words = ("loader", "stream", "batch", "to_torch")
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    lines = {node.lineno for node in statements if any(word in source.splitlines()[node.lineno - 1] for word in words)}
    assert len(lines) <= 8


@pytest.mark.slow
def test_the_hugging_face_trainer_resumes_with_the_same_tokens(made: MadeDataset, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    module = _example("huggingface_trainer")
    for batch, accumulate in ((4, 1), (3, 2), (5, 4)):
        out = tmp_path / f"accumulate_{accumulate}"
        first = module.train(str(made.path), out, 4, batch, accumulate)
        second = module.train(str(made.path), out, 7, batch, accumulate)
        with open_stream(made.path, batch) as stream:
            expected = [(one.step, one.token_digest) for one in (next(stream) for _ in range(7 * accumulate))]
        assert first[: 4 * accumulate] == expected[: 4 * accumulate]
        assert second[: 3 * accumulate] == expected[4 * accumulate :]


@pytest.mark.slow
def test_the_hugging_face_trainer_stopped_between_its_checkpoints(made: MadeDataset, tmp_path: Path) -> None:
    """Killed after step 3, with a checkpoint of step 2: the batches of step 2 on come again, none is left out."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    module = _example("huggingface_trainer")
    module.train(str(made.path), tmp_path / "out", 3, 4, 2)
    shutil.rmtree(tmp_path / "out" / "checkpoint-3")
    again = module.train(str(made.path), tmp_path / "out", 5, 4, 2)
    with open_stream(made.path, 4) as stream:
        expected = [(one.step, one.token_digest) for one in (next(stream) for _ in range(10))]
    assert again[:6] == expected[4:]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_the_hugging_face_trainer_resumes_with_another_accumulation(
    made: MadeDataset, tmp_path: Path, before: int, after: int
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    module = _example("huggingface_trainer")
    counts = (2 * before, 2 * after, 2 * after)
    read = [module.train(str(made.path), tmp_path / "out", 2, 4, before)[: counts[0]]]
    read += [module.train(str(made.path), tmp_path / "out", steps, 4, after)[: counts[1]] for steps in (4, 6)]
    with open_stream(made.path, 4) as stream:
        expected = [(one.step, one.token_digest) for one in (next(stream) for _ in range(sum(counts)))]
    assert [one for part in read for one in part] == expected


def test_transformers_attends_inside_documents_and_uses_the_labels(made: MadeDataset) -> None:
    """What the example says of position_ids and shift_labels, against one document at a time."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with open_stream(made.path, 4) as stream, torch.no_grad():
        tensors = to_torch(next(stream))
        out = model(
            input_ids=tensors.tokens_BT,
            position_ids=tensors.token_positions_BT,
            labels=tensors.labels_BT,
            shift_labels=tensors.labels_BT,
            use_cache=False,
        )
        segments = tensors.source.segments
        assert len(segments) > 4
        losses = torch.zeros(())
        for index in range(len(segments)):
            row, start = int(segments.sample_index_S[index]), int(segments.token_start_S[index])
            part = slice(start, start + int(segments.num_tokens_S[index]))
            alone = model(input_ids=tensors.tokens_BT[row : row + 1, part], use_cache=False).logits[0]
            assert torch.allclose(alone, out.logits[row, part], atol=1e-5)
            labels = tensors.labels_BT[row, part]
            losses += torch.nn.functional.cross_entropy(alone, labels, reduction="sum")
        assert torch.allclose(losses / tensors.source.num_labels, out.loss, atol=1e-5)


def test_composer_style(made: MadeDataset, tmp_path: Path) -> None:
    module = _example("composer_style")
    state = tmp_path / "state.json"
    seen = module.train(str(made.path), state, 8) + module.train(str(made.path), state, 9)
    with open_stream(made.path, 4) as stream:
        assert seen == [next(stream).tokens_BT[0].tolist() for _ in range(17)]
