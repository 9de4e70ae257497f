"""Reads what Tune shows of trials: :mod:`privbo_plugins.shown` compares it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ray.tune.result import (
    AUTO_RESULT_KEYS,
    DONE,
    EXPERIMENT_TAG,
    SHOULD_CHECKPOINT,
    TIME_THIS_ITER_S,
    TIMESTAMP,
    TRAINING_ITERATION,
    TRIAL_ID,
)

from privbo_plugins.shown import (
    ANYTHING,
    Shown,
    TrialRecord,
    as_float,
    comparable,
    flat,
    is_nan,
    plain,
)
from raytune_searchers._channel import operation_of
from raytune_searchers._space import holds_placeholder

OURS = frozenset({*AUTO_RESULT_KEYS, DONE, EXPERIMENT_TAG, SHOULD_CHECKPOINT, TRIAL_ID}) - {
    "config",
    "episodes_total",
    "timesteps_total",
    "timesteps_since_restore",
}
"""Keys that Tune itself fills in."""

_KEPT: Mapping[str, Callable[[Any], bool]] = {
    DONE: lambda value: isinstance(value, bool),
    EXPERIMENT_TAG: lambda value: isinstance(value, str),
    SHOULD_CHECKPOINT: lambda value: isinstance(value, bool),
    TIME_THIS_ITER_S: lambda value: isinstance(value, Real) and not isinstance(value, bool),
    TRAINING_ITERATION: lambda value: (as_float(value) or 0.5).is_integer(),
}
"""Those of which Tune keeps what a function gives, and what they look like if it gives none."""

BUDGET = "hyperband_info"
"""Under which name HyperBandForBOHB writes into every result how many reports it has counted."""

_FOLDER = "checkpoint_dir_name"
"""What Tune adds to every row of a function, after the timestamp."""

REPEATED = "__trial_index__"
"""What ray.tune.search.Repeater puts into every config; importing it takes a trial a while."""


def read(
    trial: str, row: Mapping[str, Any], metric: str | None, parameters: Collection[str]
) -> Shown:
    """Reads what a row of Tune's results shows of its trial.

    Args:
        trial: Its id.
        row: The row, flattened.
        metric: The search's.
        parameters: Names on the config's first level.
    """
    found = sorted(foreign(row, metric, parameters))
    extras = {operation_of(name): row.get(name) for name in found}
    return Shown(trial, value_in(row, metric), extras, config_in(row))


def given_to(config: Mapping[str, Any]) -> Row:
    """A config that a trial was given, flattened; what Tune hides may be anything."""
    known = flat(config).items()
    return {n: ANYTHING if holds_placeholder({"": value}) else value for n, value in known}


Row = Mapping[str, Any]
"""What a trial has shown, or the config that it was given, flattened."""


@dataclass(frozen=True)
class Stored:
    """What an experiment holds of a trial.

    Attributes:
        trial: Its id.
        rows: What it showed, flattened, the last row at the end.
        whole: Whether that is all that it ever showed.
        given: The config that it was given, flattened, if that is known.
        failed: Whether it ended with an error.
    """

    trial: str
    rows: list[Row]
    whole: bool
    given: list[Row]
    failed: bool

    def comparable(self, given: Sequence[Row]) -> bool:
        """Tells if all that it ever showed can be compared with these configs, and releases."""
        return self.whole and all(comparable(config_in(row), given) for row in self.rows)


def stored_in(results: Any) -> list[Stored]:
    """The trials of an experiment.

    What a trial was given Tune's driver knows, which no function of a trial can change.

    Args:
        results: Of ``Tuner.fit``, or of ``tune.run``; of a list of single ones no config is known.
    """
    if hasattr(results, "trials"):  # an ExperimentAnalysis, which cannot be iterated
        from ray.tune import ResultGrid

        results = ResultGrid(results)
    known = list(getattr(getattr(results, "_experiment_analysis", None), "trials", ()))
    found = []
    for i, result in enumerate(results):
        last, rows = dict(result.metrics or {}), rows_of(result)
        trial = known[i].trial_id if known else last.get(TRIAL_ID)  # of none that shows nothing
        given = [given_to(known[i].config)] if known else []
        shown: list[Row] = [flat(row) for row in rows or [last]]
        shown[:-1] = [_typed(row, given) for row in shown[:-1]]
        found.append(Stored(str(trial), shown, rows is not None, given, result.error is not None))
    return found


def rows_of(result: Any) -> list[dict[str, Any]] | None:
    """All that a stored result ever showed, row by row; None if some of it is not stored."""
    last = dict(result.metrics or {})
    frame, n = getattr(result, "metrics_dataframe", None), last.get(TRAINING_ITERATION, 1)
    if frame is None or len(frame) < n:
        return [last] if n == 1 else None
    rows = frame.to_dict("records")  # more than n, where a trial was begun again
    return [*({k: plain(v) for k, v in row.items() if v == v} for row in rows), last]


def foreign(
    result: Mapping[str, Any], metric: str | None, parameters: Collection[str]
) -> set[str]:
    """Names in a result that neither Tune nor a release accounts for."""
    found = {name for name in result if name != metric} - OURS
    found -= {name for name in found if _of_config(name, parameters)}
    found -= {name for name in found if _of_bohb(name, result[name])}
    found |= set(_given(result, metric))
    if result.get(_FOLDER) is not None:
        found.add("checkpoint")
    return found


def _given(result: Mapping[str, Any], metric: str | None) -> Iterator[str]:
    """Keys that Tune fills in unless the function does, and that the function has filled in.

    What a function gives stands in a row before what Tune adds to it. Tune adds the timestamp
    first and the checkpoint's folder next; one that the function gives itself stays in its place.
    """
    place = {name: i for i, name in enumerate(result)}
    first = place.get(TIMESTAMP, -1)
    if first >= 0:
        first = max(place.get(name, -1) for name in (TIMESTAMP, _FOLDER, str(metric)))
    for name in _KEPT.keys() & place.keys():
        if place[name] < first or not _KEPT[name](result[name]):
            yield name


def _typed(row: Row, given: Sequence[Row]) -> Row:
    """A row of a table, which has no types, order or missing values, as it was given.

    Only what a table cannot tell apart is taken from a config that was given.
    """
    told = config_in(row)
    for config in given:
        lost = {name for name, value in config.items() if value is None or is_nan(value)}
        if told is not None and set(config) - lost <= set(told) <= set(config):
            cells = {f"config/{name}": _cell(told.get(name), config[name]) for name in config}
            return {name: value for name, value in row.items() if name not in cells} | cells
    return row


def _cell(shown: Any, given: Any) -> Any:
    """Returns the given value if a table's cell shows it."""
    if given is None or is_nan(given):
        return given if shown is None or is_nan(shown) else shown
    numbers = isinstance(given, Real) and isinstance(shown, Real)
    return given if numbers and shown == given else shown


def config_in(result: Row) -> dict[str, Any] | None:
    """The config that a row shows; None if it shows none, not even an empty one."""
    found = {n.removeprefix("config/"): v for n, v in result.items() if n.startswith("config/")}
    return found if found or "config" in result else None


def _of_bohb(name: str, value: Any) -> bool:
    """The scheduler's count of reports, flattened or not, and nothing else under its name."""
    if name == BUDGET:
        inner = flat(value) if isinstance(value, Mapping) else {"": value}
        return all(_of_bohb(f"{BUDGET}/{part}", v) for part, v in inner.items())
    return name == f"{BUDGET}/budget" and type(value) is int


def _of_config(name: str, parameters: Collection[str]) -> bool:
    """Tune repeats the config in every result, flattened or not."""
    first, *rest = name.split("/")
    return first == "config" and (not rest or rest[0] in {*parameters, REPEATED})


def value_in(result: Mapping[str, Any], metric: str | None) -> Any:
    """Returns a result's value under the metric; None for nothing, or a public report's NaN."""
    value = result.get(str(metric))
    return None if value is None or is_nan(value) else value


def stored_record(trial: str, report: Mapping[str, Any]) -> TrialRecord:
    """Makes a trial's record from a host's report."""
    mark = f"/{trial}"
    vouched = frozenset(
        v.removesuffix(mark) for v in report.get("vouched", ()) if v.endswith(mark)
    )
    entered = trial in report.get("entered", (trial,))
    beside = report.get("beside", {}).get(trial, {})
    return TrialRecord(
        report.get("published", {}).get(trial), entered, vouched, report["head"],
        {operation_of(name): value for name, value in beside.items()},
    )  # fmt: skip
