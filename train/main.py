"""Entry point of a training process: ``python -m train.main train CONFIG ...``, alone or under torchrun.

It speaks and fails exactly like ``tokenreel`` itself.
"""

from __future__ import annotations

from loader.cli import main

from .launch import end_with_launcher
from .stopping import end_process

if __name__ == "__main__":
    end_with_launcher()
    end_process(main())
