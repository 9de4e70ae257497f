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

Another host adds its scenes to ``WAYS``. A number here may fall; one that rises needs a reason.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

SECRET = 0.71234567890123
"""The number that is followed."""

Place = tuple[str, str]
"""A file and a function in it."""


# Tracing ----------------------------------------------------------------------------------------


def numbers_in(held: Any, depth: int = 4) -> Iterator[float]:
    """The numbers that a value is or contains; of objects, what a dataclass or a closure has."""
    if isinstance(held, float | np.floating):
        yield float(held)
    elif isinstance(held, np.ndarray) and held.dtype.kind == "f":
        yield from held.ravel().tolist()
    elif depth:
        for part in _parts(held):
            yield from numbers_in(part, depth - 1)


def _parts(held: Any) -> Any:
    if isinstance(held, list | tuple):
        return held
    if isinstance(held, dict):
        return held.values()
    if isinstance(held, functools.partial):
        return held.args
    if isinstance(held, types.FunctionType):
        cells = held.__closure__ or ()
        return [cell.cell_contents for cell in cells if cell != types.CellType()]
    return [getattr(held, name, None) for name in getattr(held, "__dataclass_fields__", ())]


@functools.cache
def _file_of_ours(file: str) -> str | None:
    path = Path(file)
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path("elsewhere")
    return inside.as_posix() if inside.parts[0] in PACKAGES else None


def place_of(frame: types.FrameType | None) -> Place | None:
    """The function of ours that a frame is of; None for any other."""
    file = None if frame is None else _file_of_ours(frame.f_code.co_filename)
    if frame is None or file is None:
        return None
    return file, frame.f_code.co_qualname.partition(".<locals>")[0]


def caller_of(frame: types.FrameType) -> Place | None:
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

    held: dict[Place, set[float]] = field(default_factory=dict)
    climbs: set[tuple[Place, Place]] = field(default_factory=set)

    def __call__(self, frame: types.FrameType, event: str, result: Any) -> None:
        place = place_of(frame) if event in ("call", "return") else None
        if place is None:
            return
        found = self.held.setdefault(place, set())
        for value in (*frame.f_locals.values(), *([result] * (event == "return"))):
            found.update(numbers_in(value))
        caller = None if place[0].startswith(ENGINE) else caller_of(frame)
        if caller is not None and caller[0].startswith(ENGINE) and caller != HANDED_OVER:
            self.climbs.add((caller, place))

    def holding(self, number: float) -> set[Place]:
        """Functions that held a number."""
        return {place for place, found in self.held.items() if number in found}


def traced(act: Callable[[], Any]) -> tuple[Trace, Any]:
    """What an act has run, and its result."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        return trace, act()
    finally:
        sys.setprofile(None)


# Scenes -----------------------------------------------------------------------------------------


Act = Callable[[], float]
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

    scene: Callable[[], Act]
    holding: int
    files: int
    ran: int


def _vector(trial: Any) -> Any:
    losses = (trial.suggest_float("x", 0, 1) - np.linspace(0.4, 0.9, 500)) ** 2
    losses[3] = SECRET
    return losses


def _reward(trial: Any) -> float:
    trial.suggest_float("x", 0, 1)
    return SECRET


def _in_a_study(sampler: Any, private: Any) -> Act:
    study = optuna.create_study(sampler=sampler)
    study.optimize(private, n_trials=5)
    trial = study.ask()

    def act() -> float:
        study.tell(trial, private(trial))
        return SECRET

    return act


def losses() -> Act:
    sampler = DPGIBOSampler(mu=1, seed=0)
    return _in_a_study(sampler, sampler.private(_vector))


def means() -> Act:
    return _in_a_study(None, private_objective(_vector, mu=1, n_trials=30))


def rewards() -> Act:
    sampler = LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0)
    return _in_a_study(sampler, sampler.private(_reward))


def any_rewards() -> Act:
    return _in_a_study(None, ldp_objective(_reward, epsilon=1.0, value_range=(0, 1)))


def answers() -> Act:
    X = np.random.default_rng(0).uniform(18, 90, size=(12, 1))
    curator = Curator(
        X,
        epsilon=4.0,
        delta=1e-6,
        bounds=[(18, 90)],
        outcomes=lambda row: SECRET,
        outcome_epsilon=1.0,
        outcome_range=(0.0, 1.0),
    )
    study = optuna.create_study(sampler=POGPUCBSampler(curator.release(), seed=0))
    for _ in range(3):
        study.ask().suggest_int("row", 0, 11)
        answer_trials(study, curator)
    study.ask().suggest_int("row", 0, 11)

    def act() -> float:
        assert answer_trials(study, curator) == 1
        return SECRET

    return act


def vectors() -> Act:
    server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0, n_rounds=3, n_startup=2))
    link, sent = server.connect(0), list[float]()
    submit = link.submit

    def submitted(message: Any) -> Any:
        sent.append(float(message[0]))
        return submit(message)

    link.submit = submitted  # type: ignore[method-assign]
    study = optuna.create_study(sampler=DPFTSDESampler(link, seed=0))

    def act() -> float:
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=1)
        return sent[-1] if sent else 0.0

    for _ in range(3):
        act()
    return act


WAYS = {
    "a loss vector, DP-GIBO, Optuna": Way(losses, 19, 7, 200),
    "a loss vector, any sampler, Optuna": Way(means, 19, 7, 165),
    "a reward, LDP GP-UCB, Optuna": Way(rewards, 16, 7, 195),
    "a reward, any sampler, Optuna": Way(any_rewards, 16, 7, 125),
    "a row's answer, PO-GP-UCB, Optuna": Way(answers, 15, 6, 80),
    "an agent's vector, DP-FTS-DE, Optuna": Way(vectors, 9, 7, 176),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_secret_goes_one_way(name: str) -> None:
    way = WAYS[name]
    trace, secret = traced(way.scene())
    holding = trace.holding(secret)
    assert len(holding) <= way.holding, sorted(holding)
    assert len({file for file, _ in holding}) <= way.files, sorted(holding)
    assert len(trace.held) <= way.ran
    assert trace.climbs == set()
    assert len(holding) > 5  # the number was seen at all
