"""The way of one secret, from what measures it to what is shown, and no way beside it.

A private trial is traced, frames of this project's packages alone. Counted are distinct functions;
a lambda, a comprehension or a wrapper inside a function counts with it.

``holding``: functions that hold a record's, a user's or an agent's own number: an argument, a
local name or a result is the number, or an array, list, closure or partial that contains it. These
are the places where a number could leak if somebody made a mistake.
``showing``: functions that hold its release.
``ran``: functions that run at all meanwhile.
``files``: where those that hold the number, or its release, stand.

No function of the engine calls one of the host's. :func:`privbo_plugins.sanitize.call` is no
exception but no call of the engine's own: it runs what the host hands it. Vaults are in memory;
one in a file asks the host's rollback guard besides, before and after a release.

A number here may fall. One that rises needs a reason as a limit of ``tests/house.py`` does.
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


def place_of(frame: types.FrameType | None) -> Place | None:
    """Where a frame of ours stands; the next outer one for one that is not."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES:
            name = frame.f_code.co_qualname.split(".<locals>")[0]
            return path.relative_to(ROOT).as_posix(), name
        if path == Path(__file__):  # the user's own code has been called
            return None
        frame = frame.f_back
    return None


@dataclass
class Trace:
    """What ran, what it held, and which calls went from the engine up to a host."""

    held: dict[Place, set[float]] = field(default_factory=dict)
    climbs: set[tuple[Place, Place]] = field(default_factory=set)

    def __call__(self, frame: types.FrameType, event: str, result: Any) -> None:
        if event not in ("call", "return"):
            return
        place = place_of(frame)
        if place is None or place_of(frame.f_back) is None and False:
            return
        if Path(frame.f_code.co_filename) != ROOT / place[0]:
            return  # a library's own frame
        seen = [*frame.f_locals.values(), *([result] if event == "return" else [])]
        found = self.held.setdefault(place, set())
        for value in seen:
            found.update(numbers_in(value))
        caller = place_of(frame.f_back)
        if caller is not None and caller != HANDED_OVER:
            if caller[0].startswith(ENGINE) and not place[0].startswith(ENGINE):
                self.climbs.add((caller, place))

    def holding(self, number: float | None) -> set[Place]:
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


@dataclass(frozen=True)
class Way:
    """A scene, and the most that it may need.

    Attributes:
        scene: Gets ready; returns what runs one private trial and returns (secret, release).
    """

    scene: Callable[[], Callable[[], tuple[float, float | None]]]
    holding: int
    showing: int
    files: int
    ran: int


def _vector(trial: Any) -> Any:
    losses = (trial.suggest_float("x", 0, 1) - np.linspace(0.4, 0.9, 50)) ** 2
    losses[3] = SECRET
    return losses


def _reward(trial: Any) -> float:
    return SECRET + 0.0 * trial.suggest_float("x", 0, 1)


def _in_a_study(
    sampler: Any, private: Any, before: int = 5
) -> Callable[[], tuple[float, float | None]]:
    study = optuna.create_study(sampler=sampler)
    study.optimize(private, n_trials=before)
    trial = study.ask()

    def act() -> tuple[float, float]:
        value = private(trial)
        study.tell(trial, value)
        return SECRET, value

    return act


def losses() -> Any:
    sampler = DPGIBOSampler(mu=1, seed=0)
    return _in_a_study(sampler, sampler.private(_vector))


def means() -> Any:
    return _in_a_study(None, private_objective(_vector, mu=1, n_trials=30))


def rewards() -> Any:
    sampler = LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0)
    return _in_a_study(sampler, sampler.private(_reward))


def any_rewards() -> Any:
    return _in_a_study(None, ldp_objective(_reward, epsilon=1.0, value_range=(0, 1)))


def answers() -> Any:
    X = np.random.default_rng(0).uniform(18, 90, size=(12, 1))
    curator = Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(18, 90)], outcomes=lambda row: SECRET,
        outcome_mechanism="laplace", outcome_epsilon=1.0, outcome_range=(0.0, 1.0),
    )  # fmt: skip
    study = optuna.create_study(sampler=POGPUCBSampler(curator.release(), seed=0))
    for _ in range(3):
        study.ask().suggest_int("row", 0, 11)
        answer_trials(study, curator)
    number = study.ask()
    number.suggest_int("row", 0, 11)

    def act() -> tuple[float, float | None]:
        answer_trials(study, curator)
        return SECRET, study.trials[-1].value

    return act


def vectors() -> Any:
    server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0, n_rounds=3, n_startup=2))
    link, sent = server.connect(0), list[Any]()
    submit = link.submit
    link.submit = lambda message: (sent.append(np.array(message)), submit(message))[1]  # type: ignore[method-assign]
    sampler = DPFTSDESampler(link, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=3)
    sent.clear()

    def act() -> tuple[float, float | None]:
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=1)
        return float(sent[0].ravel()[0]), None

    return act


WAYS = {
    "a loss vector, DP-GIBO, Optuna": Way(losses, 0, 0, 0, 0),
    "a loss vector, any sampler, Optuna": Way(means, 0, 0, 0, 0),
    "a reward, LDP GP-UCB, Optuna": Way(rewards, 0, 0, 0, 0),
    "a reward, any sampler, Optuna": Way(any_rewards, 0, 0, 0, 0),
    "a row's answer, PO-GP-UCB, Optuna": Way(answers, 0, 0, 0, 0),
    "an agent's vector, DP-FTS-DE, Optuna": Way(vectors, 0, 0, 0, 0),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_secret_goes_one_way(name: str) -> None:
    way = WAYS[name]
    trace, (secret, release) = traced(way.scene())
    holding, showing = trace.holding(secret), trace.holding(release)
    files = {file for file, _ in holding | showing}
    print(name, len(holding), len(showing), len(files), len(trace.held))
    for p in sorted(holding): print("   ", *p)
    print("  --")
    for p in sorted(showing): print("   ", *p)
    print(trace.climbs)
    assert len(holding) <= way.holding
    assert len(showing) <= way.showing
    assert len(files) <= way.files
    assert len(trace.held) <= way.ran
    assert trace.climbs == set()
