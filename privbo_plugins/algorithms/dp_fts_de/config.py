"""Public settings of a federation: the same for its server and all agents."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, Self

from privbo_plugins.algorithms.dp_fts_de.regions import Temperature
from privbo_plugins.privacy.figures import warn_of_delta
from privbo_plugins.privacy.subsampling import calibrate, pld_epsilon
from privbo_plugins.settings import (
    Chance,
    Count,
    Positive,
    Probability,
    Range,
    Rule,
    Stored,
    between,
    is_finite,
    one_of,
    setting,
    settings,
)

POPULATION = ("prior", "explore")
"""How agents use what they receive."""
TRUST = ("server", "aggregate")
"""Whether agents trust the server with their vectors, or it sees their noisy sum only."""

_Budget = Annotated[
    float, Rule("a number > 0, or math.inf", lambda x: x == math.inf or (is_finite(x) and x > 0))
]
_Noise = Annotated[
    float,
    Rule(
        "0 (no noise) or a number in [0.1, 1e+06] (less than a tenth of the clipping norm "
        "does not protect, and cannot be accounted for)",
        lambda z: is_finite(z) and (z == 0 or 0.1 <= z <= 1e6),
    ),
]
_Norm = Annotated[float, between(1e-9, 1e9)]
_Population = Annotated[str, one_of(*POPULATION)]
_Trust = Annotated[str, one_of(*TRUST)]


_Length = Annotated[float, between(1e-4, 1e3)]
_Level = Annotated[float, between(-1e3, 1e3)]
_Doubt = Annotated[float, between(0.0, 1.0 - 1e-9)]


@settings
class PopulationPrior(Stored):
    """What is assumed of the agents' functions before anything is seen; public knowledge.

    Lengths are in units of the unit cube, standard deviations in units of the value range.

    {settings}

    Raises:
        ValueError: If a number lies outside its range.
    """

    level: _Level = setting(
        "Mean of the values, in [0, 1] from the worst to the best of the range.", default=0.65
    )
    level_sd: _Length = setting("s_c, how much agents differ in level.", default=0.06)
    shared_lengthscale: _Length = setting("Of m.", default=0.8)
    shared_sd: _Length = setting("Of m.", default=0.045)
    own_lengthscale: _Length = setting("Of g_n.", default=0.18)
    own_sd: _Length = setting("Of g_n.", default=0.08)
    noise_sd: _Length = setting("s_n.", default=0.015)
    doubt: _Doubt = setting(
        "Share of m's prior variance that is kept after a broadcast, in [0, 1): guards against a "
        "prior that fits badly.",
        default=0.2,
    )


@settings
class FederationConfig(Stored):
    """Settings of a federation; :meth:`paper` gives the published ones.

    With ``population="explore"`` DP-FTS-DE, with the published server and agents that differ in
    one step: their own draws come from the shared random features' posterior, the paper's from
    their exact Gaussian process. With one region it is DP-FTS, without noise FTS-DE, with neither
    FTS. The budget is given as ``epsilon`` (the noise is then the least that keeps it) or as
    ``z``.

    {settings}

    Raises:
        ValueError: For every setting outside its range.

    Warns:
        PrivacyWarning: If delta is above 1/(10 N).

    Example:
        >>> config = FederationConfig(n_agents=29, z=1.0, q=0.35, n_rounds=60)
        >>> round(config.epsilon_after(60), 1)
        19.7
    """

    n_agents: Count = setting("N, agents on the roster; public.", kw_only=False)
    epsilon: _Budget | None = setting(
        "User-level budget by privacy loss distributions; infinity for no noise. None if "
        "``z`` is given.",
        default=None,
    )
    delta: Probability = setting("Delta of the budget; far below 1/N.", default=1e-5)
    n_rounds: Count = setting(
        "Rounds that release something. After them the agents go on with what they have. "
        'With "prior" one to three: messages of the same agents repeat themselves.',
        default=1,
    )
    q: Chance = setting("Probability with which an agent is chosen in a round.", default=1.0)
    z: _Noise | None = setting(
        "Noise multiplier, instead of ``epsilon``; 0 for no noise.", default=None
    )
    clipping_norm: _Norm | None = setting(
        "S, largest norm of what one agent adds to all regions together; None derives it from "
        "the prior, or from M and P.",
        default=None,
    )
    n_regions: Count = setting(
        'P, sub-regions that agents explore at the start ("explore" only).', default=1
    )
    n_features: Count | None = setting(
        'M, numbers in a message; None for 16 points ("prior"; ``k**D`` of them lie on a '
        "grid, about one a shared length-scale and one more in each direction is enough) or "
        '100 random features ("explore").',
        default=None,
    )
    value_range: Range = setting(
        "Public range of the values; what lies outside is clipped.", default=(0.0, 1.0)
    )
    n_startup: Count = setting(
        "Points that an agent draws at random before its first round.", default=1
    )
    population: _Population = setting(
        'How agents use broadcasts: "prior" for their own model (the default), or "explore" '
        "with probability 1 - p_t (the paper's way).",
        default="prior",
    )
    prior: PopulationPrior = setting(
        'Assumptions about the agents\' functions ("prior" only).', default=PopulationPrior()
    )
    beta: Positive = setting(
        'Optimism of an agent\'s search, in standard deviations ("prior" only).', default=2.0
    )
    lengthscale: Positive = setting(
        'Length-scale of the squared exponential kernel, in units of the unit cube ("explore").',
        default=0.2,
    )
    noise_variance: Positive = setting(
        'Noise variance of an observation, in units of the value range ("explore").',
        default=0.0001,
    )
    power: Count = setting(
        'p_t = 1 - 1/t^power, the chance that an agent relies on itself ("explore").', default=1
    )
    temperature: Temperature = setting(
        'Temperature of the regions\' weights ("explore").', default=Temperature()
    )
    trust: _Trust = setting(
        'Whom agents trust: the "server" with their vectors, or, with "aggregate", a server that '
        "follows the protocol and sees their noisy sum alone. Needs the ``federation`` extra.",
        default="server",
    )
    colluding: Count | None = setting(
        "c, agents that pool what they know with the server, if only by listening, or add no "
        'noise ("aggregate" only); None for a tenth of them, at least one: each agent knows its '
        "own share of the noise.",
        default=None,
    )
    min_present: Count | None = setting(
        'T, least agents in a sum ("aggregate" only): the noise of T - c of them is enough. None '
        "for three quarters, or as many as must open a sum.",
        default=None,
    )

    def __attrs_post_init__(self) -> None:
        if (self.epsilon is None) == (self.z is None):
            raise ValueError("Give epsilon= (a budget) or z= (a noise multiplier), one of them.")
        self._check_population()
        if self.aggregated:
            self._check_shares()
        elif (self.colluding, self.min_present) != (None, None):
            raise ValueError("colluding= and min_present= belong to trust='aggregate'.")
        warn_of_delta(self.delta, self.n_agents, "agents")

    def _check_population(self) -> None:
        if self.population == "prior" and self.message_length < 2:
            raise ValueError(
                "population='prior' compares points: n_features must be at least 2, got "
                f"{self.message_length}."
            )
        if self.population == "prior" and self.n_regions > 1:
            raise ValueError(
                f"n_regions={self.n_regions} belongs to population='explore': with "
                "population='prior' one vector speaks of the whole space."
            )
        if self.n_regions > self.n_agents:
            raise ValueError(
                f"n_regions={self.n_regions} needs at least as many agents, got "
                f"n_agents={self.n_agents}: no agent would explore the last region."
            )

    def _check_shares(self) -> None:
        if self.q != 1:
            raise ValueError(
                f"trust='aggregate' needs q=1, got q={self.q}: no party could toss the coins in "
                "secret, and for a budget q=1 has the least noise."
            )
        N, c, T = self.n_agents, self.colluders, self.present
        if c >= N:
            raise ValueError(
                f"colluding={c} must be less than n_agents={N}: one agent at least keeps its "
                "noise to itself, and the sum of one agent alone hides nothing."
            )
        if not self.threshold <= T <= N:
            raise ValueError(
                f"min_present={T} must lie in [{self.threshold}, {N}]: more than half of "
                f"{N} agents and {c} that collude have to help to open a sum."
            )

    @classmethod
    def paper(cls, n_agents: int, **changes: Any) -> Self:
        """The paper's settings on its landmine problem, with changes.

        Settings only: agents draw for themselves from the random features, see the class. Delta
        is the paper's N^-1.1, .0246 for 29 agents, about which a warning is due.

        Example:
            >>> FederationConfig.paper(29, delta=1e-5).n_rounds
            60
        """
        settings: dict[str, Any] = {
            "population": "explore", "n_rounds": 60, "q": 0.35, "z": 1.0, "clipping_norm": 22.0,
            "n_regions": 4, "n_features": 100, "n_startup": 10, "lengthscale": 0.01,
            "noise_variance": 1e-6, "delta": min(0.5, n_agents**-1.1),
        }  # fmt: skip
        return cls(n_agents, **(settings | changes))

    # What follows from them ---------------------------------------------------------------------

    @cached_property
    def noise_multiplier(self) -> float:
        """z: as given, or the least that keeps the budget."""
        if self.z is not None:
            return self.z
        budget = math.inf if self.epsilon is None else self.epsilon
        return calibrate(epsilon=budget, delta=self.delta, n_rounds=self.n_rounds, q=self.q)

    @property
    def norm(self) -> float:
        """S of the published agent: as given, or a little more than a draw's norm, sqrt(M)."""
        if self.clipping_norm is not None:
            return self.clipping_norm
        return 1.1 * math.sqrt(self.message_length * self.n_regions)

    @property
    def message_length(self) -> int:
        """M, numbers in an agent's vector."""
        if self.n_features is not None:
            return self.n_features
        return 16 if self.population == "prior" else 100

    @property
    def aggregated(self) -> bool:
        """True if the server sees the agents' noisy sum alone."""
        return self.trust == "aggregate"

    @property
    def colluders(self) -> int:
        """c, agents that pool what they know with the server, or add no noise."""
        return max(1, self.n_agents // 10) if self.colluding is None else self.colluding

    @property
    def threshold(self) -> int:
        """t, agents who must help to open a sum: 2t > N + c."""
        return (self.n_agents + self.colluders) // 2 + 1

    @property
    def present(self) -> int:
        """T, least agents in a sum."""
        if self.min_present is not None:
            return self.min_present
        return max(self.threshold, math.ceil(0.75 * self.n_agents))

    @property
    def heard_multiplier(self) -> float:
        """Noise of a broadcast over S; for ``trust="aggregate"`` with all agents present."""
        if not self.aggregated:
            return self.noise_multiplier
        return self.noise_multiplier * math.sqrt(self.n_agents / (self.present - self.colluders))

    def epsilon_after(self, n_rounds: int, colluding: int | None = None) -> float:
        """Epsilon of so many rounds at :attr:`delta`, by privacy loss distributions.

        Args:
            n_rounds: How many.
            colluding: Against the server and so many agents that pool what they know with it.
                Infinite for :attr:`threshold` of them: they hold shares enough to unmask every
                vector, of attempts that were given up and never charged, too. None for
                ``colluders``.
        """
        z = self.noise_multiplier
        if colluding is not None:
            if not self.aggregated or colluding >= self.threshold:
                return math.inf
            T, c = self.present, self.colluders
            z *= math.sqrt((T - colluding) / (T - c))
        return pld_epsilon(self.q, z, n_rounds, self.delta)

    def _told_norm(self) -> float | str:
        if self.population == "prior" and self.clipping_norm is None:
            return "root mean square of a message under the public prior"
        return self.norm

    def mechanism_parameters(self) -> dict[str, Any]:
        """Lists the parameters that a guarantee prints."""
        return {
            "q": self.q,
            "z": self.noise_multiplier,
            "S": self._told_norm(),
            "population": self.population,
            "P": self.n_regions,
            "M": self.message_length,
            "rounds": self.n_rounds,
        } | (
            {"trust": self.trust, "T": self.present, "c": self.colluders, "t": self.threshold}
            if self.aggregated
            else {}
        )
