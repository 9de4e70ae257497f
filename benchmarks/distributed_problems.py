"""The problems of the DUETS paper (section 5): one function for all agents, to be maximised.

    ============  =====================================================  ============  ====
    name          function                                               domain        l
    ============  =====================================================  ============  ====
    h1            cos(3 xᵀtheta*)                                        unit ball     1
    h2            (xᵀtheta*)³ - 3 (xᵀtheta*)² + 3 xᵀtheta* + 3           unit ball     1
    branin        Branin, rescaled by Picheny et al. 2013, negated       [0, 1]²       .2
    hartmann4     Hartmann-4, rescaled by Picheny et al. 2013, negated   [0, 1]⁴       1
    ============  =====================================================  ============  ====

l is the length-scale of the paper's squared exponential kernel; rewards get Gaussian noise of
standard deviation .2. ``hartmann4_raw`` is Hartmann-4 on the scale of the authors' code, which
leaves out the rescaling and counts regret against the best of the candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from privbo_plugins.algorithms.duets import Domain, SpaceDomain
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]
Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Problem:
    """A function to be maximised by all agents together.

    Attributes:
        name: For tables.
        f: The function without noise, (n, D) to (n,).
        optimum: Its largest value on the domain.
        lengthscale: Of the squared exponential kernel.
        d: Dimension D.
        in_ball: Whether the domain is the unit ball; otherwise it is the unit cube.
    """

    name: str
    f: Function
    optimum: float
    lengthscale: float
    d: int
    in_ball: bool

    def uniform(self, n: int, rng: np.random.Generator) -> Array:
        """Independent uniform points of the domain, shape (n, D)."""
        if not self.in_ball:
            return rng.random((n, self.d))
        directions = rng.standard_normal((n, self.d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        # The volume within radius r is r^D.
        return np.asarray(directions * rng.random((n, 1)) ** (1.0 / self.d))


def _largest(f: Function, bounds: list[tuple[float, float]], starts: int = 4096) -> float:
    """The maximum of f on a box: the best 20 of many random points, each climbed from."""
    low, high = np.array(bounds).T
    X = low + (high - low) * np.random.default_rng(0).random((starts, len(bounds)))
    X = np.vstack([X, low, high])
    best = X[np.argsort(-f(X))[:20]]

    def loss(x: Array) -> float:
        return -float(f(x[None])[0])

    climbed = [minimize(loss, x, method="L-BFGS-B", bounds=bounds, tol=1e-15) for x in best]
    return -min(float(result.fun) for result in climbed)


def _ridge(name: str, profile: Function, seed: int, d: int) -> Problem:
    """A function of xᵀtheta* alone, theta* uniform on the sphere."""
    theta = np.random.default_rng([24021, seed]).standard_normal(d)
    theta /= np.linalg.norm(theta)
    optimum = _largest(lambda z: profile(z[:, 0]), [(-1.0, 1.0)])
    return Problem(name, lambda X: profile(X @ theta), optimum, 1.0, d, in_ball=True)


def h1(seed: int, d: int = 10) -> Problem:
    """cos(3 xᵀtheta*) on the unit ball, theta* drawn from the sphere by the seed."""
    return _ridge("h1", lambda z: np.asarray(np.cos(3.0 * z)), seed, d)


def h2(seed: int, d: int = 10) -> Problem:
    """z³ - 3z² + 3z + 3 of z = xᵀtheta* on the unit ball, theta* drawn by the seed."""
    return _ridge("h2", lambda z: np.asarray(z**3 - 3.0 * z**2 + 3.0 * z + 3.0), seed, d)


def _branin(X: Array) -> Array:
    u, v = 15.0 * X[:, 0] - 5.0, 15.0 * X[:, 1]
    square = (v - 5.1 * u**2 / (4.0 * np.pi**2) + 5.0 * u / np.pi - 6.0) ** 2
    # With the usual + 10 of Branin, 44.81 is the constant 54.8104, its mean on the domain.
    return np.asarray(-(square + (10.0 - 10.0 / (8.0 * np.pi)) * np.cos(u) - 44.81) / 51.95)


def branin() -> Problem:
    """Branin with mean about 0 and variance about 1 on the square, negated: at most 1.0474."""
    return Problem("branin", _branin, _largest(_branin, [(0.0, 1.0)] * 2), 0.2, 2, in_ball=False)


_HARTMANN_A = np.array(
    [
        [10.0, 3.0, 17.0, 3.5],
        [0.05, 10.0, 17.0, 0.1],
        [3.0, 3.5, 1.7, 10.0],
        [17.0, 8.0, 0.05, 10.0],
    ]
)
_HARTMANN_P = np.array(
    [
        [0.1312, 0.1696, 0.5569, 0.0124],
        [0.2329, 0.4135, 0.8307, 0.3736],
        [0.2348, 0.1451, 0.3522, 0.2883],
        [0.4047, 0.8828, 0.8732, 0.5743],
    ]
)
_HARTMANN_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])


def _hartmann4(X: Array) -> Array:
    square = (X[:, None, :] - _HARTMANN_P) ** 2
    return np.asarray(np.exp(-(_HARTMANN_A * square).sum(-1)) @ _HARTMANN_ALPHA)


def hartmann4() -> Problem:
    """Hartmann-4 with mean about 0 and variance about 1, negated: at most 3.1345."""

    def f(X: Array) -> Array:
        return np.asarray((_hartmann4(X) - 1.1) / 0.839)

    return Problem("hartmann4", f, _largest(f, [(0.0, 1.0)] * 4), 1.0, 4, in_ball=False)


def hartmann4_raw() -> Problem:
    """Hartmann-4 as the authors' code has it, the bare sum of exponentials: at most 3.7298."""
    largest = _largest(_hartmann4, [(0.0, 1.0)] * 4)
    return Problem("hartmann4_raw", _hartmann4, largest, 1.0, 4, in_ball=False)


def problem(name: str, seed: int) -> Problem:
    """The problem of a name; the seed matters to h1 and h2 alone.

    Raises:
        KeyError: If there is none of this name.
    """
    makers: dict[str, Callable[[int], Problem]] = {
        "h1": h1,
        "h2": h2,
        "branin": lambda _: branin(),
        "hartmann4": lambda _: hartmann4(),
        "hartmann4_raw": lambda _: hartmann4_raw(),
    }
    return makers[name](seed)


class Ball:
    """The unit ball as a domain of DUETS.

    Args:
        d: Dimension D.
    """

    complete = False

    def __init__(self, d: int) -> None:
        self._d = d

    def points(self, n: int, seed: int) -> Array:
        """Independent uniform points, shape (n, D)."""
        ball = Problem("", lambda X: X[:, 0], 0.0, 1.0, self._d, in_ball=True)
        return ball.uniform(n, np.random.default_rng(seed))

    def near(self, X: Array, width: Array, rng: np.random.Generator) -> Array:
        """A Gaussian step from each point."""
        return np.asarray(X + width * rng.standard_normal(X.shape))

    def contains(self, X: Array) -> NDArray[np.bool_]:
        """Which points have a norm of at most one, shape (n,)."""
        return np.asarray((X * X).sum(1) <= 1.0)

    def inputs(self, X: Array) -> Array:
        """The points."""
        return X


def domain_of(made: Problem) -> Domain:
    """All of a problem's domain."""
    if made.in_ball:
        return Ball(made.d)
    return SpaceDomain(Space({f"x{i}": Float(0.0, 1.0) for i in range(made.d)}))
