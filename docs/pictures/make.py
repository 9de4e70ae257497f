"""The pictures of "What mu means": ``python docs/pictures/make.py``."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

HERE = Path(__file__).parent
MAP = HERE.parents[1] / "benchmarks" / "results" / "map.json"
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
    for cell in json.loads(MAP.read_text())["summary"]:
        if cell["arm"] == "dp-gibo" and cell["part"] in SHOWN:
            found[cell["part"]][round(cell["n"] * cell["mu"])] = max(cell["excess"], 1e-5)
    for part, name in SHOWN.items():
        levels = sorted(found[part])
        axis.plot(levels, [found[part][level] for level in levels], "o-", ms=3, label=name)
    axis.set(xscale="log", yscale="log", xlabel="n mu", ylabel="loss above the least there is")
    axis.legend(frameon=False, fontsize=8)
    _kept(figure, "excess")


def _kept(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    mpl.rcParams["svg.hashsalt"] = name  # the same file each time
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    errors()
    guesses()
    excess()
