"""Twenty clinics tune together: each keeps its images, points and scores to itself.

Every clinic holds a few handwritten digits (scikit-learn's, dealt by a Dirichlet draw, so that
some clinics see mostly sevens) and tunes a support vector classifier on them in an Optuna study
of its own, here in a thread. A trusted server, which they reach over TLS as they would from other
machines, mixes one short vector from each, once, under user-level differential privacy; every
clinic reads the broadcast as a prior. With ``--trust aggregate`` the server sees the clinics'
noisy sum alone. Run it with ``make demo-federated`` or
``python -m examples.demo_federated``; it writes ``demo-federated.png`` (scores against trials) and
``demo-federated/`` (one database a clinic, each clinic's own, and the server's).
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from tqdm import tqdm

from optuna_samplers import DPFTSDESampler, FederatedServer, FederationConfig
from privbo_plugins import Float, Space
from privbo_plugins.federation import Alone, connect

Array = NDArray[np.float64]

SPACE = {
    "C": FloatDistribution(1e-2, 1e3, log=True),
    "gamma": FloatDistribution(1e-5, 1e2, log=True),
}
PUBLIC = Space({"C": Float(1e-2, 1e3, log=True), "gamma": Float(1e-5, 1e2, log=True)})


@cache
def clinics(n: int) -> list[tuple[Array, Array, Array, Array]]:
    """X_train, X_valid, y_train, y_valid of each clinic; digits dealt by a Dirichlet draw."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    owner = np.empty(len(y), dtype=int)
    for digit in range(10):
        mine = np.flatnonzero(y == digit)
        owner[mine] = rng.choice(n, size=len(mine), p=rng.dirichlet(np.full(n, 2.0)))
    return [
        tuple(train_test_split(X[owner == k], y[owner == k], test_size=0.5, random_state=0))
        for k in range(n)
    ]


def accuracy_of(data: tuple[Array, Array, Array, Array]) -> Callable[[optuna.Trial], float]:
    """One clinic's objective: accuracy on its own validation images."""
    X_train, X_valid, y_train, y_valid = data

    def objective(trial: optuna.Trial) -> float:
        model = SVC(
            C=trial.suggest_float("C", 1e-2, 1e3, log=True),
            gamma=trial.suggest_float("gamma", 1e-5, 1e2, log=True),
        )
        return float(model.fit(X_train, y_train).score(X_valid, y_valid))

    return objective


def best_so_far(studies: Sequence[optuna.Study]) -> Array:
    """Mean over clinics of the best accuracy after each trial, shape (trials,)."""
    values = np.array([[trial.value for trial in study.trials] for study in studies])
    return np.asarray(np.maximum.accumulate(values, axis=1).mean(0))


def joined(n: int, invitation: str, seed: int, folder: Path) -> optuna.Study:
    """Clinic n's own study, and its way to the server."""
    sampler = DPFTSDESampler(connect(invitation), search_space=SPACE, seed=seed)
    return optuna.create_study(
        study_name=f"clinic-{n}",
        storage=f"sqlite:///{folder}/clinic-{n}.db",
        direction="maximize",
        sampler=sampler,
    )


def main() -> None:
    """Runs the federation, then the same clinics alone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epsilon", type=float, default=4.0, help="user-level, of all rounds")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--trust", choices=("server", "aggregate"), default="server")
    parser.add_argument("--clinics", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15, help="trials after the first one")
    parser.add_argument("--seed", type=int, default=0, help="drives points, never noise")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for picture and studies")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = arguments.out / "demo-federated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    N = arguments.clinics
    objectives = [accuracy_of(data) for data in clinics(N)]

    config = FederationConfig(
        n_agents=N, epsilon=arguments.epsilon, delta=arguments.delta, trust=arguments.trust
    )
    server = FederatedServer(config, space=PUBLIC, vault=f"sqlite:///{folder}/server.db")
    where = server.listen()
    n_trials = arguments.rounds + 1
    print(f"{N} clinics, {n_trials} trials each; the server listens on {where}")

    def take_part(n: int) -> optuna.Study:
        study = joined(n, server.invitation(n), arguments.seed, folder)
        study.optimize(objectives[n], n_trials, callbacks=[lambda *_: progress.update()])
        return study

    with ThreadPoolExecutor(N) as pool, tqdm(total=N * n_trials, desc="together") as progress:
        studies = list(pool.map(take_part, range(N)))
    print("\nRecommended:", f"clinic 0: {studies[0].best_params}")
    print("\nGuarantee:", server.guarantee())
    server.close()

    alone = []
    for n, objective in enumerate(tqdm(objectives, desc="the same clinics alone")):
        sampler = DPFTSDESampler(Alone(server.connect(n)), search_space=SPACE, seed=arguments.seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.optimize(objective, n_trials=arguments.rounds + 1)
        alone.append(study)
    show(best_so_far(studies), best_so_far(alone), arguments.out / "demo-federated.png")


def show(federated: Array, alone: Array, path: Path) -> None:
    """A table of the first trials and a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    print("\nNOT PRIVATE, shown because this is a demo on public data:")
    print("  mean over clinics of the best accuracy so far")
    for trial in [t for t in (1, 2, 3, 5, 8, 12, 16, 20) if t <= len(federated)]:
        print(f"  after trial {trial:2}: federated {federated[trial - 1]:.4f}", end="   ")
        print(f"alone {alone[trial - 1]:.4f}")
    figure, axis = plt.subplots(figsize=(7, 4))
    trials = np.arange(1, len(federated) + 1)
    axis.plot(trials, federated, marker="o", label="federated, one private broadcast")
    axis.plot(trials, alone, marker="o", label="each clinic alone")
    axis.set_xlabel("trials of each clinic")
    axis.set_ylabel("best accuracy so far, mean over clinics")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"\nPicture: {path}")


if __name__ == "__main__":
    main()
