"""What a replica that takes the lead adds to the ledger: steps that counted while nobody wrote them."""

from __future__ import annotations

from collections.abc import Iterable

from loader.errors import DamageError
from loader.ledger import LedgerRecord
from loader.run_folder import RunPaths
from loader.runs import ledger_of, next_attempt, open_ledger

__all__ = ["add_missing"]


def add_missing(paths: RunPaths, branch: int, remembered: Iterable[LedgerRecord], num_sources: int) -> int:
    """Add the remembered steps behind the ledger's end, as an attempt of their own; returns how many.

    Args:
        paths: of a run whose lock is held. branch: the current one. remembered: the newest steps, ascending by one.

    Raises:
        DamageError: ``TR-LEDGER-SHORT``: the ledger ends before the oldest of them; nothing is written, as a gap could
            not be mended any more.
    """
    held = len(ledger_of(paths))
    missing = [record for record in remembered if record.step >= held]
    if not missing:
        return 0
    if missing[0].step > held:
        raise DamageError(
            "TR-LEDGER-SHORT", f"the ledger holds {held} steps, this replica those from {missing[0].step} on",
            str(paths.ledger), "every step that was trained",
            f"tokenreel rollback {paths.root} --to {held}, then the same command",
        )  # fmt: skip
    with open_ledger(paths, branch, next_attempt(paths, branch), num_sources) as ledger:
        for record in missing:
            ledger.append(record)
    return len(missing)
