"""Rows of a released table as trials: Tune's hooks, what is kept, and two real experiments."""

import math
import shutil
from collections import Counter

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.algorithms.po_gp_ucb.modeler import BARE
from privbo_plugins.algorithms.po_gp_ucb.table import IN_MEMORY
from privbo_plugins.algorithms.protocols import ATTEMPTS
from privbo_plugins.errors import PrivacyError, PrivacyWarning, UtilityWarning
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.sessions.scheduler import HOPELESS
from raytune_searchers import POGPUCBSearch, answering
from raytune_searchers._search import FINISHED
from raytune_searchers.hosts.curator import AnswerSettings, CuratorHost
from raytune_searchers.po_gp_ucb import _SEEN_BESIDE
from tests.leaks import Scanner
from tests.raytune_searchers.hosts import finish

N = 12

X = np.linspace(0.0, 1.0, N)[:, None]

BEST = 8


def outcome(row):
    """Largest at row 8."""
    return -abs(row - BEST) / N


@pytest.fixture(scope="module")
def table():
    """A release with little noise."""
    return Curator(
        X, epsilon=8.0, delta=1e-3, bounds=[(0, 1)], neighbor_distance=0.02
    ).release()  # fmt: skip


KNOWN = {"lengthscale": 0.3, "signal_variance": 0.1, "noise_variance": 1e-4}
"""Spares the search fitting them."""


def search_of(table, **settings):
    own = {"metric": "answer", "mode": "max", "seed": 1} | KNOWN
    return POGPUCBSearch(table, **(own | settings))


def row_of(search, trial, name="row"):
    config = search.suggest(trial)
    (row,) = config.values()
    assert set(config) == {name}
    assert type(row) is int
    return row


def run(search, n=10 * N, prefix="t", sign=1.0):
    """Trials one after another, until the search ends or so many have run."""
    rows = []
    for i in range(n):
        if search.suggest(f"{prefix}{i}") == FINISHED:
            break
        rows.append(row_of(search, f"{prefix}{i}"))
        finish(search, f"{prefix}{i}", sign * outcome(rows[-1]))
    return rows


# What trials report -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, None, "0.5", 10**400, np.float32("nan"), [0.5], 1j],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_not_learned_from(value, table):
    search = search_of(table)
    row_of(search, "a")
    finish(search, "a", value)
    with pytest.raises(ValueError, match="nothing to recommend"):
        search.recommend()
    assert set(run(search, prefix="u")) == set(range(N))


def test_the_row_of_a_failed_trial_is_asked_again_and_then_left_out(table):
    search, asked = search_of(table), Counter[int]()
    for i in range(10 * N):
        config = search.suggest(f"t{i}")
        if config == FINISHED:
            break
        asked[config["row"]] += 1
        if config["row"] == BEST:
            search.on_trial_complete(f"t{i}", None, error=True)
        elif config["row"] == 3:
            finish(search, f"t{i}", math.nan)
        elif config["row"] == 4 and asked[4] == 1:
            search.on_trial_complete(f"t{i}")
        else:
            finish(search, f"t{i}", outcome(config["row"]))
    assert asked[BEST] == asked[3] == ATTEMPTS
    assert asked[4] == 2
    assert {asked[row] for row in set(range(N)) - {BEST, 3, 4}} == {1}
    assert search.suggest("late") == FINISHED
    assert search.recommend()["row"] in (BEST - 1, BEST + 1)
    assert search.guarantee().n_answers == N - 2


def test_a_search_whose_trials_all_fail_ends(table):
    search = search_of(table)
    for i in range(HOPELESS - 1):
        row_of(search, f"t{i}")
        search.on_trial_complete(f"t{i}", error=True)
    row_of(search, "last")
    with pytest.warns(UtilityWarning, match=r"Ray shows how in error\.txt of each\.$"):
        search.on_trial_complete("last", error=True)
    assert search.suggest("late") == FINISHED


def test_unknown_late_and_repeated_completions_are_harmless(table):
    search = search_of(table)
    row = row_of(search, "a")
    finish(search, "stranger", 0.5)
    search.on_trial_complete("stranger 2", error=True)
    search.on_trial_complete("stranger 3", {"answer": 0.5, "config/row": N})
    assert search.guarantee().n_answers == 0
    search.on_trial_complete("a", None, error=True)
    finish(search, "made anew", 0.25, **{"config/row": row})  # restart_errored
    finish(search, "made anew", 0.75, **{"config/row": row})
    finish(search, "another", 0.75, **{"config/row": row})  # the same answer, replayed
    search.on_trial_complete("made anew", error=True)
    history = search.history()
    assert (list(history.rows), list(history.answers)) == ([row], [0.25])
    assert row not in run(search)


# Tune's rules -----------------------------------------------------------------------------------


def test_param_spaces_hold_constants_and_the_rows(table):
    for space in ({}, {"row": tune.randint(0, N)}):
        search = search_of(table, metric=None, mode=None)
        assert search.set_search_properties("answer", "max", {**space, "c": 5, "n": {"k": "v"}})
        run(search, 3)
        assert search.recommend() == {"row": search.recommend()["row"], "c": 5, "n": {"k": "v"}}
        assert set(search.recommend({"f": outcome})) == {"row", "f"}
        assert search.guarantee().notes == (IN_MEMORY,)  # the table's own, nothing of the space


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ({"row": tune.randint(0, N + 1)}, r"something else.*tune\.randint\(0, 12\)"),
        ({"row": tune.randint(1, N + 1)}, "something else"),
        ({"row": tune.uniform(0, N)}, "something else"),
        ({"row": 3}, "something else"),
        ({"row": {"x": tune.uniform(0, 1)}}, "a domain for row/x"),
        ({"x": tune.uniform(0, 1)}, "a domain for x"),
        ({"n": {"k": tune.choice([1, 2])}}, "a domain for n/k"),
        ({"x": tune.grid_search([1, 2])}, "grid_search"),
        ({"x": tune.sample_from(lambda _: 1)}, "x"),
    ],
)
def test_other_param_spaces_are_refused(space, text, table):
    with pytest.raises(ValueError, match=text):
        search_of(table).set_search_properties("answer", "max", space)


# What is kept -----------------------------------------------------------------------------------


def test_rows_of_trials_that_a_restore_dropped_come_last(table, tmp_path):
    search = search_of(table)
    dropped = {row_of(search, trial) for trial in ("lost", "resumed")}
    kept = row_of(search, "resumed")
    search.save_to_dir(str(tmp_path), "session")
    again = POGPUCBSearch.from_experiment(tmp_path)
    again.on_trial_result("resumed", {"training_iteration": 1})
    rows = run(again)
    assert len(rows) == N - 1
    assert rows[-1] in dropped - {kept}
    finish(again, "resumed", 0.5)
    finish(again, "lost", 0.5, **{"config/row": rows[-1]})  # it was resumed after all
    assert again.guarantee().n_answers == N


def test_a_file_is_pickled_as_its_path_and_must_stay_the_same(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.save("table.npz")
    search = search_of("table.npz")
    run(search, 3)
    pickled = cloudpickle.dumps(search)
    assert table.Z.tobytes()[:16] not in pickled
    assert len(pickled) < 2**13
    monkeypatch.chdir("/")
    again = cloudpickle.loads(pickled)
    assert again.set_search_properties("answer", "max", {"c": 1})
    search.save(str(tmp_path / "state"))
    path = tmp_path / "table.npz"
    Curator(X, epsilon=8.0, delta=1e-3, bounds=[(0, 1)]).release().save(path)
    for read in (lambda s: s.restore(str(tmp_path / "state")),
                 lambda s: s.set_search_properties("answer", "max", {"c": 1}),
                 lambda s: s.suggest("x")):  # fmt: skip
        with pytest.raises(ValueError, match="another released table"):
            read(cloudpickle.loads(pickled))
    path.write_bytes(b"no table")
    with pytest.raises(ValueError, match="no released table"):
        cloudpickle.loads(pickled).suggest("x")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        cloudpickle.loads(pickled).restore(str(tmp_path / "state"))
    left = cloudpickle.loads(pickled)
    finish(left, "anew", 0.5, **{"config/row": 1})  # never raises
    assert left.guarantee().protected


# What may be claimed ----------------------------------------------------------------------------


def test_the_manifests_claim_is_the_searchs(table):
    search = search_of(table)
    run(search, 5)
    guarantee = search.guarantee()
    assert guarantee.protected
    assert (guarantee.epsilon, guarantee.delta, guarantee.n_rows) == (8.0, 1e-3, N)
    assert guarantee.n_answers == 5
    assert "beside the answer" in guarantee.details()
    finish(search, "more", 0.5, features=[0.25])
    assert _SEEN_BESIDE in search.guarantee().notes


def test_of_a_bare_matrix_nothing_is_claimed_and_it_is_said_once(table):
    Z = table.Z.copy()
    with pytest.warns(PrivacyWarning, match=BARE) as warned:
        search = search_of(Z, noise_sd=0.1)
    assert len(warned) == 1
    Z[:] = 0.0
    assert BEST in run(cloudpickle.loads(cloudpickle.dumps(search)), 9)
    assert BARE in search.guarantee().details()
    assert str(search.guarantee()).startswith("NOT PROTECTED")
    assert math.isinf(search.guarantee().epsilon)


# Experiments ------------------------------------------------------------------------------------

SECRET = np.random.default_rng(71).uniform(0.11, 0.99, size=(N, 2))

FAILING = 3


def secret_curator(folder):
    """A function that reads the rows where it runs; one row's outcome quotes it and fails."""
    path, vault = str(folder / "rows.npy"), f"sqlite:///{folder / 'curator.db'}"

    def make():
        rows = np.load(path)

        def measured(row):
            if row == FAILING:
                raise ValueError(f"{rows[row].tolist()}")
            return outcome(row)

        return Curator(
            rows, epsilon=4.0, delta=1e-3, bounds=[(0, 1), (0, 1)], outcomes=measured, vault=vault
        )

    return make


@pytest.fixture
def secret(tmp_path):
    """Where the curator's rows and ledger are."""
    np.save(tmp_path / "rows.npy", SECRET)
    return tmp_path


@pytest.fixture(scope="module")
def scanner():
    wanted = Scanner()
    for i, row in enumerate(SECRET):
        wanted.add_vector(f"row {i}", row)
        for j, value in enumerate(row):
            wanted.add_raw(f"scaled {i}, {j}", float(value - 0.5))
    return wanted


# The curator's actor ----------------------------------------------------------------------------


def host_of(make):
    """The actor's object, in this process."""
    settings = AnswerSettings(run="run", make=cloudpickle.dumps(make))
    host = CuratorHost(settings)
    host.reply = host.call("join", settings)
    return host


def test_a_curator_begun_again_replays_and_what_fails_tells_nothing(secret, scanner):
    first, second = (host_of(secret_curator(secret)) for _ in range(2))
    assert first.call("evaluate", 5) == second.call("evaluate", 5) == (None, outcome(5))
    Z = [host.call("release")[1].Z for host in (first, second)]
    assert (Z[0] == Z[1]).all()
    error, _ = second.call("evaluate", FAILING)
    assert (error[0], "raised ValueError" in error[1]) == ("PrivacyError", True)
    assert scanner.hits(error[1].encode()) == []
    assert second.call("evaluate", "x")[0][0] == "ValueError"
    assert second.call("guarantee")[1].n_answers == 1


@pytest.mark.usefixtures("local_hosts")
def test_a_cluster_notices_that_the_vault_of_a_curator_was_put_back(secret):
    """Of a curator whose actor begins again; one that ran all the while has seen it itself."""
    vault, backup = secret / "curator.db", secret / "backup.db"
    host_of(secret_curator(secret)).call("release")
    shutil.copy(vault, backup)
    assert host_of(secret_curator(secret)).call("evaluate", 5) == (None, outcome(5))
    shutil.copy(backup, vault)
    later = host_of(secret_curator(secret))
    error, _ = later.reply
    assert error[0] == "VaultError"
    assert "older backup" in error[1]
    assert later.call("evaluate", 6)[0] == error


def test_where_a_clusters_memory_was_changed_nothing_is_drawn(secret, local_hosts):
    host_of(secret_curator(secret)).call("release")
    for shown in (b"[3", b"\xff", b"[" * 100_000, b"[3]", b'{"n": 3}', b"null"):
        local_hosts._memory |= {k: shown for k in local_hosts._memory if k.startswith(b"head/")}
        assert "has been changed" in str(host_of(secret_curator(secret)).reply)


def quoting():
    raise ValueError(f"{SECRET.tolist()}")


def ending():
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (quoting, "PrivacyError", "raised ValueError"),
        (ending, "PrivacyError", "end its process"),
        (lambda: 5, "ValueError", "return a Curator"),
    ],
)
def test_what_makes_no_curator_is_refused_and_not_quoted(make, kind, text, scanner):
    host = host_of(make)
    error, _ = host.reply
    assert (error[0], text in error[1]) == (kind, True)
    assert scanner.hits(error[1].encode()) == []
    assert host.call("evaluate", 0)[0] == error


def test_outcomes_that_end_the_process_do_not(secret):
    def make():
        return Curator(X, epsilon=1.0, delta=1e-3, bounds=[(0, 1)], outcomes=lambda _: ending())

    host = host_of(make)
    assert host.call("evaluate", 0)[0][0] == "PrivacyError"
    assert host.call("guarantee")[1].n_answers == 0


@pytest.mark.usefixtures("local_hosts")
def test_warnings_of_the_curator_reach_the_driver():
    def make():
        return Curator(np.eye(2), epsilon=1, delta=0.01, norm_bound=1, mechanism="projection")

    with pytest.warns(PrivacyWarning, match="column space"):
        answers = answering(make)
    with pytest.raises(ValueError, match="no outcomes"):
        answers(0)
    answers.close()


def test_it_needs_a_running_ray_and_is_not_begun_in_a_trial(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"ray\.init"):
        answering(ending)
    monkeypatch.setattr("raytune_searchers.hosts.curator.in_worker", lambda: True)
    with pytest.raises(PrivacyError, match="in the driver"):
        answering(ending)


def test_functions_that_capture_a_table_are_refused():
    rows, listed = SECRET, np.random.default_rng(3).random(20_000).tolist()
    curator = Curator(rows, epsilon=1.0, delta=1e-3, bounds=[(0, 1), (0, 1)])
    for make in (lambda: Curator(rows, epsilon=1.0, delta=1e-3), lambda: listed, lambda: curator):
        with pytest.raises(PrivacyError, match=r"captures a table|not pickled"):
            answering(make)
    with pytest.raises(ValueError, match="needs a function"):
        answering(curator)
