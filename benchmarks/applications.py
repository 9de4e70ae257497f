"""Three applications, and what privacy costs in each, beside no tuning and tuning without privacy.

Each of ``examples.clinical``, ``examples.loans`` and ``examples.handwriting`` is split ten times
(handwriting four times) into training, validation and test records, and tuned with two (five)
seeds a split:

- ``no tuning``: the estimator as it is.
- ``middle``: the middle of the ranges. Whoever chose them well needs no tuning to be there.
- ``tpe``: the best of as many trials of Optuna's TPESampler, without privacy.
- ``dp-gibo``: ``PrivateSearch``'s algorithm with its defaults, at several mu.
- ``random``: as many uniform points, of which one private argmin is released at the same mu.

Searching, trials have losses from a table: models are fitted on a lattice, and between its points
each record's losses are interpolated linearly. **What is measured is no interpolation**: the model
is fitted with what was recommended, and scored on the validation records and on the test records,
which no search has seen. Neither host nor vault stands around these runs, and numpy draws
their noise.

Standard errors are those of the splits' means. The splits share their records, so that they say
less about other records than as many tables would.

    python -m benchmarks.applications [--jobs 2] [--write]

Takes about ten minutes on two cores the first time, then two: tables of losses are kept in a
folder of temporary files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.private_selection import bounded_range_from_gdp
from benchmarks.mixed_problems import Table, filled
from benchmarks.simulation import followed
from benchmarks.tasks import Row, Task, carried_out
from examples.application import Application, Parts, losses_of, parts
from privbo_plugins import losses
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, make_plan
from sklearn_search._space import to_parameters

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"

LATTICES: Mapping[str, Mapping[str, int]] = {
    "clinical": {"l2_regularization": 3, "learning_rate": 7, "max_leaf_nodes": 5},
    "loans": {"model__C": 9, "select__k": 10},
    "handwriting": {"blur__sigma": 5, "model__C": 4, "model__gamma": 7},
}
"""Points a parameter, in the order of the space."""

PAGE = Path(__file__).parents[1] / "docs" / "applications.md"
TABLES = RESULTS / "applications.md"
END = "<!-- end -->"

RUNS = {"clinical": (10, 2), "loans": (10, 2), "handwriting": (4, 5)}
"""Splits, and seeds a split: a table of images takes longer."""

FIRST = 100
"""The first split; the examples show split 0."""

MUS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RANDOM_MUS = (0.3, 1.0)


def application(name: str) -> Application:
    """By its name."""
    found: Application = import_module(f"examples.{name}").APPLICATION
    return found


def known(name: str, split: int) -> tuple[Parts, Table]:
    """Records of a split, and the losses of its validation records on the lattice."""
    own = application(name)
    of = parts(own, split)
    space = to_parameters(own.space, own.estimator.get_params()).space
    axes = {n: np.linspace(0.0, 1.0, size) for n, size in LATTICES[name].items()}
    assert list(axes) == list(space)
    told = f"{LATTICES[name]} {dict(space)} {own.estimator} {own.n_train} {own.n_valid}"
    key = hashlib.sha256(told.encode() + np.ascontiguousarray(of.X_valid).tobytes()).hexdigest()[
        :8
    ]
    return of, filled(
        space, axes, f"{name}-{split}-{key}", lambda **found: losses_of(own, of, found)[0]
    )


def gibo(table: Table, mu: float, seed: int, own: Application) -> tuple[Array, int]:
    """DP-GIBO's recommendation, and its number of trials."""
    bounds, params = getattr(losses, own.loss).settings(), own.estimator.get_params()
    used = to_parameters(own.space, params).incumbent("auto", params)
    config = GIBOConfig(mu=mu, n_trials=own.n_trials, incumbent=used, **bounds)
    plan = make_plan(config, table.space, table.n_records)
    algorithm = DPGIBO(config, table.space, seed=seed, plan=plan)
    return followed(algorithm, table.losses, seed), plan.n_trials


def tpe(table: Table, n_trials: int, seed: int) -> Array:
    """The best point of TPESampler, without privacy."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    asked: Any = {n: optuna.distributions.FloatDistribution(0.0, 1.0) for n in table.space}
    for _ in range(n_trials):
        trial = study.ask(asked)
        x = np.array([trial.params[name] for name in table.space])
        study.tell(trial, float(table.losses(table.space.snap(x)).mean()))
    return table.space.snap(np.array([study.best_params[name] for name in table.space]))


def private_argmin(table: Table, n_trials: int, mu: float, seed: int) -> Array:
    """One of many uniform points, by report-noisy-min, mu-GDP."""
    rng = np.random.default_rng([seed, 3])
    U = np.array([table.space.snap(u) for u in rng.random((n_trials, table.d))])
    scale = 2.0 / (table.n_records * bounded_range_from_gdp(mu))
    noisy = table.losses(U).mean(axis=0) - scale * rng.gumbel(size=n_trials)
    return np.asarray(U[noisy.argmin()])


def run(task: Task) -> Row:
    """True mean losses of a split, a row a seed: the seeds share a table."""
    warnings.simplefilter("ignore")  # columns that are constant in a split
    name, given = task
    own, of = application(name), known(name, given["split"])
    return {"rows": [_row(own, *of, given["split"], seed) for seed in range(RUNS[name][1])]}


def _row(own: Application, of: Parts, table: Table, split: int, number: int) -> Row:
    """Of validation and test records, by arm and mu."""
    seed, n_trials = RUNS[own.name][1] * split + number, 0
    found: dict[str, Array | None] = {"no tuning": None, "middle": np.full(table.d, 0.5)}
    for mu in MUS:
        found[f"dp-gibo {mu:g}"], n = gibo(table, mu, seed, own)
        n_trials = n if mu == 1.0 else n_trials
    for mu in RANDOM_MUS:
        found[f"random {mu:g}"] = private_argmin(table, n_trials, mu, seed)
    found["tpe"] = tpe(table, n_trials, seed)
    return {
        "application": own.name, "split": split, "seed": seed, "n": own.n_valid,
        "trials": n_trials,
        "losses": {arm: _truth(own, of, table, x) for arm, x in found.items()},
    }  # fmt: skip


def _truth(own: Application, of: Parts, table: Table, x: Array | None) -> list[float]:
    """Of validation and test records, with a model that is fitted for it."""
    params = None if x is None else table.space.decode(x)
    return [round(float(part.mean()), 6) for part in losses_of(own, of, params)]


# Summary ----------------------------------------------------------------------------------------


def summarise(rows: list[Row]) -> list[Row]:
    """One entry an application and arm: means, what it gains over no tuning, what it costs."""
    return [
        _entry([row for row in rows if row["application"] == name], arm)
        for name in LATTICES
        for arm in rows[0]["losses"]
    ]


def _entry(rows: list[Row], arm: str) -> Row:
    first = rows[0]
    entry: Row = {
        "application": first["application"], "arm": arm, "n": first["n"],
        "trials": first["trials"], "runs": len(rows),
    }  # fmt: skip
    for place, part in enumerate(("valid", "test")):
        own, none, middle, plain = (
            np.array([row["losses"][a][place] for row in rows])
            for a in (arm, "no tuning", "middle", "tpe")
        )
        splits = [row["split"] for row in rows]
        entry[part] = _mean_and_error(own, splits)
        entry[f"{part} gain"] = _mean_and_error(none - own, splits)
        entry[f"{part} over middle"] = _mean_and_error(middle - own, splits)
        entry[f"{part} cost"] = _mean_and_error(own - plain, splits)
    return entry


def _mean_and_error(values: Array, splits: list[int]) -> list[float]:
    """The mean, and the standard error of the means of splits."""
    means = [values[np.array(splits) == split].mean() for split in dict.fromkeys(splits)]
    error = float(np.std(means, ddof=1)) / len(means) ** 0.5
    return [round(float(np.mean(means)), 5), round(error, 5)]


def pays_from(summary: Iterable[Row], name: str, part: str = "test") -> int | None:
    """The least number of records at mu = 1 from which on tuning gains more than two errors.

    Over no tuning, and over the middle of the ranges.

    The algorithm knows n mu alone, so n records at mu are as n mu records at mu = 1; None if it
    is not so even at the largest.
    """
    least = None
    for entry in sorted(_private(summary, name), key=lambda e: -_mu(e)):
        if _verdict(entry, part) != PAYS:
            break
        least = round(entry["n"] * _mu(entry))
    return least


def _private(summary: Iterable[Row], name: str) -> list[Row]:
    return [e for e in summary if e["application"] == name and str(e["arm"]).startswith("dp-gibo")]


def _mu(entry: Row) -> float:
    return float(entry["arm"].split()[1])


def draw(summary: list[Row], name: str, path: Path) -> None:
    """Mean losses of an application by mu; a panel for validation and one for test records."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    own = {e["arm"]: e for e in summary if e["application"] == name}
    words = {"valid": f"the {own['tpe']['n']} validation records", "test": "test records"}
    for axes, (part, told) in zip(figure.subplots(1, 2), words.items(), strict=True):
        for arm, color in _LINES.items():
            mean, error = own[arm][part]
            axes.axhline(mean, color=color, linestyle=":", label=_LABELS[arm])
            axes.axhspan(mean - error, mean + error, color=color, alpha=0.15, linewidth=0)
        for arm, mus, marker in (("dp-gibo", MUS, "o-"), ("random", RANDOM_MUS, "s")):
            means, errors = zip(*(own[f"{arm} {mu:g}"][part] for mu in mus), strict=True)
            axes.errorbar(mus, means, errors, fmt=marker, capsize=3, label=_LABELS[arm])
        axes.set(xscale="log", xlabel="mu", ylabel=f"mean loss of {told}")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


_LINES = {"no tuning": "grey", "middle": "tab:red", "tpe": "tab:green"}
_LABELS = {
    "no tuning": "no tuning",
    "middle": "middle of the ranges",
    "tpe": "TPE, not private",
    "dp-gibo": "DP-GIBO",
    "random": "private random search",
}


def tables(summary: list[Row]) -> str:
    """What all arms of all applications have come to, in Markdown."""
    parts = ["# Applications: measurements", "`python -m benchmarks.applications --write`"]
    for name in LATTICES:
        picture = f"![Mean losses by mu](applications_{name}.png)"
        parts += [f"## {name}", _table(summary, name), picture]
    return "\n\n".join(parts) + "\n"


def _table(summary: list[Row], name: str) -> str:
    own = _own(summary, name)
    heads = ("mean loss", "validation", "test", *_DIFFERENCES)
    lines = [" | ".join(["", *heads, ""]).strip(), "|" + "---|" * len(heads)]
    for arm, words in _ROWS.items():
        cells = [_figure(own[arm], "valid"), _figure(own[arm], "test")]
        cells += [
            "" if arm == other else _figure(own[arm], key) for other, key in _DIFFERENCES.values()
        ]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _own(summary: list[Row], name: str) -> dict[str, Row]:
    return {e["arm"]: e for e in summary if e["application"] == name}


def _figure(entry: Row, key: str) -> str:
    return f"{entry[key][0]:.4f} ± {entry[key][1]:.4f}"


_DIFFERENCES = {
    "test: gain over no tuning": ("no tuning", "test gain"),
    "over the middle": ("middle", "test over middle"),
    "cost over TPE": ("tpe", "test cost"),
}
_ROWS = {
    "no tuning": "no tuning",
    "middle": "middle of the ranges",
    "tpe": "TPE, **not private**",
    "dp-gibo 1": "DP-GIBO, mu = 1",
    "dp-gibo 0.3": "DP-GIBO, mu = .3",
    "random 1": "private random search, mu = 1",
    "random 0.3": "private random search, mu = .3",
}


def _told(summary: list[Row], name: str) -> str:
    """Whether tuning privately pays, at the two budgets and from how many records on."""
    own = _own(summary, name)
    lines = [_sentence(own[f"dp-gibo {mu:g}"], mu) for mu in (1.0, 0.3)]
    for part, words in (("test", "At mu = 1"), ("valid", "On the validation records alone")):
        least, n = pays_from(summary, name, part), own["tpe"]["n"]
        if least is None:
            lines.append(f"{words} it is not seen to pay with {max(MUS) * n:.0f} records either.")
        else:
            which = " (the fewest measured)" if least == round(min(MUS) * n) else ""
            lines.append(f"{words} it pays from **{least} validation records** on{which}.")
    return "\n".join(f"- {line}" for line in lines)


PAYS = "pays"


def _verdict(entry: Row, part: str = "test") -> str:
    """Of both gains, by two standard errors."""
    differences = [entry[f"{part} gain"], entry[f"{part} over middle"]]
    if all(gain > 2.0 * error for gain, error in differences):
        return PAYS
    if any(gain < -2.0 * error for gain, error in differences):
        return "**costs more than it brings**"
    return "**is not seen to pay**"


def _sentence(entry: Row, mu: float) -> str:
    return (
        f"With {entry['n']} validation records and mu = {mu:g}, tuning privately "
        f"{_verdict(entry)}: test records gain {_figure(entry, 'test gain')} over no tuning and "
        f"{_figure(entry, 'test over middle')} over the middle of the ranges, and privacy costs "
        f"{_figure(entry, 'test cost')} beside TPE."
    )


def page(text: str, summary: list[Row]) -> str:
    """The page with fresh figures of every application."""
    for name in LATTICES:
        begin = f"<!-- figures of {name}: python -m benchmarks.applications --write -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{_told(summary, name)}\n\n{END}{rest.split(END, 1)[1]}"
    return text


def _write(rows: list[Row], summary: list[Row]) -> None:
    pays = {name: pays_from(summary, name) for name in LATTICES}
    kept = {"pays from": pays, "summary": summary, "rows": rows}
    (RESULTS / "applications.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    for name in LATTICES:
        draw(summary, name, RESULTS / f"applications_{name}.png")
    PAGE.write_text(page(PAGE.read_text(), summary))
    TABLES.write_text(tables(summary))


def main() -> None:
    """Measures, prints and, where it is asked to, keeps the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="bring page and tables up to date")
    parser.add_argument("--kept", type=Path, help="file of finished runs, to go on with")
    given = parser.parse_args()
    asked = [
        (name, {"split": split})
        for name in LATTICES
        for split in range(FIRST, FIRST + RUNS[name][0])
    ]
    done = carried_out(asked, run, jobs=given.jobs, kept=given.kept)
    rows = [row for of in done for row in of["rows"]]
    summary = summarise(rows)
    for e in summary:
        told = "  ".join(
            f"{part} {e[part][0]:.4f} ± {e[part][1]:.4f}"
            for part in ("valid", "test", "valid gain", "test gain", "test cost")
        )
        print(f"{e['application']:12}{e['arm']:13}{told}")
    for name in LATTICES:
        print(f"{name} pays at mu = 1 from {pays_from(summary, name)} records")
    if given.write:
        _write(rows, summary)


if __name__ == "__main__":
    main()
