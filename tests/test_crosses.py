"""The rule that splits full crosses between every run and soak."""

import itertools

import pytest

from tests.crosses import covering, crossed

CASES = [
    (system, host, odd)
    for system, host, odd in itertools.product("abcd", ("optuna", "ray"), (None, [1], 0.5))
    if (system, host) != ("d", "ray")
]
"""A cross with a hole, one of whose axes has values that have no hash."""


@pytest.mark.parametrize(("axes", "most"), [(1, 4), (2, 12), (3, len(CASES))])
def test_every_combination_that_there_is_is_in_every_run(axes, most):
    taken = [CASES[i] for i in covering(CASES, axes)]
    for places in itertools.combinations(range(3), axes):
        whole, found = ({repr([c[p] for p in places]) for c in some} for some in (CASES, taken))
        assert found == whole
    assert len(taken) == len({repr(case) for case in taken}) <= most


def test_soak_has_the_rest_and_nothing_is_lost():
    made = crossed(CASES, axes=2)
    assert [param.values for param in made] == CASES
    kept = [i for i, param in enumerate(made) if not param.marks]
    assert kept == sorted(covering(CASES, 2))
    assert {mark.name for param in made for mark in param.marks} == {"soak"}
