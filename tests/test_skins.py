"""Both hosts' classes take the same settings, and all of the engine's."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest

import optuna_samplers
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.duets import DUETSConfig
from privbo_plugins.algorithms.ldp_gp_ucb import UCBConfig
from privbo_plugins.privacy.local import DEFAULT_MECHANISM

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
import raytune_searchers

OF_THE_HOSTS = {
    "metric", "mode", "points_to_evaluate", "max_concurrent", "fill_idle", "run", "tags",
}  # fmt: skip
"""What only Ray Tune has."""

ALGORITHMS = ["DPGIBO", "LDPGPUCB", "LDPTGPUCB", "LDPATAGPUCB", "LDPMoMAGPUCB"]


PUBLIC = ["POGPUCB"]
"""Those that spend nothing: a released table takes the place of the budget."""

DISTRIBUTED = ["DUETS"]
"""Those that protect rewards only if told to: the number of agents comes first."""

ALL = ALGORITHMS + PUBLIC + DISTRIBUTED


def defaults(cls: type) -> dict[str, object]:
    """Default by name of every setting."""
    return {n: p.default for n, p in inspect.signature(cls).parameters.items()}


@pytest.mark.parametrize("name", ALL)
def test_sampler_and_searcher_take_the_same_settings(name: str) -> None:
    sampler = defaults(getattr(optuna_samplers, f"{name}Sampler"))
    search = defaults(getattr(raytune_searchers, f"{name}Search"))
    assert set(search) - set(sampler) <= OF_THE_HOSTS
    assert set(sampler) <= set(search)
    assert {n: search[n] for n in sampler} == sampler


@pytest.mark.parametrize("name", ALL)
def test_everything_is_keyword_only_but_the_budget_the_table_or_the_agents(name: str) -> None:
    for cls in (
        getattr(optuna_samplers, f"{name}Sampler"),
        getattr(raytune_searchers, f"{name}Search"),
    ):
        first, *others = inspect.signature(cls).parameters.values()
        expected = "n_agents" if name in DISTRIBUTED else "Z" if name in PUBLIC else None
        assert first.name == expected or (expected is None and first.name in ("mu", "epsilon"))
        assert {p.kind for p in others} == {inspect.Parameter.KEYWORD_ONLY}


def test_the_samplers_offer_every_setting_of_dp_gibo() -> None:
    of_the_preset = {"exact_centre", "random_start"}
    engine = {f.name for f in dataclasses.fields(GIBOConfig)} - of_the_preset
    assert engine <= set(defaults(optuna_samplers.DPGIBOSampler))


def test_the_samplers_offer_every_setting_of_the_ucb_family() -> None:
    named = {"low": "bound", "high": "reward_range", "noise": "mechanism", "delta": "failure"}
    engine = {named.get(f.name, f.name) for f in dataclasses.fields(UCBConfig)}
    offered: set[str] = set()
    for name in ALGORITHMS[1:]:
        offered |= set(defaults(getattr(optuna_samplers, f"{name}Sampler")))
    assert engine <= offered


NAMED = {
    "low": "bound",
    "high": "reward_range",
    "noise": "mechanism",
    "delta": "failure",
    "horizon": "n_trials",
}
"""Settings of DUETS by the names that users know."""


def test_sampler_and_searcher_offer_every_setting_of_duets_with_its_default() -> None:
    engine = {NAMED.get(f.name, f.name): f.default for f in dataclasses.fields(DUETSConfig)}
    del engine["mechanism"]  # None is no mechanism there; here it is one that epsilon=inf ignores
    for cls in (optuna_samplers.DUETSSampler, raytune_searchers.DUETSSearch):
        offered = defaults(cls)
        assert {name: offered.get(name, "missing") for name in engine} == engine
        assert offered["mechanism"] == DEFAULT_MECHANISM
        assert (offered["delta"], offered["epsilon"]) == (None, math.inf)


@pytest.mark.parametrize("name", ALL)
def test_every_setting_is_documented(name: str) -> None:
    for cls in (
        getattr(optuna_samplers, f"{name}Sampler"),
        getattr(raytune_searchers, f"{name}Search"),
    ):
        text = inspect.getdoc(cls) or ""
        missing = [setting for setting in defaults(cls) if f"{setting}: " not in text]
        assert not missing


@pytest.mark.parametrize("name", [*ALL, "DPFTSDE"])
def test_every_sampler_and_search_writes_a_report_and_tells_its_history(name: str) -> None:
    sampler = getattr(optuna_samplers, f"{name}Sampler")
    search = getattr(raytune_searchers, f"{name}Search")
    assert list(inspect.signature(sampler.report).parameters) == ["self", "study", "path"]
    assert list(inspect.signature(search.report).parameters) == ["self", "path", "results"]
    for host in (sampler, search):
        assert hasattr(host, "history")
