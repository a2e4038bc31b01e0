"""Resolve the two lock files anew: `python requirements/make_locks.py` (or `make locks`), then run both test targets.

`default.lock` is what `pip install tokenreel` means; `mosaic.lock` adds mosaicml-streaming, the extras that the tests
use, and development tools. They cannot be one file: streaming holds huggingface-hub < 1, which the newest datatrove no
longer accepts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LOCKS = {"default.lock": ".", "mosaic.lock": ".[mosaic,dev,fast,s3,warc,hf]"}
TORCH = "torch==2.14.1"


def resolve(requirement: str) -> list[str]:
    """The exact pins that pip would install for `requirement`, sorted by name, without this project."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = subprocess.run([*command, TORCH, requirement], cwd=FOLDER.parent, check=True, stdout=subprocess.PIPE)
    found = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    pins = {item["name"].lower(): f"{item['name']}=={item['version']}" for item in found}
    pins.pop("tokenreel")
    return [pins[name] for name in sorted(pins)]


if __name__ == "__main__":
    for name, requirement in LOCKS.items():
        header = "# Made by `make locks` for CPython 3.11 on Linux; every version is exact.\n"
        (FOLDER / name).write_text(header + "\n".join(resolve(requirement)) + "\n", encoding="utf-8")
