"""Does a federation help? DP-FTS-DE beside local search and beside a placebo.

Every arm of a problem is run on the same splits, functions and agents' seeds, so differences are
paired; they are shown with their standard errors over the runs. Parts:

- ``epsilons``: the paper's nine printed epsilons, and what other accountants say;
- ``paper``: the published settings on the landmine fields, with a placebo whose server broadcasts
  N(0, I); on linear scales and on logarithmic ones;
- ``default``: this project's default on the landmine fields and on the synthetic problem, beside
  Thompson sampling, local search with the same model, the mechanism's noise without a signal,
  N(0, I), no noise, and other budgets;
- ``likeness``: the default beside local search with the same model, from agents who are alike to
  agents whom the broadcast misleads;
- ``tradeoffs``: the paper's synthetic experiment with q, z, S and P varied;
- ``trust``: a server that sees the agents' noisy sum alone beside one that is trusted, at the same
  epsilon, among agents who are alike;
- ``masks``: what such a round costs each agent and the server, in seconds and bytes;
- ``scale``: time and memory of a round for up to 10 000 agents with 1000 features.

Noise is simulated from seeds.

    python -m benchmarks.federated [--parts paper default ...] [--jobs 2] [--runs 10]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accountants import moments_epsilon, rdp_epsilon
from benchmarks.federated_problems import (
    LIKENESS,
    FederatedProblem,
    available,
    landmine,
    likeness,
    synthetic,
)
from benchmarks.simulation import simulate
from privbo_plugins.algorithms.dp_fts_de import (
    Broadcast,
    FederationConfig,
    PopulationPrior,
    Temperature,
)
from privbo_plugins.federation import Alone, FederatedServer, Link
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.privacy.subsampling import pld_epsilon
from privbo_plugins.sessions.local import LocalLink
from privbo_plugins.spaces import Int, Space

Array = NDArray[np.float64]
Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"

PRINTED = {
    (0.35, 1.0): 15.17, (0.35, 1.6): 7.12, (0.35, 2.0): 5.14, (0.35, 3.0): 3.05,
    (0.35, 4.0): 2.16, (0.10, 1.0): 3.75, (0.15, 1.0): 5.98, (0.20, 1.0): 7.69,
    (0.25, 1.0): 9.82,
}  # fmt: skip
"""(q, z) to the paper's epsilon: N = 29, T = 60, delta = N^-1.1."""

SHOWN = (0, 1, 2, 5, 10, 20, 40, 60)
"""Rounds after the start-up points whose best values are shown."""

NO_CLIP = 1e4
"""A clipping norm that no vector reaches."""

PAPER: Row = {
    "population": "explore",
    "n_startup": 10,
    "lengthscale": 0.01,
    "noise_variance": 1e-6,
    "n_rounds": 60,
}

ARMS: dict[str, Row] = {
    "local TS": {**PAPER, "z": 0.0, "link": "alone"},
    "FTS": {**PAPER, "z": 0.0, "power": 2, "clipping_norm": NO_CLIP},
    "FTS-DE": {**PAPER, "z": 0.0, "n_regions": 4, "clipping_norm": NO_CLIP},
    "DP-FTS": {**PAPER, "z": 1.0, "q": 0.35, "clipping_norm": 11.0},
    "DP-FTS-DE": {**PAPER, "z": 1.0, "q": 0.35, "n_regions": 4, "clipping_norm": 22.0},
    "placebo N(0, I)": {
        **PAPER, "z": 1.0, "q": 0.35, "n_regions": 4, "clipping_norm": 22.0, "link": "normal",
    },
}  # fmt: skip


ROUGH = PopulationPrior(
    level=0.5, level_sd=0.1, shared_lengthscale=0.03, shared_sd=0.22, own_lengthscale=0.03,
    own_sd=0.01, noise_sd=0.022,
)  # fmt: skip
"""What is known of the synthetic functions: how they were drawn."""


SMOOTH = PopulationPrior(
    level=0.5, level_sd=0.1, shared_lengthscale=0.05, shared_sd=0.22, own_lengthscale=0.05,
    own_sd=0.03, noise_sd=0.022,
)  # fmt: skip
"""That agents are alike, which is true of some of the families of likeness only."""


class Placebo:
    """A link whose broadcasts hold no signal.

    Args:
        link: The real one; what it sends is sent.
        spread: Standard deviation of what is received: 1, or None for the mechanism's noise.
        seed: Of the broadcasts.
    """

    def __init__(self, link: Link, spread: float | None, seed: int) -> None:
        self.agent, self.config = link.agent, link.config
        self._link, self._spread, self._seed = link, spread, seed
        self.join, self.submit, self.collect = link.join, link.submit, link.collect
        self.leave, self.guarantee = link.leave, link.guarantee

    def broadcasts(self) -> list[Broadcast]:
        """The same noise for all agents."""
        return [_noise_alone(real, self._spread, self._seed) for real in self._link.broadcasts()]


def _noise_alone(real: Broadcast, spread: float | None, seed: int) -> Broadcast:
    rng = np.random.default_rng([seed, real.round])
    scale = real.noise[:, None] if spread is None else spread
    return Broadcast(real.round, scale * rng.standard_normal(real.weights.shape), real.noise)


def _wrap(kind: str, seed: int) -> Callable[[Link], Link]:
    wraps: dict[str, Callable[[Link], Link]] = {
        "real": lambda link: link,
        "alone": Alone,
        "normal": lambda link: Placebo(link, 1.0, seed),
        "noise": lambda link: Placebo(link, None, seed),
    }
    return wraps[kind]


@cache
def problem(name: str, seed: int) -> FederatedProblem:
    """A problem by name; what it has evaluated is remembered for the next arm."""
    if name == "synthetic":
        return synthetic(seed)
    if name in LIKENESS:
        return likeness(name, seed)
    return landmine(seed, log=name == "landmine, log")


def run(name: str, arm: str, seed: int, settings: Mapping[str, Any], n_rounds: int) -> Row:
    """One arm on one problem: the mean over agents of the best true value so far."""
    given = dict(settings)
    made = problem(name, seed)
    link = _wrap(given.pop("link", "real"), seed)
    paper = {"delta": made.n_agents**-1.1}
    config = FederationConfig(n_agents=made.n_agents, **(paper | given))
    server = FederatedServer(config, noise=InsecureNoise(seed))
    done = simulate(server, made.space, made.evaluate, n_rounds, seed=seed, link=link)
    true = np.array([[made.true(n, x) for x in X] for n, X in enumerate(done.X)])
    best = np.maximum.accumulate(true, axis=1)
    lost = (1.0 if made.best is None else made.best[:, None]) - best
    curve = lost.mean(0)[config.n_startup - 1 :]
    return {
        "problem": name, "arm": arm, "seed": seed, "lost": curve.round(5).tolist(),
        "epsilon": _finite(config.epsilon_after(config.n_rounds)),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def carry_out(task: tuple[str, Row]) -> Row:
    """One task of a part."""
    part, arguments = task
    return RUN[part](**arguments)


# Parts ----------------------------------------------------------------------------------------


def epsilons(_runs: int) -> Iterable[Row]:
    """The paper's nine settings."""
    yield from ({"q": q, "z": z} for q, z in PRINTED)


def run_epsilon(q: float, z: float) -> Row:
    """What each accountant says of 60 rounds among 29 agents."""
    delta = 29**-1.1
    return {
        "q": q, "z": z, "printed": PRINTED[q, z],
        "moments": round(moments_epsilon(q, z, 60, delta), 3),
        "rdp": round(rdp_epsilon(q, z, 60, delta), 3),
        "pld": round(pld_epsilon(q, z, 60, delta), 3),
        "pld, delta = 1/29": round(pld_epsilon(q, z, 60, 1 / 29), 3),
    }  # fmt: skip


def paper(runs: int) -> Iterable[Row]:
    """The published settings."""
    if available("landmine"):
        yield from _arms("landmine, linear", ARMS, runs, 60)
        yield from _arms("landmine, log", ARMS, runs, 60)


def default(runs: int) -> Iterable[Row]:
    """The default, on splits that had no part in choosing it, and on the synthetic problem."""
    local_ts = {**PAPER, "z": 0.0, "n_startup": 1, "link": "alone"}
    arms: dict[str, Row] = {
        "local TS": local_ts,
        "local, same model": {"epsilon": 4.0, "link": "alone"},
        "default": {"epsilon": 4.0},
        "eps = 2": {"epsilon": 2.0},
        "eps = 8": {"epsilon": 8.0},
        "no noise": {"epsilon": math.inf},
        "placebo noise": {"epsilon": 4.0, "link": "noise"},
        "placebo N(0, I)": {"epsilon": 4.0, "link": "normal"},
    }
    if available("landmine"):
        yield from _arms("landmine, log", arms, runs, 20, first=100)
    rough = {"prior": ROUGH, "n_features": 35}
    known = {arm: {**given, **rough} for arm, given in arms.items()}
    known["local TS"] = {**local_ts, "lengthscale": 0.03, "noise_variance": 1e-4}
    yield from _arms("synthetic", known, runs, 20)


def likenesses(runs: int) -> Iterable[Row]:
    """The default, with a prior that says that agents are alike, whether they are or not."""
    given: Row = {"epsilon": 4.0, "prior": SMOOTH, "n_features": 30}
    arms = {"local, same model": {**given, "link": "alone"}, "default": given}
    for kind in LIKENESS:
        yield from _arms(kind, arms, runs, 20, first=1000)


def trust(runs: int) -> Iterable[Row]:
    """What it costs not to trust the server, by how many agents may collude with it."""
    for epsilon, delta in ((4.0, 60**-1.1), (1.0, 1e-5)):
        given: Row = {"epsilon": epsilon, "delta": delta, "prior": SMOOTH, "n_features": 30}
        masked = {**given, "trust": "aggregate"}
        arms = {
            "local, same model": {**given, "link": "alone"},
            "trusted": given,
            "sum alone, c = 1": {**masked, "colluding": 1},
            "sum alone, c = 6": {**masked, "colluding": 6},
            "sum alone, c = 20": {**masked, "colluding": 20},
        }
        arms = {f"{arm}, eps = {epsilon:g}": settings for arm, settings in arms.items()}
        yield from _arms("alike", arms, runs, 10, first=2000)


def masks(_runs: int) -> Iterable[Row]:
    """Growing rosters."""
    yield from ({"n_agents": n} for n in (10, 40, 100, 200, 400))


class _Weighed(LocalLink):
    """A link that adds up what passes it."""

    passed = 0

    def enter(self, keys: Any) -> Any:
        return self._weigh(keys, super().enter(keys))

    def turn(self, asked: Any) -> Any:
        return self._weigh(asked, super().turn(asked))

    def _weigh(self, asked: Any, told: Any) -> Any:
        _Weighed.passed += len(json.dumps(asked)) + len(json.dumps(told))
        return told


def run_masks(n_agents: int) -> Row:
    """One round of 16 numbers with the system's entropy; a tenth of the agents is lost."""
    config = FederationConfig(n_agents, epsilon=4.0, delta=1e-5, trust="aggregate")
    space = Space({"x": Int(0, 999)})
    server = FederatedServer(config, space=space, deadline=3600.0)
    links = [_Weighed(server._agents, n) for n in range(n_agents)]
    _Weighed.passed, lost = 0, n_agents // 10
    vector, began = np.ones(config.message_length), time.perf_counter()
    for link in links:
        link.submit(vector)
    for _ in range(2):  # all hear the keys, and share their secrets
        for masking in list(server._agents.masking.values()):
            masking.step()
    for n in range(lost):
        server._agents.masking.pop(n)
    server._agents.go_round()
    server.close_round()  # nobody waits for their vectors any longer
    agents = time.perf_counter() - began
    server._agents.go_round()
    opening = time.perf_counter() - began - agents
    return {
        "n_agents": n_agents, "n_lost": lost, "released": len(server.broadcasts()),
        "ms_per_agent": round(1000 * agents / n_agents, 2), "seconds_to_open": round(opening, 3),
        "kb_per_agent": round(_Weighed.passed / n_agents / 1000, 1),
    }  # fmt: skip


def _arms(
    name: str, arms: Mapping[str, Row], runs: int, n_rounds: int, first: int = 0
) -> Iterable[Row]:
    """By seed first: a worker remembers what it has evaluated."""
    for seed in range(first, first + runs):
        for arm, settings in arms.items():
            yield {
                "name": name, "arm": arm, "seed": seed, "settings": settings, "n_rounds": n_rounds
            }  # fmt: skip


def tradeoffs(runs: int) -> Iterable[Row]:
    """One setting of the synthetic experiment varied at a time."""
    base = {
        "population": "explore", "lengthscale": 0.03, "noise_variance": 1e-4, "n_startup": 10,
        "temperature": Temperature(15.0, 5, 10), "n_rounds": 40,
        "q": 0.35, "z": 1.0, "n_regions": 2, "clipping_norm": 11.0,
    }  # fmt: skip
    arms: dict[str, Row] = {
        "local TS": {**base, "z": 0.0, "link": "alone"},
        "placebo N(0, I)": {**base, "link": "normal"},
        "FTS": {**base, "z": 0.0, "q": 1.0, "n_regions": 1, "clipping_norm": NO_CLIP},
        "FTS-DE": {**base, "z": 0.0, "q": 1.0, "clipping_norm": NO_CLIP},
    }
    arms |= {f"q = {q}": {**base, "q": q} for q in (0.1, 0.2, 0.35, 0.7)}
    arms |= {f"z = {z}": {**base, "z": z} for z in (0.5, 1.0, 2.0, 4.0)}
    arms |= {f"S = {S}": {**base, "clipping_norm": S} for S in (2.0, 5.0, 11.0, 22.0, 44.0)}
    arms |= {f"P = {P}": {**base, "n_regions": P} for P in (1, 2, 3, 6)}
    yield from _arms("synthetic", arms, runs, 40)


def scale(_runs: int) -> Iterable[Row]:
    """Growing rosters."""
    yield from ({"n_agents": n} for n in (100, 1000, 10_000))


def run_scale(n_agents: int) -> Row:
    """Time and memory of rounds with 1000 features, four regions and the system's entropy."""
    config = FederationConfig(
        n_agents=n_agents, z=1.0, q=0.35, n_rounds=3, population="explore", n_regions=4,
        n_features=1000, lengthscale=0.03, n_startup=10,
    )  # fmt: skip
    times = [time.perf_counter()]
    simulate(
        FederatedServer(config, deadline=None),
        Space({"x": Int(0, 999)}),
        lambda n, x: math.sin(9.0 * x[0] + n),
        3,
        after_round=lambda _: times.append(time.perf_counter()),
    )
    return {
        "n_agents": n_agents,
        "seconds_per_round": [round(t, 3) for t in np.diff(times)[-3:].tolist()],
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


TRADEOFFS = {
    "q =": "share of agents q: more signal, more privacy loss",
    "z =": "noise z: less privacy loss, less signal",
    "S =": "clipping norm S: less distortion, more noise",
    "P =": "regions P: better maps of each, more clipping",
}
"""The letter that is varied in a panel, and what is traded."""

PARTS: dict[str, Callable[[int], Iterable[Row]]] = {
    "epsilons": epsilons,
    "paper": paper,
    "default": default,
    "likeness": likenesses,
    "tradeoffs": tradeoffs,
    "trust": trust,
    "masks": masks,
    "scale": scale,
}
RUN: dict[str, Callable[..., Row]] = {
    "epsilons": run_epsilon,
    "paper": run,
    "default": run,
    "likeness": run,
    "tradeoffs": run,
    "trust": run,
    "masks": run_masks,
    "scale": run_scale,
}


# Tables ---------------------------------------------------------------------------------------


def summarised(rows: list[Row]) -> list[Row]:
    """Means, and paired differences from each problem's local arms and placebos."""
    problems = dict.fromkeys(row["problem"] for row in rows)
    return [line for name in problems for line in _summary(name, rows)]


def _summary(name: str, rows: list[Row]) -> list[Row]:
    curves: dict[str, Array] = {}
    for row in rows:
        if row["problem"] == name:
            old = curves.get(row["arm"], np.empty((0, len(row["lost"]))))
            curves[row["arm"]] = np.vstack([old, row["lost"]])
    against = [arm for arm in curves if arm.startswith(("local", "placebo", "trusted"))]
    epsilon = {row["arm"]: row["epsilon"] for row in rows if row["problem"] == name}
    return [
        {
            "problem": name, "arm": arm, "runs": len(curve), "epsilon": epsilon[arm],
            "lost": _at(curve), "better than": {
                other: _at(curves[other] - curve) for other in against if other != arm
            },
            "curve": curve.mean(0).round(5).tolist(),
            "standard error": _error(curve).round(5).tolist(),
        }
        for arm, curve in curves.items()
    ]  # fmt: skip


def _error(curves: Array) -> Array:
    """Standard error of the mean curve; shape (n_rounds + 1,)."""
    deviation = curves.std(0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1])
    return np.asarray(deviation / math.sqrt(len(curves)))


def _at(curves: Array) -> dict[str, list[float]]:
    """Mean and standard error after the rounds that are shown."""
    error = _error(curves)
    return {
        str(t): [round(float(curves[:, t].mean()), 4), round(float(error[t]), 4)]
        for t in SHOWN
        if t < curves.shape[1]
    }


def show(rows: list[Row]) -> None:
    """One line an arm; a paired difference counts from two standard errors on."""
    for row in rows:
        if "lost" not in row:
            print("  " + ", ".join(f"{k}={v}" for k, v in row.items()))
            continue
        told = " ".join(f"{t}: {m:.4f}±{e:.4f}" for t, (m, e) in row["lost"].items())
        print(f"  {row['problem']:18} {row['arm']:18} eps={row['epsilon']} | {told}")
        for other, gained in row["better than"].items():
            told = " ".join(f"{t}: {m:+.4f}±{e:.4f}" for t, (m, e) in gained.items())
            print(f"  {'':18} {'better than ' + other:32} | {told}")


def picture(part: str, rows: list[Row]) -> None:
    """What is lost over the rounds, a panel for each problem or for each varied setting."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = _panels(part, rows)
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4.2), squeeze=False)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for line in lines:
            _draw(axis, line)
        axis.set(title=title, xlabel="round", yscale="log")
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("lost: mean over agents, +- one standard error")
    figure.tight_layout()
    figure.savefig(RESULTS / f"federated_{part}.png", dpi=110)
    plt.close(figure)


def _panels(part: str, rows: list[Row]) -> dict[str, list[Row]]:
    if part != "tradeoffs":
        return {
            name: [row for row in rows if row["problem"] == name]
            for name in dict.fromkeys(row["problem"] for row in rows)
        }
    common = ("local TS", "placebo N(0, I)", "FTS-DE")
    return {
        title: [row for row in rows if row["arm"] in common or row["arm"].startswith(letter)]
        for letter, title in TRADEOFFS.items()
    }


def _draw(axis: Any, row: Row) -> None:
    curve, error = np.array(row["curve"]), np.array(row["standard error"])
    rounds = np.arange(len(curve))
    label = row["arm"] + (f", eps = {row['epsilon']:.3g}" if row["epsilon"] else "")
    (line,) = axis.plot(rounds, curve, label=label, lw=1.4)
    axis.fill_between(rounds, curve - error, curve + error, color=line.get_color(), alpha=0.15)


def main() -> None:
    """Runs the parts that are asked for and keeps the results of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=10)
    given = parser.parse_args()
    if not available("landmine"):
        print("The landmine data set is not there: its problems are left out.")
    path = RESULTS / "federated.json"
    for part in given.parts:
        tasks = [(part, arguments) for arguments in PARTS[part](given.runs)]
        jobs = 1 if part in ("scale", "masks") else given.jobs
        size = max(1, len({a.get("arm") for _, a in tasks}))
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            found = pool.map(carry_out, tasks, chunksize=size)
            done = list(tqdm(found, total=len(tasks), desc=part))
        results = json.loads(path.read_text()) if path.exists() else {}
        results[part] = summarised(done) if RUN[part] is run else done
        results["machine"] = {"python": platform.python_version(), "numpy": np.__version__}
        path.write_text(json.dumps(results, indent=1) + "\n")
        if RUN[part] is run and part != "trust":
            picture(part, results[part])
        print(f"\n{part}")
        show(results[part])


if __name__ == "__main__":
    main()
