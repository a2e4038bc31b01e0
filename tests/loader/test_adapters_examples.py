"""The examples of the documentation run, resume, and read what the stream reads."""

from __future__ import annotations

import ast
import importlib.util
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
    first = module.train(str(made.path), tmp_path / "out", 4)
    second = module.train(str(made.path), tmp_path / "out", 7)
    with open_stream(made.path, 4) as stream:
        expected = [(batch.step, batch.token_digest) for batch in (next(stream) for _ in range(7))]
    assert first == expected[:4]
    assert second == expected[4:]


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
