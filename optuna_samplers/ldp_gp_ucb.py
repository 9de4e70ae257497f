"""GP-UCB on privatised or heavy-tailed rewards as Optuna samplers."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike
from optuna.distributions import BaseDistribution

from optuna_samplers._rewards import RewardSampler
from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.privacy.local import DEFAULT_MECHANISM, reward_privacy
from privbo_plugins.privacy.source import NoiseSource


class LDPGPUCBSampler(RewardSampler):
    """Learns from one privatised reward a trial; the default of this family.

    Each trial is one user's reward, privatised in the process that evaluates it. The sampler
    knows the mechanism's variance and uses it. See :class:`LDPTGPUCBSampler` and its siblings for
    the published algorithms.

    Args:
        epsilon: Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.
        bound: Rewards are clipped to [-bound, bound].
        reward_range: Or to (low, high). Exactly one of the two, from public knowledge.
        mechanism: "laplace", "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For "gaussian" only: it is (epsilon, delta)-LDP.
        horizon: Number of plays T that you expect, for the width; None for 1000.
        beta_scale: Multiplies the width of the confidence intervals: smaller exploits sooner.
        kernel: "rbf" or "matern52", on the unit cube or on ``features``.
        lengthscale: In units of the unit cube (or of ``features``); None for 0.2 sqrt(D).
        kernel_matrix: Covariance of finitely many arms, shape (arms, arms); the study then has
            one integer parameter, the number of the arm counted from its lower end.
        features: Or the arms' features, shape (arms, p).
        noise_moment: Variance of the raw reward's own noise, if it is known to be smaller than
            the range allows.
        search_space: Optuna distributions by name, if known beforehand.
        user_budget: The most epsilon that one user may pay in all; needs
            ``private(objective, user_id=...)``.
        seed: Drives candidates, never noise.
        vault: Where users' plays are counted: None for what this sampler
            wraps alone, or a database URL.
        noise: For tests only; what was released with it is reported as unprotected.

    Raises:
        ValueError: For every argument outside its range.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> sampler = LDPGPUCBSampler(1.0, reward_range=(0, 1), seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> reward = lambda trial: 1 - abs(trial.suggest_float("x", 0, 1) - 0.5)
        >>> study.optimize(sampler.private(reward), n_trials=5)
        >>> sampler.guarantee(study).protected
        True
    """

    def __init__(
        self,
        epsilon: float,
        *,
        bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        mechanism: str = DEFAULT_MECHANISM,
        delta: float | None = None,
        horizon: int | None = None,
        beta_scale: float = 1.0,
        kernel: str = "rbf",
        lengthscale: float | None = None,
        kernel_matrix: ArrayLike | None = None,
        features: ArrayLike | None = None,
        noise_moment: float | None = None,
        search_space: Mapping[str, BaseDistribution] | None = None,
        user_budget: float | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        from privbo_plugins.algorithms.ldp_gp_ucb.gp_ucb import GPUCB

        made, scale = reward_privacy(
            epsilon, bound=bound, reward_range=reward_range, mechanism=mechanism, delta=delta
        )
        config = UCBConfig(
            **scale,
            horizon=horizon,
            beta_scale=beta_scale,
            kernel=kernel,
            lengthscale=lengthscale,
            kernel_matrix=kernel_matrix,
            features=features,
            noise_moment=noise_moment,
        )
        super().__init__(
            GPUCB,
            config,
            made,
            search_space=search_space,
            user_budget=user_budget,
            seed=seed,
            vault=vault,
            noise=noise,
        )


class LDPTGPUCBSampler(RewardSampler):
    """Truncates each privatised reward once, at a point that grows with ln t.

    The simplest of the three published algorithms, faithful to the paper.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 2;
    without privacy (``epsilon=math.inf``) TGP-UCB of
    Chowdhury and Gopalan 2019.

    Args:
        epsilon: Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.
        bound: Rewards are clipped to [-bound, bound]; the paper's B + R.
        reward_range: Or to (low, high). Exactly one of the two, from public knowledge.
        mechanism: "laplace" (as published), "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For "gaussian" only: it is (epsilon, delta)-LDP.
        horizon: Number of plays T, which then takes the place of t in the logarithms of the
            width; None lets them grow as published.
        beta_scale: Multiplies the theory-ordered width of the confidence intervals, which is far
            too wide in practice: try 0.1 and below.
        kernel: "rbf" or "matern52", on the unit cube or on ``features``.
        lengthscale: In units of the unit cube (or of ``features``); None for 0.2 sqrt(D).
        kernel_matrix: Covariance of finitely many arms, shape (arms, arms); the space then has
            one integer parameter, the number of the arm counted from its lower end.
        features: Or the arms' features, shape (arms, p).
        B: Bound on the norm of f; None for half of the largest reward.
        R: Bound on the raw noise; None for the rest of it.
        second_moment: v, bound on E[y²] of rewards as received; None derives it.
        alpha: Moments up to 1 + alpha are finite, in (0, 1]. Raw rewards only.
        lam: Regulariser lambda.
        constants: "order", as in the papers' experiments, or "theorem", as proven.
        failure: Failure probability delta of the theorem.
        search_space: Optuna distributions by name, if known beforehand.
        user_budget: The most epsilon that one user may pay in all; needs
            ``private(objective, user_id=...)``.
        seed: Drives candidates and dictionaries, never noise.
        vault: Where users' plays are counted: None for what this sampler
            wraps alone, or a database URL.
        noise: For tests only; what was released with it is reported as unprotected.

    Raises:
        ValueError: For every argument outside its range.
    """

    def __init__(
        self,
        epsilon: float,
        *,
        bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        mechanism: str = "laplace",
        delta: float | None = None,
        horizon: int | None = None,
        beta_scale: float = 1.0,
        kernel: str = "rbf",
        lengthscale: float | None = None,
        kernel_matrix: ArrayLike | None = None,
        features: ArrayLike | None = None,
        B: float | None = None,
        R: float | None = None,
        second_moment: float | None = None,
        alpha: float = 1.0,
        lam: float = 1.0,
        constants: str = "order",
        failure: float = 0.1,
        search_space: Mapping[str, BaseDistribution] | None = None,
        user_budget: float | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        from privbo_plugins.algorithms.ldp_gp_ucb.tgp_ucb import TGPUCB

        made, scale = reward_privacy(
            epsilon, bound=bound, reward_range=reward_range, mechanism=mechanism, delta=delta
        )
        config = UCBConfig(
            **scale,
            horizon=horizon,
            beta_scale=beta_scale,
            kernel=kernel,
            lengthscale=lengthscale,
            kernel_matrix=kernel_matrix,
            features=features,
            B=B,
            R=R,
            second_moment=second_moment,
            alpha=alpha,
            lam=lam,
            constants=constants,
            delta=failure,
        )
        super().__init__(
            TGPUCB,
            config,
            made,
            search_space=search_space,
            user_budget=user_budget,
            seed=seed,
            vault=vault,
            noise=noise,
        )


class LDPATAGPUCBSampler(RewardSampler):
    """Truncates all privatised rewards anew in the space of Nyström features.

    Faithful to the paper with ``dictionary="paper"``, and the slowest of the three.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 1;
    without privacy (``epsilon=math.inf``) ATA-GP-UCB of
    Chowdhury and Gopalan 2019.

    Args:
        epsilon: Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.
        bound: Rewards are clipped to [-bound, bound]; the paper's B + R.
        reward_range: Or to (low, high). Exactly one of the two, from public knowledge.
        mechanism: "laplace" (as published), "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For "gaussian" only: it is (epsilon, delta)-LDP.
        horizon: Number of plays T that the parameters are set for; None for 1000.
        beta_scale: Multiplies the theory-ordered width of the confidence intervals, which is far
            too wide in practice: try 0.1 and below.
        kernel: "rbf" or "matern52", on the unit cube or on ``features``.
        lengthscale: In units of the unit cube (or of ``features``); None for 0.2 sqrt(D).
        kernel_matrix: Covariance of finitely many arms, shape (arms, arms); the space then has
            one integer parameter, the number of the arm counted from its lower end.
        features: Or the arms' features, shape (arms, p).
        B: Bound on the norm of f; None for half of the largest reward.
        R: Bound on the raw noise; None for the rest of it.
        second_moment: v, bound on E[y²] of rewards as received; None derives it.
        alpha: Moments up to 1 + alpha are finite, in (0, 1].
        lam: Regulariser lambda.
        accuracy: Of the Nyström embedding, in (0, 1).
        dictionary: "tenth" draws the embedding's points anew after each play (of MoMA: epoch) up
            to 32 distinct points, and then each time that they have become a tenth more; "paper"
            always does, as published, which takes longer.
        constants: "order", as in the papers' experiments, or "theorem", as proven.
        failure: Failure probability delta of the theorem.
        search_space: Optuna distributions by name, if known beforehand.
        user_budget: The most epsilon that one user may pay in all; needs
            ``private(objective, user_id=...)``.
        seed: Drives candidates and dictionaries, never noise.
        vault: Where users' plays are counted: None for what this sampler
            wraps alone, or a database URL.
        noise: For tests only; what was released with it is reported as unprotected.

    Raises:
        ValueError: For every argument outside its range.
    """

    def __init__(
        self,
        epsilon: float,
        *,
        bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        mechanism: str = "laplace",
        delta: float | None = None,
        horizon: int | None = None,
        beta_scale: float = 1.0,
        kernel: str = "rbf",
        lengthscale: float | None = None,
        kernel_matrix: ArrayLike | None = None,
        features: ArrayLike | None = None,
        B: float | None = None,
        R: float | None = None,
        second_moment: float | None = None,
        alpha: float = 1.0,
        lam: float = 1.0,
        accuracy: float = 0.1,
        dictionary: str = "tenth",
        constants: str = "order",
        failure: float = 0.1,
        search_space: Mapping[str, BaseDistribution] | None = None,
        user_budget: float | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        from privbo_plugins.algorithms.ldp_gp_ucb.ata_gp_ucb import ATAGPUCB

        made, scale = reward_privacy(
            epsilon, bound=bound, reward_range=reward_range, mechanism=mechanism, delta=delta
        )
        config = UCBConfig(
            **scale,
            horizon=horizon,
            beta_scale=beta_scale,
            kernel=kernel,
            lengthscale=lengthscale,
            kernel_matrix=kernel_matrix,
            features=features,
            B=B,
            R=R,
            second_moment=second_moment,
            alpha=alpha,
            lam=lam,
            accuracy=accuracy,
            dictionary=dictionary,
            constants=constants,
            delta=failure,
        )
        super().__init__(
            ATAGPUCB,
            config,
            made,
            search_space=search_space,
            user_budget=user_budget,
            seed=seed,
            vault=vault,
            noise=noise,
        )


class LDPMoMAGPUCBSampler(RewardSampler):
    """Plays each point k times and takes the median of k estimates.

    The replays of a point are k trials of the same parameters, which parallel workers share.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 3;
    without privacy (``epsilon=math.inf``) MoMA-GP-UCB of the
    same paper.

    Args:
        epsilon: Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.
        bound: Rewards are clipped to [-bound, bound]; the paper's B + R.
        reward_range: Or to (low, high). Exactly one of the two, from public knowledge.
        mechanism: "laplace" (as published), "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For "gaussian" only: it is (epsilon, delta)-LDP.
        horizon: Number of plays T that the parameters are set for; None for 1000.
        beta_scale: Multiplies the theory-ordered width of the confidence intervals, which is far
            too wide in practice: try 0.1 and below.
        kernel: "rbf" or "matern52", on the unit cube or on ``features``.
        lengthscale: In units of the unit cube (or of ``features``); None for 0.2 sqrt(D).
        kernel_matrix: Covariance of finitely many arms, shape (arms, arms); the space then has
            one integer parameter, the number of the arm counted from its lower end.
        features: Or the arms' features, shape (arms, p).
        B: Bound on the norm of f; None for half of the largest reward.
        R: Bound on the raw noise; None for the rest of it.
        noise_moment: c, bound on the (1 + alpha)th moment of the noise; None derives it.
        alpha: Moments up to 1 + alpha are finite, in (0, 1].
        lam: Regulariser lambda.
        accuracy: Of the Nyström embedding, in (0, 1).
        dictionary: "tenth" draws the embedding's points anew after each play (of MoMA: epoch) up
            to 32 distinct points, and then each time that they have become a tenth more; "paper"
            always does, as published, which takes longer.
        replays: k, plays of one point in an epoch; None derives it from the horizon.
        constants: "order", as in the papers' experiments, or "theorem", as proven.
        failure: Failure probability delta of the theorem.
        search_space: Optuna distributions by name, if known beforehand.
        user_budget: The most epsilon that one user may pay in all; needs
            ``private(objective, user_id=...)``.
        seed: Drives candidates and dictionaries, never noise.
        vault: Where users' plays are counted: None for what this sampler
            wraps alone, or a database URL.
        noise: For tests only; what was released with it is reported as unprotected.

    Raises:
        ValueError: For every argument outside its range.
    """

    def __init__(
        self,
        epsilon: float,
        *,
        bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        mechanism: str = "laplace",
        delta: float | None = None,
        horizon: int | None = None,
        beta_scale: float = 1.0,
        kernel: str = "rbf",
        lengthscale: float | None = None,
        kernel_matrix: ArrayLike | None = None,
        features: ArrayLike | None = None,
        B: float | None = None,
        R: float | None = None,
        noise_moment: float | None = None,
        alpha: float = 1.0,
        lam: float = 1.0,
        accuracy: float = 0.1,
        dictionary: str = "tenth",
        replays: int | None = None,
        constants: str = "order",
        failure: float = 0.1,
        search_space: Mapping[str, BaseDistribution] | None = None,
        user_budget: float | None = None,
        seed: int | None = None,
        vault: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        from privbo_plugins.algorithms.ldp_gp_ucb.moma_gp_ucb import MoMAGPUCB

        made, scale = reward_privacy(
            epsilon, bound=bound, reward_range=reward_range, mechanism=mechanism, delta=delta
        )
        config = UCBConfig(
            **scale,
            horizon=horizon,
            beta_scale=beta_scale,
            kernel=kernel,
            lengthscale=lengthscale,
            kernel_matrix=kernel_matrix,
            features=features,
            B=B,
            R=R,
            noise_moment=noise_moment,
            alpha=alpha,
            lam=lam,
            accuracy=accuracy,
            dictionary=dictionary,
            replays=replays,
            constants=constants,
            delta=failure,
        )
        super().__init__(
            MoMAGPUCB,
            config,
            made,
            search_space=search_space,
            user_budget=user_budget,
            seed=seed,
            vault=vault,
            noise=noise,
        )
