"""Who evaluates what, for every host: owners, retries, and what is given up.

An algorithm that learns from one number a trial waits for nobody, or for *draws*: evaluations that
it needs before it goes on (:class:`privbo_plugins.algorithms.duets.DUETS`). Here is decided what
becomes of a trial:

* A draw whose trial ended without a number is evaluated again, at the same point. After
  :data:`ATTEMPTS` trials it is given up: once everything else of its epoch is known, it counts as
  the worst value of the epoch's draws, because the epoch would never end. Nobody has observed
  that value, so no recommendation rests on it.
* A trial that evaluated another point than it was given has lost its draw.
* Every other number informs the recommendation only.
* So many trials in a row that fail, or of which nothing is learnt, end a run (:class:`EarlyStop`).

A host that hands out all draws itself tells numbers as they come (:class:`Scheduler`). Where
several processes share a storage (:class:`SharedScheduler`), each derives the same from its
trials, at whatever time it reads them:

* A trial *claims* a draw, looks whether another one has it too, and *holds* it if not. Of trials
  that claim a draw at once, at most one comes to hold it; the others take another draw.
* A draw belongs to the lowest-numbered of the first :data:`ATTEMPTS` trials that hold it, of those
  that have not ended without its value. If all of these have, it is given up for good, whatever
  trials hold it later.
* Values of an epoch are told, in the order of its draws, once each has an owner that has ended or
  is given up.

Runs on per-record losses keep their places in the vault, which all workers share:
:mod:`privbo_plugins.sessions.records`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from privbo_plugins.algorithms.protocols import ATTEMPTS, Evaluation, Slot, lasting
from privbo_plugins.spaces import Space, same_point

HOPELESS = 10
"""So many failures in a row end a run that nothing else would end."""

FRUITLESS = 50
"""So many trials in a row that nothing was released of, failed, pruned or stopped, end it as well:
pruners and schedulers may end most trials early, but not all of them."""

_FIRST = 3
"""Trials after which a host knows how long all of a plan take."""

_LONG = 600.0
"""Seconds of a run from which it is worth saying."""

_LOOKS = 5
"""Times that a claim is looked at again until a later trial has given way."""

A = TypeVar("A", bound=Any)
P = TypeVar("P", bound=Hashable)
T = TypeVar("T")


class FailureCounts(Generic[P]):
    """Trials that ended without a number, by the place that they held."""

    def __init__(self) -> None:
        self._trials: dict[P, set[Hashable]] = {}

    def add(self, place: P, trial: Hashable) -> None:
        """Notes a trial, once."""
        self._trials.setdefault(place, set()).add(trial)

    def take_back(self, place: P, trial: Hashable) -> None:
        """A trial that the host has run again, under its name, has ended with a number."""
        self._trials.get(place, set()).discard(trial)

    def of(self, place: P) -> set[Any]:
        """Trials that ended so at a place."""
        return set(self._trials.get(place, ()))

    def given_up(self) -> set[P]:
        """Lists places that need no further trial."""
        return {place for place, trials in self._trials.items() if len(trials) >= ATTEMPTS}

    def keep(self, wanted: Callable[[P], bool]) -> None:
        """Forgets places that are no longer of interest."""
        self._trials = {place: lost for place, lost in self._trials.items() if wanted(place)}

    def clear(self) -> None:
        """Forgets everything."""
        self._trials.clear()


class EarlyStop:
    """How many trials in a row were in vain.

    Args:
        failures: So many failures in a row are hopeless.
        fruitless: So many trials in a row of which nothing was learnt, however they ended.
    """

    def __init__(self, failures: int = HOPELESS, fruitless: int = FRUITLESS) -> None:
        self.failures, self.fruitless = failures, max(failures, fruitless)
        self._failed = self._in_vain = 0

    def count(self, *, failed: bool, learnt: bool) -> str | None:
        """Counts a trial that has ended; what to say if it is the one that ends the run."""
        before = self.over
        self._failed = self._failed + 1 if failed else 0
        self._in_vain = 0 if learnt else self._in_vain + 1
        if before or not self.over:
            return None
        if self._failed >= self.failures:
            return f"{self._failed} trials failed one after another"
        return f"nothing was released of {self._in_vain} trials one after another"

    @property
    def over(self) -> bool:
        """Checks whether the run should end."""
        return self._failed >= self.failures or self._in_vain >= self.fruitless


class FirstTrials:
    """Tells once, after the first trials, how long all of a plan will take, if that is long.

    Times are of this process's clock and are kept by it alone.
    """

    def __init__(self) -> None:
        self._begun: list[float] = []

    def count(self, seconds: float, n_trials: Callable[[], int]) -> str | None:
        """Counts a trial that ends now; what to say if it is the one that tells.

        Args:
            seconds: How long ago it began; trials that run at once end together.
            n_trials: Number of trials of the plan.
        """
        self._begun.append(time.monotonic() - seconds)
        if len(self._begun) != _FIRST:
            return None
        took, n = time.monotonic() - min(self._begun), n_trials()
        if took / _FIRST * n < _LONG:
            return None
        return (
            f"The first {_FIRST} trials took {lasting(took)}: about {lasting(took / _FIRST * n)} "
            f"for all {n} trials of the plan. n_trials= makes it shorter."
        )


class Scheduler(Generic[A]):
    """An algorithm, and what it has been told of trials that one process hands out.

    Args:
        algorithm: Knows nothing yet, or what it was restored with; one that waits for draws has
            ``slots``, as :class:`privbo_plugins.algorithms.duets.DUETS` has.
        lost: Trials that have ended without a number, as restored.
    """

    def __init__(self, algorithm: A, lost: FailureCounts[Slot] | None = None) -> None:
        self.algorithm = algorithm
        self._draws = hasattr(algorithm, "slots")
        self.lost: FailureCounts[Slot] = FailureCounts() if lost is None else lost

    def _slots(self) -> list[Slot]:
        """Draws of the open epoch; none where the algorithm waits for none."""
        return list(self.algorithm.slots()) if self._draws else []

    def next(
        self, key: int, out: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """Returns what the next trial evaluates, or None to wait.

        A draw that is neither taken nor given up, or what the algorithm has besides.

        Args:
            key: Distinguishes this ask from others where nothing is known yet.
            out: What trials evaluate that have not ended.
            may_wait: Whether the host can wait.
        """
        gone = [self.algorithm.evaluation_of(slot) for slot in self._given_up()]
        chosen: Evaluation | None = self.algorithm.ask(key, [*out, *gone], may_wait=may_wait)
        return chosen

    def tell(self, trial: Hashable, evaluation: Evaluation, value: float) -> None:
        """A trial has ended with a finite number."""
        slot = evaluation.slot
        if slot is not None:
            self.lost.take_back(slot, trial)
        self.algorithm.tell(evaluation, value)
        self._go_on()

    def fail(self, trial: Hashable, evaluation: Evaluation) -> None:
        """A trial has ended without one; its draw is open again, or given up."""
        slot = evaluation.slot
        if slot is not None:
            self.lost.add(slot, trial)
            self._go_on()

    def _given_up(self) -> list[Slot]:
        gone = self.lost.given_up()
        return [slot for slot in self.algorithm.open_slots() if slot in gone] if gone else []

    def _go_on(self) -> None:
        """Gives draws up where their epoch waits for nothing else."""
        algorithm = self.algorithm
        gone = self._given_up()
        if not gone or len(gone) < len(algorithm.open_slots()):
            return
        known = known_of(algorithm, ()) or [value for _, value in algorithm.evaluations]
        worst = algorithm.worst(known)
        if worst is None:
            return
        for evaluation in [algorithm.evaluation_of(slot) for slot in gone]:
            algorithm.give_up(evaluation, worst)
        self.lost.keep(lambda slot: slot[0] >= algorithm.epoch)


@dataclass(frozen=True)
class Attempt:
    """What a storage shows of one trial.

    Attributes:
        number: Its place in the order of trials.
        params: What it evaluates, as far as it is known.
        state: "waiting" (not started), "running" or "ended".
        value: Its number, if it has ended with a finite one.
        epoch: The group of evaluations that it belongs to, where there are no draws.
        held: The draw that it holds, or held.
        wanted: The draw that it has claimed and does not hold yet.
    """

    number: int
    params: Mapping[str, Any]
    state: str
    value: float | None = None
    epoch: int | None = None
    held: Slot | None = None
    wanted: Slot | None = None

    @property
    def ended(self) -> bool:
        """Checks whether it has ended."""
        return self.state == "ended"

    @property
    def running(self) -> bool:
        """Checks whether it has started and not ended."""
        return self.state == "running"

    def evaluation(self, space: Space) -> Evaluation | None:
        """Returns what it evaluates, as no draw; None if it lies in another space."""
        if not set(space) <= set(self.params):
            return None
        try:
            x = space.encode(self.params)
        except ValueError:  # a choice that the space does not know
            return None
        return Evaluation(space.snap(x), self.epoch)


@dataclass(frozen=True)
class Holders:
    """Who holds the draws of the open epoch.

    Attributes:
        owners: Draws that have an owner, and whom.
        given_up: Draws that have been tried often enough.
        candidates: Trials that are an owner, or become one if those before them fail.
    """

    owners: dict[Slot, Attempt] = field(default_factory=dict)
    given_up: set[Slot] = field(default_factory=set)
    candidates: set[int] = field(default_factory=set)


class SharedScheduler(Scheduler[A]):
    """What an algorithm has been told of a storage's trials, which several processes share.

    Args:
        algorithm: Knows nothing yet.
        space: Where it looks.

    Attributes:
        stray: The first trial found to have evaluated another point than its draw's.
    """

    def __init__(self, algorithm: A, space: Space) -> None:
        super().__init__(algorithm)
        self.space = space
        self.stray: int | None = None
        self._at: dict[int, bool] = {}
        self._told: set[int] = set()
        self._first_open = 0

    def unread(self, trials: Sequence[T]) -> list[T]:
        """Trials, given in the order of their numbers, that had not been dealt with yet."""
        first = self._first_open
        later = enumerate(trials[first:], first)
        return [trial for number, trial in later if number not in self._told]

    def _read(self, attempts: Iterable[Attempt]) -> None:
        """Remembers ended trials; those before the first open one need no list."""
        self._told |= {attempt.number for attempt in attempts}
        while self._first_open in self._told:
            self._told.discard(self._first_open)
            self._first_open += 1

    def read(self, attempts: Sequence[Attempt], asking: int | None) -> list[Evaluation]:
        """Tells epochs that are complete, and what else has ended; what the others evaluate.

        Draws of the open epoch that are done count as out: they are learnt with its last one.

        Args:
            attempts: Those that :meth:`unread` has named.
            asking: A trial that is about to ask, and evaluates nothing yet.
        """
        left, held = self._close_epochs(attempts)
        ended = [a for a in left if a.ended and not self._waits(a, held)]
        for evaluation, value in self.values(ended):
            stray = Evaluation(evaluation.x)  # it belongs to no epoch of draws
            self.algorithm.tell(stray if self._draws else evaluation, value)
        self._read(ended)
        open_now = [a for a in left if not a.ended and a.number != asking]
        out = {slot for slot, owner in held.owners.items() if owner.number != asking}
        out |= {a.wanted for a in open_now if a.wanted is not None} | held.given_up
        draws = [self.algorithm.evaluation_of(s) for s in self._slots() if s in out]
        others = [a.evaluation(self.space) for a in open_now if a.running]
        return draws + [evaluation for evaluation in others if evaluation is not None]

    def values(self, attempts: Iterable[Attempt]) -> list[tuple[Evaluation, float]]:
        """Evaluations and their numbers; all are read before the algorithm learns the first."""
        ended = [(a.evaluation(self.space), a.value) for a in attempts if a.value is not None]
        return [(e, value) for e, value in ended if e is not None and value is not None]

    def comes_first(self, number: int, slot: Slot, look: Callable[[], Sequence[Attempt]]) -> bool:
        """Checks whether a trial may hold the draw that it has claimed.

        Not if it is given up, or somebody else has it or wants it. Of two trials that claimed it,
        the one that looks last sees the other; it gives way unless the other does.

        Args:
            number: The trial.
            slot: The draw.
            look: Reads the trials of the storage that are not dealt with yet.
        """
        for _ in range(_LOOKS):
            others = [attempt for attempt in look() if attempt.number != number]
            wanted = [attempt.number for attempt in others if attempt.wanted == slot]
            held = self._holders(others)
            taken = slot in held.owners or slot in held.given_up
            if taken or min(wanted, default=number) < number:
                return False
            if not wanted:
                return True
        return False

    def late(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Trials that an epoch waits for while everything else of it is known."""
        held = self._holders(attempts)
        left = [slot for slot in self._slots() if slot not in held.given_up]
        if not set(left) <= set(held.owners):
            return []
        waited_for = [owner for owner in held.owners.values() if not owner.ended]
        return sorted(waited_for, key=lambda attempt: attempt.number)

    def _close_epochs(self, attempts: Sequence[Attempt]) -> tuple[list[Attempt], Holders]:
        """Tells every epoch that is complete; the trials that are left, and who holds what.

        A draw that somebody has claimed is not given up before he has seen that he must not.
        """
        algorithm, left = self.algorithm, list(attempts)
        while True:
            held = self._holders(left)
            slots = self._slots()
            if not slots:
                return left, held
            done = {slot: owner for slot, owner in held.owners.items() if owner.ended}
            gone = held.given_up - {attempt.wanted for attempt in left}
            worst = algorithm.worst(known_of(algorithm, done.values()))
            if not set(slots) <= set(done) | gone or (gone and worst is None):
                return left, held
            self._tell_epoch(done, worst)
            told = {owner.number for owner in done.values()}
            self._read(done.values())
            self._at.clear()
            self.lost.keep(lambda slot: slot[0] >= algorithm.epoch)
            left = [attempt for attempt in left if attempt.number not in told]

    def _tell_epoch(self, done: Mapping[Slot, Attempt], worst: float | None) -> None:
        slots = self._slots()
        evaluations = [self.algorithm.evaluation_of(slot) for slot in slots]
        for slot, evaluation in zip(slots, evaluations, strict=True):
            if slot in done:
                self.algorithm.tell(evaluation, float(done[slot].value or 0.0))
            elif worst is not None:
                self.algorithm.give_up(evaluation, worst)

    def _holders(self, attempts: Iterable[Attempt]) -> Holders:
        """Finds the holders, from trials not dealt with yet and what those that are have lost.

        Given up is for good: trials never take a value back, and none comes to hold such a draw.
        """
        holding = self._holding(attempts)
        found = Holders()
        for slot in self._slots():
            held, lost = holding.get(slot, {}), self.lost.of(slot)
            first = sorted(set(held) | lost)[:ATTEMPTS]
            good = [number for number in first if number not in lost]
            found.candidates.update(good)
            if good:
                found.owners[slot] = held[good[0]]
            elif len(first) == ATTEMPTS:
                found.given_up.add(slot)
        return found

    def _holding(self, attempts: Iterable[Attempt]) -> dict[Slot, dict[int, Attempt]]:
        """Trials by the draws of the open epoch that they hold; who lost one is remembered."""
        holding: dict[Slot, dict[int, Attempt]] = {}
        now = set(self._slots())
        for attempt in attempts:
            slot = attempt.held
            if slot is None:
                continue
            if attempt.ended and attempt.value is None:
                self.lost.add(slot, attempt.number)
            elif slot in now and self._is_there(attempt, slot):
                holding.setdefault(slot, {})[attempt.number] = attempt
            elif slot in now:
                self.lost.add(slot, attempt.number)
                self.stray = attempt.number if self.stray is None else self.stray
        return holding

    def _is_there(self, attempt: Attempt, slot: Slot) -> bool:
        """Checks whether a trial evaluates its draw; parameters may still be missing."""
        if not set(self.space) <= set(attempt.params):
            return not attempt.ended
        if attempt.number not in self._at or not attempt.ended:
            evaluation = self.algorithm.evaluation_of(slot)
            self._at[attempt.number] = is_at(attempt.params, evaluation, self.space)
        return self._at[attempt.number]

    def _waits(self, attempt: Attempt, held: Holders) -> bool:
        """Checks whether an ended trial's number has to wait for its epoch to be done."""
        if attempt.held is None or attempt.value is None or not self._slots():
            return False
        return attempt.number in held.candidates or attempt.held[0] > self.algorithm.epoch


def known_of(algorithm: Any, owners: Iterable[Attempt]) -> list[float]:
    """Numbers that the worst one is taken of: of this epoch's draws, or of those before."""
    now = [owner.value for owner in owners if owner.value is not None]
    told = [(evaluation.epoch, value) for evaluation, value in algorithm.evaluations]
    now += [value for epoch, value in told if epoch == algorithm.epoch]
    return now or [value for epoch, value in told if epoch is not None]


def is_at(params: Mapping[str, Any], evaluation: Evaluation, space: Space) -> bool:
    """Checks whether parameters are those of an evaluation."""
    own = {name: params[name] for name in space}
    if own == space.decode(evaluation.x):
        return True
    try:
        x = space.encode(own)
    except ValueError:  # a choice that the space does not know
        return False
    return same_point(space.snap(x), evaluation.x)


def finite(value: Any) -> float | None:
    """A finite number, or None."""
    return value if value is not None and math.isfinite(value) else None
