"""DP-GIBO as an Optuna sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from optuna.distributions import BaseDistribution

from optuna_samplers._base import PrivateSampler
from optuna_samplers._settings import LossRunSettings
from privbo_plugins.algorithms.dp_gibo import GIBOConfig, Plan
from privbo_plugins.algorithms.dp_gibo.config import PUBLISHED
from privbo_plugins.settings import Published, named, part, settings, takes


@settings(eq=False)
class DPGIBOSettings(LossRunSettings, GIBOConfig):
    """The sampler's keywords."""


class DPGIBOSampler(Published, PrivateSampler):
    """Tunes on secret validation records with Gaussian differential privacy.

    The objective returns one value per validation record; what the study stores of it is
    mu-GDP for these records (replace-one). Source: Sopa et al., *Scalable Differentially Private
    Bayesian Optimization*, Algorithm 1. ``recommend`` gives theta_T, not the best noisy trial.
    With up to four numeric parameters and little noise on values it searches by these instead
    (docs/dp-gibo.md); ``n_starts=16`` plans descent.
    ``paper(mu)`` makes it as published: random start, no start points, no released values (what
    is shown is zeros), no centring, B = 3, T = 25, AdaGrad on coordinates.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault cannot be opened for writing.

    Example:
        >>> import numpy as np, optuna
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> records = np.random.default_rng(0).normal(0.7, 0.1, size=1000)
        >>> def objective(trial):
        ...     return (trial.suggest_float("x", 0, 1) - records) ** 2
        >>> sampler = DPGIBOSampler(mu=1, seed=0)
        >>> study = optuna.create_study(sampler=sampler)
        >>> study.optimize(sampler.private(objective))
        >>> abs(sampler.recommend(study)["x"] - 0.7) < 0.1
        True
    """

    _PUBLISHED = PUBLISHED

    @takes(DPGIBOSettings)
    def __init__(self, given: DPGIBOSettings) -> None:
        super().__init__(part(given, GIBOConfig), **named(given, LossRunSettings))

    if TYPE_CHECKING:

        def plan(
            self, search_space: Mapping[str, BaseDistribution], n_records: int,
            *, seconds_per_trial: float | None = None, n_workers: int = 1,
        ) -> Plan:  # fmt: skip
            """As for the base; the plan is DP-GIBO's own."""
