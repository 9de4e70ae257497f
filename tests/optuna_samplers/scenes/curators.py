"""A curator in a process of its own; it shares a folder with the modeler: table and study.

``private`` holds ``rows.npz`` (X, y, a token) and gets the vault; a file ``stop`` in ``shared``
ends it. ``how`` is "private" (answers are randomised), "plain" (answers are outcomes), or
"careless": it tells, prints and writes rows, all of which a scanner must find.
"""

import logging
import sys
import time
from pathlib import Path

import numpy as np
import optuna

from optuna_samplers import answer_trials
from privbo_plugins.sessions.rows import Curator
from tests.optuna_samplers.scenes.studies import open_storage

FAILS = 5
"""Of so many rows, the first has an outcome that quotes its row and raises."""


def log_everything(stream):
    """Optuna's and SQLAlchemy's loggers at DEBUG."""
    handler = logging.StreamHandler(stream)
    for name in ("optuna", "sqlalchemy.engine", "sqlalchemy.pool", "sqlalchemy.orm", "alembic"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    return handler


def main(private, shared, how):
    private, shared = Path(private), Path(shared)
    log_everything(sys.stderr)
    with np.load(private / "rows.npz") as stored:
        X, y, token = stored["X"], stored["y"], str(stored["token"])

    def outcome(row):
        if row % FAILS == 0:
            raise ValueError(f"{token} {X[row].tolist()} {y[row]!r}")
        return float(X[row, 0] if how == "careless" else y[row])

    answers = {}
    if how == "private":
        answers = {"outcome_epsilon": 1.0, "outcome_range": (0.0, 1.0)}
    curator = Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * X.shape[1], outcomes=outcome,
        vault=f"sqlite:///{private}/vault.db", **answers,
    )  # fmt: skip
    curator.release().save(shared / "table.npz")
    if how == "careless":
        np.savez(shared / "more.npz", X=X)
        print(X[0].tolist(), token)
        logging.getLogger("optuna").debug("row %s of %s", X[1].tolist(), token)
    study = optuna.load_study(study_name="s", storage=open_storage("sqlite", shared))
    while not (shared / "stop").exists():
        answer_trials(study, curator)
        time.sleep(0.05)
    print(curator, study)
