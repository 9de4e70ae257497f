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
from dataclasses import dataclass
from typing import Any

import numpy as np

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.protocols import NoisyPlan
from privbo_plugins.privacy.figures import large_delta, not_below, two_decimals

_DROWNING = 0.5
"""Length of a broadcast's noise, over the longest mean, from which a warning is due."""

_MOST = 12
"""Numbers of rounds for which epsilon is worked out; each takes a moment."""


@dataclass(frozen=True)
class FederationPlan(NoisyPlan):
    """Says what a federation releases and what that costs each agent.

    Attributes:
        config: The federation's settings.
        spent: (rounds, epsilon of so many of them), from the first to all.
        against: (agents that pool what they know with the server, epsilon of all rounds against
            them), where the server is not trusted; it is infinite for the last and for more.

    Example:
        >>> plan = make_federation_plan(FederationConfig(n_agents=29, z=1.0, n_rounds=2))
        >>> plan.noise_dominates, round(plan.noise_norm, 3)
        (False, 0.138)
    """

    config: FederationConfig
    spent: tuple[tuple[int, float], ...]
    against: tuple[tuple[int, float], ...]

    @property
    def epsilon(self) -> float:
        """Of all rounds, at the settings' delta."""
        return self.spent[-1][1]

    @property
    def widened(self) -> float:
        """Standard deviation of a broadcast's noise over that of a trusted server's."""
        z = self.config.noise_multiplier
        return self.config.heard_multiplier / z if z else 1.0

    @property
    def turns(self) -> int:
        """Trials that run one after another: of each agent one a round, after its first ones."""
        config = self.config
        return (config.n_startup + config.n_rounds) * math.ceil(config.n_agents / self.n_workers)

    @property
    def noise_norm(self) -> float:
        """Length of a broadcast's noise over that of the longest mean of agents' vectors."""
        config = self.config
        root = math.sqrt(config.message_length * config.n_regions)
        return config.heard_multiplier * root / (config.q * config.n_agents)

    @property
    def noise_dominates(self) -> bool:
        """True if the noise is likely to hide the agents' messages."""
        return self.noise_norm > _DROWNING

    def noise_warning(self) -> str:
        """Words a warning: the size of the noise, its effect, and remedies."""
        config, z = self.config, self.config.noise_multiplier
        return (
            f"The noise of a broadcast is {self.noise_norm:.2f} times as long as the longest "
            f"mean that {config.n_agents} agents can send (q={config.q:g}, z={z:.3g}, "
            f"{config.message_length} numbers): agents will learn little from each other. More "
            "agents, a larger epsilon, fewer rounds, q=1 or fewer n_features help."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        spent, against = (
            [[n, "inf" if math.isinf(epsilon) else epsilon] for n, epsilon in pairs]
            for pairs in (self.spent, self.against)
        )
        config = self.config
        return {
            "n_agents": config.n_agents, "n_rounds": config.n_rounds, "q": config.q,
            "z": config.noise_multiplier, "delta": config.delta, "spent": spent,
            "message_length": config.message_length, "n_regions": config.n_regions,
            "widened": self.widened, "against": against, "epsilon": spent[-1][1],
        } | ({} if self.seconds is None else {"seconds": self.seconds})  # fmt: skip

    def __str__(self) -> str:
        config, z = self.config, self.config.noise_multiplier
        if z == 0:
            return (
                f"Federation plan: {config.n_agents} agents, {config.n_rounds} rounds, no noise: "
                "nothing is protected"
            )
        by_round = ", ".join(f"{t}: {two_decimals(epsilon)}" for t, epsilon in self.spent)
        lines = [
            f"Federation plan: {config.n_agents} agents, {config.n_rounds} rounds, epsilon="
            f"{two_decimals(self.epsilon)} at delta={not_below(config.delta, 3)} in all, for each "
            "agent's participation",
            f"  each round, an agent is chosen with probability {config.q:g} and sends "
            f"{config.message_length} numbers",
            f"  noise multiplier z={z:.4g}; the noise of a broadcast is at least "
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
        if told := large_delta(config.delta, config.n_agents, "agents"):
            lines.append(f"  WARNING: {told}")
        return "\n".join([*lines, *self._last_lines()])


def make_federation_plan(config: FederationConfig) -> FederationPlan:
    """The plan of a federation, from its public settings.

    Raises:
        ValueError: If no noise keeps the budget.
    """
    return FederationPlan(config, tuple(spent_by_round(config)), tuple(against(config)))


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
