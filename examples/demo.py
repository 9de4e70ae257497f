"""The main job: tune a scikit-learn model on real data without leaking the validation records.

A support vector classifier on scikit-learn's handwritten digits: 897 images train it, 900 images
are the secret on which C and gamma are tuned. Run it with ``make demo`` or
``python -m examples.demo``; it writes ``demo.db`` (the study, safe to share), ``demo-private.db``
(the vault, not to be shared) and ``demo-report.html``. ``--compare`` adds what privacy forbids: a
grid of 165 points on the same records. ``--picture docs/pictures/demo.png`` draws the README's.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution

from examples.digits import N_VALID, losses, print_truth
from optuna_samplers import DPGIBOSampler

SPACE = {
    "C": FloatDistribution(1e-2, 1e3, log=True),
    "gamma": FloatDistribution(1e-5, 1e2, log=True),
}


def objective(trial: Any) -> NDArray[np.float64]:
    """What the sampler's vault receives; Optuna's storage never does."""
    return losses(
        trial.suggest_float("C", 1e-2, 1e3, log=True),
        trial.suggest_float("gamma", 1e-5, 1e2, log=True),
    )


def found(sampler: DPGIBOSampler, study: optuna.Study) -> optuna.trial.FrozenTrial:
    """Looks for the trial that has evaluated the recommendation last."""
    recommended = sampler.recommend(study)
    return next(
        trial
        for trial in study.trials[::-1]
        if all(math.isclose(trial.params[name], value) for name, value in recommended.items())
    )


def draw(sampler: DPGIBOSampler, study: optuna.Study, path: Path) -> None:
    """Draws what the study has released, with its noise, and what that recommends."""
    from matplotlib.figure import Figure

    history, best = sampler.history(study), found(sampler, study)
    claim = sampler.guarantee(study).statement()
    (estimate,) = best.values
    values, noise = np.array([value for *_, value in history.values]), history.value_noise
    x, inside = np.arange(1, len(values) + 1), values < 8 * noise
    point = ", ".join(f"{name} = {value:.3g}" for name, value in best.params.items())
    figure = Figure(figsize=(8, 3.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot(xlabel="trial", ylabel="validation error")
    axes.set_ylim(-4 * noise, 13 * noise)
    shown = f"{claim.sentence.partition('. ')[0]}.\n{dict(claim.rows).get('Privacy', '')}"
    axes.set_title(shown, fontsize=10)
    bars: dict[str, Any] = {"fmt": "o", "markersize": 3.5, "elinewidth": 0.8, "color": "#3b82c4"}
    axes.errorbar(x[inside], values[inside], noise, label="released, with its noise", **bars)
    above = np.full((~inside).sum(), 8 * noise)
    axes.plot(x[~inside], above, "^", color="#7f7f7f", label="released, higher than this picture")
    label = f"recommended: {point}; estimate {estimate:.4f}"
    axes.axhline(estimate, color="#d9822b", label=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    figure.savefig(path, dpi=140)


def read_arguments() -> argparse.Namespace:
    """Reads the command line, and begins anew in the folder it names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mu", type=float, default=1.0, help="total Gaussian DP parameter")
    parser.add_argument("--seed", type=int, default=0, help="drives candidates, never noise")
    parser.add_argument("--trials", type=int, default=None, help="the most trials to run")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the three files")
    parser.add_argument("--compare", action="store_true", help="with a grid without privacy")
    parser.add_argument("--picture", type=Path, help="a file for a picture of what was released")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in ("demo.db", "demo-private.db"):
        (arguments.out / name).unlink(missing_ok=True)
    return arguments


def main() -> None:
    """Runs the private study, and says what may be claimed for it."""
    arguments = read_arguments()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = DPGIBOSampler(
        mu=arguments.mu,
        search_space=SPACE,
        seed=arguments.seed,
        n_trials=arguments.trials,
        vault=f"sqlite:///{arguments.out / 'demo-private.db'}",
    )
    plan = sampler.plan(SPACE, n_records=N_VALID)
    print(plan)
    print("Values below are estimates from all releases so far; each trial's noisy draw is kept.")
    print("demo.db and demo-report.html may be shared, demo-private.db may not.", end="\n\n")
    study = optuna.create_study(
        study_name="demo", storage=f"sqlite:///{arguments.out / 'demo.db'}", sampler=sampler
    )
    study.optimize(
        sampler.private(objective),
        n_trials=plan.n_trials,
        callbacks=[sampler.publish],  # note and pictures for optuna-dashboard
        show_progress_bar=True,
    )
    sampler.purge(study)

    recommended = sampler.recommend(study)
    print("\nRecommended:", {name: f"{value:.3g}" for name, value in recommended.items()})
    print("Estimate there:", f"{found(sampler, study).value:.4f}", "(private)")
    print("\nGuarantee:", sampler.guarantee(study))

    sampler.publish(study)

    if arguments.compare:
        print_truth(recommended)
    if arguments.picture:
        draw(sampler, study, arguments.picture)
    print("\nReport:", sampler.report(study, arguments.out / "demo-report.html"))


if __name__ == "__main__":
    main()
