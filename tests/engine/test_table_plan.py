"""What a released table costs, and how well it keeps inner products, against simulation."""

import json
import math
import warnings

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb.gaussian import public_projection
from privbo_plugins.algorithms.po_gp_ucb.modeler import GivenRows
from privbo_plugins.algorithms.po_gp_ucb.plan import TablePlan, make_table_plan
from privbo_plugins.errors import PrivacyWarning, UtilityWarning
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.rows import Curator

N, D = 4000, 5
X = np.random.default_rng(5).uniform(0.0, 1.0, (N, D))
SPREAD = math.sqrt(D / 12)
"""Root mean square length of a centred row of X."""


def table_of(**more):
    settings = {"epsilon": 4.0, "delta": 1e-6, "bounds": [(0, 1)] * D, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return Curator(X, noise=InsecureNoise(3), **settings).release()


def plan_of(table):
    return make_table_plan(GivenRows(table, {}))


def made(**changes):
    fields = {
        "n_rows": 100, "n_columns": 2, "protected": True, "epsilon": 2.0, "delta": 1e-6,
        "neighbor_distance": 0.2, "noise_sd": 0.1, "answer_sd": 0.0, "row_length": 0.5,
        "mixing": 0.0,
    }  # fmt: skip
    return TablePlan(**{**fields, **changes})


def test_the_length_of_rows_comes_from_the_released_table():
    table = table_of(neighbor_distance=0.3)
    plan = plan_of(table)
    assert plan.noise_sd == table.manifest.noise_sd > 0
    assert plan.row_length == pytest.approx(SPREAD, rel=0.03)
    noise = np.random.default_rng(0).normal(0, plan.noise_sd, (2, N, D))
    lengths = [np.linalg.norm(one, axis=1) for one in (noise[0] - noise[1], X[1:] - X[:-1])]
    ratio = math.sqrt((lengths[0] ** 2).mean() / (lengths[1] ** 2).mean())
    assert plan.noise_norm == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize(("kind", "r"), [("identity", D), ("seeded", 2), ("secret", 3)])
def test_inner_products_are_kept_as_well_as_the_plan_says(kind, r):
    """Two rows of the typical length at right angles, mixed and noised 20000 times."""
    how = {"mechanism": "projection"} if kind == "secret" else {"neighbor_distance": 0.3}
    plan = plan_of(table_of(r=r, **how))
    rng, found = np.random.default_rng(1), []
    x, y = plan.row_length * np.eye(D)[:2]
    for seed in range(20000):
        if kind == "secret":
            P = rng.standard_normal((D, r)) / math.sqrt(r)
        else:
            P = public_projection(D, r, seed)
        noise = plan.noise_sd * rng.standard_normal((2, r))
        found.append((x @ P + noise[0]) @ (y @ P + noise[1]))
    assert np.mean(found) == pytest.approx(0, abs=4 * np.std(found) / math.sqrt(len(found)))
    assert plan.inner_product_error == pytest.approx(np.std(found) / plan.row_length**2, rel=0.03)


def test_what_it_costs_is_what_the_manifest_claims():
    private = {"outcome_epsilon": 1.0, "outcome_range": (0.0, 2.0), "outcome_mechanism": "laplace"}
    curator = Curator(X[:40], epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * D, **private)
    table = curator.release()
    plan, claim = plan_of(table), table.manifest.guarantee()
    assert (plan.protected, plan.epsilon, plan.delta) == (True, float(claim.epsilon), claim.delta)
    assert plan.epsilon > 4.0  # the answer is paid for as well
    assert plan.answer_sd == pytest.approx(2.0 * math.sqrt(2))
    assert "each carries noise of sd 2.83" in str(plan)
    assert "whatever it holds" in str(plan)


def test_a_bare_matrix_claims_nothing_and_is_taken_as_it_is():
    plan = make_table_plan(GivenRows(X, {}))
    assert (plan.protected, plan.noise_norm, plan.inner_product_error) == (False, 0.0, 0.0)
    assert "nothing is protected" in str(plan)
    told = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert (told["epsilon"], told["noise_norm"]) == ("inf", 0.0)


@pytest.mark.parametrize(
    ("sd", "norm"), [(0.05, 0.1 * math.sqrt(2)), (0.1, 0.2 * math.sqrt(2)), (0.0, 0.0)]
)
def test_it_warns_where_the_noise_is_long_against_the_distance_of_rows(sd, norm):
    plan = made(noise_sd=sd)
    assert plan.noise_norm == pytest.approx(norm)
    assert plan.noise_dominates is (norm > 0.25)
    assert ("WARNING" in str(plan)) is plan.noise_dominates
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan.warn_if_noise_dominates()
    assert [one.category for one in caught] == [UtilityWarning] * plan.noise_dominates


def test_rows_that_the_noise_hides_entirely_are_drowned():
    for shape in ((1, 2), (50, 2)):
        Z = np.random.default_rng(0).normal(0, 0.1, shape)
        plan = make_table_plan(GivenRows(Z, {"noise_sd": 0.5}))
        assert plan.row_length == 0.0
        assert plan.noise_dominates
        assert plan.to_dict()["noise_norm"] == "inf"
