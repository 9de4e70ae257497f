"""One host for one run: who may begin it, and what is said where it is not what it was."""

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import ray
import ray.cloudpickle as cloudpickle

from privbo_plugins.errors import NotARewardError, NotLossesError, PrivacyError, VaultError
from privbo_plugins.sealing import AnotherKeyError, Message
from privbo_plugins.sessions.records import Session
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault
from raytune_searchers import DPGIBOSearch, LDPGPUCBSearch
from raytune_searchers.hosts import actors
from raytune_searchers.hosts.agents import AgentHost
from raytune_searchers.hosts.curator import CuratorHost
from raytune_searchers.hosts.losses import LossHost
from raytune_searchers.hosts.rewards import LedgerHost
from raytune_searchers.hosts.server import ServerHost
from tests.inside import call_host, end_host, kill_host, published_by, settings_of
from tests.raytune_searchers.hosts import evaluate, run_trial
from tests.raytune_searchers.runs import RECORDS, begun, make_search, squares, told

pytestmark = pytest.mark.usefixtures("local_hosts")


@pytest.mark.parametrize("another", [False, True], ids=["no vault", "another vault"])
def test_a_host_that_is_begun_again_does_not_begin_another_ledger(another, tmp_path):
    path = tmp_path / "vault.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    path.unlink()
    if another:
        make_search(vault=f"sqlite:///{path}")
    (end_host if another else kill_host)(search)
    with pytest.raises(VaultError, match="gone" if another else r"no vault|no such table"):
        call_host(search, "ask", "b", False)
    end_host(search)


KINDS = [LossHost, LedgerHost, ServerHost, CuratorHost, AgentHost]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix or "losses")
def test_only_the_operations_of_a_hosts_table_are_carried_out(kind):
    """No attribute of a host or of its session is reached by a name from elsewhere."""
    host = type("Hollow", (kind,), {"open": lambda _: mock.MagicMock()})(mock.MagicMock())
    unknown = "ValueError", "The run's host knows no operation of this name."
    asked = (*dir(host), *dir(kind), "mro", "run.mark", "session", "", 7, None, ["join"])
    for name in (name for name in asked if str(name) not in kind.operations):
        assert host.call(name) == (unknown, None)
    assert not {name for name in kind.operations if name.startswith("_")}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix or "losses")
def test_a_librarys_panic_leaves_a_host_as_its_kind_alone(kind):
    panics = mock.Mock(side_effect=BaseException("record 7"))  # none that Ray would keep to itself
    host = type("Hollow", (kind,), {"open": panics})(mock.MagicMock())
    (name, text), _ = host.call([*kind.operations][-1])
    assert (name, "record 7" in text) == ("PrivacyError", False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.prefix or "losses")
def test_a_databases_address_is_the_first_argument_and_in_no_other(kind, local_hosts):
    """Ray keeps a short first argument out of its object store whatever stands behind it."""
    name, url = f"name/{kind.prefix}", "sqlite:////folder-of-nobody/{agent}.db"
    own = actors.anchor(name, kind, may_begin=True)
    actors.actor_of(own, url, SimpleNamespace(run="r", vault_id="v"))
    first, *others = local_hosts.arguments[name]
    assert first == url
    assert b"folder-of-nobody" not in cloudpickle.dumps(others)


def test_a_vault_that_was_put_back_and_has_grown_again_is_noticed(tmp_path, local_hosts):
    """By a search that remembers the chain of releases, and not only how many there were."""
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    search = begun(make_search(vault=f"sqlite:///{path}", run_name="r"))
    told(search, "a")
    shutil.copy(path, backup)
    told(search, "b")
    search.save(str(tmp_path / "state"))
    end_host(search)
    local_hosts.forget()  # the cluster has ended: what the search has saved is all that is left
    shutil.copy(backup, path)
    opened = open_vault(f"sqlite:///{path}")
    session = Session.open(opened, "ray/r", settings_of(search), maximize=False)
    session.set_space(Space({"x": Float(0.0, 1.0)}))
    for trial in ("b", "c", "d"):  # somebody goes on with the backup, past where it was
        x = session.ask(trial).x
        space = session.space
        session.tell(trial, space.decode(x), space, np.full(120, 0.5))
    later = DPGIBOSearch(1, metric="loss", mode="min", vault=f"sqlite:///{path}")
    later.restore(str(tmp_path / "state"))
    with pytest.raises(VaultError, match="older backup"):
        call_host(later, "ask", "e", False)


KINDS = {
    "losses": (make_search, np.full(120, 0.5), NotLossesError),
    "a reward": (
        partial(LDPGPUCBSearch, 1.0, bound=1.0, metric="loss", mode="min"),
        0.5,
        NotARewardError,
    ),
}


@pytest.mark.parametrize("wrong", [None, {"loss": 1.0}, np.zeros((3, 2))], ids=type)
def test_a_function_that_returns_no_losses_ends_the_fit_at_its_first_trial(
    wrong, tmp_path, local_hosts
):
    make, right, error = KINDS["losses"]
    search, calls = begun(make()), str(tmp_path / "calls")

    def trainable(_):
        with Path(calls).open("a") as file:
            file.write("called\n")
        return wrong

    private, out = search.private(trainable), {n: search.suggest(n) for n in ("a", "b")}
    ended = [evaluate(search, private, name, config) for name, config in out.items()]
    assert [type(trial.error) for trial in ended] == [error, error]
    assert Path(calls).read_text() == "called\n", (
        "the second one is refused before it is evaluated"
    )
    with pytest.raises(error):
        search.suggest("c")

    begun(search)  # another fit, of a mended function
    private = search.private(lambda _: right)
    assert run_trial(search, private, "d").error is None


@pytest.mark.parametrize(
    ("kind", "released"), [("losses", True), ("a reward", True), ("a reward", False)]
)
def test_another_kind_of_one_trial_fails_that_trial_alone(kind, released, local_hosts):
    """Of losses once something was released; a reward's kind its user may have decided."""
    make, right, error = KINDS[kind]
    search = begun(make())
    if released:
        assert run_trial(search, search.private(lambda _: right), "first").error is None
    ended = [
        run_trial(search, search.private(lambda _, given=given: given), name)
        for name, given in zip("abc", [None, right, right], strict=True)
    ]
    assert [None if one.error is None else type(one.error) for one in ended] == [error, None, None]


def test_reading_does_not_disturb_a_run(tmp_path):
    search = begun(make_search(vault=f"sqlite:///{tmp_path / 'vault.db'}"))
    told(search, "a")
    search.save_to_dir(str(tmp_path), "session")
    out = search.suggest("b")
    reader = DPGIBOSearch.from_experiment(tmp_path)
    assert reader.guarantee().protected
    assert call_host(search, "give_back", frozenset()) == ["b"]  # it was out until now
    assert isinstance(out, dict)
    search.close()


def test_another_searchers_folder_is_refused(tmp_path):
    (tmp_path / "searcher-state-1.pkl").write_bytes(ray.cloudpickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds no experiment of DPGIBOSearch"):
        DPGIBOSearch.from_experiment(tmp_path)


@pytest.fixture
def sent(monkeypatch):
    """Messages that were sealed meanwhile."""
    made = []
    seal = Message.to

    def remembered(reader, value, context):
        made.append(seal(reader, value, context))
        return made[-1]

    monkeypatch.setattr(Message, "to", remembered)
    return made


def test_what_was_sealed_for_one_trial_is_told_of_no_other(sent):
    search = begun(make_search())
    told(search, "a")
    assert isinstance(search.suggest("b"), dict)
    with pytest.raises(ValueError, match="not sealed with this key for this purpose"):
        call_host(search, "tell", "b", sent[-1], np.array([0.5]))
    assert list(published_by(search)) == ["a"]


def test_what_was_sealed_for_one_run_is_told_of_no_other(sent):
    told(begun(make_search()), "a")
    other = begun(make_search())
    assert isinstance(other.suggest("a"), dict)
    with pytest.raises(AnotherKeyError):
        call_host(other, "tell", "a", sent[-1], np.array([0.5]))
    assert published_by(other) == {}


def test_losses_that_are_not_sealed_are_refused():
    search = begun(make_search())
    assert isinstance(search.suggest("a"), dict)
    with pytest.raises(PrivacyError):
        call_host(search, "tell", "a", (RECORDS, None), np.array([0.5]))
    assert published_by(search) == {}


def test_a_key_comes_from_the_host_and_lies_in_no_pickle():
    search = begun(make_search())
    key = call_host(search, "public_key")
    assert key not in ray.cloudpickle.dumps((search, search.private(squares)))
