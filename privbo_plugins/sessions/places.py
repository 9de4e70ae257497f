"""Who evaluates what in a run on per-record losses: its places are in the vault, for all workers.

Runs that learn from one number a trial have :mod:`privbo_plugins.sessions.scheduler` instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import (
    FINAL,
    OUTSIDE,
    OUTSIDE_STEP,
    START,
    CentralAlgorithm,
    Proposal,
)
from privbo_plugins.spaces import same_point
from privbo_plugins.store.transaction import Transaction, TrialRow

Array = NDArray[np.float64]

_ENOUGH_FAILURES = 2
"""Where so many trials of a step failed, no further one is tried: another point takes over."""

CLEAR = 10**6
"""Slots of trials that the host chose begin here, clear of those that are handed out."""


def of_the_step(tx: Transaction, algorithm: CentralAlgorithm) -> list[TrialRow]:
    """Trials of the current step, by slot: one reading, for all that asks about its places."""
    role, step = algorithm.phase
    rows = tx.trials(step=step)
    if role == FINAL and not (rows or algorithm.finished):
        rows = _evaluated_before(tx, algorithm, step)
    return rows


def _evaluated_before(tx: Transaction, algorithm: CentralAlgorithm, step: int) -> list[TrialRow]:
    """Gives places of the last step to earlier trials at its points whose losses are held."""
    held, moved = set(tx.held()), []
    done = [row for row in tx.trials(state="done") if row.trial in held] if held else []
    for slot in range(algorithm.batch_capacity if done else 0):
        x = algorithm.propose(slot).x
        found = next((row for row in done if same_point(row.x, x)), None)
        if found is not None:
            done.remove(found)
            tx.move(found.trial, step, slot)
            moved.append(found._replace(step=step, slot=slot))
    return moved


def complete(algorithm: CentralAlgorithm, rows: Iterable[TrialRow]) -> bool:
    """Checks whether the current step can be released (after a crash, by any worker)."""
    if algorithm.phase[0] == START or algorithm.plan is None:
        return False
    return algorithm.ready([row.slot for row in rows if row.state == "done"], _given_up(rows))


def _given_up(rows: Iterable[TrialRow]) -> set[int]:
    """Slots at which enough trials failed."""
    failed = [row.slot for row in rows if row.state == "failed"]
    return {slot for slot in failed if failed.count(slot) >= _ENOUGH_FAILURES}


def open_in(algorithm: CentralAlgorithm, rows: Iterable[TrialRow]) -> int:
    """Counts places of the current step that no trial has."""
    return algorithm.batch_capacity - sum(row.state in ("out", "done") for row in rows)


def assign(
    tx: Transaction,
    trial: str,
    algorithm: CentralAlgorithm,
    rows: Sequence[TrialRow],
    *,
    beyond: bool,
    again: bool,
) -> Proposal | None:
    """Hands the first open slot of the current step to a trial that has none.

    Args:
        tx: Of the run.
        trial: The trial.
        algorithm: After all releases of the run.
        rows: Trials of the current step.
        beyond: Whether it gets a point also while every place of the step is taken.
        again: Whether the host runs a trial that failed again, under its name.
    """
    if not beyond and open_in(algorithm, rows) <= 0:
        return None
    if again:
        tx.forget(trial)
    taken = {row.slot for row in rows if row.state in ("out", "done")} | _given_up(rows)
    chosen = [row.x for row in rows if row.slot >= CLEAR and row.state != "failed"]
    if chosen and algorithm.phase[0] == START:
        first = algorithm.propose(0).x  # not proposed again where the host has chosen it
        taken |= {0} if any(same_point(x, first) for x in chosen) else set()
    slot = next(i for i in range(len(taken) + 1) if i not in taken)
    others = [row for row in rows if row.state != "done" and row.trial != trial]
    out, gone = ([row.x for row in others if row.state == s] for s in ("out", "failed"))
    proposal = algorithm.propose(slot, out, gone)
    tx.new_trial(trial, proposal.role, proposal.step, proposal.slot, proposal.x)
    return proposal


def enter(tx: Transaction, trial: str, algorithm: CentralAlgorithm, x: Array) -> tuple[str, int]:
    """Enters a trial at a point that the host chose.

    Returns:
        Its role and step: a start while the start is open, outside the plan afterwards.
    """
    role, step = algorithm.phase
    if role != START:
        role, step = OUTSIDE, OUTSIDE_STEP
    tx.new_trial(trial, role, step, tx.count(step=step) + CLEAR, x)
    return role, step
