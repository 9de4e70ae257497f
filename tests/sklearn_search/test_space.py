"""What people write as a search space, in the engine's dimensions and in those of both hosts."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy import stats

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.spaces import Categorical, Float, Int
from tests.inside import search_space_of


def without_addresses(part):
    """A test's name is the same in every process."""
    return None if " at 0x" in repr(part) or "__main__" in repr(part) else repr(part)[:50]


KNOWN = [
    (FloatDistribution(1e-2, 1e3, log=True), Float(1e-2, 1e3, log=True)),
    (FloatDistribution(0, 1, step=0.25), Float(0, 1, step=0.25)),
    (IntDistribution(1, 64, log=True), Int(1, 64, log=True)),
    (IntDistribution(2, 10, step=2), Int(2, 10, step=2)),
    (CategoricalDistribution(["a", None]), Categorical(("a", None))),
    (stats.uniform(2, 3), Float(2.0, 5.0)),
    (stats.uniform(loc=-1, scale=2), Float(-1.0, 1.0)),
    (stats.uniform(), Float(0.0, 1.0)),
    (stats.loguniform(1e-5, 1), Float(1e-5, 1.0, log=True)),
    (stats.reciprocal(1e-5, 1), Float(1e-5, 1.0, log=True)),
    (stats.loguniform(1, 10, scale=2), Float(2.0, 20.0, log=True)),
    (stats.randint(1, 9), Int(1, 8)),
    (stats.randint(0, 3, loc=10), Int(10, 12)),
    (["gini", "entropy"], Categorical(("gini", "entropy"))),
    ((3, 2.5, True, None), Categorical((3, 2.5, True, None))),
    ([1e-3, 0.5], Categorical((1e-3, 0.5))),
    (CategoricalDistribution((1, 2)), Categorical((1, 2))),
    ((True, False), Categorical((True, False))),
    ((1, "auto"), Categorical((1, "auto"))),
    (np.array([0.5, 2.0]), Categorical((0.5, 2.0))),
    ([np.float64(0.5), np.int64(2)], Categorical((0.5, 2))),
]


@pytest.mark.parametrize(("given", "dimension"), KNOWN, ids=without_addresses)
def test_what_is_written_is_what_is_searched(given, dimension):
    found = search_space_of({"p": given, "other": [1, 2]})
    assert found.dimensions["p"] == dimension
    if isinstance(dimension, Categorical):
        assert [type(c) for c in found.dimensions["p"].choices] == [
            type(c) for c in dimension.choices
        ]
        assert found.decoded({"p": dimension.choices[0]}) == {"p": dimension.choices[0]}


@pytest.mark.parametrize(
    "given", [stats.uniform(2, 3), stats.loguniform(1, 9), stats.randint(1, 9)]
)
def test_a_range_is_where_scipy_draws_from(given):
    dim = search_space_of({"p": given}).dimensions["p"]
    drawn = given.rvs(size=2000, random_state=0)
    assert not isinstance(dim, Categorical)
    assert dim.low <= drawn.min()
    assert drawn.max() <= dim.high
    assert (dim.high - dim.low) < 1.05 * (drawn.max() - drawn.min())


STRANGE = [
    (stats.norm(), "scipy.stats.norm, and a private search needs a range"),
    (stats.expon(), "scipy.stats.expon"),
    (stats.loguniform(1, 10, loc=2), "with loc="),
    (stats.uniform, "no distribution that is known"),
    (0.5, "no distribution that is known"),
    ("gini", "no distribution that is known"),
    ({"a": 1}, "no distribution that is known"),
    ([], "is empty"),
    ((1e-3, 0.5), "FloatDistribution(0.001, 0.5, log=True), and choices as the list [0.001, 0.5]"),
    ((np.float64(0), 1), "FloatDistribution(0.0, 1), and choices as the list [0.0, 1]"),
    ((9, 1), "IntDistribution(1, 9), and choices as the list [9, 1]"),
    ((1e-6, 1e2, "log-uniform"), "FloatDistribution(1e-06, 100.0, log=True)"),
    ([(1, 2), (1, 2)], "lists a choice twice"),
    (np.ones((2, 2)), "no distribution that is known"),
]


@pytest.mark.parametrize(("given", "words"), STRANGE, ids=without_addresses)
def test_what_cannot_be_translated_is_refused_with_what_can(given, words):
    with pytest.raises(ValueError, match=r"param_distributions\['p'\]") as refused:
        search_space_of({"p": given, "other": [1, 2]})
    assert words in str(refused.value)


def test_another_distribution_of_optunas_is_refused():
    class Later(BaseDistribution):
        def to_internal_repr(self, value):
            return 0.0

        def to_external_repr(self, value):
            return value

        def single(self):
            return False

        def _contains(self, value):
            return True

    Later.__module__ = "optuna.distributions"
    with pytest.raises(ValueError, match="none of Optuna's present ones"):
        search_space_of({"p": Later()})


def test_a_space_of_constants_is_refused():
    with pytest.raises(ValueError, match="at least one parameter that varies"):
        search_space_of({"p": [1], "q": IntDistribution(2, 2)})


def test_choices_of_plain_values_are_told_by_what_they_hold():
    given = [{0: 1, 1: 5}, {0: 1, 1: (5, None)}, [1, (2.5, "a")], "auto"]
    found = search_space_of({"p": given})
    assert found.dimensions["p"].choices == tuple(map(repr, given))
    assert [found.decoded({"p": repr(choice)})["p"] for choice in given] == given


def test_of_an_object_nothing_but_its_type_is_stored():
    class Secret:
        def __repr__(self):
            return "Jane Doe, 1970"

    one, other = Secret(), Secret()
    found = search_space_of({"p": [one, other, len, (1, one)]})
    labels = found.dimensions["p"].choices
    assert labels == ("0: Secret", "1: Secret", "2: len", "3: tuple")
    assert found.decoded({"p": "1: Secret"})["p"] is other


TUNE = [
    (FloatDistribution(1e-2, 1e3, log=True), ""),
    (FloatDistribution(0.5, 2, step=0.25), ""),
    (FloatDistribution(1, 8, step=1, log=False), ""),
    (IntDistribution(1, 64, log=True), ""),
    (IntDistribution(1, 5), ""),
    (IntDistribution(2, 10, step=2), ""),
    (IntDistribution(3, 3), ""),
    ([(1,), (2, 3)], ""),
    (FloatDistribution(0.1, 0.9, step=0.2), "no multiple of its step"),
    (IntDistribution(1, 9, step=2), "no multiple of its step"),
]


@pytest.mark.parametrize(("given", "words"), TUNE, ids=without_addresses)
def test_on_ray_the_same_space_is_searched_or_it_is_refused(given, words):
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    from raytune_searchers._space import domains_of
    from sklearn_search._ray import domain

    dim = search_space_of({"p": given, "other": [1, 2]}).dimensions["p"]
    if words:
        with pytest.raises(ValueError, match=words):
            domain("p", dim)
        return
    assert domains_of({"p": domain("p", dim)})["p"] == dim


# The incumbent ----------------------------------------------------------------------------------


def test_equal_choices_of_several_types_go_by_labels():
    """Optuna takes the first of equal choices: 1 for True, and for 1.0."""
    found = search_space_of({"p": (1, True, 1.0, None)})
    assert found.dimensions["p"] == Categorical(("1", "True", "1.0", "None"))
    labels = found.dimensions["p"].choices
    assert [found.decoded({"p": label})["p"] for label in labels] == [1, True, 1.0, None]
    assert type(found.decoded({"p": "True"})["p"]) is bool


OBJECTS = [stats.norm, stats.uniform]
"""Choices that go by a label."""

OWN = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.floats(),
    st.integers(-9, 99),
    st.sampled_from(["scale", np.float64(0.5), np.zeros(2), *OBJECTS]),
)


INSIDE = {"C": 1.0, "depth": 3, "kernel": "rbf", "step": stats.norm}


@given(st.fixed_dictionaries({name: st.just(own) | OWN for name, own in INSIDE.items()}))
@example(INSIDE)
@example(INSIDE | {"depth": 99})
def test_an_estimator_s_own_parameters_count_if_all_lie_in_the_ranges(own):
    """With the middle for one that lies elsewhere they would be settings never in use."""
    space = {
        "C": stats.loguniform(1e-2, 1e2),
        "depth": stats.randint(1, 9),
        "kernel": ["rbf", None, 3],
        "step": OBJECTS,
    }
    parameters = search_space_of(space)
    with warnings.catch_warnings(record=True, action="always") as told:
        found = parameters.incumbent("auto", own)
    number = {n: isinstance(v, int | float) and not isinstance(v, bool) for n, v in own.items()}
    inside = {
        "C": number["C"] and 1e-2 <= own["C"] <= 1e2,
        "depth": number["depth"] and own["depth"] in range(1, 9),
        "kernel": own["kernel"] is None or own["kernel"] in ("rbf", 3)
        if not isinstance(own["kernel"], np.ndarray)
        else False,
        "step": any(own["step"] is choice for choice in OBJECTS),
    }
    assert found.keys() == (inside.keys() if all(inside.values()) else set())
    outside = [name for name in ("C", "depth") if number[name] and not inside[name]]
    assert [str(one.message).split("=")[0] for one in told] == [
        f"The estimator has {name}" for name in outside
    ]
    decoded = parameters.decoded(found)
    assert all(decoded[name] is own[name] or decoded[name] == own[name] for name in found)
    parameters.space.incumbent(found)  # which is a point of the space
    json.dumps(GIBOConfig(1.0, incumbent=found).to_dict())


def test_an_incumbent_of_one_s_own_names_the_objects_that_are_listed():
    parameters = search_space_of({"step": OBJECTS, "C": [1, 2]})
    assert parameters.incumbent(None, {"C": 2}) == {}
    given = parameters.incumbent({"step": stats.uniform}, {"C": 2})
    assert parameters.decoded(given) == {"step": stats.uniform}
    with pytest.raises(ValueError, match="step what is none of its 2 choices"):
        parameters.incumbent({"step": stats.beta}, {})
