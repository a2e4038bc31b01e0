"""Saving beside the training: the state is copied at once, a thread writes the copy and applies the retention.

The loop stalls for the copy only. One save is in flight at most; whoever looks at the checkpoint folder waits for it
first, so what is found there does not depend on how fast the disk was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from loader.errors import JobError

from .checkpoint import Checkpoint, CheckpointFacts, save_checkpoint

__all__ = ["Saver"]

_TIMEOUT_S = 1800.0


class Saver:
    """Writes checkpoints into one folder.

    Args:
        folder: RUN/checkpoints.
        group: a process group of its own: collectives of a save on the training's group abort both.
    """

    def __init__(self, folder: Path, group: ProcessGroup | None) -> None:
        self._folder, self._group = folder, group
        self._staged: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, tensors: Mapping[str, Tensor], facts: CheckpointFacts, then: Callable[[Checkpoint], object]) -> None:
        """Copy the state and begin to write it; ``then`` is called with the committed checkpoint, in the thread.

        Raises:
            TokenreelError: the save before failed, see :meth:`wait`.
        """
        self.wait()
        self._stage(tensors)
        self._thread = threading.Thread(target=self._work, args=(facts, then), name="checkpoint")
        self._thread.start()

    @torch.no_grad()
    def _stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Into host memory that is kept from save to save: fresh pages would cost more than the copy."""
        if self._staged.keys() != tensors.keys():
            self._staged = {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._staged[name].copy_(tensor)

    def _work(self, facts: CheckpointFacts, then: Callable[[Checkpoint], object]) -> None:
        try:
            then(save_checkpoint(self._folder, self._staged, facts, self._group))
        except BaseException as error:  # handed to the thread that waits
            self._error = error

    def wait(self) -> None:
        """Wait for the save in flight, if any.

        Raises:
            JobError: the file system refused, or it does not end; the older checkpoints are untouched.
            TokenreelError: a checkpoint that retention builds on is damaged.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_TIMEOUT_S)
            if thread.is_alive():
                raise JobError("TR-CHECKPOINT-STUCK", f"no end after {_TIMEOUT_S:.0f} s", str(self._folder))
        error, self._error = self._error, None
        if isinstance(error, OSError):
            message = f"cannot write a checkpoint: {error.strerror or error}"
            place, following = str(self._folder), "free space, then the same command: it resumes"
            raise JobError("TR-CHECKPOINT-WRITE", message, place, "room for one more", following) from error
        if error is not None:
            raise error
