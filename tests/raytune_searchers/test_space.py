"""Tune's domains in the engine's terms, with Tune's own sampling as the oracle."""

import copy
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import tune
from ray.tune.impl.placeholder import (
    create_resolvers_map,
    inject_placeholders,
    resolve_placeholders,
)

from raytune_searchers._space import holds_placeholder, to_space


class Thing:
    """Compares by identity, as most objects do."""

    def __init__(self, size):
        self.size = size


def converted(config):
    space = to_space(config)
    return space


def test_choices_stay_in_their_order_and_keep_their_types():
    space = converted({"a": tune.choice([1, True, 1.0, "1", None, (1,), [1]])})
    values = [space.suggestion([i])["a"] for i in range(7)]
    assert values == [1, True, 1.0, "1", None, (1,), [1]]
    assert [type(v) for v in values] == [int, bool, float, str, type(None), tuple, list]
    assert [float(space.encode({"a": v})[0]) for v in values] == [0, 1, 2, 3, 4, 5, 6]


def test_a_space_without_a_domain_that_varies_is_none():
    assert to_space({}) is None
    assert to_space({"a": 1, "b": {"c": [1, 2]}}) is None
    assert to_space({"a": tune.choice(["only"]), "b": tune.randint(3, 4)}) is None


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (tune.uniform(2.0, 2.0), 2.0),
        (tune.randint(3, 4), 3),
        (tune.qrandint(5, 9, 4), 8),
        (tune.choice(["only"]), "only"),
    ],
)
def test_a_domain_with_a_single_value_is_fixed_and_still_suggested(domain, value):
    space = converted({"n": {"single": domain}, "x": tune.uniform(0, 1)})
    assert space.fixed == {"n/single": value}
    assert space.space.names == ("x",)
    assert space.suggestion([0.25]) == {"n": {"single": value}, "x": 0.25}
    drawn = domain.sample(size=50, random_state=np.random.default_rng(5))
    assert all(one == value or one == pytest.approx(value) for one in drawn)


UNFIT = [
    ({"a": tune.grid_search([1, 2])}, r"grid_search.*\(a\)"),
    ({"a": tune.sample_from(lambda spec: 1)}, "'a' is a Function domain"),
    ({"a": {"eval": "1 + 1"}}, "'a' is a Function domain"),
    ({"a": tune.randn(0, 1)}, "'a' is a Float domain.*bounded"),
    ({"n": {"a": tune.randn(0, 1)}}, "'n/a' is a Float domain"),
    ({"a": [1, tune.uniform(0, 1)]}, "inside a list"),
    ({"a": tune.choice([tune.uniform(0, 1), 2])}, "'a' is a choice between domains"),
    ({"a": tune.choice([tune.grid_search([1, 2]), 2])}, "'a' is a choice between domains"),
    ({"n": {"a/b": tune.uniform(0, 1)}}, "may not hold '/'"),
    ({"a": tune.qrandint(1, 10, 20)}, "'a' has no multiple of q=20 in"),
]


@pytest.mark.parametrize(("config", "message"), UNFIT)
def test_what_has_no_place_in_a_plan_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        to_space(config)


def test_a_function_is_refused_as_the_tuner_shows_it():
    config = {"a": tune.sample_from(lambda spec: 1), "x": tune.uniform(0, 1)}
    with pytest.raises(ValueError, match="'a'"):
        to_space(inject_placeholders(config, create_resolvers_map()))


POINTS = {
    "x": tune.uniform(0.0, 1.0),
    "n": {"y": tune.loguniform(1e-2, 1.0), "k": tune.qrandint(0, 9, 3)},
    "c": tune.choice(["p", "q"]),
    "one": tune.randint(4, 5),
    "constant": 3,
}


GOOD = {"x": 0.25, "n": {"y": 0.1, "k": 6}, "c": "q"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": {"y": 0.1}}, "'n/k'.*missing"),
        ({"z": 1}, "names z"),
        ({"n": {"y": 0.1, "k": 6, "z": 1}}, "names n/z"),
        ({"x": 1.5}, r"x=1\.5"),
        ({"x": math.nan}, "x=nan"),
        ({"x": "0.5"}, "x='0.5'"),
        ({"x": True}, "x=True"),
        ({"n": {"y": 0.1, "k": 12}}, "n/k=12"),
        ({"c": "r"}, "'c' is none of its 2"),
        ({"one": 5}, "one=5"),
    ],
)
def test_a_point_outside_the_space_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        converted(POINTS).checked_point(GOOD | change)


def test_a_config_without_a_parameter_has_no_point():
    space = converted(POINTS)
    with pytest.raises(ValueError, match=r"'n/y'.*missing"):
        space.encode(GOOD | {"n": {"k": 6}})
    with pytest.raises(ValueError, match=r"'n/k'.*missing"):
        space.encode(GOOD | {"n": None})


def test_a_choice_that_was_pickled_on_its_way_is_recognised():
    things = [Thing(1), Thing(2), Thing(3)]
    space = converted({"a": tune.choice(things), "x": tune.uniform(0, 1)})
    assert space.suggestion([1, 0.5])["a"] is things[1]
    config = cloudpickle.loads(cloudpickle.dumps({"a": things[2], "x": 0.5}))
    assert config["a"] not in things
    assert space.encode(config).tolist() == [2, 0.5]


def test_a_choice_that_is_not_recognised_is_the_one_that_was_handed():
    space = converted({"a": tune.choice([Thing(1), Thing(2)]), "x": tune.uniform(0, 1)})
    config = {"a": Thing(9), "x": 0.5}
    assert space.encode(config, np.array([1.0, 0.0])).tolist() == [1, 0.5]
    with pytest.raises(ValueError, match="'a' is none of its 2 declared choices"):
        space.encode(config)


@pytest.mark.parametrize(
    "choices",
    [
        [np.array([1.0, 2.0]), np.array([1.0, 3.0])],
        [np.sin, np.cos],
        [dict, list],
        [{"k": [1, 2]}, {"k": [1, 3]}],
        [lambda z: z, lambda z: 2 * z],
        [math.nan, None],
        [frozenset("abc"), frozenset("abd")],
    ],
    ids=["arrays", "functions", "classes", "dicts", "lambdas", "nan", "sets"],
)
def test_choices_that_are_objects_are_told_apart(choices):
    space = converted({"a": tune.choice(choices)})
    for index, choice in enumerate(choices):
        assert space.suggestion([index])["a"] is choice
        assert space.encode({"a": choice}).tolist() == [index]
        assert space.encode_flat({"a": choice}).tolist() == [index]


def test_the_public_space_shows_descriptions_and_the_same_coordinates():
    space = converted({"a": tune.choice([Thing(1), np.sin, "s" * 200]), "x": tune.uniform(0, 1)})
    public = space.public
    assert public.names == space.space.names
    assert public["x"] == space.space["x"]
    described = public["a"]
    assert [text[:3] for text in described.choices] == ["0: ", "1: ", "2: "]
    assert all(isinstance(text, str) and len(text) < 100 for text in described.choices)
    assert "Thing" in described.choices[0]
    assert "0x" not in "".join(described.choices)


PUBLIC = """
import functools, json, math
import numpy as np
from ray import tune
from raytune_searchers._space import to_space

class Thing:
    pass

space = to_space({
    "objects": tune.choice([Thing(), [Thing()], Thing, functools.partial(print, Thing())]),
    "functions": tune.choice([lambda z: z, math.sin, np.tanh, len]),
    "plain": tune.choice(["a", 1, None, 2.5, ("b", 3)]),
    "dicts": tune.choice([{"b": 1, "a": 2}, {}]),
    "sets": tune.choice([{"alpha", "beta", "gamma"}, frozenset({"delta", "epsilon", "zeta"})]),
    "x": tune.uniform(0, 1),
})
print(json.dumps(space.public.to_dict()))
"""


def test_the_public_space_is_the_same_in_every_process(capsys):
    exec(PUBLIC, {"__name__": "__main__"})
    here = json.loads(capsys.readouterr().out)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PUBLIC],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    there = json.loads(done.stdout)
    assert not {name: (here[name], there[name]) for name in here if here[name] != there[name]}


def test_the_placeholders_of_tune_are_recognised():
    config = {"f": tune.choice([np.sin, np.cos]), "n": {"g": Thing(1)}, "l": [Thing(2)], "k": 5}
    hidden = inject_placeholders(copy.copy(config), create_resolvers_map())
    assert holds_placeholder(hidden)
    for name in ("f", "n", "l"):
        hides = hidden[name].categories if name == "f" else hidden[name]
        assert holds_placeholder(hides), name
    assert not holds_placeholder(hidden["k"])


def test_a_choice_behind_a_placeholder_is_suggested_and_resolved_by_tune():
    config = {"f": tune.choice([np.sin, np.cos]), "x": tune.uniform(0, 1)}
    resolvers = create_resolvers_map()
    driver = converted(inject_placeholders(copy.copy(config), resolvers))
    suggestion = driver.suggestion([1, 0.5])
    assert holds_placeholder(suggestion)
    assert driver.encode(suggestion).tolist() == [1, 0.5]
    resolve_placeholders(suggestion, resolvers)
    assert suggestion["f"] is np.cos
    assert driver.encode(suggestion, np.array([1.0, 0.5])).tolist() == [1, 0.5]


@pytest.mark.parametrize(
    "value",
    [1, "__fn_ph", None, {"a": ["__fn_ph", "x"]}, ("a", "b"), ("__fn_ph",), [1, (2, 3)], {}, []],
)
def test_what_is_no_placeholder_is_not_taken_for_one(value):
    assert not holds_placeholder(value)


@st.composite
def domains(draw):
    """A bounded numeric domain of any kind."""
    kind = draw(st.sampled_from(["float", "int"]))
    log, q = draw(st.booleans()), draw(st.sampled_from([None, 1, 2, 3, 5]))
    low = draw(st.integers(1 if log else -50, 60))
    high = low + draw(st.integers(1, 80))
    if kind == "int":
        if q is None:
            return tune.lograndint(low, high) if log else tune.randint(low, high)
        return tune.qlograndint(low, high, q) if log else tune.qrandint(low, high, q)
    if q is None:
        return tune.loguniform(low, high) if log else tune.uniform(low, high)
    step = q / 20
    first, last = low * step, high * step
    return tune.qloguniform(first, last, step) if log else tune.quniform(first, last, step)


def quantum(domain):
    return getattr(domain.get_sampler(), "q", None)


@settings(max_examples=80)
@given(domain=domains(), u=st.lists(st.floats(-0.5, 1.5), min_size=5, max_size=5))
def test_suggestions_lie_where_tune_could_sample(domain, u):
    q = quantum(domain)
    try:
        drawn = domain.sample(size=50, random_state=np.random.default_rng(1))
    except ValueError:  # no multiple of q
        with pytest.raises(ValueError, match="no multiple"):
            to_space({"a": domain, "b": tune.uniform(0, 1)})
        return
    space = converted({"a": domain, "b": tune.uniform(0, 1)})
    exclusive = isinstance(domain, tune.search.sample.Integer) and q in (None, 1)
    for coordinate in u:
        x = [coordinate, 0.5] if "a" in space.space else [0.5]
        value = space.suggestion(x)["a"]
        assert type(value) is type(domain.cast(0))
        assert domain.lower - 1e-9 <= value <= domain.upper + 1e-9
        assert not exclusive or value < domain.upper
        if q is not None:
            assert value / q == pytest.approx(round(value / q), abs=1e-6)
    if "a" in space.space:
        dim = space.space["a"]
        assert all(dim.low - 1e-9 <= value <= dim.high + 1e-9 for value in drawn)


@given(domain=domains())
def test_whatever_tune_samples_can_be_suggested(domain):
    try:
        drawn = domain.sample(size=30, random_state=np.random.default_rng(2))
    except ValueError:
        return
    space = converted({"a": domain, "b": tune.uniform(0, 1)})
    for value in drawn:
        config = {"a": value, "b": 0.25}
        suggestion = space.suggestion(space.encode(config))
        assert suggestion["b"] == 0.25
        assert suggestion["a"] == pytest.approx(value, rel=1e-9, abs=1e-9)


@given(
    domain=domains(),
    choices=st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.floats()),
        min_size=2,
        max_size=6,
    ),
    x=st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=2),
    pick=st.integers(0, 5),
)
def test_a_suggestion_encodes_to_itself(domain, choices, x, pick):
    config = {"n": {"c": tune.choice(choices), "x": tune.uniform(0, 1)}, "y": domain}
    try:
        space = converted(config)
    except ValueError:  # no multiple of q
        return
    point = [pick, *x] if "y" in space.space else [pick, x[0]]
    suggestion = space.suggestion(point)
    snapped = space.encode(suggestion)
    again = space.suggestion(snapped)
    assert repr(again["n"]["c"]) == repr(suggestion["n"]["c"])
    assert again["n"]["x"] == suggestion["n"]["x"] == x[0]
    assert again["y"] == pytest.approx(suggestion["y"], rel=1e-9)
    assert space.checked_point(suggestion) == pytest.approx(snapped, abs=1e-9)
