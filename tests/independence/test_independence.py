"""Nobody can see which of two neighbouring data sets a run was on, but for its releases.

Both runs of a pair get the same releases, so every byte that they leave in public must be equal.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from optuna_samplers import FederatedServer, FederationConfig
from tests.independence.runs import CELL, COMPUTED, FLOATS, LIST, REWARD, RUNS
from tests.independence.sealed import Deaf
from tests.independence.seen import differences, left_by
from tests.independence.zoo import NUMBERS, OBJECTS, ORDINARY, ZOO

pytestmark = pytest.mark.usefixtures("quiet")

_KNOWN = {}


def ordinary():
    return ORDINARY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all runs, because its path is part of what they write."""
    return Path(tmp_path_factory.mktemp("runs"))


def left_by_ordinary(name, folder):
    """What a run on ordinary data leaves."""
    if name not in _KNOWN:
        _KNOWN[name] = left_by(RUNS[name][1], ordinary, folder)
    return _KNOWN[name]


# What does not hold yet -------------------------------------------------------------------------

SHAPE = "what is returned in a reward's place is of another outer shape, which is refused"
CONSTANTS = "a parameter with a single value in the first trial has nothing to be compared with"
OTHER_SHAPE = ("none", "two-element list", "empty list", "dictionary", "array-like")

OPEN = {LIST: {}, REWARD: dict.fromkeys(OTHER_SHAPE, SHAPE), FLOATS: {}, CELL: {}}
"""Entries that still show, and why, by the place that they stand in."""

SILENT = {
    "agents": set(OPEN[REWARD]),
    "outcomes": set(OPEN[REWARD]),
    "outcomes, ray": set(OPEN[REWARD]),
}
"""Of these, what a run does not show: failures stay with an agent, or count as the worst."""


def pair(name, entry, *marks):
    """One run and one odd entry, with what is known of it."""
    why = OPEN[RUNS[name][0]].get(entry)
    if why is not None and entry not in SILENT.get(name, ()):
        marks = (*marks, pytest.mark.xfail(strict=True, raises=AssertionError, reason=why))
    return pytest.param(name, entry, marks=marks, id=f"{name}-{entry}")


SMALL = {
    "records": ("nan", "text"), "records, ray": ("text",), "means": ("text",), "scores": ("nan",),
    "means, ray": ("nan",), "persons": ("text",), "persons, ray": ("nan",),
    "persons, means, ray": ("nan",), "blocks": ("nan",), "blocks, ray": ("text",),
    "blocks, means, ray": ("nan",), "rewards, laplace": ("nan", "warns"),
    "rewards, ray": ("warns",), "duets": ("nan",), "duets, ray": ("warns",), "rounds": ("huge",),
    "rounds, sockets": ("huge",), "agents": ("warns",), "agents, ray": ("nan",),
    "rows": ("huge",), "outcomes": ("nan",), "rows, ray": ("huge",), "outcomes, ray": ("warns",),
}  # fmt: skip
"""Runs of the small version: every system on every host, with an odd entry that is a number or one
that is none; each of these stands in every place on both hosts."""


NUMBERS_ONLY = {
    "persons, summed", "persons, ray", "persons, means, ray",
    "records, adaptive", "records, in a journal", "rewards, piecewise", "rewards, hybrid",
    "rewards, gaussian", "rounds", "rounds, sockets", "rows", "rows, ray",
}  # fmt: skip
"""Runs that take numbers, or convert what is returned just as another one does."""


def entries(name):
    if name in NUMBERS_ONLY:
        return NUMBERS
    return OBJECTS if name == "rows, of objects" else ZOO


def pairs():
    for name in RUNS:
        for entry in entries(name):
            small = entry in SMALL.get(name, ())
            yield pair(name, entry, *(() if small else (pytest.mark.soak,)))


# The tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in SMALL else pytest.mark.soak) for name in RUNS
])  # fmt: skip
def test_a_run_leaves_not_nothing(name, folder):
    """Of what it leaves everything is compared below: runs that chance decides would differ."""
    left = left_by_ordinary(name, folder)
    statements = left.get("statements: tape", left.get("statements in memory: tape", b""))
    assert statements.count(b"commit") >= 5
    assert left["noise: tape"].count(b"\n") >= 2
    assert not [key for key in left if key.startswith("exceptions: ")]
    sinks = {key.partition(":")[0] for key in left}
    assert sinks >= {"files", "log", "texts", "warnings"}


@pytest.mark.parametrize(("name", "entry"), list(pairs()))
def test_what_is_public_does_not_depend_on_one_record(name, entry, folder):
    assert differences(
        left_by_ordinary(name, folder), left_by(RUNS[name][1], ZOO[entry], folder)
    ) == {}  # fmt: skip


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=CONSTANTS)
@pytest.mark.parametrize("system", COMPUTED)
def test_a_parameter_of_one_value_holds_nothing_private(system, folder):
    first = left_by(COMPUTED[system], ordinary, folder)
    assert differences(first, left_by(COMPUTED[system], lambda: 0.25, folder)) == {}


class Coins(Deaf):
    """All heads, or none."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def integer(self, n):
        return 0 if self.heads else n - 1


def work(call):
    """Names of the functions that a call goes through."""
    names = []

    def heard(frame, event, _):
        if event == "call":
            names.append(f"{frame.f_code.co_filename} {frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(heard)
    try:
        call()
    finally:
        sys.setprofile(before)
    return names


def test_whoever_is_not_chosen_for_a_round_costs_it_the_same_work():
    known = {"n_agents": 2, "q": 0.5, "z": 2.0, "n_rounds": 2, "n_startup": 1}
    config = FederationConfig(population="explore", n_features=20, **known)
    traces = []
    for heads in (True, True, False):  # the first one builds what later ones keep
        server = FederatedServer(config, noise=Coins(heads), deadline=None)
        link, message = server.connect(0), np.ones(config.message_length)
        server.connect(1).submit(message)  # opens the round, and tosses its coins
        traces.append(work(lambda link=link, message=message: link.submit(message)))
    assert traces[1] == traces[2]
