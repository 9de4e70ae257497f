"""Rows of a released table in Optuna: every worker, resumption, answer and misuse."""

import math
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState, create_trial

from optuna_samplers import POGPUCBSampler, answer_trials
from privbo_plugins.algorithms.po_gp_ucb import POGPUCB, TableManifest
from privbo_plugins.algorithms.po_gp_ucb.table import sealed
from privbo_plugins.errors import PrivacyWarning, SpaceChangedError, VaultError
from privbo_plugins.sessions.rows import Curator
from tests.inside import algorithm_of, settings_of
from tests.optuna_samplers.scenes import studies

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]

GUARANTEE = "privbo:guarantee"
N = 60


def rows(n=N, d=2, seed=0):
    """Rows on a square."""
    return np.random.default_rng(seed).uniform(-1, 1, size=(n, d))


def table(Z=None, noise_sd=0.02):
    """A table as a curator would release it, with numbers that do not change from run to run."""
    Z = rows() if Z is None else Z
    n, r = Z.shape
    return sealed(
        Z,
        TableManifest(
            mechanism="gaussian", n=n, d=r, r=r, epsilon=2.0, delta=1e-6, mu=0.4,
            neighbor_distance=0.1, norm_bound=2.0,
            sensitivity=0.4 * noise_sd, noise_sd=noise_sd,
            projection={"kind": "identity"}, scaling=None, noise="the system's entropy",
            protected=True,
        ),
    )  # fmt: skip


def smooth(row, Z=None):
    """An outcome that changes slowly from row to row; the largest is near 0."""
    x = (rows() if Z is None else Z)[row]
    return -float((x[0] - 0.4) ** 2 + (x[1] + 0.3) ** 2)


BEST = int(np.argmax([smooth(i) for i in range(N)]))


def ask(trial, n=N):
    return int(trial.suggest_int("row", 0, n - 1))


def answer(trial):
    return smooth(ask(trial))


def asked(study):
    return [trial.params["row"] for trial in study.get_trials(deepcopy=False)]


def make(**settings):
    return POGPUCBSampler(**({"Z": table(), "seed": 1} | settings))


def make_study(sampler=None, **settings):
    known = {"direction": "maximize", "sampler": make() if sampler is None else sampler}
    return optuna.create_study(**(known | settings))


@pytest.fixture(scope="module")
def uninterrupted():
    """Rows that a study asks for which goes on in one process, with one sampler."""
    study = make_study(make())
    study.optimize(answer, n_trials=12)
    return asked(study)


# Tuning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_finds_the_best_row(direction):
    sampler, sign = make(), 1 if direction == "maximize" else -1
    study = make_study(sampler, direction=direction)
    study.optimize(lambda trial: sign * answer(trial), n_trials=15)
    assert sampler.recommend(study) == {"row": BEST}
    assert study.best_params == {"row": BEST}
    assert len(set(asked(study))) == 15
    assert all(type(row) is int for row in asked(study))


def test_other_parameters_are_random_and_take_no_part():
    def more(trial):
        trial.suggest_float("x", 0, 1)
        trial.suggest_categorical("c", ["a", "b"])
        trial.suggest_int("constant", 3, 3)
        return answer(trial)

    alone, among = make_study(make()), make_study(make())
    alone.optimize(answer, n_trials=10)
    among.optimize(more, n_trials=10)
    assert asked(alone) == asked(among)
    assert len({trial.params["x"] for trial in among.trials}) == 10
    assert set(among.sampler.recommend(among)) == {"row"}


# Workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [2, 3])
@pytest.mark.parametrize("told", [0, 4])
def test_workers_that_choose_at_the_same_moment_get_different_rows(told, n_workers, monkeypatch):
    """Each has its own sampler, as processes have, and sees the others' claims too late."""
    storage = optuna.storages.InMemoryStorage()
    study = make_study(storage=storage, study_name="s")
    study.optimize(answer, n_trials=told)
    both, choose, met = threading.Barrier(n_workers), POGPUCB.ask, threading.local()

    def meet(self, *args, **kwargs):
        evaluation = choose(self, *args, **kwargs)
        if not getattr(met, "once", False):
            met.once = True
            both.wait(20)
        return evaluation

    monkeypatch.setattr(POGPUCB, "ask", meet)
    monkeypatch.setattr(np.random, "default_rng", lambda seed, make=np.random.default_rng: make(7))

    def work(_):
        mine = optuna.load_study(study_name="s", storage=storage, sampler=make())
        return ask(mine.ask())

    with ThreadPoolExecutor(n_workers) as pool:
        picked = list(pool.map(work, range(n_workers)))
    assert len(set(picked)) == n_workers
    assert set(picked).isdisjoint(asked(study)[:told])


# Pickles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pickle", "cloudpickle"])
@pytest.mark.parametrize("given", ["table", "path", "text", "parquet"])
def test_a_pickled_sampler_goes_on(given, library, tmp_path, uninterrupted):
    dumps = pytest.importorskip(library).dumps
    if given == "parquet":
        pytest.importorskip("pyarrow")
    path = table().save(tmp_path / ("z.parquet" if given == "parquet" else "z.npz"))
    Z = {"table": table(), "text": str(path)}.get(given, path)
    sampler = make(Z=Z)
    study = make_study(sampler)
    study.optimize(answer, n_trials=4)
    study.sampler = pickle.loads(dumps(sampler))
    study.optimize(answer, n_trials=4)
    assert asked(study) == uninterrupted[:8]
    assert study.sampler.guarantee(study) == sampler.guarantee(study)
    assert study.sampler.recommend(study) == sampler.recommend(study)


def test_a_sampler_made_from_a_file_pickles_without_its_rows(tmp_path, monkeypatch):
    Z = rows(5000, 4)
    table(Z).save(tmp_path / "z.npz")
    monkeypatch.chdir(tmp_path)
    sampler = make(Z="z.npz")
    study = make_study(sampler)
    study.optimize(lambda trial: smooth(ask(trial, 5000), Z), n_trials=4)
    assert len(pickle.dumps(sampler)) < 10_000 < Z.nbytes < len(pickle.dumps(make(Z=table(Z))))
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(sampler)).recommend(study) == sampler.recommend(study)


def test_a_file_that_has_changed_or_gone_is_told(tmp_path):
    path = table().save(tmp_path / "z.npz")
    pickled = pickle.dumps(make(Z=path))
    table(rows(seed=5)).save(path)
    with pytest.raises(ValueError, match="holds another released table"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="no file"):
        pickle.loads(pickled)


# Trials of other origin -----------------------------------------------------------------------


def test_enqueued_and_added_rows_are_learnt_and_not_asked_again():
    sampler = make(beta_scale=1e-3)
    study = make_study(sampler)
    study.add_trial(
        create_trial(
            params={"row": BEST},
            distributions={"row": IntDistribution(0, N - 1)},
            value=smooth(BEST),
        )
    )
    assert sampler.recommend(study) == {"row": BEST}
    study.enqueue_trial({"row": 3})
    study.enqueue_trial({"row": 3})  # by hand as often as one likes
    study.optimize(answer, n_trials=8)
    assert asked(study)[:3] == [BEST, 3, 3]
    assert len(set(asked(study))) == 8
    sampler.recommend(study)
    told = [value for _, value in algorithm_of(sampler, study).evaluations]
    assert told == [trial.value for trial in study.trials]


def _fail(trial):
    raise OSError("no connection")


def _prune(trial):
    trial.report(1e6, 1)
    raise optuna.TrialPruned


ENDINGS = {
    "fail": _fail, "prune": _prune, "nan": lambda _: math.nan, "infinite": lambda _: math.inf,
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_row_without_an_answer_is_left_out_after_three_trials(ending):
    bad = {BEST, *range(0, N, 9)}

    def sometimes(trial):
        row = ask(trial)
        return ENDINGS[ending](trial) if row in bad else smooth(row)

    sampler = make()
    study = make_study(sampler)
    study.enqueue_trial({"row": BEST})
    study.optimize(sometimes, n_trials=25, catch=(OSError,))
    counts = {row: asked(study).count(row) for row in asked(study)}
    assert max(counts.values()) <= 3
    assert {row for row, k in counts.items() if k > 1} <= bad
    assert len(counts.keys() - bad) >= 8
    assert sampler.recommend(study)["row"] not in bad
    assert 1e6 not in [value for _, value in algorithm_of(sampler, study).evaluations]


# Misuse ---------------------------------------------------------------------------------------


OTHER = {
    "from one": lambda trial: trial.suggest_int("row", 1, N),
    "too many": lambda trial: trial.suggest_int("row", 0, N),
    "too few": lambda trial: trial.suggest_int("row", 0, N - 2),
    "a step": lambda trial: trial.suggest_int("row", 0, N, step=2),
    "a float": lambda trial: trial.suggest_float("row", 0, N - 1),
    "a choice": lambda trial: trial.suggest_categorical("row", list(range(N))),
}


@pytest.mark.parametrize("suggest", OTHER.values(), ids=OTHER.keys())
@pytest.mark.parametrize("before", [0, 3])
def test_another_range_is_refused_before_anything_is_asked(suggest, before):
    sampler, ran = make(), []
    study = make_study(sampler)
    study.optimize(answer, n_trials=before)

    def wrong(trial):
        suggest(trial)
        ran.append(1)
        return 0.0

    with pytest.raises((SpaceChangedError, ValueError), match=r"row|Cannot set"):
        study.optimize(wrong, n_trials=1)
    assert not ran
    study.optimize(answer, n_trials=3)
    assert set(sampler.recommend(study)) == {"row"}


def test_a_study_of_another_table_is_refused():
    study = make_study(make(Z=table(rows(40))))
    study.optimize(lambda trial: float(ask(trial, 40)), n_trials=3)
    sampler = make()
    study.sampler = sampler
    for call in (lambda: sampler.recommend(study), lambda: study.optimize(answer, n_trials=1)):
        with pytest.raises(SpaceChangedError, match=r"Trial 0 .* another table.*new study"):
            call()


@pytest.mark.parametrize("row", [N, -1])
def test_a_row_that_is_none_is_not_learnt(row):
    study = make_study()
    study.enqueue_trial({"row": row})
    with pytest.warns(UserWarning, match="out of range"):
        study.optimize(lambda trial: float(ask(trial)), n_trials=1)
    with pytest.raises(SpaceChangedError, match="Trial 0"):
        study.sampler.recommend(study)


# What may be claimed --------------------------------------------------------------------------


def test_what_is_not_protected_is_said_and_warned_of_once_a_study():
    sampler = make(Z=rows())
    for _ in range(2):
        study = make_study(sampler)
        with pytest.warns(PrivacyWarning, match="bare matrix") as caught:
            study.optimize(answer, n_trials=3)
        assert [one.category for one in caught].count(PrivacyWarning) == 1
        guarantee = sampler.guarantee(study)
        assert not guarantee.protected
        assert guarantee.to_dict()["epsilon"] == "inf"
        assert (guarantee.n_answers, guarantee.n_rows) == (3, N)
        assert str(guarantee).startswith("NOT PROTECTED")
        assert study.user_attrs[GUARANTEE] == guarantee.lasting
    assert set(sampler.recommend(study)) == {"row"}


# The curator's side ---------------------------------------------------------------------------


def curator(**settings):
    known = {
        "X": rows(), "epsilon": 4.0, "delta": 1e-6, "bounds": [(-1, 1)] * 2, "outcomes": smooth
    }  # fmt: skip
    return Curator(**(known | settings))


@pytest.mark.usefixtures("study_tables")
def test_a_modeler_and_a_curator_that_share_a_study(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    holder = curator()
    sampler = POGPUCBSampler(holder.release().save(tmp_path / "z.npz"), seed=0)
    study = make_study(sampler, storage=url, study_name="s")
    theirs = optuna.load_study(study_name="s", storage=url)
    assert answer_trials(theirs, holder) == 0
    for _ in range(4):
        picked = {ask(study.ask()) for _ in range(2)}
        assert len(picked) == 2
        assert answer_trials(theirs, holder) == 2
        assert answer_trials(theirs, holder) == 0
    for trial in study.trials:
        assert trial.state == TrialState.COMPLETE
        assert trial.value == smooth(trial.params["row"])
    assert sampler.guarantee(study).n_answers == 8
    assert set(sampler.recommend(study)) == {"row"}
    assert sorted(holder.answers()) == sorted(asked(study))


def test_only_running_trials_with_a_row_are_answered():
    study = make_study()
    study.enqueue_trial({"row": 5})
    holder = curator()
    assert answer_trials(study, holder) == 0
    without, other = study.ask(), study.ask()
    other.suggest_float("x", 0, 1)
    assert answer_trials(study, holder) == 0
    assert ask(without) == 5
    assert answer_trials(study, holder) == 1
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "RUNNING"]
    assert holder.answers() == {5: smooth(5)}


def _outcomes():
    y = [smooth(i) for i in range(N)]
    y[3], y[4] = math.nan, math.inf
    return y


def _quoting(row):
    if row in (3, 4):
        raise ValueError(f"patient Jane of row {row}")
    return smooth(row)


@pytest.mark.parametrize("outcomes", [_outcomes(), _quoting], ids=["no number", "raises"])
def test_a_row_whose_outcome_fails_is_told_as_failed_and_nothing_else(outcomes):
    study = make_study()
    for row in (3, 10, 4):
        study.enqueue_trial({"row": row})
        ask(study.ask())
    assert answer_trials(study, curator(outcomes=outcomes)) == 3
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "FAIL"]
    assert [trial.value for trial in study.trials] == [None, smooth(10), None]
    assert "Jane" not in repr([vars(trial) for trial in study.trials])
    study.sampler = make()
    ask(study.ask())


def test_privatised_answers_are_told_as_they_were_released():
    study, holder = make_study(), curator(outcome_epsilon=1.0, outcome_range=(-2.0, 0.0))
    picked = [ask(study.ask()) for _ in range(3)]
    assert answer_trials(study, holder) == 3
    values = [trial.value for trial in study.trials]
    assert values == [holder.evaluate(row) for row in picked]
    assert set(values).isdisjoint({smooth(row) for row in picked})
    sampler = make(Z=holder.release())
    guarantee = sampler.guarantee(study)
    assert guarantee.protected
    assert guarantee.epsilon == holder.guarantee().epsilon > 4.0
    assert guarantee.outcomes == holder.guarantee().outcomes
    assert "not checked here" in guarantee.details()
    assert settings_of(sampler).answer_variance > 0


@pytest.mark.usefixtures("study_tables")
def test_a_study_notices_that_the_vault_of_its_answers_was_put_back(tmp_path):
    study, path = make_study(storage=f"sqlite:///{tmp_path}/study.db"), tmp_path / "vault.db"

    def holder():
        randomised = {"outcome_epsilon": 1.0, "outcome_range": (-2.0, 0.0)}
        return curator(vault=f"sqlite:///{path}", **randomised)

    holder().release()
    ask(study.ask())
    assert answer_trials(study, holder()) == 1
    shutil.copy(path, tmp_path / "backup.db")
    second = ask(study.ask())
    assert answer_trials(study, holder()) == 1  # another process of the curator's, say
    shutil.copy(tmp_path / "backup.db", path)
    study.enqueue_trial({"row": second})
    assert ask(study.ask()) == second  # the vault knows no answer to it any more
    with pytest.raises(VaultError, match="older backup"):
        answer_trials(study, holder())
    assert study.trials[-1].state == TrialState.RUNNING


@pytest.mark.parametrize(
    "distribution", [IntDistribution(1, N), CategoricalDistribution([0, 1])], ids=["int", "choice"]
)
def test_rows_counted_in_another_way_are_not_answered(distribution):
    study = make_study(RandomSampler(seed=0))
    ask(study.ask())
    study2 = make_study(RandomSampler(seed=0))
    study2.ask({"row": distribution})
    holder = curator()
    with pytest.raises(SpaceChangedError, match="Nothing was answered"):
        answer_trials(study2, holder)
    assert holder.answers() == {}
    assert answer_trials(study, holder) == 1


def test_curators_that_cannot_answer():
    study = make_study()
    ask(study.ask())
    with pytest.raises(ValueError, match="no outcomes="):
        answer_trials(study, curator(outcomes=None))
    multi = optuna.create_study(directions=["minimize"] * 2)
    with pytest.raises(ValueError, match="one objective"):
        answer_trials(multi, curator())
    assert study.trials[0].state == TrialState.RUNNING


def test_a_vault_that_fails_is_told_and_the_trial_waits(monkeypatch):
    study, holder = make_study(), curator()
    ask(study.ask())

    def broken(row):
        raise VaultError("The vault is gone.")

    monkeypatch.setattr(holder, "evaluate", broken)
    with pytest.raises(VaultError):
        answer_trials(study, holder)
    assert study.trials[0].state == TrialState.RUNNING


@pytest.mark.parametrize("kind", ["memory", "sqlite", "journal"])
def test_two_curators_at_once(kind, tmp_path):
    """What one has answered the other leaves; both meet at every row."""
    storage = (
        optuna.storages.InMemoryStorage()
        if kind == "memory"
        else studies.open_storage(kind, tmp_path)
    )
    study = make_study(storage=storage, study_name="s")
    picked = [ask(study.ask()) for _ in range(4)]
    both = threading.Barrier(2)

    def slow(row):
        with suppress(threading.BrokenBarrierError):
            both.wait(2)
        return smooth(row)

    def work(_):
        mine = optuna.load_study(study_name="s", storage=storage)
        return answer_trials(mine, curator(outcomes=slow))

    with ThreadPoolExecutor(2) as pool:
        ended = sum(pool.map(work, range(2)))
    assert ended == 4 or (kind == "sqlite" and 4 < ended <= 8)  # it locks no rows
    assert [trial.value for trial in study.trials] == [smooth(row) for row in picked]
