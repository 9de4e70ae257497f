"""The map of methods: its accounting, the table that a plan reads, and what it found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from benchmarks import map as measured
from benchmarks.baselines.private_selection import (
    DELTA,
    bounded_range_from_gdp,
    gdp_from_bounded_range,
    selection_epsilon,
    selection_mu,
)
from benchmarks.map_problems import Bowl
from privbo_plugins.algorithms.dp_gibo import GIBOConfig, make_plan
from privbo_plugins.algorithms.dp_gibo.advice import as_good
from privbo_plugins.privacy.accountant import gdp_epsilon

from .helpers import cube

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")


# Accounting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.05, 0.5, 1.6, 3.0, 8.0])
def test_no_two_outcomes_of_a_bounded_range_tell_more_than_their_gdp(eps: float) -> None:
    """All pairs of outcomes with losses t and t - eps, one by one."""
    t = np.linspace(0.0, eps, 4003)[1:-1]
    p = (math.exp(eps) - np.exp(t)) / (math.exp(eps) - 1.0)
    mus = scipy.special.ndtri(p) - scipy.special.ndtri(p * np.exp(-t))
    assert mus.max() == pytest.approx(gdp_from_bounded_range(eps), rel=1e-9)
    assert bounded_range_from_gdp(gdp_from_bounded_range(eps)) == pytest.approx(eps)


def test_a_gumbel_argmin_of_neighbouring_means_stays_within_its_gdp() -> None:
    """Its exact probabilities exp(-v eps / 2 sensitivity), for means that all move by one."""
    eps, rng = 1.5, np.random.default_rng(0)
    mu = gdp_from_bounded_range(eps)
    for moved in rng.uniform(-1.0, 1.0, (200, 6)).round():
        v = rng.uniform(0.0, 4.0, 6)
        p, q = (scipy.special.softmax(-eps / 2 * values) for values in (v, v + moved))
        order = np.argsort(q / p)  # Neyman and Pearson: the most powerful tests at each level
        level, power = np.cumsum(p[order][::-1])[:-1], np.cumsum(q[order][::-1])[:-1]
        gaussian = scipy.special.ndtr(scipy.special.ndtri(level) + mu)
        assert (power <= gaussian + 1e-12).all()


@pytest.mark.parametrize(("mu_b", "mean"), [(0.05, 67), (0.4, 92), (1.5, 400)])
def test_a_selection_of_a_random_number_costs_what_another_accountant_says(
    mu_b: float, mean: float
) -> None:
    from dp_accounting import dp_event, rdp

    orders = (1.0 + np.geomspace(1e-2, 1e4, 300)).tolist()
    accountant = rdp.RdpAccountant(orders=orders)
    accountant.compose(
        dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1 / mu_b), mean, 1)
    )
    theirs = accountant.get_epsilon(DELTA)
    assert selection_epsilon(mu_b, mean, DELTA) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_selection_gets_the_epsilon_of_gdp_and_no_more(mu: float) -> None:
    wanted = gdp_epsilon(mu, DELTA)
    spent = selection_epsilon(selection_mu(mu, 92, DELTA), 92, DELTA)
    assert wanted * (1 - 1e-6) < spent <= wanted


# What a plan says -------------------------------------------------------------------------------


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((measured.RESULTS / "map.json").read_text())
    return found


def test_the_table_that_is_shipped_is_that_of_the_measurements() -> None:
    record = kept()
    assert measured.summarise(record["runs"]) == record["summary"]
    written = measured.written_table(measured.advice(record["summary"]))
    assert measured.TABLE.read_text() == written


def test_every_method_that_is_named_is_as_good_as_the_best_in_the_runs() -> None:
    runs = kept()["runs"]
    for d, levels in as_good().items():
        parts = measured.parts_of(d)
        for level, named in levels.items():
            key = next(f"{n},{mu:g}" for n, mu in measured.CELLS if round(n * mu) == level)
            excess = {
                arm: np.mean([_paired(runs, part, arm, key) for part in parts])
                for arm in measured.SHIPPED
                if arm != "means-gp" or all(_has(runs, part, arm, key) for part in parts)
            }
            best = min(x for arm, x in excess.items() if arm != "means-gp")
            assert excess[named[0]] == pytest.approx(best, abs=1e-6)
            assert max(excess[arm] for arm in named) <= best + 0.001 + 1e-6


def _has(runs: list[dict[str, Any]], part: str, arm: str, key: str) -> bool:
    return any(run["part"] == part and key in run["excess"].get(arm, {}) for run in runs)


def _paired(runs: list[dict[str, Any]], part: str, arm: str, key: str) -> float:
    """Mean excess; of an arm with fewer seeds, what it has over DP-GIBO on those."""
    of = [run["excess"] for run in runs if run["part"] == part]
    first = np.mean([excess["dp-gibo"][key] for excess in of])
    differences = [e[arm][key] - e["dp-gibo"][key] for e in of if key in e.get(arm, {})]
    return float(first + np.mean(differences))


def test_no_method_is_named_that_is_not_offered_or_not_measured_on_all_problems() -> None:
    runs = kept()["runs"]
    for d, levels in as_good().items():
        for level, named in levels.items():
            for arm in named:
                assert arm.startswith(("dp-gibo", "means-"))
                keys = [f"{n},{mu:g}" for n, mu in measured.CELLS if round(n * mu) == level]
                known = {run["part"] for run in runs if keys[0] in run["excess"].get(arm, {})}
                assert known >= measured.parts_of(d)


def _entries(part: str, excess: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    return [
        {"part": part, "d": 4, "n": 300, "mu": 1.0, "arm": arm, "excess": x, "difference": gap}
        for arm, (x, gap) in excess.items()
    ]


@pytest.mark.parametrize("gap", [0.0005, -0.03])
@pytest.mark.parametrize("missing", ["", "mlp-4"])
def test_a_sampler_is_compared_by_pairs_and_only_where_all_problems_have_it(
    missing: str, gap: float
) -> None:
    """On its few seeds it has .02, less than DP-GIBO has on all, and more than that has there."""
    own = {"dp-gibo": (0.05, 0.0), "means-tpe": (0.5, 0.45), "means-cma": (0.5, 0.45)}
    summary = [
        entry
        for part in measured.parts_of(4)
        for entry in _entries(part, own | ({} if part == missing else {"means-gp": (0.02, gap)}))
    ]
    named = measured.advice(summary)[4][300]
    assert named == (("dp-gibo",) if missing else ("dp-gibo", "means-gp"))


def test_new_runs_replace_those_of_their_arm_and_keep_the_others() -> None:
    old = {"part": "bowl-2", "seed": 1, "trials": {"a": 3, "b": 4}, "excess": {"a": {}, "b": {}}}
    new = {"part": "bowl-2", "seed": 1, "arm": "b", "trials": 5, "excess": {"300,1": 0.5}}
    other = {"part": "bowl-1", "seed": 7, "arm": "b", "trials": 6, "excess": {}}
    assert measured.merged([old], [new, other]) == [
        {"part": "bowl-1", "seed": 7, "trials": {"b": 6}, "excess": {"b": {}}},
        {"part": "bowl-2", "seed": 1, "trials": {"a": 3, "b": 5},
         "excess": {"a": {}, "b": {"300,1": 0.5}}},
    ]  # fmt: skip
    assert old["trials"] == {"a": 3, "b": 4}


def test_without_torch_the_gp_sampler_is_not_run_and_its_cells_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "map.json").write_text(json.dumps(kept()))
    monkeypatch.setattr(measured, "find_spec", lambda _name: None)
    monkeypatch.setattr("sys.argv", ["map", "--arms", "means-gp", "--out", str(tmp_path)])
    measured.main()
    assert "means-gp: not run: torch is not installed" in capsys.readouterr().out
    assert json.loads((tmp_path / "map.json").read_text())["runs"] == kept()["runs"]


def test_a_plan_names_the_method_of_its_cell_in_words_and_in_json() -> None:
    for d, levels in as_good().items():
        for level, named in levels.items():
            plan = make_plan(GIBOConfig(mu=0.5), cube(d), 2 * level)
            told = json.loads(json.dumps(plan.to_dict()))["advice"]
            assert told["as_good"] == list(named)
            assert told["text"] in str(plan)
            assert f"d={d}, n mu={level}: " in told["text"]


@pytest.mark.parametrize(
    ("d", "n", "mu", "why"),
    [(65, 1000, 1.0, "d > 64"), (0, 1000, 1.0, "d < 1"), (8, 100, 0.1, "n mu < 30"),
     (8, 10**6, 1.0, "n mu > 300000"), (8, 100, math.inf, "n mu > 300000"),
     (64, 300, 0.1, "n mu < 100")],
)  # fmt: skip
def test_nothing_is_recommended_where_nothing_was_measured(
    d: int, n: int, mu: float, why: str
) -> None:
    from privbo_plugins.algorithms.dp_gibo.advice import advise

    assert advise(d, n, mu) == {"as_good": [], "text": f"not measured for {why}"}


# What it found ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "seed"), [(1, 108), (1, 109), (1, 122)])
def test_a_least_loss_near_the_boundary_is_not_passed_with_few_parameters(
    d: int, seed: int
) -> None:
    """With a length-scale of .35 these runs end at the boundary, .08 to .1 above the least."""
    bowl = Bowl(d, seed)
    u, _ = measured.gibo(bowl, 10_000, seed)
    assert float(bowl.losses(u[None]).mean()) - bowl.least() < 0.001


def test_uniform_points_are_not_drawn_from_the_stream_that_drew_the_bowl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With four parameters and seed [seed, 4] for both, the second point was near the bottom."""
    seen = []
    mean_of = measured._mean_of
    monkeypatch.setattr(measured, "_mean_of", lambda p, U: [seen.append(U), mean_of(p, U)][1])
    for d in (1, 2, 4, 8):
        far = []
        for seed in range(9000, 9012):
            measured.random_search(f"bowl-{d}", seed)
            far.append(np.abs(seen[-1][:8] - Bowl(d, seed)._c.mean(0)).max(1))
        expected = np.abs(
            np.random.default_rng(0).random((12, 8, d))
            - np.random.default_rng(1).uniform(0.1, 0.9, (12, 1, d))
        ).max(2)
        rows = [np.array(values).mean(0).min() for values in (far, expected)]
        assert rows[0] == pytest.approx(rows[1], abs=0.15)
