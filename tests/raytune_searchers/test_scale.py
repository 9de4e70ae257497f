"""What a trial costs does not depend on how many there have been: counts, never times."""

import numpy as np
import pytest
from ray import tune

from privbo_plugins.errors import VaultError
from raytune_searchers import DPGIBOSearch, LDPGPUCBSearch
from tests.inside import call_host, database_steps, published_by, statements_counted
from tests.raytune_searchers.hosts import evaluation, run_trial

pytestmark = pytest.mark.filterwarnings("ignore:The noise of one step:UserWarning")
"""Long plans over few records: what they find is not asked."""

LINE = {"x": tune.uniform(0.0, 1.0)}
RECORDS = np.linspace(0.0, 1.0, 20)


def losses(config):
    """A loss a record."""
    return np.asarray((config["x"] - RECORDS) ** 2)


def on_records(folder, **settings):
    given = {"mu": 1.0, "metric": "loss", "mode": "min", "n_steps": 10_000, "n_starts": 2}
    vault = None if folder is None else f"sqlite:///{folder}/vault.db"
    search = DPGIBOSearch(**given | settings, vault=vault, seed=1)
    assert search.set_search_properties(None, None, LINE, num_samples=-1)
    return search


def on_rewards(folder):
    vault = None if folder is None else f"sqlite:///{folder}/vault.db"
    search = LDPGPUCBSearch(
        1.0, value_range=(0.0, 1.0), metric="loss", mode="max", vault=vault, seed=1
    )
    assert search.set_search_properties(None, None, LINE, num_samples=-1)
    return search


def saved(search, folder):
    """Bytes of a search's state, as Tune has it written."""
    search.save_to_dir(str(folder), "s")
    return (folder / "searcher-state-s.pkl").stat().st_size


def cost(search, private, folder, first, n):
    """Of n trials and a save, saves before them not counted."""
    saved(search, folder)
    with statements_counted() as count:
        for i in range(first, first + n):
            assert run_trial(search, private, f"t{i:05d}") is not None
        saved(search, folder)
    return count


def grown(search, private, first, last):
    for i in range(first, last):
        run_trial(search, private, f"t{i:05d}")


def steps(search, private, first, n):
    """Of the database's own machine, in n trials: who looks through a table takes more of them."""
    with database_steps() as taken:
        grown(search, private, first, first + n)
    return sum(taken)


@pytest.mark.parametrize("kind", ["records", pytest.param("rewards", marks=pytest.mark.soak)])
def test_the_database_looks_through_nothing_that_grows(kind, tmp_path, local_hosts):
    search = {"records": lambda: on_records(tmp_path), "rewards": lambda: on_rewards(tmp_path)}[
        kind
    ]()
    private = search.private(losses if kind == "records" else lambda config: config["x"])
    grown(search, private, 0, 22)
    early = steps(search, private, 22, 12)
    grown(search, private, 34, 154)
    assert steps(search, private, 154, 12) == pytest.approx(early, rel=0.02)


@pytest.mark.parametrize("training_mu", [None, pytest.param(0.001, marks=pytest.mark.soak)])
def test_a_trial_on_records_reads_no_more_after_many_others(training_mu, tmp_path, local_hosts):
    search = on_records(tmp_path, training_mu=training_mu)
    private = search.private(losses)
    grown(search, private, 0, 62)  # beyond the start and what a short run keeps
    early = cost(search, private, tmp_path, 62, 12)
    grown(search, private, 74, 182)
    assert cost(search, private, tmp_path, 182, 12) == early


@pytest.mark.parametrize("in_memory", [pytest.param(False, marks=pytest.mark.soak), True])
def test_what_a_search_saves_does_not_grow_with_its_trials(in_memory, tmp_path, local_hosts):
    search = on_records(None if in_memory else tmp_path)
    private = search.private(losses)
    grown(search, private, 0, 62)
    early = saved(search, tmp_path)
    grown(search, private, 62, 242)
    assert saved(search, tmp_path) == pytest.approx(early, abs=64)


def test_what_a_long_run_has_released_is_read_after_its_vault_in_memory_has_ended(
    tmp_path, local_hosts
):
    search = on_records(None, n_steps=40)
    done = evaluation(search, search.private(losses))
    assert search.finished()
    saved(search, tmp_path)
    then, published = search.history(), published_by(search)
    guarantee, recommended, summary = search.guarantee(), search.recommend(), search.status()
    del search
    local_hosts.end_driver()
    read = DPGIBOSearch.from_experiment(tmp_path)
    assert len(published) == len(done) > 50
    assert published_by(read) == published
    assert list(read.history().values) == list(then.values)
    assert np.array_equal(read.history().path, then.path)
    assert read.recommend() == recommended
    assert read.status() == summary | {"spent": 1.0}  # the most: its ledger is gone
    assert read.guarantee(done).protected
    assert read.guarantee().mu_spent == 1.0 >= guarantee.mu_spent
    assert read.report(tmp_path / "report.html").exists()


def test_at_most_a_tenth_is_missing_where_a_driver_ends_in_the_middle(tmp_path, local_hosts):
    search = on_records(None)
    private, written = search.private(losses), []
    for i in range(60, 200):
        run_trial(search, private, f"t{i:05d}")
        saved(search, tmp_path)
        written += [path.stat().st_mtime_ns for path in tmp_path.glob("searcher-history-*")]
    assert len(set(written)) < 20  # and not as often as the state
    del search
    local_hosts.end_driver()
    read = DPGIBOSearch.from_experiment(tmp_path)
    assert read.status()["done"] == 140
    assert 0.9 * 140 <= len(read.history().values) <= 140
    assert read.guarantee().protected


def test_results_that_a_lost_vault_cannot_explain_any_more_are_not_vouched_for(
    tmp_path, local_hosts
):
    search = on_records(None)
    private = search.private(losses)
    done = [run_trial(search, private, f"t{i:05d}") for i in range(70)]
    saved(search, tmp_path)
    (kept,) = tmp_path.glob("searcher-history-*")
    kept.unlink()
    del search
    local_hosts.end_driver()
    read = DPGIBOSearch.from_experiment(tmp_path)
    assert read.guarantee().protected
    guarantee = read.guarantee(done)
    assert not guarantee.protected
    assert guarantee.reasons == ("the vault ended before every result was compared with it",)
    with pytest.raises(VaultError, match="A vault in a database keeps them"):
        read.history()


def test_a_name_that_was_not_declared_public_is_not_excused_by_a_longer_one(tmp_path, local_hosts):
    """A mark keeps 512 characters: of two trials whose marks begin alike only one was declared."""
    search, long = on_records(tmp_path), "n" * 600
    search.suggest("a")
    operation = f"report_public({long})"
    call_host(search, "declare_public", operation, "a")
    assert call_host(search, "record", "b", (operation,)).vouched == frozenset()
