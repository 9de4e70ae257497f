"""Settings out of range are refused by name before anything is made, on every host."""

import math

import numpy as np
import pytest
from optuna.distributions import FloatDistribution

import optuna_samplers
import raytune_searchers
from optuna_samplers import FederatedServer, FederationConfig
from privbo_plugins.errors import VaultError
from tests.raytune_searchers.federated_scenes import make_search
from tests.raytune_searchers.runs import LINE

GIVEN = {
    "DPGIBO": {"mu": 1.0},
    "LDPGPUCB": {"epsilon": 1.0, "value_range": (0, 1)},
    "DUETS": {"n_agents": 2, "discretisation": 64},
    "POGPUCB": {"Z": np.eye(4), "noise_sd": 0.1},
}
"""What is right of each system."""

BOTH = {
    "DPGIBO": [
        *[({"mu": mu}, "mu must be a number in") for mu in
          (0, -1, math.nan, -math.inf, 1e-170, 1e155, "1", True, [1])],
        ({"clipping_norm": 0}, r"clipping_norm must be .*positive.* got 0"),
        ({"clipping_norm": math.nan}, r"clipping_norm must be .*positive.* got nan"),
        ({"clipping_norm": math.inf}, r"clipping_norm must be .*positive.* got inf"),
        ({"clipping_norm": 1e200}, r"clipping_norm must be a positive number in .* got 1e\+200"),
        ({"clipping_norm": "adaptiv"}, r"clipping_norm must be .*got 'adaptiv'"),
        ({"loss_bound": 0}, "loss_bound must be a positive number"),
        ({"loss_bound": (1, 0)}, r"loss_bound must be .*low < high, got \(1, 0\)"),
        ({"loss_bound": (0, math.inf)}, "loss_bound must be"),
        ({"loss_bound": (0, 1, 2)}, r"loss_bound must be .*\(low, high\).* got \(0, 1, 2\)"),
        ({"loss_bound": "1"}, "loss_bound"),
        ({"n_steps": 0}, "n_steps must be an integer >= 1 or None, got 0"),
        ({"n_steps": 2.5}, "n_steps must be an integer >= 1 or None, got 2.5"),
        ({"n_steps": True}, "n_steps must be an integer >= 1 or None, got True"),
        ({"n_trials": 1}, "n_trials must be an integer >= 2"),
        ({"n_starts": -1}, "n_starts must be an integer >= 0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1"),
        ({"batch_size": 2, "tolerance": 0.1}, "batch_size or tolerance, not both"),
        ({"value_share": 1.0}, r"value_share must be a number in \[0, 1\), got 1"),
        ({"value_share": "half"}, "value_share"),
        ({"value_share": 0.0, "n_starts": 3}, "n_starts=3 needs released values"),
        ({"lengthscale": 0}, "lengthscale must be a finite number > 0 or None, got 0"),
        ({"lengthscale": "long"}, "lengthscale must be a finite number > 0 or None, got 'long'"),
        ({"noise_ratio": -1}, "noise_ratio must be a finite number >= 0"),
        ({"step_size": 0}, "step_size must be a finite number > 0"),
        ({"memory": "all"}, "memory"),
        ({"training_mu": -1}, "training_mu must be a number in"),
        ({"kernel": "rfb"}, "kernel must be one of .*rbf.*got 'rfb'"),
        ({"step_rule": "adagrat"}, "step_rule must be one of .*adagrad.*got 'adagrat'"),
        ({"record_ids": "patients"}, "record_ids must list one label per validation record"),
        ({"record_ids": {"a": 1}}, "record_ids must list one label"),
        ({"record_ids": []}, "record_ids must list one label"),
        ({"record_ids": np.ones((2, 2))}, "record_ids must list one label"),
        ({"search_space": {}}, "at least one parameter that varies"),
        ({"vault": 5}, "vault must be"),
        ({"vault": "mysql://host/db"}, "vault"),
        ({"vault": "nonsense://host/db"}, "vault"),
        ({"vault": "env:NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
    ],
    "LDPGPUCB": [
        ({"epsilon": 0.0}, "epsilon"),
        ({"bound": 1.0}, "one of them"),
        ({"mechanism": "none"}, "mechanism"),
    ],
    "DUETS": [
        ({"n_agents": 2.0, "n_trials": 10}, "n_agents must be an integer"),
        ({"n_trials": True}, "n_trials must be an integer"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"variant": "paper"}, "give n_trials="),
        ({"p0": 0}, "p0 must be"),
        ({"discretisation": 8}, "discretisation must be an integer >= 16"),
        ({"epsilon": 1.0}, "bound|reward_range"),
        ({"bound": 1.0, "value_range": (0, 1)}, "bound|reward_range"),
        ({"search_space": {}}, "at least one parameter that varies"),
    ],
    "POGPUCB": [
        ({"Z": [[1.0, math.nan]]}, "finite matrix"),
        ({"Z": [1.0, 2.0]}, "matrix"),
        ({"Z": [["Jane"]]}, "matrix of numbers"),
        ({"Z": "table.csv"}, "npz"),
        ({"noise_sd": -1.0}, "noise_sd"),
        ({"parameter": ""}, "parameter"),
        ({"parameter": 3}, "parameter"),
        ({"correction": "some"}, "correction"),
        ({"lengthscale": 0.0}, "lengthscale"),
        ({"beta_scale": -1.0}, "beta_scale"),
        ({"n_startup": 0}, "n_startup"),
    ],
}  # fmt: skip
"""What is wrong, and what is said, where both hosts take the same settings."""

OF_TUNE = [
    ("DPGIBO", {"metric": ["a", "b"]}, "one metric"),
    ("DPGIBO", {"mode": ["min", "max"]}, "one metric"),
    ("DPGIBO", {"mode": "minimise"}, "'min' or 'max', got 'minimise'"),
    ("DPGIBO", {"metric": ""}, "metric must be a name"),
    ("DPGIBO", {"metric": "training_iteration"}, "Tune fills in itself"),
    ("DPGIBO", {"metric": "config/x"}, "metric may not be"),
    ("DPGIBO", {"metric": "done/a"}, "metric may not be"),
    ("DPGIBO", {"search_space": {"x": 1}}, "at least one parameter that varies"),
    ("DPGIBO", {"points_to_evaluate": {"x": 1}}, "points_to_evaluate must be a list"),
    ("DPGIBO", {"max_concurrent": 0}, "max_concurrent"),
    ("DPGIBO", {"max_concurrent": True}, "max_concurrent"),
    ("DPGIBO", {"run_name": ""}, "run_name must be a name"),
    ("DPGIBO", {"run_name": "patients"}, "run_name= names a run in a database"),
    ("DPGIBO", {"vault": "memory:other"}, "vault must be"),
    *[("DPGIBO", {"vault": url}, "env:NAME") for url in
      ("postgresql+psycopg://user:hunter2@host/db",
       "postgresql://user@host/db?sslPASSWORD=hunter2",
       "postgresql://user@host/db?ssl_secret=hunter2")],
    ("LDPGPUCB", {"vault": "postgresql://u:hunter2@host/db"}, "env:NAME"),
    ("DUETS", {"mode": "most"}, "mode"),
    ("POGPUCB", {"parameter": "a/b"}, "parameter"),
    *[("POGPUCB", {"points_to_evaluate": points}, "points_to_evaluate") for points in
      ([{"row": 4}], [{"row": -1}], [{"row": 2.5}], [{"row": "a"}], [{"col": 1}],
       [{"row": 1}, {"row": 1}], {"row": 1})],
]  # fmt: skip

WRAPPED = {
    "ldp_objective": (optuna_samplers.ldp_objective, abs, []),
    "ldp_trainable": (raytune_searchers.ldp_trainable, lambda config: 0.5, [
        ({"metric": None}, "metric and a mode"),
        ({"metric": "done"}, "metric may not be"),
        ({"mode": "most"}, "mode"),
        ({"run_name": "r"}, "in memory"),
        ({"vault": "postgresql://u:hunter2@host/db"}, "env:NAME"),
        ({"user_id": 1.5}, "string, bytes or an integer"),
        ({"user_id": "a" * 2000}, "at most 1000"),
        ({"user_id": 1 << 70_000}, "at most 1000"),
    ]),
}  # fmt: skip
OF_REWARDS = [
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": math.inf}, "epsilon"),
    ({"bound": 1.0}, "one of them"),
    ({"mechanism": "none"}, "mechanism"),
    ({"user_budget": 2.0}, "user_id="),
    *[({"user_budget": budget, "user_id": "a"}, "at least the epsilon of one evaluation")
      for budget in (0.5, math.nan, -1.0)],
]  # fmt: skip

FEDERATIONS = [
    ({"hosts": 0}, "hosts must be 'agent' or a number"),
    ({"hosts": "one"}, "hosts must be 'agent' or a number"),
    ({"log_to": "/nowhere/{agent}"}, "log_to= needs"),
    ({"log_to": "/nowhere/all", "hosts": "agent"}, "log_to= needs"),
    ({"agents": ["a", "b"]}, "4 different names"),
    ({"agents": ["a", "../b", "c", "d"]}, "letters, digits"),
    ({"n_trials": 1}, "above n_startup=1"),
    ({"deadline": 0.0}, "positive number of seconds"),
    ({"config": {"q": 1.0, "trust": "aggregate"}}, "let every agent tune a study of its own"),
    ({"agent_vaults": "sqlite:////tmp/all.db"}, r"with \{agent\} in it"),
    ({"agent_vaults": "postgresql://u:hunter2@h/{agent}"}, "holds a password"),
    ({"run_name": "r"}, "run_name= names a run in a database"),
    ({"search_space": {"c": 5}}, "at least one parameter"),
    ({"mode": "best"}, "mode must be"),
]


def refused(call, said):
    """A call ends with an error that quotes no password."""
    with pytest.raises((ValueError, TypeError, VaultError), match=said) as raised:
        call()
    texts = f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"
    assert "hunter2" not in texts


@pytest.mark.parametrize(
    ("system", "settings", "said"),
    [(system, *case) for system, cases in BOTH.items() for case in cases], ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_both_hosts_refuse_a_setting_out_of_range(system, settings, said):
    for package, kind in ((optuna_samplers, "Sampler"), (raytune_searchers, "Search")):
        make = getattr(package, f"{system}{kind}")
        own = {"metric": "loss", "mode": "min"} if kind == "Search" else {}
        refused(lambda make=make, own=own: make(**(GIVEN[system] | own | settings)), said)


@pytest.mark.parametrize(("system", "settings", "said"), OF_TUNE, ids=str)
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_a_search_refuses_what_only_tune_has(system, settings, said):
    make, own = getattr(raytune_searchers, f"{system}Search"), {"metric": "loss", "mode": "min"}
    refused(lambda: make(**(GIVEN[system] | own | settings)), said)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [(kind, *case) for kind, (_, _, own) in WRAPPED.items() for case in [*OF_REWARDS, *own]],
)
def test_a_wrapper_of_rewards_refuses_a_setting_out_of_range(kind, settings, said, local_hosts):
    wrap, function, _ = WRAPPED[kind]
    refused(lambda: wrap(function, **(GIVEN["LDPGPUCB"] | settings)), said)
    assert local_hosts.alive == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": None}, "needs a metric and a mode"),
        ({"mode": "best"}, "mode must be 'min' or 'max'"),
        ({"param_space": {"x": 3}}, "at least one parameter that varies"),
        ({"n_trials": 0}, "n_trials must be an integer >= 1"),
        ({"vault": "postgresql://user:hunter2@host/db"}, "holds a password"),
    ],
)
def test_a_wrapper_of_losses_refuses_a_setting_out_of_range(settings, said):
    own = {"param_space": LINE, "mu": 1, "n_trials": 6, "metric": "loss"}
    wrap = raytune_searchers.private_trainable
    refused(lambda: wrap(lambda config: [0.5], **(own | settings)), said)
    if "n_trials" in settings:
        given = {"mu": 1, "n_trials": 6} | settings
        refused(lambda: optuna_samplers.private_objective(lambda trial: [0.5], **given), said)


@pytest.mark.parametrize(("settings", "said"), FEDERATIONS, ids=str)
def test_a_federation_under_tune_refuses_a_setting_out_of_range(settings, said):
    refused(lambda: make_search(**settings), said)


def test_a_federation_of_studies_refuses_a_space_that_holds_nothing():
    config = FederationConfig(n_agents=1, epsilon=4.0, n_rounds=2)
    link = FederatedServer(config).connect(0)
    for space in ({}, {"x": FloatDistribution(1, 1)}):
        refused(
            lambda space=space: optuna_samplers.DPFTSDESampler(link, search_space=space),
            "at least one parameter that varies",
        )


WRAPPERS = [
    lambda function: raytune_searchers.DPGIBOSearch(1.0).private(function),
    lambda function: raytune_searchers.LDPGPUCBSearch(1.0, bound=1.0).private(function),
    lambda function: make_search().private(function),
    lambda function: raytune_searchers.private_trainable(
        function, param_space=LINE, mu=1, n_trials=6
    ),
    lambda function: raytune_searchers.ldp_trainable(function, epsilon=1.0, bound=1.0),
    lambda function: optuna_samplers.private_objective(function, mu=1, n_trials=6),
    lambda function: optuna_samplers.ldp_objective(function, epsilon=1.0, bound=1.0),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("function", [None, 3, "f", np.ones(3)], ids=str)
def test_only_functions_are_made_private(wrap, function):
    with pytest.raises(ValueError, match=r"a function|got an? \w+"):
        wrap(function)
