"""Nobody can see of a search what one validation record is, but for what was released.

Both runs of a pair get the same releases, so every byte that they leave in public must be equal.
"""

import functools
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from scipy.stats import loguniform
from sklearn.linear_model import LogisticRegression

from privbo_plugins.groups import Groups
from sklearn_search import PrivateSearch
from tests.independence.seen import differences, left_by
from tests.sklearn_search.problems import classes, halves, see_fit

pytestmark = pytest.mark.slow

N, PLACE = 60, 7
"""Records, and which of the validation records is the odd one."""


def searching(seen, entry, *, loss="zero_one", **settings):
    """A search whose odd record has this label."""
    X, y = classes(N)
    labels = np.array(["no", "yes"], dtype=object)[y]
    labels[halves(N)[1][PLACE]] = entry()
    search_of(seen, X, labels, {}, loss=loss, **settings)


def of_persons(seen, entry):
    """A search with a held-out person whose rows, as many as entry says, come first and last."""
    X, y = classes(N)
    ids = np.arange(N) // 2
    odd = next(i for i in ids[::-1] if Groups(ids).ranks(0)[i] < N // 4)
    own = np.flatnonzero(ids == odd)
    before, after = entry()
    rows = [*own[:1].repeat(before), *np.flatnonzero(ids != odd), *own[1:].repeat(after)]
    labels = np.array(["no", "yes"], dtype=object)[y[rows]]
    labels[:before] = "no" if after else "yes"
    search_of(seen, X[rows], labels, {"groups": ids[rows]}, loss="zero_one")


def search_of(seen, X, labels, persons, *, loss, **settings):
    search = PrivateSearch(
        LogisticRegression(), {"C": loguniform(1e-3, 1e3)}, mu=1, n_trials=8, seed=0, loss=loss,
        storage=f"sqlite:///{seen.folder / 'study.db'}", study_name="s", vault=seen.vault,
        **settings,
    )  # fmt: skip
    see_fit(seen, search, X, labels, **persons)


def yes():
    return "yes"


ODD = {
    "the other label": lambda: "no",
    "a label that no record trains with": lambda: "maybe",
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "a number": lambda: 7,
    "a sequence": lambda: ["yes"],
}


LOSSES = ("zero_one", "brier")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all runs, because its path is part of what they write."""
    return Path(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def ordinary(folder):
    """What runs on ordinary data leave, by loss."""
    runs = {loss: functools.partial(searching, loss=loss) for loss in LOSSES}
    return {loss: left_by(run, yes, folder) for loss, run in runs.items()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("odd", ODD)
def test_nothing_but_releases_depends_on_a_record(odd, loss, folder, ordinary):
    run = functools.partial(searching, loss=loss)
    assert differences(ordinary[loss], left_by(run, ODD[odd], folder)) == {}


@functools.cache
def left_by_persons(rows, folder):
    return left_by(of_persons, lambda: rows, folder)


@pytest.mark.parametrize("rows", [(1, 2), (9, 0), (0, 4)])
def test_nothing_but_releases_depends_on_how_many_rows_a_person_has(rows, folder):
    assert differences(*(left_by_persons(given, folder) for given in ((1, 0), rows))) == {}


def test_control_a_split_that_looks_at_labels_shows_one(tmp_path):
    from sklearn.model_selection import StratifiedShuffleSplit

    import sklearn_search._records as of_records

    class Stratified(StratifiedShuffleSplit):
        """Looks at the labels of all records."""

        def split(self, X):
            return super().split(X, labels)

    runs = []
    for odd in ("yes", "no"):
        _, y = classes(N)
        labels = np.array(["no", "yes"], dtype=object)[y]
        labels[halves(N)[1][PLACE]] = odd
        with mock.patch.object(of_records, "ShuffleSplit", Stratified):
            runs.append(left_by(searching, lambda odd=odd: odd, tmp_path))
    assert differences(*runs) != {}
