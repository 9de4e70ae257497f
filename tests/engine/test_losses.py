"""Per-record losses against scikit-learn and SciPy, record by record, and what bounds say."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize_scalar
from sklearn import metrics

from privbo_plugins import losses
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.errors import NotLossesError

UNIT = st.floats(0.0, 1.0)
REALS = st.floats(-1e6, 1e6)


@st.composite
def binary(draw):
    n = draw(st.integers(1, 20))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 1)))
    return labels, draw(hnp.arrays(np.float64, n, elements=UNIT))


@st.composite
def several(draw):
    n, K = draw(st.integers(1, 10)), draw(st.integers(3, 6))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, K - 1)))
    raw = draw(hnp.arrays(np.float64, (n, K), elements=st.floats(1e-6, 1.0)))
    return labels, raw / raw.sum(1, keepdims=True)


@st.composite
def targets(draw):
    n = draw(st.integers(1, 20))
    numbers = hnp.arrays(np.float64, n, elements=REALS)
    return draw(numbers), draw(numbers)


def each(metric, y, p, **settings):
    """A metric's value on each record alone."""
    return np.array([metric(y[i : i + 1], p[i : i + 1], **settings) for i in range(len(y))])


# Against scikit-learn --------------------------------------------------------------------------


@given(binary())
def test_losses_of_two_classes_are_those_of_scikit_learn(data):
    y, p = data
    brier = each(metrics.brier_score_loss, y, p, labels=[0, 1])
    log = each(metrics.log_loss, y, p, labels=[0, 1])
    for prediction in (p, p[:, None], np.stack([1 - p, p], 1)):
        assert losses.brier(y, prediction) == pytest.approx(brier, abs=1e-12)
        assert losses.log(y, prediction) == pytest.approx(log, rel=1e-9, abs=1e-12)
    label = (p > 0.5).astype(int)
    wrong = each(lambda a, b: 1 - metrics.accuracy_score(a, b), y, label)
    assert losses.zero_one(y, label).tolist() == wrong.tolist()


@given(several())
def test_losses_of_several_classes_are_those_of_scikit_learn(data):
    y, P = data
    K = list(range(P.shape[1]))
    half = each(metrics.brier_score_loss, y, P, labels=K, scale_by_half=True)
    assert losses.brier(y, P) == pytest.approx(half, abs=1e-12)
    log = each(metrics.log_loss, y, P, labels=K)
    assert losses.log(y, P) == pytest.approx(log, rel=1e-9, abs=1e-12)
    names = np.array(list("fbdace"))[: P.shape[1]]
    for loss in (losses.brier, losses.log, losses.bounded_log):
        assert np.array_equal(loss(names[y], P, labels=names), loss(y, P))
        assert np.array_equal(loss(list(names[y]), P.tolist(), labels=list(names)), loss(y, P))
        assert np.array_equal(loss(names[y].astype(object), P, labels=names), loss(y, P))


@given(targets(), st.floats(0.01, 0.99))
def test_losses_of_regressions_are_those_of_scikit_learn(data, q):
    y, p = data
    for loss, metric, more in (
        (losses.squared, metrics.mean_squared_error, {}),
        (losses.absolute, metrics.mean_absolute_error, {}),
        (losses.pinball(q), metrics.mean_pinball_loss, {"alpha": q}),
    ):
        expected = pytest.approx(each(metric, y, p, **more), rel=1e-9, abs=1e-9)
        assert loss(y, p) == expected
        assert loss(y, p[:, None]) == expected, "not every target with every prediction"
        assert loss(y.tolist(), p.tolist()) == expected
        assert np.isnan(loss(y.tolist(), p[:, None].tolist())).all(), "a list is no number"


# What comes in, and what it becomes ------------------------------------------------------------


def name_of(loss):
    """The same in every process that runs a part of the tests."""
    return type(loss).__name__


PROBABILITIES = (losses.brier, losses.log, losses.bounded_log)
NUMBERS = (losses.squared, losses.absolute, losses.pinball(0.3))


class Tensor:
    """What a tensor of torch offers, and no more: numpy() fails before detach and cpu."""

    def __init__(self, values, steps=()):
        self._values, self._steps = np.asarray(values), steps

    def detach(self):
        return Tensor(self._values, (*self._steps, "detach"))

    def cpu(self):
        return Tensor(self._values, (*self._steps, "cpu"))

    def numpy(self):
        assert self._steps == ("detach", "cpu")
        return self._values


WEIGHTED = losses.weighted({0: 0.5, 1: 2.0, "a": 3.0})


@pytest.mark.parametrize(
    "loss", [*PROBABILITIES, *NUMBERS, losses.zero_one, WEIGHTED], ids=name_of
)
def test_every_kind_of_collection_gives_the_same(loss):
    import pandas as pd

    y, p = [0, 1, 1], [0.0, 1.0, 0.0] if isinstance(loss, losses.ZeroOne) else [0.25, 0.5, 1.0]
    expected = loss(np.array(y), np.array(p))
    assert expected.dtype == np.float64
    assert expected.shape == (3,)
    for kind in (list, tuple, pd.Series, Tensor, lambda v: np.ma.array(v), lambda v: pd.array(v)):
        assert np.array_equal(loss(kind(y), kind(p)), expected)
    assert np.array_equal(loss(np.array(y, np.int8), np.array(p, np.float32)), expected)


ODD = [math.nan, math.inf, -math.inf, None, "x", -0.1, 1.1, 1e300]


class Shouts:
    """A label whose own code quotes it."""

    def __eq__(self, other):
        raise RuntimeError("Jane Doe")

    __hash__ = None


LAST = np.ma.array([1.0, 1.0], mask=[False, True])
ROWS = [[1.0, 1.0], [0.5, 0.5], [0.0, 0.0], [0.5, 0.4], [0.5004, 0.5]]
THREE = [[0.5, 0.25, 0.25], [0.5, 0.5], 0.5]
MISSING = [
    *((losses.squared, [1.0, 2.0], [0.5, odd], {}, [False, True]) for odd in (*ODD[:5], 1e300)),
    *((losses.squared, [1.0, odd], [0.5, 0.5], {}, [False, True]) for odd in (*ODD[:5], 1e300)),
    *((losses.zero_one, [0, 1], [0, odd], {}, [False, True]) for odd in (math.nan, None)),
    *((losses.zero_one, ["a", odd], ["a", "b"], {}, [False, True]) for odd in (math.nan, None)),
    *((loss, [0, 1], LAST, {}, [False, True])
      for loss in (*PROBABILITIES, *NUMBERS, losses.zero_one, WEIGHTED)),
    *((loss, LAST, [1.0, 1.0], {}, [False, True])
      for loss in (*PROBABILITIES, *NUMBERS, losses.zero_one, WEIGHTED)),
    *((loss, y, p, {}, [False, True]) for loss in PROBABILITIES for odd in ODD for y, p in (
        ([0, 1], [0.25, odd]), ([0, 1], [[0.75, 0.25], [odd, 0.5]]), ([0, odd], [0.25, 0.5]),
    )),
    # Otherwise a model that says 1 for every class would be the best.
    *((loss, [1] * 5, ROWS, {}, [True, False, True, True, False]) for loss in PROBABILITIES),
    *((loss, [1, 1], [[0.5, 0.5], [0.5]], {}, [False, True]) for loss in PROBABILITIES),
    (losses.zero_one, np.array(["a", Shouts()], dtype=object), ["a", "a"], {}, [False, True]),
    (losses.brier, [0, Shouts()], [0.5, 0.5], {}, [False, True]),
    (WEIGHTED, ["a", "b", None, Shouts()], ["b", "b", "b", "b"], {}, [False, True, True, True]),
    # What fits nothing is NaN in its own place, also if that is every place.
    (losses.squared, [[1.0, 2.0]] * 2, [1.0] * 2, {}, [True, True]),
    (losses.zero_one, [0, 1], [[0.5, 0.5], [0.5, 0.5]], {}, [True, True]),
    (losses.zero_one, ["a", "b"], [0, 1], {}, [False, False]),
    (losses.brier, ["a", "b"], [0.5, 0.5], {}, [True, True]),
    (losses.brier, [0, 0, 0], THREE, {}, [True, False, False]),
    (losses.brier, [0, 0, 0], THREE, {"labels": [0, 1, 2]}, [False, True, True]),
]  # fmt: skip
"""A loss, what it gets, and which of its values are missing."""


def test_a_list_has_no_type_and_no_width_that_a_record_could_decide():
    """What one record holds is NaN in its own place, and nothing that it does gets out."""
    for loss, y, p, more, missing in MISSING:
        assert np.isnan(loss(y, p, **more)).tolist() == missing, (loss, y, p)
    assert losses.squared([1.0, 2.0], [0.5, None])[0] == 0.25


TEXTS = np.array(["a", "b"])

SECRET = 0.8371625
WRONG = [
    (lambda: losses.squared([1.0, 2.0], [1.0]), "y_true has 2 of them, prediction 1"),
    (lambda: losses.squared([SECRET, SECRET], [SECRET]), "y_true has 2 of them"),
    (lambda: losses.zero_one([SECRET], np.array([[SECRET, SECRET]])), "argmax"),
    (lambda: losses.brier([SECRET], np.full((1, 1, 1), SECRET)), "one value a record"),
    (lambda: losses.squared(SECRET, SECRET), "y_true must be a non-empty array"),
    (lambda: losses.squared([], []), "y_true must be a non-empty array"),
    (lambda: losses.squared(np.ones((2, 2)), np.ones(2)), r"shape \(2, 2\)"),
    (lambda: losses.zero_one([0, 1], np.ones((2, 3))), "argmax"),
    (lambda: losses.log([0], np.array([[0.2, 0.8]]), labels=[0, 1, 2]), "the 2 columns.*got 3"),
    (lambda: losses.log([0], np.array([0.8]), labels=[0, 1, 2]), "the 2 columns.*got 3"),
    (lambda: losses.brier([0], None), "prediction must be a non-empty"),
    (lambda: losses.brier([0], {"a": 1}), "prediction must be a non-empty"),
]


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_other_shapes_are_refused_with_the_way_out(call, text):
    with pytest.raises(NotLossesError, match=text) as refused:
        call()
    assert "8371" not in str(refused.value)


def test_labels_that_numpy_can_tell_apart_are_told_apart_in_lists():
    large = 2**53
    assert losses.zero_one([large, True, "1"], [large + 1, 1.0, b"1"]).tolist() == [1.0, 0.0, 0.0]
    assert losses.brier([large], [[1.0, 0.0]], labels=[large, large + 1]).tolist() == [0.0]


# Bounds ----------------------------------------------------------------------------------------


@given(binary(), several())
def test_bounded_losses_stay_within_their_bound(two, more):
    for y, p in (two, more):
        for loss in (losses.brier, losses.bounded_log):
            found = loss(y, p)
            assert (found >= 0.0).all()
            assert (found <= loss.loss_bound).all()
    assert losses.zero_one.loss_bound == losses.brier.loss_bound == 1
    worst = [1.0, 0.0]
    assert losses.zero_one([1], [0]).tolist() == losses.brier([0, 1], worst).tolist()[:1] == [1.0]
    assert losses.bounded_log([0, 1], worst).tolist() == [1.0, 1.0]


@given(binary())
def test_an_error_weighs_as_much_as_its_true_label(data):
    y, p = data
    label = (p > 0.5).astype(int)
    expected = np.where(y == label, 0.0, np.where(y == 1, 2.0, 0.5))
    assert WEIGHTED(y, label).tolist() == expected.tolist()
    assert (WEIGHTED(y, label) <= WEIGHTED.loss_bound).all()
    assert WEIGHTED.settings() == {"loss_bound": 3.0, "clipping_norm": 3.0}


@pytest.mark.parametrize("weight", [0, -1.0, math.nan, math.inf, "1", True, None])
def test_a_weight_is_a_positive_number(weight):
    with pytest.raises(ValueError, match="A weight must be a number in"):
        losses.weighted({"well": 1.0, "ill": weight})


@given(REALS, st.floats(1e-3, 1e6), UNIT, UNIT, st.floats(0.01, 0.99))
def test_no_target_and_prediction_in_the_range_lose_more_than_the_bound(low, width, a, b, q):
    high = low + width
    y, p = (min(low + u * width, high) for u in (a, b))
    for loss in (losses.squared, losses.absolute, losses.pinball(q)):
        bound = loss.bound(low, high)
        assert loss([y], [p])[0] <= bound * (1 + 1e-12)
        reached = max(loss([low, high], [high, low]))
        assert reached == pytest.approx(bound, rel=1e-9), "and the bound is reached"


@given(st.floats(1e-3, 1.0), st.floats(1.0, 1e3), st.floats(1e-3, 1e3))
def test_settings_change_with_the_unit_of_the_target_as_the_loss_does(spread, width, unit):
    for loss, power in ((losses.squared, 2), (losses.absolute, 1), (losses.pinball(0.9), 1)):
        one = loss.settings(0.0, width, spread=spread)
        other = loss.settings(0.0, width * unit, spread=spread * unit)
        for name in ("loss_bound", "clipping_norm"):
            assert other[name] == pytest.approx(one[name] * unit**power, rel=1e-6)
        assert one["loss_bound"] <= loss.bound(0.0, width) * (1 + 1e-12)
        default = loss.settings(0.0, width)
        assert default == loss.settings(0.0, width, spread=width / 4)


def test_a_sampler_takes_the_settings_of_every_loss():
    for taken in (
        losses.zero_one.settings(),
        losses.brier.settings(),
        losses.log.settings(floor=0.01),
        losses.bounded_log.settings(),
        losses.squared.settings(-5, 5),
        losses.absolute.settings(-5, 5, spread=1),
        losses.pinball(0.9).settings(-5, 5),
    ):
        config = GIBOConfig(mu=1.0, **taken)
        assert config.value_range == (0.0, taken["loss_bound"])
        assert json.loads(json.dumps(config.to_dict())) == config.to_dict()
    assert losses.log.settings(floor=0.01)["loss_bound"] == pytest.approx(math.log(100))


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan, "x", True, None])
def test_settings_outside_their_range_are_refused(bad):
    for call, name in (
        (lambda: losses.log.bound(floor=bad), "floor"),
        (lambda: losses.pinball(bad), "q"),
        (lambda: losses.bounded_log([0], [0.5], smoothing=bad), "smoothing"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be a number in"):
            call()
    for ends in ((1, 0), (0, 0), (0, math.inf), (math.nan, 1), ("0", 1), (True, 2), (None, 1)):
        for regression in (losses.squared.bound, losses.absolute.settings):
            with pytest.raises(ValueError, match="finite y_low < y_high"):
                regression(*ends)
    for spread in (0.0, -1.0, math.nan, math.inf, "1", True):
        with pytest.raises(ValueError, match="spread must be a number in"):
            losses.squared.settings(0, 1, spread=spread)


# The link --------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20), st.floats(1e-6, 0.5))
def test_bounded_log_grows_with_log_loss(p, e):
    y = np.ones(len(p), dtype=int)
    order = np.argsort(p)[::-1]
    found = losses.bounded_log(y, p, smoothing=e)[order]
    assert (np.diff(found) >= 0).all()
    # The definition, from scratch: -ln of the mixture, brought to [0, 1].
    q = (1 - e) * np.array(p)[order] + e / 2
    least, most = -math.log(1 - e / 2), -math.log(e / 2)
    assert found == pytest.approx((-np.log(q) - least) / (most - least), abs=1e-9)


@given(st.floats(0.0, 1.0), st.sampled_from([1e-3, 2e-3, 0.05]))
def test_the_minimiser_of_bounded_log_is_where_its_docstring_says(r, e):
    def mean(p):
        own = losses.bounded_log([1, 0], [p, p], smoothing=e)
        return float(r * own[0] + (1 - r) * own[1])

    numeric = minimize_scalar(mean, bounds=(0, 1), method="bounded", options={"xatol": 1e-9}).x
    said = min(max((r - e / 2) / (1 - e), 0.0), 1.0)
    assert numeric == pytest.approx(said, abs=1e-4)
    assert abs(said - r) <= e / (1 - e)


# What a plan says, and what an import costs -----------------------------------------------------


@pytest.mark.parametrize("missing", [False, True])
def test_a_missing_label_of_a_type_that_knows_it_changes_no_other(missing):
    """As an array of numpy's, labels of pandas and of pyarrow are floats where one is missing."""
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    large = 2**53 + 1
    told = [large, None if missing else 5]
    series = pandas.Series(told, dtype="Int64")
    for labels in (series, series.to_frame(), arrow.array(told)):
        assert losses.zero_one(labels, [large, 5])[0] == 0.0
    yes = pandas.Series([True, None if missing else False], dtype="boolean")
    assert losses.zero_one(yes, np.array(["a", "b"]))[0] == 1.0


# One loss a record of a model; test_torch.py has torch itself ------------------------------------


SEQUENTIAL, BATCHES = (
    type(name, (list,), {"__module__": "torch.utils.data.sampler"})
    for name in ("SequentialSampler", "BatchSampler")
)
"""Classes with the names of torch's samplers."""


class Loader:
    """What is used of a DataLoader over the records 0 ... 9, in batches of 4.

    Args:
        order: Of its records.
        numbered: Whether it gives each record's number.
        sampler: Its sampler, if that is not torch's sequential one.
        more: Attributes.
    """

    dataset = range(10)
    in_order = True

    def __init__(self, order=dataset, numbered=False, sampler=None, **more):
        order = list(order)
        self.batch_sampler = BATCHES(order[start : start + 4] for start in range(0, len(order), 4))
        self.batch_sampler.sampler = SEQUENTIAL() if sampler is None else sampler
        self.numbered = numbered
        self.__dict__.update(more)

    def __iter__(self):
        for numbers in self.batch_sampler:
            batch = np.array(numbers, float)
            yield batch, batch % 2, *[numbers] * self.numbered


class Model:
    """What is used of a module: two parts, one of which was frozen, and a mode that matters."""

    def __init__(self):
        self.training, self.frozen, self.calls = True, SimpleNamespace(training=False), 0

    def modules(self):
        return [self, self.frozen]

    def parameters(self):
        return iter(())

    def eval(self):
        self.training = False

    def __call__(self, x):
        assert not self.training
        self.calls += 1
        return x / 2


ANOTHER = "a sampler"
"""It is none of torch's sequential ones."""


@pytest.mark.parametrize("loader", [
    Loader(), Loader(numbered=True), Loader(range(9, -1, -1), numbered=True, sampler=ANOTHER),
    Loader([3, *range(3), *range(4, 10)], numbered=True, in_order=False),
])  # fmt: skip
def test_a_model_is_evaluated_on_each_record_and_keeps_its_mode(loader):
    model = Model()
    given = losses.per_record(losses.absolute, model, loader)
    assert given.tolist() == [abs(i / 2 - i % 2) for i in range(10)]
    assert (model.training, model.frozen.training) == (True, False)


LIKE = type("SequentialSampler", (), {})
"""A class of the user's own with the name of torch's."""


@pytest.mark.parametrize("loader", [
    Loader(sampler=ANOTHER), Loader(sampler=LIKE()), Loader(batch_sampler=[[3, 1], [0, 2]]),
    Loader(in_order=False), [(np.zeros(4), np.zeros(4))],
])  # fmt: skip
def test_a_loader_whose_order_is_not_known_is_refused(loader):
    model = Model()
    with pytest.raises(ValueError, match="shuffle=False, drop_last=False and in_order=True"):
        losses.per_record(losses.absolute, model, loader)
    assert (model.training, model.calls) == (True, 0)


@pytest.mark.parametrize("order", [range(9), [*range(9), 8], [*range(9), 8.5], range(1, 11)])
@pytest.mark.parametrize("numbered", [False, True])
def test_each_record_of_the_data_set_comes_once(order, numbered):
    with pytest.raises(ValueError, match="from 0 to n - 1, once"):
        losses.per_record(losses.absolute, Model(), Loader(order, numbered))


def test_a_stream_has_no_order():
    for loader in (Loader(numbered=True, dataset=iter(())), [*Loader(numbered=True)]):
        with pytest.raises(ValueError, match="from 0 to n - 1, once"):
            losses.per_record(losses.absolute, Model(), loader)


def mixed(output, y):
    """As many values as there are records in all, but not in each batch."""
    mixed.calls += 1
    return [0.0] * {1: 3, 2: 5}.get(mixed.calls, len(y))


mixed.calls = 0


@pytest.mark.parametrize("loss", [
    lambda output, y: (output - y).mean(), lambda output, y: output - y[:, None],
    lambda output, y: (output - y)[1:], lambda output, y: [], lambda output, y: None, mixed,
])  # fmt: skip
def test_a_loss_that_mixes_or_loses_records_is_refused(loss):
    model = Model()
    with pytest.raises(NotLossesError, match="one value a record"):
        losses.per_record(loss, model, Loader())
    assert model.training


@given(
    st.one_of(
        hnp.arrays(st.sampled_from([np.int64, np.uint8, np.bool_]), st.integers(0, 9)),
        hnp.arrays(np.dtype("U3"), st.integers(0, 9)),
    ),
    st.data(),
)
def test_labels_of_a_typed_array_have_the_places_that_entry_by_entry_they_have(y, data):
    own = st.text(max_size=2).filter(lambda text: "\0" not in text)
    other = own if y.dtype.kind == "U" else st.integers(-3, 300)
    known = data.draw(st.lists(st.one_of(st.sampled_from(y.tolist() or [0]), other), max_size=4))
    if y.dtype.kind == "U":
        known = [label for label in known if isinstance(label, str)]
    names = np.array([*known, None], dtype=object)[:-1]
    slowly = losses._columns(np.array([*y.tolist(), None], dtype=object)[:-1], names)
    assert losses._columns(y, names).tolist() == slowly.tolist()
