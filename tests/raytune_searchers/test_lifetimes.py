"""How long a vault in memory lives: as long as somebody may come back to it, and never longer."""

import gc

import pytest

from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from raytune_searchers import DPGIBOSearch, answering
from raytune_searchers._channel import LOSSES
from raytune_searchers.hosts import actors
from tests.inside import call_host, host_name, n_compared, published_by
from tests.raytune_searchers import federated_scenes
from tests.raytune_searchers.cluster_scenes import make_curator
from tests.raytune_searchers.hosts import crash, evaluation, refused
from tests.raytune_searchers.runs import begun, ledger, make_search, squares

pytestmark = pytest.mark.usefixtures("local_hosts")


def fitted(folder, trials=3):
    """A fit of which nothing but its folder is left; what it has published."""
    search = begun(make_search())
    evaluation(search, search.private(squares), trials)
    search.save_to_dir(str(folder), "session")
    return published_by(search)


def test_the_ledger_outlives_the_search_that_began_it(tmp_path, local_hosts):
    told = fitted(tmp_path)
    gc.collect()
    found = begun(DPGIBOSearch.from_experiment(tmp_path))
    found.restore_from_dir(str(tmp_path))
    assert published_by(found) == told
    assert "has ended" not in found.guarantee().details()
    evaluation(found, found.private(squares), name="later")
    assert found.finished()
    charges, releases, _ = ledger(found)
    assert len(charges) == len(releases)
    assert published_by(found).items() >= told.items()
    found.close()
    assert local_hosts.alive == []


def test_a_federation_in_memory_outlives_the_search_that_began_it(tmp_path, local_hosts):
    search = federated_scenes.make_search(hosts=2)
    assert isinstance(search.suggest("t"), dict)
    search.save_to_dir(str(tmp_path), "session")
    alive = local_hosts.alive
    assert len(alive) == 3  # a server and two hosts
    kind = type(search)
    del search
    gc.collect()
    assert local_hosts.alive == alive
    found = kind.from_experiment(tmp_path)
    assert isinstance(found.suggest("u"), dict)
    found.close()
    assert local_hosts.alive == []


def test_a_vault_ends_with_close_and_no_second_ledger_takes_its_place(tmp_path, local_hosts):
    fitted(tmp_path)
    DPGIBOSearch.from_experiment(tmp_path).close()
    assert local_hosts.alive == []
    found = DPGIBOSearch.from_experiment(tmp_path)
    with refused(LOSSES.lost):
        begun(found).suggest("t")
    found.close()  # which may be said twice


def test_a_vault_of_an_earlier_ray_is_gone_and_new_runs_begin(tmp_path, local_hosts):
    search = begun(make_search())
    evaluation(search, search.private(squares), 2)
    search.save_to_dir(str(tmp_path), "session")
    local_hosts.end_ray()
    for earlier in (search, DPGIBOSearch.from_experiment(tmp_path)):
        with refused(LOSSES.lost):
            begun(earlier).suggest("t")
        assert earlier.guarantee().n_releases == 2
    assert actors.forgotten() == []
    later = begun(make_search())
    trials = evaluation(later, later.private(squares))
    assert len(trials) == 2 + 2 * 2 + n_compared(ledger(later)[1])
    search.close()
    assert local_hosts.alive == [host_name(later)]


def test_two_searches_of_one_name_have_one_ledger_also_if_the_first_is_gone(tmp_path, local_hosts):
    """Its agents are in databases, so the run has a name, and the server is in memory."""
    where = {"agent_vaults": f"sqlite:///{tmp_path}/{{agent}}.db", "run_name": "r"}
    first = federated_scenes.make_search(**where)
    assert isinstance(first.suggest("a"), dict)
    call_host(first, "mark_unprotected", "a reason")
    del first
    gc.collect()
    second = federated_scenes.make_search(**where)
    with pytest.warns(PrivacyWarning, match="a reason"):
        assert isinstance(second.suggest("b"), dict)
    assert "a reason" in second.guarantee().reasons


def test_a_name_whose_server_has_died_may_be_begun_anew(tmp_path, local_hosts):
    where = {"agent_vaults": f"sqlite:///{tmp_path}/{{agent}}.db", "run_name": "r"}
    first = federated_scenes.make_search(**where)
    assert isinstance(first.suggest("a"), dict)
    crash(host_name(first))
    with pytest.warns(UserWarning, match="go on alone"):
        first.suggest("b")
    assert isinstance(federated_scenes.make_search(**where).suggest("c"), dict)


def test_many_forgotten_vaults_are_told_of(tmp_path, local_hosts):
    def forget(n):
        for _ in range(n):
            begun(make_search()).suggest("t")
        gc.collect()

    forget(8)
    kept = begun(make_search())
    with pytest.warns(UtilityWarning, match=r"8 vaults in memory .* search.close\(\)"):
        kept.suggest("t")
    assert len(local_hosts.alive) == 9
    assert len(actors.forgotten()) == 8
    DPGIBOSearch.close(kept)
    assert len(actors.forgotten()) == 8


def test_a_vault_in_a_database_and_a_curator_end_with_those_who_know_them(tmp_path, local_hosts):
    search = begun(make_search(vault=f"sqlite:///{tmp_path}/v.db"))
    search.suggest("t")
    answers = answering(make_curator)
    assert len(local_hosts.alive) == 2
    del search, answers
    gc.collect()
    assert local_hosts.alive == []
