"""The modeler's side: GP-UCB over the rows of a released table.

Notation (Kharkovskii, Dai and Low, *Private Outsourced Bayesian Optimization*, section 2):

    ========  =============================================================  ========
    symbol    meaning                                                        shape
    ========  =============================================================  ========
    Z         released rows                                                  (n, r)
    y         outcomes of the rows asked so far, to be maximised             (t,)
    K         covariance of these rows, :mod:`.kernel`                       (t, t)
    s2_n      variance of an outcome's noise (the paper's sigma_n²)          scalar
    L         Cholesky factor of K + s2_n I                                  (t, t)
    mu        posterior mean of f at every row                               (n,)
    sd        posterior standard deviation                                   (n,)
    beta_t    2 ln(n t² pi² / (6 delta))                                     scalar
    ========  =============================================================  ========

Rows are read in blocks, so memory beyond Z itself is a few numbers a row, and a suggestion costs
O(n t (r + t)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins.algorithms.po_gp_ucb.kernel import CORRECTIONS, RowPrior, row_prior
from privbo_plugins.algorithms.po_gp_ucb.posterior import Hyperparameters, RowPosterior, fit
from privbo_plugins.algorithms.po_gp_ucb.table import ReleasedTable
from privbo_plugins.algorithms.protocols import Evaluation, RewardAlgorithm
from privbo_plugins.errors import SpaceChangedError
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee
from privbo_plugins.settings import (
    Count,
    Finite,
    NotNegative,
    Positive,
    Rule,
    named,
    one_of,
    setting,
    settings,
)
from privbo_plugins.spaces import Int, Space

Array = NDArray[np.float64]

_BLOCK = 2**13
"""Rows in one block of a sweep."""

_SMALLEST, _LARGEST = 1e-100, 1e100
"""Outcomes whose squares neither over- nor underflow; larger ones count as so large."""


_FAILURE = 0.05
"""delta of beta_t: failure probability of the confidence intervals; no privacy parameter."""

PUBLISHED: dict[str, Any] = {"correction": "none", "beta_scale": 1.0}
"""Settings of the modeler as published: it takes the released rows for the true ones."""


_Correction = Annotated[str, one_of(*CORRECTIONS)]
_Name = Annotated[str, Rule("a name", lambda value: isinstance(value, str) and value != "")]


@settings(eq=False)
class RowsChoices:
    """What the modeler's settings and its users' keywords have in common."""

    correction: _Correction = setting(
        'How noise in the rows is taken into account: "shared" (rows have the mean and variance '
        "that the table shows, and one is asked for where other rows' answers leave doubt), "
        '"posterior" (the same, but doubt that stays with every row counts too), "kernel" '
        '(nothing is assumed of rows) or "none".',
        default="shared",
    )
    lengthscale: Positive | None = setting(
        "l, in the table's units, > 0; None fits it to the answers.", default=None
    )
    signal_variance: Positive | None = setting(
        "Variance of the outcome's mean f, in squared outcome units, > 0; None fits it.",
        default=None,
    )
    noise_variance: Positive | None = setting(
        "Variance of an answer's own noise, in squared outcome units, > 0; None fits it.",
        default=None,
    )
    mean: Finite | None = setting(
        "Prior mean of f, in outcome units; None takes the mean of the answers.", default=None
    )
    beta_scale: Positive = setting(
        "Multiplies the width of the confidence intervals, > 0: smaller exploits sooner.",
        default=0.5,
    )
    n_startup: Count = setting("Rows drawn at random before the model is asked, >= 1.", default=1)
    repeats: bool = setting(
        "Whether a row may be asked again; a curator of this package replays its answer.",
        default=False,
    )


@settings(eq=False)
class RowsSettings(RowsChoices):
    """Settings in words that users say them in."""

    noise_sd: NotNegative | None = setting(
        "Standard deviation of the noise in a bare matrix, in its units, >= 0; None for 0. "
        "A released table's manifest knows it.",
        default=None,
    )
    parameter: _Name = setting(
        "Name of the integer parameter that numbers the rows from 0 to n - 1.", default="row"
    )

    def of_the_model(self) -> dict[str, Any]:
        """Keywords of :func:`rows_config`."""
        return named(self, RowsChoices) | {"noise_sd": self.noise_sd}


@settings(eq=False)
class RowsConfig(RowsChoices):
    """Public settings of the modeler.

    {settings}

    Raises:
        ValueError: For every setting outside its range.
    """

    Z: Array = setting("Released rows, shape (n, r).", kw_only=False)
    noise_sd: NotNegative = setting(
        "Standard deviation of the noise in them.", default=0.0, kw_only=False
    )
    answer_variance: NotNegative = setting(
        "Variance that a curator's randomising adds to an answer.", default=0.0
    )

    def __attrs_post_init__(self) -> None:
        if self.Z.ndim != 2 or self.Z.size == 0 or not np.isfinite(self.Z).all():
            raise ValueError(f"Z must be a finite matrix (n, r), got one of shape {self.Z.shape}.")

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.Z)

    @cached_property
    def prior(self) -> RowPrior:
        """The prior of the true rows, from the table."""
        return row_prior(self.Z, self.noise_sd, self.correction)

    def beta(self, t: int) -> float:
        """beta_t = 2 ln(n t² pi² / (6 delta)) (the paper, Theorem 3, for finitely many rows)."""
        return 2 * math.log(self.n * t**2 * math.pi**2 / (6 * _FAILURE))


def rows_config(
    table: ReleasedTable | ArrayLike, noise_sd: float | None = None, **more: Any
) -> RowsConfig:
    """Settings for a released table, or a bare matrix.

    Args:
        table: A table, or Z itself.
        noise_sd: For a bare matrix; a table's manifest knows it.
        more: As for :class:`RowsConfig`.

    Raises:
        ValueError: If ``noise_sd`` contradicts the manifest, or for settings out of range.
    """
    if isinstance(table, ReleasedTable):
        if noise_sd is not None:
            raise ValueError(
                "noise_sd= is for a bare matrix: a released table's manifest knows it."
            )
        known = table.manifest
        return RowsConfig(table.Z, known.noise_sd, answer_variance=known.answer_variance, **more)
    try:
        Z = np.asarray(table, dtype=float)
    except (TypeError, ValueError):
        raise ValueError("Z must be a matrix of numbers, a released table or its file.") from None
    return RowsConfig(Z, noise_sd or 0.0, **more)


BARE = "the modeler was given a bare matrix without a manifest"
"""Why nothing is claimed of a table of unknown origin."""


class GivenRows:
    """Rows that a modeler was given; a file is pickled as its path and manifest, others whole.

    Args:
        table: A released table, the path of its file, or a matrix of shape (n, r).
        settings: Of the model, as :meth:`RowsSettings.of_the_model` has them.

    Raises:
        ValueError: If the table is none of them, or does not fit the settings.
        FileNotFoundError: If there is no such file.
    """

    def __init__(
        self, table: ReleasedTable | ArrayLike | str | Path, settings: dict[str, Any]
    ) -> None:
        self._path = Path(table).resolve() if isinstance(table, str | Path) else None
        given: Any = table if self._path is None else ReleasedTable.load(self._path)
        known = given if isinstance(given, ReleasedTable) else None
        self.manifest = None if known is None else known.manifest
        self._table: Any = rows_config(given).Z.copy() if known is None else known
        self._settings = settings
        self.n = self.config.n

    def __getstate__(self) -> dict[str, Any]:
        found = {name: v for name, v in vars(self).items() if name not in ("config", "_claimed")}
        return found if self._path is None else found | {"_table": None}

    @cached_property
    def config(self) -> RowsConfig:
        """Settings and rows, read again where only their path was pickled.

        Raises:
            ValueError: If the file holds another table than it did.
            FileNotFoundError: If it is gone.
        """
        if self._table is None and self._path is not None:
            found = ReleasedTable.load(self._path)
            if found.manifest != self.manifest:
                raise ValueError(
                    f"{self._path} holds another released table than this experiment started "
                    "with. Put that one back, or start a new experiment with this one: what was "
                    "told of rows is not told of these."
                )
            self._table = found
        return rows_config(self._table, **self._settings)

    @cached_property
    def _claimed(self) -> OutsourcedGuarantee:
        """Claims what holds for the table; composing it with answers takes a while, once."""
        if self.manifest is not None:
            return self.manifest.guarantee()
        nothing = math.inf, 0.0, None
        return OutsourcedGuarantee(False, "unknown", *nothing, self.n, reasons=(BARE,))

    def claim(self, n_answers: int = 0) -> OutsourcedGuarantee:
        """Returns what the manifest says of the rows; nothing is claimed of a bare matrix."""
        return replace(self._claimed, n_answers=n_answers)


class POGPUCB(RewardAlgorithm):
    """Ask/tell over the rows of a released table.

    Args:
        config: Settings.
        space: One integer parameter with a value for every row.
        maximize: Whether large outcomes are wanted.
        seed: Drives start-up rows and ties.

    Raises:
        SpaceChangedError: If the space is another.

    Example:
        >>> Z = np.linspace(-1, 1, 50)[:, None]
        >>> model = POGPUCB(RowsConfig(Z, lengthscale=0.5), row_space(50))
        >>> for t in range(12):
        ...     evaluation = model.ask(t)
        ...     model.tell(evaluation, -float(Z[model.row(evaluation.x), 0] ** 2))
        >>> abs(float(Z[model.row(model.recommendation()), 0])) < 0.1
        True
    """

    name, noun = "po-gp-ucb", "outcome"
    config: RowsConfig

    def __init__(self, config: RowsConfig, space: Space, **more: Any) -> None:
        dims = list(space.values())
        if len(dims) != 1 or not isinstance(dims[0], Int) or _values(dims[0]) != config.n:
            raise SpaceChangedError(
                f"This table has {config.n} rows, so the space must be one integer parameter with "
                f"{config.n} values; it holds {', '.join(space.names)}."
            )
        super().__init__(config, space, **more)
        self._low = dims[0].low
        self._rows: list[int] = []
        self._hyper: Hyperparameters | None = None

    def row(self, x: Array) -> int:
        """The row that a point of the space stands for, counted from 0."""
        (value,) = self.space.decode(x).values()
        return int(value) - self._low

    def point(self, row: int) -> Array:
        """The point of the space that stands for a row, shape (1,)."""
        return self.space.encode({self.space.names[0]: row + self._low})

    def ask(
        self, key: int, pending: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """The next row while others are pending.

        Args:
            key: Distinguishes this ask from others of the same seed.
            pending: Rows that are out; the model imagines its own mean as their outcome.
            may_wait: Never used: there is always another row, or a repeat.
        """
        rng = np.random.default_rng([self.seed, 1, key])
        out = [self.row(evaluation.x) for evaluation in pending]
        asked = [] if self.config.repeats else sorted({*self._rows, *out})
        if len(asked) == self.config.n:
            return Evaluation(self.recommendation() if self._rows else pending[0].x)
        if self.t + len(out) < self.config.n_startup or not self._rows:
            row = _nth_left(int(rng.integers(self.config.n - len(asked))), asked)
            return Evaluation(self.point(row))
        return Evaluation(self.point(self._largest_bound(out, asked, rng)))

    def _largest_bound(self, out: list[int], asked: list[int], rng: np.random.Generator) -> int:
        """Argmax mu + sqrt(beta_t) sd over the rows that may be asked (section 2)."""
        width = self.config.beta_scale * math.sqrt(self.config.beta(self.t + len(out) + 1))
        model = self._model(out)
        predict = model.predict_shared if self.config.prior.shared else model.predict
        bound = np.empty(self.config.n)
        for start in range(0, self.config.n, _BLOCK):
            mu, sd = predict(self.config.Z[start : start + _BLOCK])
            bound[start : start + _BLOCK] = mu + width * sd
        known = [*self._rows, *out]
        mu, sd = model.predict_told(range(len(known)))
        bound[known] = mu + width * sd
        bound[asked] = -np.inf
        return int(rng.choice(np.flatnonzero(bound == bound.max())))

    def posterior(self, rows: Sequence[int] | NDArray[np.int64]) -> tuple[Array, Array]:
        """Mean and standard deviation of f at rows, in the outcomes' units and direction.

        Rows with an answer are known by their number, not only by where they lie.

        Raises:
            ValueError: If nothing has been told yet.
        """
        if not self.evaluations:
            raise ValueError("There is no posterior yet: no outcome has been told.")
        model = self._model([])
        listed = np.asarray(rows, dtype=np.int64)
        mu, sd = model.predict(self.config.Z[listed])
        places = {row: i for i, row in enumerate(self._rows)}
        told = [i for i, row in enumerate(listed.tolist()) if row in places]
        known = model.predict_told([places[int(listed[i])] for i in told])
        mu[told], sd[told] = known
        return self._sign * mu, sd

    def _model(self, out: list[int]) -> RowPosterior:
        if self._hyper is None:
            self._hyper = self._fitted()
        kernel = self.config.prior.kernel(self._hyper.lengthscale, self._hyper.s2)
        return RowPosterior(kernel, self._hyper, self.config.Z, self._rows, self._y(), out)

    def _fitted(self) -> Hyperparameters:
        config, y = self.config, self._y()
        spread = float(y.std())
        unit = spread if spread > _SMALLEST else 1.0
        given = {
            "lengthscale": config.lengthscale,
            "s2": config.signal_variance,
            "s2_n": config.noise_variance,
        }
        mean = float(y.mean()) if config.mean is None else self._sign * config.mean
        return fit(
            config.prior, config.Z[self._rows], self._rows, y - mean, unit, mean, given,
            config.answer_variance,
        )  # fmt: skip

    def _y(self) -> Array:
        values = np.array([value for _, value in self.evaluations])
        return np.asarray(self._sign * np.clip(values, -_LARGEST, _LARGEST))

    @property
    def _sign(self) -> float:
        return 1.0 if self.maximize else -1.0

    def _learn(self, evaluation: Evaluation, value: float) -> None:
        self._rows.append(self.row(evaluation.x))
        self._hyper = None

    def _recommended(self) -> Array:
        """The row told with the largest posterior mean, as a point (1,)."""
        mu, _ = self._model([]).predict_told(list(range(self.t)))
        return self.point(self._rows[int(np.argmax(mu))])


def row_space(n: int, name: str = "row") -> Space:
    """The space of a table's rows."""
    return Space({name: Int(0, n - 1)})


def _values(dim: Int) -> int:
    return (dim.high - dim.low) // dim.step + 1 if dim.step == 1 else -1


def _nth_left(k: int, asked: Sequence[int]) -> int:
    """The k-th row, from 0, among those that are not in a sorted list."""
    for row in asked:
        if row > k:
            break
        k += 1
    return k
