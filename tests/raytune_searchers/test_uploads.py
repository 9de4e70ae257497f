"""Vectors that travel in blocks: in turn, within a cap, and never two of them mixed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from privbo_plugins.errors import VaultError
from raytune_searchers import _channel
from raytune_searchers._channel import (
    LOSSES,
    NAMESPACE,
    OBJECTS_KNOWN,
    WINDOW_BYTES,
    LossChannel,
    Payload,
    Reply,
    TrialSender,
)
from raytune_searchers.hosts.uploads import HELD_BYTES, STANDSTILL, Inbox
from tests.inside import end_host, host_name, published_by
from tests.raytune_searchers.runs import begun, ledger, make_search

SIZE = 2**13
"""Bytes of a block on the smallest channel: a thousand doubles and a few."""

N = 3 * SIZE // 8 + 5
"""Of a vector in four blocks."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def vector_of(number: int, n: int = N) -> np.ndarray:
    """One of its own for every sender, in which no two entries are equal."""
    return np.arange(n) + 1e6 * (1 + number)


# The host's end ---------------------------------------------------------------------------------


def asked(inbox: Inbox, owner: str, n_bytes: int) -> bool:
    """Whether an owner's upload of its own name may begin."""
    return inbox.turn(owner, f"u{owner}", n_bytes, SIZE) == 0


def test_vectors_begin_in_the_order_in_which_they_asked_and_while_there_is_room() -> None:
    inbox = Inbox(room=10 * SIZE, clock=Clock())
    assert [asked(inbox, str(i), 4 * SIZE) for i in range(4)] == [True, True, False, False]
    assert not asked(inbox, "4", SIZE)  # it would fit, and comes after those who wait
    inbox.drop("0")
    assert [asked(inbox, i, 4 * SIZE) for i in ("3", "2", "3")] == [False, True, False]
    assert inbox.held == 8 * SIZE


def test_a_vector_larger_than_the_room_comes_in_alone() -> None:
    inbox = Inbox(room=SIZE, clock=Clock())
    assert asked(inbox, "0", 9 * SIZE)
    assert not asked(inbox, "1", 8)
    inbox.drop("0")
    assert asked(inbox, "1", 8)


def passed(inbox: Inbox, clock: Clock, seconds: float, *waiting: str) -> None:
    """Time in which those who wait ask again, as they do."""
    for _ in range(int(seconds * 2)):
        clock.now += 0.5
        for owner in waiting:
            asked(inbox, owner, 4 * SIZE)


def test_the_turn_of_a_trial_that_died_under_way_expires() -> None:
    clock = Clock()
    inbox = Inbox(room=4 * SIZE, clock=clock)
    assert asked(inbox, "0", 4 * SIZE)
    assert inbox.stage("u0", 0, bytes(SIZE))
    passed(inbox, clock, STANDSTILL - 1, "1")
    assert inbox.held == 4 * SIZE
    assert not asked(inbox, "1", 4 * SIZE)
    passed(inbox, clock, 2, "1")
    assert inbox.stage("u1", 0, bytes(SIZE))
    assert not inbox.stage("u0", 1, bytes(SIZE))
    assert inbox.take("0", "u0") is None


def test_a_trial_that_died_while_it_waited_keeps_nobody_waiting() -> None:
    clock = Clock()
    inbox = Inbox(room=4 * SIZE, clock=clock)
    assert [asked(inbox, i, 4 * SIZE) for i in ("0", "1", "2")] == [True, False, False]
    inbox.drop("0")
    assert not asked(inbox, "2", 4 * SIZE)
    passed(inbox, clock, 6, "2")
    assert inbox.stage("u2", 0, bytes(SIZE))


def test_a_host_that_was_busy_blames_no_sender() -> None:
    """Blocks wait in its queue meanwhile, behind somebody's question."""
    clock = Clock()
    inbox = Inbox(room=4 * SIZE, clock=clock)
    assert asked(inbox, "0", 4 * SIZE)
    clock.now += 100 * STANDSTILL
    assert not asked(inbox, "1", 4 * SIZE)
    assert inbox.stage("u0", 0, bytes(SIZE))


@pytest.mark.parametrize(
    ("index", "length"), [(-1, SIZE), (4, SIZE), (0, SIZE - 8), (3, SIZE), (3, 0), (1, SIZE + 8)]
)
def test_a_block_that_does_not_fit_is_refused(index: int, length: int) -> None:
    inbox = Inbox(clock=Clock())
    assert asked(inbox, "0", 8 * N)
    with pytest.raises(ValueError, match="does not fit"):
        inbox.stage("u0", index, bytes(length))


@pytest.mark.parametrize("lost", range(4))
def test_a_vector_with_a_hole_is_not_taken(lost: int) -> None:
    inbox, raw = Inbox(clock=Clock()), vector_of(0).tobytes()
    assert asked(inbox, "0", len(raw))
    for index in {0, 1, 2, 3} - {lost}:
        assert inbox.stage("u0", index, raw[index * SIZE : (index + 1) * SIZE])
    assert inbox.take("0", "u0") is None
    assert inbox.held == 0


@pytest.mark.parametrize(("n_bytes", "size"), [(0, SIZE), (-8, SIZE), (12, SIZE), (8, 0)])
def test_no_turn_for_what_is_no_vector(n_bytes: int, size: int) -> None:
    with pytest.raises(ValueError, match="vector of doubles"):
        Inbox(clock=Clock()).turn("0", "u", n_bytes, size)


# Both ends --------------------------------------------------------------------------------------


class Taker:
    """A host that keeps the first vector of each owner, as a vault does.

    Args:
        room: Of its inbox.
        clock: Of its inbox.
        limit: Bytes of an argument above which this Ray would store it.
    """

    def __init__(self, room: int, clock: Any, limit: int = SIZE + 2**10) -> None:
        self._limit, self.most = limit, 0
        self._begin: Callable[[], Inbox] = lambda: Inbox(room, clock)
        self.kept: dict[str, bytes] = {}
        self.restart()

    def restart(self) -> None:
        """What it holds in memory is lost; what it has kept is in a database."""
        self.inbox = self._begin()

    def __call__(self, operation: str, *args: Any) -> Reply:
        if operation == OBJECTS_KNOWN:
            return None, int(len(args[0]) > self._limit)
        result = getattr(self, f"_{operation}")(*args)
        self.most = max(self.most, self.inbox.held)
        return None, result

    def _turn(self, *args: Any) -> float:
        return self.inbox.turn(*args)

    def _stage(self, *args: Any) -> bool:
        return self.inbox.stage(*args)

    def _commit(self, owner: str, parcel: Payload, _x: Any, _index: str | None) -> float | None:
        vector = self.inbox.take(owner, parcel)
        if vector is None:
            return None
        self.kept.setdefault(owner, vector.tobytes())
        return float(owner)


class Lost(Exception):
    """This sender's process was killed."""


@dataclass
class Sender:
    """A trial in a thread, of which only one moves at a time: when the test says so."""

    number: int
    owner: str
    taker: Taker
    clock: Clock
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stood: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    asked: tuple[Any, ...] = ()
    killed: bool = False
    resend: bool = False
    outcome: Any = None
    flying: int = 0
    most: int = 0

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def move(self) -> None:
        """Lets it do one more thing, if it is not done."""
        if self._thread.is_alive():
            self.go.release()
            self.stood.acquire()
            if self.outcome is not None:
                self._thread.join()

    def _pause(self) -> None:
        self.stood.release()
        self.go.acquire()
        if self.killed:
            raise Lost

    def _run(self) -> None:
        self.go.acquire()
        try:
            self.outcome = LossChannel(self).tell(self.owner, np.zeros(1), vector_of(self.number))
        except Exception as error:
            self.outcome = error  # any other would leave whoever moves it waiting for ever
        self.stood.release()

    def wait(self, seconds: float) -> None:
        """Everybody's waiting is at the same time."""
        until = self.clock.now + seconds
        self._pause()
        self.clock.now = max(self.clock.now, until)

    # As a way to a host:

    def __call__(self, *args: Any) -> Reply:
        if args[0] != OBJECTS_KNOWN:  # before Python 3.12 one lock is held by all who ask that
            self._pause()
        if args[0] == "turn":
            self.asked = args
        return self._arrived(args)

    def begin(self, *args: Any) -> Callable[[], Reply]:
        """Sent at once, or lost on the way and sent again when its reply is waited for."""
        self.flying += len(args[-1])
        self.most = max(self.most, self.flying)
        lost, self.resend = self.resend, False
        reply = None if lost else self._arrived(args)

        def answer() -> Reply:
            self.flying -= len(args[-1])
            self._pause()
            if self.resend:  # Ray repeats what a host did before it died
                self.resend = False
                return self._arrived(args)
            return self._arrived(args) if reply is None else reply

        return answer

    def _arrived(self, args: tuple[Any, ...]) -> Reply:
        return self.taker(*args)


@contextmanager
def waiting_by(senders: list[Sender]) -> Iterator[None]:
    """A sender that waits its turn stands still until it is moved."""

    def sleep(seconds: float) -> None:
        by_thread = {sender._thread: sender for sender in senders}
        by_thread[threading.current_thread()].wait(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_channel.time, "sleep", sleep)
        yield


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.integers(0, 3)),
        st.tuples(st.just("move"), st.integers(0, 3)),
        st.tuples(st.just("again"), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 1)),
        st.tuples(st.just("old"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 40)),
    ),
    max_size=80,
)


def happen(event: tuple[str, int], senders: list[Sender], taker: Taker, clock: Clock) -> None:
    """One event; senders 0 and 1 are two attempts of one trial, of which some may be killed."""
    kind, number = event
    if kind == "restart":
        taker.restart()
    elif kind == "pass":
        clock.now += number
    elif kind == "again":
        senders[number].resend = True
    elif kind == "old":  # what a host was asked long ago arrives at the next one too
        if senders[number].asked:
            taker(*senders[number].asked)
    else:
        senders[number].killed |= kind == "kill"
        senders[number].move()


def come_to_an_end(senders: list[Sender]) -> bool:
    """Whether all that live are done some time after nothing more goes wrong."""
    for _ in range(2000):
        for sender in senders:
            sender.move()
        if all(sender.outcome is not None for sender in senders):
            return True
    return False


@settings(max_examples=300, deadline=None)
@given(events=EVENTS, room=st.sampled_from([SIZE, 8 * N, 20 * N]))
def test_whatever_happens_a_vector_is_kept_exactly_or_not_at_all(
    events: list[tuple[str, int]], room: int
) -> None:
    clock = Clock()
    taker = Taker(room, clock)
    senders = [Sender(i, owner, taker, clock) for i, owner in enumerate("0012")]
    with waiting_by(senders):
        for sender in senders:
            sender.start()
        for event in events:
            happen(event, senders, taker, clock)
        assert come_to_an_end(senders)
    for sender in senders:
        assert isinstance(sender.outcome, float | VaultError | Lost), sender.outcome
        if sender.outcome == float(sender.owner):
            assert sender.owner in taker.kept
    for owner, kept in taker.kept.items():
        assert kept in {vector_of(s.number).tobytes() for s in senders if s.owner == owner}
    assert taker.most <= max(room, 8 * N)


def test_of_64_trials_that_end_together_a_host_holds_no_more_than_it_may() -> None:
    clock, room = Clock(), 10 * 8 * N
    taker = Taker(room, clock)
    senders = [Sender(i, str(i), taker, clock) for i in range(64)]
    with waiting_by(senders):
        for sender in senders:
            sender.start()
        assert come_to_an_end(senders)
    assert taker.kept == {str(i): vector_of(i).tobytes() for i in range(64)}
    assert 8 * N < taker.most <= room
    assert {sender.outcome for sender in senders} == set(map(float, range(64)))


def test_a_window_of_one_vector_is_under_way_and_is_used() -> None:
    clock, n = Clock(), 3 * WINDOW_BYTES // 8
    taker = Taker(HELD_BYTES, clock)
    sender = Sender(0, "0", taker, clock)
    with pytest.MonkeyPatch.context() as patch, waiting_by([sender]):
        patch.setattr(f"{__name__}.vector_of", lambda number: np.arange(float(n)))
        sender.start()
        while sender.outcome is None:
            sender.move()
    assert sender.outcome == 0.0
    assert sender.most == WINDOW_BYTES
    assert np.array_equal(np.frombuffer(taker.kept["0"]), np.arange(n))


def test_a_small_vector_is_one_call() -> None:
    calls: list[str] = []
    taker = Taker(HELD_BYTES, Clock())

    def send(*args: Any) -> Reply:
        calls.append(args[0])
        return taker(*args)

    assert LossChannel(send).tell("3", np.zeros(2), np.arange(100.0)) == 3.0
    assert [call for call in calls if call != OBJECTS_KNOWN] == ["commit"]
    assert taker.kept["3"] == np.arange(100.0).tobytes()


@pytest.mark.parametrize("n", [SIZE // 8 - 1, SIZE // 8, SIZE // 8 + 1])
def test_what_a_call_carries_besides_leaves_the_vector_less_room(n: int) -> None:
    sizes: list[int] = []
    taker = Taker(HELD_BYTES, Clock())

    def send(operation: str, *args: Any) -> Reply:
        if operation != OBJECTS_KNOWN:
            arrays = [a.nbytes if isinstance(a, np.ndarray) else len(a) for a in args if sized(a)]
            sizes.append(sum(arrays))
        return taker(operation, *args)

    def sized(a: Any) -> bool:
        return isinstance(a, np.ndarray | bytes)

    x = np.zeros(100)
    assert LossChannel(send).tell("3", x, np.arange(float(n))) == 3.0
    assert max(sizes) <= SIZE
    assert taker.kept["3"] == np.arange(float(n)).tobytes()


# Through Ray ------------------------------------------------------------------------------------


def uploaded(name: str, trials: list[str], n: int) -> dict[str, float]:
    """What some trials were told, all of which ended at the same time, in a worker of Ray."""
    with ThreadPoolExecutor(len(trials)) as pool:

        def tell(trial: str) -> float:
            channel = LossChannel(TrialSender(name, LOSSES))
            return channel.tell(trial, np.array([0.5]), np.full(n, int(trial) / 100))

        return dict(zip(trials, pool.map(tell, trials), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.soak), True])
def test_many_vectors_reach_a_host_through_ray_also_one_that_is_killed(
    the_ray: Any, killed: bool, tmp_path: Path
) -> None:
    """With so little noise that each release tells whose vector it was made of."""
    trials, n = [str(i) for i in range(16)], 600_000
    url = f"sqlite:///{tmp_path}/vault.db"
    search = begun(make_search(1e6, n_starts=len(trials), n_steps=1, vault=url))
    for trial in trials:
        assert isinstance(search.suggest(trial), dict)
    task = the_ray.remote(uploaded).remote(host_name(search), trials, n)
    if killed:
        while not published_by(search):
            time.sleep(0.01)
        actor = the_ray.get_actor(host_name(search), namespace=NAMESPACE)
        the_ray.kill(actor, no_restart=False)
    told = the_ray.get(task)
    assert told == {trial: pytest.approx(int(trial) / 100, abs=1e-3) for trial in trials}
    assert len(ledger(search)[0]) == len(trials)
    end_host(search)


def test_nobody_gets_another_ones_vector_and_blocks_are_counted_before_there_is_room() -> None:
    inbox = Inbox(clock=Clock())
    assert asked(inbox, "0", 2 * SIZE)
    for index in range(2):
        assert inbox.stage("u0", index, bytes(SIZE))
    assert inbox.take("1", "u0") is None
    assert inbox.take("0", "u0") is not None
    with pytest.raises(ValueError, match="at most 65536 blocks"):
        inbox.turn("2", "u2", 2**24, 8)
    with pytest.raises(ValueError, match="a vector of doubles"):
        inbox.turn("2", "u2", 2**40, 2**16)
