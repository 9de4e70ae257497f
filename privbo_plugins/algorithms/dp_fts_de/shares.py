"""Noise in shares: each agent adds its own, so that a server need not be trusted with vectors.

Notation (Kairouz, Liu and Steinke 2021, *The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation*):

    ==========  ====================================================================  ======
    symbol      meaning                                                               shape
    ==========  ====================================================================  ======
    N           agents on the roster                                                  scalar
    T           least agents in a sum                                                 scalar
    c           agents that pool what they know with the server, or add no noise      scalar
    z           noise multiplier that the budget needs                                scalar
    sigma       standard deviation of one agent's share, in units of S / 2^36         scalar
    x_n         agent n's clipped vector, in these units: |x_n| <= 2^36               (d,)
    e_n         its share of the noise: discrete Gaussian, N_Z(0, sigma²)             (d,)
    tau         how far a sum of shares is from one discrete Gaussian                 scalar
    ==========  ====================================================================  ======

The server learns sum (x_n + e_n) over at least T agents. Who colludes knows its own e_n, so at
least T - c shares hide the vector of an agent that does not, its own among them. With

    sigma = z 2^36 / sqrt(T - c)

they have the variance (z 2^36)² together, as the noise of a trusted server would have: z is
accounted for in the same way. With all agents present the noise has N / (T - c) times that
variance: what it costs not to trust.

A sum of k discrete Gaussians is not one, but no probability of the two differs by more than a
factor of exp(tau) in each coordinate, where

    tau = 10 sum_{j=1}^{k-1} exp(-2 pi² sigma² j / (j + 1)).

With sigma above 2^20 that is below 10^-300, and :func:`share_scale` gives no smaller one.

As many as open the shares of secrets (t of :mod:`privbo_plugins.federation.masking`) unmask each
x_n + e_n by itself, in every attempt, charged or not: against them epsilon is infinite. Fewer hold
shares that say nothing, and no other agent helps to open an attempt before it is charged.
"""

from __future__ import annotations

import math

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.privacy.mechanisms import FRACTION_BITS, SENSITIVITY_SLACK

_LEAST, _MOST = 2.0**20, 2.0**52
"""Of sigma: below, sums of discrete Gaussians are something else; above, they may overflow."""


def share_scale(config: FederationConfig) -> float:
    """sigma, standard deviation of one agent's noise in units of S / 2^36; 0 without noise.

    Raises:
        ValueError: If z and the roster give one that integers of 64 bits cannot hold.

    Example:
        >>> config = FederationConfig(n_agents=10, z=2.0, trust="aggregate")
        >>> config.present, config.colluders, round(share_scale(config) / 2**36, 3)
        (8, 1, 0.756)
    """
    z, T, c = config.noise_multiplier, config.present, config.colluders
    if z == 0:
        return 0.0
    sigma = z * SENSITIVITY_SLACK * 2.0**FRACTION_BITS / math.sqrt(T - c)
    if not _LEAST <= sigma <= _MOST:
        raise ValueError(
            f"z={z:.3g} among T - c = {T - c} agents gives shares of noise that integers of 64 "
            "bits cannot hold: trust='aggregate' needs a larger budget, or fewer agents."
        )
    return sigma


def noise_in_sum(config: FederationConfig, S: float, present: int) -> float:
    """Standard deviation of the noise in a sum of so many agents, in units of their vectors."""
    return math.sqrt(present) * share_scale(config) * S / 2.0**FRACTION_BITS
