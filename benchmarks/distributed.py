"""Many agents, little talk: what DUETS costs in regret, in numbers sent and in time.

    python -m benchmarks.distributed [--parts figure communication private tuner] [--jobs 2]

* ``figure``: the paper's figure 1: h1, h2, Branin and Hartmann-4, N = 10, T = 50, noise .2, every
  algorithm at every width of the grid. As in the authors' code 2000 random points are the domain
  of all algorithms, and regret counts against the best of them; Hartmann-4 also on their scale.
* ``communication``: numbers sent for N in 5 ... 100 and T in 50 ... 400, and fitted exponents.
* ``private``: LDP-DUETS over epsilon, beside LDP-GP-UCB and random choice.
* ``tuner``: a scikit-learn model with 8 workers, beside other samplers and searchers.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import ApproxDisKernelUCB, DisKernelUCB, NKernelUCB
from benchmarks.distributed_problems import Problem, domain_of, problem
from benchmarks.tasks import Row, Task, carried_out
from privbo_plugins.algorithms.duets import (
    Communication,
    Domain,
    DUETSConfig,
    FinitePoints,
    make_agents,
)
from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.gp_ucb import GPUCB
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.models.kernels import RBF
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"

N, T, NOISE, CANDIDATES = 10, 50, 0.2, 2000
BETAS = (0.2, 0.5, 1.0, 2.0, 5.0)
PROBLEMS = ("h1", "h2", "branin", "hartmann4_raw", "hartmann4")

MEASURED = {
    "branin": {"random": "528", "DUETS": "75", "N-KernelUCB": "60-82", "DisKernelUCB": "59-63"},
    "hartmann4_raw": {
        "random": "1217",
        "DUETS": "338",
        "N-KernelUCB": "836-897",
        "DisKernelUCB": "271-507",
    },
}
"""Cumulative regrets measured earlier with the authors' own code."""

RUNS = {"figure": 10, "communication": 3, "private": 10, "tuner": 3}


# What an agent meets ----------------------------------------------------------------------------


class World:
    """A problem, its domain, and what was lost so far.

    Args:
        name: The problem.
        seed: Of candidates and rewards' noise.
        whole: Whether the whole domain is evaluated instead of random candidates.
        privatise: From a noisy reward to what the agent is told.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        *,
        whole: bool = False,
        privatise: Callable[[float], float] = float,
    ) -> None:
        self.problem: Problem = problem(name, seed)
        self._rng = np.random.default_rng([seed, 1])
        self.U = self.problem.uniform(CANDIDATES, self._rng)
        self.domain: Domain = domain_of(self.problem) if whole else FinitePoints(self.U)
        best = float(self.problem.f(self.U).max())
        self.best = self.problem.optimum if whole else best
        self._privatise = privatise
        self.lost: list[float] = []

    def evaluation(self, X: Array) -> list[float]:
        """What agents observe at points (n, D)."""
        f = self.problem.f(X)
        self.lost += (self.best - f).tolist()
        noisy = f + NOISE * self._rng.standard_normal(len(X))
        return [self._privatise(float(y)) for y in noisy]

    def regret(self, n_agents: int) -> list[float]:
        """Cumulative regret of all agents after each time step."""
        steps = np.array(self.lost).reshape(-1, n_agents).sum(1)
        return [round(float(total), 2) for total in np.cumsum(steps)]


def run_duets(world: World, config: DUETSConfig, seed: int) -> tuple[Communication, list[Row]]:
    """Server and agents to the end of the horizon; rewards in time steps of all agents."""
    server, agents = make_agents(config, world.domain, seed, together=True)
    facts: list[Row] = []
    while not server.public_state.finished:
        X = np.stack([agent.points for agent in agents])  # (N, T_j, D)
        for t in range(server.public_state.T_j):
            for agent, reward in zip(agents, world.evaluation(X[:, t]), strict=True):
                agent.tell(t, reward)
        if server.public_state.last:
            server.public_state.skip()
            break
        message = server.inducing_set()
        for agent in agents:
            server.receive(agent.upload(message))
        broadcast = server.close()
        for agent in agents:
            agent.hear(broadcast)
        left = round(server.public_state.active.share, 6)
        facts.append(
            {"t": server.public_state.evaluated, "m": len(broadcast.v_bar), "share": left}
        )
    return server.communication, facts


def run_baseline(world: World, kind: str, beta: float, seed: int) -> Communication:
    """One of the algorithms of Li et al. (2022)."""
    rng = np.random.default_rng([seed, 2])
    kernel, settings = RBF(world.problem.lengthscale), {"beta": beta, "lam": NOISE**2}
    algorithm: NKernelUCB | DisKernelUCB | ApproxDisKernelUCB
    if kind == "N-KernelUCB":
        algorithm = NKernelUCB(kernel, world.U, N, rng=rng, **settings)
    elif kind == "DisKernelUCB":
        algorithm = DisKernelUCB(kernel, world.U, N, D=10.0, rng=rng, **settings)
    else:
        algorithm = ApproxDisKernelUCB(kernel, world.U, N, D=20.0, q=1.0, rng=rng, **settings)
    for _ in range(T):
        for agent in range(N):
            x = algorithm.ask(agent)
            algorithm.tell(agent, x, world.evaluation(x[None])[0])
        algorithm.end_round()
    return algorithm.communication


def ours(lengthscale: float, **more: Any) -> DUETSConfig:
    """The default with T_1 = 2 as published, playing the best point last, as regret asks for."""
    settings: Row = {"n_agents": N, "n_trials": N * T, "final": "best", "first_epoch": 2} | more
    return DUETSConfig(lengthscale=lengthscale, **settings)


# The paper's figure -----------------------------------------------------------------------------

BASELINES = ("N-KernelUCB", "DisKernelUCB", "ApproxDisKernelUCB")


def figure(runs: int) -> Iterable[Row]:
    """Every algorithm at every width; ours also at its own width, and on the whole domain."""
    for name, seed in product(PROBLEMS, range(runs)):
        yield {"name": name, "kind": "random", "beta": None, "seed": seed}
        for kind, beta in product((*BASELINES, "DUETS", "ours", "ours, T1=1"), BETAS):
            yield {"name": name, "kind": kind, "beta": beta, "seed": seed}
        for kind in ("ours", "ours, T1=1", "ours, whole domain"):
            yield {"name": name, "kind": kind, "beta": None, "seed": seed}


def run_figure(name: str, kind: str, beta: float | None, seed: int) -> Row:
    """One run."""
    world = World(name, seed, whole=kind.endswith("whole domain"))
    facts: list[Row] = []
    if kind == "random":
        rng = np.random.default_rng([seed, 3])
        for _ in range(T):
            world.evaluation(world.U[rng.integers(CANDIDATES, size=N)])
        sent = Communication(N)
    elif kind in BASELINES:
        sent = run_baseline(world, kind, float(beta or 0), seed)
    else:
        sent, facts = run_duets(world, _config(world.problem.lengthscale, kind, beta), seed)
    return {"regret": world.regret(N), **sent.to_dict(), "epochs": facts}


def _config(lengthscale: float, kind: str, beta: float | None) -> DUETSConfig:
    if kind == "DUETS":
        return DUETSConfig.paper(N, T, lengthscale=lengthscale, beta=beta, noise_ratio=NOISE**2)
    first = 1 if kind == "ours, T1=1" else 2
    return ours(lengthscale, first_epoch=first, beta=beta)


# Communication ----------------------------------------------------------------------------------

AGENTS, HORIZONS = (5, 10, 20, 50, 100), (50, 100, 200, 400)


def communication(runs: int) -> Iterable[Row]:
    """Numbers sent, on the problems with a continuous domain of few dimensions."""
    for name, kind, agents, horizon, seed in product(
        ("branin", "hartmann4"), ("ours", "DUETS"), AGENTS, HORIZONS, range(runs)
    ):
        yield {"name": name, "kind": kind, "agents": agents, "horizon": horizon, "seed": seed}


def run_communication(name: str, kind: str, agents: int, horizon: int, seed: int) -> Row:
    """One run on the whole domain."""
    world = World(name, seed, whole=True)
    length = world.problem.lengthscale
    if kind == "DUETS":
        config = DUETSConfig.paper(
            agents, horizon, lengthscale=length, beta=0.5, noise_ratio=NOISE**2
        )
    else:
        config = ours(length, n_agents=agents, n_trials=agents * horizon)
    sent, _ = run_duets(world, config, seed)
    total = world.regret(agents)[-1]
    return {**sent.to_dict(), "plays": agents * horizon, "regret": total}


def exponents(rows: list[tuple[Row, Row]]) -> list[Row]:
    """The powers of N and T that numbers sent and regret grow with, by least squares on logs."""
    found = []
    for name, kind in sorted({(task["name"], task["kind"]) for task, _ in rows}):
        own = [(t, r) for t, r in rows if (t["name"], t["kind"]) == (name, kind)]
        A = np.array([[1.0, math.log(t["agents"]), math.log(t["horizon"])] for t, _ in own])
        row: Row = {"problem": name, "algorithm": kind}
        for label, key in (("sent", "per_agent"), ("all uploads", "up"), ("regret", "regret")):
            y = np.log([max(r[key], 1e-9) for _, r in own])
            fit = np.linalg.lstsq(A, y, rcond=None)[0]
            row[label] = {"N": round(float(fit[1]), 3), "T": round(float(fit[2]), 3)}
        found.append(row)
    return found


# Privacy ----------------------------------------------------------------------------------------

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, None)
PRIVATE_AGENTS, PRIVATE_HORIZON = 50, 40

SEQUENTIAL, SEQUENTIAL_RUNS = (1.0, 4.0, None), 3
"""Of LDP-GP-UCB, which takes half a minute a run."""


def private(runs: int) -> Iterable[Row]:
    """2000 evaluations under eps-LDP."""
    for name, seed in product(("branin", "hartmann4"), range(runs)):
        yield {"name": name, "kind": "random", "epsilon": None, "seed": seed}
        for epsilon in EPSILONS:
            for kind in ("LDP-DUETS", "LDP-DUETS, T1=1"):
                yield {"name": name, "kind": kind, "epsilon": epsilon, "seed": seed}
            if epsilon in SEQUENTIAL and seed < SEQUENTIAL_RUNS:
                yield {"name": name, "kind": "LDP-GP-UCB", "epsilon": epsilon, "seed": seed}


def value_range(name: str) -> tuple[float, float]:
    """What is public of one reward: a range that noise of .2 rarely leaves near the optimum."""
    return (-2.0, 1.5) if name == "branin" else (-2.0, 3.5)


def run_private(name: str, kind: str, epsilon: float | None, seed: int) -> Row:
    """One run; noise is a test source's, so that runs can be repeated."""
    low, high = value_range(name)
    mechanism = None
    if epsilon is not None:
        mechanism = make_mechanism(epsilon, value_range=(low, high), mechanism="hybrid")
    noise = InsecureNoise(seed)

    def privatise(y: float) -> float:
        clipped = min(max(y, low), high)
        return clipped if mechanism is None else mechanism.randomize(clipped, noise, low)

    world = World(name, seed, whole=True, privatise=privatise)
    known = {"low": low, "high": high, "noise": None if mechanism is None else mechanism.noise}
    if kind == "random":
        X = world.problem.uniform(PRIVATE_AGENTS * PRIVATE_HORIZON, np.random.default_rng(seed))
        world.evaluation(X)
    elif kind.startswith("LDP-DUETS"):
        length, first = world.problem.lengthscale, 1 if kind.endswith("T1=1") else 2
        many: Row = {
            "n_agents": PRIVATE_AGENTS, "n_trials": PRIVATE_AGENTS * PRIVATE_HORIZON
        }  # fmt: skip
        more = many | known | {"first_epoch": first}
        run_duets(world, ours(length, **more), seed)
    else:
        run_sequential(world, UCBConfig(**_settings(world, known)), seed)
    return {"regret": world.regret(PRIVATE_AGENTS)[-1]}


def _settings(world: World, known: Mapping[str, Any]) -> dict[str, Any]:
    evaluations = PRIVATE_AGENTS * PRIVATE_HORIZON
    length, own = world.problem.lengthscale, NOISE**2
    return {**known, "n_trials": evaluations, "lengthscale": length, "noise_moment": own}


def run_sequential(world: World, config: UCBConfig, seed: int) -> None:
    """One reward after another, each told at once: no agent waits, everything is sent."""
    space = Space({f"x{i}": Float(0.0, 1.0) for i in range(world.problem.d)})
    algorithm = GPUCB(config, space, seed=seed)
    for t in range(PRIVATE_AGENTS * PRIVATE_HORIZON):
        evaluation = algorithm.ask(t)
        x = Evaluation(np.zeros(len(space))).x if evaluation is None else evaluation.x
        algorithm.tell(Evaluation(x), world.evaluation(x[None])[0])


# A real model -----------------------------------------------------------------------------------


def tuner(runs: int) -> Iterable[Row]:
    """Every sampler and searcher that is installed."""
    from benchmarks.distributed_tuner import contestants

    for seed, (host, kind) in product(range(runs), contestants()):
        yield {"host": host, "kind": kind, "seed": seed}


def run_tuner(host: str, kind: str, seed: int) -> Row:
    """One study or experiment."""
    from benchmarks.distributed_tuner import tuned

    return tuned(host, kind, seed)


PARTS: dict[str, tuple[Callable[[int], Iterable[Row]], Callable[..., Row]]] = {
    "figure": (figure, run_figure),
    "communication": (communication, run_communication),
    "private": (private, run_private),
    "tuner": (tuner, run_tuner),
}


def carry_out(task: Task) -> Row:
    """One task, in a process of its own."""
    part, arguments = task
    return PARTS[part][1](**arguments)


# Tables -----------------------------------------------------------------------------------------

Results = list[tuple[Row, Row]]


def _grouped(rows: Results, *keys: str) -> dict[tuple[Any, ...], list[tuple[Row, Row]]]:
    groups: dict[tuple[Any, ...], list[tuple[Row, Row]]] = {}
    for task, row in rows:
        groups.setdefault(tuple(task[key] for key in keys), []).append((task, row))
    return groups


def _mean(values: Iterable[float]) -> list[float]:
    """Mean and standard error."""
    x = np.array(list(values), dtype=float)
    error = float(x.std(ddof=1)) / math.sqrt(len(x)) if len(x) > 1 else 0.0
    return [round(float(x.mean()), 3), round(error, 3)]


def figure_table(rows: Results) -> list[Row]:
    """One row a problem, algorithm and width; the best width of the grid is marked."""
    table = []
    for (name, kind, beta), group in _grouped(rows, "name", "kind", "beta").items():
        curve = np.mean([row["regret"] for _, row in group], axis=0)
        table.append(
            {
                "problem": name,
                "algorithm": kind,
                "beta": beta,
                "regret": _mean(row["regret"][-1] for _, row in group),
                "reals": _mean(row["per_agent"] for _, row in group),
                "curve": [round(float(v), 2) for v in curve],
                "runs": len(group),
            }
        )
    for row in table:
        rivals = [r["regret"][0] for r in table if _rivals(r, row)]
        row["best of the grid"] = row["beta"] is not None and row["regret"][0] == min(rivals)
    return table


def _rivals(a: Row, b: Row) -> bool:
    same = all(a[key] == b[key] for key in ("problem", "algorithm"))
    return same and a["beta"] is not None


def communication_table(rows: Results) -> list[Row]:
    """Means, then exponents."""
    table = [
        {
            "problem": name,
            "algorithm": kind,
            "N": agents,
            "T": horizon,
            "reals": _mean(row["per_agent"] for _, row in group),
            "regret": _mean(row["regret"] for _, row in group),
        }
        for (name, kind, agents, horizon), group in _grouped(
            rows, "name", "kind", "agents", "horizon"
        ).items()
    ]
    return [*table, {"exponents": exponents(rows)}]


def private_table(rows: Results) -> list[Row]:
    """Means by epsilon."""
    return [
        {
            "problem": name,
            "algorithm": kind,
            "epsilon": epsilon,
            "regret": _mean(row["regret"] for _, row in group),
            "runs": len(group),
        }
        for (name, kind, epsilon), group in _grouped(rows, "name", "kind", "epsilon").items()
    ]


def tuner_table(rows: Results) -> list[Row]:
    """Means by host and sampler."""
    return [
        {
            "host": host,
            "algorithm": kind,
            **{key: _mean(row[key] for _, row in group) for key in group[0][1]},
            "runs": len(group),
        }
        for (host, kind), group in _grouped(rows, "host", "kind").items()
    ]


TABLES: dict[str, Callable[[Results], list[Row]]] = {
    "figure": figure_table,
    "communication": communication_table,
    "private": private_table,
    "tuner": tuner_table,
}


def show(part: str, table: list[Row]) -> None:
    """One line a row; of the figure the best width only."""
    for row in table:
        if part == "figure" and row["beta"] is not None and not row["best of the grid"]:
            continue
        left_out = ("curve", "best of the grid")
        print("  " + ", ".join(f"{k} {_told(v)}" for k, v in row.items() if k not in left_out))
    if part == "figure":
        print(f"  measured earlier with the authors' code: {json.dumps(MEASURED)}")


def _told(value: Any) -> str:
    if isinstance(value, list) and len(value) == 2 and not isinstance(value[0], dict):
        return f"{value[0]:.4g} +- {value[1]:.2g}"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


# Pictures ---------------------------------------------------------------------------------------


def figure_picture(table: list[Row]) -> None:
    """Regret over time, and numbers sent: a column a problem."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["problem"] for row in table))
    picture, axes = plt.subplots(2, len(names), figsize=(3.6 * len(names), 6.4), squeeze=False)
    for column, name in enumerate(names):
        shown = [r for r in table if r["problem"] == name and _drawn(r)]
        for i, row in enumerate(shown):
            label = (
                row["algorithm"] if row["beta"] is None else f"{row['algorithm']} ({row['beta']})"
            )
            axes[0][column].plot(range(1, T + 1), row["curve"], color=f"C{i}", label=label)
            axes[1][column].bar(i, max(row["reals"][0], 0.1), color=f"C{i}")
        axes[0][column].set(title=name, xlabel="time step")
        axes[0][column].legend(fontsize=6)
        axes[1][column].set(yscale="log", xticks=[])
    axes[0][0].set_ylabel("cumulative regret of all agents")
    axes[1][0].set_ylabel("real numbers sent, per agent")
    picture.tight_layout()
    picture.savefig(RESULTS / "distributed_figure.png", dpi=110)
    plt.close(picture)


def _drawn(row: Row) -> bool:
    if row["algorithm"] in ("random", "ours, whole domain"):
        return False
    return bool(row["best of the grid"]) or row["beta"] is None


def communication_picture(table: list[Row]) -> None:
    """Numbers sent against N and against T."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in table if "N" in row]
    picture, axes = plt.subplots(1, 2, figsize=(9, 4))
    for panel, over, fixed, value in ((axes[0], "N", "T", 200), (axes[1], "T", "N", 20)):
        for name, kind in sorted({(row["problem"], row["algorithm"]) for row in rows}):
            own = [
                r for r in rows if (r["problem"], r["algorithm"], r[fixed]) == (name, kind, value)
            ]
            x, y = [r[over] for r in own], [r["reals"][0] for r in own]
            panel.plot(x, y, marker="o", label=f"{kind}, {name}")
        panel.set(xscale="log", yscale="log", xlabel=f"{over} ({fixed} = {value})")
        panel.legend(fontsize=7)
    axes[0].set_ylabel("real numbers sent, per agent")
    picture.tight_layout()
    picture.savefig(RESULTS / "distributed_communication.png", dpi=110)
    plt.close(picture)


def private_picture(table: list[Row]) -> None:
    """Regret over epsilon."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["problem"] for row in table))
    picture, axes = plt.subplots(1, len(names), figsize=(4.6 * len(names), 4), squeeze=False)
    for panel, name in zip(axes[0], names, strict=True):
        own = [row for row in table if row["problem"] == name]
        for i, kind in enumerate(dict.fromkeys(row["algorithm"] for row in own)):
            rows = [r for r in own if r["algorithm"] == kind]
            known = [(r["epsilon"], *r["regret"]) for r in rows if r["epsilon"] is not None]
            without = [r["regret"][0] for r in rows if r["epsilon"] is None]
            if known:
                x, y, e = zip(*known, strict=True)
                panel.errorbar(x, y, e, marker="o", capsize=2, color=f"C{i}", label=kind)
            panel.axhline(without[0], ls=":", color=f"C{i}", label=f"{kind}, no privacy")
        panel.set(title=name, xscale="log", xlabel="epsilon of one reward")
        panel.legend(fontsize=7)
    axes[0][0].set_ylabel("cumulative regret of 2000 evaluations")
    picture.tight_layout()
    picture.savefig(RESULTS / "distributed_private.png", dpi=110)
    plt.close(picture)


PICTURES: dict[str, Callable[[list[Row]], None]] = {
    "figure": figure_picture,
    "communication": communication_picture,
    "private": private_picture,
}


def main() -> None:
    """Runs the parts that are asked for and keeps the results of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, help="of each arm; by part if not given")
    parser.add_argument("--keep", type=Path, help="file of finished runs; they are not repeated")
    given = parser.parse_args()
    path = RESULTS / "distributed.json"
    for part in given.parts:
        tasks = [(part, task) for task in PARTS[part][0](given.runs or RUNS[part])]
        alone = part == "tuner"
        rows = carried_out(tasks, carry_out, jobs=given.jobs, kept=given.keep, alone=alone)
        done = list(zip((task for _, task in tasks), rows, strict=True))
        table = TABLES[part](done)
        results = json.loads(path.read_text()) if path.exists() else {}
        results[part] = table
        results["machine"] = {"python": platform.python_version(), "numpy": np.__version__}
        path.write_text(json.dumps(results, indent=1) + "\n")
        if part in PICTURES:
            PICTURES[part](table)
        print(f"\n{part}")
        show(part, table)


if __name__ == "__main__":
    main()
