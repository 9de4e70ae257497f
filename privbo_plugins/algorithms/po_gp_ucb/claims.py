"""What a table's release and a row's one answer cost together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privbo_plugins.privacy.accountant import Event, GaussianEvent, compose_epsilon
from privbo_plugins.privacy.local import LocalMechanism, make_mechanism


def answer_settings(mechanism: LocalMechanism | None) -> dict[str, Any] | None:
    """How answers are randomised, as a curator's arguments; None if they are not."""
    if mechanism is None:
        return None
    return {
        "outcome_epsilon": mechanism.epsilon,
        "outcome_range": [mechanism.low, mechanism.high],
        "outcome_mechanism": mechanism.name,
        "outcome_delta": mechanism.delta or None,
    }


def mechanism_of(settings: Mapping[str, Any] | None) -> LocalMechanism | None:
    """The inverse of :func:`answer_settings`."""
    if settings is None:
        return None
    low, high = settings["outcome_range"]
    return make_mechanism(
        settings["outcome_epsilon"],
        value_range=(low, high),
        mechanism=settings["outcome_mechanism"],
        delta=settings["outcome_delta"],
    )


def described(mechanism: LocalMechanism) -> str:
    """An answer mechanism in words."""
    settings = ", ".join(f"{k}={v}" for k, v in mechanism.parameters().items())
    return f"clipped to the public range and randomised ({settings})"


def total_delta(delta: float, mechanism: LocalMechanism | None) -> float:
    """Delta of the table and of one answer."""
    return delta + (0.0 if mechanism is None else mechanism.delta)


def total_epsilon(
    mu: float, epsilon: float, delta: float, mechanism: LocalMechanism | None
) -> float:
    """Epsilon of the table and of the row's one answer: other rows' answers are other people's.

    Args:
        mu: Gaussian DP parameter of the table.
        epsilon: Of the table, at its own delta.
        delta: :func:`total_delta`.
        mechanism: Of an answer; None where answers are not part of the claim.
    """
    if mechanism is None:
        return epsilon
    return min(epsilon + mechanism.epsilon, compose_epsilon(of_one_row(mu, mechanism), delta))


def of_one_row(mu: float, mechanism: LocalMechanism | None) -> list[Event]:
    """What is released of one row: its place in the table, and its answer."""
    return [GaussianEvent(mu), *([] if mechanism is None else [mechanism.evaluation.event])]
