"""Tuning problems with per-record validation losses and a strong non-private reference.

Every problem is a model trained on public training data; what is tuned is its mean loss on a
validation set whose records are the secret. ``losses`` returns one loss a validation record, and
no record's loss depends on another validation record.

Notation:

    ======  ====================================================  ==========
    symbol  meaning                                               shape
    ======  ====================================================  ==========
    X, Y    training inputs and targets                           (m, p), (m, q)
    V, S    validation inputs and targets                         (n, p), (n, q)
    u       point in the unit cube                                (d,)
    K       kernel matrix of the training inputs                  (m, m)
    P       kernel matrix, validation against training            (n, m)
    alpha   (K + ridge I)⁻¹ Y                                     (m, q)
    E       S - P alpha, the validation residuals                 (n, q)
    ======  ====================================================  ==========
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.svm import SVC

Array = NDArray[np.float64]
Range = tuple[float, float, bool]
"""Lower bound, upper bound, and whether the parameter lives on a logarithmic scale."""


class Problem(abc.ABC):
    """A tuning problem.

    Attributes:
        name: Short name for tables.
        ranges: Public range of each parameter: low, high, log scale or not.
    """

    name: str
    ranges: dict[str, Range]

    @property
    def d(self) -> int:
        """Number of parameters."""
        return len(self.ranges)

    @property
    @abc.abstractmethod
    def n_records(self) -> int:
        """Number of validation records."""

    @abc.abstractmethod
    def losses(self, params: Mapping[str, float]) -> Array:
        """Per-record validation losses, lower is better, shape (n_records,)."""

    @abc.abstractmethod
    def optimum(self) -> float:
        """A strong non-private reference value of the true mean validation loss."""

    def decode(self, u: Array) -> dict[str, float]:
        """Parameters of a point of the unit cube."""
        params: dict[str, float] = {}
        for (name, (low, high, log)), x in zip(self.ranges.items(), u, strict=True):
            if log:
                params[name] = math.exp(
                    math.log(low) + float(x) * (math.log(high) - math.log(low))
                )
            else:
                params[name] = low + float(x) * (high - low)
        return params

    def true_mean(self, params: Mapping[str, float]) -> float:
        """Exact mean validation loss: a secret, for judging results only."""
        return float(self.losses(params).mean())


@dataclass(eq=False)
class SvcDigits(Problem):
    """Support vector classifier on handwritten digits: C and gamma, 0-1 loss.

    Pixels stay on their raw scale 0 to 16, so the ranges hold large plateaus where every digit
    gets the same label (error about .9), the centre of the ranges among them.

    Args:
        seed: Seed of the split into 897 training and 900 validation records.

    Example:
        >>> problem = SvcDigits()
        >>> float(problem.losses({"C": 10.0, "gamma": 1e-3}).mean()) < 0.03
        True
    """

    seed: int = 0
    name: str = "svc-digits"
    ranges: dict[str, Range] = field(
        default_factory=lambda: {"C": (1e-2, 1e3, True), "gamma": (1e-5, 1e2, True)}
    )

    def __post_init__(self) -> None:
        inputs, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        self._V, self._s = inputs[order[:900]], labels[order[:900]]
        self._X, self._y = inputs[order[900:]], labels[order[900:]]
        self._optimum: float | None = None

    @property
    def n_records(self) -> int:
        """Number of validation records."""
        return len(self._s)

    def losses(self, params: Mapping[str, float]) -> Array:
        """1 for each misclassified validation record, else 0; shape (n_records,)."""
        model = SVC(C=float(params["C"]), gamma=float(params["gamma"]))
        model.fit(self._X, self._y)
        return np.asarray(model.predict(self._V) != self._s, dtype=float)

    def optimum(self) -> float:
        """Least mean loss on a grid over the part of the ranges off the plateaus."""
        if self._optimum is None:
            grid = [
                (c, g) for c in np.geomspace(0.1, 1e3, 9) for g in np.geomspace(1e-5, 1e-2, 19)
            ]
            self._optimum = min(self.true_mean({"C": c, "gamma": g}) for c, g in grid)
        return self._optimum


class ArdKernelRidge(Problem):
    """Kernel ridge regression with one log length-scale an input, squared error a record.

    The kernel is k(a, b) = exp(-|(a - b) / l|² / 2) and the prediction is the posterior mean of
    Gaussian-process regression with noise variance ``ridge``.

    Args:
        name: Short name for tables.
        train: Training inputs (m, p) and targets (m, q).
        validation: Validation inputs (n, p) and targets (n, q).
        ridge: Noise variance over signal variance.
        half_width: Log length-scales range over [-half_width, half_width].
        scale: Factor on the squared error, summed over the q targets.
        seed: Seed of the starts from which the reference value is sought.
    """

    def __init__(
        self,
        name: str,
        train: tuple[Array, Array],
        validation: tuple[Array, Array],
        *,
        ridge: float,
        half_width: float = 2.0,
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.name = name
        self._X, self._Y = train
        self._V, self._S = validation
        self._ridge, self._half_width, self._scale = ridge, half_width, scale
        self._seed = seed
        self._optimum: float | None = None
        self.ranges = {
            f"log_length_{j}": (-half_width, half_width, False) for j in range(self._X.shape[1])
        }

    @property
    def n_records(self) -> int:
        """Number of validation records."""
        return len(self._S)

    def _fit(self, log_lengths: Array) -> tuple[Array, Array, tuple[Array, bool], Array, Array]:
        """K, P, the Cholesky factor of K + ridge I, alpha and E."""
        inverse = np.exp(-log_lengths)
        X, V = self._X * inverse, self._V * inverse
        square = (X * X).sum(1)
        K = np.exp(np.minimum(X @ X.T - 0.5 * (square[:, None] + square[None, :]), 0.0))
        half = 0.5 * ((V * V).sum(1)[:, None] + square[None, :])
        P = np.exp(np.minimum(V @ X.T - half, 0.0))
        A = K.copy()
        A[np.diag_indices_from(A)] += self._ridge
        factor, lower = cho_factor(A, lower=True, overwrite_a=True, check_finite=False)
        alpha = np.asarray(cho_solve((factor, lower), self._Y, check_finite=False))
        return K, P, (np.asarray(factor), bool(lower)), alpha, self._S - P @ alpha

    def losses(self, params: Mapping[str, float]) -> Array:
        """Squared error of each validation record, shape (n_records,)."""
        log_lengths = np.array([params[name] for name in self.ranges])
        residuals = self._fit(log_lengths)[-1]
        return np.asarray(self._scale * (residuals * residuals).sum(1))

    def mean_and_gradient(self, log_lengths: Array) -> tuple[float, Array]:
        """Exact mean loss and its gradient in the log length-scales, by the adjoint method.

        With R = -2 scale E / n and U = (K + ridge I)⁻¹ Pᵀ R the gradient is the sum over entries
        of ∂P ∘ (R alphaᵀ) - ∂K ∘ (U alphaᵀ), where ∂K / ∂log l_j = K ∘ (a_j - b_j)² / l_j².
        """
        K, P, factor, alpha, E = self._fit(log_lengths)
        R = (-2.0 * self._scale / len(E)) * E
        U = np.asarray(cho_solve(factor, P.T @ R, check_finite=False))
        across, within = P * (R @ alpha.T), K * (U @ alpha.T)
        X, V = self._X, self._V

        def spread(weights: Array, A: Array, B: Array) -> Array:
            ends = weights.sum(1) @ (A * A) + weights.sum(0) @ (B * B)
            return np.asarray(ends - 2.0 * (A * (weights @ B)).sum(0))

        grad = spread(across, V, X) - spread(within, X, X)
        mean = self._scale * float((E * E).sum()) / len(E)
        return mean, np.asarray(grad * np.exp(-2.0 * log_lengths))

    def optimum(self) -> float:
        """Least mean loss that L-BFGS-B with exact gradients finds from several starts."""
        if self._optimum is None:
            rng = np.random.default_rng(self._seed)
            w, d = self._half_width, self.d
            starts = [np.zeros(d), np.full(d, 0.5 * w), *rng.uniform(0.0, 0.75 * w, (4, d))]
            found = [
                minimize(
                    self.mean_and_gradient,
                    start,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=[(-w, w)] * d,
                    options={"maxiter": 300},
                )
                for start in starts
            ]
            self._optimum = min(float(result.fun) for result in found)
        return self._optimum


def gp_ard(
    seed: int = 0,
    n_train: int = 300,
    n_records: int = 700,
    *,
    relevant: int = 5,
    noise: float = 0.05,
) -> ArdKernelRidge:
    """A draw from a 15-dimensional Gaussian process; tune its 15 log length-scales.

    Inputs are uniform on [0, 1.5], some of them matter and the rest hardly do, and the targets
    carry noise on a signal of standard deviation 1.

    Args:
        seed: Seed of the data.
        n_train: Training records.
        n_records: Validation records.
        relevant: Inputs that matter.
        noise: Standard deviation of the targets' noise.
    """
    rng = np.random.default_rng(seed)
    d = 15
    total = n_train + n_records
    lengths = [np.linspace(-0.4, 0.2, relevant), np.full(d - relevant, 2.0)]
    log_lengths = rng.permutation(np.concatenate(lengths))
    inputs = rng.uniform(0.0, 1.5, (total, d))
    scaled = inputs * np.exp(-log_lengths)
    square = (scaled * scaled).sum(1)
    K = np.exp(np.minimum(scaled @ scaled.T - 0.5 * (square[:, None] + square[None, :]), 0.0))
    K[np.diag_indices_from(K)] += 1e-8
    signal = np.linalg.cholesky(K) @ rng.standard_normal(total)
    targets = (signal + noise * rng.standard_normal(total))[:, None]
    return ArdKernelRidge(
        "gp-ard-15",
        (inputs[:n_train], targets[:n_train]),
        (inputs[n_train:], targets[n_train:]),
        ridge=noise**2,
        seed=seed,
    )


def digits_ard(seed: int = 0, n_train: int = 300, n_records: int = 1200) -> ArdKernelRidge:
    """Kernel ridge classification of digits; tune the log length-scales of 64 pixels.

    Targets are the one-hot labels; a record's loss is half the squared distance of the prediction
    from its label (the Brier score, about .45 for a constant prediction).

    Args:
        seed: Seed of the split.
        n_train: Training records.
        n_records: Validation records.
    """
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, valid = order[:n_train], order[n_train : n_train + n_records]
    # Length-scale 1 is 12 of the 16 grey levels.
    inputs, targets = pixels / 12.0, np.eye(10)[labels] - 0.1
    return ArdKernelRidge(
        "digits-ard-64",
        (inputs[train], targets[train]),
        (inputs[valid], targets[valid]),
        ridge=1e-2,
        scale=0.5,
        seed=seed,
    )


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "svc-digits": SvcDigits,
    "gp-ard-15": lambda: gp_ard(seed=1),
    "digits-ard-64": lambda: digits_ard(seed=1),
}
"""Problems by name; the defaults of the sampler were chosen on data of other seeds."""
