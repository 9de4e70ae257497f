"""What is left of raw losses in the vault's file, and of single numbers in small artefacts."""

import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
import optuna
import pytest

from optuna_samplers import ldp_objective
from privbo_plugins.errors import PrivacyError, SpaceChangedError
from privbo_plugins.store.vault import open_vault
from tests.contracts.test_leaks_exceptions import OTHER, raised
from tests.inside import session_of
from tests.leaks import exception_leaks
from tests.leaks.evidence import Evidence
from tests.leaks.secrets import Secrets
from tests.optuna_samplers.scenes.federations import invited, serve_loudly
from tests.systems import (
    N_AGENTS,
    Agent,
    DPFTSDESampler,
    objective_of,
    records_sampler,
    threads_of,
    wild,
)
from tests.worker import CONTEXT

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def evidence(tmp_path):
    return Evidence(tmp_path)


def in_vault(evidence):
    evidence.add_vault()
    return evidence.hits("vault")


@pytest.mark.parametrize("n", [2, 3, 24, 900])
def test_the_vault_file_holds_no_loss_after_each_released_step(n, evidence):
    """And, as the control, the losses of the batch under way are found."""
    own, seen = evidence.of(Secrets(size=n)), {"held": 0, "empty": 0}
    sampler = records_sampler(mu=2000.0, n_steps=4, batch_size=3, vault=evidence.vault)

    def look(study, trial):
        held = bool(session_of(sampler, study).run.held_losses())
        seen["held" if held else "empty"] += 1
        assert bool(in_vault(evidence)) == held

    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective_of(own, {})), callbacks=[look])
    compared = len(study.trials) - (2 + 4 * 3)
    assert compared in (2, 3)
    assert seen == {"held": 4 * 2 + compared - 1, "empty": 2 + 4 + 1}


@pytest.mark.parametrize(
    ("settings", "trials", "held"),
    [({"memory": 3, "n_steps": 3, "mu": 50.0}, 5, 3),
     ({"memory": -1, "n_steps": 3, "mu": 50.0}, 5, 3), ({"batch_size": 3}, 4, 2)],
    ids=["three steps", "all steps", "in the middle of a batch"],
)  # fmt: skip
def test_purge_empties_the_vault_file(settings, trials, held, evidence):
    own = evidence.of(Secrets(size=24))
    sampler = records_sampler(vault=evidence.vault, **settings)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective_of(own, {})), n_trials=trials)
    assert len(session_of(sampler, study).run.held_losses()) == held
    assert in_vault(evidence)
    sampler.purge(study)
    assert session_of(sampler, study).run.held_losses() == []
    assert in_vault(evidence) == []
    assert sampler.guarantee(study).n_releases == trials + (held == 3)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 9))]
)
def test_deleted_losses_of_any_size_leave_no_remnant(seed, evidence):
    """Rows of many sizes, deleted in random order, so that pages are split and merged."""
    rng = np.random.default_rng(seed)
    own = evidence.of(Secrets(size=24, seed=seed))
    vault = open_vault(evidence.vault)
    alive = []
    for i in range(150):
        size = int(rng.choice([1, 2, 5, 13, 40, 90, 200, 420]))
        vector = rng.uniform(0.11, 0.99, size)
        for value in vector[:3]:
            own.scanner.add_number(f"{i}", value)
        with vault.transaction("run") as tx:
            tx.put_losses(str(i), vector)
            alive.append(str(i))
            if rng.random() < 0.4:
                gone = [alive.pop(int(rng.integers(len(alive)))) for _ in range(len(alive) // 3)]
                tx.drop_losses(gone)
    assert in_vault(evidence)  # the control: those alive are found
    with vault.transaction("run") as tx:
        tx.drop_losses(alive)
    vault.close()
    assert in_vault(evidence) == []


# Single numbers ---------------------------------------------------------------------------------


def float32_of(rewards, data):
    """Rewards whose four bytes, in either order, stand between others as one float32 would.

    Four bytes turn up by chance, in one of 4e9 places: this is for blobs up to some 200 kB.
    """
    return [y for y in rewards if any(struct.pack(f"{order}f", y) in data for order in "<>")]


def test_small_artefacts_hold_no_single_float32(tmp_path):
    evidence = Evidence(tmp_path, "journal")
    own = evidence.of(Secrets(seed=13))
    private = ldp_objective(
        wild(own, {}), epsilon=1.0, value_range=(0, 1), mechanism="laplace", vault=evidence.vault
    )
    study = optuna.create_study(storage=evidence.storage(), study_name="s")
    study.optimize(private, n_trials=6)
    evidence.add_files()
    evidence.add_vault()
    evidence.add_objects(study=study, objective=private)
    for sink in ("storage", "pickles", "texts", "vault"):
        assert evidence.blobs[sink]
        for name, blob in evidence.blobs[sink].items():
            assert len(blob) < 200_000
            assert float32_of(own.values, blob) == [], name
    leaky = pickle.dumps(np.array(own.values, dtype=">f4"))
    assert float32_of(own.values, leaky) == own.values


def test_control_a_pickled_closure_is_found_out():
    cloudpickle = pytest.importorskip("cloudpickle")
    own = Secrets()
    kept = own.reward()
    private = ldp_objective(lambda trial: kept, epsilon=1.0, value_range=(0, 1))
    assert own.scanner.hits(cloudpickle.dumps(private))  # what the objective itself holds


# A server in a process of its own ---------------------------------------------------------------


@pytest.mark.slow
def test_a_server_in_a_process_of_its_own_keeps_nothing(tmp_path):
    """Here memories are apart: the server's files, log and streams, and what agents receive."""
    with tempfile.TemporaryDirectory(prefix="fed-") as name:  # short: a socket lies in it
        folder, evidence = Path(name), Evidence(tmp_path)
        process = CONTEXT.Process(
            target=serve_loudly, args=(folder, f"sqlite:///{folder}/vault.db", N_AGENTS)
        )
        process.start()
        try:
            links = [invited(folder / f"invitation-{n}") for n in range(N_AGENTS)]
            agents = [Agent(evidence, n, link) for n, link in enumerate(links)]
            threads_of(agents)
            for agent in agents:
                agent.remember()
            _check_errors(agents)
            for link in links:
                link.close()
        finally:
            (folder / "stop").touch()
            process.join(30)
            process.kill()
        assert process.exitcode == 0
        for path in folder.rglob("*"):
            if path.is_file():
                evidence.add("texts", path.name, path.read_bytes())
    evidence.add_files()
    assert evidence.blobs["texts"]["vault.db"]
    assert evidence.blobs["texts"]["server.log"]
    assert [evidence.hits(sink) for sink in ("texts", "storage")] == [[], []]
    for agent in agents:
        agent.check_it_ran()
        assert any(h.startswith(agent.own.home) for h in evidence.hits("storage", at_home=True))


def _check_errors(agents):
    """What the server tells an agent that asks for something wrong."""
    for agent in agents:
        link = agent.link.link
        errors = [
            raised(lambda x=link: DPFTSDESampler(x, search_space=OTHER), SpaceChangedError),
            raised(lambda x=link: x.submit(np.ones(3)), ValueError),
            raised(lambda a=agent: pickle.dumps(a.sampler), PrivacyError),
        ]
        for other in agents:
            if other is not agent:
                for error in errors:
                    assert exception_leaks(error, other.own.scanner) == []
