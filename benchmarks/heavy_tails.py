"""Losses with heavy tails: what to return to a private sampler, and with which bounds.

Nine tuning problems: log loss of classifiers on scikit-learn's data, squared error of regressions
on diabetes and on data with outliers. Where two parameters are tuned, models are trained on a grid
and their outputs interpolated in between, so that a run costs milliseconds; runs are ``DPGIBO``
itself on its own plan, with numpy's noise. Arms that answer the same seed see the same split,
designs and standard normal draws.

Reported is the excess of the true mean validation loss over the least on a grid
(``krr4-diabetes``: over the least that a search without privacy finds). The true loss is log loss
without any bound, or squared error over the training targets' squared spread; where data are
simulated, against the signal instead of targets with outliers. ``bias`` is the excess where the
arm's own mean loss is least, without privacy.

Recipes were chosen on other splits (seeds 0 to 11), and on none of ``gb-digits``,
``krr4-diabetes`` and ``krr-skewed``.

    python -m benchmarks.heavy_tails [--seeds 20] [--jobs 1] [--problems gb-cancer ...]
"""

from __future__ import annotations

import argparse
import json
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.simulation import followed
from benchmarks.tasks import Row, Task, carried_out
from privbo_plugins import losses
from privbo_plugins.algorithms.dp_gibo.algorithm import DPGIBO
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.plan import Plan, make_plan
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]
Loss = Callable[[Array], Array]
"""From a model's outputs (n, K) to one loss a record (n,)."""

Outputs = NDArray[np.float32]
Split = tuple[Array, Array, Array, Array]
"""Training inputs and targets, validation inputs and targets."""

RESULTS = Path(__file__).parent / "results"
MUS = (1.0, 0.3, 0.1)
FIRST: dict[str, Any] = {
    "n_steps": 25,
    "clipping_norm": 1.0,
    "lengthscale": 0.35,
    "step_size": 1 / 25,
}
"""Plans of version 0.1, which settings of an arm change."""

FIRST_SEED = 100


# Problems ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Tuning:
    """Some parameters, tuned on n validation records.

    Attributes:
        outputs: Log-odds, logits or predictions on a grid, shape (g, h, n, K), or a function
            from the unit cube to them.
        targets: Labels 0 ... K - 1, or targets; shape (n,).
        truth: What the true loss compares with: the targets, or the signal behind them.
        y_range: Public range of the targets of a regression; None for labels.
        spread: Their standard deviation in training, by quantiles.
        d: Number of parameters.
    """

    outputs: Outputs | Callable[[Array], Array]
    targets: Array
    truth: Array
    y_range: tuple[float, float] | None = None
    spread: float = 1.0
    d: int = 2

    @property
    def space(self) -> Space:
        """The unit cube."""
        return Space({f"u{j}": Float(0.0, 1.0) for j in range(self.d)})

    def some(self, points: int) -> list[Array]:
        """Where the least of a mean is looked for: a grid, or 64 random points."""
        if not callable(self.outputs):
            axis = np.linspace(0, 1, points).tolist()
            return [np.array(u) for u in product(axis, repeat=2)]
        return list(np.random.default_rng(0).uniform(0, 1, (64, self.d)))

    def at(self, u: Array) -> Array:
        """A model's outputs at a point of the unit cube, shape (n, K)."""
        if callable(self.outputs):
            return self.outputs(u)
        (i, s), (j, t) = (_cell(x, g) for x, g in zip(u, self.outputs.shape[:2], strict=True))
        F = self.outputs
        low = (1 - t) * F[i, j].astype(float) + t * F[i, j + 1]
        high = (1 - t) * F[i + 1, j].astype(float) + t * F[i + 1, j + 1]
        return np.asarray((1 - s) * low + s * high)

    def true_mean(self, u: Array) -> float:
        """What tuning is for; a secret."""
        outputs = self.at(u)
        if self.y_range is None:
            return float(_log_loss(outputs, self.targets).mean())
        return float(((outputs[:, 0] - self.truth) ** 2).mean() / self.spread**2)


def _cell(x: float, g: int) -> tuple[int, float]:
    place = float(x) * (g - 1)
    first = min(int(place), g - 2)
    return first, place - first


def _log_loss(outputs: Array, labels: Array) -> Array:
    """From logits, and so without a floor."""
    logits = outputs if outputs.shape[1] > 1 else np.hstack([0 * outputs, outputs])
    logits = logits - logits.max(1, keepdims=True)
    own = logits[np.arange(len(labels)), labels.astype(int)]
    return np.asarray(np.log(np.exp(logits).sum(1)) - own)


def _probabilities(outputs: Array) -> Array:
    logits = outputs if outputs.shape[1] > 1 else np.hstack([0 * outputs, outputs])
    P = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(P / P.sum(1, keepdims=True))


def _split(data: tuple[Array, Array], n_train: int, n_records: int, seed: int) -> Split:
    X, y = data
    order = np.random.default_rng(seed).permutation(len(y))
    train, valid = order[:n_train], order[n_train : n_train + n_records]
    return X[train], y[train], X[valid], y[valid]


def _logistic(X: Array, y: Array, V: Array, s: Array, Cs: Array, gammas: Array) -> Tuning:
    """Logistic regression on random Fourier features: C and gamma."""
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import LogisticRegression

    cells = []
    for C, gamma in product(Cs, gammas):
        features = RBFSampler(gamma=gamma, n_components=100, random_state=0).fit(X)
        model = LogisticRegression(C=C, max_iter=100).fit(10 * features.transform(X), y)
        cells.append(model.decision_function(10 * features.transform(V)).reshape(len(s), -1))
    grid = np.array(cells, dtype=np.float32).reshape(len(Cs), len(gammas), len(s), -1)
    return Tuning(grid, s, s)


def logistic_cancer(seed: int) -> Tuning:
    """Breast cancer, n = 419."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    X, y, V, s = _split(load_breast_cancer(return_X_y=True), 150, 419, seed)
    scale = StandardScaler().fit(X)
    Cs, gammas = np.geomspace(1e-4, 1e4, 17), np.geomspace(1e-3, 1, 11)
    return _logistic(scale.transform(X), y, scale.transform(V), s, Cs, gammas)


def logistic_digits(seed: int) -> Tuning:
    """Ten digits, n = 1000."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    split = _split((X / 16, y), 300, 1000, seed)
    return _logistic(*split, np.geomspace(1e-4, 1e2, 9), np.geomspace(1e-3, 10, 9))


def _boosted(model: Any, X: Array, y: Array, V: Array, rates: int, trees: int) -> Outputs:
    """Gradient boosting: learning rate and number of trees, shape (rates, 15, n, 1)."""
    stages = np.round(np.geomspace(3, trees, 15)).astype(int) - 1
    found = []
    for rate in np.geomspace(0.005, 1, rates):
        fitted = model(
            learning_rate=rate, n_estimators=trees, max_depth=3, random_state=0, max_features=8
        ).fit(X, y)
        classifies = hasattr(fitted, "classes_")
        staged = fitted.staged_decision_function(V) if classifies else fitted.staged_predict(V)
        every = [np.reshape(outputs, (len(V), 1)) for outputs in staged]
        found.append([every[stage] for stage in stages])
    return np.array(found, dtype=np.float32)


def boosting_cancer(seed: int) -> Tuning:
    """Breast cancer, n = 369."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import GradientBoostingClassifier

    X, y, V, s = _split(load_breast_cancer(return_X_y=True), 200, 369, seed)
    return Tuning(_boosted(GradientBoostingClassifier, X, y, V, 11, 150), s, s)


def boosting_digits(seed: int) -> Tuning:
    """Odd digits against even ones, n = 900."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import GradientBoostingClassifier

    X, y = load_digits(return_X_y=True)
    X, y, V, s = _split((X, y % 2), 300, 900, seed)
    return Tuning(_boosted(GradientBoostingClassifier, X, y, V, 9, 120), s, s)


def ridge_diabetes_four(seed: int) -> Tuning:
    """Kernel ridge on diabetes, n = 221: alpha and three length-scales; the middle is good."""
    from sklearn.datasets import load_diabetes
    from sklearn.preprocessing import StandardScaler

    X, y, V, s = _split(load_diabetes(return_X_y=True), 221, 221, seed)
    scale = StandardScaler().fit(X)
    X, V = scale.transform(X), scale.transform(V)
    group = np.array([0, 0, 1, 1, 2, 2, 2, 2, 2, 2])  # age and sex, bmi and pressure, serum

    def outputs(u: Array) -> Array:
        inverse = (10.0 ** (4 * u[:3] - 2.5))[group]
        within, across = _squares(X * inverse, X * inverse), _squares(V * inverse, X * inverse)
        A = np.exp(-within)
        A[np.diag_indices_from(A)] += 10.0 ** (6 * u[3] - 4)
        weights = np.linalg.solve(A, y - np.median(y))
        return np.asarray((np.median(y) + np.exp(-across) @ weights)[:, None])

    return replace(_regression(np.empty((2, 2, 0, 0), np.float32), y, s, s), outputs=outputs, d=4)


def _regression(outputs: Outputs, y: Array, s: Array, truth: Array) -> Tuning:
    quarters = np.quantile(y, [0.25, 0.75])
    known = float(y.min()), float(y.max())
    return Tuning(outputs, s, truth, known, float(np.diff(quarters)[0] / 1.349))


def _ridge(X: Array, y: Array, V: Array, gammas: Array, alphas: Array) -> Outputs:
    """Kernel ridge: gamma and alpha, shape (gammas, alphas, n, 1)."""
    centre, within, across = np.median(y), _squares(X, X), _squares(V, X)
    found = []
    for gamma in gammas:
        eigenvalues, Q = np.linalg.eigh(np.exp(-gamma * within))
        P, Qy = np.exp(-gamma * across) @ Q, Q.T @ (y - centre)
        found.append([(centre + P @ (Qy / (eigenvalues + a)))[:, None] for a in alphas])
    return np.array(found, dtype=np.float32)


def _squares(A: Array, B: Array) -> Array:
    """Squared distances of all pairs."""
    square = (A * A).sum(1)[:, None] + (B * B).sum(1)[None, :] - 2 * A @ B.T
    return np.asarray(np.maximum(square, 0.0))


def ridge_diabetes(seed: int) -> Tuning:
    """Kernel ridge on diabetes, n = 221; the middle of the ranges is bad."""
    from sklearn.datasets import load_diabetes
    from sklearn.preprocessing import StandardScaler

    X, y, V, s = _split(load_diabetes(return_X_y=True), 221, 221, seed)
    scale = StandardScaler().fit(X)
    gammas, alphas = np.geomspace(1e-4, 1e2, 17), np.geomspace(1e-6, 1e2, 17)
    outputs = _ridge(scale.transform(X), y, scale.transform(V), gammas, alphas)
    return _regression(outputs, y, s, s)


def boosting_diabetes(seed: int) -> Tuning:
    """Gradient boosting on diabetes, n = 221; the middle of the ranges is nearly best."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor

    X, y, V, s = _split(load_diabetes(return_X_y=True), 221, 221, seed)
    return _regression(_boosted(GradientBoostingRegressor, X, y, V, 11, 150), y, s, s)


def _simulated(seed: int, noise: Callable[[np.random.Generator, int], Array]) -> Tuning:
    """Kernel ridge on a smooth function of two inputs with outliers, n = 500."""
    rng = np.random.default_rng([seed, 5])
    X = rng.uniform(-2, 2, (700, 2))
    signal = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 - 0.6
    y = signal + 0.3 * noise(rng, len(X))
    gammas, alphas = np.geomspace(1e-1, 1e3, 17), np.geomspace(1e-5, 1e1, 17)
    outputs = _ridge(X[:200], y[:200], X[200:], gammas, alphas)
    return _regression(outputs, y[:200], y[200:], signal[200:])


def ridge_student(seed: int) -> Tuning:
    """Student's t with two degrees of freedom: the squared error has no mean."""
    return _simulated(seed, lambda rng, n: rng.standard_t(2, n))


def ridge_skewed(seed: int) -> Tuning:
    """Lognormal noise around its mean: outliers on one side only."""
    return _simulated(seed, lambda rng, n: np.exp(rng.standard_normal(n)) - np.exp(0.5))


PROBLEMS: Mapping[str, Callable[[int], Tuning]] = {
    "logreg-cancer": logistic_cancer,
    "logreg-digits": logistic_digits,
    "gb-cancer": boosting_cancer,
    "gb-digits": boosting_digits,
    "krr-diabetes": ridge_diabetes,
    "gb-diabetes": boosting_diabetes,
    "krr4-diabetes": ridge_diabetes_four,
    "krr-student": ridge_student,
    "krr-skewed": ridge_skewed,
}
LOG = ("logreg-cancer", "logreg-digits", "gb-cancer", "gb-digits")

# Arms -------------------------------------------------------------------------------------------

Arm = tuple[Callable[[Tuning], Loss], Callable[[Tuning], Mapping[str, Any]]]
"""From a problem to the loss that is returned, and to the sampler's settings."""


def _log(link: Callable[[Array], Array]) -> Callable[[Tuning], Loss]:
    return lambda p: lambda o: link(losses.log(p.targets, _probabilities(o)))


def _squared(link: Callable[[Array, float], Array]) -> Callable[[Tuning], Loss]:
    return lambda p: lambda o: link(losses.squared(p.targets, o), p.spread**2)


def _fixed(**given: Any) -> Callable[[Tuning], Mapping[str, Any]]:
    return lambda _: given


LOG_ARMS: Mapping[str, Arm] = {
    "bounded_log": (
        lambda p: lambda o: losses.bounded_log(p.targets, _probabilities(o)),
        _fixed(**losses.bounded_log.settings()),
    ),
    "brier": (
        lambda p: lambda o: losses.brier(p.targets, _probabilities(o)),
        _fixed(**losses.brier.settings()),
    ),
    "log, settings()": (_log(lambda y: y), _fixed(**losses.log.settings())),
    "log, default": (_log(lambda y: y), _fixed()),
    "log, adaptive": (
        _log(lambda y: y),
        _fixed(loss_bound=losses.log.bound(), clipping_norm="adaptive"),
    ),
    "1 - exp(-log/2)": (_log(lambda y: -np.expm1(-y / 2)), _fixed(clipping_norm=2.0)),
    "log/(1 + log)": (_log(lambda y: y / (1 + y)), _fixed(clipping_norm=2.0)),
}


def _ends(p: Tuning) -> tuple[float, float]:
    assert p.y_range is not None
    return p.y_range


SQUARED_ARMS: Mapping[str, Arm] = {
    "squared, spread": (
        _squared(lambda y, _: y),
        lambda p: losses.squared.settings(*_ends(p), spread=p.spread),
    ),
    "squared, range": (_squared(lambda y, _: y), lambda p: losses.squared.settings(*_ends(p))),
    "squared/bound, default": (
        lambda p: lambda o: losses.squared(p.targets, o) / losses.squared.bound(*_ends(p)),
        _fixed(),
    ),
    "squared, default": (_squared(lambda y, _: y), _fixed()),
    "squared, adaptive": (
        _squared(lambda y, spread2: y / spread2),
        _fixed(loss_bound=16.0, clipping_norm="adaptive"),
    ),
    "y2/(y2 + spread2)": (_squared(lambda y, spread2: y / (y + spread2)), _fixed()),
}


def arms_of(problem: str) -> Mapping[str, Arm]:
    """Arms by name; the first is the recommended one."""
    return LOG_ARMS if problem in LOG else SQUARED_ARMS


# Runs -------------------------------------------------------------------------------------------


def descend(loss_at: Loss, space: Space, plan: Plan, config: GIBOConfig, seed: int) -> Array:
    """DP-GIBO's recommendation in the unit cube; its plan, its statistics, numpy's noise."""
    algorithm = DPGIBO(config, space, seed=seed, plan=plan)
    return followed(algorithm, lambda U: np.stack([loss_at(x) for x in U], axis=1), seed)


@cache
def _made(problem: str, seed: int) -> tuple[Tuning, float]:
    """A problem, and its least true mean on a grid, or found by search without privacy."""
    warnings.simplefilter("ignore")  # solvers that do not converge at extreme settings
    tuning = PROBLEMS[problem](seed)
    points = tuning.some(41)
    found = [tuning.true_mean(u) for u in points]
    if not callable(tuning.outputs):
        return tuning, min(found)
    start, box = points[int(np.argmin(found))], [(0.0, 1.0)] * tuning.d
    polished = minimize(tuning.true_mean, start, method="Nelder-Mead", bounds=box)
    return tuning, float(polished.fun)


def run(task: Task) -> Row:
    """All arms on one split."""
    problem, seed = task[0], int(task[1]["seed"])
    tuning, optimum = _made(problem, seed)
    n, rows = len(tuning.targets), []
    middle = tuning.true_mean(np.full(tuning.d, 0.5)) - optimum
    for name, (loss_of, settings_of) in arms_of(problem).items():
        loss_at = _composed(loss_of(tuning), tuning)
        bias = _bias(loss_at, tuning, optimum)
        for mu in MUS:
            config = GIBOConfig(mu, **{**FIRST, **settings_of(tuning)})
            plan = make_plan(config, tuning.space, n)
            excess = tuning.true_mean(descend(loss_at, tuning.space, plan, config, seed)) - optimum
            row = {
                "arm": name,
                "mu": mu,
                "excess": excess,
                "bias": bias,
                "warns": plan.noise_dominates,
            }
            rows.append(row)
    _made.cache_clear()
    return {"optimum": optimum, "middle": middle, "n": n, "runs": rows}


def _bias(loss_at: Loss, tuning: Tuning, optimum: float) -> float | None:
    """Excess where the arm's own mean loss is least; None where there is no grid to look at."""
    if callable(tuning.outputs):
        return None
    points = tuning.some(21)
    least = int(np.argmin([loss_at(u).mean() for u in points]))
    return tuning.true_mean(points[least]) - optimum


def _composed(loss_of: Loss, tuning: Tuning) -> Loss:
    return lambda u: loss_of(tuning.at(u))


# What is shown ----------------------------------------------------------------------------------


def summarise(problem: str, rows: list[Row]) -> list[Row]:
    """Each arm's excess, and by how much more it is than the recommended arm's, paired."""
    arms, found = list(arms_of(problem)), []
    middle = np.array([row["middle"] for row in rows])
    for mu in MUS:
        excess = {
            arm: np.array(
                [
                    r["excess"]
                    for row in rows
                    for r in row["runs"]
                    if (r["arm"], r["mu"]) == (arm, mu)
                ]
            )
            for arm in arms
        }
        for arm in (*arms, "middle of the ranges"):
            own = excess.get(arm, middle)
            more = own - excess[arms[0]]
            entry: Row = {"problem": problem, "arm": arm, "mu": mu, "seeds": len(rows)}
            entry |= {"median": float(np.median(own)), "mean": float(own.mean()), "se": _se(own)}
            entry["above_middle"] = int((own > middle).sum())
            entry |= {"more_than_recommended": float(more.mean()), "se_more": _se(more)}
            runs = [r for row in rows for r in row["runs"] if (r["arm"], r["mu"]) == (arm, mu)]
            biases = [r["bias"] for r in runs if r["bias"] is not None]
            entry["bias"] = float(np.median(biases)) if biases else None
            entry["warns"] = any(r["warns"] for r in runs)
            found.append(_rounded(entry))
    return found


def _se(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _rounded(row: Row) -> Row:
    return {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}


def table(rows: list[Row]) -> str:
    """The summary as text."""
    head = f"{'problem':<14}{'arm':<25}{'mu':>5}{'bias':>9}{'median':>9}{'mean':>9}{'se':>8}"
    lines = [head + f"{'more':>9}{'se':>8}{'above':>6}  plan"]
    for row in rows:
        bias = "" if row["bias"] is None else f"{row['bias']:.4f}"
        lines.append(
            f"{row['problem']:<14}{row['arm']:<25}{row['mu']:>5g}{bias:>9}{row['median']:>9.4f}"
            f"{row['mean']:>9.4f}{row['se']:>8.4f}{row['more_than_recommended']:>9.4f}"
            f"{row['se_more']:>8.4f}{row['above_middle']:>6}  {'warns' if row['warns'] else ''}"
        )
    meaning = (
        "more: than the first arm, paired; above: runs that end above the middle of the ranges"
    )
    return "\n".join([*lines, meaning])


def picture(rows: list[Row], path: Path) -> None:
    """Median excess over mu, one panel a problem."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = plt.subplots(2, len(problems) // 2 + 1, figsize=(17, 8), squeeze=False)
    for axis, problem in zip(axes.ravel(), problems, strict=False):
        own = [row for row in rows if row["problem"] == problem]
        for arm in dict.fromkeys(row["arm"] for row in own):
            line = sorted(
                (row["mu"], max(row["median"], 1e-5)) for row in own if row["arm"] == arm
            )
            style = "k:" if arm.startswith("middle") else "o-"
            axis.plot(*zip(*line, strict=True), style, label=arm, markersize=3)
        axis.set(title=problem, xscale="log", yscale="log", xlabel="mu")
    for log, place in ((True, "upper left"), (False, "lower left")):
        shown = [i for i, problem in enumerate(problems) if (problem in LOG) is log]
        for i in shown[:1]:
            lines = axes.ravel()[i].get_legend_handles_labels()
            axes.ravel()[-1].add_artist(axes.ravel()[-1].legend(*lines, loc=place, fontsize=9))
    for axis in axes.ravel()[len(problems) :]:
        axis.axis("off")
    axes[0][0].set_ylabel("median excess of the true loss")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs everything and writes JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--kept", type=Path, default=None, help="file of finished runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for problem in arguments.problems:
        seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        tasks: list[Task] = [(problem, {"seed": seed}) for seed in seeds]
        rows += summarise(
            problem, carried_out(tasks, run, jobs=arguments.jobs, kept=arguments.kept)
        )
    print(table(rows))
    record = {
        "command": "python -m benchmarks.heavy_tails",
        "machine": {"python": platform.python_version(), "numpy": np.__version__},
        "summary": rows,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "heavy_tails.json").write_text(json.dumps(record, indent=1))
    picture(rows, arguments.out / "heavy_tails.png")


if __name__ == "__main__":
    main()
