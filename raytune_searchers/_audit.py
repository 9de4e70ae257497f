"""What a result shows, compared with what is known of its trial."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
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

from raytune_searchers._channel import TrialRecord
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

_OF_NUMPY = frozenset(np.sctypeDict.values())

_FOLDER = "checkpoint_dir_name"
"""What Tune adds to every row of a function, after the timestamp."""

REPEATED = "__trial_index__"
"""What ray.tune.search.Repeater puts into every config; importing it takes a trial a while."""

RELEASE = "privbo_release"
"""Under which name a trial shows its noisy draw, where the metric is an estimate."""

ALTERED = "a trial showed another config than it was given"

VOUCH = "report_public({})"
"""The operation that a trial is known to have declared public, by the name that it reports."""


def complaints(
    result: Mapping[str, Any],
    metric: str | None,
    parameters: Collection[str],
    record: TrialRecord,
    plain: str,
) -> Iterator[str]:
    """Why nothing may be claimed for a run that shows this result; nothing if all is well.

    Args:
        result: What Tune shows of a trial, flattened.
        metric: The search's.
        parameters: Names on the config's first level.
        record: What the vault knows of the trial.
        plain: What is said of a value that never passed through the vault.
    """
    for name in foreign(result, metric, parameters):
        if name == RELEASE and record.drawn is not None and same(result[name], record.drawn):
            continue
        if VOUCH.format(name) not in record.vouched:
            yield "results hold values under other names than the search's metric"
            break
    value = shown(result, metric)
    if value is None:
        return
    if record.published is not None and not same(value, record.published):
        yield "a trial reported another value than was released"
    elif record.published is None and record.entered:
        yield "a trial reported a value that was not released"
    elif record.published is None:
        yield plain


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
        return self.whole and all(comparable(row, given) for row in self.rows)


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
        given: list[Row] = [flat(known[i].config)] if known else []
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


def plain(value: Any) -> Any:
    """A number or text of Python's own instead of one of numpy's; all else as it is.

    A subclass stays what it is: it may compare as one number and be written as another.
    """
    return np.generic.item(value) if type(value) in _OF_NUMPY else value


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


def altered(result: Row, given: Sequence[Row]) -> bool:
    """Checks whether a row shows another config than its trial was given.

    Values are the same if they are written in the same way, and so of the same type. Of objects
    the types are compared: they come back as copies.

    Args:
        result: The row, flattened.
        given: What the trial was given, flattened: several where a scheduler has changed it.
    """
    told = _config_in(result)
    return told is not None and bool(given) and not any(_shows(told, config) for config in given)


def _shows(told: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Checks whether a row tells of every value of a flattened config, and of nothing else."""
    flat_ones = ([name for name in row if "/" not in name] for row in (told, config))
    in_order = operator.eq(*flat_ones)  # Tune keeps no order of nested ones
    same_names = in_order and told.keys() == config.keys()
    return same_names and all(_alike(told[name], config[name]) for name in config)


def _typed(row: Row, given: Sequence[Row]) -> Row:
    """A row of a table, which has no types, order or missing values, as it was given.

    Only what a table cannot tell apart is taken from a config that was given.
    """
    told = _config_in(row)
    for config in given:
        lost = {name for name, value in config.items() if value is None or _is_nan(value)}
        if told is not None and set(config) - lost <= set(told) <= set(config):
            cells = {f"config/{name}": _cell(told.get(name), config[name]) for name in config}
            return {name: value for name, value in row.items() if name not in cells} | cells
    return row


def _cell(shown: Any, given: Any) -> Any:
    """Returns the given value if a table's cell shows it."""
    if given is None or _is_nan(given):
        return given if shown is None or _is_nan(shown) else shown
    numbers = isinstance(given, Real) and isinstance(shown, Real)
    return given if numbers and shown == given else shown


def comparable(result: Row, given: Sequence[Row]) -> bool:
    """Checks whether it is known of all that a row shows what it should be."""
    return bool(given) or _config_in(result) is None


def _config_in(result: Row) -> dict[str, Any] | None:
    """The config that a row shows; None if it shows none, not even an empty one."""
    found = {n.removeprefix("config/"): v for n, v in result.items() if n.startswith("config/")}
    return found if found or "config" in result else None


def _alike(shown: Any, given: Any) -> bool:
    """Tells if a value of a config may be what was given; of objects only the types are known."""
    if holds_placeholder({"": given}):
        return True
    if isinstance(given, Mapping):
        return isinstance(shown, Mapping) and _shows(flat(shown), flat(given))
    if isinstance(given, list | tuple):
        same_size = type(shown) in (list, tuple) and len(shown) == len(given)
        return same_size and all(map(_alike, shown, given))
    shown, given = plain(shown), plain(given)
    if given is None or isinstance(given, str | Real):
        return type(shown) is type(given) and repr(shown) == repr(given)
    return type(shown).__qualname__ == type(given).__qualname__


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


def shown(result: Mapping[str, Any], metric: str | None) -> Any:
    """What a result shows under the metric; None for nothing, or the NaN of public reports."""
    value = result.get(str(metric))
    return None if value is None or _is_nan(value) else value


def as_float(value: Any) -> float | None:
    """A number as a float, infinity where it is too large for one; None for anything else."""
    number = plain(value)
    if type(number) not in (bool, int, float):  # a subclass may raise, or tell two numbers
        return None
    try:
        return float(number)
    except OverflowError:
        return math.inf  # or the other one: neither is learnt, nor ever published


def _is_nan(value: Any) -> bool:
    number = as_float(value)
    return number is not None and math.isnan(number)


def same(told: Any, published: float) -> bool:
    """Checks whether a value is what was published, and is written like it."""
    return type(plain(told)) is float and repr(plain(told)) == repr(float(published))


def stored_record(trial: str, report: Mapping[str, Any]) -> TrialRecord:
    """Makes a trial's record from a host's report."""
    mark = f"/{trial}"
    vouched = frozenset(v.removesuffix(mark) for v in report["vouched"] if v.endswith(mark))
    entered = trial in report.get("entered", (trial,))
    drawn = report.get("drawn", {}).get(trial)
    return TrialRecord(report["published"].get(trial), entered, vouched, report["head"], drawn)


def flat(metrics: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Metrics under the names that Tune stores them by."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        inner = isinstance(value, Mapping) and len(value) > 0
        found |= flat(value, f"{path}{name}/") if inner else {f"{path}{name}": value}
    return found
