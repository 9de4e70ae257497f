"""Pictures of "What mu means" and "Scores": ``python docs/pictures/make.py``."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
CHOSEN = {"f1": "f1", "roc_auc": "auc", "neg_brier_score": "auc"}
MUS = (0.1, 0.3, 1.0, 3.0)
SHOWN = {"svc-2": "SVC, 2 parameters", "ridge-4": "kernel ridge, 4", "digits-15": "ridge, 15"}


def errors() -> None:
    """The trade-off curve G_mu (Dong et al. 2022): what an attacker pays for being sure."""
    figure, axis = plt.subplots(figsize=(4.4, 3.6))
    false_alarms = np.linspace(0, 1, 300)
    axis.plot(false_alarms, 1 - false_alarms, color="grey", ls=":", label="a coin (mu = 0)")
    for mu in MUS:
        axis.plot(false_alarms, norm.cdf(norm.ppf(1 - false_alarms) - mu), label=f"mu = {mu:g}")
    axis.set(xlabel="false alarms", ylabel="misses", xlim=(0, 1), ylim=(0, 1))
    axis.legend(frameon=False, fontsize=8)
    _kept(figure, "errors")


def guesses() -> None:
    """The best chance of a guess between two data sets, Phi(mu / 2)."""
    figure, axis = plt.subplots(figsize=(4.4, 3.0))
    mu = np.geomspace(0.03, 8, 200)
    axis.plot(mu, 100 * norm.cdf(mu / 2))
    axis.axhline(50, color="grey", ls=":")
    axis.set(xscale="log", xlabel="mu", ylabel="right guesses, %", ylim=(45, 102))
    _kept(figure, "guesses")


def excess() -> None:
    """What it costs: excess loss of DP-GIBO's default by n mu, from the benchmark of the map."""
    figure, axis = plt.subplots(figsize=(4.8, 3.4))
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for cell in json.loads((RESULTS / "map.json").read_text())["summary"]:
        if cell["arm"] == "dp-gibo" and cell["part"] in SHOWN:
            found[cell["part"]][round(cell["n"] * cell["mu"])] = max(cell["excess"], 1e-5)
    for part, name in SHOWN.items():
        levels = sorted(found[part])
        axis.plot(levels, [found[part][level] for level in levels], "o-", ms=3, label=name)
    axis.set(xscale="log", yscale="log", xlabel="n mu", ylabel="loss above the least there is")
    axis.legend(frameon=False, fontsize=8)
    _kept(figure, "excess")


def few() -> None:
    """What few positives cost: how far below the best what noisy scores choose lies."""
    figure, axis = plt.subplots(figsize=(4.8, 3.4))
    cells = json.loads((RESULTS / "scores.json").read_text())["cells"]
    for i, (score, figure_of) in enumerate(CHOSEN.items()):
        for mu, style in (("1", "o-"), ("inf", "o:")):
            found = []
            for name, cell in cells.items():
                n, share = re.findall(r"n = (\d+), (\d+)%", name)[0]
                told = cell["boosting"]
                lost = told["best"][figure_of] - told[f"{score}, mu = {mu}"][figure_of]
                found.append((int(n) * int(share) / 100, lost))
            label = f"{figure_of.upper()} by {score}" if mu == "1" else None
            axis.plot(*zip(*sorted(found), strict=True), style, color=f"C{i}", ms=3, label=label)
    axis.set(
        xscale="log", xlabel="positive records that validate", ylabel="below the best setting"
    )
    axis.legend(frameon=False, fontsize=8)
    _kept(figure, "few")


def _kept(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    mpl.rcParams["svg.hashsalt"] = name  # the same file each time
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    errors()
    guesses()
    excess()
    few()
