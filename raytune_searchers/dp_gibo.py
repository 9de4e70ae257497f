"""DP-GIBO as a Ray Tune searcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.privacy.source import NoiseSource
from raytune_searchers._base import PrivateSearch


class DPGIBOSearch(PrivateSearch):
    """Tunes on secret validation records with Gaussian differential privacy.

    The trainable returns one value per validation record; what Tune stores and shows of it is
    mu-GDP for these records (replace-one). Source: Sopa et al., *Scalable Differentially Private
    Bayesian Optimization*, Algorithm 1. ``recommend`` gives theta_T, not the best noisy trial.

    Args:
        mu: Total Gaussian DP parameter, > 0; ``math.inf`` is GIBO without privacy.
        metric: Under which name trials report their released value; None takes ``TuneConfig``'s.
        mode: "min" for losses, "max" for scores; None takes ``TuneConfig``'s.
        search_space: Tune domains, nested or not; None takes the Tuner's ``param_space``.
        points_to_evaluate: Configurations to evaluate first.
        max_concurrent: The most trials that may be out at once; ``max_concurrent_trials`` of
            ``TuneConfig`` and ``ConcurrencyLimiter`` set it too.
        fill_idle: While a batch is out, have idle workers evaluate further points for the same
            step instead of waiting. Costs trials beyond the plan, and no privacy.
        n_steps: Gradient steps T; None for 25, or as many as the trials allow.
        n_trials: The most trials you want to run, for planning; None takes ``num_samples``,
            if that is not -1.
        batch_size: Trials a step; None for d + 1.
        tolerance: Instead of ``batch_size``: the trace of the gradient's posterior covariance
            that the fewest points should reach (unit-cube units; it starts at d / lengthscale²).
        n_starts: Start points K, the centre first; None for 16 (20 where nothing is numeric), at
            most a quarter of the trials.
        extra_values: Releases kept for trials outside the plan: points to evaluate once the start
            is over, and points beyond a batch that parallel workers evaluate. Others show a mean
            of released values.
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
        training_mu: Gaussian DP parameter that one training costs the training records; every
            attempt of a trial pays.
        seed: Drives candidates, never noise.
        vault: None keeps the losses in the memory of an actor on the driver's machine, which
            ends with the driver. ``sqlite:///private.db`` (a file on the driver's machine),
            ``postgresql://user@host/db`` or ``env:NAME`` survive it, for ``Tuner.restore``.
        run: Name of the run in the vault; None makes one. A search with the name of an earlier
            run goes on with it.
        noise: For tests only; a run with it is reported as unprotected.

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.

    Example:
        >>> from ray import tune
        >>> search = DPGIBOSearch(mu=1, metric="loss", mode="min")
        >>> print(search.plan({"lr": tune.loguniform(1e-4, 1e-1)}, n_records=1000))
        DP-GIBO plan: 67 trials, n=1000 records, d=1, ...
        >>> # results = tune.Tuner(
        >>> #     search.private(trainable),
        >>> #     param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        >>> #     tune_config=tune.TuneConfig(search_alg=search, num_samples=-1),
        >>> # ).fit()
    """

    def __init__(
        self,
        mu: float,
        *,
        metric: str | None = None,
        mode: str | None = None,
        search_space: Mapping[str, Any] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int | None = None,
        fill_idle: bool = False,
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
        seed: int | None = None,
        vault: str | None = None,
        run: str | None = None,
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
        super().__init__(
            config,
            metric=metric,
            mode=mode,
            search_space=search_space,
            points_to_evaluate=points_to_evaluate,
            max_concurrent=max_concurrent,
            fill_idle=fill_idle,
            seed=seed,
            vault=vault,
            run=run,
            noise=noise,
        )

    @classmethod
    def paper(
        cls,
        mu: float,
        *,
        metric: str | None = None,
        mode: str | None = None,
        search_space: Mapping[str, Any] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int | None = None,
        fill_idle: bool = False,
        seed: int | None = None,
        vault: str | None = None,
        run: str | None = None,
        noise: NoiseSource | None = None,
        **settings: Any,
    ) -> DPGIBOSearch:
        """Algorithm 1 as published, for comparisons.

        Random start, no start points, no released values (Tune shows zeros), no centring, B = 3,
        T = 25, AdaGrad on coordinates. Any setting can be overridden by name.

        Args:
            mu: Total Gaussian DP parameter.
            metric: As for the class.
            mode: As for the class.
            search_space: As for the class.
            points_to_evaluate: As for the class.
            max_concurrent: As for the class.
            fill_idle: As for the class.
            seed: As for the class.
            vault: As for the class.
            run: As for the class.
            noise: As for the class.
            **settings: Overrides, named as in the class (and ``exact_centre``,
                ``random_start``).
        """
        search = cls.__new__(cls)
        PrivateSearch.__init__(
            search,
            GIBOConfig.paper(mu, **settings),
            metric=metric,
            mode=mode,
            search_space=search_space,
            points_to_evaluate=points_to_evaluate,
            max_concurrent=max_concurrent,
            fill_idle=fill_idle,
            seed=seed,
            vault=vault,
            run=run,
            noise=noise,
        )
        return search
