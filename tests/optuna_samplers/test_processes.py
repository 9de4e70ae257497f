"""Several workers, and workers that come back later: one ledger, one run."""

import json
from collections import Counter
from contextlib import contextmanager, suppress

import optuna
import pytest

from privbo_plugins.errors import VaultError
from privbo_plugins.sessions.records import Session
from privbo_plugins.store.run import Run
from tests.conftest import databases
from tests.inside import n_compared, session_of, vault_of
from tests.optuna_samplers.runs import make_sampler, plane, squares, vault_facts
from tests.optuna_samplers.scenes import studies
from tests.worker import children

pytestmark = pytest.mark.usefixtures("study_tables")

N_WORKERS = 3
PLAN = {"n_starts": 3, "n_steps": 3, "batch_size": 3}
N_STEPS, N_LAST = 3, 3


def check_ledger(ledger, compared):
    """Each release once, all that was planned, and nothing beyond the budget."""
    assert set(Counter((kind, key) for kind, key, _ in ledger).values()) == {1}
    kinds = Counter(kind for kind, _, _ in ledger)
    assert kinds == {"value": 3 + N_STEPS * 3 + compared, "gradient": N_STEPS, "comparison": 1}
    left = (N_LAST - compared) * next(mu for kind, _, mu in ledger if kind == "value") ** 2
    assert left + sum(mu**2 for *_, mu in ledger) == pytest.approx(1.0, rel=1e-6)


def check_session(session):
    """The same of a session."""
    charges = [(charge.kind, charge.key, charge.mu) for charge in session.ledger()]
    check_ledger(charges, n_compared(session.releases()))


def check_slots(trials, extras):
    """No slot of a step is handed out twice, and no more points than workers can hold."""
    slots = Counter((step, slot) for _, _, step, slot, state, _ in trials if state != "failed")
    assert set(slots.values()) == {1}, [t for t in trials if slots[t[2], t[3]] > 1]
    for step in range(N_STEPS):
        assert 3 <= sum(1 for s, _ in slots if s == step) <= 3 + extras


def check_study(study, published):
    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    assert {str(t.number): t.value for t in complete} == published
    steps = [t for t in complete if t.user_attrs["privbo:role"].startswith("step")]
    points = Counter(tuple(sorted(t.params.items())) for t in steps)
    assert len(points) >= N_STEPS * 3
    assert set(points.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "known"), [("sqlite", "space found"), ("journal", "space declared")]
)
def test_several_processes_share_one_study(kind, known, tmp_path):
    vault = f"sqlite:///{tmp_path}/vault.db"
    settings = dict(PLAN)
    if known == "space declared":
        settings["search_space"] = {
            "x": optuna.distributions.FloatDistribution(0, 1),
            "y": optuna.distributions.FloatDistribution(-2, 2),
        }
    storage = studies.open_storage(kind, tmp_path)
    optuna.create_study(storage=storage, study_name="s")
    jobs = [
        (f"{i}", kind, str(tmp_path), vault, str(tmp_path), dict(settings))
        for i in range(N_WORKERS)
    ]
    assert children(studies.work, *jobs) == [0] * N_WORKERS

    facts = vault_facts(tmp_path / "vault.db")
    check_ledger(facts["ledger"], 1 + len(facts["releases"]["comparison", "comparison"]))
    check_slots(facts["trials"], extras=N_WORKERS)
    assert facts["held"] == []
    study = optuna.load_study(study_name="s", storage=storage)
    check_study(study, facts["published"])
    beliefs = [json.loads((tmp_path / f"shown-{i}.json").read_text()) for i in range(N_WORKERS)]
    assert all(belief == beliefs[0] for belief in beliefs)
    assert beliefs[0]["finished"]
    assert beliefs[0]["reasons"] == []
    assert beliefs[0]["protected"]


@pytest.mark.slow
def test_several_processes_share_a_postgresql_database(postgres_database, tmp_path):
    url = postgres_database
    beside = databases(url, f"{url.rsplit('/', 1)[1]}_vault")
    with beside as (vault,), closing_storage(url) as storage:
        optuna.create_study(storage=storage, study_name="s")
        jobs = [
            (f"{i}", "postgresql", url, vault, str(tmp_path), dict(PLAN)) for i in range(N_WORKERS)
        ]
        assert children(studies.work, *jobs) == [0] * N_WORKERS
        sampler = make_sampler(vault=vault, **PLAN)
        try:
            study = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
            belief = json.loads(json.dumps(studies.shown(sampler, study)))
            for i in range(N_WORKERS):
                assert json.loads((tmp_path / f"shown-{i}.json").read_text()) == belief
            session = session_of(sampler, study)
            check_session(session)
            published = session.published().items()
            check_study(study, {name: told.value for name, told in published})
        finally:
            vault_of(sampler).close()


@contextmanager
def closing_storage(url):
    storage = optuna.storages.RDBStorage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


@pytest.mark.parametrize("read", [(Session, "published"), (Run, "declared_public")])
def test_a_worker_that_reads_the_guarantee_while_another_tells_finds_nothing_strange(
    read, tmp_path, monkeypatch
):
    """What the study shows was in the vault before; what the vault has just shown is older."""

    def declaring(trial):
        trial.set_user_attr("epochs", 3, public=True)
        return plane(trial)

    sampler, study = _begin(tmp_path)
    study.optimize(sampler.private(declaring), n_trials=1)
    other, same_study = _begin(tmp_path)
    same_study.optimize(other.private(declaring), n_trials=1)
    reader, n_told = getattr(*read), 0

    def overtaken(self, *what):
        nonlocal n_told
        shown = reader(self, *what)
        session = session_of(sampler, study)
        if self in (session, session.run):
            n_told += 1
            same_study.optimize(other.private(declaring), n_trials=1)
        return shown

    monkeypatch.setattr(*read, overtaken)
    for _ in range(3):
        guarantee = sampler.guarantee(study)
        assert guarantee.reasons == ()
        assert guarantee.protected
    assert len(study.trials) == 2 + n_told == 5


# Coming back ----------------------------------------------------------------------------------


def _begin(folder, **settings):
    sampler = make_sampler(**({"vault": f"sqlite:///{folder}/vault.db"} | settings))
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/study.db",
        study_name="s",
        sampler=sampler,
        load_if_exists=True,
    )
    return sampler, study


@pytest.mark.parametrize("ending", ["fails", "is pruned", "suggests by itself"])
def test_the_first_trial_of_a_resumed_study_may_go_its_own_way(ending, tmp_path):
    """A trial that ends before it asks the sampler, and one whose parameters were enqueued."""
    sampler, study = _begin(tmp_path)
    study.optimize(sampler.private(plane), n_trials=4)
    sampler, study = _begin(tmp_path)

    def objective(trial):
        if ending == "fails":
            raise ValueError
        if ending == "is pruned":
            raise optuna.TrialPruned
        return plane(trial)

    if ending == "suggests by itself":
        study.enqueue_trial({"x": 0.5, "y": 0.5})
    study.optimize(sampler.private(objective), n_trials=1, catch=(RuntimeError,))
    state = {"fails": "FAIL", "is pruned": "PRUNED", "suggests by itself": "COMPLETE"}[ending]
    assert study.trials[-1].state.name == state
    study.optimize(sampler.private(plane))
    assert sampler.finished(study)


@pytest.mark.parametrize(
    ("who", "storage"),
    [
        ("a new sampler", "sqlite"),
        ("the same sampler", "sqlite"),
        ("the same sampler", "journal"),
        ("the same sampler", "memory"),
    ],
)
def test_a_study_made_anew_under_an_old_name_is_refused(who, storage, tmp_path):
    """Its trials would be answered with the values of the old study's."""
    vault = f"sqlite:///{tmp_path}/vault.db"
    opened = (
        optuna.storages.InMemoryStorage()
        if storage == "memory"
        else studies.open_storage(storage, tmp_path)
    )
    sampler = make_sampler(vault=vault)
    study = optuna.create_study(storage=opened, study_name="s", sampler=sampler)
    study.optimize(sampler.private(squares), n_trials=3)
    ledger = vault_facts(tmp_path / "vault.db")["ledger"]
    optuna.delete_study(study_name="s", storage=opened)
    if who == "a new sampler":
        sampler = make_sampler(vault=vault)
    study = optuna.create_study(storage=opened, study_name="s", sampler=sampler)
    with pytest.raises(VaultError, match="another name or another vault"):
        study.optimize(sampler.private(squares), n_trials=1)
    assert vault_facts(tmp_path / "vault.db")["ledger"] == ledger


def test_two_studies_of_one_name_in_two_storages_do_not_share_a_run(tmp_path):
    vault = f"sqlite:///{tmp_path}/vault.db"
    pairs = []
    for _ in range(2):  # both are open before either has released anything
        sampler = make_sampler(vault=vault)
        study = optuna.create_study(study_name="s", sampler=sampler)
        with suppress(VaultError):  # the second may be refused
            pairs.append((sampler, study, study.ask()))
    values = []
    for sampler, _, trial in pairs:
        trial.suggest_float("x", 0, 1)
        values.append(sampler.tell_private(trial, squares(trial)))
    assert len(values) == len(set(values))
    assert values


def test_two_vaults_that_begin_a_study_at_once_do_not_both_spend():
    one, two = make_sampler(), make_sampler()
    study = optuna.create_study(sampler=one)
    first = study.ask()  # one has begun the study ...
    remembered = study.user_attrs["privbo:run"]
    study.set_user_attr("privbo:run", None)
    study.sampler = two
    study.ask()  # ... and so has two, which did not see it
    assert study.user_attrs["privbo:run"] != remembered
    with pytest.raises(VaultError, match="same time"):
        one.tell_private(first, squares(first))
    assert session_of(one, study).ledger() == []
    assert not session_of(one, study).guarantee().protected
