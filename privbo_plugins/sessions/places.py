"""Who evaluates what in a run on per-record losses: its places are in the vault, for all workers.

Runs that learn from one number a trial have :mod:`privbo_plugins.sessions.scheduler` instead.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import (
    OUTSIDE,
    OUTSIDE_STEP,
    START,
    CentralAlgorithm,
    Proposal,
)
from privbo_plugins.store.transaction import Transaction

Array = NDArray[np.float64]

_ENOUGH_FAILURES = 2
"""Where so many trials of a step failed, no further one is tried: another point takes over."""

CLEAR = 10**6
"""Slots of trials that the host chose begin here, clear of those that are handed out."""

_SAME = 1e-9
"""Encoded points that are so near are the same."""


def complete(tx: Transaction, algorithm: CentralAlgorithm) -> bool:
    """Checks whether the current step can be released (after a crash, by any worker)."""
    role, step = algorithm.phase
    if role == START or algorithm.plan is None:
        return False
    return algorithm.ready([row.slot for row in tx.trials(step=step, state="done")])


def open_in(tx: Transaction, algorithm: CentralAlgorithm) -> int:
    """Counts places of the current step that no trial has."""
    taken = (tx.count(step=algorithm.phase[1], state=state) for state in ("out", "done"))
    return algorithm.batch_capacity - sum(taken)


def assign(
    tx: Transaction, trial: str, algorithm: CentralAlgorithm, *, beyond: bool, again: bool
) -> Proposal | None:
    """Hands the first open slot of the current step to a trial that has none.

    Args:
        tx: Of the run.
        trial: The trial.
        algorithm: After all releases of the run.
        beyond: Whether it gets a point also while every place of the step is taken.
        again: Whether the host runs a trial that failed again, under its name.
    """
    rows = tx.trials(step=algorithm.phase[1])
    taken = {row.slot for row in rows if row.state in ("out", "done")}
    if not beyond and open_in(tx, algorithm) <= 0:
        return None
    if again:
        tx.forget(trial)
    failed = Counter(row.slot for row in rows if row.state == "failed")
    taken |= {slot for slot, times in failed.items() if times >= _ENOUGH_FAILURES}
    slot = next(i for i in range(len(taken) + 1) if i not in taken)
    others = [row for row in rows if row.state != "done" and row.trial != trial]
    out, gone = ([row.x for row in others if row.state == s] for s in ("out", "failed"))
    proposal = algorithm.propose(slot, out, gone)
    tx.new_trial(trial, proposal.role, proposal.step, proposal.slot, proposal.x)
    return proposal


def enter(tx: Transaction, trial: str, algorithm: CentralAlgorithm, x: Array) -> tuple[str, int]:
    """Enters a trial at a point that the host chose.

    Returns:
        Its role and step: a start while the start is open, outside the plan afterwards. The
        plan's own first point is not proposed again.
    """
    role, step = algorithm.phase
    if role != START:
        role, step = OUTSIDE, OUTSIDE_STEP
    slot = tx.count(step=step) + CLEAR
    if role == START and np.allclose(algorithm.propose(0).x, x, rtol=0.0, atol=_SAME):
        taken = any(row.slot == 0 and row.state != "failed" for row in tx.trials(step=step))
        slot = slot if taken else 0
    tx.new_trial(trial, role, step, slot, x)
    return role, step
