"""Step rules: from a released gradient to the next centre.

Notation: ``g`` the released gradient (d,), ``eta`` the step size in unit-cube units. A rule is a
pure function of its state, which is a list of lists of floats that travels in JSON; the empty
list is the state before the first step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RuleState = list[list[float]]

_TINY = 1e-12


StepRule = Callable[[RuleState, Array, float], tuple[RuleState, Array]]
"""``state, g, eta`` to the state after the step and the displacement (d,), added to theta."""


def sgd(state: RuleState, g: Array, eta: float) -> tuple[RuleState, Array]:
    """Plain descent, -eta g (paper, line 9)."""
    return state, -eta * g


def adagrad(state: RuleState, g: Array, eta: float) -> tuple[RuleState, Array]:
    """-eta g / sqrt(Σ g²), a coordinate at a time (the paper's experiments, Appendix E.1)."""
    total = (np.asarray(state[0]) if state else np.zeros_like(g)) + g * g
    return [total.tolist()], -eta * g / (np.sqrt(total) + _TINY)


def adagrad_norm(state: RuleState, g: Array, eta: float) -> tuple[RuleState, Array]:
    """-eta sqrt(d) g / sqrt(Σ |g|²): AdaGrad with one scale for all coordinates.

    Privacy noise is isotropic, so a coordinate whose signal is small must not be scaled up to
    the same step as one whose signal is large.
    """
    total = (state[0][0] if state else 0.0) + float(g @ g)
    return [[total]], -eta * np.sqrt(g.size) * g / (np.sqrt(total) + _TINY)


def momentum(state: RuleState, g: Array, eta: float) -> tuple[RuleState, Array]:
    """-eta sqrt(d) m / |m| with m an average that halves the weight of each older gradient.

    Only the direction of the released gradient is used: its length is mostly noise where privacy
    is strong, and the unknown scale of the losses where it is not.
    """
    m = 0.5 * (np.asarray(state[0]) if state else np.zeros_like(g)) + 0.5 * g
    return [m.tolist()], -eta * np.sqrt(g.size) * m / (np.sqrt(float(m @ m)) + _TINY)


STEP_RULES: dict[str, StepRule] = {
    "momentum": momentum,
    "adagrad": adagrad,
    "adagrad-norm": adagrad_norm,
    "sgd": sgd,
}
"""Step rules by the name a user gives."""

DECAYING = frozenset({"momentum"})
"""Rules that ignore the gradient's length: eta falls linearly over the planned steps."""


def scheduled(rule: str, eta: float, t: int, T: int) -> float:
    """Step size of step t = 0 ... T - 1."""
    return eta * (1.0 - t / T) if rule in DECAYING else eta
