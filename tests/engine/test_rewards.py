"""The curator: one draw a trial, users' accounts, secrecy of names and rewards, and its words.

Seeded sources stand in for the system's entropy where only the bookkeeping is tested; two curators
over one store get different seeds there, so that a second draw would show.
"""

import hashlib
import math
import threading
from contextlib import suppress

import numpy as np
import pytest

from privbo_plugins.errors import BudgetExceededError, PrivacyError, VaultError
from privbo_plugins.privacy.accountant import evaluations_epsilon
from privbo_plugins.privacy.local import LOCAL_MECHANISMS, make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.privacy.words import texts_of
from privbo_plugins.sessions.rewards import RewardSession, local_guarantee
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import open_vault
from tests.inside import pseudonym

from ..leaks import Scanner
from .helpers import Counting, Crash, everything_in, in_threads

DELTA = 1e-6


def mechanism_of(name="laplace", epsilon=0.5):
    delta = DELTA if name == "gaussian" else None
    return make_mechanism(epsilon, value_range=(0.0, 1.9), mechanism=name, delta=delta)


def curator_of(
    vault=None, noise=None, *, mechanism=None, host_key="study", budget=None, delta=0.0
):
    return RewardSession(
        mechanism or mechanism_of(),
        vault or open_vault(),
        host_key,
        user_budget=budget,
        user_delta=delta,
        noise=noise or Counting(),
    )


def ledger(curator):
    with curator.vault.transaction(curator.run.run_id) as tx:
        return tx.evaluations()


# Replay -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
def test_a_trial_is_drawn_once_whatever_its_reward_is_later(vault, name):
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


@pytest.mark.parametrize("shared", [True, False], ids=["one-curator", "a-curator-each"])
def test_threads_that_tell_the_same_trials_get_one_release_each(url, shared):
    """And so does a curator that opens the vault later."""
    vaults = [open_vault(url)] * 4 if shared else [open_vault(url) for _ in range(4)]
    noises = [Counting(seed) for seed in range(4)]
    curators = [curator_of(vault, noise) for vault, noise in zip(vaults, noises, strict=True)]
    curators = curators[:1] * 4 if shared else curators
    seen = [{} for _ in range(4)]

    def work(i):
        for trial in np.random.default_rng(i).permutation(10):
            key = str(trial)
            seen[i][key] = curators[i].release(key, float(i), "Jane", 0.0)

    assert in_threads(4, work) == []
    assert all(answers == seen[0] for answers in seen)
    assert len(set(seen[0].values())) == 10
    assert sum(noise.draws for noise in noises) == 10
    assert len(ledger(curators[0])) == curators[0].most()[0] == 10
    for vault in vaults:
        vault.close()
    later = open_vault(url)
    assert curator_of(later).evaluations() == seen[0]
    later.close()


# Charge, draw, store ------------------------------------------------------------------------


class Failing(InsecureNoise):
    """Fails in the middle of a draw, the first time."""

    def __init__(self, error):
        super().__init__(0)
        self.error = error

    def flip(self, probability):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().flip(probability)


@pytest.mark.parametrize("error", [RuntimeError("disk"), Crash()], ids=["error", "crash"])
def test_a_draw_that_fails_leaves_neither_charge_nor_release_nor_a_trace(vault, error, tmp_path):
    curator = curator_of(vault, Failing(error), mechanism=mechanism_of("piecewise"), budget=0.5)
    with pytest.raises(PrivacyError, match="failed inside the engine"):
        curator.release("0", REWARDS[0], NAMES[0], 0.0)
    assert secrets().hits(everything_in(tmp_path)) == []
    assert ledger(curator) == []
    assert curator.replay("0") is None
    assert curator.most()[0] == 0
    curator.check("0", NAMES[0])  # the budget of one evaluation is still there
    value = curator.release("0", REWARDS[0], NAMES[0], 0.0)
    assert curator.evaluations() == {"0": value}


@pytest.mark.parametrize("name", ["charge_evaluation", "release"])
def test_a_vault_that_refuses_publishes_nothing(vault, name, monkeypatch):
    """Charge, draw and store are one transaction, in this order."""
    noise = Counting()
    curator = curator_of(vault, noise)

    def refuse(*_):
        raise VaultError("The vault refused an operation.")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, name, refuse)
        with pytest.raises(VaultError):
            curator.release("0", 0.3, "Jane", 0.0)
    assert ledger(curator) == []
    assert noise.draws == (0 if name == "charge_evaluation" else 1)


# A ledger apart from the noise --------------------------------------------------------------


def test_an_evaluation_drawn_elsewhere_is_charged_once_and_stored_once(vault):
    ledger_of = RewardSession(mechanism_of(), vault, "study", user_budget=0.5)
    with pytest.raises(PrivacyError, match="without a valid charge"):
        ledger_of.store("0", "0" * 32, 1.0)
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
    with pytest.raises(PrivacyError, match="charged to another user"):
        ledger_of.charge("0", "Joe")  # an evaluation of Joe's, for free
    with pytest.raises(PrivacyError, match="another attempt"):
        ledger_of.store("0", dead, 7.0)  # of the two that draw on one charge, one may store
    assert ledger_of.store("0", token, -2.5) == -2.5
    assert ledger_of.store("0", token, 7.0) == -2.5  # a token is good for one draw
    assert ledger_of.store("0", dead, 7.0) == -2.5
    assert ledger_of.charge("0", "Jane") == (ledger_of.replay("0"), "") == (-2.5, "")
    assert ledger_of.evaluations() == {"0": -2.5}
    assert ledger_of.most()[0] == 1
    ledger_of.charge("2", "Joe")
    noise = Counting()
    curator = curator_of(vault, noise, budget=0.5)  # draws what was charged and not stored
    value = curator.release("2", 0.3, "Joe", 0.0)
    assert curator.release("2", 1.9, "Joe", 0.0) == value
    assert (noise.draws, curator.most()[0]) == (1, 1)


def test_threads_that_draw_the_same_evaluation_agree_on_one(url):
    vaults = [open_vault(url) for _ in range(4)]
    ledgers = [RewardSession(mechanism_of(), vault, "study") for vault in vaults]
    seen = [{} for _ in ledgers]

    def work(i):
        for trial in map(str, range(10)):
            _, token = ledgers[i].charge(trial, "Jane")
            with suppress(PrivacyError):  # another thread was charged after this one
                seen[i][trial] = ledgers[i].store(trial, token, 100.0 * i + float(trial))

    assert in_threads(4, work) == []
    released = ledgers[0].evaluations()
    assert len(released) == ledgers[0].most()[0] == 10
    for answers in seen:
        assert answers == {trial: released[trial] for trial in answers}
    for vault in vaults:
        vault.close()


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_a_ledger_takes_what_its_mechanism_draws_and_nothing_else(name):
    mechanism = mechanism_of(name)
    ledger_of = RewardSession(mechanism, open_vault(), "study")
    _, token = ledger_of.charge("0", "Jane")
    raw = [0.123456, -0.123456, 0.5] if name == "duchi" else []
    far = [1e6, -1e6] if name in ("duchi", "piecewise", "hybrid") else []
    for forged in (*raw, *far, math.nan, math.inf, True, 1, None, "1", [1.0], 10**400):
        with pytest.raises(PrivacyError, match="cannot give") as raised:
            ledger_of.store("0", token, forged)
        assert "123456" not in str(raised.value)
    assert ledger_of.evaluations() == {}
    drawn = mechanism.randomize(0.3, SecureNoise(), 0.0)
    assert ledger_of.store("0", token, drawn) == drawn


# Users --------------------------------------------------------------------------------------


def test_a_name_is_one_user_however_it_is_spelt(vault):
    curator = curator_of(vault)
    users = [
        ["1", 1, b"1", np.int64(1), " 1\n", b"1 ", "\uff11"], ["é", "e\u0301", "é".encode()],
        [-1, "-1"], ["01"], ["1.0"], ["jane"], ["play:0"], ["user:1"], ["", " "], [b"\xff"],
    ]  # fmt: skip
    for person, spellings in enumerate(users):
        for i, user in enumerate(spellings):
            curator.release(f"{person}/{i}", 0.3, user, 0.0)
    people = {}
    for trial, name, *_ in ledger(curator):
        people.setdefault(trial.partition("/")[0], set()).add(name)
    assert [len(pseudonyms) for pseudonyms in people.values()] == [1] * len(users)
    assert len(set.union(*people.values())) == len(users)
    assert all(len(person) == 64 for persons in people.values() for person in persons)
    assert curator.most() == (7, 3.5)


def test_what_is_no_name_is_refused_without_repeating_it():
    noise = Counting()
    curator = curator_of(noise=noise)
    for user in (True, 1.5, ("Jane", "Doe"), {"Jane": 1}, object()):
        for call in (curator.check, lambda trial, user: curator.release(trial, 0.3, user, 0.0)):
            with pytest.raises(ValueError, match="must be a string, bytes or an int") as caught:
                call("0", user)
            assert "Jane" not in str(caught.value)
    assert noise.draws == 0
    assert curator.evaluations() == {}


# Budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "budget", "evaluations"),
    [(0.5, 0.5, 1), (0.5, 0.99, 1), (0.1, 0.3, 3), (0.5, 1.5, 3), (0.7, 2.1, 3), (0.5, 1.501, 3)],
)
def test_a_user_is_refused_before_anything_is_drawn(epsilon, budget, evaluations):
    noise = Counting()
    curator = curator_of(None, noise, mechanism=mechanism_of(epsilon=epsilon), budget=budget)
    values = [curator.release(str(t), 0.3, "Jane", 0.0) for t in range(evaluations)]
    before = ledger(curator)
    for refuse in (
        lambda: curator.release("next", 0.3, "Jane", 0.0),
        lambda: curator.check("next", "Jane"),
    ):
        with pytest.raises(BudgetExceededError, match="Nothing was drawn") as caught:
            refuse()
        assert f"user_budget={budget:.6g}" in str(caught.value)
        assert "epsilon" not in str(caught.value)  # how often she was asked
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


def test_the_budget_of_gaussian_evaluations_is_spent_in_squares(vault):
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
    for epsilon in (0.01, 0.1, 0.5):  # of one evaluation, to the last digit
        one = mechanism_of("gaussian", epsilon)
        curator_of(mechanism=one, budget=epsilon, delta=DELTA).check("0", "Jane")


def test_threads_cannot_spend_a_budget_twice(vault):
    noises = [Counting(seed) for seed in range(6)]
    curators = [curator_of(vault, noise, budget=1.5) for noise in noises]
    errors = in_threads(6, lambda i: curators[i].release(str(i), 0.3, "Jane", 0.0))
    assert [type(error) for error in errors] == [BudgetExceededError] * 3
    assert sum(noise.draws for noise in noises) == curators[0].most()[0] == 3


# The run ------------------------------------------------------------------------------------

OTHER = [
    ({"epsilon": 0.6}, {}), ({"mechanism": "duchi"}, {}), ({"value_range": (0.0, 1.8)}, {}),
    ({"mechanism": "gaussian", "delta": 1e-6}, {}), ({"value_range": (-0.1, 1.9)}, {}),
    ({}, {"budget": 3.0}), ({}, {"budget": None}), ({}, {"delta": 1e-6}),
]  # fmt: skip
"""Another mechanism, or another limit of users."""


@pytest.mark.parametrize(("mechanism", "limits"), OTHER, ids=str)
def test_another_mechanism_of_the_same_run_is_refused(mechanism, limits):
    settings = {"epsilon": 0.5, "value_range": (0.0, 1.9), "mechanism": "laplace"}
    made, other = make_mechanism(**settings), make_mechanism(**{**settings, **mechanism})
    vault, how = open_vault(), {"delta": other.delta, "budget": 2.0, **limits}
    value = curator_of(vault, mechanism=made, budget=2.0).release("0", 0.3, "Jane", 0.0)
    with pytest.raises(VaultError, match="another mechanism, epsilon, range or user budget"):
        curator_of(vault, mechanism=other, **how)
    curator_of(vault, mechanism=other, host_key="another", **how)
    assert curator_of(vault, mechanism=made, budget=2).replay("0") == value


def test_another_delta_of_the_same_run_is_refused():
    vault = open_vault()
    one, two = (
        make_mechanism(0.5, bound=1.0, mechanism="gaussian", delta=delta) for delta in (1e-6, 1e-5)
    )
    curator_of(vault, mechanism=one)
    curator_of(vault, mechanism=one)
    with pytest.raises(VaultError, match="another mechanism"):
        curator_of(vault, mechanism=two)


def test_two_workers_begin_a_run_at_once(url, monkeypatch):
    """Both have seen that the run is not begun."""
    vaults = [open_vault(url) for _ in range(2)]
    barrier, seen, plain = threading.Barrier(2), threading.local(), Transaction.settings

    def slow(tx):
        known = plain(tx)
        if not getattr(seen, "done", False):
            seen.done = True
            with suppress(threading.BrokenBarrierError):
                barrier.wait(1.0)
        return known

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "settings", slow)
        assert in_threads(2, lambda i: curator_of(vaults[i], SecureNoise())) == []
    for vault in vaults:
        vault.close()


# Secrecy ------------------------------------------------------------------------------------

NAMES = ["Jane-Doe-a81f0c77", "jane.doe+91b2@example.org", "patient 0042/7781"]
REWARDS = [0.314159265358979, 0.271828182845905, 0.577215664901533]


class Peeking(Counting):
    """Looks at every file of the store while a release is being made."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.found = folder, b""

    def add_laplace(self, value, scale):
        self.found += everything_in(self.folder)
        return super().add_laplace(value, scale)


def secrets():
    """Names and rewards, as text, decimals, hexadecimals and bytes of both orders."""
    scanner = Scanner()
    for i, (name, reward) in enumerate(zip(NAMES, REWARDS, strict=True)):
        scanner.add_text(f"name {i}", name)
        scanner.add_text(f"named {i}", f"user:{name!r}")
        scanner.add_number(f"reward {i}", reward)
        scanner.add_number(f"half-ranges of reward {i}", abs(reward / 0.95 - 1.0))
    return scanner


def test_neither_names_nor_rewards_are_anywhere_in_the_store(path):
    """While a release is made too, and in its journal. The releases are there."""
    noise = Peeking(path.parent)
    vault = open_vault(f"sqlite:///{path}")
    curator = curator_of(vault, noise, budget=0.5)
    values = [
        curator.release(str(i), reward, name, 0.0)
        for i, (name, reward) in enumerate(zip(NAMES, REWARDS, strict=True))
    ]
    vault.close()
    stored = everything_in(path.parent)
    assert secrets().scan({"while": noise.found, "after": stored}) == []
    # The scan would find them: the releases are in the file as text.
    control = Scanner()
    for i, value in enumerate(values):
        control.add_raw(f"release {i}", value)
    assert sorted(control.hits(stored)) == [f"release {i} as decimal" for i in range(3)]


def test_pseudonyms_are_the_store_s_own(url):
    """The same user is the same in every process over one store, and another in another."""
    people = []
    for handle in (url, url, None):
        vault = open_vault(handle)
        people.append(pseudonym(curator_of(vault), "0", "Jane"))
        vault.close()
    assert people[0] == people[1] != people[2]
    assert people[0] != hashlib.sha256(b"Jane").hexdigest()


# What is claimed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(LOCAL_MECHANISMS))
def test_a_guarantee_says_who_is_protected_against_whom_and_what_is_not(name):
    mechanism = mechanism_of(name, 0.5)
    guarantee = local_guarantee(mechanism, 12, 3, users_named=True, notes=["two trials failed"])
    text = guarantee.details()
    assert guarantee.protected
    claim = "(0.5, 1e-06)-LDP" if name == "gaussian" else "0.5-LDP"
    for part in (
        f"One evaluation: {claim}",
        f"mechanism={name}, epsilon=0.5, delta=",
        "low=0, high=1.9",
        "12 evaluations so far",
        "The user asked most often had 3 evaluations: epsilon = ",
        "To know\n- two trials failed\n",
    ):
        assert part in text
    assert guarantee.not_covered == texts_of("rewards")["not_covered"]
    if name != "gaussian":
        assert "epsilon = 1.50;" in text
        assert guarantee.epsilon == guarantee.epsilon_most == 1.5
    else:
        assert "at delta = 1e-06" in text
        assert 0.5 < guarantee.epsilon < 1.5
    assert (guarantee.epsilon_evaluation, guarantee.n_evaluations) == (0.5, 12)
    nameless = " ".join(str(local_guarantee(mechanism, 12, 1, users_named=False)).split())
    assert "One evaluation is taken to be one user, as declared" in nameless
    assert "has paid k times" in nameless
    assert "asked most often" not in nameless


def test_the_guarantee_of_a_curator_counts_what_its_host_shows():
    curator = RewardSession(mechanism_of("hybrid"), open_vault(), "study")
    assert "no privatised reward" in curator.guarantee(0, users_named=True).details()
    for trial, user in enumerate(["Jane", "Joe", "Jane", "Jane"]):
        curator.release(str(trial), 0.3, user, 0.0)
    guarantee = curator.guarantee(4, users_named=True, notes=["n"])
    assert guarantee.protected
    assert (guarantee.n_evaluations, guarantee.most_evaluations, guarantee.epsilon) == (4, 3, 1.5)
    assert guarantee.notes == ("n",)
    unprotected = curator.guarantee(4, users_named=True, reasons=["r", "r"])
    assert (unprotected.protected, unprotected.reasons, unprotected.epsilon) == (
        False, ("r",), math.inf
    )  # fmt: skip
