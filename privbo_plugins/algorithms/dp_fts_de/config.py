"""Public settings of a federation: the same for its server and all agents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self

from privbo_plugins.algorithms.dp_fts_de.regions import Temperature
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK
from privbo_plugins.privacy.subsampling import calibrate, pld_epsilon

_POSITIVE = ("clipping_norm", "lengthscale", "noise_variance")
_COUNTS = ("n_agents", "n_rounds", "n_regions", "n_features", "n_startup", "power")


@dataclass(frozen=True)
class FederationConfig:
    """Settings of DP-FTS-DE; with one region DP-FTS, without noise FTS-DE, with neither FTS.

    The budget is given as ``epsilon`` (the noise is then the least that keeps it) or as ``z``.

    Attributes:
        n_agents: N, agents on the roster; public.
        epsilon: User-level budget by privacy loss distributions; infinity for no noise. None if
            ``z`` is given.
        delta: Of the budget; None for N^-1.1.
        n_rounds: Rounds that release something. After them the agents go on alone.
        q: Probability with which an agent is chosen in a round.
        z: Noise multiplier, instead of ``epsilon``; 0 for no noise.
        clipping_norm: S, of what one agent adds to all regions together.
        n_regions: P, sub-regions that agents explore at the start.
        n_features: M, random features.
        lengthscale: Of the squared exponential kernel, in units of the unit cube.
        noise_variance: Of an observation, in units of the value range.
        value_range: Public range of the values; what lies outside is clipped.
        n_startup: Points that an agent draws from its own region before its first round.
        power: p_t = 1 - 1/t^power, the chance that an agent relies on itself at its round t.
        temperature: Of the regions' weights.
        feature_seed: Public seed of the random features.

    Raises:
        ValueError: For every setting outside its range.

    Example:
        >>> config = FederationConfig(n_agents=29, z=1.0, q=0.35, n_rounds=60)
        >>> round(config.epsilon_after(60), 1)
        10.4
    """

    n_agents: int
    epsilon: float | None = None
    delta: float | None = None
    n_rounds: int = 10
    q: float = 1.0
    z: float | None = None
    clipping_norm: float = 22.0
    n_regions: int = 1
    n_features: int = 100
    lengthscale: float = 0.2
    noise_variance: float = 1e-4
    value_range: tuple[float, float] = (0.0, 1.0)
    n_startup: int = 10
    power: int = 1
    temperature: Temperature = field(default_factory=Temperature)
    feature_seed: int = 0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            check_count(name, getattr(self, name))
        for name in _POSITIVE:
            check_positive(name, getattr(self, name))
        self._check_budget()
        if self.n_regions > self.n_agents:
            raise ValueError(
                f"n_regions={self.n_regions} needs at least as many agents, got "
                f"n_agents={self.n_agents}: nobody would explore the last region."
            )
        low, high = self.value_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"value_range needs finite low < high, got {self.value_range}.")

    def _check_budget(self) -> None:
        if (self.epsilon is None) == (self.z is None):
            raise ValueError("Give epsilon= (a budget) or z= (a noise multiplier), one of them.")
        if not 0 < self.q <= 1:
            raise ValueError(f"q must lie in (0, 1], got {self.q}.")
        if self.z is not None and not (math.isfinite(self.z) and self.z >= 0):
            raise ValueError(f"z must be a finite number >= 0, got {self.z}.")
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}.")
        if not 0 < self.claimed_delta < 1:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta}.")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready settings; an infinite epsilon as the string "inf"."""
        stored = asdict(self) | {"value_range": list(self.value_range)}
        return stored | {"epsilon": "inf"} if self.epsilon == math.inf else stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from :meth:`to_dict`."""
        given = {f.name: stored[f.name] for f in fields(cls)}
        given["temperature"] = Temperature(**given["temperature"])
        given["value_range"] = tuple(given["value_range"])
        if given["epsilon"] == "inf":
            given["epsilon"] = math.inf
        return cls(**given)

    # What follows from them ---------------------------------------------------------------------

    @property
    def claimed_delta(self) -> float:
        """Delta of the budget."""
        if self.delta is not None:
            return self.delta
        return min(0.5, math.pow(self.n_agents, -1.1))

    @cached_property
    def noise_multiplier(self) -> float:
        """z: as given, or the least that keeps the budget."""
        if self.z is not None:
            return self.z
        budget = math.inf if self.epsilon is None else self.epsilon
        return calibrate(
            epsilon=budget, delta=self.claimed_delta, n_rounds=self.n_rounds, q=self.q
        ).z

    @property
    def noise_scale(self) -> float:
        """Standard deviation z S of the joint vector's noise, rounded towards privacy."""
        return self.noise_multiplier * self.clipping_norm * SENSITIVITY_SLACK

    @property
    def rate(self) -> float:
        """q, by which sums are divided: weights over the whole roster already sum to 1."""
        return self.q

    @property
    def message_length(self) -> int:
        """M, numbers in an agent's vector."""
        return self.n_features

    def epsilon_after(self, n_rounds: int) -> float:
        """Epsilon of so many rounds at :attr:`claimed_delta`, by privacy loss distributions."""
        return pld_epsilon(self.q, self.noise_multiplier, n_rounds, self.claimed_delta)

    def mechanism_parameters(self) -> dict[str, Any]:
        """What a guarantee prints."""
        return {
            "q": self.q,
            "z": self.noise_multiplier,
            "S": self.clipping_norm,
            "P": self.n_regions,
            "M": self.message_length,
            "rounds": self.n_rounds,
        }


def check_count(name: str, value: Any) -> None:
    """Refuses what is no whole number >= 1.

    Raises:
        ValueError: Naming the setting.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value}.")


def check_positive(name: str, value: Any) -> None:
    """Refuses what is no positive finite number.

    Raises:
        ValueError: Naming the setting.
    """
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value}.")
