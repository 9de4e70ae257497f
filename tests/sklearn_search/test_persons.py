"""A search that holds out whole persons: nobody on both sides, and rows move nobody."""

import math
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from privbo_plugins.errors import PrivacyWarning
from sklearn_search._records import given_records, held_out
from tests.sklearn_search.problems import (
    classes,
    exact_search,
    lasting,
    make_search,
    session_behind,
)

pytestmark = [pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")]

N = 240
X, y = classes(N)
IDS = np.array([f"id-{(i * i) % 83}" for i in range(N)])


def split(ids, valid_size=0.5, random_state=0):
    """Ids of those who train, and of those who are held out; one a row."""
    rows = np.arange(len(ids), dtype=float)[:, None]
    records = held_out(
        LogisticRegression(), rows, np.zeros(len(ids)), {}, valid_size=valid_size,
        random_state=random_state, groups=ids,
    )  # fmt: skip
    ids = np.asarray(ids)
    train, valid = (ids[part[:, 0].astype(int)] for part in (records.X, records.X_valid))
    assert records.n_valid == len({*valid.tolist()})
    assert records.split["valid"] == records.n_valid
    assert records.split["train"] == len({*train.tolist()})
    return set(train.tolist()), set(valid.tolist())


@pytest.mark.parametrize("valid_size", [0.5, 0.2, 30])
def test_each_person_is_on_one_side_with_all_rows(valid_size):
    train, valid = split(IDS, valid_size)
    persons = {*IDS.tolist()}
    assert train | valid == persons
    assert not train & valid
    wanted = valid_size if valid_size > 1 else math.ceil(valid_size * len(persons))
    assert len(valid) == wanted
    assert split(IDS, valid_size, random_state=1)[1] != valid


@given(
    rows=st.lists(st.integers(0, 20), min_size=5, max_size=60),
    person=st.integers(0, 20),
    more=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_the_rows_of_one_person_move_no_other_person(rows, person, more, seed):
    """However many there are, and wherever in the table."""
    rng, others = np.random.default_rng(seed), [i for i in rows if i != person] + [21, 22, 23]
    tables = []
    for k in (1, more):
        table = list(others)
        for _ in range(k):
            table.insert(int(rng.integers(len(table) + 1)), person)
        tables.append(split(table))
    assert tables[0] == tables[1]


@pytest.mark.filterwarnings("ignore:Nothing is protected")
def test_what_is_released_is_the_mean_over_persons():
    search = exact_search(n_trials=4, method="released-means").fit(X, y, groups=IDS)
    valid = np.isin(IDS, sorted(split(IDS)[1]))
    for row in range(len(search.cv_results_["params"])):
        model = LogisticRegression(**search.cv_results_["params"][row])
        wrong = model.fit(X[~valid], y[~valid]).predict(X[valid]) != y[valid]
        mean = np.mean([wrong[IDS[valid] == i].mean() for i in {*IDS[valid]}])
        assert search.cv_results_["mean_test_score"][row] == pytest.approx(1 - mean, abs=1e-9)
        assert 1 - mean != pytest.approx(1 - wrong.mean(), abs=1e-6)


@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
def test_everything_names_the_unit_that_was_chosen(method, tmp_path):
    model = make_pipeline(StandardScaler(), LogisticRegression())
    search = make_search(
        model, {"logisticregression__C": [0.1, 1.0, 10.0]}, method=method, unit="patient"
    )
    search.fit(X, y, groups=IDS)
    claim, page = search.guarantee_, search.report(tmp_path / "r.html").read_text()
    assert (claim.unit, claim.n_records, search.n_valid_) == ("patient", 21, 21)
    for told in (str(claim), claim.details(), page, "; ".join(claim.notes)):
        assert "validation patients" in told
        assert not re.search(r"(validation|training) records?", told)
    assert make_search().fit(X, y, groups=IDS).guarantee_.unit == "person"


def test_a_search_goes_on_with_the_same_persons_in_another_order(tmp_path):
    kept = lasting(tmp_path, seed=0)
    make_search(**kept, callbacks=[lambda study, _: study.stop()]).fit(X, y, groups=IDS)
    order = np.random.default_rng(0).permutation(N)
    again = make_search(**kept).fit(X[order], y[order], groups=IDS[order])
    assert session_behind(again).finished
    others = IDS.copy()
    others[others == "id-0"] = "id-x"
    with pytest.raises(ValueError, match=r"others than the run's|told apart in"):
        make_search(**kept).fit(X, y, groups=others)


BAD = {
    "another length": ({"groups": IDS[:-1]}, "it has another length"),
    "no ids": ({"groups": "patient"}, "groups must list the id"),
    "one person": ({"groups": [None] * N}, "they name one"),
    "no validation ids": (
        {"groups": IDS[:9], "X_valid": X[9:], "y_valid": y[9:]}, "Give both groups=",
    ),
    "no ids that train": ({"groups_valid": IDS}, "X_valid= and y_valid= together"),
    "both sides": (
        {"groups": IDS[:99], "groups_valid": IDS[99:], "X_valid": X[99:].copy(),
         "y_valid": y[99:]},
        "have persons in common",
    ),
    "validation ids of another length": (
        {"groups": IDS[:99], "groups_valid": ["x", "y"], "X_valid": X[99:].copy(),
         "y_valid": y[99:]},
        "it has another length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("protect", ["validation", "all"])
def test_no_text_tells_how_many_rows_there_are(protect):
    """Rows of a person are private: of X, of y, and of validation records that are given."""
    given = [(X, y[:-1], {"groups": IDS})]
    if protect == "validation":
        apart = {"X_valid": X[99:].copy(), "y_valid": y[98:], "groups_valid": IDS[99:]}
        given.append((X[:99].copy(), y[:99], {"groups": IDS[:99]} | apart))
    for records, targets, more in given:
        search = make_search(protect=protect)
        with pytest.raises(ValueError, match="lengths differ: take both from one") as refused:
            search.fit(records, targets, **more)
        assert not re.search(r"\d", str(refused.value))
        assert (refused.value.__context__, refused.value.__cause__) == (None, None)
    with pytest.raises(ValueError, match="239"):
        make_search(protect=protect).fit(X, y[:-1])
    pd = pytest.importorskip("pandas")
    assert make_search(protect=protect, n_blocks=None).fit(X.tolist(), y, groups=pd.Series(IDS))


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_names_no_person_and_costs_nothing(case, tmp_path):
    given, words = BAD[case]
    n = len(given.get("groups", X)) if "X_valid" in given else N
    search = make_search(vault=str(tmp_path / "vault.db"))
    with pytest.raises(ValueError, match=words) as refused:
        search.fit(X[:n].copy(), y[:n], **given)
    assert not re.search(r"id-\d", str(refused.value))
    assert not (tmp_path / "vault.db").exists()


def test_a_given_split_of_whole_persons_is_taken():
    first = np.isin(IDS, sorted({*IDS.tolist()})[:40])
    records = given_records(
        LogisticRegression(), X[first], y[first], X[~first], y[~first], {},
        groups=IDS[first], groups_valid=IDS[~first],
    )  # fmt: skip
    assert records.n_valid == len({*IDS[~first]}) < records.n_rows == int((~first).sum())
    assert records.split == {
        "given": True, "train": 40, "valid": records.n_valid, "index": False, "persons": True,
    }  # fmt: skip


def test_sums_of_a_persons_rows_have_noise_for_their_cap():
    search = make_search(n_trials=8, per_group="sum", group_bound=3.0, method="released-means")
    search.fit(X, y, groups=IDS)
    noise = search.cv_results_["std_test_score"]
    assert noise == pytest.approx(3 * math.sqrt(8) / 21, rel=1e-3)
    with pytest.raises(ValueError, match="group_bound, which"):
        make_search(per_group="sum").fit(X, y, groups=IDS)


@pytest.mark.parametrize("name", ["patient_id", "Patient", "customer", "user id", "HouseholdID"])
@pytest.mark.parametrize("where", ["a column", "the index"])
def test_a_table_that_names_persons_brings_a_warning_whatever_it_holds(name, where):
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table = table.assign(**{name: range(N)}) if where == "a column" else table.rename_axis(name)
    said = re.escape(name) + ".*fit\\(X, y, groups=ids\\)"
    for unit in (None, "patient"):  # a name alone groups no rows
        with pytest.warns(PrivacyWarning, match=said):
            make_search(unit=unit).fit(table, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        make_search().fit(table, y, groups=IDS)
        make_search().fit(pd.DataFrame(X, columns=["age", "clients_seen", "idea"]), y)


@pytest.mark.parametrize("protect", ["validation", "all"])
def test_a_unit_that_groups_nothing_is_said_once_and_no_text_takes_rows_for_persons(protect):
    search = make_search(protect=protect, unit="patient")
    with pytest.warns(PrivacyWarning, match="unit='patient' is a name") as told:
        search.fit(X, y)
    assert sum(one.category is PrivacyWarning for one in told) == 1
    said = search.guarantee_.details()
    assert "each patient row is protected for itself alone" in said
    assert not re.search(r"\bpatients?\b(?!\s+rows?\b)", said)
    search = make_search(protect=protect, unit="patient").fit(X, y, groups=IDS)
    assert search.guarantee_.unit == "patient"
    assert "patients" in str(search.plan(n_records=100)) or protect == "all"


def test_ids_in_another_order_than_the_rows_are_refused():
    pd = pytest.importorskip("pandas")
    table, ids = pd.DataFrame(X), pd.Series(IDS)
    with pytest.raises(ValueError, match="groups and X have another index each"):
        make_search().fit(table, y, groups=ids.sample(frac=1.0, random_state=0))
    assert make_search().fit(table, y, groups=ids).n_valid_ == 21


def test_an_id_is_the_same_as_a_number_and_as_a_text():
    numbers = np.arange(N) % 50
    with pytest.raises(ValueError, match="persons in common"):
        make_search().fit(
            X[:100], y[:100], X_valid=X[100:], y_valid=y[100:],
            groups=numbers[:100], groups_valid=numbers[100:].astype(str),
        )  # fmt: skip
    train, valid = split(numbers.tolist())
    texts = [str(number) for number in numbers]  # as a file's column is where one is no number
    assert split(texts) == tuple({str(number) for number in side} for side in (train, valid))


@pytest.mark.parametrize("protect", ["validation", "all"])
def test_a_search_knows_its_own_attributes_of_a_study(protect):
    search = make_search(protect=protect).fit(X, y, groups=IDS)
    assert "did not write" not in search.guarantee_.details()


def test_groups_are_no_metadata_of_the_estimator():
    with config_context(enable_metadata_routing=True):
        search = make_search().fit(X, y, groups=IDS)
    assert search.n_valid_ == 21
