"""A clinical table: who dies within five years, by a blood test, with boosted trees.

7679 residents of Olmsted County, Minnesota, aged 50 or more, whose free light chains were
measured (Kyle et al. 2006, Dispenzieri et al. 2012), as ``scikit-survival`` ships them. 4000 of
them are the secret on which the trees are tuned. Run it with ``python -m examples.clinical``; it
writes ``clinical.db`` (the study), ``clinical-private.db`` (the vault, not to be shared), a report
and a certificate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna.distributions import IntDistribution
from scipy.stats import loguniform
from sklearn.ensemble import HistGradientBoostingClassifier

from examples.application import Application, main

FEATURES = ("age", "sex", "sample.yr", "creatinine", "kappa", "lambda", "mgus")
"""What was known on the day of the blood test.

The cause of death (chapter) was not. ``flc.grp`` says in which tenth of all persons somebody
is, so that one record's features would depend on others': no guarantee covers that.
"""

_FIVE_YEARS = 5 * 365.25


def records() -> tuple[Any, Any]:
    """Features (7679, 7) with NaN for an unmeasured creatinine, and whether the person died.

    195 persons whose follow-up ended earlier are no records of this table.
    """
    from sksurv.datasets import load_flchain

    table, outcome = load_flchain()
    died = outcome["death"] & (outcome["futime"] < _FIVE_YEARS)
    known = outcome["death"] | (outcome["futime"] >= _FIVE_YEARS)
    table = table.assign(sex=table["sex"] == "F", mgus=table["mgus"] == "yes")
    X = table[list(FEATURES)].astype(float).to_numpy()
    return X[known], np.asarray(died[known], dtype=int)


APPLICATION = Application(
    name="clinical",
    estimator=HistGradientBoostingClassifier(random_state=0),
    space={
        "learning_rate": loguniform(0.005, 0.5),
        "max_leaf_nodes": IntDistribution(2, 32, log=True),
        "l2_regularization": loguniform(0.01, 100.0),
    },
    loss="brier",
    records=records,
    n_train=1600,
    n_valid=4000,
)

if __name__ == "__main__":
    main(APPLICATION, __doc__)
