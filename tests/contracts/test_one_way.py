"""The way of one secret, from what measures it to its release, and no way beside it.

A private trial is traced from the call of the wrapped objective to the value being in the study,
frames of this project's packages alone. Counted are distinct functions; a lambda, a comprehension
or a wrapper inside a function counts with it.

``holding``: functions that hold a record's, a user's or an agent's own number: an argument, a
local name or a result is the number, or an array, list, closure or partial that contains it. These
are the places where a number could leak if somebody made a mistake.
``files``: where these stand.
``ran``: functions that run at all meanwhile, whatever they hold; a few depend on what is cached.

No function of the engine calls one of a host's. :func:`privbo_plugins.sanitize.call` is not
counted as one that does: it runs what the host hands it. Vaults are in memory; one in a file asks
the host's rollback guard besides, before and after a release.

On Ray a secret is traced on each side apart: in the trial's process, or that of an agent's host,
and in the host that it is sealed to. Tests run both in one process.

Another host adds its scenes to ``WAYS``. A number here may fall; one that rises needs a reason.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
import pytest

from optuna_samplers import (
    DPFTSDESampler,
    DPGIBOSampler,
    FederatedServer,
    FederationConfig,
    LDPGPUCBSampler,
    POGPUCBSampler,
    answer_trials,
    ldp_objective,
    private_objective,
)
from privbo_plugins.sessions.rows import Curator

ROOT = Path(__file__).parents[2]
ENGINE = "privbo_plugins"
PACKAGES = (ENGINE, "optuna_samplers", "raytune_searchers", "sklearn_search")
HANDED_OVER = ("privbo_plugins/sanitize.py", "call")
LINK = ("raytune_searchers/hosts/agents.py", "ServerLink.")
"""What a host hands to a participant of a federation, which calls it."""
HOST = ("raytune_searchers/hosts/base.py", "Host.call")
"""Where a call reaches another process on Ray."""

SECRET = 0.71234567890123
"""The number that is followed."""


# Tracing ----------------------------------------------------------------------------------------


def numbers_in(held, depth=4):
    """The numbers that a value is or contains; of objects, what a dataclass or a closure has."""
    if isinstance(held, float | np.floating):
        yield float(held)
    elif isinstance(held, np.ndarray) and held.dtype.kind == "f":
        yield from held.ravel().tolist()
    elif depth:
        for part in _parts(held):
            yield from numbers_in(part, depth - 1)


def _parts(held):
    if type(held).__name__ == "_Probe":  # of reports on Ray: who looks into it has let it through
        return ()
    if isinstance(held, list | tuple):
        return held
    if isinstance(held, dict):
        return held.values()
    if isinstance(held, functools.partial):
        return held.args
    if isinstance(held, types.FunctionType):
        cells = held.__closure__ or ()
        return [cell.cell_contents for cell in cells if cell != types.CellType()]
    return [getattr(held, name, None) for name in getattr(type(held), "__dataclass_fields__", ())]


@functools.cache
def _file_of_ours(file):
    path = Path(file)
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path("elsewhere")
    return inside.as_posix() if inside.parts[0] in PACKAGES else None


def place_of(frame):
    """The function of ours that a frame is of; None for any other."""
    file = None if frame is None else _file_of_ours(frame.f_code.co_filename)
    if frame is None or file is None:
        return None
    return file, frame.f_code.co_qualname.partition(".<locals>")[0]


def caller_of(frame):
    """The innermost function of ours that a call comes from; None if a user's code is between."""
    outer = frame.f_back
    while outer is not None and place_of(outer) is None:
        if outer.f_code.co_filename == __file__:
            return None
        outer = outer.f_back
    return place_of(outer)


@dataclass
class Trace:
    """Functions that ran with the numbers that they held, and calls from the engine to a host."""

    held: dict = field(default_factory=dict)
    climbs: set = field(default_factory=set)

    def __call__(self, frame, event, result):
        place = place_of(frame) if event in ("call", "return") else None
        if place is None:
            return
        found = self.held.setdefault(place, set())
        for value in (*frame.f_locals.values(), *([result] * (event == "return"))):
            found.update(numbers_in(value))
        lent = place[0] == LINK[0] and place[1].startswith(LINK[1])
        caller = None if lent or place[0].startswith(ENGINE) else caller_of(frame)
        if caller is not None and caller[0].startswith(ENGINE) and caller != HANDED_OVER:
            self.climbs.add((caller, place))

    def holding(self, number):
        """Functions that held a number."""
        return {place for place, found in self.held.items() if number in found}


@dataclass
class Processes:
    """What each process of Ray has run: a trial's, its host's, and a host's that this calls."""

    traces: list[Trace] = field(default_factory=lambda: [Trace(), Trace(), Trace()])
    depth: int = 0

    def __call__(self, frame, event, result):
        at_host = frame.f_code.co_name == "call" and place_of(frame) == HOST
        self.depth += at_host and event == "call"
        self.traces[self.depth](frame, event, result)
        self.depth -= at_host and event == "return"


def traced(act, trace):
    """What an act has run, and its result."""
    sys.setprofile(trace)
    try:
        return trace, act()
    finally:
        sys.setprofile(None)


# Scenes -----------------------------------------------------------------------------------------


"""Runs one private trial; returns the secret that was followed."""


@dataclass(frozen=True)
class Way:
    """A scene, and the most that it may need.

    Attributes:
        scene: Gets everything ready; its result is what is traced.
        holding: Functions that hold the secret.
        files: Where they stand.
        ran: Functions that run at all.
    """

    scene: Callable
    holding: int
    files: int
    ran: int


def _vector(trial):
    losses = (trial.suggest_float("x", 0, 1) - np.linspace(0.4, 0.9, 500)) ** 2
    losses[3] = SECRET
    return losses


def _answer(trial):
    trial.suggest_float("x", 0, 1)
    return SECRET


def _in_a_study(sampler, private):
    study = optuna.create_study(sampler=sampler)
    study.optimize(private, n_trials=5)
    trial = study.ask()

    def act():
        study.tell(trial, private(trial))
        return SECRET

    return act


def losses():
    sampler = DPGIBOSampler(mu=1, seed=0)
    return _in_a_study(sampler, sampler.private(_vector))


def means():
    return _in_a_study(None, private_objective(_vector, mu=1, n_trials=30))


def rewards():
    sampler = LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0)
    return _in_a_study(sampler, sampler.private(_answer))


def any_rewards():
    return _in_a_study(None, ldp_objective(_answer, epsilon=1.0, value_range=(0, 1)))


def _curator():
    X = np.random.default_rng(0).uniform(18, 90, size=(12, 1))
    return Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(18, 90)], outcomes=lambda row: SECRET,
        outcome_epsilon=1.0, outcome_range=(0.0, 1.0),
    )  # fmt: skip


def answers():
    curator = _curator()
    study = optuna.create_study(sampler=POGPUCBSampler(curator.release(), seed=0))
    for _ in range(3):
        study.ask().suggest_int("row", 0, 11)
        answer_trials(study, curator)
    study.ask().suggest_int("row", 0, 11)

    def act():
        assert answer_trials(study, curator) == 1
        return SECRET

    return act


def vectors():
    server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0, n_rounds=3, n_startup=2))
    link, sent = server.connect(0), list[float]()
    submit = link.submit

    def submitted(message):
        sent.append(float(message[0]))
        return submit(message)

    link.submit = submitted
    study = optuna.create_study(sampler=DPFTSDESampler(link, seed=0))

    def act():
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=1)
        return sent[-1] if sent else 0.0

    for _ in range(3):
        act()
    return act


COLD = 10
"""Functions that may run in a process for the first time, before a cache holds what they make."""

WAYS = {
    "a loss vector, DP-GIBO, Optuna": Way(losses, 19, 7, 200),
    "a loss vector, any sampler, Optuna": Way(means, 19, 7, 165),
    "a reward, LDP GP-UCB, Optuna": Way(rewards, 16, 7, 195),
    "a reward, any sampler, Optuna": Way(any_rewards, 16, 7, 125),
    "a row's answer, PO-GP-UCB, Optuna": Way(answers, 15, 6, 80),
    "an agent's vector, DP-FTS-DE, Optuna": Way(vectors, 9, 7, 176),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_secret_goes_one_way(name):
    way = WAYS[name]
    trace, secret = traced(way.scene(), Trace())
    holding = trace.holding(secret)
    assert len(holding) <= way.holding, sorted(holding)
    assert len({file for file, _ in holding}) <= way.files, sorted(holding)
    assert len(trace.held) <= way.ran + COLD
    assert trace.climbs == set()
    assert len(holding) > 5  # the number was seen at all


# On Ray -----------------------------------------------------------------------------------------


def _on_ray(search, trainable, *, space=True):
    """The last of some trials, with what its search asks next."""
    from ray import tune

    from tests.raytune_searchers.hosts import run_trial

    if space:
        search.set_search_properties(None, None, {"x": tune.uniform(0.0, 1.0)}, num_samples=-1)
    for number in range(3):
        run_trial(search, trainable, f"t{number}")

    def act():
        done = run_trial(search, trainable, "last")
        assert done.error is None
        return SECRET

    return act


class _Vector:
    """A trial's config, where an objective of Optuna's would ask for a number."""

    def __init__(self, config):
        self._config = config

    def suggest_float(self, name, *_):
        return self._config[name]


def losses_on_ray():
    from raytune_searchers import DPGIBOSearch

    search = DPGIBOSearch(mu=1, metric="loss", mode="min", seed=0)
    return _on_ray(search, search.private(lambda config: _vector(_Vector(config))))


def rewards_on_ray():
    from raytune_searchers import LDPGPUCBSearch

    search = LDPGPUCBSearch(1.0, value_range=(0, 1), metric="reward", mode="max", seed=0)
    return _on_ray(search, search.private(lambda config: _answer(_Vector(config))))


def answers_on_ray():
    from raytune_searchers import POGPUCBSearch, answering

    asked = answering(_curator)
    search = POGPUCBSearch(asked.release(), metric="outcome", mode="max", seed=0)
    act = _on_ray(search, lambda config: {"outcome": asked(config["row"])}, space=False)
    weakref.finalize(act, asked.close)
    return act


def vectors_on_ray():
    from ray import tune

    from raytune_searchers import DPFTSDESearch
    from raytune_searchers.hosts.agents import ServerLink

    search = DPFTSDESearch(
        FederationConfig(n_agents=1, epsilon=4.0, n_rounds=9, n_startup=1),
        search_space={"x": tune.uniform(0.0, 1.0)}, n_trials=9, hosts=1, seed=0,
    )  # fmt: skip
    sent, submit = list[float](), ServerLink.submit

    def submitted(link, message):
        sent.append(float(message[0]))
        return submit(link, message)

    ServerLink.submit = submitted
    act = _on_ray(search, search.private(lambda agent, config: config["x"]), space=False)

    def followed():
        act()
        ServerLink.submit = submit
        return sent[-1]

    return followed


RAY_WAYS = {
    "a loss vector, DP-GIBO": (losses_on_ray, [(15, 5), (19, 7), (0, 0)]),
    "a reward, LDP GP-UCB": (rewards_on_ray, [(15, 6), (0, 0), (0, 0)]),
    "a row's answer, PO-GP-UCB": (answers_on_ray, [(0, 0), (15, 6), (0, 0)]),
    "an agent's vector, DP-FTS-DE": (vectors_on_ray, [(0, 0), (6, 6), (9, 7)]),
}
"""Functions that hold the secret, and their files: in the trial, in its host, and one beyond."""


@pytest.mark.parametrize("name", RAY_WAYS)
def test_a_secret_goes_one_way_on_ray(name, local_hosts):
    scene, allowed = RAY_WAYS[name]
    found, secret = traced(scene(), Processes())
    held = [trace.holding(secret) for trace in found.traces]
    for places, (functions, files) in zip(held, allowed, strict=True):
        assert len(places) <= functions, sorted(places)
        assert len({file for file, _ in places}) <= files, sorted(places)
    assert sum(map(len, held)) > 5  # the number was seen at all
    assert not any(trace.climbs for trace in found.traces)
