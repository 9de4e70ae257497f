"""The curator: one draw a trial, users' accounts, secrecy of names and rewards, and its words.

Seeded sources stand in for the system's entropy where only the bookkeeping is tested; two curators
over one store get different seeds there, so that a second draw would show.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privbo_plugins.convert import as_reward
from privbo_plugins.errors import BudgetExceededError, PrivacyError, VaultError
from privbo_plugins.privacy.accountant import evaluations_epsilon
from privbo_plugins.privacy.local import LOCAL_MECHANISMS, LocalMechanism, make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.privacy.words import texts_of
from privbo_plugins.sessions import rewards as rewards_module
from privbo_plugins.sessions.rewards import (
    RewardSession,
    check_user_budget,
    local_guarantee,
)
from privbo_plugins.store.release import TEST_NOISE
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import Vault, open_vault
from tests.inside import pseudonym

from ..leaks import Scanner
from .scenes import at_once, release_rewards

DELTA = 1e-6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private.db"


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_database"))
    return f"sqlite:///{path}"


@pytest.fixture(params=["memory", "file", "postgres"])
def vault(request: pytest.FixtureRequest, path: Path) -> Iterator[Vault]:
    if request.param == "postgres":
        opened = open_vault(request.getfixturevalue("postgres_database"))
    else:
        opened = open_vault(None if request.param == "memory" else f"sqlite:///{path}")
    yield opened
    opened.close()


def mechanism_of(name: str = "laplace", epsilon: float = 0.5) -> LocalMechanism:
    delta = DELTA if name == "gaussian" else None
    return make_mechanism(epsilon, value_range=(0.0, 1.9), mechanism=name, delta=delta)


class Counting(InsecureNoise):
    """Counts what is drawn."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.draws = 0

    def add_laplace(self, value: float, scale: float) -> float:
        self.draws += 1
        return super().add_laplace(value, scale)

    def add_gaussian(self, value: np.ndarray, scale: float) -> np.ndarray:
        self.draws += 1
        return super().add_gaussian(value, scale)


def curator_of(
    vault: Vault,
    noise: Any = None,
    *,
    mechanism: LocalMechanism | None = None,
    host_key: str = "study",
    budget: float | None = None,
    delta: float = 0.0,
) -> RewardSession:
    return RewardSession(
        mechanism_of() if mechanism is None else mechanism,
        vault,
        host_key,
        user_budget=budget,
        user_delta=delta,
        noise=Counting() if noise is None else noise,
    )


def ledger(curator: RewardSession) -> list[tuple[str, str, float, float, float]]:
    with curator.vault.transaction(curator.run.run_id) as tx:
        return tx.evaluations()


# Replay -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
def test_a_trial_is_drawn_once_whatever_its_reward_is_later(vault: Vault, name: str) -> None:
    curator = curator_of(vault, InsecureNoise(0), mechanism=mechanism_of(name))
    assert curator.replay("7") is None
    first = curator.release("7", 0.25, "Jane", worst=0.0)
    for reward in (0.25, 1.9, -1e308, math.nan, math.inf):
        for user in ("Jane", "Joe", None, 3):
            assert curator.release("7", reward, user, worst=1.0) == first
    assert curator.replay("7") == first
    assert curator.evaluations() == {"7": first}
    assert [row[2:] for row in ledger(curator)] == [
        (0.5, DELTA if name == "gaussian" else 0.0, first)
    ]


def test_a_users_budget_is_that_of_all_runs_of_a_vault(vault: Vault) -> None:
    one, two = (
        curator_of(vault, Counting(seed), host_key=str(seed), budget=1.0) for seed in (1, 2)
    )
    one.release("0", 0.3, "Jane", 0.0)
    two.release("0", 0.3, "Jane", 0.0)
    for curator in (one, two):
        with pytest.raises(BudgetExceededError, match=r"epsilon=1.5 in all"):
            curator.release("1", 0.3, "Jane", 0.0)
    two.release("1", 0.3, "Joe", 0.0)


def test_a_curator_that_comes_later_replays(url: str) -> None:
    vault = open_vault(url)
    first = curator_of(vault, Counting(1)).release("0", 0.3, "Jane", 0.0)
    vault.close()
    later, noise = open_vault(url), Counting(2)
    curator = curator_of(later, noise)
    assert curator.replay("0") == first
    assert curator.release("0", 1.9, "Jane", 0.0) == first
    assert noise.draws == 0
    later.close()


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def guarded(index: int) -> None:
        try:
            barrier.wait(30)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("shared", [True, False], ids=["one-curator", "a-curator-each"])
def test_threads_that_tell_the_same_trials_get_one_release_each(url: str, shared: bool) -> None:
    first = open_vault(url)
    noises = [Counting(seed) for seed in range(4)]
    if shared:
        curators = [curator_of(first, noises[0])] * 4
    else:
        curators = [curator_of(open_vault(url), noise) for noise in noises]
    seen: list[dict[str, float]] = [{} for _ in range(4)]

    def work(i: int) -> None:
        for trial in np.random.default_rng(i).permutation(10):
            key = str(trial)
            seen[i][key] = curators[i].release(key, float(i), "Jane", 0.0)

    assert in_threads(4, work) == []
    assert all(answers == seen[0] for answers in seen)
    assert len(set(seen[0].values())) == 10
    assert sum(noise.draws for noise in noises) == 10
    assert len(ledger(curators[0])) == curators[0].most()[0] == 10
    for vault in {id(v): v for v in (first, *(c.vault for c in curators))}.values():
        vault.close()


def test_two_processes_draw_a_trial_once(path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{path}"
    answers = at_once(release_rewards, (url, 1), (url, 2), folder=tmp_path)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 10
    vault = open_vault(url)
    curator = curator_of(vault, budget=5.0)
    assert curator.evaluations() == {str(t): value for t, value in enumerate(answers[0])}
    assert curator.most()[0] == 10
    with pytest.raises(BudgetExceededError):
        curator.release("10", 0.0, "Jane", 0.0)
    vault.close()


# Charge, draw, store ------------------------------------------------------------------------


class Crash(BaseException):
    """Stands for a crash: not an Exception."""


class Failing(InsecureNoise):
    """Fails in the middle of a draw, the first time."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(0)
        self.error: BaseException | None = error

    def flip(self, probability: float) -> bool:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().flip(probability)


@pytest.mark.parametrize("error", [RuntimeError("disk"), Crash()], ids=["error", "crash"])
def test_a_draw_that_fails_leaves_neither_charge_nor_release(
    vault: Vault, error: BaseException
) -> None:
    curator = curator_of(vault, Failing(error), mechanism=mechanism_of("piecewise"), budget=0.5)
    with pytest.raises(PrivacyError, match="failed inside the engine"):
        curator.release("0", 0.3, "Jane", 0.0)
    assert ledger(curator) == []
    assert curator.replay("0") is None
    assert curator.most()[0] == 0
    curator.check("0", "Jane")  # the budget of one evaluation is still there
    value = curator.release("0", 0.3, "Jane", 0.0)
    assert curator.evaluations() == {"0": value}


def test_a_release_is_charged_then_drawn_then_stored_in_one_transaction(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    open_now: list[Transaction] = []

    def spied(name: str) -> None:
        plain = getattr(Transaction, name)

        def call(tx: Transaction, *args: Any) -> Any:
            open_now[:] = [tx]
            steps.append((name, id(tx)))
            return plain(tx, *args)

        monkeypatch.setattr(Transaction, name, call)

    class Watching(Counting):
        def add_laplace(self, value: float, scale: float) -> float:
            # The charge is already written; no release is.
            assert [row[4] for row in open_now[0].evaluations()] == [None]
            steps.append(("draw", id(open_now[0])))
            return super().add_laplace(value, scale)

    curator = curator_of(vault, Watching())
    for name in ("payer", "charge_evaluation", "store_evaluation"):
        spied(name)
    curator.release("0", 0.3, "Jane", 0.0)
    assert [name for name, _ in steps] == [
        "payer",
        "charge_evaluation",
        "draw",
        "store_evaluation",
    ]
    assert len({tx for _, tx in steps}) == 1


@pytest.mark.parametrize("name", ["charge_evaluation", "store_evaluation"])
def test_a_vault_that_refuses_publishes_nothing(
    vault: Vault, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = Counting()
    curator = curator_of(vault, noise)

    def refuse(*_: Any) -> None:
        raise VaultError("The vault refused an operation.")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, name, refuse)
        with pytest.raises(VaultError):
            curator.release("0", 0.3, "Jane", 0.0)
    assert ledger(curator) == []
    assert noise.draws == (0 if name == "charge_evaluation" else 1)


# A ledger apart from the noise --------------------------------------------------------------


def test_an_evaluation_drawn_elsewhere_is_charged_once_and_stored_once(vault: Vault) -> None:
    ledger_of = RewardSession(mechanism_of(), vault, "study", user_budget=0.5)
    known, dead = ledger_of.charge("0", "Jane")
    assert known is None
    assert ledger_of.replay("0") is None
    assert ledger_of.evaluations() == {}
    assert ledger_of.most()[0] == 1  # what may have been drawn counts
    ledger_of.check("0", "Jane")  # her own evaluation is hers
    known, token = ledger_of.charge("0", "Jane")  # its process died: she is not charged again
    assert known is None
    with pytest.raises(BudgetExceededError, match="Nothing was drawn"):
        ledger_of.charge("1", "Jane")
    with pytest.raises(BudgetExceededError):
        ledger_of.check("1", "Jane")
    with pytest.raises(PrivacyError, match="another attempt"):
        ledger_of.store("0", dead, 7.0)  # of the two that draw on one charge, one may store
    assert ledger_of.store("0", token, -2.5) == -2.5
    assert ledger_of.store("0", token, 7.0) == -2.5  # a token is good for one draw
    assert ledger_of.store("0", dead, 7.0) == -2.5
    assert ledger_of.charge("0", "Jane") == (ledger_of.replay("0"), "") == (-2.5, "")
    assert ledger_of.evaluations() == {"0": -2.5}
    assert ledger_of.most()[0] == 1


def test_a_release_without_a_charge_is_refused(vault: Vault) -> None:
    ledger_of = RewardSession(mechanism_of(), vault, "study")
    with pytest.raises(PrivacyError, match="without a valid charge"):
        ledger_of.store("0", "0" * 32, 1.0)
    assert ledger_of.evaluations() == {}
    assert ledger_of.replay("0") is None


def test_a_charge_without_a_release_is_drawn_by_whoever_comes_next(vault: Vault) -> None:
    RewardSession(mechanism_of(), vault, "study").charge("0", "Jane")
    noise = Counting()
    curator = curator_of(vault, noise)
    value = curator.release("0", 0.3, "Jane", 0.0)
    assert curator.release("0", 1.9, "Jane", 0.0) == value
    assert (noise.draws, curator.most()[0]) == (1, 1)


def test_threads_that_draw_the_same_evaluation_agree_on_one(url: str) -> None:
    vaults = [open_vault(url) for _ in range(4)]
    mechanism = mechanism_of()
    ledgers = [RewardSession(mechanism, vault, "study") for vault in vaults]
    seen: list[dict[int, float]] = [{} for _ in ledgers]

    def work(i: int) -> None:
        for trial in range(10):
            _, token = ledgers[i].charge(str(trial), "Jane")
            try:
                seen[i][trial] = ledgers[i].store(str(trial), token, float(100 * i + trial))
            except PrivacyError:  # another thread was charged after this one
                pass

    assert in_threads(4, work) == []
    released = ledgers[0].evaluations()
    assert len(released) == 10
    for answers in seen:
        assert answers == {trial: released[str(trial)] for trial in answers}
    assert ledgers[0].most()[0] == 10
    for vault in vaults:
        vault.close()


def test_an_evaluation_that_is_retried_for_another_user_is_charged_to_her() -> None:
    ledger_of = RewardSession(mechanism_of(), open_vault(), "study", user_budget=0.5)
    _, token = ledger_of.charge("0", "Joe")
    ledger_of.store("0", token, 1.0)
    ledger_of.charge("1", "Jane")  # and dies
    with pytest.raises((BudgetExceededError, PrivacyError, VaultError, ValueError)):
        ledger_of.charge("1", "Joe")  # a second evaluation of Joe's, for free


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_a_ledger_takes_what_its_mechanism_draws_and_nothing_else(name: str) -> None:
    more = {"delta": 1e-6} if name == "gaussian" else {}
    mechanism = make_mechanism(1.0, value_range=(0.0, 1.0), mechanism=name, **more)
    ledger_of, noise = RewardSession(mechanism, open_vault(), "study"), SecureNoise()
    _, token = ledger_of.charge("0", "Jane")
    raw = [0.123456, -0.123456, 0.5] if name == "duchi" else []
    far = [1e6, -1e6] if name in ("duchi", "piecewise", "hybrid") else []
    for forged in (*raw, *far, math.nan, math.inf, True, 1, None, "1", [1.0], 10**400):
        with pytest.raises(PrivacyError, match="cannot give") as raised:
            ledger_of.store("0", token, forged)  # type: ignore[arg-type]
        assert "123456" not in str(raised.value)
    assert ledger_of.evaluations() == {}
    drawn = mechanism.randomize(0.3, noise, 0.0)
    assert ledger_of.store("0", token, drawn) == drawn


def test_facts_and_marks_of_a_ledger_are_reported_for_ever(url: str) -> None:
    vault = open_vault(url)
    ledger_of = RewardSession(mechanism_of(), vault, "study")
    _, token = ledger_of.charge("0", "Jane")
    ledger_of.store("0", token, 1.0)
    for _ in range(2):
        ledger_of.run.note("a trial was asked twice")
    assert ledger_of.guarantee(1, users_named=True).notes == ("a trial was asked twice",)
    assert ledger_of.guarantee(1, users_named=True).protected
    ledger_of.run.mark_unprotected("a worker was not trusted")
    vault.close()
    later = open_vault(url)
    guarantee = RewardSession(mechanism_of(), later, "study").guarantee(1, users_named=True)
    assert guarantee.reasons == ("a worker was not trusted",)
    assert guarantee.notes == ("a trial was asked twice",)
    later.close()


# Users --------------------------------------------------------------------------------------


def test_pure_evaluations_of_a_user_add_up(vault: Vault) -> None:
    curator = curator_of(vault)
    for trial in range(7):
        curator.release(str(trial), 0.3, "Jane" if trial < 4 else f"user {trial}", 0.0)
    assert curator.most()[0] == 4
    guarantee = curator.guarantee(7, users_named=True)
    assert (guarantee.most_evaluations, guarantee.n_evaluations) == (4, 7)
    assert (guarantee.most_evaluations, guarantee.n_evaluations) == (4, 7)
    assert local_guarantee(mechanism_of(), 7, 4, users_named=True).epsilon == pytest.approx(2.0)


def test_a_name_is_one_user_however_it_is_spelt(vault: Vault) -> None:
    curator = curator_of(vault)
    users: list[list[Any]] = [
        ["1", 1, b"1", np.int64(1), " 1\n", b"1 ", "\uff11"],
        ["é", "e\u0301", "é".encode(), "e\u0301 ".encode()],
        [-1, "-1"],
        [0, "0"],
        ["01"],
        ["1.0"],
        ["Jane"],
        ["jane"],
        ["play:0"],
        ["user:1"],
        ["", " "],
        [b"\xff"],
    ]
    for person, spellings in enumerate(users):
        for i, user in enumerate(spellings):
            curator.release(f"{person}/{i}", 0.3, user, 0.0)
    people: dict[str, set[str]] = {}
    for trial, name, *_ in ledger(curator):
        people.setdefault(trial.partition("/")[0], set()).add(name)
    assert [len(pseudonyms) for pseudonyms in people.values()] == [1] * len(users)
    assert len(set.union(*people.values())) == len(users)
    assert all(len(person) == 64 for persons in people.values() for person in persons)
    assert curator.most() == (7, 3.5)


@pytest.mark.parametrize("user", [True, 1.5, ("Jane", "Doe"), ["Jane Doe"], {"Jane": 1}, object()])
def test_what_is_no_name_is_refused_without_repeating_it(user: Any) -> None:
    noise = Counting()
    curator = curator_of(open_vault(), noise)
    for call in (lambda: curator.release("0", 0.3, user, 0.0), lambda: curator.check("0", user)):
        with pytest.raises(ValueError, match="must be a string, bytes or an integer") as caught:
            call()
        assert "Jane" not in str(caught.value)
    assert noise.draws == 0
    assert curator.evaluations() == {}


# Budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "budget", "evaluations"),
    [(0.5, 0.5, 1), (0.5, 0.99, 1), (0.1, 0.3, 3), (0.5, 1.5, 3), (0.7, 2.1, 3), (0.5, 1.501, 3)],
)
def test_a_user_is_refused_before_anything_is_drawn(
    vault: Vault, epsilon: float, budget: float, evaluations: int
) -> None:
    noise = Counting()
    mechanism = mechanism_of(epsilon=epsilon)
    curator = curator_of(vault, noise, mechanism=mechanism, budget=budget)
    values = [curator.release(str(t), 0.3, "Jane", 0.0) for t in range(evaluations)]
    before = ledger(curator)
    for refuse in (
        lambda: curator.release("next", 0.3, "Jane", 0.0),
        lambda: curator.check("next", "Jane"),
    ):
        with pytest.raises(BudgetExceededError, match="Nothing was drawn") as caught:
            refuse()
        assert f"user_budget={budget:.6g}" in str(caught.value)
        assert f"epsilon={(evaluations + 1) * epsilon:.6g}" in str(caught.value)
        assert "Jane" not in str(caught.value)
        assert "0.3 " not in str(caught.value)
    assert noise.draws == evaluations
    assert ledger(curator) == before
    assert curator.replay("next") is None
    # What she has paid for is replayed, and others may still be asked.
    assert [curator.release(str(t), 0.3, "Jane", 0.0) for t in range(evaluations)] == values
    curator.check("next", "Joe")
    curator.release("next", 0.3, "Joe", 0.0)
    for t in range(evaluations + 1):  # each without a name is another user's
        curator.release(f"nameless {t}", 0.3, None, 0.0)


def test_the_budget_of_gaussian_evaluations_is_spent_in_squares(vault: Vault) -> None:
    """Five times the epsilon of one evaluation is enough for far more than five."""
    mechanism = mechanism_of("gaussian", 1.0)
    allowed = max(
        k for k in range(1, 100) if evaluations_epsilon({mechanism.evaluation: k}, DELTA) <= 5.0
    )
    assert 10 < allowed < 25
    noise = Counting()
    curator = curator_of(vault, noise, mechanism=mechanism, budget=5.0, delta=DELTA)
    for trial in range(allowed):
        curator.release(str(trial), 0.3, "Jane", 0.0)
    with pytest.raises(BudgetExceededError):
        curator.release("next", 0.3, "Jane", 0.0)
    assert noise.draws == allowed


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5])
def test_a_budget_of_one_gaussian_evaluation_allows_it(epsilon: float) -> None:
    mechanism = mechanism_of("gaussian", epsilon)
    curator = curator_of(open_vault(), mechanism=mechanism, budget=epsilon, delta=DELTA)
    curator.check("0", "Jane")


def test_threads_cannot_spend_a_budget_twice(url: str) -> None:
    vault = open_vault(url)
    noises = [Counting(seed) for seed in range(6)]
    curators = [curator_of(vault, noise, budget=1.5) for noise in noises]
    errors = in_threads(6, lambda i: curators[i].release(str(i), 0.3, "Jane", 0.0) and None)
    assert [type(error) for error in errors] == [BudgetExceededError] * 3
    assert sum(noise.draws for noise in noises) == curators[0].most()[0] == 3
    vault.close()


@pytest.mark.parametrize("budget", [0.0, -1.0, 0.499999, math.nan, -math.inf])
def test_a_budget_that_allows_no_evaluation_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match=r"at least the epsilon of one evaluation, 0\.5, got"):
        check_user_budget(mechanism_of(), budget)
    with pytest.raises(ValueError, match="at least the epsilon of one evaluation"):
        curator_of(open_vault(), budget=budget)


# The run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"epsilon": 0.6},
        {"mechanism": "duchi"},
        {"mechanism": "gaussian", "delta": 1e-6},
        {"value_range": (0.0, 1.8)},
        {"value_range": (-0.1, 1.9)},
        {"user_budget": 3.0},
        {"user_budget": None},
        {"user_delta": 1e-6},
    ],
    ids=str,
)
def test_another_mechanism_of_the_same_run_is_refused(vault: Vault, other: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"epsilon": 0.5, "value_range": (0.0, 1.9), "mechanism": "laplace"}
    curator = curator_of(vault, mechanism=make_mechanism(**settings), budget=2.0)
    value = curator.release("0", 0.3, "Jane", 0.0)
    budget = other.get("user_budget", 2.0)
    changed = {k: v for k, v in (settings | other).items() if k != "user_budget"}
    how = {"budget": budget, "delta": other.get("user_delta", other.get("delta", 0.0))}
    changed.pop("user_delta", None)
    with pytest.raises(VaultError, match="another mechanism, epsilon, range or user budget"):
        curator_of(vault, mechanism=make_mechanism(**changed), **how)
    curator_of(vault, mechanism=make_mechanism(**changed), host_key="another", **how)
    same = curator_of(vault, mechanism=make_mechanism(**settings), budget=2)
    assert same.replay("0") == value


def test_two_workers_begin_a_run_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that the run is not begun."""
    vaults = [open_vault(url) for _ in range(2)]
    barrier, seen, plain = threading.Barrier(2), threading.local(), Transaction.run

    def slow(tx: Transaction) -> Any:
        known = plain(tx)
        if not getattr(seen, "done", False):
            seen.done = True
            with suppress(threading.BrokenBarrierError):
                barrier.wait(1.0)
        return known

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "run", slow)
        assert in_threads(2, lambda i: curator_of(vaults[i], SecureNoise()) and None) == []
    for vault in vaults:
        vault.close()


# Test noise ---------------------------------------------------------------------------------


class OfMyOwn(SecureNoise):
    """A subclass could do anything."""


@pytest.mark.parametrize("noise", [InsecureNoise(0), Counting(), OfMyOwn()], ids=type)
def test_test_noise_is_told_for_ever(url: str, noise: Any) -> None:
    vault = open_vault(url)
    curator = curator_of(vault, noise)
    curator.release("0", 0.3, "Jane", 0.0)
    vault.close()
    later = open_vault(url)
    curator = RewardSession(mechanism_of(), later, "study")
    curator.release("1", 0.3, "Jane", 0.0)
    for named in (True, False):
        guarantee = curator.guarantee(2, users_named=named)
        assert not guarantee.protected
        assert guarantee.reasons == (TEST_NOISE,)
        assert guarantee.epsilon == math.inf
        assert TEST_NOISE in str(guarantee)
    later.close()


def test_test_noise_joined_later_is_told_too_and_other_runs_are_not_marked(vault: Vault) -> None:
    secure = RewardSession(mechanism_of(), vault, "study")
    secure.release("0", 0.3, "Jane", 0.0)
    assert secure.guarantee(1, users_named=True).protected
    curator_of(vault, InsecureNoise(0))
    assert secure.guarantee(1, users_named=True).reasons == (TEST_NOISE,)
    other = RewardSession(mechanism_of(), vault, "another study")
    other.release("0", 0.3, "Jane", 0.0)
    assert other.guarantee(1, users_named=True).protected


# Secrecy ------------------------------------------------------------------------------------

NAMES = ["Jane-Doe-a81f0c77", "jane.doe+91b2@example.org", "patient 0042/7781"]
REWARDS = [0.314159265358979, 0.271828182845905, 0.577215664901533]


class Peeking(Counting):
    """Looks at every file of the store while a release is being made."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.found = folder, b""

    def add_laplace(self, value: float, scale: float) -> float:
        self.found += everything_in(self.folder)
        return super().add_laplace(value, scale)


def everything_in(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file())


def secrets() -> Scanner:
    """Names and rewards, as text, decimals, hexadecimals and bytes of both orders."""
    scanner = Scanner()
    for i, name in enumerate(NAMES):
        scanner.add_text(f"name {i}", name)
        scanner.add_text(f"named {i}", f"user:{name!r}")
    for i, reward in enumerate(REWARDS):
        scanner.add_number(f"reward {i}", reward)
        scanner.add_number(f"half-ranges of reward {i}", abs(reward / 0.95 - 1.0))
    return scanner


def short_traces(blob: bytes) -> list[float]:
    """Rewards that lie in it as one float32, of either byte order."""
    forms = {r: [np.array(r, dtype=f"{order}f4").tobytes() for order in "<>"] for r in REWARDS}
    return [reward for reward, patterns in forms.items() if any(p in blob for p in patterns)]


def test_neither_names_nor_rewards_are_anywhere_in_the_store(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, while and after a release is made; its journal too. The releases are there.

    Four bytes of float32 turn up by chance in this file of less than 200 kB, six patterns of
    them, with probability 0: the noise is seeded, and what else is random there (the vault's
    identity and the pseudonyms) is hexadecimal text, which no pattern is.
    """
    scanner, noise = secrets(), Peeking(path.parent)
    with caplog.at_level(logging.DEBUG):
        vault = open_vault(f"sqlite:///{path}")
        curator = curator_of(vault, noise, budget=0.5)
        values = []
        for i, (name, reward) in enumerate(zip(NAMES, REWARDS, strict=True)):
            curator.check(str(i), name)
            values.append(curator.release(str(i), reward, name, 0.0))
        with pytest.raises(BudgetExceededError) as caught:
            curator.release("again", 0.314159265358979, NAMES[0], 0.0)
        vault.close()
    stored, printed = everything_in(path.parent), capfd.readouterr()
    told = (caplog.text + str(caught.value) + printed.out + printed.err).encode()
    assert scanner.scan({"while": noise.found, "after": stored, "told": told}) == []
    assert short_traces(noise.found + stored) == []
    # The scan would find them: the releases are in the file as SQLite's big-endian floats.
    control = Scanner()
    for i, value in enumerate(values):
        control.add_raw(f"release {i}", value)
    assert sorted(control.hits(stored)) == [
        f"release {i} as float64> bytes" for i in range(len(values))
    ]


def test_a_failed_draw_leaves_no_trace_of_the_reward(path: Path) -> None:
    vault = open_vault(f"sqlite:///{path}")
    curator = curator_of(vault, Failing(Crash()), mechanism=mechanism_of("duchi"))
    with pytest.raises(PrivacyError, match="failed inside the engine"):
        curator.release("0", REWARDS[0], NAMES[0], 0.0)
    vault.close()
    assert secrets().hits(everything_in(path.parent)) == []


def test_pseudonyms_are_the_store_s_own(url: str) -> None:
    """The same user is the same in every process over one store, and another in another."""
    people = []
    for handle in (url, url, None):
        vault = open_vault(handle)
        people.append(pseudonym(curator_of(vault), "0", "Jane"))
        vault.close()
    assert people[0] == people[1] != people[2]
    assert people[0] not in {rewards_module.hashlib.sha256(b"Jane").hexdigest()}


# What objectives return ---------------------------------------------------------------------


class Tensor:
    """What as_reward knows of torch."""

    def __init__(self, value: Any) -> None:
        self.value, self.calls = value, []

    def detach(self) -> Tensor:
        self.calls.append("detach")
        return self

    def cpu(self) -> Tensor:
        self.calls.append("cpu")
        return self

    def numpy(self) -> np.ndarray:
        self.calls.append("numpy")
        return np.array(self.value)


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        (0.25, 0.25),
        (3, 3.0),
        (-0.0, 0.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int8(-3), -3.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (np.array([0.25]), 0.25),
        (np.array([[[0.25]]]), 0.25),
        ([0.25], 0.25),
        ((0.25,), 0.25),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (Tensor(0.25), 0.25),
        (Tensor([0.25]), 0.25),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (1e308, 1e308),
        # one user's value may arrive as another type than the others'
        ("1.5", 1.5),
        (b"1.5", 1.5),
        (["1.5"], 1.5),
        (np.array([b"1.5"]), 1.5),
        ([1.5 + 0j], 1.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_number_is_a_reward(returned: Any, reward: float) -> None:
    value = as_reward(returned)
    assert type(value) is float
    assert value == reward
    if isinstance(returned, Tensor):
        assert returned.calls == ["detach", "cpu", "numpy"]


class Talkative:
    """Quotes itself wherever it can."""

    def __repr__(self) -> str:
        return "Jane 0.123456"

    def __float__(self) -> float:
        raise ValueError("Jane 0.123456")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Jane 0.123456")


class Jane0123456:
    """A type whose name is data."""


COLLECTIONS = [
    {"Jane": 0.123456},
    {0.123456},
    {},
    ["Jane", 0.123456],
    [0.123456, 0.2],
    np.array([0.123456, 0.2]),
    np.array([]),
    [],
    [[0.123456], [0.2, 0.3]],
    Tensor([0.123456, 0.2]),
]
"""None or several, whatever they are."""


@pytest.mark.parametrize("returned", COLLECTIONS, ids=type)
def test_what_is_no_reward_is_refused_without_quoting_it(returned: Any) -> None:
    with pytest.raises(ValueError, match="The objective must return one reward") as caught:
        as_reward(returned)
    text = str(caught.value) + repr(caught.value)
    assert "Jane" not in text
    assert "123456" not in text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


class TalkativeTensor(Tensor):
    def numpy(self) -> np.ndarray:
        raise ValueError("could not convert 'Jane 0.123456'")


NO_NUMBERS = [
    "Jane",
    b"Jane",
    bytearray(b"Jane"),
    np.str_("Jane"),
    ["Jane"],
    np.array("Jane"),
    np.array(["Jane"], dtype=object),
    0.123456 + 1j,
    np.complex64(1j),
    Talkative(),
    Jane0123456(),
    lambda: 0.123456,
    Tensor("Jane"),
    TalkativeTensor(0.123456),
    np.datetime64("2020-01-01"),
    [[0.123456]],
    np.ma.masked,
    math.nan,
    Tensor(math.nan),
    Decimal("sNaN"),
    10**400,
    Fraction(-(10**400)),
    np.ma.array([0.123456], mask=[True]),
]
"""One thing each, which is no real number."""


@pytest.mark.parametrize("returned", NO_NUMBERS, ids=type)
def test_one_thing_that_is_no_number_counts_as_nan(returned: Any) -> None:
    """Refusing it would tell, by a failed trial, what is odd about this user."""
    assert math.isnan(as_reward(returned))


def test_several_values_are_not_counted_and_the_other_setting_is_named() -> None:
    with pytest.raises(ValueError, match=r"or several.*DPGIBOSampler, DPGIBOSearch") as caught:
        as_reward(np.arange(37.0))
    assert "37" not in str(caught.value)  # a user's number of records is theirs


# What is claimed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
def test_a_guarantee_says_who_is_protected_against_whom_and_what_is_not(name: str) -> None:
    mechanism = mechanism_of(name, 0.5)
    guarantee = local_guarantee(mechanism, 12, 3, users_named=True, notes=["two trials failed"])
    text = str(guarantee)
    assert guarantee.protected
    claim = "(0.5, 1e-06)-LDP" if name == "gaussian" else "0.5-LDP"
    assert text.startswith(f"Every reward that this run publishes is {claim} (local differential")
    for part in (
        "Protected: each user, against everybody else, the tuner included",
        "Neighbouring relation: any two rewards whatsoever of the same user in the same "
        "evaluation",
        "Mechanism: clipping to the public range",
        f"mechanism={name}, epsilon=0.5, delta=",
        "low=0, high=1.9",
        "Released so far: 12 evaluations",
        "The user asked most often had 3 evaluations: epsilon = ",
        "Not covered: what the user was shown",
        "names, ranges, choices and constants of the search space",
        "other studies: their epsilons add up",
        "Note: two trials failed.",
    ):
        assert part in text
    assert all(limit in text for limit in texts_of("rewards")["not_covered"])
    if name != "gaussian":
        assert "epsilon = 1.50." in text
        assert guarantee.epsilon == guarantee.epsilon_most == 1.5
    else:
        assert "at delta = 1e-06" in text
        assert 0.5 < guarantee.epsilon < 1.5
    assert (guarantee.epsilon_evaluation, guarantee.n_evaluations) == (0.5, 12)


def test_a_guarantee_without_names_says_that_it_takes_an_evaluation_for_a_user() -> None:
    text = str(local_guarantee(mechanism_of(), 12, 1, users_named=False))
    assert "One evaluation is taken to be one user, as declared" in text
    assert "has paid k times" in text
    assert "asked most often" not in text


@pytest.mark.parametrize(
    ("reasons", "evaluations", "words"),
    [
        ([], 0, "no privatised reward has been released"),
        (["one", "two", "one"], 5, "one; two."),
        ([TEST_NOISE], 5, TEST_NOISE),
    ],
)
def test_an_unprotected_run_says_so_and_names_no_figure(
    reasons: list[str], evaluations: int, words: str
) -> None:
    guarantee = local_guarantee(
        mechanism_of(), evaluations, evaluations, users_named=True, reasons=reasons
    )
    assert not guarantee.protected
    assert guarantee.epsilon == guarantee.epsilon_evaluation == guarantee.epsilon_most == math.inf
    text = str(guarantee)
    assert text.startswith("NOT PROTECTED. No privacy guarantee holds for this run: ")
    assert words in text
    assert text.count("one") == ("one" in reasons) + text.count("none")
    assert "LDP" not in text
    assert "Treat every value" in text
    assert len(guarantee.reasons) == len(set(reasons))


def test_the_guarantee_of_a_curator_counts_what_its_host_shows(vault: Vault) -> None:
    curator = RewardSession(mechanism_of("hybrid"), vault, "study")
    assert "no privatised reward" in str(curator.guarantee(0, users_named=True))
    for trial in range(3):
        curator.release(str(trial), 0.3, "Jane", 0.0)
    guarantee = curator.guarantee(3, users_named=True, notes=["n"])
    assert guarantee.protected
    assert (guarantee.n_evaluations, guarantee.most_evaluations, guarantee.epsilon) == (3, 3, 1.5)
    assert guarantee.notes == ("n",)
    assert not curator.guarantee(3, users_named=True, reasons=["r"]).protected


def test_another_delta_of_the_same_run_is_refused(vault: Vault) -> None:
    for delta, refused in ((1e-6, False), (1e-6, False), (1e-5, True)):
        mechanism = make_mechanism(0.5, bound=1.0, mechanism="gaussian", delta=delta)
        if refused:
            with pytest.raises(VaultError, match="another mechanism"):
                curator_of(vault, mechanism=mechanism)
        else:
            curator_of(vault, mechanism=mechanism)
