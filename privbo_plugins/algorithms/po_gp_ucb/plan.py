"""What a released table costs, and how well it keeps the rows apart, before any row is asked for.

Notation:

    ======  ==================================================================  ========
    symbol  meaning                                                             shape
    ======  ==================================================================  ========
    x_i     row i in released units, before columns are mixed, centred          (d,)
    z_i     what is released of it, x_i P + sigma N(0, I), centred              (r,)
    s2      mean of |x_i|², from the released rows: tr Cov(z) - r sigma²         scalar
    ======  ==================================================================  ========

For two rows of squared length s2 at right angles, the released inner product is unbiased, with the
variance

    (2 s2 sigma² + r sigma⁴) + s2² v,

where v is what mixing columns does to two directions at right angles: 0 for the identity,
d (d - r) / (r (d - 1) (d + 2)) for a uniform frame of r directions scaled by sqrt(d / r), 1 / r
for the published standard normal matrix over sqrt(r). All of it comes from released numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privbo_plugins.algorithms.po_gp_ucb.modeler import GivenRows
from privbo_plugins.algorithms.po_gp_ucb.table import TableManifest
from privbo_plugins.algorithms.protocols import NoisyPlan
from privbo_plugins.privacy.figures import not_below, two_decimals

_DROWNING = 0.25
"""Length of the noise between two rows over their typical distance, from which to warn. In runs
of docs/outsourced.md the model helped at 0.14, and did no better than random rows from 0.34 on."""


@dataclass(frozen=True)
class TablePlan(NoisyPlan):
    """What a released table costs each row, and what its noise leaves to see.

    Attributes:
        n_rows: n.
        n_columns: r.
        protected: Whether differential privacy is claimed.
        epsilon: Of everything released of one row, its answer included; infinity if not protected.
        delta: Of the claim.
        neighbor_distance: How far two tables that cannot be told apart may differ in a row, in
            released units; None for any two rows.
        noise_sd: sigma, in released units.
        answer_sd: Standard deviation of what randomises an answer; 0 if answers are as they are.
        row_length: sqrt(s2), root mean square length of a centred row, in released units.
        mixing: sqrt(v), what mixing columns does to an inner product, in squared row lengths.

    Example:
        >>> plan = TablePlan(100, 2, True, 2.0, 1e-6, 0.2, 0.05, 0.0, 0.5, 0.0)
        >>> round(plan.noise_norm, 3), round(plan.inner_product_error, 3), plan.noise_dominates
        (0.141, 0.142, False)
    """

    n_rows: int
    n_columns: int
    protected: bool
    epsilon: float
    delta: float
    neighbor_distance: float | None
    noise_sd: float
    answer_sd: float
    row_length: float
    mixing: float

    @property
    def noise_norm(self) -> float:
        """Length of the noise between two rows over their typical distance."""
        noise = self.noise_sd * math.sqrt(self.n_columns)
        if self.row_length > 0:
            return noise / self.row_length
        return math.inf if noise > 0 else 0.0

    @property
    def inner_product_error(self) -> float:
        """Standard deviation of a released inner product, in squared row lengths."""
        noise2 = self.noise_norm**2  # r sigma² / s2
        return math.sqrt((2 * noise2 + noise2**2) / self.n_columns + self.mixing**2)

    @property
    def noise_dominates(self) -> bool:
        """True if the noise is likely to hide which rows are alike."""
        return self.noise_norm > _DROWNING

    def noise_warning(self) -> str:
        """Words a warning: the size of the noise, its effect, and remedies."""
        return (
            f"The noise between two rows of the table is {self.noise_norm:.2f} times as long "
            f"as they are apart (noise sd {self.noise_sd:.3g} on each of {self.n_columns} "
            "columns): the model will learn little from one row about another. Fewer columns, "
            "a larger epsilon or a smaller neighbor_distance help."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields, and what follows from them; infinities as the string "inf"."""
        told = super().to_dict() | {
            "noise_norm": self.noise_norm,
            "inner_product_error": self.inner_product_error,
        }
        return {name: "inf" if value == math.inf else value for name, value in told.items()}

    def __str__(self) -> str:
        answers = (
            f"each carries noise of sd {self.answer_sd:.3g}"
            if self.answer_sd
            else "they are given as they are, without protection"
        )
        lines = [
            f"Released table: {self.n_rows} rows of {self.n_columns} columns, {self._claim()}",
            f"  noise of sd {self.noise_sd:.3g} on each number; between two rows it is "
            f"{self.noise_norm:.2f} times as long as rows are apart",
            f"  the inner product of two rows is known to ±{self.inner_product_error:.2g} of a "
            "row's squared length (one standard deviation)",
            f"  answers: {answers}",
        ]
        return "\n".join([*lines, *self._last_lines()])

    def _claim(self) -> str:
        if not self.protected:
            return "nothing is protected"
        within = (
            "whatever it holds"
            if self.neighbor_distance is None
            else f"against changes of up to {self.neighbor_distance:.3g}"
        )
        return (
            f"epsilon={two_decimals(self.epsilon)} at delta={not_below(self.delta, 3)} for each "
            f"row, {within}"
        )


def make_table_plan(given: GivenRows) -> TablePlan:
    """The plan of a released table, from its rows and what its manifest says of them."""
    rows, manifest, claimed = given.config, given.manifest, given.claim()
    n, r = rows.Z.shape
    total = float(rows.Z.var(0, ddof=1).sum()) if n > 1 else 0.0
    return TablePlan(
        n, r, claimed.protected, float(claimed.epsilon), claimed.delta,
        claimed.neighbor_distance, float(rows.noise_sd), math.sqrt(rows.answer_variance),
        math.sqrt(max(total - r * rows.noise_sd**2, 0.0)),
        0.0 if manifest is None else math.sqrt(mixing_variance(manifest)),
    )  # fmt: skip


def mixing_variance(manifest: TableManifest) -> float:
    """v: variance of the inner product of two mixed unit vectors at right angles."""
    d, r, kind = manifest.d, manifest.r, manifest.projection["kind"]
    if kind == "secret":
        return 1.0 / r
    return 0.0 if kind == "identity" else d * (d - r) / (r * (d - 1) * (d + 2))
