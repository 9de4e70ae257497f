"""Whatever dies, a user is charged once for a trial, and what was drawn first is shown."""

import json
import math
import shutil
from collections import Counter

import pytest
from ray import tune
from ray.tune.search.optuna import OptunaSearch

from privbo_plugins.errors import VaultError
from raytune_searchers import LDPGPUCBSearch, ldp_trainable
from raytune_searchers._channel import USERS_LEDGER
from raytune_searchers._evaluations import wrap
from tests.inside import call_host, host_name, ledger_of, published_by
from tests.raytune_searchers.hosts import crash, evaluation, lose, refused, sent
from tests.raytune_searchers.ldp_scenes import (
    CHARGED,
    DeadlyNoise,
    dies_at_the_last,
    reward,
    search_of,
)
from tests.raytune_searchers.runs import LINE, fit
from tests.raytune_searchers.scenes import BEFORE, REPORTED, STORED, TRIAL, faulty
from tests.raytune_searchers.test_faults import never_stalls, shown
from tests.worker import lines

pytestmark = pytest.mark.usefixtures(never_stalls.__name__)


def check(rows, path, n):
    """One charge a trial, one release a charge, and nothing else in the results."""
    released = {trial: value for trial, _, _, _, value in rows}
    assert len(rows) == len(released) == n
    for trial, value in shown(path, "reward"):
        assert value == released[trial]
    return released


@pytest.mark.soak
@pytest.mark.usefixtures("the_ray")
def test_trials_that_die_replay_what_was_stored_and_pay_once(tmp_path):
    faults = {(0, CHARGED): TRIAL, (1, STORED): TRIAL, (2, REPORTED): TRIAL, (3, BEFORE): TRIAL}
    made = []

    def wrap(evaluated):
        noise = DeadlyNoise(tmp_path, faults)
        made.append(ldp_trainable(
            evaluated, epsilon=1.0, bound=1.0, mechanism="laplace", noise=noise,
            user_id=lambda config: "Jane",
        ))  # fmt: skip
        return made[0]

    trainable = faulty(wrap, tmp_path, faults, reward)
    results = fit(
        None, trainable, tmp_path, num_samples=4, failure=tune.FailureConfig(max_failures=1),
        max_concurrent_trials=2,
    )  # fmt: skip
    assert not results.errors
    private = made[0]
    rows = ledger_of(private)
    released = check(rows, tmp_path / "run", 4)
    assert len({person for _, person, *_ in rows}) == 1
    assert {r.metrics["trial_id"]: r.metrics["reward"] for r in results} == released
    assert Counter(lines(tmp_path / "trained")) == {0: 2, 1: 1, 2: 1, 3: 2}
    drawn = lines(tmp_path / "draws")
    assert sorted(drawn) == pytest.approx(sorted(released.values()))
    guarantee = private.guarantee(results)
    assert not guarantee.protected  # the noise was a test's
    assert (guarantee.n_evaluations, guarantee.most_evaluations) == (4, 4)


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("end", [crash, lose])
def test_a_ledger_in_memory_that_is_lost_lets_nothing_more_out(end):
    sharing = ldp_trainable(reward, epsilon=1.0, value_range=(0, 1))
    name = host_name(sharing.guarantee.__self__)

    def losing(config):
        end(name)
        return reward(config)

    search = OptunaSearch(seed=1)
    assert search.set_search_properties("reward", "max", dict(LINE))
    (good,) = evaluation(search, sharing, 1)
    assert good.error is None
    lost = evaluation(search, wrap(losing, name, sharing.mechanism, None, None), 1, name="losing")
    lost += evaluation(search, wrap(reward, name, sharing.mechanism, None, None), 1, name="later")
    assert [str(trial.error) for trial in lost] == [USERS_LEDGER.lost] * 2
    assert not any(trial.rows for trial in lost)
    with refused(USERS_LEDGER.lost):
        sharing.guarantee([good])


def put_back(local, backup, path):
    """The cluster ends, with what it remembers, and the vault's backup is put in its place."""
    local.end_driver()
    local.forget()
    shutil.copy(backup, path)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_driver_notices_that_the_vault_of_its_trainable_was_put_back(
    local_hosts, tmp_path, pickled
):
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    sharing = ldp_trainable(
        reward, epsilon=1.0, value_range=(0, 1), user_id=lambda config: "Jane",
        vault=f"sqlite:///{path}", run_name="run",
    )  # fmt: skip
    shutil.copy(path, backup)
    search = OptunaSearch(seed=1)
    assert search.set_search_properties("reward", "max", dict(LINE))
    trials = evaluation(search, sharing, 2)
    assert sharing.guarantee(trials).epsilon == 2.0
    saved = sent(sharing) if pickled else sharing
    put_back(local_hosts, backup, path)
    with pytest.raises(VaultError, match="older backup"):
        saved.guarantee()
    host = host_name(sharing.guarantee.__self__)
    wrapped = wrap(reward, host, sharing.mechanism, lambda config: "Jane", None)
    again = evaluation(search, wrapped, 1, name="again")
    assert again[0].error is not None
    assert not again[0].rows


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("since", [0, 3])
def test_nothing_is_claimed_of_more_releases_than_the_last_report_knew(tmp_path, since):
    search = LDPGPUCBSearch(
        epsilon=1.0, value_range=(0, 1), metric="reward", mode="max", search_space=LINE
    )
    sharing = search.private(reward, user_id=lambda config: "Jane")
    assert len(evaluation(search, sharing, 2)) == 2
    search.save(str(tmp_path / "state"))
    assert len(evaluation(search, sharing, since, name="since")) == since
    lose(host_name(search))
    guarantee = search.guarantee()
    assert guarantee.protected == (since == 0)
    assert guarantee.epsilon_most == math.inf  # how often Jane was asked, only the ledger knew
    assert guarantee.epsilon_evaluation == (math.inf if since else 1.0)
    assert guarantee.epsilon == guarantee.epsilon_most
    assert any("more had been released" in why for why in guarantee.reasons) == (since > 0)


def test_a_checkpoint_from_before_the_first_named_user_says_no_less_than_the_ledger(
    local_hosts, tmp_path
):
    search = LDPGPUCBSearch(
        epsilon=1.0, value_range=(0, 1), metric="reward", mode="max", search_space=LINE
    )
    evaluation(search, search.private(reward), 1)
    search.save_to_dir(str(tmp_path), "s")
    evaluation(search, search.private(reward, user_id=lambda config: "Jane"), 3, name="named")
    assert search.guarantee().epsilon == 3.0
    local_hosts.end_driver()
    restored = LDPGPUCBSearch.from_experiment(tmp_path).guarantee()
    assert restored.epsilon == math.inf
    assert restored.epsilon_evaluation == 1.0


@pytest.mark.soak
def test_a_killed_driver_goes_on_elsewhere(killed, tmp_path):
    path = killed(dies_at_the_last)
    search = LDPGPUCBSearch.from_experiment(path)
    before = check(call_host(search, "ledger"), path, 3)
    search.close()  # the restored experiment begins the ledger itself, though it suggests nothing
    results = tune.Tuner.restore(str(path), faulty(search.private, tmp_path, {}, reward)).fit()
    assert not results.errors
    after = check(call_host(search, "ledger"), path, len(results))
    assert before == after
    assert {trial for trial, _ in shown(path, "reward")} == set(after)
    assert Counter(lines(tmp_path / "trained")) == dict.fromkeys(range(len(after)), 1)
    guarantee = search.guarantee(results)
    assert guarantee.protected
    assert guarantee.n_evaluations == len(after)
    assert json.loads(json.dumps(guarantee.to_dict()))["n_evaluations"] == len(after)
    anew = search_of(tmp_path)  # made again under the same name
    anew.set_search_properties(None, None, {"x": tune.uniform(0, 1)})
    assert published_by(anew) == after
