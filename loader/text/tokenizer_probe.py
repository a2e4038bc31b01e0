"""Whether a tokenizer's regular expression can be trusted with text: texts of a few thousand characters, in time.

The patterns in a ``tokenizer.json`` and beside ranks come from strangers, and one like ``(a+)+$`` takes time without
end. The libraries give up a single match (Oniguruma after ten million steps, fancy-regex after a million), which is
caught and answered with smaller pieces; but there may be one such match at every character. So before a loaded
tokenizer is used, another process encodes runs of each kind of character, which must end in time.

What this cannot see is a pattern that is slow only on texts unlike these. Chunks of 256 KiB bound what one match can
read; nothing bounds the time of a whole document then, for the libraries cannot be interrupted.

Run as ``python -m loader.text.tokenizer_probe FOLDER SECONDS``: exit code 0 when all texts were encoded.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

from ..errors import ConfigError
from .tiktoken_tokenizer import PATTERNS
from .tokenizers import Tokenizer, load_tokenizer

__all__ = ["PROBE_LIMIT_S", "check_tokenizer_speed", "probe_texts"]

PROBE_LIMIT_S = 30
"""Processor time; what vocabularies of 50,257 and 129,280 tokens need is 2 s, most of it for loading."""
_WALL_S = 20 * PROBE_LIMIT_S  # a busy machine is no slow pattern
_RUN = 4000


def probe_texts() -> list[str]:
    """Runs on which patterns of nested or adjacent repetitions go back and forth."""
    letters = ("a", "A", "1", " ", "\n", "\t", "-", "'", "\u4f60", "\U0001f600", "\u0301", "_")
    pairs = ("ab", "aA", "a1", "a ", "a-", "a'", " \n", "\r\n", "1.", "\u4f60a", "\U0001f600\u200d", "e\u0301", "a/b. ")
    runs = [run * (_RUN // len(run)) for run in (*letters, *pairs)]
    return [run + end for run in runs for end in ("", "!", "\n", "\x00x")]


def check_tokenizer_speed(folder: Path, tokenizer: Tokenizer, limit_s: int = PROBE_LIMIT_S) -> None:
    """Encode ``probe_texts`` in another process, unless the tokenizer has no pattern of a stranger.

    Args:
        folder: where the tokenizer was written.
        tokenizer: the same.
        limit_s: processor time of that process.

    Raises:
        ConfigError: ``TR-TOKENIZER-SLOW``: it did not end in time, or at all.
    """
    if tokenizer.kind == "sentencepiece" or getattr(tokenizer, "pattern", None) in PATTERNS.values():
        return
    command = [sys.executable, "-m", __name__, str(folder.resolve()), str(limit_s)]
    root = Path(__file__).resolve().parents[2]
    try:
        code = subprocess.run(command, capture_output=True, timeout=_WALL_S, cwd=root, check=False).returncode
    except subprocess.TimeoutExpired:
        code = -signal.SIGXCPU
    if code == 0:
        return
    problem = f"the process that tried the tokenizer's regular expression ended with code {code}"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        problem = f"the tokenizer's regular expression did not get through short texts in {limit_s} s"
    raise ConfigError(
        "TR-TOKENIZER-SLOW", problem, str(folder), "a pattern whose time grows with the text, not with its square"
    )


def _main(folder: str, limit_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    tokenizer = load_tokenizer(folder)
    for text in probe_texts():
        tokenizer.encode(text)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
