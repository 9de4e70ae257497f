"""Owners, retries and give-ups, against a derivation from scratch and against each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privbo_plugins.algorithms.duets import DUETS, DUETSConfig
from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.gp_ucb import GPUCB
from privbo_plugins.algorithms.protocols import ATTEMPTS
from privbo_plugins.sessions.scheduler import (
    FRUITLESS,
    HOPELESS,
    Attempt,
    EarlyStop,
    FirstTrials,
    Scheduler,
    SharedScheduler,
    finite,
    is_at,
)
from privbo_plugins.spaces import Categorical, Float, Space

SPACE = Space({"x": Float(0.0, 1.0)})
MIXED = Space({"x": Float(1e-3, 10.0, log=True), "kind": Categorical(("a", "b"))})


def duets(n_agents=2, **more):
    config = DUETSConfig(n_agents=n_agents, n_trials=20 * n_agents, discretisation=64, **more)
    return DUETS(config, SPACE, seed=1)


def at(evaluation):
    return SPACE.decode(evaluation.x)


# One process hands out all draws ----------------------------------------------------------------


def test_a_draw_is_tried_three_times_and_then_counts_as_the_worst_of_its_epoch():
    scheduler = Scheduler(duets())
    slots = scheduler.algorithm.slots()
    for trial in range(ATTEMPTS):
        evaluation = scheduler.next(trial)
        assert evaluation is not None
        assert evaluation.slot == slots[0]
        scheduler.fail(trial, evaluation)
    values = iter([0.5, -0.25, 0.75])
    for slot in slots[1:]:
        evaluation = scheduler.next(99)
        assert evaluation is not None
        assert evaluation.slot == slot
        assert scheduler.algorithm.epoch == 1
        scheduler.tell(slot, evaluation, next(values))
    assert scheduler.algorithm.epoch == 2
    assert [(e.slot, v) for _, e, v in scheduler.algorithm.lost] == [(slots[0], -0.25)]
    assert len(scheduler.algorithm.evaluations) == 3  # nobody has observed the fourth


def test_a_trial_that_is_run_again_takes_its_draw_back():
    scheduler = Scheduler(duets())
    first = scheduler.next(0)
    assert first is not None
    for trial in range(ATTEMPTS):
        scheduler.fail(trial, first)
    second = scheduler.next(5)
    assert second is not None
    assert second.slot == scheduler.algorithm.slots()[1]
    scheduler.tell(0, first, 0.5)
    assert first.slot not in scheduler.algorithm.open_slots()


def test_an_epoch_that_nobody_has_a_number_for_waits_for_one():
    scheduler = Scheduler(duets(1))
    for i in range(2 * ATTEMPTS):
        evaluation = scheduler.next(i)
        assert evaluation.draw is not None
        scheduler.fail(i, evaluation)
    spare = scheduler.next(99)
    assert spare.draw is None
    assert scheduler.algorithm.epoch == 1
    scheduler.tell(99, spare, 0.5)
    assert scheduler.algorithm.epoch == 2
    assert [value for *_, value in scheduler.algorithm.lost] == [0.5, 0.5]


def test_with_a_public_range_the_end_that_nobody_wants_counts():
    scheduler = Scheduler(duets(1, low=-3.0, high=2.0))
    for i in range(2 * ATTEMPTS):
        evaluation = scheduler.next(i)
        assert evaluation is not None
        scheduler.fail(i, evaluation)
    assert [value for *_, value in scheduler.algorithm.lost] == [-3.0, -3.0]


# What is counted --------------------------------------------------------------------------------


def test_failures_in_a_row_end_a_run_and_one_number_is_enough_to_go_on():
    patience = EarlyStop()
    said = [
        patience.count(failed=failed, learnt=not failed)
        for failed in [True] * (HOPELESS - 1) + [False]
    ]
    assert not any(said)
    said = [patience.count(failed=True, learnt=False) for _ in range(HOPELESS + 2)]
    text = f"{HOPELESS} trials failed one after another"
    assert said == [None] * (HOPELESS - 1) + [text, None, None]  # it is said once
    assert patience.over


def test_trials_that_are_stopped_end_a_run_later():
    patience = EarlyStop()
    said = [patience.count(failed=False, learnt=False) for _ in range(FRUITLESS)]
    assert said[:-1] == [None] * (FRUITLESS - 1)
    assert said[-1] == f"nothing was released of {FRUITLESS} trials one after another"
    assert patience.over
    mixed = EarlyStop()
    for i in range(4 * FRUITLESS):
        assert mixed.count(failed=i % 3 == 0, learnt=i % FRUITLESS == 0) is None


# Several processes share a storage --------------------------------------------------------------


@dataclass
class Storage:
    """Trials that several workers share, each with a reader of its own."""

    trials: list[Attempt]
    readers: list[SharedScheduler[DUETS]]

    @classmethod
    def of(cls, n_readers):
        return cls([], [SharedScheduler(duets(), SPACE) for _ in range(n_readers)])

    def read(self, reader):
        draws = self.readers[reader]
        return draws, draws.read(draws.unread(self.trials), None)

    def change(self, number, **changes):
        self.trials[number] = replace(self.trials[number], **changes)

    def ask(self, reader):
        """A trial begins; it claims and holds a draw, or evaluates something else."""
        draws, pending = self.read(reader)
        number = len(self.trials)
        evaluation = draws.algorithm.ask(number, pending)
        assert evaluation is not None
        slot = evaluation.slot
        self.trials.append(Attempt(number, {}, "running", wanted=slot))
        if slot is not None and not draws.comes_first(
            number, slot, lambda: draws.unread(self.trials)
        ):
            slot = None
        self.change(number, params=at(evaluation), held=slot, wanted=None)
        return number


def outcome(draws):
    """What the epochs were told, and what was given up."""
    algorithm = draws.algorithm
    drawn = [(e.slot, v) for e, v in algorithm.evaluations if e.draw is not None]
    lost = [(e.slot, v) for _, e, v in algorithm.lost]
    return algorithm.epoch, drawn, lost, algorithm.public_state.active.share


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "end", "end", "fail", "look"]),
            st.integers(0, 2),
            st.integers(0, 10**6),
        ),
        min_size=10,
        max_size=70,
    )
)
def test_whoever_reads_when_derives_the_same(moves):
    storage = Storage.of(3)
    for move, reader, choice in moves:
        running = [t.number for t in storage.trials if not t.ended]
        if move == "ask":
            storage.ask(reader)
        elif move == "look":
            storage.read(reader)
        elif running:
            number = running[choice % len(running)]
            value = None if move == "fail" else float(np.sin(choice))
            storage.change(number, state="ended", value=value)
    late = SharedScheduler(duets(), SPACE)
    late.read(late.unread(storage.trials), None)
    for reader in range(3):
        storage.read(reader)
        assert outcome(storage.readers[reader]) == outcome(late)
    owned = [trial.held for trial in storage.trials if trial.held is not None and not trial.ended]
    assert len(owned) == len(set(owned))  # no draw is evaluated by two running trials


def test_workers_that_take_turns_derive_what_one_process_does():
    storage, alone = Storage.of(2), Scheduler(duets())
    rng = np.random.default_rng(3)
    for i in range(40):
        number = storage.ask(i % 2)
        evaluation = alone.next(number)
        assert evaluation is not None
        assert at(evaluation) == storage.trials[number].params
        value = None if rng.random() < 0.6 else float(rng.normal())
        storage.change(number, state="ended", value=value)
        if value is None:
            alone.fail(number, evaluation)
        else:
            alone.tell(number, evaluation, value)
    draws, _ = storage.read(0)
    epoch, drawn, lost, share = outcome(draws)
    told = [(e.slot, v) for e, v in alone.algorithm.evaluations if e.draw is not None]
    assert sorted(told)[: len(drawn)] == sorted(drawn)
    assert (epoch, share) == (alone.algorithm.epoch, alone.algorithm.public_state.active.share)
    assert lost == [(e.slot, v) for _, e, v in alone.algorithm.lost]
    assert lost  # some were


def test_of_two_claims_the_earlier_trial_waits_until_the_later_one_gives_way():
    draws = SharedScheduler(duets(), SPACE)
    slot = draws.algorithm.slots()[0]
    both = [Attempt(0, {}, "running", wanted=slot), Attempt(1, {}, "running", wanted=slot)]
    assert not draws.comes_first(1, slot, lambda: both)
    assert not draws.comes_first(0, slot, lambda: both)  # it looks on
    looks = iter([both, [both[0], replace(both[1], wanted=None)]])
    assert draws.comes_first(0, slot, lambda: next(looks))


def test_a_draw_that_is_held_or_given_up_goes_to_nobody():
    draws = SharedScheduler(duets(), SPACE)
    slot = draws.algorithm.slots()[0]
    params = at(draws.algorithm.evaluation_of(slot))
    held = Attempt(0, params, "running", held=slot)
    assert not draws.comes_first(5, slot, lambda: [held])
    gone = [Attempt(i, params, "ended", held=slot) for i in range(ATTEMPTS)]
    assert not draws.comes_first(5, slot, lambda: gone)
    assert SharedScheduler(duets(), SPACE).comes_first(5, slot, lambda: gone[:-1])


def test_a_trial_that_went_elsewhere_has_lost_its_draw():
    draws = SharedScheduler(duets(), SPACE)
    slot = draws.algorithm.slots()[0]
    elsewhere = {"x": 1.0 - at(draws.algorithm.evaluation_of(slot))["x"]}
    draws.read([Attempt(0, elsewhere, "ended", 0.5, held=slot)], None)
    assert draws.stray == 0
    assert slot in draws.algorithm.open_slots()
    assert [e.draw for e, _ in draws.algorithm.evaluations] == [None]  # but it is known


def test_the_trials_that_an_epoch_waits_for_are_named():
    draws = SharedScheduler(duets(), SPACE)
    slots = draws.algorithm.slots()
    trials = [
        Attempt(i, at(draws.algorithm.evaluation_of(slot)), "ended", 0.5, held=slot)
        for i, slot in enumerate(slots)
    ]
    trials[1] = replace(trials[1], state="running", value=None)
    assert [attempt.number for attempt in draws.late(trials)] == [1]
    assert draws.late(trials[:-1]) == []  # others can still be taken


def test_without_draws_every_number_is_told_as_it_comes():
    scheduler = SharedScheduler(GPUCB(UCBConfig(low=0.0, high=1.0), SPACE, seed=0), SPACE)
    trials = [
        Attempt(0, {"x": 0.25}, "ended", 0.5),
        Attempt(1, {"x": 0.5}, "running"),
        Attempt(2, {"x": 0.75}, "ended"),
        Attempt(3, {"y": 0.75}, "ended", 0.5),
        Attempt(4, {"x": 1.0}, "waiting"),
    ]
    pending = scheduler.read(scheduler.unread(trials), None)
    assert [at(evaluation) for evaluation in pending] == [{"x": 0.5}]
    assert scheduler.algorithm.state_dict()["evaluations"] == [[[0.25], None, None, None, 0.5]]
    assert [attempt.number for attempt in scheduler.unread(trials)] == [1, 4]
    assert scheduler.read(scheduler.unread(trials), asking=1) == []


@given(st.floats(1e-3, 10.0), st.sampled_from(["a", "b", "c"]))
def test_a_point_is_where_its_parameters_are(x, kind):
    params = {"x": x, "kind": kind}
    shown = Attempt(0, params, "ended").evaluation(MIXED)
    assert (shown is None) == (kind == "c")
    if shown is not None:
        assert is_at(params, shown, MIXED)
        assert not is_at({"x": x, "kind": "b" if kind == "a" else "a"}, shown, MIXED)
        assert not is_at({"x": x, "kind": "c"}, shown, MIXED)


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_first_trials_tell_once_how_long_a_plan_takes(at_once, monkeypatch):
    """Trials of 20 minutes on a clock of the test's own; three at once take a third of it."""
    now = [0.0]
    monkeypatch.setattr("privbo_plugins.sessions.scheduler.time.monotonic", lambda: now[0])
    first, told = FirstTrials(), []
    for number in range(9):
        now[0] += 1200.0 if number % at_once == 0 else 0.0
        told.append(first.count(1200.0, lambda: 117))
    took, hours = ("60 min", "39 h") if at_once == 1 else ("20 min", "13 h")
    assert told[2] == (
        f"The first 3 trials took {took}: about {hours} for all 117 trials of the plan. "
        "n_trials= makes it shorter."
    )
    assert [text for text in told if text] == [told[2]]


@pytest.mark.parametrize("value", [None, np.nan, np.inf, -np.inf])
def test_what_is_no_number_counts_as_none(value):
    assert finite(value) is None


@pytest.mark.parametrize(("seconds", "said"), [(19.9, False), (20.1, True)])
def test_a_plan_of_less_than_ten_minutes_is_not_worth_a_word(seconds, said, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("privbo_plugins.sessions.scheduler.time.monotonic", lambda: now[0])
    first, told = FirstTrials(), []
    for _ in range(3):
        now[0] += seconds
        told.append(first.count(seconds, lambda: 30))
    assert [bool(text) for text in told] == [False, False, said]
