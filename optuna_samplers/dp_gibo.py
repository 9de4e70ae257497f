"""DP-GIBO as an Optuna sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution

from optuna_samplers._base import PrivateSampler
from privbo_plugins.algorithms.dp_gibo import GIBOConfig, Plan
from privbo_plugins.privacy.source import NoiseSource


class DPGIBOSampler(PrivateSampler):
    """Tunes on secret validation records with Gaussian differential privacy.

    The objective returns one value per validation record; what the study stores of it is
    mu-GDP for these records (replace-one). Source: Sopa et al., *Scalable Differentially Private
    Bayesian Optimization*, Algorithm 1. ``recommend`` gives theta_T, not the best noisy trial.

    Args:
        mu: Total Gaussian DP parameter, > 0; ``math.inf`` is GIBO without privacy.
        n_steps: Gradient steps T; None for 25, or as many as ``n_trials`` allows.
        n_trials: The most trials you want to run, for planning.
        batch_size: Trials a step; None for d + 1.
        tolerance: Instead of ``batch_size``: the trace of the gradient's posterior covariance
            that the fewest points should reach (unit-cube units; it starts at d / lengthscale²).
        n_starts: Start points K, the centre first; None for 16 (20 where nothing is numeric), at
            most a quarter of ``n_trials``.
        extra_values: Releases kept for trials outside the plan: enqueued ones, and points
            beyond a batch that parallel workers evaluate. Others show a mean of released values.
        clipping_norm: Largest norm B of one record's gradient (losses over the unit cube);
            "adaptive" follows a private quantile, which is charged too.
        loss_bound: Values are clipped to [0, loss_bound], or (low, high), before they are
            released. Gradients see the unclipped losses.
        value_share: Share of mu² spent on the values that dashboards show.
        norm_share: Share of mu² spent on an adaptive clipping norm.
        kernel: "rbf", "matern52" or "polynomial2".
        lengthscale: In units of the unit cube.
        noise_ratio: Variance of one record's evaluation noise over the signal's. 0-1 losses jump,
            so the default is large.
        step_rule: "momentum", "adagrad", "adagrad-norm", "sgd" or "adam".
        step_size: In units of the unit cube; None plans it.
        memory: Points of earlier steps that are used again (-1: all). Their raw losses stay in
            the vault; with 0 a step's losses are deleted as soon as it is released.
        centring: Subtract each record's mean before regressing.
        average: Fraction of the last steps averaged into the recommendation.
        training_mu: Gaussian DP parameter that one trial's training costs the training records.
        search_space: Optuna distributions by name; without it the first trial is a random draw.
        seed: Drives candidates, never noise.
        vault: None for memory, ``sqlite:///private.db`` or ``postgresql://...`` for several
            processes and for resuming.
        noise: For tests only; a run with it is reported as unprotected.

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

    def __init__(
        self,
        mu: float,
        *,
        n_steps: int | None = None,
        n_trials: int | None = None,
        batch_size: int | None = None,
        tolerance: float | None = None,
        n_starts: int | None = None,
        extra_values: int = 0,
        clipping_norm: float | str = 1.0,
        loss_bound: float | tuple[float, float] = 1.0,
        value_share: float = GIBOConfig.value_share,
        norm_share: float = GIBOConfig.norm_share,
        kernel: str = GIBOConfig.kernel,
        lengthscale: float = GIBOConfig.lengthscale,
        noise_ratio: float = GIBOConfig.noise_ratio,
        step_rule: str = GIBOConfig.step_rule,
        step_size: float | None = None,
        memory: int = GIBOConfig.memory,
        centring: bool = True,
        average: float = GIBOConfig.average,
        training_mu: float | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        config = GIBOConfig(
            mu=mu,
            n_steps=n_steps,
            n_trials=n_trials,
            batch_size=batch_size,
            tolerance=tolerance,
            n_starts=n_starts,
            extra_values=extra_values,
            clipping_norm=clipping_norm,
            loss_bound=loss_bound,
            value_share=value_share,
            norm_share=norm_share,
            kernel=kernel,
            lengthscale=lengthscale,
            noise_ratio=noise_ratio,
            step_rule=step_rule,
            step_size=step_size,
            memory=memory,
            centring=centring,
            average=average,
            training_mu=training_mu,
        )
        super().__init__(config, search_space=search_space, seed=seed, vault=vault, noise=noise)

    if TYPE_CHECKING:

        def plan(self, search_space: Mapping[str, BaseDistribution], n_records: int) -> Plan:
            """As for the base; the plan is DP-GIBO's own."""

    @classmethod
    def paper(
        cls,
        mu: float,
        *,
        search_space: Mapping[str, BaseDistribution] | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
        **settings: Any,
    ) -> DPGIBOSampler:
        """Algorithm 1 as published, for comparisons.

        Random start, no start points, no released values (the study shows zeros), no centring,
        B = 3, T = 25, AdaGrad on coordinates. Any setting can be overridden by name.

        Args:
            mu: Total Gaussian DP parameter.
            search_space: As for the class.
            seed: As for the class.
            vault: As for the class.
            noise: As for the class.
            **settings: Overrides, named as in the class (and ``exact_centre``,
                ``random_start``).
        """
        sampler = cls.__new__(cls)
        PrivateSampler.__init__(
            sampler,
            GIBOConfig.paper(mu, **settings),
            search_space=search_space,
            seed=seed,
            vault=vault,
            noise=noise,
        )
        return sampler
