"""What every system does on every host: where a run stands, its page, its end, its way back."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")

import optuna_samplers
import raytune_searchers
from privbo_plugins.errors import FederationError, PrivacyWarning, UtilityWarning
from privbo_plugins.federation import Alone
from privbo_plugins.privacy.statement import as_html
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.vault import open_vault
from tests.drivers import ANY, EVERYWHERE, HOSTS, N_RECORDS, status
from tests.raytune_searchers.runs import LINE
from tests.sixth import SixthConfig

pytestmark = [
    pytest.mark.usefixtures("local_hosts"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore:Nothing is protected. epsilon = infinity"),
]

everywhere = pytest.mark.parametrize(("system", "host"), EVERYWHERE)
each_host = pytest.mark.parametrize("host", HOSTS)
on_rewards = pytest.mark.parametrize(
    ("system", "host"), [pair for pair in EVERYWHERE if pair[0].startswith(("rewards", "duets"))]
)
PLANNED = [pair for pair in EVERYWHERE if pair[0] in ("records", "outside", "rewards", "duets")]
TOLD_IN_VAULTS = [(system, host) for system, host in EVERYWHERE if system not in ("rows", *ANY)]


def claim(guarantee):
    """How a guarantee begins, as a page has it."""
    return as_html(guarantee.statement().sentence)


# Where a run stands -----------------------------------------------------------------------------


@everywhere
def test_a_status_counts_what_is_done_released_and_spent(system, host, start):
    run = start(system, host)
    rows, agents = system == "rows", system == "federation"
    before = status(run)
    assert (before["done"], before["releases"]) == (0, 0)
    assert before["recommendation"] is (None if agents else False)
    nothing = "inf" if run.system.size and host == "ray" else 0.0  # it claims nothing yet
    assert before["spent"] == (4.0 if rows else nothing)
    for n in (1, 2, 4 if run.system.named else 30 if run.system.size else 20):
        run.trials(n)
        told, guarantee = status(run), run.ask("guarantee")
        assert told["counted"] == run.system.counted
        assert told["done"] == (guarantee.n_released if agents else run.done)
        assert told["releases"] == guarantee.spending()["releases"]
        assert told["measure"] == ("mu" if run.system.size else "epsilon")
        whole = run.system.whole
        finished = whole is not None and told["done"] >= whole - run.system.spare
        assert told["finished"] == (None if rows else finished)
        assert rows or run.ask("finished") is finished
        assert told["protected"] is guarantee.protected is True or agents
        assert told["recommendation"] is (None if agents else True)
        assert told["planned"] == whole
    assert whole is None or finished
    if system.startswith("rewards"):  # one user, asked each time
        assert (told["spent"], told["budget"]) == (0.5 * run.done, 5.0)
    else:
        known = guarantee.spending()
        assert (told["spent"], told["budget"]) == (known["spent"], known["budget"])
    if system == "duets":
        assert [epoch["epoch"] for epoch in told["epochs"]] == [1]
        assert told["agents"] == 2


@pytest.mark.parametrize("system", ["records", "outside", "any sampler", "federation"])
@each_host
def test_a_plan_is_known_before_the_run(system, host, start):
    run = start(system, host)
    told = run.told if host == "optuna" else run.search
    space = {"x": FloatDistribution(0, 1)} if host == "optuna" else LINE
    with warnings.catch_warnings(action="ignore", category=UtilityWarning):
        known = (host, system) == ("ray", "any sampler")  # it was given its space
        asked = () if system == "federation" else (N_RECORDS,) if known else (space, N_RECORDS)
        plan = told.plan(*asked)
    planned = plan.config.n_rounds if system == "federation" else plan.n_trials
    assert planned == run.system.whole
    run.trials(1)
    assert status(run)["planned"] == planned


@each_host
def test_of_a_table_it_is_said_at_once_that_rows_are_told_apart_badly(host, start):
    run = start("rows", host)
    told = run.told if host == "optuna" else run.search
    with pytest.warns(UtilityWarning, match="times as long as they are apart") as caught:
        plan = told.plan()
    assert [one.filename for one in caught] == [__file__]
    assert (plan.n_rows, plan.n_columns, plan.epsilon) == (12, 2, 4.0)


@on_rewards
def test_values_that_are_no_releases_cost_everything_and_are_on_no_page(system, host, start):
    run = start(system, host)
    released = run.trials(1)
    with pytest.warns(PrivacyWarning, match="not privatised") as caught:
        run.trials(2, plain=True)
    assert [one.category for one in caught].count(PrivacyWarning) == 1
    told, page = status(run), run.page()
    assert (told["done"], told["releases"], told["protected"]) == (3, 1, False)
    assert (told["spent"], told["budget"]) == ("inf", "inf")
    assert "NOT PROTECTED" in page
    assert (system, host) == ("duets", "ray") or list(run.ask("history").values) == released
    run.trials(1)
    assert not run.ask("guarantee").protected


@each_host
def test_without_a_number_of_trials_no_plan_is_ever_used_up(host, start):
    run = start("rewards", host, n_trials=None, user_budget=None)
    run.trials(3)
    told = status(run)
    assert (told["planned"], told["finished"], told["budget"]) == (None, None, None)
    assert run.ask("finished") is False


def test_an_agent_whose_server_is_gone_says_so(start, tmp_path):
    class Gone(Alone):
        def guarantee(self):
            raise FederationError("The server cannot be reached.")

        broadcasts = guarantee

    run = start("federation", "optuna")
    run.told = optuna_samplers.DPFTSDESampler(Gone(run.server.connect(0)), seed=0)
    for verb, given in (("status", ()), ("finished", ()), ("report", (tmp_path / "r.html",))):
        with pytest.raises(FederationError, match="cannot be reached"):
            run.ask(verb, *given)
    assert list(tmp_path.iterdir()) == []


@on_rewards
def test_without_privacy_there_are_trials_and_no_releases(system, host, start):
    run = start(system, host, epsilon=float("inf"), mechanism=None, user_budget=None)
    with pytest.raises(ValueError, match="epsilon=inf"):
        getattr(run, "search", getattr(run, "sampler", None)).private(run.returned)
    shown = run.trials(4, plain=True)
    told, page = status(run), run.page()
    assert shown == run.own.values
    assert (told["done"], told["releases"], told["protected"]) == (4, 0, False)
    assert told["spent"] == "inf"
    assert "NOT PROTECTED" in page
    assert ("What is left of the space" in page) == (system == "duets")
    assert set(run.ask("recommend")) == {"x"}


# The page ---------------------------------------------------------------------------------------

TEXTS = {
    "records": ["Private tuning report", "trials planned"],
    "duets": ["What agents have sent", "What is left of the space"],
    "rewards, moma": ["Settings asked most often"],
    "rows": ["Best rows"],
    "federation": ["Rounds"],
}
"""What stands on a system's page beside its claim and its releases."""

DRAWN = "records", "rewards", "federation"
"""Pages that each run draws on Ray, too: one of each kind; all of them are drawn on Optuna."""


@pytest.mark.parametrize(("system", "host"), [
    pytest.param(*pair, marks=pytest.mark.soak) if pair[1] == "ray" and pair[0] not in DRAWN
    else pair
    for pair in EVERYWHERE
])  # fmt: skip
def test_a_report_holds_the_claim_the_releases_and_no_secret(system, host, start):
    run, agents = start(system, host), system == "federation"
    shown = run.trials(20 if agents else 9 if run.system.size else 6)
    page = run.page()
    assert run.own.calls > 0
    assert claim(run.ask("guarantee")) in page
    assert all(text in page for text in TEXTS.get(system, []))
    history = run.ask("history")
    if agents:
        assert [done.number for done in history.rounds] == [1, 2]
        assert not re.search("oslo|bergen|bodo|hamar", page)
        assert host == "ray" or claim(run.server.guarantee()) in page
    elif system == "rows":
        assert run.table.manifest.digest in page
        assert [run.y[row] for row in history.rows] == list(history.answers)
        best = re.findall(r"<tr><td>(\d+)</td><td>[\d.e-]+</td><td>", page)[0]
        assert int(best) == run.ask("recommend")["row"]
    elif run.system.size:
        assert all(repr(value) in page for _, _, value in history.values)
        assert repr(run.ask("recommend")["x"]) in page
    else:
        assert (system, host) == ("duets", "ray") or list(history.values) == shown
        assert all(repr(value) in page for value in shown)
    if host == "ray" and hasattr(run.search, "close"):
        last = status(run)
        run.search.close()
        assert status(run) == last
        assert claim(run.ask("guarantee")) in run.page()


@pytest.mark.parametrize("system", ["rewards", "duets", "rows"])
@each_host
def test_before_any_trial_there_is_a_page_that_says_so(system, host, start):
    assert "Nothing has been released yet" in start(system, host).page()


def test_of_a_bare_matrix_it_is_said_that_nothing_is_known(tmp_path):
    sampler = optuna_samplers.POGPUCBSampler(np.linspace(-1, 1, 12)[:, None], seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    page = sampler.report(study, tmp_path / "r.html").read_text()
    assert "NOT PROTECTED" in page
    assert "nothing is known of its origin" in page


@pytest.mark.parametrize(("system", "host"), TOLD_IN_VAULTS)
def test_what_the_vault_alone_claims_is_the_run_s_own_guarantee(system, host, start, tmp_path):
    """Without the notes on a host, which no vault knows."""
    run = start(system, host, vault=True)
    run.trials(9 if run.system.size else 3)
    told = run.ask("guarantee")
    known = run_named(open_vault(f"sqlite:///{tmp_path}/vault.db"), None).guarantee
    assert known.protected
    if system == "federation":
        told = replace(told, notes=known.notes)
    assert known.details() == replace(told, where="").details()


# Failures, the way back, the end ----------------------------------------------------------------


@pytest.mark.parametrize(("system", "host"), [pair for pair in PLANNED if pair[0] != "duets"])
def test_a_trial_that_fails_costs_nothing_and_the_run_goes_on(system, host, start):
    run = start(system, host)
    run.trials(1)
    before = status(run)
    assert run.trials(2, fails=True) == [None, None]
    told = status(run)
    assert {name: told[name] for name in ("releases", "spent", "done")} | {
        "done": before["done"]
    } == {name: before[name] for name in ("releases", "spent", "done")}
    run.trials(1)
    assert status(run)["releases"] > before["releases"]
    assert run.ask("guarantee").protected
    run.trials(30 if run.system.size else run.system.whole - 2)
    assert run.system.ends(run.done)


@pytest.mark.parametrize(("system", "host"), PLANNED)
def test_a_run_that_is_opened_again_goes_on_to_the_end_of_its_plan(system, host, start):
    run = start(system, host, vault=True)
    shown = run.trials(2)
    before = status(run), str(run.ask("guarantee")), run.ask("recommend")
    run.reopen()
    assert (status(run), str(run.ask("guarantee")), run.ask("recommend")) == before
    shown += run.trials(30 if run.system.size else run.system.whole - 2)
    assert status(run)["finished"]
    assert run.system.ends(run.done)
    assert run.done == len(shown)
    assert run.ask("guarantee").protected


@each_host
@pytest.mark.parametrize("system", ["records", "outside"])
def test_plain_floats_end_with_the_number_of_trials(system, host, start):
    more = {"n_trials": 12, "n_starts": None, "n_steps": None} if system == "records" else {}
    run = start(system, host, **more)
    run.returned = lambda config: (config["x"] - 0.3) ** 2
    with pytest.warns(PrivacyWarning, match="plain floats"):
        shown = run.trials(100, plain=True)
    assert len(shown) == (12 if system == "records" else run.system.whole)
    assert not run.ask("guarantee").protected


@each_host
def test_a_foreign_algorithm_recommends_the_best_that_was_released(host, start):
    run = start("outside", host)
    shown = run.trials(30)
    history = run.ask("history")
    assert [value for _, _, value in history.values] == shown
    assert len(shown) == run.system.whole
    assert history.centres[-1] == run.ask("recommend")
    assert not set(shown) & {float(vector.mean()) for vector in run.own.values}
    guarantee = run.ask("guarantee")
    assert "means of clipped values, one a trial" in guarantee.details()
    assert "how a sixth algorithm came about" in guarantee.details()
    assert "training_mu" in guarantee.details()  # what no algorithm can take back
    assert "gradient" not in guarantee.details()
    assert guarantee.parameters["trials"] == run.system.whole


class Unknown(SixthConfig):
    """Settings of no algorithm."""

    algorithm: ClassVar[str] = "nobody"
    registered_at: ClassVar[Any] = None


@pytest.mark.parametrize("kind", [optuna_samplers.PrivateSampler, raytune_searchers.PrivateSearch])
def test_settings_of_no_algorithm_are_refused_before_a_vault_is_made(kind, tmp_path):
    with pytest.raises(ValueError, match="No algorithm of the name 'nobody'"):
        kind(Unknown(1.0, 4), vault=f"sqlite:///{tmp_path}/vault.db")
    assert list(tmp_path.iterdir()) == []
