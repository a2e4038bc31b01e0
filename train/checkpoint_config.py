"""The ``checkpoint:`` block of a training configuration."""

from __future__ import annotations

from dataclasses import dataclass

from loader.remote.store_failures import url_problem

from .config_checks import require

__all__ = ["CheckpointConfig"]


@dataclass(frozen=True)
class CheckpointConfig:
    """The ``checkpoint:`` block: how often to save (and at the end), what to keep beside pinned ones, where to copy.

    Attributes:
        every_steps: steps between saves. keep_last: newest ones to keep.
        keep_daily: of how many days (UTC) that saved anything the newest one is kept; 0: none.
        upload: URL (s3://, gs://, az://) that gets a copy of each checkpoint after it is complete here; null: none. A
            run whose folder is lost goes on from there. Credentials come from the environment.
        timeout_s: longest that one process waits for another while they save; ends the job, not the checkpoint.
    """

    every_steps: int = 100
    keep_last: int = 3
    keep_daily: int = 30
    upload: str | None = None
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        problem = None if self.upload is None else url_problem(self.upload)
        require(
            [
                ("every_steps", self.every_steps >= 1, "must be >= 1"),
                ("keep_last", self.keep_last >= 1, "must be >= 1"),
                ("keep_daily", self.keep_daily >= 0, "must be >= 0"),
                ("upload", problem is None, problem or ""),
                ("timeout_s", self.timeout_s > 0, "must be > 0"),
            ]
        )
