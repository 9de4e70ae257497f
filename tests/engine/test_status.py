"""Where a run stands: the same public facts of every system, never less than what was spent."""

from dataclasses import replace

import pytest

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.duets import DUETSConfig
from privbo_plugins.privacy.guarantee import (
    FederationGuarantee,
    Guarantee,
    LocalGuarantee,
    OutsourcedGuarantee,
)
from privbo_plugins.status import planned_trials, status, used_up

RECORDS = Guarantee(True, "m", "n", "p", 100, 1.0, 0.75, 5)
REWARDS = LocalGuarantee(True, "m", 1.0, 0.0, 4, 3, 3.0, 0.0, True)
ROWS = OutsourcedGuarantee(True, "gaussian", 2.5, 1e-6, 0.5, 100, n_answers=2)
AGENTS = FederationGuarantee(True, 29, 4.0, 0.02, 1.5, 3, 1)

EACH = [
    (RECORDS, {"releases": 5, "measure": "mu", "delta": None, "spent": 0.75, "budget": 1.0}),
    (REWARDS, {"releases": 4, "measure": "epsilon", "delta": 0.0, "spent": 3.0, "budget": None}),
    (ROWS, {"releases": 2, "measure": "epsilon", "delta": 1e-6, "spent": 2.5, "budget": 2.5}),
    (AGENTS, {"releases": 1, "measure": "epsilon", "delta": 0.02, "spent": 1.5, "budget": 4.0}),
]
each = pytest.mark.parametrize(("guarantee", "expected"), EACH, ids=["mu", "ldp", "rows", "user"])


@each
def test_what_was_spent_and_of_which_budget(guarantee, expected):
    assert guarantee.spending() == expected
    shown = status(guarantee, 5, 8, recommendation=True)
    assert {name: shown[name] for name in expected} == expected
    assert (shown["done"], shown["planned"]) == (5, 8)
    counted = {OutsourcedGuarantee: "answers", FederationGuarantee: "rounds"}
    assert shown["counted"] == counted.get(type(guarantee), "trials")
    assert (shown["finished"], shown["recommendation"], shown["protected"]) == (False, True, True)


def test_a_figure_prints_alike_whether_it_was_given_as_an_integer_or_not():
    """Of mu=1 no place says 1 and another one 1.0."""
    shown = [
        status(guarantee, 5, budget=budget)
        for guarantee in (replace(RECORDS, mu=1, mu_spent=1), replace(RECORDS, mu_spent=1.0))
        for budget in (1, 1.0)
    ]
    assert {(repr(told["spent"]), repr(told["budget"])) for told in shown} == {("1.0", "1.0")}
    assert repr(GIBOConfig(mu=1)) == repr(GIBOConfig(mu=1.0))


@each
def test_a_withdrawn_claim_spends_everything(guarantee, expected):
    withdrawn = replace(guarantee, protected=False, reasons=("it was withdrawn",))
    told = withdrawn.spending(3.0)
    assert (told["spent"], told["budget"]) == ("inf", "inf")
    assert told["releases"] == expected["releases"]
    assert status(withdrawn, 5)["protected"] is False


def test_releases_that_no_reason_explains_are_not_called_free():
    assert replace(REWARDS, protected=False).spending()["spent"] == "inf"


@pytest.mark.parametrize(
    ("done", "planned", "finished"),
    [(0, None, None), (7, None, None), (2, 3, False), (3, 3, True), (4, 3, True), (0, 0, True)],
)
def test_a_plan_is_used_up_once_as_many_were_done(done, planned, finished):
    assert status(ROWS, done, planned)["finished"] is finished
    assert used_up(done, planned) is bool(finished)


def test_settings_that_do_not_say_have_no_planned_trials():
    assert planned_trials(object()) is None
    assert planned_trials(DUETSConfig(n_agents=3)) is None
    assert planned_trials(DUETSConfig(n_agents=3, n_trials=15)) == 15
