"""The server's part of a round: sum what was sent, so that one Gaussian hides any one agent.

Notation (Dai et al. 2021, Algorithm 1):

    ==========  ==========================================================  ==========
    symbol      meaning                                                     shape
    ==========  ==========================================================  ==========
    N, P, M     agents on the roster, regions, numbers in a vector          scalars
    w_n         what agent n sends                                          (M,)
    S           clipping norm of the joint vector of all regions            scalar
    phi         weights of agents in regions                                (P, N)
    phi_max     largest weight in each region                               (P,)
    q, z        sampling probability, noise multiplier                      scalars
    C           agents chosen this round by independent coins               subset
    ==========  ==========================================================  ==========

Lines 5 to 11:

    w^(p) = (1/q) sum_{n in C} phi_n^(p) clip(w_n, S/sqrt(P)) + N(0, (z S phi_max^(p)/q)² I)

Divided by phi_max^(p)/q in region p, what one agent adds to all regions together has norm at most
S, and the noise is N(0, (z S)² I) everywhere: one Gaussian release of multiplier z on a Poisson
sample. The normaliser is the public q N, never the number chosen or present; an empty sample
still releases its noise. What sampling adds to privacy rests on hiding which agents were chosen,
so the work done for a vector, which its sender could time, does not depend on its coin.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.regions import region_weights
from privbo_plugins.privacy.mechanisms import (
    FRACTION_BITS,
    SENSITIVITY_SLACK,
    clip_rows,
    fixed_point_sum,
)

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Broadcast:
    """What a round releases to everybody.

    Attributes:
        round: Its number, from 1.
        weights: One vector a region, shape (P, M).
        noise: Standard deviation of the noise in each coordinate of a region's vector, shape (P,).
    """

    round: int
    weights: Array
    noise: Array

    def digest(self) -> str:
        """A fingerprint of its content."""
        content = hashlib.sha256(str(self.round).encode())
        for numbers in (self.weights, self.noise):
            content.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
        return content.hexdigest()


class Measure:
    """What a round makes of vectors before they are added, and of their sum afterwards.

    Args:
        config: The federation's public settings.
        t: Number of the round, from 1.
        S: Clipping norm of this round; None for ``config.norm``.
    """

    def __init__(self, config: FederationConfig, t: int, S: float | None = None) -> None:
        self.config, self.t = config, t
        self.S = config.norm if S is None else S
        phi = region_weights(config.n_agents, config.n_regions, config.temperature(t))
        self._phi_max: Array = phi.max(1)  # (P,)
        self._relative: Array = phi / self._phi_max[:, None]  # (P, N)

    @property
    def d(self) -> int:
        """Numbers of a joint vector, P * M."""
        return self.config.n_regions * self.config.message_length

    def part(self, n: int, w: Array) -> IntArray:
        """Computes what agent n's vector adds, shape (P * M,), in units of S / 2^36.

        Its norm is at most 2^36; NaN and infinity count as 0.

        Raises:
            ValueError: If the vector has another shape than (M,).
        """
        M = self.config.message_length
        if w.shape != (M,):
            raise ValueError(f"A message has shape ({M},), got {w.shape}.")
        S, P = self.S, self.config.n_regions
        clipped = clip_rows(w[None], S / math.sqrt(P))  # (1, M)
        joint = self._relative[:, n, None] * clipped  # (P, M)
        return fixed_point_sum(joint.reshape(1, -1), S)

    def of_units(self, total: IntArray) -> Array:
        """A sum of parts, shape (P * M,)."""
        return np.asarray(total.astype(float) * (self.S / 2**FRACTION_BITS))

    @property
    def noise_scale(self) -> float:
        """Standard deviation z S of the joint vector's noise, rounded towards privacy."""
        return self.config.noise_multiplier * self.S * SENSITIVITY_SLACK

    def broadcast(self, noisy: Array, scale: float | None = None) -> Broadcast:
        """The release from its noisy sum, shape (P * M,); post-processing.

        Args:
            noisy: The sum.
            scale: Standard deviation of its noise; None for :attr:`noise_scale`.
        """
        unit = self._phi_max / self.config.q  # (P,)
        weights = noisy.reshape(self.config.n_regions, -1) * unit[:, None]
        return Broadcast(self.t, weights, (self.noise_scale if scale is None else scale) * unit)


class RoundSum(Measure):
    """The exact sum of one round; a vector that was added is kept nowhere.

    Sums are taken over integers, so they depend neither on the order of arrival nor on rounding.

    Args:
        config: The federation's public settings.
        t: Number of the round, from 1.
        chosen: The coins, one an agent of the roster, drawn before anything arrives.
        S: Clipping norm of this round; None for ``config.norm``.

    Example:
        >>> config = FederationConfig(n_agents=2, q=1.0, z=1.0, clipping_norm=1.0, n_rounds=1)
        >>> total = RoundSum(config, 1, [True, True])
        >>> total.add(0, np.zeros(config.message_length))
        >>> total.exact().shape == (config.n_regions * config.message_length,)
        True
    """

    def __init__(
        self, config: FederationConfig, t: int, chosen: Sequence[bool], S: float | None = None
    ) -> None:
        super().__init__(config, t, S)
        self._chosen: IntArray = np.array(chosen, dtype=np.int64)
        self._total = np.zeros(self.d, dtype=np.int64)

    def add(self, n: int, w: Array) -> None:
        """Clips agent n's vector and adds it times its coin, 0 or 1; NaN and infinity count as 0.

        Raises:
            ValueError: If the vector has another shape than (M,).
        """
        self._total += self._chosen[n] * self.part(n, w)

    def exact(self) -> Array:
        """The sum before noise, shape (P * M,); one agent changes its norm by at most S."""
        return self.of_units(self._total)
