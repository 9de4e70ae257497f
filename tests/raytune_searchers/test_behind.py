"""Nothing that is stored or said of a run is less than its ledger holds, whenever it is stopped.

A driver, its cluster and a vault in memory may end after any release. What is left then was
written before: a search's checkpoints, a callback's states. A vault in a database knows it all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

import ray.cloudpickle as cloudpickle

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.store.vault import open_vault
from raytune_searchers import (
    DPFTSDESearch,
    DUETSSearch,
    LDPGPUCBSearch,
    private_trainable,
)
from tests.inside import call_host
from tests.raytune_searchers.hosts import LocalRay, evaluation
from tests.raytune_searchers.means_scenes import Experiment
from tests.raytune_searchers.runs import LINE, make_search, squares

pytestmark = pytest.mark.usefixtures("local_hosts")

N = 5

FEDERATION = FederationConfig(n_agents=1, epsilon=4.0, n_rounds=3, n_startup=1, n_features=8)


def reward(config: dict[str, Any]) -> float:
    return 1.0 - abs(float(config["x"]) - 0.7)


class Paid:
    """A run, and what its ledger adds up to by a sum of its own."""

    def __init__(self, vault: str | None) -> None:
        self.vault = vault

    def step(self, i: int) -> None:
        """A release more, or a trial towards one."""
        assert evaluation(self.search, self.private, 1, name=f"{id(self)}-{i}-")[0].error is None

    def save(self, folder: Path) -> None:
        """As Tune does now and then."""
        folder.mkdir()
        self.search.save_to_dir(str(folder), "s")

    def claims(self) -> Any:
        return self.search.guarantee()

    def read(self, folder: Path) -> list[Any]:
        """What is left of a checkpoint, for whoever opens it and for the search made of it."""
        (state,) = folder.glob("searcher-state-*.pkl")
        stored = cloudpickle.loads(state.read_bytes())["_last"]["guarantee"]
        return [stored, type(self.search).from_experiment(folder).guarantee()]


class Losses(Paid):
    """mu, as the square root of the squares."""

    def __init__(self, vault: str | None) -> None:
        super().__init__(vault)
        self.search = make_search(vault=vault, run_name=None if vault is None else "r")
        assert self.search.set_search_properties(None, None, dict(LINE), num_samples=-1)
        self.private = self.search.private(squares)

    def paid(self) -> float:
        charges, _, _ = call_host(self.search, "ledger")
        return math.sqrt(sum(charge.mu**2 for charge in charges))


class Means(Losses):
    """The same with a searcher of Tune's own; a callback's state is what is left."""

    def __init__(self, vault: str | None) -> None:
        own = {"vault": vault, "run_name": None if vault is None else "r"}
        self.vault = vault
        self.private = private_trainable(squares, param_space=LINE, mu=1, n_trials=9, **own)
        self.search, self.experiment = self.private, Experiment(self.private.callback)

    def step(self, i: int) -> None:
        assert self.experiment.run(self.private, f"{id(self)}-{i}").error is None

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "state").write_bytes(cloudpickle.dumps(self.private.callback.get_state()))

    def read(self, folder: Path) -> list[Any]:
        return [cloudpickle.loads((folder / "state").read_bytes())["_last"]["guarantee"]]


class Rewards(Paid):
    """Epsilon of a user who is asked in every trial."""

    def __init__(self, vault: str | None, make: Callable[..., Any], **more: Any) -> None:
        super().__init__(vault)
        own: dict[str, Any] = {"epsilon": 1.0, "value_range": (0.0, 1.0), "metric": "reward"}
        run_name = None if vault is None else "r"
        self.search = make(**own, mode="max", vault=vault, run_name=run_name, **more)
        assert self.search.set_search_properties(None, None, dict(LINE), num_samples=-1)
        self.private = self.search.private(reward, user_id="Jane")

    def paid(self) -> float:
        return math.fsum(epsilon for _, _, epsilon, _, _ in call_host(self.search, "ledger"))


class Rounds(Paid):
    """Epsilon of an agent after so many rounds."""

    def __init__(self, vault: str | None) -> None:
        super().__init__(vault)
        run_name = None if vault is None else "r"
        self.search = DPFTSDESearch(
            FEDERATION, search_space=dict(LINE), n_trials=9, vault=vault, run_name=run_name, seed=1
        )
        self.private = self.search.private(lambda _agent, config: reward(config))

    def paid(self) -> float:
        return FEDERATION.epsilon_after(len(call_host(self.search, "ledger")))


SYSTEMS: dict[str, Callable[[str | None], Paid]] = {
    "DPGIBOSearch": Losses,
    "private_trainable": Means,
    "LDPGPUCBSearch": lambda vault: Rewards(vault, LDPGPUCBSearch),
    "DUETSSearch": lambda vault: Rewards(vault, DUETSSearch, n_agents=2, discretisation=64),
    "DPFTSDESearch": Rounds,
}

_FIGURES = ("mu_spent", "epsilon_spent", "epsilon_most")

_SAID = re.compile(r"(?:Spent so far: (?:mu|epsilon)|evaluations: epsilon) = (\d+\.?\d*)")


def figures(guarantee: Any) -> list[float]:
    """What a guarantee says was spent, as numbers, for programs, and in its own words."""
    found = [getattr(guarantee, name) for name in _FIGURES if hasattr(guarantee, name)]
    found.append(float(guarantee.spending()["spent"]))
    found += [float(number) for number in _SAID.findall(str(guarantee))]
    assert len(found) >= 2
    return found


def enough(guarantee: Any, paid: float) -> None:
    assert min(figures(guarantee)) >= paid * (1 - 1e-12), (paid, figures(guarantee))


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_a_checkpoint_says_is_not_less_than_a_ledger_that_went_on(
    name: str, tmp_path: Path, local_hosts: LocalRay
) -> None:
    run = SYSTEMS[name](None)
    for i in range(N):
        run.step(i)
        enough(run.claims(), run.paid())
        run.save(tmp_path / f"{i}")
    paid = run.paid()
    assert paid > 0
    read = run.read
    local_hosts.end_driver()
    for i in range(N):
        for left in read(tmp_path / f"{i}"):
            enough(left, paid)


@pytest.mark.parametrize("name", SYSTEMS)
def test_after_every_release_a_database_tells_everybody_what_its_ledger_holds(
    name: str, tmp_path: Path, local_hosts: LocalRay
) -> None:
    url = f"sqlite:///{tmp_path}/v.db"
    run = SYSTEMS[name](url)
    for i in range(N):
        run.step(i)
        run.save(tmp_path / f"{i}")
        paid = run.paid()
        vault = open_vault(url)
        (stored,) = runs_of(vault)
        enough(stored.guarantee, paid)
        vault.close()
    paid, read = run.paid(), run.read
    local_hosts.end_driver()
    for i in range(N):
        for left in read(tmp_path / f"{i}"):
            enough(left, paid)
    (tmp_path / "v.db").unlink()
    for i in range(N):
        for left in read(tmp_path / f"{i}"):
            enough(left, paid)


def test_a_run_that_was_closed_says_what_it_has_spent() -> None:
    """Nothing of it can go on, so there is no more than that."""
    run = Losses(None)
    for i in range(2):
        run.step(i)
    spent = run.paid()
    run.search.close()
    again = cloudpickle.loads(cloudpickle.dumps(run.search))
    for search in (run.search, again):
        assert search.guarantee().mu_spent == pytest.approx(spent)
