"""A last score of the chosen model, on both hosts: charged once, replayed, over no budget."""

import math

import numpy as np
import pytest

from privbo_plugins import scores
from privbo_plugins.errors import BudgetExceededError
from tests.drivers import HOSTS, RECORDS, TWO_SCORES

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
    assert release(run, TWO_SCORES[0], np.zeros(len(secret))) == first
    assert run.ask("guarantee").mu_spent == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError, match="budget"):
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
