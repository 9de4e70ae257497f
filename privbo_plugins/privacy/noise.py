"""Where noise comes from.

Privacy noise is drawn by OpenDP, whose samplers are hardened against floating-point attacks.
Their bits come from a cryptographic generator inside the process (OpenSSL's CTR-DRBG in OpenDP's
wheels) that is seeded from the operating system's entropy; no seed of a program reaches it. It
asks the system again in a forked child before the first draw, and otherwise only after very many
draws or a long time: a trace of 90 000 draws shows no further request. What copies the memory of
a running process copies the generator, so a snapshot that is resumed twice may draw the same
noise twice. Integers come from the system each time.

Tests inject :class:`InsecureNoise` explicitly, and everything released with it is reported as
unprotected for ever.
"""

from __future__ import annotations

import math
import secrets
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.privacy.source import NoiseSource

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

__all__ = [
    "InsecureNoise",
    "NoiseSource",
    "SecureNoise",
    "choose",
    "grid_exponent",
    "is_secure",
]

_GRID_BITS = 60
_COIN_BITS = 60


def choose(noise: NoiseSource, q: float) -> bool:
    """True with probability q, in (0, 1], rounded down to 60 bits: never more than is claimed."""
    return noise.integer(2**_COIN_BITS) < math.floor(math.ldexp(q, _COIN_BITS))


class SecureNoise:
    """Noise from OpenDP's cryptographic generator, and integers from the operating system.

    OpenDP's float Gaussian is a discrete Gaussian on a fine grid: zero-concentrated DP with
    rho = (sensitivity / scale)² / 2 holds exactly, Gaussian DP up to the width of the grid. Its
    float Laplace lies on such a grid too, and its coin has exactly the probability it is given.

    It has no state: nothing can be put into an instance or pickled with it. OpenDP's measurements
    are built on first use, a vector length and scale at a time, and kept by this module.

    Example:
        >>> SecureNoise().add_gaussian(np.zeros(3), 1.0).shape
        (3,)
    """

    __slots__ = ()

    def add_gaussian(self, value: Array, scale: float) -> Array:
        """``value + N(0, scale² I)`` on OpenDP's grid.

        Raises:
            ValueError: If the scale is not positive and finite, or the value not finite.
        """
        if not (np.isfinite(scale) and scale > 0):
            raise ValueError(f"The noise scale must be positive and finite, got {scale}.")
        if not np.isfinite(value).all():
            raise ValueError("The value must be finite: clip before noise is added.")
        drawn = _measurement(value.size, float(scale))(value.tolist())
        return np.array(drawn, dtype=float)

    def add_laplace(self, value: float, scale: float) -> float:
        """``value + Laplace(scale)`` on OpenDP's grid.

        Raises:
            ValueError: If the scale is not positive and finite, or the value not finite.
        """
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"The noise scale must be positive and finite, got {scale}.")
        if not math.isfinite(value):
            raise ValueError("The value must be finite: clip before noise is added.")
        return float(_measurement("laplace", float(scale))(float(value)))

    def flip(self, probability: float) -> bool:
        """True with exactly this probability.

        Raises:
            ValueError: If the probability lies outside [1/2, 1).
        """
        if not 0.5 <= probability < 1:
            raise ValueError(f"The probability must lie in [1/2, 1), got {probability}.")
        return bool(_measurement("coin", float(probability))(True))

    def discrete_gaussian(self, d: int, scale: float) -> IntArray:
        """D draws of N_Z(0, scale²), exactly: the Gaussian on the integers.

        Raises:
            ValueError: If the scale is not positive and below 2^55, where 64 bits may not do.
        """
        if not 0 < scale < 2.0**55:
            raise ValueError(f"The noise scale must lie in (0, 2^55), got {scale}.")
        return np.array(_measurement(("integers", d), float(scale))([0] * d), dtype=np.int64)

    def integer(self, n: int) -> int:
        """Uniform over 0, ..., n - 1, without bias."""
        return secrets.randbelow(n)


def _methods() -> dict[str, Any]:
    return {name: value for name, value in vars(SecureNoise).items() if callable(value)}


_AS_DEFINED = _methods()


def is_secure(noise: object) -> bool:
    """Tells whether a claim may rest on this source: :class:`SecureNoise`, as defined here.

    A subclass is another source, and so is the class once one of its methods has been replaced.

    Example:
        >>> is_secure(SecureNoise()), is_secure(InsecureNoise(0))
        (True, False)
    """
    return type(noise) is SecureNoise and _methods() == _AS_DEFINED


@lru_cache(maxsize=64)
def _measurement(kind: int | str | tuple[str, int], parameter: float) -> Any:
    # Not opendp.prelude: it imports scikit-learn and pandas where they are installed, 1.5 s.
    from opendp import measurements
    from opendp.domains import atom_domain
    from opendp.metrics import absolute_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    if isinstance(kind, int):
        gaussian = measurements.make_gaussian
        return gaussian(*_input_space(kind), parameter, k=grid_exponent(parameter))
    if isinstance(kind, tuple):
        return measurements.make_gaussian(*_input_space(kind[1], "i64"), parameter)
    if kind == "coin":
        return measurements.make_randomized_response_bool(parameter)
    space = atom_domain(T=float, nan=False), absolute_distance(T=float)
    return measurements.make_laplace(*space, parameter, k=grid_exponent(parameter))


@lru_cache(maxsize=64)
def _input_space(size: int, kind: str = "f64") -> tuple[Any, Any]:
    from opendp.domains import atom_domain, vector_domain
    from opendp.metrics import l2_distance

    numbers = atom_domain(T=float, nan=False) if kind == "f64" else atom_domain(T=kind)
    return vector_domain(numbers, size=size), l2_distance(T=float)


def grid_exponent(scale: float) -> int:
    """log2 of the grid width: 2**-60 standard deviations.

    The default grid of 2**-1074 triples the cost of a draw. Rounding the input to this one adds
    at most sqrt(d) 2**-60 standard deviations to the sensitivity, which the slack of
    :func:`privbo_plugins.privacy.mechanisms.gaussian_scale` covers.
    """
    return math.floor(math.log2(scale)) - _GRID_BITS


class InsecureNoise:
    """Reproducible noise for tests and simulations: **never private**.

    Args:
        seed: Anything ``numpy.random.default_rng`` takes.

    Example:
        >>> InsecureNoise(0).add_gaussian(np.zeros(2), 0.0)
        array([0., 0.])
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def add_gaussian(self, value: Array, scale: float) -> Array:
        """``value + N(0, scale² I)`` from numpy's generator."""
        return np.asarray(value + scale * self._rng.standard_normal(value.shape))

    def add_laplace(self, value: float, scale: float) -> float:
        """``value + Laplace(scale)`` from numpy's generator."""
        return float(value + self._rng.laplace(0.0, scale))

    def flip(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self._rng.random() < probability)

    def discrete_gaussian(self, d: int, scale: float) -> IntArray:
        """Rounded draws of numpy's generator."""
        return np.rint(scale * self._rng.standard_normal(d)).astype(np.int64)

    def integer(self, n: int) -> int:
        """Uniform over 0, ..., n - 1."""
        return int(self._rng.integers(n))
