"""Tells programs where a run stands: the same few public facts of every system, JSON-ready.

Hosts count trials, rounds and answers; every figure of privacy is the guarantee's.
"""

from __future__ import annotations

from typing import Any

from privbo_plugins.algorithms.protocols import CentralPlan
from privbo_plugins.privacy.guarantee import (
    FederationGuarantee,
    Guarantee,
    LocalGuarantee,
    OutsourcedGuarantee,
    PrivacyGuarantee,
)

TRIALS, ROUNDS, ANSWERS = "trials", "rounds", "answers"
"""What is counted."""


def used_up(done: int, planned: int | None) -> bool:
    """Tells whether a plan is used up; one without a number never is."""
    return planned is not None and done >= planned


def status(
    guarantee: PrivacyGuarantee,
    counted: str,
    done: int,
    planned: int | None = None,
    *,
    finished: bool | None = None,
    budget: float | None = None,
    recommendation: bool | None = None,
) -> dict[str, Any]:
    """Collects where a run stands.

    Args:
        guarantee: What may be claimed now.
        counted: In what the run is counted.
        done: How many of these there have been.
        planned: How many there will be; None where no plan says so.
        finished: Whether the plan is used up; None for what the two numbers say.
        budget: Where the guarantee knows none: the most that one user may pay; None for no limit.
        recommendation: Whether there is a recommendation; None where there is none to be had.

    Returns:
        ``protected``, ``counted``, ``done``, ``planned``, ``finished`` (None without a plan),
        ``recommendation``, and of the guarantee ``releases``, ``measure`` ("mu" or "epsilon"),
        ``delta`` (of an epsilon), ``spent`` and ``budget``: "inf" where nothing can be claimed.

    Example:
        >>> told = FederationGuarantee(True, 29, 3.997, 0.0246, 1.0, 3, 1)
        >>> shown = status(told, ROUNDS, 1, 3)
        >>> shown["done"], shown["planned"], shown["finished"], shown["spent"], shown["budget"]
        (1, 3, False, 1.0, 3.997)
    """
    if finished is None and planned is not None:
        finished = used_up(done, planned)
    return {
        "protected": guarantee.protected,
        "counted": counted,
        "done": int(done),
        "planned": None if planned is None else int(planned),
        "finished": finished,
        "recommendation": recommendation,
        **guarantee.spending(budget),
    }


def of_records(
    guarantee: Guarantee,
    plan: CentralPlan | None,
    done: int,
    *,
    finished: bool,
    recommendation: bool,
) -> dict[str, Any]:
    """Collects where a run on per-record losses stands.

    Args:
        guarantee: What may be claimed now.
        plan: None before the number of records is known.
        done: How many trials have published a value.
        finished: Whether the plan is used up.
        recommendation: Whether there is one.
    """
    planned = None if plan is None else plan.n_trials
    return status(
        guarantee, TRIALS, done, planned, finished=finished, recommendation=recommendation
    )


def of_rewards(
    guarantee: LocalGuarantee,
    config: object,
    done: int,
    *,
    finished: bool,
    user_budget: float | None,
) -> dict[str, Any]:
    """Collects where a run on one reward a trial stands.

    Args:
        guarantee: What may be claimed now.
        config: Settings of the algorithm.
        done: Trials with a value.
        finished: Whether the plan is used up, if there is one.
        user_budget: The most epsilon that one user may pay; None for no limit.
    """
    planned = planned_trials(config)
    return status(
        guarantee,
        TRIALS,
        done,
        planned,
        finished=None if planned is None else finished,
        budget=user_budget,
        recommendation=done > 0,
    )


def planned_trials(config: object) -> int | None:
    """Returns the trials that settings expect; None where they do not say."""
    return getattr(config, "planned_trials", None)


def of_rows(guarantee: OutsourcedGuarantee, answered: int) -> dict[str, Any]:
    """Collects where a modeler's run stands; no plan says how many rows it asks for.

    Args:
        guarantee: What may be claimed now.
        answered: Answers that the model has learnt from.
    """
    return status(guarantee, ANSWERS, answered, recommendation=answered > 0)


def of_rounds(guarantee: FederationGuarantee) -> dict[str, Any]:
    """Collects where a federation stands; an agent's recommendation is that agent's secret."""
    return status(guarantee, ROUNDS, guarantee.n_released, guarantee.n_rounds)


def rounds_used_up(guarantee: FederationGuarantee) -> bool:
    """Tells whether a federation has released all its rounds."""
    return used_up(guarantee.n_released, guarantee.n_rounds)
