"""Drivers of experiments on a cluster of several nodes, each for a process of its own.

A driver is attached to the node that it is told, and leaves what the test compares in the folder:
``facts.json`` at its end, and ``where`` with a line for each training: trial, node and address.
Losses are sentinels, made where they are used from a key in a folder that nobody scans.
"""

import functools
import hashlib
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
import ray
from ray import tune

from raytune_searchers import DPGIBOSearch, DUETSSearch, LDPGPUCBSearch
from raytune_searchers.hosts import actors
from tests.inside import host_name
from tests.raytune_searchers import federated_scenes
from tests.raytune_searchers.ldp_scenes import reward
from tests.raytune_searchers.runs import PLANE, make_search, tuner
from tests.raytune_searchers.scenes import BEFORE, STORED, kill_driver, turn_of
from tests.worker import append, first_time, lines

N = 120
"""Records of a trial."""

PLAN = {"n_starts": 1, "n_steps": 1, "memory": -1}
"""Over a plane: a start point, a batch of three trials at once, and what is compared."""

OVERLAP = 60.0
"""Seconds for which trials that are to run at the same time wait for each other."""

# In a trial -------------------------------------------------------------------------------------


def sentinels(secret, trial):
    """The private losses of a trial, shape (N,): random doubles in (0.1, 1)."""
    key = (secret / "key").read_bytes()
    seed = int.from_bytes(hashlib.sha256(key + trial.encode()).digest())
    return np.random.default_rng(seed).uniform(0.11, 0.99, N)


def arrive(folder, at_once):
    """Notes where a trial runs; those after the first wait until so many have begun."""
    context = ray.get_runtime_context()
    trial = tune.get_context().get_trial_id()
    append(folder / "where", [trial, context.get_node_id(), ray.util.get_node_ip_address()])
    print(f"trial {trial} runs", flush=True)  # what the scan of the logs must find
    end, turn = time.monotonic() + OVERLAP, turn_of(folder, trial)
    while 1 <= turn <= at_once and time.monotonic() < end:
        nodes = {node for t, node, _ in lines(folder / "where") if turn_of(folder, t) >= 1}
        if len(nodes) >= at_once:
            break
        time.sleep(0.05)
    return trial


def hold(folder, point, wanted):
    """At the node and the point wanted, once: tells the test, and waits for its word."""
    trial, here = tune.get_context().get_trial_id(), ray.util.get_node_ip_address()
    if wanted is None or [here, point] != list(wanted) or turn_of(folder, trial) == 0:
        return
    if first_time(folder / "struck"):
        (folder / "held.tmp").write_text(json.dumps(trial))
        (folder / "held.tmp").rename(folder / "held")
        while not (folder / "go on").exists():
            time.sleep(0.05)


def trained(folder, secret, at_once, wanted, _config):
    """Losses of a trial, which may be held before it has told them."""
    trial = arrive(folder, at_once)
    hold(folder, BEFORE, wanted)
    return sentinels(secret, trial)


def measured(private, folder, wanted, driver, config):
    """A private trial that may be held, or may kill its driver, once its losses are stored."""
    released = private(config)
    hold(folder, STORED, wanted)
    turn = turn_of(folder, tune.get_context().get_trial_id())
    if driver is not None and turn == 2 and first_time(folder / "struck driver"):
        kill_driver(driver, folder / "run")
    tune.report(released)


def rewarded(folder, at_once, config):
    """One user's reward."""
    arrive(folder, at_once)
    return reward(config)


def answered(folder, at_once, answers, config):
    arrive(folder, at_once)
    return {"r": answers(config["row"])}


def together(folder, agents, agent, config):
    """An agent's objective; in its first trial it waits for the others to have begun theirs."""
    append(folder / "evaluated", agent)
    end = time.monotonic() + OVERLAP
    while len(set(lines(folder / "evaluated"))) < agents and time.monotonic() < end:
        time.sleep(0.05)
    return 1.0 - abs(config["x"] - 0.5)


# In a driver ------------------------------------------------------------------------------------


def attach(address, ip, host_ip=None):
    """Joins the cluster at a node; hosts begin there, or on another one."""
    warnings.simplefilter("ignore")
    ray.init(address=address, _node_ip_address=ip, log_to_driver=False, logging_level="ERROR")
    if host_ip is not None:
        alive = [node for node in ray.nodes() if node["Alive"]]
        ids = {node["NodeManagerAddress"]: node["NodeID"] for node in alive}
        actors._here = lambda: ids[host_ip]  # as after an earlier node of the host has died


def host_node(search):
    """On which node the host of a search is."""
    actor = ray.get_actor(host_name(search), namespace="privbo")
    found = actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    return str(ray.get(found))


def conclude(folder, search, results, **more):
    """What the test compares with the ledger that it reads itself."""
    ended = [r for r in results if r.error is None]
    shown = {r.metrics["trial_id"]: r.metrics.get(search.metric) for r in ended}
    guarantee = search.guarantee(results)
    facts = {
        "errors": results.num_errors,
        "shown": shown,
        "addresses": sorted({str(r.metrics["node_ip"]) for r in ended}),
        "protected": guarantee.protected,
        **more,
    }
    (folder / "facts.tmp").write_text(json.dumps(facts))
    (folder / "facts.tmp").rename(folder / "facts.json")
    return facts


def records(
    folder,
    secret,
    address,
    ip,
    vault,
    at_once=3,
    host_ip=None,
    wanted=None,
    dies=False,
    restored=False,
):
    """DP-GIBO on sentinel losses; begun here, or restored from what another driver left."""
    attach(address, ip, host_ip)
    place = Path(folder)
    path = str(place / "run")
    if restored:
        search = DPGIBOSearch.from_experiment(path)
    else:
        search = make_search(vault=vault, run_name="r", **PLAN)
    private = search.private(functools.partial(trained, place, Path(secret), at_once, wanted))
    driver = os.getpid() if dies else None
    trainable = functools.partial(measured, private, place, wanted, driver)
    if restored:
        made = tune.Tuner.restore(path, trainable)
    else:
        settings = {
            "max_concurrent_trials": at_once,
            "failure": tune.FailureConfig(max_failures=3),
        }
        made = tuner(search, trainable, place, param_space=PLANE, **settings)
    results = made.fit()
    conclude(place, search, results, host=host_node(search), mu=search.guarantee().mu_spent)


LINE = {"x": tune.uniform(0.0, 1.0)}
REWARDS = {
    "value_range": (0, 1), "mechanism": "laplace", "metric": "r", "mode": "max", "seed": 1
}  # fmt: skip


def rewards_search(kind, vault):
    """A search on privatised rewards with its ledger in a database."""
    settings = REWARDS | {"vault": vault, "run_name": kind}
    if kind == "duets":
        return DUETSSearch(3, epsilon=1.0, discretisation=32, **settings)
    return LDPGPUCBSearch(1.0, **settings)


def rewards_here(place, kind, vault, at_once):
    """A search on privatised rewards."""
    search = rewards_search(kind, vault)
    private = search.private(functools.partial(rewarded, place, at_once))
    results = tuner(
        search, private, place,
        param_space=LINE,
        num_samples=5, max_concurrent_trials=at_once, failure=tune.FailureConfig(max_failures=3),
    ).fit()  # fmt: skip
    conclude(place, search, results, host=host_node(search))


def rows_here(place, at_once):
    """PO-GP-UCB before a curator in an actor."""
    from raytune_searchers import POGPUCBSearch, answering

    answers = answering(make_curator)
    search = POGPUCBSearch(answers.release(), metric="r", mode="max", seed=1)
    trainable = functools.partial(answered, place, at_once, answers)
    settings = {"num_samples": 5, "max_concurrent_trials": at_once}
    results = tuner(search, trainable, place, param_space={}, **settings).fit()
    told = {row: answers(row) for row in range(12)}
    rows = {r.metrics["trial_id"]: told[r.config["row"]] for r in results}
    conclude(place, search, results, told=rows, again=answers.guarantee().protected)
    answers.close()


def make_curator():
    """A curator whose answers are randomised."""
    from privbo_plugins.sessions.rows import Curator

    X = np.random.default_rng(0).random((12, 2))
    return Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * 2, outcomes=X[:, 0],
        outcome_epsilon=1.0, outcome_range=(0.0, 1.0),
    )  # fmt: skip


def federation_search(vault, agent_vaults):
    """Three agents, two rounds, every database on a server."""
    return federated_scenes.make_search(
        {"n_agents": 3}, agents=["oslo", "bergen", "bodo"], search_space=LINE, vault=vault,
        agent_vaults=agent_vaults, run_name="federation", hosts="agent",
    )  # fmt: skip


def federation_here(place, vault, agent_vaults):
    """A federation."""
    search = federation_search(vault, agent_vaults)
    objective = functools.partial(together, place, 3)
    settings = {"failure": tune.FailureConfig(max_failures=20)}
    results = federated_scenes.start(search, search.private(objective), place, **settings).fit()
    told = {"finished": search.finished(), "left": search.left_out, "host": host_node(search)}
    conclude(place, search, results, **told)


def everybody(folder, address, ip, vault, agent_vaults):
    """All systems but DP-GIBO, one after another in one driver."""
    attach(address, ip)
    for kind in ("rewards", "duets"):
        (Path(folder) / kind).mkdir()
        rewards_here(Path(folder) / kind, kind, vault, 3)
    for name in ("rows", "federation"):
        (Path(folder) / name).mkdir()
    rows_here(Path(folder) / "rows", 3)
    federation_here(Path(folder) / "federation", vault, agent_vaults)
