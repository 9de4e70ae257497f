"""Settings of the GP-UCB family for noisy, heavy-tailed or privatised rewards."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins.privacy.reward_noise import RewardScale
from privbo_plugins.settings import (
    Chance,
    Count,
    NotNegative,
    Positive,
    Probability,
    one_of,
    setting,
    settings,
)

Array = NDArray[np.float64]

KERNEL_NAMES = ("rbf", "matern52")

_Kernel = Annotated[str, one_of(*KERNEL_NAMES)]
_Constants = Annotated[str, one_of("order", "theorem")]
_Dictionary = Annotated[str, one_of("tenth", "paper")]

FAILURE = 0.1
"""delta, the failure probability of the theorems."""

PUBLISHED = {"mechanism": "laplace", "constants": "theorem"}
"""Settings of the published algorithms as their theorems have them."""

PUBLISHED_NYSTROM = PUBLISHED | {"dictionary": "paper"}
"""The same for those with a Nyström embedding."""


def checked_kernel_matrix(matrix: ArrayLike | None) -> Array | None:
    """A covariance matrix of arms, scaled so that its largest variance is 1.

    The regularity assumption is k(x, x) <= 1; what a matrix says of scale belongs into B.

    Raises:
        ValueError: If it is not square, finite, symmetric and positive semi-definite.
    """
    if matrix is None:
        return None
    K = np.asarray(matrix, dtype=float)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or len(K) < 1:
        raise ValueError(f"kernel_matrix must have shape (arms, arms), got {K.shape}.")
    if not np.isfinite(K).all() or not np.allclose(K, K.T, atol=1e-8 * np.abs(K).max()):
        raise ValueError("kernel_matrix must be finite and symmetric.")
    K = (K + K.T) / 2
    largest = float(np.diag(K).max())
    if largest <= 0 or np.linalg.eigvalsh(K)[0] < -1e-6 * largest * len(K):
        raise ValueError("kernel_matrix must be positive semi-definite with a positive variance.")
    return np.asarray(K / largest)


def checked_features(features: ArrayLike | None) -> Array | None:
    """One row of features an arm, shape (N, p).

    Raises:
        ValueError: If it is not a finite matrix (a vector counts as one feature).
    """
    if features is None:
        return None
    Z = np.asarray(features, dtype=float)
    Z = Z[:, None] if Z.ndim == 1 else Z
    if Z.ndim != 2 or len(Z) < 1 or not np.isfinite(Z).all():
        raise ValueError(
            f"features must be finite with one row an arm, got an array of shape {Z.shape}."
        )
    return Z


@settings(eq=False)
class ArmSettings:
    """What all of the family share."""

    n_trials: Count | None = setting(
        "Number T of evaluations that you expect, which the parameters are set for; None "
        "for 1000, and for widths that grow with the evaluations where the published "
        "algorithm's do. In Optuna a loop ends with them; on Ray Tune num_samples= says when.",
        default=None,
    )
    beta_scale: Positive = setting(
        "Multiplies the width beta_t of the confidence intervals: smaller exploits sooner. "
        "The published algorithms' theory-ordered widths are far too wide in practice: try "
        "0.1 and below.",
        default=1.0,
    )
    kernel: _Kernel = setting(
        '"rbf" or "matern52", on the unit cube or on ``features``.', default="rbf"
    )
    lengthscale: Positive | None = setting(
        "Length-scale in units of the unit cube (or of ``features``); None for 0.2 sqrt(D).",
        default=None,
    )
    kernel_matrix: ArrayLike | None = setting(
        "Covariance of finitely many arms, shape (arms, arms); the space then has one "
        "integer parameter, the number of the arm counted from its lower end (on Ray Tune "
        "``tune.randint(0, arms)``).",
        default=None,
        repr=False,
        converter=checked_kernel_matrix,
    )
    features: ArrayLike | None = setting(
        "Or the arms' features, shape (arms, p).",
        default=None,
        repr=False,
        converter=checked_features,
    )


@settings(eq=False)
class NoiseMoment:
    """What may be known of the rewards' noise."""

    noise_moment: Positive | None = setting(
        "c, bound on the (1 + alpha)th moment of the noise of rewards as they are received "
        "(for alpha = 1 its variance); None derives it.",
        default=None,
    )


@settings(eq=False)
class SecondMoment:
    """What may be known of the rewards themselves."""

    second_moment: Positive | None = setting(
        "v, bound on E[y²] of rewards as received; None derives it.", default=None
    )


@settings(eq=False)
class GPUCBSettings(NoiseMoment, ArmSettings):
    """Settings of the default."""


@settings(eq=False)
class HeavyTailSettings(ArmSettings):
    """Settings of the published algorithms for heavy tails."""

    B: Positive | None = setting(
        "Bound on the norm of f; None for half of the largest reward.", default=None
    )
    R: NotNegative | None = setting(
        "Bound on the raw noise; None for the rest of the largest reward.", default=None
    )
    alpha: Chance = setting("Moments up to 1 + alpha are finite, in (0, 1].", default=1.0)
    lam: Positive = setting("Regulariser lambda of the published algorithms, > 0.", default=1.0)
    constants: _Constants = setting(
        '"order", as in the papers\' experiments, or "theorem", as proven.', default="order"
    )


@settings(eq=False)
class TGPUCBSettings(SecondMoment, HeavyTailSettings):
    """Settings of TGP-UCB."""


@settings(eq=False)
class NystromSettings(HeavyTailSettings):
    """Settings of the two algorithms with a Nyström embedding."""

    accuracy: Probability = setting("Accuracy of the Nyström embedding, in (0, 1).", default=0.1)
    dictionary: _Dictionary = setting(
        '"tenth" draws the embedding\'s points anew after each evaluation (of MoMA: epoch) '
        "up to 32 distinct points, and then each time that they have become a tenth more; "
        '"paper" always does, as published, which takes longer.',
        default="tenth",
    )


@settings(eq=False)
class ATAGPUCBSettings(SecondMoment, NystromSettings):
    """Settings of ATA-GP-UCB."""


@settings(eq=False)
class MoMAGPUCBSettings(NoiseMoment, NystromSettings):
    """Settings of MoMA-GP-UCB."""

    replays: Count | None = setting(
        "k, evaluations of one point in an epoch; None derives it from ``n_trials``.", default=None
    )


@settings(eq=False)
class UCBConfig(RewardScale, ATAGPUCBSettings, MoMAGPUCBSettings):
    """Public settings of one run: the family's, and what is known of the rewards.

    {settings}

    Raises:
        ValueError: For every setting outside its range.
    """

    def __attrs_post_init__(self) -> None:
        if self.kernel_matrix is not None and self.features is not None:
            raise ValueError("Give kernel_matrix= or features=, not both.")
        super().__attrs_post_init__()
        if self.low is None and None in (self.B, self.second_moment, self.noise_moment):
            raise ValueError(
                "Without a reward range the confidence intervals have no unit: give bound= or "
                "value_range=, or B=, second_moment= and noise_moment= together."
            )

    @property
    def planned_trials(self) -> int | None:
        """The number of trials that is expected; None if it is not known."""
        return self.n_trials

    @property
    def T(self) -> int:
        """The horizon."""
        return 1000 if self.n_trials is None else self.n_trials

    # The paper's constants --------------------------------------------------------------------

    @property
    def largest(self) -> float:
        """The largest |reward| of the range: B + R."""
        if self.low is None or self.high is None:
            return (self.B or 0.0) + (self.R or 0.0)
        return max(abs(self.low), abs(self.high))

    @property
    def norm(self) -> float:
        """B."""
        return self.largest / 2 if self.B is None else self.B

    @property
    def raw_noise(self) -> float:
        """R."""
        return max(self.largest - self.norm, 0.0) if self.R is None else self.R

    @property
    def v(self) -> float:
        """Second moment of the rewards as received; B² + R² + 2 L² under Laplace (Theorem 2)."""
        if self.second_moment is not None:
            return self.second_moment
        return self.norm**2 + self.raw_noise**2 + self.added_variance

    @property
    def c(self) -> float:
        """Moment of their noise; R² + 2 L² under Laplace (Corollary 1)."""
        if self.noise_moment is not None:
            return self.noise_moment
        return self.raw_noise**2 + self.added_variance

    @property
    def added_variance(self) -> float:
        """Variance that privatising adds to a reward; 2 L² under Laplace."""
        return 0.0 if self.noise is None else self.noise.variance

    @property
    def q(self) -> float:
        """Oversampling of the Nyström embedding (Theorem 2; order-wise ln T / eps²)."""
        rho = (1 + self.accuracy) / (1 - self.accuracy)
        if self.constants == "theorem":
            return 6 * rho * math.log(4 * self.T / FAILURE) / self.accuracy**2
        return max(math.log(self.T), 1.0) / self.accuracy**2

    @property
    def k(self) -> int:
        """Evaluations of one point in an epoch of MoMA (Theorem 4; order-wise ln T)."""
        if self.replays is not None:
            return self.replays
        if self.constants == "theorem":
            return math.ceil(24 * math.log(4 * math.e * self.T / FAILURE))
        return max(math.ceil(math.log(self.T)), 1)
