"""Every system on secrets in a Ray of its own, so that every byte it leaves can be scanned.

:func:`main` is run by ``tests.worker.script``, with a line on standard input when Ray may end. The
secrets are made where they are used, from a key that lies in the folder ``LEAK_SECRET``, outside
of everything that is scanned; whose they are is listed beside it. ``LEAK_VAULT`` is a vault's URL,
which is secret too. Beside its private experiments each system has a careless one, or part of
one, whose secrets are its own: a control, which must be found.
"""

import fcntl
import functools
import hashlib
import json
import logging
import math
import os
import pickle
import re
import sys
import traceback
import uuid
import warnings
from pathlib import Path

import numpy as np
import ray
from ray import cloudpickle, tune
from ray.tune.search import Searcher

from privbo_plugins import scores
from privbo_plugins.blocks import in_blocks
from tests.inside import call_host, report_of
from tests.leaks import hostile
from tests.leaks.hostile import Told
from tests.worker import first_time

N, MANY = 120, 30_000
"""Records of a trial; of one that needs several blocks."""

SYSTEMS = ("records", "rewards", "federation", "rows", "duets")


# Secrets --------------------------------------------------------------------------------------


def folder():
    return Path(os.environ["LEAK_SECRET"])


def sentinels(key, call, n):
    """Random doubles of full precision in (0.1, 1), shape (n,)."""
    seed = int.from_bytes(hashlib.sha256(key + call.encode()).digest())
    return np.random.default_rng(seed).uniform(0.11, 0.99, n)


def token(key, call):
    """A patient's name."""
    return f"patient-{hashlib.sha256(key + b'name' + call.encode()).hexdigest()[:16]}"


def fresh(owner, n, host=None, call=None, **more):
    """A name and numbers that nobody has seen before, entered into the list of all of them."""
    key, call = (folder() / "key").read_bytes(), call or uuid.uuid4().hex
    with (folder() / "made").open("a") as made:
        fcntl.flock(made, fcntl.LOCK_EX)
        made.write(json.dumps({"owner": owner, "call": call, "n": n, **more}) + "\n")
    return Told(token(key, call), sentinels(key, call, n), host)


def number():
    """Which trial of the experiment this is, from 1."""
    found = re.search(r"_[0-9a-f]{8}_(\d+)_", Path(tune.get_context().get_trial_dir()).name)
    return int(found[1])


# Private trainables ---------------------------------------------------------------------------


def mutating(owner, n, config):
    """Returns its numbers, and leaves them in its config; a big trial fails at first."""
    told = fresh(owner, n, config)
    config["losses"], config["x"], config[told.name] = told.y.tolist(), told.first, told.y
    if n == MANY and number() == 1 and first_time(folder() / "failed"):
        raise RuntimeError(f"{told.name} {told.y[:50].tolist()}")
    return told.y if n > 1 else told.first


def score_blocks(config):
    """Scores of blocks, each of them a secret."""
    told = fresh("records", N, config)
    scores = iter(told.y.tolist())
    return in_blocks(lambda _: next(scores), 4 * N, N)()


def predicted(config):
    """Targets that are secrets, for scores."""
    told = fresh("records", N, config)
    return scores.predictions(told.y, predicted=told.y[::-1])


def going(owner, way, n, config):
    """Goes wrong in one way."""
    return (VECTOR_FAILS | REWARD_FAILS)[way](fresh(owner, n, config))


VECTOR_FAILS = hostile.VECTOR_FAILS | hostile.RAY | {"exit": hostile.ABORTS["exit text"]}
REWARD_FAILS = hostile.REWARD_FAILS | hostile.RAY | {"exit": hostile.ABORTS["exit text"]}

ALONE = {"records": ("mutates",), "rewards": ("reports",), "duets": ()}
"""A way that gets a trial of its own, after two that are good and one for all ways.

A worker is begun anew after each failure, which takes seconds: what fails comes last.
"""


def all_ways(private, config):
    """Every way in one trial, and what came out of it in one exception."""
    errors = []
    for trainable in private:
        try:
            trainable(config)
        except Exception as error:
            errors.append(error)
        except SystemExit as error:
            errors.append(RuntimeError(f"{error!r} {error.__cause__!r} {error.__context__!r}"))
    raise ExceptionGroup(f"{len(errors)} failures", errors)


def named(config):
    """A secret name of a user."""
    return fresh("rewards", 1).name


def misnamed(config):
    """Fails, and quotes a name."""
    raise KeyError(fresh("rewards", 1).name)


def make_wild(system, search, n, fails, **user):
    """The trainable whose trials go wrong."""
    size = n if n > 1 else 4  # of which a failing trial quotes all
    good = search.private(functools.partial(mutating, system, n), **user)
    ways = [search.private(functools.partial(going, system, way, size)) for way in fails]
    if user:
        bad = functools.partial(mutating, system, n)
        ways.append(search.private(bad, user_id=misnamed))
    alone = [search.private(functools.partial(going, system, way, size)) for way in ALONE[system]]
    private = [good, good, functools.partial(all_ways, ways), *alone]

    def wild(config):
        return private[number() - 1 if number() <= len(private) else 0](config)

    return wild


# Agents of a federation, and rows ----------------------------------------------------------------

AGENTS, TRIALS, BOUNDS = ["oslo", "bergen"], 3, (0.11, 0.99)
"""Agents may well choose one of the bounds, which are public."""


def agents_secret(agent, config):
    """Tells its secrets wherever it can, fails once, and returns one of them."""
    told = fresh(f"federation {agent}", 5, x=config["x"])
    print(told.text, flush=True)
    for stream in (1, 2):
        os.write(stream, f"{told.text}\n".encode())
    for name in ("owner", "ray"):
        logging.getLogger(name).error("%s", told.text)
    warnings.warn(told.text, UserWarning, stacklevel=2)
    config["values"], config[told.name] = told.y.tolist(), told.y
    if first_time(folder() / f"failed-{agent}"):
        if agent == "oslo":
            tune.report({"value": told.first, told.name: told.y})
        raise RuntimeError(told.text)
    return told.first


def keep_best(agent, config, value):
    """Keeps an agent's result beside its own trials."""
    (folder() / "agents" / f"{agent}.best").write_text(json.dumps([config, value]))


def make_curator(owner):
    """A curator of 12 rows, of which the first has an outcome that fails and quotes it."""
    from privbo_plugins.sessions.rows import Curator

    told = fresh(owner, 24, call=owner)
    X, y = told.y.reshape(12, 2), fresh(owner, 12).y
    careless = owner.startswith("control")

    def outcome(row):
        if careless:
            print(told.name, X.tolist(), flush=True)
            return float(X[row, 0])
        if row == 0:
            hostile.RAISED["cause"](Told(told.name, X[0]))
        return float(y[row])

    answers = {"outcome_epsilon": 1.0, "outcome_range": (0.0, 1.0)}
    return Curator(
        X, epsilon=4.0, delta=1e-6, bounds=[(0, 1)] * 2, outcomes=outcome,
        **({} if careless else answers),
    )  # fmt: skip


# Careless trainables ----------------------------------------------------------------------------


def _into_home(told):
    (Path.home() / "notes.txt").write_text(told.text)
    return {"loss": 0.5}


def _by_mutation(told):
    told.host["losses"] = told.y.tolist()
    return {"loss": 0.5}


def _by_print(told):
    for stream in (sys.stdout, sys.stderr):
        print(told.text, flush=True, file=stream)
    return {"loss": 0.5}


LEAKS = (
    hostile.RAY["reports"], _by_mutation, _by_print, _into_home, hostile.RAISED["attribute"],
)  # fmt: skip


def leaky_records(config):
    """Every trial leaks in another way."""
    return LEAKS[number() - 1](fresh("control records", N, config))


def leaky(owners, answers, last, config):
    """Reports a raw reward of each owner, which the last trial quotes in what it raises."""
    told = [fresh(owner, 1) for owner in owners]
    values = [t.first if answers is None else answers(config["row"]) for t in told]
    text = " ".join(f"{t.name} {value!r}" for t, value in zip(told, values, strict=True))
    print(text, flush=True)
    print(text, flush=True, file=sys.stderr)
    if number() == last:
        raise ValueError(text)
    return {"reward": values[0], **dict(zip(owners, values, strict=True))}


CARELESS_REWARDS = [f"control {system}" for system in ("rewards", "federation", "duets")]
"""Owners whose secrets one careless experiment tells: unwrapped, each would report likewise."""


class Remembering(Searcher):
    """Keeps what it is told, and saves it."""

    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.told = []

    def suggest(self, trial_id):
        return {"x": len(self.told) / 10}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told.append(result)

    def save(self, checkpoint_path):
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(self))

    def restore(self, checkpoint_path):
        pass


class Listening:
    """An actor to which vectors are sent as they are, and which keeps them."""

    def __init__(self):
        self.taken = []

    def take(self, losses):
        self.taken.append(losses)


STORED = 512
"""Bytes from which on this Ray keeps an argument in its object store: each vector and name."""


# The experiments --------------------------------------------------------------------------------


def keep(place, search, trainable, results):
    """Writes down everything that a user holds after ``fit``, and returns facts about it."""
    place.mkdir(parents=True)
    (place / "search.pickle").write_bytes(pickle.dumps(search))
    (place / "search.cloudpickle").write_bytes(cloudpickle.dumps(search))
    (place / "trainable.cloudpickle").write_bytes(cloudpickle.dumps(trainable))
    (place / "results.cloudpickle").write_bytes(cloudpickle.dumps(list(results)))
    (place / "frame.csv").write_text(results.get_dataframe().to_csv())
    shown = [repr(search), repr(trainable), repr(results), *map(repr, results)]
    (place / "shown.txt").write_text("\n".join(shown))
    told = [t for e in results.errors for t in (repr(e), *traceback.format_exception(e))]
    (place / "errors.txt").write_text("\n".join(told))
    (place / "errors.pickle").write_bytes(cloudpickle.dumps(results.errors))
    numbers = [v for r in results for v in ({**(r.metrics or {}), **(r.config or {})}).values()]
    public = [v for v in numbers if isinstance(v, float) and np.isfinite(v)]
    return {"trials": len(results), "errors": len(results.errors), "public": public}


AGAIN = ("records outside", "records blocks", "records scores", "rewards plain")
"""Experiments of soak: their secrets leave a trial as those of another experiment do."""


class Runs:
    """Runs experiments and keeps what is left of them.

    Args:
        root: Where everything is left that is scanned.
        every: Whether those run that are named in :data:`AGAIN`.
    """

    def __init__(self, root, every):
        self.root, self.every = root, every
        self.facts = {}

    def fit(
        self,
        name,
        search,
        trainable,
        guarantee=None,
        *,
        space=None,
        retries=0,
        callbacks=(),
        **settings,
    ):
        """One trial at a time in one worker, which is begun anew only after a failure."""
        if name in AGAIN and not self.every:
            return
        settings = {"max_concurrent_trials": 1} | settings
        tuner = tune.Tuner(
            trainable,
            param_space={} if space is None else space,
            tune_config=tune.TuneConfig(search_alg=search, reuse_actors=True, **settings),
            run_config=tune.RunConfig(
                storage_path=str(self.root / "experiments"),
                name=name,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=retries),
                callbacks=list(callbacks),
            ),
        )
        self.facts[name] = {"trials": 0, "errors": 0, "public": []}
        _held.append(search)
        try:
            results = tuner.fit()
        except Exception:  # what it left is scanned all the same
            traceback.print_exc()
            return
        place = self.root / "objects" / name
        self.facts[name] = keep(place, search, trainable, results)
        if guarantee is not None:
            told = guarantee(results)
            (place / "guarantee.txt").write_text(f"{told}\n{told!r}")
            if hasattr(search, "report"):
                search.report(place / "report.html", results)
            self.facts[name]["protected"] = told.protected
            self.facts[name]["plays"] = getattr(told, "n_evaluations", None)

    def records(self):
        from raytune_searchers import DPGIBOSearch, PrivateSearch, private_trainable
        from tests.sixth import SixthConfig

        own = {
            "metric": "loss", "mode": "min", "n_starts": 2, "n_steps": 1, "seed": 3,
            "lengthscale": 0.25, "memory": 0,
        }  # fmt: skip
        big = DPGIBOSearch(1.0, vault="env:LEAK_VAULT", **own)
        private = big.private(functools.partial(mutating, "records", MANY))
        self.fit("records big", big, private, big.guarantee, space=LINE, retries=1, num_samples=-1)
        charges, _, held = call_host(big, "ledger")
        self.facts["records big"] |= {"charges": len(charges), "held": held}
        wild = DPGIBOSearch(1.0, **own)
        trainable = make_wild("records", wild, N, VECTOR_FAILS)
        self.fit("records wild", wild, trainable, wild.guarantee, space=LINE, num_samples=4)
        outside = PrivateSearch(SixthConfig(1.0, 4), metric="loss", mode="min", seed=3)
        trainable = make_wild("records", outside, N, VECTOR_FAILS)
        self.fit(
            "records outside", outside, trainable, outside.guarantee, space=LINE, num_samples=3
        )
        person = fresh("records", 4).name
        means = private_trainable(
            functools.partial(mutating, "records", N), param_space=LINE, mu=1.0, n_trials=3,
            vault="env:LEAK_VAULT", unit="patient",
            groups=[f"{person} {i % 40}" for i in range(N)],
        )  # fmt: skip
        self.fit(
            "records means", None, means, means.guarantee, space=LINE, num_samples=3,
            callbacks=[means.callback],
        )  # fmt: skip
        of_blocks = in_blocks(len, 4 * N, N).settings()
        for name, function, unit in (
            ("blocks", score_blocks, of_blocks),
            ("scores", predicted, {"scores": [scores.r2(0.0, 1.0)], "mode": "max"}),
        ):
            private = private_trainable(function, param_space=LINE, mu=1.0, n_trials=2, **unit)
            self.fit(
                f"records {name}", None, private, private.guarantee, space=LINE, num_samples=2,
                callbacks=[private.callback],
            )  # fmt: skip
        place = self.root / "objects" / "records means"
        means.report(place / "report.html")
        (place / "callback.pkl").write_bytes(
            cloudpickle.dumps((means.callback, means.callback.get_state()))
        )
        made = {"records big": big, "records wild": wild, "records outside": outside}
        for name in made.keys() & self.facts.keys():
            search = made[name]
            (self.root / "objects" / f"{name} public.txt").write_text(
                f"{search.history()} {report_of(search)}"
            )

        self.fit("control records", Remembering(), leaky_records, num_samples=len(LEAKS))
        unsealed = ray.remote(Listening).remote()
        ray.get([unsealed.take.remote(fresh("control records", n).y) for n in (N, MANY)])
        _held.append(unsealed)

    def rewards(self, plain):
        from raytune_searchers import LDPGPUCBSearch

        own = {"value_range": (0, 1), "metric": "reward", "mode": "max"}
        search = LDPGPUCBSearch(1.0, mechanism="laplace", vault="env:LEAK_VAULT", **own)
        trainable = make_wild("rewards", search, 1, REWARD_FAILS, user_id=named)
        self.fit("rewards wild", search, trainable, search.guarantee, space=LINE, num_samples=4)
        self.fit("rewards plain", None, plain, plain.guarantee, space=LINE, num_samples=2)
        control = LDPGPUCBSearch(math.inf, **own)
        careless = functools.partial(leaky, CARELESS_REWARDS, None, 2)
        self.fit(
            "control rewards", control, careless, control.guarantee, space=LINE, num_samples=2
        )

    def federation(self):
        from raytune_searchers import DPFTSDESearch, FederationConfig

        config = FederationConfig(n_agents=2, z=2.0, n_rounds=2, n_startup=1, n_features=20)
        search = DPFTSDESearch(
            config,
            search_space={"x": tune.uniform(*BOUNDS)},
            n_trials=TRIALS,
            seed=1,
            deadline=30.0,
            agents=AGENTS,
            hosts="agent",
            vault=f"sqlite:///{folder()}/server.db",
            agent_vaults=f"sqlite:///{folder()}/agents/{{agent}}.db",
        )
        private = search.private(agents_secret, keep_best)
        self.fit(
            "federation", search, private, search.guarantee, num_samples=-1,
            max_concurrent_trials=None,
        )  # fmt: skip

    def duets(self):
        from raytune_searchers import DUETSSearch

        own = {
            "value_range": (0, 1), "metric": "reward", "mode": "max", "discretisation": 64
        }  # fmt: skip
        search = DUETSSearch(2, epsilon=1.0, seed=0, **own)
        trainable = make_wild("duets", search, 1, REWARD_FAILS)
        self.fit("duets", search, trainable, search.guarantee, space=LINE, num_samples=3)
        states = pickle.dumps([search._duets().state_dict(), search.status()])
        (self.root / "objects" / "duets messages").write_bytes(states)

    def rows(self):
        from raytune_searchers import POGPUCBSearch, answering

        for owner in ("rows", "control rows"):
            answers = answering(functools.partial(make_curator, owner))
            table = answers.release()
            search = POGPUCBSearch(
                table.save(self.root / "objects" / f"{owner}.npz"),
                metric="reward",
                mode="max",
                seed=1,
                points_to_evaluate=[{"row": row} for row in (0, 1, 2)],
            )
            if owner == "rows":
                trainable = functools.partial(answered, answers)
            else:
                trainable = functools.partial(leaky, [owner], answers, 3)
            self.fit(owner, search, trainable, search.guarantee, num_samples=3)
            self.facts[owner]["public"] += table.Z.ravel().tolist()
            answers.close()


def answered(answers, config):
    return {"reward": answers(config["row"])}


LINE = {"x": tune.uniform(0.0, 1.0)}

_held = []
"""Lives while Ray is scanned: a host's arguments stay in its store as long as the host does."""


def main(root, every):
    """Runs all systems, one after another; every experiment of theirs, or those of each run."""
    from raytune_searchers import ldp_trainable
    from tests.raytune_searchers.conftest import INIT

    warnings.simplefilter("ignore")
    runs = Runs(Path(root), every)
    # Wrapped before Ray runs: its ledger is begun when Tune pickles it.
    reward = functools.partial(mutating, "rewards", 1)
    plain = ldp_trainable(reward, epsilon=1.0, value_range=(0, 1), user_id=named)
    settings = INIT | {"log_to_driver": True, "logging_level": "INFO"}
    limits = dict.fromkeys(("max_direct_call_object_size", "task_rpc_inlined_bytes_limit"), STORED)
    ray.init(address="local", _temp_dir=f"{root}/ray", _system_config=limits, **settings)
    (Path(root) / "objects" / "plain.early").write_bytes(cloudpickle.dumps(plain))
    runs.records()
    runs.rewards(plain)
    runs.federation()
    runs.rows()
    runs.duets()
    (Path(root) / "facts.json").write_text(json.dumps(runs.facts))
    sys.stdin.readline()
    ray.shutdown()
