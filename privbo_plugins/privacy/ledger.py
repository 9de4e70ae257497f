"""The ledger: what has been spent, and whether one more release fits.

A charge is written before its noise is drawn, in the same transaction that stores the release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy.figures import not_below

VALIDATION = "validation"
"""Charges against the validation records, bounded by the declared budget."""

TRAINING = "training"
"""Charges that the user declares for private training; added up, reported, not bounded."""

AGENTS = "agents"
"""Charges against every agent of a federation, bounded by the declared number of rounds."""

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Charge:
    """One release's cost.

    Args:
        kind: What is released ("value", "gradient", "norm", "training", "broadcast").
        key: Which one of its kind; kind and key are unique in a run.
        mu: Gaussian DP parameter of this release alone.
        sensitivity: L2 sensitivity under the run's neighbouring relation.
        scale: Standard deviation of the noise.
        population: Who pays: :data:`VALIDATION`, :data:`TRAINING` or :data:`AGENTS`.
    """

    kind: str
    key: str
    mu: float
    sensitivity: float
    scale: float
    population: str = VALIDATION


def check_budget(budget_mu: float, spent_mu2: float, charge: Charge) -> None:
    """Refuses a charge that would exceed the budget.

    Args:
        budget_mu: Declared total, in (0, inf].
        spent_mu2: Sum of squares spent so far by the same population.
        charge: The charge to come.

    Raises:
        BudgetExceededError: If ``spent + charge.mu² > budget²``.
    """
    if math.isinf(budget_mu):
        return
    total = spent_mu2 + charge.mu**2
    if not total <= budget_mu**2 * (1 + _TOLERANCE):
        raise BudgetExceededError(
            f"The release {charge.kind}/{charge.key} needs mu={not_below(charge.mu, 6)}, but "
            f"{not_below(math.sqrt(spent_mu2), 6)} of mu={not_below(budget_mu, 6)} is spent "
            "(squares add up). Nothing was drawn. Plan fewer releases or start a new study with "
            "its own budget."
        )
