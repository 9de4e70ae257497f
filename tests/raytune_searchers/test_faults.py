"""Whatever dies, a release is charged once, drawn once and shown as it was stored."""

import gc
import math
import signal
from collections import Counter

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.shown import DRAW
from raytune_searchers import DPGIBOSearch
from raytune_searchers._channel import LOSSES, Channel
from raytune_searchers._search import FINISHED
from raytune_searchers.hosts.losses import LossHost, RunSettings
from tests.inside import (
    call_host,
    give_noise,
    host_name,
    n_compared,
    published_by,
    settings_of,
    space_of,
    tell,
)
from tests.raytune_searchers.hosts import crash, evaluate, evaluation, lose, refused
from tests.raytune_searchers.runs import (
    LINE,
    assert_sound,
    begun,
    fit,
    ledger,
    make_search,
    squares,
    tuner,
)
from tests.raytune_searchers.scenes import (
    BEFORE,
    KILL_VAULT,
    RAISE,
    REPORTED,
    STORED,
    TRIAL,
    CountedNoise,
    dies_at_the_third,
    faulty,
    turn_of,
)
from tests.worker import lines

STALLED = 1800
"""Seconds after which a test that still runs is said to have stalled, however busy the machine."""

SHORT = {"n_starts": 1, "n_steps": 1}
"""A start point, a gradient of two trials, and what is compared in the end."""

BEFORE_LAST = 1 + 2
"""Trials of that plan before the last."""


@pytest.fixture(autouse=True)
def never_stalls():
    """Tune itself would wait ten minutes for a searcher that suggests nothing."""

    def stalled(*_args):
        raise TimeoutError("the experiment stalled")

    before = signal.signal(signal.SIGALRM, stalled)
    signal.alarm(STALLED)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    gc.collect()  # an experiment that raised leaves files open: their warning belongs to its test


def search_of(**settings):
    """A search that remembers all losses, so that gradients tell whose they used."""
    return make_search(**({"memory": -1} | settings))


def counted_search(folder, **settings):
    """The same with noise that counts its draws, which no claim is made for."""
    return search_of(noise=CountedNoise(folder), **settings)


def shown(path, name="loss"):
    """(trial, value) of every line that Tune has written of the experiment."""
    rows = [row for file in path.glob("*/result.json") for row in lines(file)]
    return [(row["trial_id"], row[name]) for row in rows if name in row]


def check(search, path, mu=1.0):
    """What must hold of a ledger and of what Tune shows at every moment; the releases."""
    assert_sound(search, mu)
    _, releases, _ = ledger(search)
    published = published_by(search)
    for trial, value in shown(path):
        assert math.isnan(value) or value == published[trial]
    drawn = {release.key: release.values[0] for release in releases if release.kind == "value"}
    assert set(drawn) <= set(published)
    for trial, draw in shown(path, "privbo_release"):
        assert draw == drawn[trial]
    used = [t for r in releases if r.kind == "gradient" for t, _ in r.meta["points"]]
    assert len(used) == len(set(used))
    assert set(used) <= set(published)
    return releases


def check_finished(search, path, steps=2):
    """The plan is used up: a start point and two trials a step, and the last are compared."""
    releases = check(search, path)
    assert search.finished()
    kinds = Counter(r.kind for r in releases)
    assert (kinds["gradient"], kinds["comparison"]) == (steps, 1)
    assert kinds["value"] == 3 * steps + n_compared(releases)
    assert ledger(search)[2] == []
    return releases


def facts(search):
    charges, releases, _ = ledger(search)
    order = [(r.kind, r.key, r.values) for r in releases]
    return sorted((c.kind, c.key, c.mu) for c in charges), order


def check_grown(before, search):
    """Nothing that was charged or released is gone or other than it was."""
    charges, order = facts(search)
    assert set(before[0]) <= set(charges)
    assert order[: len(before[1])] == before[1]


# Trials -------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.usefixtures("the_ray")
class TestTrials:
    def test_retried_attempts_replay_what_was_stored_and_only_trainings_pay(self, tmp_path):
        search = counted_search(tmp_path, training_mu=0.1, **SHORT)
        faults = {(0, BEFORE): TRIAL, (1, STORED): TRIAL, (2, REPORTED): TRIAL, (3, BEFORE): RAISE}
        with pytest.warns(PrivacyWarning, match="noise came from a test"):
            results = fit(
                search, faulty(search.private, tmp_path, faults), tmp_path,
                failure=tune.FailureConfig(max_failures=1), max_concurrent_trials=2,
            )  # fmt: skip
        assert not results.errors
        releases = check_finished(search, tmp_path / "run", 1)
        assert len(results) == BEFORE_LAST + n_compared(releases)
        assert {t for t, _ in shown(tmp_path / "run")} == set(published_by(search))
        assert len(lines(tmp_path / "draws")) == len(releases)
        expected = Counter({turn: 1 for turn in range(len(results))}) + Counter([0, 3])
        assert Counter(lines(tmp_path / "trained")) == expected
        trainings = [c for c in ledger(search)[0] if c.population == "training"]
        paid = Counter(turn_of(tmp_path, c.key.split("/")[0]) for c in trainings)
        assert paid == expected
        assert all(c.mu == 0.1 for c in trainings)


# The vault ----------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.usefixtures("the_ray")
class TestVault:
    @pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")  # few trials
    @pytest.mark.parametrize("samples", [-1, 3], ids=["more to come", "all have begun"])
    def test_a_vault_in_memory_that_dies_costs_no_error_for_each_attempt(
        self, samples, tmp_path, monkeypatch
    ):
        """Where Tune asks for no more trials, it finds out when it saves the search."""
        monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "1")
        search = search_of(**SHORT)
        trainable = faulty(
            search.private, tmp_path, {(2, BEFORE): KILL_VAULT}, vault=host_name(search)
        )
        often = tune.FailureConfig(max_failures=5)
        settings = {"failure": often, "num_samples": samples, "max_concurrent_trials": 1}
        with refused(LOSSES.lost):
            fit(search, trainable, tmp_path, **settings)
        assert list((tmp_path / "run").glob("*/error.*")) == []
        assert sorted(lines(tmp_path / "trained")) == [0, 1, 2]
        assert len([v for _, v in shown(tmp_path / "run") if not math.isnan(v)]) <= 2


# Without a worker ------------------------------------------------------------------------------


@pytest.fixture
def local(local_hosts):
    """Hosts in this process."""
    return local_hosts


class TestThroughTheHooks:
    def test_a_vault_in_memory_that_dies_leaves_its_last_word(self, local, tmp_path):
        search = begun(search_of())
        trials = evaluation(search, search.private(squares), 3)
        search.save(str(tmp_path / "state"))
        crash(host_name(search))
        guarantee = search.guarantee(trials)
        assert guarantee.protected
        assert "the vault has ended" in guarantee.details()
        assert guarantee.n_releases == 3
        assert guarantee.mu_spent == 1  # the most: nobody knows how far its ledger went
        assert set(search.recommend()) == {"x"}
        assert len(published_by(search)) == 3
        assert "vault='sqlite:" in LOSSES.lost
        for again in (search, begun(search)):
            with refused(LOSSES.lost):
                again.suggest("again")

    def test_a_search_that_is_closed_after_its_vault_died_says_the_most(self, local):
        search = begun(search_of())
        evaluation(search, search.private(squares), 3)
        assert search.guarantee().mu_spent < 1
        crash(host_name(search))
        search.close()
        assert search.guarantee().mu_spent == 1

    @pytest.mark.parametrize("kill", [crash, lose])
    def test_a_vault_that_dies_before_anything_was_saved_leaves_one_error(self, kill, local):
        search = search_of(search_space=LINE)
        call_host(search, "finished")
        kill(host_name(search))
        for ask in (search.guarantee, search.recommend, lambda: search.suggest("t")):
            with refused(LOSSES.lost):
                ask()

    @pytest.mark.parametrize("kill", [crash, lose])
    @pytest.mark.parametrize("where", [BEFORE, STORED])
    def test_a_vault_in_a_database_is_opened_again_wherever_it_ended(
        self, kill, where, local, tmp_path
    ):
        search = begun(search_of(vault=f"sqlite:///{tmp_path}/vault.db", **SHORT))
        for trial in "abcdef":
            config = search.suggest(trial)
            if config == FINISHED:  # no third point is compared
                break
            if where == BEFORE:
                kill(host_name(search))
                call_host(search, "finished")  # the driver begins another one, sooner or later
                assert search.suggest(trial) == config
            assert evaluate(search, search.private(squares), trial, config).error is None
            if where == STORED:
                kill(host_name(search))
        check_finished(search, tmp_path, 1)

    def test_a_restored_search_keeps_the_plan_that_num_samples_made(self, local, tmp_path):
        search = search_of(n_steps=None)
        assert search.set_search_properties(None, None, dict(LINE), num_samples=9)
        private = search.private(squares)
        assert len(evaluation(search, private, 6)) == 6
        before = facts(search)
        search.save_to_dir(str(tmp_path), "session")
        found = DPGIBOSearch.from_experiment(tmp_path)
        assert found.set_search_properties(None, None, dict(LINE), num_samples=1)
        found.restore_from_dir(str(tmp_path))
        last = len(evaluation(found, private, name="resumed"))
        assert settings_of(found) == settings_of(search)
        check_grown(before, search)
        assert last == n_compared(check_finished(search, tmp_path))

    @pytest.mark.parametrize("durable", [True, False], ids=["file", "memory"])
    def test_a_driver_that_ended_before_anything_was_saved(self, durable, local, tmp_path):
        where = {"vault": f"sqlite:///{tmp_path}/vault.db", "run_name": "r"} if durable else {}
        search = search_of(**where)
        private = search.private(squares)
        tuner(search, private, tmp_path)
        evaluation(begun(search), private, 3)
        local.end_driver()
        path = tmp_path / "run"
        assert [p.name for p in path.glob("*.pkl")] == ["tuner.pkl"]
        found = DPGIBOSearch.from_experiment(path)
        assert found.set_search_properties(None, None, dict(LINE), num_samples=1)
        if durable:
            before = facts(found)
            assert [kind for kind, *_ in before[1]] == ["value"] * 3
            evaluation(found, found.private(squares), name="again")
            check_grown(before, found)
            check_finished(found, path)
        else:
            for begin in (lambda: found.suggest("t"), lambda: begun(found).suggest("t")):
                with refused(LOSSES.lost):
                    begin()


# The host itself ----------------------------------------------------------------------------


class Hosts:
    """A host that can be killed at any moment, and what it wrote with it unless committed."""

    def __init__(self, url, **settings):
        search = search_of(search_space=LINE, vault=url, run_name="r", **settings)
        space = space_of(search)
        self.settings = RunSettings(
            run="r", config=settings_of(search), maximize=False, seed=3, metric="loss",
            space=space.public, choices=cloudpickle.dumps(space),
        )  # fmt: skip
        self.url = url
        self.die_before = []
        self.die_after = []
        self.called = Counter()
        self.restart()
        self.channel = Channel(self.host.name, self._send)

    def restart(self):
        self.host = LossHost(self.settings, self.url)

    def _send(self, operation, *args):
        """As Ray does: what a restarted host did not answer is asked again."""
        place = (operation, self.called[operation])
        self.called[operation] += 1
        if place in self.die_before:
            self.restart()
        reply = self.host.call(operation, *args)
        if place in self.die_after:
            self.restart()
            reply = self.host.call(operation, *args)
        return reply

    def ask(self, trial):
        answer, x = self.channel.call("ask", trial, False)
        assert answer == "ask"
        return np.asarray(x)

    def facts(self):
        return self.channel.call("ledger")


def many(x, n=120):
    return np.asarray((x[0] - np.random.default_rng(5).uniform(0.4, 0.9, n)) ** 2)


@pytest.mark.parametrize(
    ("die_before", "die_after"),
    [
        pytest.param([("public_key", 0)], [], id="before its key is known"),
        pytest.param([("tell", 0)], [], id="after its key is known"),
        pytest.param([], [("tell", 0)], id="after the release, before its answer"),
        pytest.param([("tell", 0), ("tell", 1)], [("tell", 2)], id="again and again"),
    ],
)
def test_a_host_that_dies_under_a_tell_stores_one_release(die_before, die_after, tmp_path):
    hosts = Hosts(f"sqlite:///{tmp_path}/vault.db")
    x = hosts.ask("a")
    hosts.die_before, hosts.die_after = die_before, die_after
    value = tell(hosts.channel, "a", x, many(x))
    charges, releases, _ = hosts.facts()
    assert [(c.kind, c.key) for c in charges] == [("value", "a")]
    assert [r.values for r in releases] == [(hosts.channel.call("record", "a").beside[DRAW],)]
    assert tell(hosts.channel, "a", x, 1 - many(x)) == value
    assert hosts.channel.call("enter", "a", "later").value == value
    assert len(hosts.facts()[0]) == 1


def test_a_host_that_always_dies_is_given_up_without_a_release(tmp_path):
    hosts = Hosts(f"sqlite:///{tmp_path}/vault.db")
    x = hosts.ask("a")
    hosts.die_before = [("tell", n) for n in range(10)]
    with pytest.raises(VaultError, match="again and again"):
        tell(hosts.channel, "a", x, many(x))
    assert hosts.facts() == ([], [], [])


def told(hosts, *trials):
    for trial in trials:
        x = hosts.ask(trial)
        tell(hosts.channel, trial, x, many(x))


@pytest.mark.parametrize("zombie_first", [True, False])
def test_of_a_zombie_and_its_successor_the_first_write_wins(zombie_first, tmp_path):
    hosts = Hosts(f"sqlite:///{tmp_path}/vault.db")
    told(hosts, "s0", "s1")
    x = hosts.ask("a")
    hosts.channel.call("enter", "a", "zombie")
    hosts.channel.call("fail", "a")  # Tune gave the trial up; its process still runs
    hosts.channel.call("enter", "a", "successor")
    first, second = (many(x), 1 - many(x))[:: 1 if zombie_first else -1]
    value = tell(hosts.channel, "a", x, first)
    assert tell(hosts.channel, "a", x, second) == value
    told(hosts, "b")
    charges, releases, _ = hosts.facts()
    gradient = next(r for r in releases if r.kind == "gradient")
    assert sorted(t for t, _ in gradient.meta["points"]) == ["a", "b"]
    assert len(charges) == len(releases) == 4 + 1


def test_a_zombie_of_a_step_that_is_over_joins_no_gradient(tmp_path):
    hosts = Hosts(f"sqlite:///{tmp_path}/vault.db")
    told(hosts, "s0", "s1")
    x = hosts.ask("zombie")
    hosts.channel.call("fail", "zombie")
    told(hosts, "a", "b")
    before = hosts.facts()
    assert [r.kind for r in before[1]] == ["value"] * 4 + ["gradient"]
    tell(hosts.channel, "zombie", x, many(x))
    assert hosts.facts()[:2] == before[:2]
    told(hosts, "c", "d")
    for trial in "efg":
        if not hosts.channel.call("finished"):
            told(hosts, trial)
    assert hosts.channel.call("finished")
    charges, releases, held = hosts.facts()
    used = [t for r in releases if r.kind == "gradient" for t, _ in r.meta["points"]]
    assert sorted(used) == ["a", "b", "c", "d"]
    assert len(charges) == len(releases)
    assert held == []


# The driver ---------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_killed_driver_goes_on_elsewhere(killed, tmp_path):
    path = killed(dies_at_the_third)
    found = DPGIBOSearch.from_experiment(path)
    give_noise(found, CountedNoise(tmp_path))
    check(found, path)
    before = facts(found)
    assert [kind for kind, *_ in before[1]] == ["value"] * 2
    results = tune.Tuner.restore(str(path), faulty(found.private, tmp_path, {})).fit()
    assert not results.errors
    check_grown(before, found)
    releases = check_finished(found, path, 1)
    assert len(lines(tmp_path / "draws")) == len(releases)
    evaluated = BEFORE_LAST + n_compared(releases)
    again = len(lines(tmp_path / "trained")) - evaluated
    assert again in (1, 2)  # the second while the lost one is awaited
