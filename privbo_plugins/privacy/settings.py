"""Settings of what releases: how much privacy, for which records, by what noise."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated

from privbo_plugins.settings import (
    Positive,
    Probability,
    Rule,
    Stored,
    between,
    integer,
    one_of,
    setting,
    settings,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from privbo_plugins.privacy.source import NoiseSource


SMALLEST_MU = 1e-9
"""Below, the grid of the noise, 2**-60 of its deviation, exceeds a sensitivity's slack."""

PerGroup = Annotated[str, one_of("mean", "sum")]
Word = Annotated[
    str,
    Rule(
        "a noun in the singular (patient, not patients), of at most 40 letters, spaces and "
        "hyphens",
        lambda word: (
            isinstance(word, str)
            and bool(re.fullmatch(r"[^\W\d_]([^\W\d_]|[ -]){0,39}( row)?", word))
            and not re.search("[^sui]s$", word)
        ),
    ),
]
_MU = between(SMALLEST_MU, 1e100)  # whose square is a number
_TOTAL = Rule(f"{_MU.words} or math.inf", lambda mu: mu == math.inf or _MU.holds(mu))
Mu = Annotated[float, _MU]
_TotalMu = Annotated[float, _TOTAL]
_Deal = Annotated[
    tuple[int, ...],
    Rule(
        "(n, K, seed) of in_blocks(...).settings(): integers, K from 2 to n / 2, seed from 0 on",
        lambda deal: (
            isinstance(deal, tuple | list)
            and len(deal) in (3, 4)
            and all(integer(least).holds(x) for least, x in zip((4, 2, 0, 1), deal))  # noqa: B905
            and deal[1] <= deal[0] // 2
        ),
    ),
]


@settings(eq=False)
class NoiseSettings:
    """What everything that releases takes."""

    noise: NoiseSource | None = setting(
        "For tests only; what was released with it is reported as unprotected.", default=None
    )


@settings(eq=False)
class RecordSettings:
    """What everything has that tunes on per-record losses."""

    record_ids: ArrayLike | None = setting(
        "Labels of the validation records, shape (n_records,), in the order of their losses: row "
        "numbers, keys. They are neither stored nor pickled; the vault keeps a keyed digest, and "
        "refuses losses of other records, or in another order, also from other processes that "
        "give theirs. A pandas Series' own index is compared in any case.",
        default=None,
        repr=False,
    )
    groups: ArrayLike | None = setting(
        "The person of each row that the objective returns a value of, shape (n_rows,): a person "
        "is protected with all its rows, which become one value before anything is stored, and n "
        "is the number of persons. Ids are compared as ``record_ids`` are, and neither stored nor "
        "pickled. Rows without an id count as one person together.",
        default=None,
        repr=False,
    )
    per_group: PerGroup = setting(
        'How the rows of one person count: "mean", or "sum", at most ``group_bound``. Rows are '
        "clipped to ``loss_bound`` first.",
        default="mean",
    )
    group_bound: Positive | None = setting(
        'With ``per_group="sum"``: the most that the rows of one person add up to. Public.',
        default=None,
    )
    unit: Word | None = setting(
        "What one entry is called in every text, such as patient; None for record, or with "
        "``groups`` person. Give it with ``record_ids`` where the objective returns "
        "``losses.by_group(...)``: with neither it groups no rows, and texts say patient row.",
        default=None,
    )
    records_in_blocks: _Deal | None = setting(
        "How ``in_blocks`` deals all records into blocks: (n, K, seed), and 1 for whole persons, "
        "which its ``settings()`` give. Each entry is then the score of one of K blocks, and all "
        "records are protected, those that train too. None where each entry is a record.",
        default=None,
    )


@settings(eq=False)
class UserSettings:
    """What everything has that asks users for rewards."""

    user_budget: float | None = setting(
        "The most epsilon that one user may pay in all runs of the vault, at ``user_delta``; "
        "needs ``user_id=``. An evaluation beyond it is refused before the reward is computed.",
        default=None,
    )
    user_delta: float = setting(
        "The delta at which the sum that one user pays is shown and limited, in [0, 1). At 0 "
        "epsilons add up; above, many evaluations cost less than their sum. A budget for "
        '"gaussian", or for users who were asked with it elsewhere, needs one above 0.',
        default=0.0,
    )


@settings
class EpsilonSettings(Stored):
    """How much privacy a run on per-record losses has, as ``mu`` or as epsilon at a delta."""

    mu: _TotalMu = setting(
        "Total Gaussian DP parameter, > 0; ``math.inf`` for no privacy.",
        default=None,
        kw_only=False,
    )
    epsilon: Positive | None = setting(
        "Instead of ``mu``, with ``delta``: the run's total epsilon, finite and > 0. The largest "
        "mu that keeps it at this delta is taken.",
        default=None,
    )
    delta: Probability | None = setting(
        "The delta that ``epsilon`` is meant at, in (0, 1): well below one over the number of "
        "records.",
        default=None,
    )
    training_mu: Mu | None = setting(
        "Gaussian DP parameter that one training costs the training records; every attempt "
        "of a trial pays.",
        default=None,
    )

    def __attrs_post_init__(self) -> None:
        """Says mu, where epsilon was given."""
        from privbo_plugins.privacy.accountant import chosen_mu  # scipy, which trials do without

        mu = chosen_mu(self.mu, self.epsilon, self.delta)
        _TOTAL.check("mu", mu)
        object.__setattr__(self, "mu", float(mu))  # every figure of one kind prints alike

    @property
    def asked(self) -> dict[str, float]:
        """The pair that was asked for, if it was one."""
        if self.epsilon is None or self.delta is None:
            return {}
        return {"epsilon": float(self.epsilon), "delta": float(self.delta)}
