"""Tells programs where a run stands: the same few public facts of every system, JSON-ready.

Hosts count trials, rounds and answers; every figure of privacy is the guarantee's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from privbo_plugins.errors import UtilityWarning, warn
from privbo_plugins.privacy.claim import PrivacyGuarantee

if TYPE_CHECKING:
    from privbo_plugins.algorithms.protocols import Comparison

_SCORES = set("accuracy acc auc score scores reward rewards precision recall f1 r2".split())
_LOSSES = set("loss losses error errors cost costs regret neg negative minus".split())


def warn_of_minimised_scores(names: Iterable[object]) -> None:
    """Warns where public names of what a run minimises speak of scores, and of no loss."""
    words = [word for name in names for word in re.split("[^a-z0-9]+", str(name).lower())]
    found = [word for word in words if word in _SCORES]
    if found and _LOSSES.isdisjoint(words):
        warn(
            f"The run minimises, and {found[0]!r} in the name of its objective or metric speaks "
            'of scores. For scores and rewards: optuna.create_study(direction="maximize"), or '
            'mode="max" on Ray Tune.',
            UtilityWarning,
        )


def used_up(done: int, planned: int | None) -> bool:
    """Tells whether a plan is used up; one without a number never is."""
    return planned is not None and done >= planned


def planned_trials(config: object) -> int | None:
    """Returns the trials that settings expect; None where they do not say."""
    return getattr(config, "planned_trials", None)


def status(
    guarantee: PrivacyGuarantee,
    done: int,
    planned: int | None = None,
    *,
    finished: bool | None = None,
    budget: float | None = None,
    recommendation: bool | None = None,
    comparison: Comparison | None = None,
) -> dict[str, Any]:
    """Collects where a run stands.

    Args:
        guarantee: What may be claimed now.
        done: How many trials, rounds or answers there have been.
        planned: How many there will be; None where no plan says so.
        finished: Whether the plan is used up, if there is one; None for what the two numbers say.
        budget: Where the guarantee knows none: the most that one user may pay; None for no limit.
        recommendation: Whether there is a recommendation; None where there is none to be had.
        comparison: Of the recommendation with the incumbent, where releases tell one.

    Returns:
        ``protected``, ``counted``, ``done``, ``planned``, ``finished`` (None without a plan),
        ``recommendation``, ``comparison`` (``left``, ``lead``, ``sd`` and ``text``, or None), and
        of the guarantee ``releases``, ``measure`` ("mu" or "epsilon"),
        ``delta`` (of an epsilon), ``spent`` and ``budget``: "inf" where nothing can be claimed.

    Example:
        >>> from privbo_plugins.privacy.guarantee import FederationGuarantee
        >>> shown = status(FederationGuarantee(True, 29, 3.997, 0.0246, 1.0, 3, 1), 1, 3)
        >>> shown["counted"], shown["done"], shown["planned"], shown["finished"], shown["spent"]
        ('rounds', 1, 3, False, 1.0)
    """
    cost = guarantee.spending(budget)
    for name in ("spent", "budget"):
        cost[name] = float(cost[name]) if isinstance(cost[name], int) else cost[name]
    ended = used_up(done, planned) if finished is None else finished
    return {
        "protected": guarantee.protected,
        "counted": guarantee.counted,
        "done": int(done),
        "planned": None if planned is None else int(planned),
        "finished": None if planned is None else ended,
        "recommendation": recommendation,
        "comparison": None if comparison is None else comparison.to_dict(),
        **cost,
    }
