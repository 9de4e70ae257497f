"""Assumptions about the agents' functions; public knowledge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PopulationPrior:
    """What is assumed of the agents' functions before anything is seen; public knowledge.

    Lengths are in units of the unit cube, standard deviations in units of the value range.

    Attributes:
        level: Mean of the values, in [0, 1] from the worst to the best of the range.
        level_sd: s_c, how much agents differ in level.
        shared_lengthscale: Of m.
        shared_sd: Of m.
        own_lengthscale: Of g_n.
        own_sd: Of g_n.
        noise_sd: s_n.
        doubt: Share of m's prior variance that is kept after a broadcast, in [0, 1): guards
            against a prior that fits badly.

    Raises:
        ValueError: If a number lies outside its range.
    """

    level: float = 0.65
    level_sd: float = 0.06
    shared_lengthscale: float = 0.8
    shared_sd: float = 0.045
    own_lengthscale: float = 0.18
    own_sd: float = 0.08
    noise_sd: float = 0.015
    doubt: float = 0.2

    def __post_init__(self) -> None:
        for name in ("level_sd", "shared_sd", "own_sd", "noise_sd"):
            _check(name, getattr(self, name), 1e-4, 1e3)
        for name in ("shared_lengthscale", "own_lengthscale"):
            _check(name, getattr(self, name), 1e-4, 1e3)
        _check("level", self.level, -1e3, 1e3)
        _check("doubt", self.doubt, 0.0, 1.0 - 1e-9)


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (isinstance(value, int | float) and low <= value <= high):
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value}.")
