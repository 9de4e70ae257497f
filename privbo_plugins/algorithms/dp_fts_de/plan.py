"""What a federation costs and what its noise leaves to see, before anybody joins.

Notation:

    ==========  ==========================================================
    symbol      meaning
    ==========  ==========================================================
    N, q        agents on the roster, probability of being chosen
    P, M        regions, numbers in an agent's vector
    S, z        clipping norm of all regions together, noise multiplier
    ==========  ==========================================================

A region's broadcast is a weighted mean of vectors clipped to S/sqrt(P), and its noise has
standard deviation z S phi_max / q in each of M numbers, where phi_max >= 1/N. So, over the longest
mean that there can be, the noise's length is at least z sqrt(M P) / (q N): public quantities only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig, large_delta
from privbo_plugins.algorithms.protocols import NoisyPlan
from privbo_plugins.privacy.figures import not_below, two_decimals

_DROWNING = 0.5
"""Length of a broadcast's noise, over the longest mean, from which a warning is due."""

_MOST = 12
"""Numbers of rounds for which epsilon is worked out; each takes a moment."""


@dataclass(frozen=True)
class FederationPlan(NoisyPlan):
    """What a federation releases and what that costs each agent.

    Attributes:
        n_agents: N.
        n_rounds: Rounds that release something.
        q: Probability of being chosen in a round.
        z: Noise multiplier; 0 for no noise.
        delta: Of every epsilon below.
        spent: (rounds, epsilon of so many of them), from the first to all.
        message_length: M.
        n_regions: P.
        widened: Standard deviation of a broadcast's noise over that of a trusted server's.
        against: (agents that pool what they know with the server, epsilon of all rounds against
            them), where the server is not trusted; it is infinite for the last and for more.

    Example:
        >>> plan = make_federation_plan(FederationConfig(n_agents=29, z=1.0, n_rounds=2))
        >>> plan.noise_dominates, round(plan.noise_norm, 3)
        (False, 0.138)
    """

    n_agents: int
    n_rounds: int
    q: float
    z: float
    delta: float
    spent: tuple[tuple[int, float], ...]
    message_length: int
    n_regions: int
    widened: float = 1.0
    against: tuple[tuple[int, float], ...] = ()

    @property
    def epsilon(self) -> float:
        """Of all rounds, at ``delta``."""
        return self.spent[-1][1]

    @property
    def noise_norm(self) -> float:
        """Length of a broadcast's noise over that of the longest mean of agents' vectors."""
        root = math.sqrt(self.message_length * self.n_regions)
        return self.z * self.widened * root / (self.q * self.n_agents)

    @property
    def noise_dominates(self) -> bool:
        """Whether the noise is likely to hide what agents send."""
        return self.noise_norm > _DROWNING

    def noise_warning(self) -> str:
        """How large the noise is, what follows, and what helps."""
        return (
            f"The noise of a broadcast is {self.noise_norm:.2f} times as long as the longest "
            f"mean that {self.n_agents} agents can send (q={self.q:g}, z={self.z:.3g}, "
            f"{self.message_length} numbers): agents will learn little from each other. More "
            "agents, a larger epsilon, fewer rounds, q=1 or fewer n_features help."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        spent, against = (
            [[n, "inf" if math.isinf(epsilon) else epsilon] for n, epsilon in pairs]
            for pairs in (self.spent, self.against)
        )
        return asdict(self) | {"spent": spent, "epsilon": spent[-1][1], "against": against}

    def __str__(self) -> str:
        if self.z == 0:
            return (
                f"Federation plan: {self.n_agents} agents, {self.n_rounds} rounds, no noise: "
                "nothing is protected"
            )
        by_round = ", ".join(f"{t}: {two_decimals(epsilon)}" for t, epsilon in self.spent)
        lines = [
            f"Federation plan: {self.n_agents} agents, {self.n_rounds} rounds, epsilon="
            f"{two_decimals(self.epsilon)} at delta={not_below(self.delta, 3)} in all, for each "
            "agent's participation",
            f"  each round, an agent is chosen with probability {self.q:g} and sends "
            f"{self.message_length} numbers",
            f"  noise multiplier z={self.z:.4g}; the noise of a broadcast is at least "
            f"{self.noise_norm:.2f} times as long as the longest mean",
            f"  epsilon after round {by_round}",
        ]
        if self.against:
            pooled = ", ".join(f"{c}: {two_decimals(epsilon)}" for c, epsilon in self.against)
            lines += [
                "  the server sees the noisy sum alone: its noise is "
                f"{self.widened:.2f} times that of a trusted server",
                f"  epsilon against the server and so many agents that pool what they know with "
                f"it: {pooled}",
                f"  against {self.against[-1][0]} agents or more with the server nothing is "
                "protected: their shares open every mask",
            ]
        if told := large_delta(self.delta, self.n_agents):
            lines.append(f"  WARNING: {told}")
        if self.noise_dominates:
            lines.append("  WARNING: the noise is likely to drown the signal")
        return "\n".join(lines)


def make_federation_plan(config: FederationConfig) -> FederationPlan:
    """The plan of a federation, from its public settings.

    Raises:
        ValueError: If no noise keeps the budget.
    """
    return FederationPlan(
        config.n_agents,
        config.n_rounds,
        config.q,
        config.noise_multiplier,
        config.delta,
        tuple(spent_by_round(config)),
        config.message_length,
        config.n_regions,
        config.heard_multiplier / config.noise_multiplier if config.noise_multiplier else 1.0,
        tuple(against(config)),
    )


def against(config: FederationConfig) -> list[tuple[int, float]]:
    """(agents that pool what they know with the server, epsilon of all rounds against them).

    The last are as many as open every mask. Empty where the server is trusted: nothing holds
    against it.
    """
    if not config.aggregated or config.noise_multiplier == 0:
        return []
    t, c = config.threshold, config.colluders
    counts = sorted({0, c, 2 * c, 3 * c, t - 1, t})
    return [(n, config.epsilon_after(config.n_rounds, n)) for n in counts if n <= t]


def spent_by_round(config: FederationConfig, released: int = 1) -> list[tuple[int, float]]:
    """(rounds, epsilon of so many), from one round to all; what was released is among them."""
    even = np.linspace(1, config.n_rounds, min(config.n_rounds, _MOST)).round().astype(int)
    counts = sorted({*even.tolist(), max(released, 1)})
    if config.noise_multiplier == 0:
        return [(t, math.inf) for t in counts]
    return [(t, config.epsilon_after(t)) for t in counts]
