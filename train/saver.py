"""Saving beside the training: the state is copied at once, a thread writes the copy and applies the retention.

The loop stalls for the copy only. One save is in flight at most; whoever looks at the checkpoint folder waits for it
first, so what is found there does not depend on how fast the disk was.

Collectives never meet in another order on another process: the main threads alone use the training's groups, the saving
threads alone the saving group, and one save follows the other. Each save does there, in this order: share (the folder),
what DCP does (plans, writes), gather (hashes), share (commit), gather (verdicts), share (retention).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from loader.errors import JobError

from .checkpoint import Checkpoint, CheckpointFacts, save_checkpoint, verify_together
from .parallel.shards import local, rewrap
from .stopping import GIVEN_UP_THREAD, SAVING_THREAD
from .world import World

__all__ = ["Saver"]


class Saver:
    """Writes checkpoints into one folder.

    Args:
        folder: RUN/checkpoints.
        world: whose ``saving`` group is used: collectives of a save on the training's group abort both.
        timeout_s: longest that :meth:`wait` waits.
    """

    def __init__(self, folder: Path, world: World, timeout_s: float = 1800.0) -> None:
        self._folder, self._world, self._timeout_s = folder, world, timeout_s
        self._staged: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, tensors: Mapping[str, Tensor], facts: CheckpointFacts, then: Callable[[Checkpoint], object]) -> None:
        """Copy the state and begin to write it; ``then`` is called with the committed checkpoint, in the
        leading process's thread.

        Raises:
            TokenreelError: the save before failed, see :meth:`wait`.
        """
        self.wait()
        self._stage(tensors)
        self._thread = threading.Thread(target=self._work, args=(facts, then), name=SAVING_THREAD)
        self._thread.start()

    @torch.no_grad()
    def _stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Into host memory that is kept from save to save: fresh pages would cost more than the copy."""
        if self._staged.keys() != tensors.keys():
            own = {name: local(tensor) for name, tensor in tensors.items()}
            memory = {name: torch.empty_like(part, device="cpu") for name, part in own.items()}
            self._staged = {name: rewrap(memory[name], tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            local(self._staged[name]).copy_(local(tensor))

    def _work(self, facts: CheckpointFacts, then: Callable[[Checkpoint], object]) -> None:
        try:
            checkpoint = save_checkpoint(self._folder, self._staged, facts, self._world)
            # What retention builds on is read back, by all: one process would take too long for a large one.
            verify_together(checkpoint.path, self._world, self._world.saving)

            def follow() -> None:
                then(checkpoint)

            self._world.share(follow, self._world.saving)
        except BaseException as error:  # handed to the thread that waits
            self._error = error

    def wait(self) -> None:
        """Wait for the save in flight, if any.

        Raises:
            JobError: the file system refused, or it does not end; the older checkpoints are untouched.
            TokenreelError: the new checkpoint is damaged, as it was read back; nothing was removed then.
            RuntimeError: another process is gone.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._timeout_s)
            if thread.is_alive():
                thread.name = GIVEN_UP_THREAD  # it may hang for good, and the process ends without it
                raise JobError("TR-CHECKPOINT-STUCK", f"no end after {self._timeout_s:.0f} s", str(self._folder))
        error, self._error = self._error, None
        if isinstance(error, OSError) and not isinstance(error, TimeoutError | ConnectionError):
            where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()) if self._world.size > 1)
            message = f"cannot write a checkpoint: {where}{error.strerror or error}"
            place, following = str(self._folder), "free space, then the same command: it resumes"
            raise JobError("TR-CHECKPOINT-WRITE", message, place, "room for one more", following) from error
        if error is not None:
            raise error
