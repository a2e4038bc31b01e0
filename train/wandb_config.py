"""The ``run.wandb`` block of a training configuration. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .config_checks import require

__all__ = ["WandbConfig"]


@dataclass(frozen=True)
class WandbConfig:
    """The ``run.wandb:`` block: metrics also to Weights & Biases, extra ``[wandb]``. Its key comes from its own
    settings (``wandb login``), never from here.

    Attributes:
        project: where the runs are listed. entity: team or user; null: the account's own.
        mode: ``offline`` writes to RUN/wandb, for ``wandb sync`` later.
    """

    project: str
    entity: str | None = None
    mode: Literal["online", "offline"] = "online"

    def __post_init__(self) -> None:
        require([("project", bool(self.project.strip()), "must be a name")])
