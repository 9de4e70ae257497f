"""Nothing that is stored or said of a run is less than its ledger holds, whenever it is stopped.

A driver, its cluster and a vault in memory may end after any release. What is left then was
written before: a search's checkpoints, a callback's states. A vault in a database knows it all.
"""

import math
import re
import shutil

import pytest
import ray.cloudpickle as cloudpickle

from privbo_plugins.errors import VaultError
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.store.vault import open_vault
from tests.drivers import begin
from tests.inside import call_host, end_host, settings_of
from tests.verbs import classes, verbs_of

pytestmark = pytest.mark.usefixtures("local_hosts")

SYSTEMS = {"records": 5, "any sampler": 5, "rewards": 4, "duets": 5, "federation": 12}
"""How many trials of each are looked at."""

FAMILY = ("outside", "rewards, t", "rewards, ata", "rewards, moma")
DURABLE = SYSTEMS | dict.fromkeys(FAMILY, 4)
"""Every system that has a vault, and so many trials of it."""


def paid(run):
    """What the ledger adds up to: mu, or epsilon of a user, or of an agent."""
    ledger = call_host(run.search, "ledger")
    if run.system.size:
        return math.sqrt(sum(charge.mu**2 for charge in ledger[0]))
    if run.key == "federation":
        return float(settings_of(run.search).epsilon_after(len(ledger)))
    each = [epsilon for _, _, epsilon, _, _ in ledger]
    return math.fsum(each) if run.system.named else max(each)


def save(run, folder):
    """As Tune does now and then; of a searcher of its own, a callback's state."""
    folder.mkdir()
    if run.key == "any sampler":
        (folder / "state").write_bytes(cloudpickle.dumps(run.trainable.callback.get_state()))
    else:
        run.search.save_to_dir(str(folder), "s")


def read(key, kind, folder, gone):
    """What is left of a checkpoint, for whoever opens it and for the search made of it.

    Args:
        key: The system.
        kind: Its search.
        folder: The checkpoint's.
        gone: Whether the vault was a database that is no more: then the search claims nothing.
    """
    pattern = "state" if key == "any sampler" else "searcher-state-*.pkl"
    (state,) = folder.glob(pattern)
    stored = [cloudpickle.loads(state.read_bytes())["_known"].report["guarantee"]]
    if key == "any sampler":
        return stored
    search = kind.from_experiment(folder)
    if not gone:
        return [*stored, search.guarantee()]
    with pytest.raises(VaultError, match="no vault file"):
        search.guarantee()
    return stored


_FIGURES = ("mu_spent", "epsilon_spent", "epsilon_most")

_SAID = re.compile(r"(?:Spent and left +(?:mu|epsilon)|evaluations: epsilon) = (\d+\.?\d*)")


def figures(guarantee):
    """What a guarantee says was spent, as numbers, for programs, and in its own words."""
    found = [getattr(guarantee, name) for name in _FIGURES if hasattr(guarantee, name)]
    found.append(float(guarantee.spending()["spent"]))
    found += [float(number) for number in _SAID.findall(str(guarantee))]
    assert len(found) >= 2
    return found


def enough(guarantee, paid):
    assert min(figures(guarantee)) >= paid * (1 - 1e-12), (paid, figures(guarantee))


def released(run):
    """Whether anything was charged."""
    ledger = call_host(run.search, "ledger")
    return bool(ledger[0] if run.system.size else ledger)


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "database"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_no_checkpoint_says_less_than_a_ledger_that_went_on(
    system, durable, tmp_path, local_hosts
):
    named = {"run_name": "r"} if durable else {}
    run = begin(system, "ray", tmp_path, vault=durable, **named)
    for i in range(SYSTEMS[system]):
        run.trials(1)
        save(run, tmp_path / f"{i}")
        if not released(run):
            continue
        enough(run.ask("guarantee"), paid(run))
        if durable:
            vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
            (stored,) = runs_of(vault)
            enough(stored.guarantee, paid(run))
            vault.close()
    spent, kind = paid(run), type(run.search)
    assert spent > 0
    local_hosts.end_driver()
    for gone in (False, True) if durable else (True,):
        for i in range(SYSTEMS[system]):
            for left in read(system, kind, tmp_path / f"{i}", durable and gone):
                enough(left, spent)
        if not gone:
            (tmp_path / "vault.db").unlink()


ASKING = {"recommend", "finished", "guarantee", "history", "status", "report", "purge", "suggest"}
"""Verbs that answer from what was released."""

OTHERS = set("plan private close paper from_experiment".split())
"""Verbs that ask nothing of what was released."""

ALONE = {("federation", "suggest"): "the agents go on alone, and nothing more is broadcast"}
"""What a system does where its vault is gone, and why."""


def test_every_verb_of_a_search_asks_the_vault_or_needs_none():
    of_ray = {name for members in classes().values() for host, kind in members
              if host == "Ray Tune" for name in verbs_of(kind)}  # fmt: skip
    assert of_ray | {"suggest"} == ASKING | OTHERS


@pytest.mark.parametrize("fate", ["set back", "gone"])
@pytest.mark.parametrize("ended", [True, False], ids=["another host", "the same host"])
@pytest.mark.parametrize("system", DURABLE)
def test_no_verb_answers_of_a_vault_that_shows_less_or_is_gone(
    system, ended, fate, tmp_path, local_hosts
):
    """As on Optuna: not even what the search remembers."""
    vault, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    run = begin(system, "ray", tmp_path, vault=True, run_name="r")
    run.trials(DURABLE[system] // 2)
    shutil.copy(vault, backup)
    run.trials(DURABLE[system] // 2)
    whole, told = vault.read_bytes(), run.ask("guarantee")
    save(run, tmp_path / "state")
    if ended:
        end_host(run.search)
    vault.unlink()
    if fate == "set back":
        shutil.copy(backup, vault)
    for verb in sorted(ASKING):
        if not hasattr(run.search, verb) or (system, verb) in ALONE:
            continue
        more = {"report": (tmp_path / "page.html",), "suggest": ("later",)}.get(verb, ())
        with pytest.raises(VaultError):
            run.ask(verb, *more)
    vault.write_bytes(whole)
    vault.chmod(0o600)
    assert run.ask("guarantee") == told
