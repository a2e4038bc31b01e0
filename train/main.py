"""Entry point of a training process: ``python -m train.main train CONFIG ...``, alone or under torchrun.

It speaks and fails exactly like ``tokenreel`` itself.
"""

from __future__ import annotations

import sys

from loader.cli import main

if __name__ == "__main__":
    sys.exit(main())
