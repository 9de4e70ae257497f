"""What every system does on every host with what is wrong: it refuses, notices, or remembers."""

import itertools
import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import ray.cloudpickle as cloudpickle

from privbo_plugins.convert import fingerprint
from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.scheduler import FRUITLESS, HOPELESS
from tests.drivers import ANY, EVERYWHERE, HOSTS, N_RECORDS, SYSTEMS, begin, status
from tests.inside import host_name
from tests.raytune_searchers.hosts import crash

pytestmark = [
    pytest.mark.usefixtures("local_hosts"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
]

LOSSES = [pair for pair in EVERYWHERE if SYSTEMS[pair[0]].size]
REWARDS = [(system, host) for system in ("rewards", "duets") for host in HOSTS]
each_host = pytest.mark.parametrize("host", HOSTS)
on_losses = pytest.mark.parametrize(("system", "host"), LOSSES)
on_rewards = pytest.mark.parametrize(("system", "host"), REWARDS)


def finishes(run):
    """The rest of the plan runs as if nothing had happened."""
    run.trials(30, caught=True)
    assert status(run)["finished"]
    assert run.ask("guarantee").protected


def only_error(run):
    """What the one failed trial says, in which no secret may be."""
    (error,) = run.errors
    said = f"{error!r} {vars(error)} {error.__cause__!r} {error.__context__!r}"
    assert run.own.hits("error", said.encode()) == []
    return str(error)


# What objectives return -------------------------------------------------------------------------


class Panic(BaseException):
    """What libraries written in other languages raise."""


class Panics:
    """An object whose conversion quotes a record."""

    def __init__(self, secret):
        self.secret = secret

    def __array__(self, *_, **__):
        raise Panic(self.secret)

    __float__ = __array__


SEEN_AT_ONCE = "an average in a list"
"""What is refused before the number of records is fixed."""

WRONG = {
    SEEN_AT_ONCE: (lambda y: [float(y.mean())], "looks like an average"),
    "a number": (lambda y: float(y.mean()), r"single number\. Return the vector"),
    "too short": (lambda y: y[:-1], "another length"),
    "empty": (lambda y: y[:0], "non-empty vector"),
    "a column": (lambda y: y[:, None], r"shape \(n_records,\), got an array of 2"),
    "nothing": (lambda _: None, "one value (per|a) |real numbers"),
    "a text": (lambda y: str(y.tolist()), "real numbers"),
    "a dictionary": (lambda y: {"losses": y}, "real numbers|one value per validation record"),
    "what cannot be read": (lambda y: Panics(str(y.tolist())), "real numbers"),
}
"""From a vector to what is none, and what is said then."""


@on_losses
def test_what_is_no_vector_of_losses_fails_its_trial_and_costs_nothing(system, host, start):
    run = start(system, host)
    good = run.returned
    for wrong, (bend, said) in WRONG.items():
        if system == "persons" and wrong == SEEN_AT_ONCE:  # how many rows is no fact there
            said = "another length"
        if system == "scores":  # whose functions get a record's entry of each part
            said = f"one entry for each record|{said}"
            if wrong == "a column":
                continue
        if system == "blocks":
            said = f"A run of blocks takes|{said}"
        before = status(run)["releases"]
        run.errors.clear()
        run.returned = lambda config, bend=bend: bend(run.own.vector())
        assert run.trials(1, caught=True) == [None], wrong
        assert re.search(said, only_error(run)), wrong
        assert status(run)["releases"] == before, wrong
        run.returned = good
        if wrong == SEEN_AT_ONCE:
            run.trials(2)
    finishes(run)


ODD = ((math.nan, 5), (math.nan, N_RECORDS), (-math.inf, N_RECORDS), (1e308, 5))
"""What losses are instead, and how many of them."""


@pytest.mark.parametrize(("system", "host"), [p for p in LOSSES if p[0] != "outside"])
def test_odd_losses_become_a_constant_and_the_run_goes_on(system, host, start):
    """No error, no warning (all are errors here), and nothing of a released value is odd."""
    run, odd = start(system, host), itertools.cycle(ODD)

    def returned(config):
        value, many = next(odd)
        y = run.own.vector()
        y[:many] = value
        return y

    run.returned = returned
    with np.errstate(all="raise"):  # a user's setting must not make data visible
        shown = run.trials(SYSTEMS[system].whole)
    assert len(shown) == run.done
    assert run.system.ends(run.done)
    assert all(-3 < value < 4 for value in shown)  # of noise beyond 20 standard deviations
    finishes(run)


@on_rewards
def test_what_is_no_reward_fails_its_trial_and_costs_nothing(system, host, start):
    run = start(system, host)
    good = run.returned
    for wrong in (None, [0.1, 0.2], {"reward": 0.5}):
        run.errors.clear()
        run.returned = lambda config, wrong=wrong: wrong
        assert run.trials(1, caught=True) == [None]
        only_error(run)
        told = status(run)
        assert (told["releases"], told["protected"]) == (0, False)
    run.returned = lambda config: Panics(run.own.token)
    assert run.trials(1) != [None]  # the worst reward: a trial that failed would tell of its user
    run.returned = good
    run.trials(2)
    assert (status(run)["releases"], run.ask("guarantee").protected) == (3, True)


@each_host
def test_a_budget_of_users_needs_their_names(host, start):
    run = start("rewards", host)
    with pytest.raises(ValueError, match="needs user_id"):
        (run.told if host == "optuna" else run.search).private(losses_at)


# Records ----------------------------------------------------------------------------------------

NAMES = [f"patient {i}" for i in range(N_RECORDS)]
OTHERS = "are others than the run's, or in another order"


@pytest.mark.parametrize(("system", "host"), [p for p in LOSSES if p[0] != "blocks"])
def test_losses_whose_own_index_changes_are_refused(system, host, start):
    run, names = start(system, host), [NAMES]

    run.returned = lambda config: pd.Series(run.own.vector(), index=names[-1])
    run.trials(3)
    before = status(run)["releases"]
    names.append(NAMES[::-1])
    assert run.trials(1, caught=True) == [None]
    assert OTHERS in (said := only_error(run))
    assert "patient" not in said
    assert status(run)["releases"] == before
    names.append(NAMES)
    finishes(run)


@each_host
def test_other_record_ids_are_refused_by_whoever_goes_on(host, start, tmp_path):
    """Neither labels nor a digest of them are stored: who knows all others could try the last."""
    name = {} if host == "optuna" else {"run_name": "r"}
    run = start("records", host, vault=True, record_ids=NAMES, **name)

    def again(record_ids):
        if host == "optuna":
            run.more = {"record_ids": record_ids}
            run.reopen()
            return run
        run.search.close()
        return begin("records", host, tmp_path, vault=True, record_ids=record_ids, **name)

    run.trials(2)
    digest = fingerprint(NAMES).partition(":")[2].encode()
    told = run.told if host == "optuna" else run.search
    kept = [cloudpickle.dumps(told), *(path.read_bytes() for path in tmp_path.glob("*.db*"))]
    for blob in kept:
        assert not any(
            one in blob for one in (b"patient 1", digest, bytes.fromhex(digest.decode()))
        )
    again(np.array(NAMES)).trials(1)
    another_order, another_record = NAMES[::-1], [*NAMES[:-1], "somebody else"]
    for ids in (another_order, another_record, NAMES[:-1]):
        other = again(ids)
        with pytest.raises(ValueError, match=OTHERS) as raised:
            other.trials(1)
        assert "patient" not in str(raised.value)
        if host == "ray":
            other.search.close()  # without a report
    if host == "optuna":
        with pytest.warns(PrivacyWarning, match=r"names none: .*record_ids= again"):
            again(None).trials(1)


# Seeds and noise --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "host"),
    [pair for pair in EVERYWHERE if pair[0] not in (*ANY, "rows", "federation")],
)
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_a_seed_decides_the_points_and_never_the_noise(system, host, start):
    def run(seed, **more):
        begun = start(system, host, seed=seed, **more)
        if not begun.system.size:
            begun.returned = lambda config: config["x"] / 2
        else:
            begun.returned = lambda config: np.full(N_RECORDS, config["x"] / 2)
        shown = begun.trials(4)
        return begun.points, shown

    first = run(3, noise=InsecureNoise(5))
    assert run(3, noise=InsecureNoise(5)) == first
    assert run(4, noise=InsecureNoise(5))[0] != first[0]
    if (system, host) != ("duets", "optuna"):  # where studies of one name begin alike
        assert run(None, noise=InsecureNoise(5))[0] != run(None, noise=InsecureNoise(5))[0]
    (one, drawn), (two, others) = run(3), run(3)
    assert one[0] == two[0] == first[0][0]
    assert set(drawn).isdisjoint(others)


def losses_at(point):
    """An objective on either host."""


@pytest.mark.parametrize("system", ["records", "outside", "rewards", "duets"])
@each_host
def test_injected_noise_is_told_for_ever_and_in_no_pickle(system, host, start):
    run = start(system, host, vault=True, noise=InsecureNoise(0))
    with warnings.catch_warnings(record=True, action="always") as caught:
        run.trials(1)
    said = "Nothing is protected: the noise came from a test"
    assert host == "optuna" or any(said in str(one.message) for one in caught)
    made = run.told if host == "optuna" else run.search
    for one in (made, made.private(losses_at, **run.system.named)):
        kept = cloudpickle.dumps(one)
        for word in (b"InsecureNoise", b"Session", b"sqlalchemy", b"store.vault"):
            assert word not in kept
    run.more = {}
    run.reopen()
    with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
        run.trials(1)
    guarantee = run.ask("guarantee")
    assert not guarantee.protected
    assert "test source" in guarantee.details()


# The end of a run that learns nothing -----------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "host"), [("records", "optuna"), ("any sampler", "optuna"),
                         *((system, "ray") for system in ("records", "outside", "rewards"))]
)  # fmt: skip
def test_trials_that_all_fail_end_the_run(system, host, start):
    run, most = start(system, host), FRUITLESS if host == "optuna" else HOPELESS

    def returned(config):
        raise KeyError(run.own.token)

    run.returned, run.loud = returned, True
    with pytest.warns(UtilityWarning, match=f"{most} trials failed one after another") as caught:
        run.trials(4 * most, caught=True)
    assert len(run.points) == most
    said = [str(error) for error in run.errors] + [str(one.message) for one in caught]
    assert run.own.hits("said", " ".join(said).encode()) == []
    assert status(run)["releases"] == 0


@pytest.mark.parametrize("system", ["persons", "records"])
def test_a_host_that_was_begun_again_knows_whose_losses_it_gets(system, tmp_path, local_hosts):
    """Names are in no vault and no pickle, so the driver tells each host."""
    more = {} if system == "persons" else {"record_ids": NAMES}
    run = begin(system, "ray", tmp_path, vault=True, **more)
    run.trials(2)
    crash(host_name(run.search))
    assert None not in run.trials(2)
    run.returned = lambda config: run.own.vector()[:-1]
    assert run.trials(1) == [None]
