"""What the training loop lends to an investigation: frozen weights, batches and names, without touching the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loader.errors import ConfigError, DamageError
from loader.runs import read_branches
from loader.sources import Sources
from loader.stream.batch import read_batch

from .frozen import frozen_model
from .job import Job
from .lineage import newest_valid
from .spikes.records import FrozenModel
from .stepping import most_samples
from .world import World

if TYPE_CHECKING:
    from loader.order.plan import Plan
    from loader.stream.batch import Batch

__all__ = ["RunContext", "vocabulary_bytes"]


def vocabulary_bytes(sources: Sources) -> list[bytes] | None:
    """The bytes of each token id, or None when the first Dataset carries no tokenizer."""
    from loader.text.tokenizers import load_tokenizer

    folder = sources.datasets[0].tokenizer_folder()
    if folder is None:
        return None
    tokenizer = load_tokenizer(folder)
    return [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]


class RunContext:
    """Implements ``InvestigationContext`` for one branch of a run.

    Args:
        job: the run. sources: its Datasets. plan: as the branch sees it.
        damaged: told of each damaged checkpoint met on the way.
        world: whose processes all investigate; None: this one alone.
    """

    def __init__(
        self,
        job: Job,
        sources: Sources,
        plan: Plan,
        damaged: Callable[[DamageError], None],
        world: World | None = None,
    ) -> None:
        self._job, self._sources, self._plan, self._damaged = job, sources, plan, damaged
        self._world = world or World()
        self._token_bytes: list[bytes] | None = None
        self._asked = False

    def load_frozen(self, step: int) -> FrozenModel | None:
        """The newest valid checkpoint whose next step is <= ``step``, on the current branch, since its last remap; None
        if there is none."""
        paths = self._job.paths
        checkpoint = newest_valid(paths.checkpoints, read_branches(paths), step, self._damaged, self._world)
        start = self._plan.config.start
        if checkpoint is not None and start is not None and checkpoint.facts.step < start.step:
            return None
        return None if checkpoint is None else frozen_model(self._job, self._sources, checkpoint, self._world)

    def read_batch(self, step: int) -> Batch:
        """This data rank's part of the global batch of a step of the current branch, as the run saw it."""
        mesh = self._world.mesh
        return read_batch(self._plan, self._sources, step, mesh.place.data, mesh.shape.data)

    def most_samples(self, step: int) -> int:
        """Samples of the data rank that has the most of a step."""
        return most_samples(self._plan, step, self._world)

    def agree(self, make: Callable[[], Any]) -> Any:
        """A JSON-able value that the leading process makes, on every process."""
        return self._world.share(make)

    def positions_of_steps(self, start: int, stop: int) -> tuple[int, int]:
        """The positions ``[first, next)`` that the steps ``[start, stop)`` consumed."""
        return int(self._plan.first_position(start)), int(self._plan.next_position(stop - 1))

    def source_names(self) -> Sequence[str]:
        """The plan's sources; ``Batch.source_B`` indexes it."""
        return self._sources.names

    def token_bytes(self) -> Sequence[bytes] | None:
        """The bytes of each token id; None where the Dataset carries no tokenizer."""
        if not self._asked:
            self._token_bytes, self._asked = vocabulary_bytes(self._sources), True
        return self._token_bytes

    def names(self, documents: Sequence[int]) -> Mapping[int, Mapping[str, Any]]:
        """Origins for the report: id -> {source, file, record, record_start}; unknown ids are left out."""
        from loader.lookup import document_places

        found: dict[int, Mapping[str, Any]] = {}
        for document in documents:
            for dataset in self._sources.datasets:
                try:
                    place = document_places(dataset, document)
                except ConfigError:  # another Dataset of the run holds it
                    continue
                found[document] = {key: place[key] for key in ("source", "file", "record", "record_start")}
                break
        return found
