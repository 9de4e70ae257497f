"""Types of records: those that train decide them, and one validation record none."""

import io
import itertools
import math
import operator
import warnings
from collections import deque
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from scipy import sparse
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from privbo_plugins import losses, scores
from privbo_plugins.errors import NotLossesError
from sklearn_search import PrivateSearch
from sklearn_search._columns import fitting_columns, own_columns
from sklearn_search._losses import to_loss
from sklearn_search._records import Task, given_records, held_out
from sklearn_search._space import Parameters
from sklearn_search._types import as_in_training, of_training
from tests.crosses import crossed
from tests.independence.odd import MAKERS, ODD, of_objects
from tests.leaks.scanner import Scanner, exception_leaks
from tests.sklearn_search.problems import halves

N = 12
TRAIN, VALID = halves(N)
SPLIT = {"valid_size": 0.5, "random_state": 0}
PLACE = 3
"""Of the odd record among those that are validated."""


def given_apart(X, V):
    """Records that train and others that validate, whose targets are nothing."""
    return given_records(Ridge(), X, np.zeros(len(X)), V, np.zeros(len(V)), {})


def cells(record, place):
    """What can be compared of a cell, a row or a label."""
    if hasattr(record, "iloc"):
        return cells(record.iloc[place] if record.ndim == 1 else list(record.iloc[place]), -1)
    found = record[place] if place >= 0 else record
    if isinstance(found, list | tuple | np.ndarray) and np.ndim(found):
        return [cells(entry, -1) for entry in found]
    return type(found).__name__, np.asarray(found).tobytes() if _is_number(found) else found


def _is_number(found):
    return isinstance(found, int | float | np.number)


def frame(records):
    """Types, names and shape of what holds records."""
    if not hasattr(records, "iloc"):
        return type(records).__name__, str(getattr(records, "dtype", "")), len(records)
    columns = [records] if records.ndim == 1 else [records.iloc[:, k] for k in range(2)]
    kinds = [
        (str(c.dtype), c.name, repr(c.cat.categories) if hasattr(c, "cat") else "")
        for c in columns
    ]
    return type(records).__name__, kinds, str(records.index), records.shape


def seen_of(records, place=PLACE):
    """Everything but the odd record."""
    others = [i for i in range(records.n_valid) if i != place]
    training = {"X": records.X, "y": records.y, **records.fit_params}
    shown = {}
    for name, part in training.items():
        shown[name] = frame(part), [cells(part, i) for i in range(len(part))]
    for name, part in (("X_valid", records.X_valid), ("y_valid", records.y_valid)):
        shown[name] = frame(part), [cells(part, i) for i in others]
    return shown


# What holds records -----------------------------------------------------------------------------


def of_cells(entries, name="a"):
    return pd.Series(of_objects(entries), dtype=object, name=name)


def inferred(entries):
    return of_cells(entries).infer_objects()


def nullable(entries):
    return inferred(entries).convert_dtypes()


def arrow(entries):
    """As a file is read with pyarrow's types; those that have none are objects."""
    return inferred(entries).convert_dtypes(dtype_backend="pyarrow")


def category(entries):
    return inferred(entries).astype("category")


def table(column):
    def hold(entries):
        made = pd.DataFrame({"a": column(entries)})
        made["b"] = np.arange(len(entries)) / 4
        return made

    return hold


def indexed(entries):
    numbers = np.arange(len(entries))
    return pd.DataFrame({"a": numbers / 4, "b": numbers}, index=pd.Index(inferred(entries)))


def rows(entries):
    return [[entry, i / 4] for i, entry in enumerate(entries)]


def array(entries):
    made = np.empty((len(entries), 2), dtype=object)
    made[:, 0], made[:, 1] = of_objects(entries), np.arange(len(entries)) / 4
    return made


TABLES = {
    "frame": table(of_cells), "frame, inferred": table(inferred), "categories": table(category),
    "frame, nullable": table(nullable), "frame, arrow": table(arrow),
    "index": indexed, "list": rows, "array": array,
}  # fmt: skip
COLUMNS = {
    "list": list, "array": of_objects, "series": of_cells, "series, inferred": inferred,
    "category": category, "series, nullable": nullable, "series, arrow": arrow,
    "array, nullable": lambda entries: nullable(entries).array,
    "array, arrow": lambda entries: arrow(entries).array,
    "array of a category": lambda entries: category(entries).array, "index": pd.Index,
}  # fmt: skip
ORDINARY = {
    "texts of truths": lambda i: str(i % 2 == 0),
    "days": lambda i: pd.Timestamp(2020, 1, 1 + i), "spans": lambda i: pd.Timedelta(i, "D"),
    "intervals": lambda i: pd.Interval(i, i + 1),
    "numbers": lambda i: i / 8, "whole numbers": lambda i: i % 3,
    "texts": lambda i: ["no", "yes", "maybe"][i % 3], "truths": lambda i: i % 2 == 0,
    "nothing": lambda i: None, "no number": lambda i: math.nan,
    "several kinds": lambda i: [1, 2.5, "a"][i % 3],
    "some missing": lambda i: math.nan if i % 4 else 0.5,
}  # fmt: skip
FITTED = {"numbers", "whole numbers", "texts", "truths", "some missing"}
"""Of which a target can be made."""


def both(hold, entry, odd):
    entries = [entry(i) for i in range(N)]
    replaced = list(entries)
    replaced[VALID[PLACE]] = odd()
    try:
        return hold(entries), hold(replaced)
    except BaseException:  # pandas compares entries to find categories
        assume(False)
        raise


DOORS = {"held out": PLACE, "given apart": int(VALID[PLACE])}
"""Ways for a table to be validated, and where the odd record then stands."""


@pytest.mark.parametrize(
    ("door", "holder", "kind"), crossed(itertools.product(DOORS, TABLES, ORDINARY), axes=2)
)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@example(odd=MAKERS["half a character"])
@given(odd=ODD)
def test_one_validation_row_decides_no_type(door, holder, kind, odd):
    first, second = both(TABLES[holder], ORDINARY[kind], odd)
    X, y = TABLES[holder]([ORDINARY[kind](i) for i in range(N)]), np.arange(N) / 3
    one, other = (
        held_out(Ridge(), V, y, {}, **SPLIT) if door == "held out"
        else given_records(Ridge(), X, y, V, y, {})
        for V in (first, second)
    )  # fmt: skip
    assert seen_of(other, DOORS[door]) == seen_of(one, DOORS[door])


@pytest.mark.parametrize(
    ("estimator", "holder", "kind"),
    crossed(itertools.product([Ridge, LogisticRegression], COLUMNS, sorted(FITTED)), axes=2),
)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@example(odd=MAKERS["half a character"])
@given(odd=ODD)
def test_one_target_and_one_weight_decide_no_type(estimator, holder, kind, odd):
    first, second = both(COLUMNS[holder], ORDINARY[kind], odd)
    X = np.arange(2 * N).reshape(N, 2) / 3
    one, other = (
        held_out(estimator(), X, y, {"sample_weight": y}, **SPLIT) for y in (first, second)
    )
    assert seen_of(other) == seen_of(one)


# Searches ---------------------------------------------------------------------------------------


class Told(list[np.ndarray]):
    """A loss that notes what each record has lost, in each trial."""

    def __call__(self, y, prediction):
        self.append(losses.squared(y, prediction))
        return self[-1]

    def __deepcopy__(self, memo):
        return self  # a search asks a copy


def losses_of(estimator, X, y, **more):
    """Of each validation record in each trial, (trials, n)."""
    told = Told()
    space = {"ridge__alpha" if hasattr(estimator, "steps") else "alpha": [0.1, 1.0, 10.0]}
    search = PrivateSearch(
        estimator, space, mu=np.inf, n_trials=4, loss=told, loss_bound=100.0, seed=0,
        method="released-means", **more,
    )  # fmt: skip
    with warnings.catch_warnings(action="ignore"):
        search.fit(X, y)
    return np.array([one for one in told if len(one) != 8])  # as many train, for a try


def a_pipeline():
    columns = make_column_selector(dtype_include="number")
    texts = make_column_selector(dtype_exclude="number")
    both_kinds = ColumnTransformer([
        ("numbers", SimpleImputer(), columns),
        ("texts", OneHotEncoder(handle_unknown="ignore"), texts),
    ])  # fmt: skip
    return make_pipeline(both_kinds, Ridge())


def file_of(entry):
    """A table as pandas reads it from a file with one odd cell among those that are validated."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    lines = [[repr(a), repr(b), ["no", "yes"][i % 2]] for i, (a, b) in enumerate(X.tolist())]
    lines[int(halves(60)[1][PLACE])][0] = entry
    text = "\n".join(["a,b,c", *(",".join(line) for line in lines)])
    return pd.read_csv(io.StringIO(text)), X @ [1.0, -1.0]


@pytest.mark.parametrize("odd", ["n/k", "NA", "1e999", "True", "2020-01-01", "7"])
def test_a_file_with_one_odd_cell_trains_and_scores_the_others_as_ever(odd):
    """One text makes a column of pandas text, and each of its entries a category."""
    first, second = (losses_of(a_pipeline(), *file_of(cell)) for cell in ("0.5", odd))
    others = np.arange(30) != PLACE
    assert np.isfinite(first).all()
    assert second[:, others].tobytes() == first[:, others].tobytes()


@pytest.mark.parametrize("odd", [[2.0], (1, 2), [], 10**400, None, "n/k", {"a": 1}], ids=repr)
def test_one_odd_target_in_a_list_moves_no_other_loss(odd):
    X, y = np.random.default_rng(0).normal(size=(60, 2)), list(np.linspace(0, 3, 60))
    replaced = list(y)
    replaced[int(halves(60)[1][PLACE])] = odd
    first, second = losses_of(Ridge(), X, y), losses_of(Ridge(), X, replaced)
    others = np.arange(30) != PLACE
    assert np.isnan(second[:, PLACE]).all()
    assert second[:, others].tobytes() == first[:, others].tobytes()


def test_the_types_that_a_user_declares_stay():
    kinds = pd.CategoricalDtype(["low", "high"], ordered=True)
    X = pd.DataFrame({
        "kind": pd.Series(["low", "high"] * 6, dtype=kinds),
        "code": pd.Series(["01", "02"] * 6, dtype="category"),
        "share": np.arange(N, dtype=np.float32) / 4,
        "day": pd.date_range("2020-01-01", periods=N),
    })  # fmt: skip
    records = held_out(Ridge(), X, np.arange(N) / 4, {}, **SPLIT)
    assert records.X["kind"].cat.categories.tolist() == ["low", "high"]
    assert records.X["code"].cat.categories.tolist() == ["01", "02"]
    for part, places in ((records.X, TRAIN), (records.X_valid, VALID)):
        assert part["share"].dtype == np.float32
        assert part["day"].tolist() == X["day"].iloc[places].tolist()
        assert part["code"].tolist() == X["code"].iloc[places].tolist()


def test_texts_that_are_no_training_record_s_stay_texts_and_numbers_match_by_value():
    X = pd.DataFrame({"a": ["1.50", "no", "yes", "1.50"]})
    V = pd.DataFrame({"a": ["1.5", "never", None, "2"]})
    first = given_apart(X, V).X_valid["a"].tolist()
    assert first[:2] == ["1.50", "never"]
    assert pd.isna(first[2])
    numbers = pd.DataFrame({"a": [1.5, 7.0, np.nan, 2.0]})  # the same file without "never"
    other = given_apart(X, numbers).X_valid["a"].tolist()
    assert (other[0], other[3]) == (first[0], first[3])


def test_a_sparse_table_keeps_its_type_and_shape():
    X = sparse.random(N, 3, density=0.5, format="csr", random_state=0)
    records = held_out(Ridge(), X, np.arange(N) / 4, {}, **SPLIT)
    assert (records.X_valid != X[VALID]).nnz == 0
    assert (records.X != X[TRAIN]).nnz == 0
    assert records.X.dtype == records.X_valid.dtype == float


@pytest.mark.parametrize("odd", [math.nan, math.inf, 7, 0.5, None, "x", True], ids=str)
@pytest.mark.parametrize("kind", [int, bool])
def test_one_cell_of_a_sparse_column_decides_no_type(kind, odd):
    def hold(cell):
        entries = [kind(0), kind(1)] * (N // 2)
        entries[VALID[PLACE]] = cell
        return pd.DataFrame({"a": pd.arrays.SparseArray(entries), "b": np.arange(N) / 4})

    one, other = (held_out(Ridge(), hold(x), np.arange(N), {}, **SPLIT) for x in (1, odd))
    assert seen_of(other) == seen_of(one)
    assert isinstance(one.X["a"].dtype, pd.SparseDtype)


def test_a_document_that_is_none_is_empty():
    texts, odd = ["a b", "b c"] * 6, ["a b", None, 7, ["x"]]
    records = given_apart(texts, odd)
    assert list(records.X_valid) == ["a b", "", "", ""]
    assert records.X == texts


class Numbered:
    """A sequence that knows its entries by number alone."""

    def __init__(self, entries):
        self.entries = list(entries)

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, place):
        return self.entries[operator.index(place)]


HOLDERS = {
    "array": np.asarray,
    "frame": lambda X: pd.DataFrame(X, columns=["a", "b"]),
    **{kind: getattr(sparse, f"{kind}_matrix") for kind in "csr csc coo dia bsr lil dok".split()},
    "sparse array": sparse.coo_array,
    "list": np.ndarray.tolist,
    "deque": lambda X: deque(X.tolist()),
    "numbered": lambda X: Numbered(X.tolist()),
}


@pytest.mark.parametrize("unpredictable", [[0], [3], [0, 7, 8, 29], list(range(30))], ids=str)
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_record_that_cannot_be_predicted_decides_nothing_of_the_others(hold, unpredictable):
    """Ridge refuses a batch in which one entry is NaN."""
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.linspace(0, 3, 60)
    train, valid = halves(60)
    odd = X[valid].copy()
    odd[unpredictable, 1] = np.nan
    shown = []
    for held_back in (X[valid], odd):
        records = given_records(Ridge(), hold(X[train]), y[train], hold(held_back), y[valid], {})
        given = SimpleNamespace(loss="squared", scoring=None, response_method=None)
        loss = to_loss(given, Ridge(), records.y)
        task = Task(Ridge(), records, loss, {"loss_bound": 9.0}, Parameters({}, {}), "raise")
        shown.append(np.asarray(task._scored(Ridge().fit(records.X, records.y))))
    others = np.setdiff1d(np.arange(30), unpredictable)
    assert np.isfinite(shown[0]).all()
    assert np.isnan(shown[1][unpredictable]).all()
    assert shown[1][others].tobytes() == shown[0][others].tobytes()


@pytest.mark.parametrize("hold", [list, tuple, deque, Numbered, of_cells])
@pytest.mark.parametrize("kind", [ValueError, NotLossesError])
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
def test_a_label_that_a_loss_of_ones_own_fails_for_ends_no_fit(kind, hold):
    def own(y, predicted):
        if any(label != label for label in y):  # which "x" became
            raise kind
        return np.array([abs(float(label) - p) / 9 for label, p in zip(y, predicted, strict=True)])

    X, y = np.random.default_rng(0).normal(size=(60, 2)), [0.5] * 60
    apart = {"X_valid": X[:30] + 9.0, "y_valid": hold(["x", *y[1:30]])}
    search = PrivateSearch(
        Ridge(),
        {"alpha": [1.0, 10.0]},
        mu=np.inf,
        n_trials=3,
        method="released-means",
        loss=own,
        loss_bound=1.0,
    )
    with warnings.catch_warnings(action="ignore"):
        assert search.fit(X, y, **apart).cv_results_["loss"].max() < 0.5


class Damaged(Numbered):
    """One of its records cannot be read."""

    def __getitem__(self, place):
        if range(len(self))[place] == PLACE:
            raise ValueError("Jane Doe")
        return super().__getitem__(place)


@pytest.mark.parametrize("part", ["X", "y", "X_valid", "y_valid", "sample_weight"])
@pytest.mark.parametrize("kind", [ValueError, SystemExit, GeneratorExit, BaseException, TypeError])
def test_a_container_that_no_length_is_read_of_tells_nothing(kind, part):
    class Shut:
        def raises(self, *_):
            raise kind("Jane Doe of ward seven")

        __len__ = __getitem__ = __array__ = raises
        shape = columns = index = property(raises)

    whole = np.array({"a patient": "Jane Doe of ward seven"})  # one entry: a text of it is all
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    given = {"X": X, "y": y, part: whole if kind is TypeError else Shut()}
    if part.endswith("valid"):
        given = {"X_valid": X + 9.0, "y_valid": y} | given
    search = PrivateSearch(LogisticRegression(), {"C": [1.0, 10.0]}, mu=1, n_trials=3)
    with pytest.raises((ValueError, SystemExit)) as caught:
        search.fit(**given)
    scanner = Scanner()
    scanner.add_text("a patient", "Jane Doe of ward seven")
    assert exception_leaks(caught.value, scanner) == []


@pytest.mark.parametrize("part", ["X", "y"])
@pytest.mark.parametrize("settings", [
    {"method": "released-means", "n_trials": 3},
    {"protect": "all", "n_blocks": 6, "n_trials": 6, "scoring": "accuracy"},
], ids=["validation", "blocks"])  # fmt: skip
def test_a_record_that_a_container_cannot_read_ends_no_fit(settings, part):
    X = np.random.default_rng(0).normal(size=(60, 2))
    parts = {"X": X.tolist(), "y": [int(x > 0) for x in X[:, 0]]}
    odd = parts | {part: Damaged(parts[part])}
    given = odd if "protect" in settings else {
        "X": (X + 0.1).tolist(), "y": parts["y"], "X_valid": odd["X"], "y_valid": odd["y"]
    }  # fmt: skip
    search = PrivateSearch(LogisticRegression(), {"C": [0.1, 10.0]}, mu=1.0, **settings)
    with warnings.catch_warnings(action="ignore"):
        assert search.set_params(refit=False).fit(**given).guarantee_.protected


@pytest.mark.parametrize("hold", [np.asarray, pd.DataFrame], ids=["array", "frame"])
def test_a_validation_table_of_other_columns_is_refused_before_anything_is_fitted(hold):
    X = np.zeros((6, 3))
    with pytest.raises(ValueError, match="must have the columns of X") as raised:
        given_apart(hold(X), hold(X[:, :2].copy()))
    assert not any(digit in str(raised.value) for digit in "0123"), (
        "neither names nor their number"
    )


@pytest.mark.parametrize(
    ("hold", "classes"),
    [(list, ["0", "1"]), (np.array, [0, 1]), (of_objects, [0, 1])],
    ids=["list", "array", "objects"],
)
def test_labels_that_are_texts_of_numbers_stay_texts_but_in_an_array(hold, classes):
    """One of numbers becomes one of texts by one record's text, and of objects by one None."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    labels = ["1" if x > 0 else "0" for x in X[:, 0]]
    search = PrivateSearch(
        LogisticRegression(), {"C": [1.0, 10.0]}, mu=np.inf, n_trials=4, method="released-means"
    )
    with warnings.catch_warnings(action="ignore"):
        search.fit(X, hold(labels))
    assert search.best_estimator_.classes_.tolist() == classes
    assert search.cv_results_["loss"].max() < 0.2


@pytest.mark.parametrize("kind", ["S", "U", int, float, object, bool])
def test_what_lies_under_a_mask_is_no_label(kind):
    labels = np.arange(12) % 2
    whole = np.char.mod("%d", labels).astype(kind) if kind in ("S", "U") else labels.astype(kind)
    masked = np.ma.array(whole, mask=np.arange(12) == PLACE)
    known = of_training(whole, labels=True)
    typed = as_in_training(known, masked, labels=True)
    missing = [label is None or label != label for label in typed.tolist()]
    assert missing == masked.mask.tolist()
    assert np.delete(typed, PLACE).tolist() == np.delete(known, PLACE).tolist()
    trained = of_training(masked, labels=True)
    assert not {*np.ravel(trained)[PLACE : PLACE + 1].tolist()} & {*known.tolist()}


HOLDS = {
    "array": np.array, "bytes": lambda told: np.array(told, dtype="S"), "objects": of_objects,
    "list": list, "series": pd.Series, "category": lambda told: pd.Series(told, dtype="category"),
    "objects in a series": lambda told: pd.Series(told, dtype=object),
}  # fmt: skip


NAMES = ("10", "02139"), ("0", "1"), ("ill", "well"), ("False", "True")
UNITS = {"apart": {}, "blocks": {"protect": "all", "n_blocks": 6}}


@pytest.mark.parametrize(
    ("scored", "unit", "names", "holder"),
    crossed(itertools.product([False, True], UNITS, NAMES, HOLDS), axes=2),
)
def test_the_last_model_and_its_score_take_labels_as_the_fits_did(scored, unit, names, holder):
    X = np.random.default_rng(0).normal(size=(240, 2))
    labels = np.array(names)[(X[:, 0] > 0).astype(int)]
    settings = {"scoring": scores.f1(labels=names)} if scored else {"method": "released-means"}
    settings |= {"mu": np.inf, "n_trials": 2} | UNITS[unit]
    search = PrivateSearch(LogisticRegression(), {"C": [1.0, 10.0]}, **settings)
    given = HOLDS[holder](labels.tolist())
    with warnings.catch_warnings(action="ignore"):
        told = search.fit(X, given).predict(X)
    read = {"False": 0, "True": 1}
    numbers = {read.get(name, name.isdigit() and int(name)) for name in names}
    assert {*told.tolist()} == {*search.classes_.tolist()}
    assert {*told.tolist()} in (numbers, {*names}, {name.encode() for name in names})
    assert search.score(X, given) > 0.9
    assert search.cv_results_["mean_test_score"].min() > 0.9


@pytest.mark.parametrize("labels", [False, True], ids=["X", "y"])
@pytest.mark.parametrize("dtype", [object, "category"])
def test_a_text_that_cannot_be_encoded_trains_like_another(dtype, labels):
    texts = ["red", "green", MAKERS["half a character"]()] * (N // 3)
    if dtype == "category":
        names = pd.Index(texts[:3], dtype=object)
        texts = pd.Categorical.from_codes(np.arange(len(texts)) % 3, names)
    column = pd.Series(texts, dtype=dtype)
    typed = of_training(column if labels else column.to_frame("a"), labels=labels)
    assert len(set(np.ravel(typed))) == 3
    str(np.ravel(typed).tolist()).encode()


CLASSES = {
    "whole numbers": [0, 1, 2], "texts of numbers": ["0", "1"], "truths": [True, False],
    "texts of truths": ["True", "False"], "bytes": [b"no", b"yes"], "texts": ["no", "yes"],
    "bytes of numbers": [b"0", b"1"], "numbers and texts": [1, "a"], "large": [2**60, -1],
    "truths and texts": [True, "a"], "fractions": [0.5, 1.0], "texts of fractions": ["1.0", "2"],
}  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", CLASSES)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@example(odd=lambda: "x")
@example(odd=lambda: b"x")
@example(odd=lambda: None)
@example(odd=lambda: 2)
@example(odd=lambda: 0.5)
@example(odd=lambda: 10**30)
@given(odd=ODD)
def test_one_label_decides_no_type_of_an_array_that_numpy_types(kind, masked, odd):
    def hold(entries):
        made = np.array(entries)
        assume(made.shape == (N,))
        return np.ma.array(made, mask=np.arange(N) == VALID[0]) if masked else made

    first, second = both(hold, lambda i: CLASSES[kind][i % len(CLASSES[kind])], odd)
    X = np.arange(2 * N).reshape(N, 2) / 3
    one, other = (held_out(LogisticRegression(), X, y, {}, **SPLIT) for y in (first, second))
    assert seen_of(other) == seen_of(one)


@pytest.mark.parametrize("odd", [None, "x", b"x", 0.5, 7], ids=str)
@pytest.mark.parametrize(
    "cells", [["lo", "hi"], [b"lo", b"hi"], [True, False], ["0", "1"], [0.5, 1.5]], ids=str
)
@pytest.mark.parametrize("beside", [None, [0.5, 1.5], [True, False], [3, math.nan]], ids=str)
def test_one_cell_of_an_array_that_numpy_types_decides_no_type(beside, cells, odd):
    rows = [[cells[i % 2], (beside or cells)[i // 2 % 2]] for i in range(N)]
    first = np.array(rows)
    rows[VALID[PLACE]][0] = odd
    y = np.arange(N) % 2
    one, other = (
        held_out(LogisticRegression(), X, y, {}, **SPLIT) for X in (first, np.array(rows))
    )
    assert seen_of(other) == seen_of(one)


HOUR, DAY = np.timedelta64(1, "h"), np.datetime64("2020-01-01")
ENTRIES = {
    "spans": [HOUR, 2 * HOUR], "days": [DAY, DAY + 1, np.datetime64("NaT")],
    "complex numbers": [1 + 0j, 2 + 0j, complex("nan")], "long doubles": [np.longdouble("0.1"), 7],
    "documents and numbers": ["good", 5, "bad"], "missing texts": ["a", None, "b"],
    "truths and texts": [True, "a", False], "truths": [True, False],
    "texts nan": ["nan", "b", "c"], "fractions and texts": [1.0, "a"], "a text": [1, 2, "a"],
}  # fmt: skip
SPAN, SECOND = np.timedelta64(360000, "s"), np.datetime64("2020-01-05T00:00:01")


@pytest.mark.parametrize("odd", [None, "x", b"x", 1 + 2j, SPAN, SECOND], ids=repr)
@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("hold", [np.array, lambda e: np.array(e)[:, None]], ids=["1-D", "2-D"])
def test_units_and_kinds_that_numpy_finds_for_all_of_an_array_are_none_of_each(hold, entries, odd):
    if entries == "spans" and odd is SECOND:
        pytest.skip("NumPy makes dates of the spans")
    cells, y = ENTRIES[entries], np.arange(N) % 2
    first, second = both(hold, lambda i: cells[i % len(cells)], lambda: odd)
    one, other = (held_out(LogisticRegression(), X, y, {}, **SPLIT) for X in (first, second))
    assert seen_of(other) == seen_of(one)


@pytest.mark.parametrize("labels", [False, True])
def test_fields_of_an_array_stay_as_they_are(labels):
    known = np.array([(True, 2.0), (False, 3.5)] * 3, dtype=[("event", "?"), ("time", "f8")])
    assert of_training(known, labels=labels) is known
    assert as_in_training(known, known[:2].copy(), labels=labels).tolist() == known[:2].tolist()


@pytest.mark.parametrize("odd", [None, math.nan, 0.5, "x"], ids=str)
def test_one_label_given_apart_is_no_other_text_of_those_that_are_whole_numbers(odd):
    X, y, V = (
        np.arange(2 * N).reshape(N, 2) / 3,
        np.array([0, 1, "unknown"] * (N // 3)),
        [0, 1] * 6,
    )
    one, other = (
        given_records(LogisticRegression(), X, y, X + 1, np.array([*V[:PLACE], label, *V[4:]]), {})
        for label in (V[PLACE], odd)
    )
    assert seen_of(other) == seen_of(one)


class Refusing(complex):
    def __complex__(self):
        raise SystemExit("Jane Doe")


def test_a_complex_record_refuses_nothing_before_a_model_is_fitted():
    """Where training records are protected, too, one of them would decide whether it is."""
    X = np.array([[1 + 2j], [Refusing(1)], [None]], dtype=object)
    known = of_training(X)
    assert known.dtype == complex
    assert known[0, 0] == 1 + 2j
    assert np.isnan(known[1:]).all()
    assert np.isnan(as_in_training(np.array([[0.5]]), X)).all()


def bytes_of_arrow(entries):
    """All of them are bytes where one is."""
    arrow = pytest.importorskip("pyarrow")
    return arrow.array(entries).to_pandas(types_mapper=pd.ArrowDtype)


@pytest.mark.parametrize(
    ("hold", "entries", "odd"),
    [(category, [2**60, 2**60 + 1], 0.5), (bytes_of_arrow, ["lo", "hi"], b"x")],
    ids=["categories of large numbers", "bytes of Arrow"],
)
def test_one_entry_decides_no_type_that_pandas_finds_for_all(hold, entries, odd):
    first, second = both(table(hold), lambda i: entries[i % 2], lambda: odd)
    one, other = (held_out(Ridge(), X, np.zeros(N), {}, **SPLIT) for X in (first, second))
    assert seen_of(other) == seen_of(one)


@pytest.mark.parametrize("odd", [None, 7, 1 + 2j, "x", math.nan, b"x"], ids=str)
@pytest.mark.parametrize(
    "hold", [np.array, lambda entries: pd.DataFrame({"a": entries}).to_numpy()]
)
@pytest.mark.parametrize(
    "entries", [["lo", None, "hi"], [0.5, math.nan], [5, "a film"], [0.5, 1]], ids=str
)
def test_one_cell_of_an_array_decides_neither_what_is_missing_nor_what_is_text(entries, hold, odd):
    cells = [entries[i % len(entries)] for i in range(N)]
    first = hold(cells)
    cells[VALID[PLACE]] = odd
    one, other = (held_out(Ridge(), X, np.zeros(N), {}, **SPLIT) for X in (first, hold(cells)))
    assert seen_of(other) == seen_of(one)


@pytest.mark.parametrize("odd", ["q", 1, None])
def test_a_column_of_texts_and_numbers_has_one_type_whatever_one_record_holds(odd):
    X = pd.DataFrame({"a": [1, "a", 2.0, "b"], "b": range(4)})
    V = pd.DataFrame({"a": ["b", "c", odd], "b": range(3)})
    typed = given_apart(X, V).X_valid
    assert typed["a"].dtype == object
    assert typed["a"].tolist()[:2] == ["b", "c"]


def test_a_date_that_no_training_record_has_warns_of_nothing():
    days = pd.CategoricalDtype(pd.to_datetime(["2020-01-01", "2020-01-02"]))
    X = pd.DataFrame({"a": pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"]), dtype=days)})
    V = pd.DataFrame(
        {"a": pd.Series(pd.to_datetime(["2020-01-01", "2020-01-03"])).astype("category")}
    )
    with warnings.catch_warnings(action="error"):
        given_apart(X, V)


@pytest.mark.parametrize("part", ["X", "y"])
def test_a_table_of_a_package_that_types_all_records_at_once_is_refused(part):
    arrow = pytest.importorskip("pyarrow")
    given = {"X": np.arange(24.0).reshape(12, 2), "y": np.arange(12.0)}
    given[part] = arrow.table({"a": given["y"]}) if part == "X" else arrow.array(given["y"])
    with pytest.raises(ValueError, match=r"A table of pyarrow .* X\.to_pandas\(\)"):
        held_out(Ridge(), *given.values(), {}, **SPLIT)


@pytest.mark.parametrize("groups", [None, [i // 2 for i in range(12)]])
def test_weights_of_another_length_are_refused_before_a_fit_says_how_many_rows_there_are(groups):
    X, y = np.arange(24.0).reshape(12, 2), np.arange(12.0)
    with pytest.raises(ValueError, match="one entry for each row of X") as raised:
        held_out(Ridge(), X, y, {"sample_weight": np.ones(11)}, groups=groups, **SPLIT)
    assert not any(sign.isdigit() for sign in str(raised.value))


def test_times_and_truths_of_a_file_are_those_of_the_others_whatever_one_cell_is():
    truths, days = ["True", "False"] * 6, list(pd.date_range("2020-01-01", periods=N))
    fine = [pd.Timestamp("2020-01-01 00:00:00.123456789"), *days[1:]]
    for one, other in (
        (pd.Series([text == "True" for text in truths]), pd.Series(["unknown", *truths[1:]])),
        (pd.Series(days), pd.Series(fine)),
        (pd.Series(range(2**60, 2**60 + N)), pd.Series([None, *range(2**60 + 1, 2**60 + N)])),
    ):
        made = [
            given_apart(pd.DataFrame({"a": part[1:]}), pd.DataFrame({"a": part}))
            for part in (one, other)
        ]
        assert made[0].X["a"].dtype == made[1].X["a"].dtype
        assert made[0].X["a"].tolist() == made[1].X["a"].tolist()
        assert made[0].X_valid["a"].tolist()[1:] == made[1].X_valid["a"].tolist()[1:]


@pytest.mark.parametrize("dtype", ["string", "string[python]", "Int64", "category", object])
def test_the_users_own_columns_stay_as_they_are(dtype):
    column = pd.Series([1, None, 2] if dtype == "Int64" else ["a", None, "b"], dtype=dtype)
    before = column.copy(deep=True)
    fitting_columns(own_columns(column), column)
    pd.testing.assert_series_equal(column, before)
