"""Constraints, and a last score of the chosen model, on both hosts."""

import math
import warnings

import numpy as np
import pytest

from privbo_plugins import scores
from privbo_plugins.errors import BudgetExceededError, UtilityWarning
from tests.drivers import HOSTS, RECORDS, TWO_SCORES
from tests.leaks import exception_leaks

pytestmark = [
    pytest.mark.usefixtures("local_hosts"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
]

each_host = pytest.mark.parametrize("host", HOSTS)
each_system = pytest.mark.parametrize("system", ["scores", "any sampler"])


def release(run, score, vector):
    told = scores.predictions(vector)
    if hasattr(run, "study"):
        return run.told.release_score(run.study, score, told)
    return run.search.release_score(score, told)


@each_host
@each_system
def test_it_is_charged_once_and_replayed_by_another_process(system, host, start):
    run = start(system, host, n_trials=3, final_share=0.36)
    run.trials(3)
    secret = run.own.vector()
    first = release(run, TWO_SCORES[0], secret)
    assert all(map(math.isfinite, first))
    for same in TWO_SCORES[0], TWO_SCORES[0].name if system == "scores" else TWO_SCORES[0]:
        assert release(run, same, np.zeros(len(secret))) == first
    assert run.ask("guarantee").mu_spent == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError, match="keeps a share for one"):
        release(run, TWO_SCORES[1], secret)
    assert run.ask("guarantee").mu_spent == pytest.approx(1.0)
    run.page()


@each_host
def test_other_records_and_what_is_not_kept_are_refused_without_a_charge(host, start):
    run = start("scores", host, n_trials=3)
    run.trials(3)
    with pytest.raises(ValueError, match="begin the run with final_share="):
        release(run, TWO_SCORES[0], run.own.vector())
    kept = start("scores", host, n_trials=3, final_share=0.36)
    kept.trials(1)
    with pytest.raises(ValueError, match="another length"):
        release(kept, TWO_SCORES[0], [0.5] * (len(RECORDS) + 1))
    assert kept.ask("guarantee").mu_spent == pytest.approx(0.8 / 3**0.5)


@each_host
@pytest.mark.parametrize(
    "score", ["no_such", "r2", "roc_auc", TWO_SCORES[0]],
    ids=["unknown", "no range", "no probabilities", "nothing kept"],
)  # fmt: skip
def test_what_it_raises_holds_no_prediction(score, host, start):
    run = start("scores", host, n_trials=3)
    run.trials(1)
    with pytest.raises(ValueError, match=r"score|kept") as raised:
        release(run, score, run.own.vector())
    ours = raised.value.__traceback__.tb_next.tb_next  # without the frames of these tests
    assert exception_leaks(raised.value.with_traceback(ours), run.own.scanner) == []


@each_host
def test_a_call_that_lacks_something_is_told_the_right_one(host, start):
    run = start("scores", host, n_trials=3, final_share=0.36)
    act, first = (
        (run.told.release_score, [run.study]) if hasattr(run, "study")
        else (run.search.release_score, [])
    )  # fmt: skip
    call = rf"release_score\({'study, ' * len(first)}score, predictions\)"
    for lacking in ([*first, "accuracy"], [*first, "accuracy", [0.5], [0.5]], []):
        with pytest.raises(TypeError, match=call):
            act(*lacking)
    with pytest.raises(ValueError, match=call if first else r"scores\.predictions"):
        act("accuracy", *[[0.5], [0.5]][: 1 + len(first)])


@each_host
def test_a_recommendation_that_keeps_no_constraint_is_said_to(host, start):
    kept = start("scores", host, n_trials=3)
    kept.trials(3)
    with warnings.catch_warnings(action="error", category=UtilityWarning):
        assert set(kept.ask("recommend")) == {"x"}
    run = start("scores", host, n_trials=3, constraints={"half": 0.0}, feasible_with=0.9)
    run.trials(3)
    with pytest.warns(UtilityWarning, match="No trial keeps all constraints="):
        assert set(run.ask("recommend")) == {"x"}
    assert run.ask("guarantee").protected
