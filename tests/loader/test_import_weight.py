"""What importing costs, as a set of modules and not as a time: the loader runs beside a trainer and must stay light."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import loader

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "torch", "numba", "pyarrow", "datatrove", "datasketch", "streaming", "pydantic", "yaml", "click", "rich",
    "sentencepiece", "tokenizers", "tiktoken", "transformers", "pandas", "scipy", "matplotlib", "plotly", "zstandard",
}  # fmt: skip
ADAPTERS = {"loader.torch_adapter", "loader.mosaic_adapter"}
COMMANDS = {
    "loader.cli",
    "loader.cli_options",
    "loader.dataset_cli",
    "loader.interop_cli",
    "loader.run_cli",
    "loader.remap_cli",
    "loader.report_cli",
    "loader.demo",
    "loader.doctor.cli",
}


def modules_after(code: str) -> set[str]:
    """Top-level names of every module that `code` leaves in a fresh interpreter."""
    script = (
        f"import sys\n{code}\nimport json\nprint('\\n' + json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_loader_brings_numpy_and_xxhash_only() -> None:
    third_party = modules_after("import loader") - set(sys.stdlib_module_names) - modules_after("")
    assert third_party <= {"loader", "numpy", "xxhash"}


def test_every_module_of_the_loader_is_light() -> None:
    names = [module.name for module in pkgutil.walk_packages(loader.__path__, "loader.")]
    light = [name for name in names if name not in ADAPTERS | COMMANDS]
    assert len(light) > 15
    code = "\n".join(f"import {name}" for name in light)
    assert modules_after(code) & HEAVY == set()


def test_help_imports_no_verb() -> None:
    code = "from loader.cli import main\nassert main(['--help']) == 0"
    assert modules_after(code) & (HEAVY - {"click"}) == set()


def test_no_verb_needs_torch_before_it_works() -> None:
    code = "from loader.cli import VERBS, main\nfor verb in VERBS: assert main([verb, '--help']) == 0, verb"
    assert modules_after(code) & {"torch", "numba", "datatrove", "streaming", "plotly"} == set()
