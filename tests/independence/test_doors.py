"""Every door through which per-record data come in: one record decides its own entry alone.

Each door is given records of which one is replaced by anything. Of all others the entries must
stay equal byte for byte, and so must the type and shape of what comes out, refusals and warnings.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import optuna
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from optuna_samplers import DPGIBOSampler, private_objective
from privbo_plugins import convert, losses
from privbo_plugins.cli.curator import column, read_outcomes, read_table
from privbo_plugins.scores import PerRecord, predictions
from privbo_plugins.scores.score import checked_scores, rows_of
from privbo_plugins.sessions.reader import Published
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rows import Curator
from tests.independence.odd import MAKERS, ODD, of_objects
from tests.independence.runs import RUNS

# What holds them --------------------------------------------------------------------------------


class Stored(Sequence[Any]):
    """Neither a list nor an array."""

    def __init__(self, entries):
        self._entries = entries

    def __len__(self):
        return len(self._entries)

    def __getitem__(self, place):
        return self._entries[place]


FORMS = {
    "list": list,
    "tuple": tuple,
    "array": of_objects,
    "series": lambda entries: pd.Series(of_objects(entries), dtype=object),
    "sequence": Stored,
}


# The doors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Door:
    """A public entry, and what it makes of each record.

    Attributes:
        covers: The public function or class, and its parameter.
        entry: The ordinary entry of a record, by its number.
        call: From what holds the entries to one result a record, or to nothing.
    """

    covers: tuple[str, str]
    entry: Callable[[int], Any]
    call: Callable[[Any], Any]


def _doors_of_losses():
    """Each loss that the module has: of targets and of predictions of every kind."""
    for name, loss in vars(losses).items():
        if not _is_loss(loss):
            continue
        own = _MADE_OF[loss] if isinstance(loss, type) else loss
        for kind, parameter, entry, call in _uses(own):
            yield f"{name}: {kind}", Door((f"losses.{name}", parameter), entry, call)


_MADE_OF = {
    losses.Pinball: losses.pinball(0.3),
    losses.Weighted: losses.weighted(
        {"no": 0.5, "yes": 1.0, "maybe": 2.0, 0: 0.5, 1: 1.0, 2: 2.0}
    ),
}
"""One of each class that makes losses."""


def _is_loss(found):
    """The module's losses, and the classes that make some."""
    own = getattr(type(found), "__module__", "") == losses.__name__ and callable(found)
    return own or (isinstance(found, type) and found in _MADE_OF)


def _uses(loss):
    """(kind, parameter, entry, call) of a loss."""
    texts = ["no", "yes", "maybe"]

    def text(i):
        return texts[i % 3]

    def number(i):
        return i / 8

    if isinstance(loss, losses.RegressionLoss):
        yield "targets", "y_true", number, lambda y: loss(y, np.full(len(y), 0.25))
        yield "predictions", "prediction", number, lambda p: loss(np.full(len(p), 0.25), p)
    elif isinstance(loss, losses.ZeroOne):
        for kind, entry in (("texts", text), ("numbers", lambda i: i % 3)):
            known = of_objects([entry(0)] * 9)
            yield kind, "y_true", entry, lambda y, k=known: loss(y, list(k[: len(y)]))
            yield (
                f"predicted {kind}", "prediction", entry, lambda p, k=known: loss(k[: len(p)], p)
            )  # fmt: skip
    else:
        rows = [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
        ones = np.ones(9, dtype=int)
        yield "labels", "y_true", lambda i: i % 2, lambda y: loss(y, np.full(len(y), 0.25))
        P = np.array(rows * 3)
        yield "named", "y_true", text, lambda y: loss(y, P[: len(y)], labels=texts)
        yield "probabilities", "prediction", number, lambda p: loss(ones[: len(p)], p)
        yield (
            "pairs", "prediction", lambda i: [i / 8, 1 - i / 8], lambda p: loss(ones[: len(p)], p)
        )  # fmt: skip
        yield (
            "rows", "prediction", lambda i: rows[i % 3],
            lambda p: loss(ones[: len(p)], p, labels=[0, 1, 2]),
        )  # fmt: skip


class Without:
    """A noise source that adds none."""

    def add_gaussian(self, value, scale):
        return value


BOUNDS = [(0, 1)] * 2


def _table(rows):
    made = Curator(rows, epsilon=1.0, delta=1e-5, bounds=BOUNDS, noise=Without())
    return made.release().Z


def _answers(outcomes):
    curator = Curator(np.zeros((len(outcomes), 1)), epsilon=1.0, delta=1e-5, norm_bound=1.0,
                      outcomes=outcomes)  # fmt: skip
    return [curator.evaluate(row) for row in range(len(outcomes) - 1)]


def _ids(ids):
    DPGIBOSampler(mu=1.0, record_ids=ids)


def _groups(ids):
    DPGIBOSampler(mu=1.0, groups=ids)


def _grouped(ids):
    return losses.by_group(np.full(len(ids), 0.25), ids)


def _of_model(returned):
    """One batch whose losses a loss of torch returns in any form."""
    return losses.per_record(
        lambda output, _: output, Network(returned), Batches(range(len(returned)))
    )


class Network:
    """A model whose outputs are given."""

    def __init__(self, outputs):
        self.outputs = outputs

    def modules(self):
        return []

    parameters = eval = modules

    def __call__(self, _):
        return self.outputs


class Batches:
    """A loader of one batch, which names its records."""

    def __init__(self, numbers):
        self.dataset = numbers

    def __iter__(self):
        yield self.dataset, self.dataset, self.dataset


def _index(labels):
    held = pd.Index(of_objects(list(labels)), dtype=object)
    convert.index_of(types.SimpleNamespace(index=held))


def _told(tell):
    """The vector that a run is told of, where a study's objective returns the losses."""

    def call(entries):
        study, taken = optuna.create_study(sampler=_sampler()), []

        def record(_self, _tx, _trial, _params, y, _enqueued=None):
            taken.append(y)
            return Published(0.5, "told", -1), False

        with mock.patch.object(Session, "_record", record):
            tell(study, entries)
        return taken[0]

    return call


def _sampler():
    return DPGIBOSampler(mu=1.0, n_trials=6, seed=0)


def _private(study, entries):
    def objective(trial):
        trial.suggest_float("x", 0, 1)
        return entries

    study.optimize(study.sampler.private(objective), n_trials=1)


def _tell_private(study, entries):
    trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    study.sampler.tell_private(trial, entries)


def _means(study, entries):
    study.sampler = optuna.samplers.RandomSampler(seed=0)

    def objective(trial):
        trial.suggest_float("x", 0, 1)
        return entries

    study.optimize(private_objective(objective, mu=1.0, n_trials=4), n_trials=1)


def _number(i):
    return i / 8


def _alone(entries):
    """A user's function that fails for a record; none of its rows where it fails for all."""
    found = convert.each_alone(lambda y: np.array([*map(float, y)]), [entries], len(entries))
    return np.full(len(entries), np.nan) if found is None else found


def _category(entries):
    """Entries of a category of whole numbers, where any other entry is missing."""
    codes = [entry if type(entry) is int and 0 <= entry < 8 else -1 for entry in entries]
    return convert.objects_of(pd.Series(pd.Categorical.from_codes(codes, range(8))))


DOORS = {
    **dict(_doors_of_losses()),
    "as_losses": Door(("convert.as_losses", "values"), _number, convert.as_losses),
    "as_floats": Door(("convert.as_floats", "returned"), _number, convert.as_floats),
    "as_labels, numbers": Door(("convert.as_labels", "given"), int, convert.as_labels),
    "as_labels, texts": Door(("convert.as_labels", "given"), str, convert.as_labels),
    "as_said": Door(
        ("convert.as_said", "label"), str,
        lambda e: [convert.as_said(label) for label in convert.as_labels(e).tolist()],
    ),
    "unmasked": Door(
        ("convert.unmasked", "given"), int,
        lambda e: convert.as_labels(convert.unmasked(np.ma.array(of_objects(e), mask=False))),
    ),
    "as_rows": Door(
        ("convert.as_rows", "given"), lambda i: [i, 0.5], lambda e: convert.as_rows(e, 2)
    ),
    "each_alone": Door(
        ("convert.each_alone", "parts"), _number, _alone
    ),
    "as_records": Door(
        ("convert.as_records", "given"), _number,
        lambda e: PerRecord(lambda told: float(told.y_true)).rows(predictions(e))[:, 0],
    ),
    "objects_of": Door(("convert.objects_of", "given"), int, _category),
    "fingerprint": Door(
        ("convert.fingerprint", "labels"), int, lambda e: convert.fingerprint(e) and None
    ),
    "index_of": Door(("convert.index_of", "returned"), int, _index),
    "per_record": Door(("losses.per_record", "loader"), _number, _of_model),
    "record_ids": Door(("DPGIBOSampler", "record_ids"), lambda i: f"id {i}", _ids),
    "groups": Door(("DPGIBOSampler", "groups"), lambda i: f"id {i}", _groups),
    "by_group": Door(
        ("losses.by_group", "losses"), _number, lambda y: losses.by_group(y, range(len(y)))
    ),
    "by_group, ids": Door(("losses.by_group", "ids"), lambda i: f"id {i}", _grouped),
    "sampler.private": Door(("DPGIBOSampler.private", "objective"), _number, _told(_private)),
    "tell_private": Door(("DPGIBOSampler.tell_private", "losses"), _number, _told(_tell_private)),
    "private_objective": Door(("private_objective", "objective"), _number, _told(_means)),
    "curator's rows": Door(("Curator", "X"), lambda i: [i / 8, 0.5], _table),
    "curator's outcomes": Door(("Curator", "outcomes"), _number, _answers),
}  # fmt: skip


RETURNED = {"as_losses", "by_group", "sampler.private", "tell_private", "private_objective"}
"""Doors that take what an objective returned, where a tuple is several results and refused."""


def seen_of(call, place):
    """Everything that shows, but for what belongs to the record at a place."""
    with warnings.catch_warnings(record=True, action="always") as heard:
        try:
            found, refusal = call(), None
        except BaseException as error:
            found, refusal = None, f"{type(error).__name__}: {error}"
    shown = {"refusal": refusal, "warnings": [str(w.message) for w in heard]}
    if found is None:
        return shown
    shown["type"], shown["length"] = type(found).__name__, len(found)
    if isinstance(found, np.ndarray):
        shown["dtype"], shown["shape"] = found.dtype.str, found.shape
    shown["others"] = [
        (type(entry).__name__, getattr(entry, "tobytes", lambda entry=entry: entry)())
        for i, entry in enumerate(found)
        if i != place
    ]
    return shown


@pytest.mark.parametrize("name", DOORS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(odd=ODD, n=st.sampled_from([1, 2, 3, 7]), form=st.sampled_from(sorted(FORMS)))
def test_one_record_decides_its_own_entry_alone(name, odd, n, form):
    door, place = DOORS[name], n - 1
    ordinary = [door.entry(i) for i in range(n)]
    replaced = [*ordinary[:place], odd()]
    expected = seen_of(lambda: door.call(FORMS[form](ordinary)), place)
    assert n == 1 or (expected["refusal"] is None) != (form == "tuple" and name in RETURNED)
    held = _held(form, replaced)
    assume(held is not None)  # pandas asks an entry whether it is missing
    assert seen_of(lambda: door.call(held), place) == expected


@pytest.mark.parametrize("name", DOORS)
def test_every_kind_of_odd_record_decides_its_own_entry_alone(name):
    """Each of them, and a text that a table's column of ids may be called."""
    door, odd = DOORS[name], [*MAKERS.values(), lambda: "patient"]
    first, second = door.entry(0), door.entry(1)
    for form in (FORMS["list"], FORMS["array"]):
        expected = seen_of(lambda form=form: door.call(form([first, second])), 1)
        for make in odd:
            held = form([first, make()])
            assert seen_of(lambda held=held: door.call(held), 1) == expected


TYPED = {
    **dict(_doors_of_losses()),
    **{
        f"{name}: named": Door(("losses", "y_true"), lambda i: i % 2, call)
        for name, call in {
            "in a list": lambda y: losses.brier(y, np.eye(2)[np.arange(7) % 2], labels=["0", "1"]),
            "as texts": lambda y: losses.zero_one(y, np.array(["0", "1", "1"] * 2 + ["0"])),
            "as fractions": lambda y: losses.zero_one(y, [0.0, 1.0, True] * 2 + [1]),
            "weighed": lambda y: losses.weighted({"0": 1, "1": 2})(y, y),
        }.items()
    },
    "bytes": Door(
        ("losses", "y_true"), lambda i: [b"no", b"yes"][i % 2],
        lambda y: losses.zero_one(y, [b"no", b"yes", b"no"] * 2 + [b"yes"]),
    ),
    **{
        name: Door(
            ("scores.predictions", "y_true"), lambda i: i % 2,
            lambda y, name=name: rows_of(
                checked_scores([name]), predictions(y, np.arange(7) % 2, probabilities=np.ones(7))
            ),
        )
        for name in ("f1", "roc_auc", "brier_score")
    },
}  # fmt: skip
"""What takes an array that NumPy has given the type that all its entries have."""


@pytest.mark.parametrize("name", TYPED)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(odd=ODD)
@example(odd=lambda: "unknown")
@example(odd=lambda: np.timedelta64(3, "s"))
def test_one_record_types_no_other_of_an_array(name, odd):
    door = TYPED[name]
    entries = [door.entry(i) for i in range(7)]
    expected = seen_of(lambda: door.call(np.array(entries)), 6)
    try:
        typed = np.array([*entries[:6], odd()])
    except BaseException:
        typed = None
    assume(typed is not None and typed.shape == np.shape(entries))
    assert seen_of(lambda: door.call(typed), 6) == expected


def _held(form, entries):
    try:
        return FORMS[form](entries)
    except BaseException:
        return None


# Files ------------------------------------------------------------------------------------------


CELLS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@pytest.mark.parametrize("reader", ["read_table", "read_outcomes"])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(cell=CELLS)
def test_one_line_of_a_curators_file_decides_its_own_entries_alone(reader, cell, tmp_path):
    def read(second):
        with (tmp_path / "x.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["age", "sex"], ["30", "F"], ["50", "M"], [second, "F"]])
        if reader == "read_outcomes":
            return read_outcomes(tmp_path / "x.csv", "age")
        return read_table(tmp_path / "x.csv", [column("age:0:99"), column("sex=F,M")])

    assert seen_of(lambda: read(cell), 2) == seen_of(lambda: read("40"), 2)


# Nothing is forgotten ---------------------------------------------------------------------------

PER_RECORD = set(
    "X X_valid y y_valid params y_true prediction record_ids groups groups_valid ids label "
    "outcomes values returned given parts losses loader objective objectives trainable "
    "make_curator".split()
)
"""Parameters that bring per-record data, or functions that return them."""

PUBLIC = set(
    "Z address agent agents args bound bounds callbacks catch changes checkpoint columns config "
    "constraints curator cv estimator features final_score finish intermediate_values "
    "kernel_matrix labels link loss of "
    "scoring loss_bound mechanism metrics model noise outcome_range param_distribution "
    "param_distributions param_space parameters points_to_evaluate prior progress result "
    "records_in_blocks results sampler search_space space spec state storage stored studies study "
    "temperature trial scores user_id incumbent value_range y_range".split()
)
"""Parameters that bring settings, releases and what else is public."""

BY_RUNS = {
    ("DPGIBOSearch.private", "trainable"): "records, ray",
    ("private_trainable", "trainable"): "means, ray",
    ("ldp_objective", "objective"): "rewards, laplace",
    ("LDPGPUCBSampler.private", "objective"): "rewards, laplace",
    ("LDPTGPUCBSampler.private", "objective"): "rewards, laplace",
    ("LDPMoMAGPUCBSampler.private", "objective"): "rewards, laplace",
    ("LDPATAGPUCBSampler.private", "objective"): "rewards, hybrid",
    ("DUETSSampler.private", "objective"): "duets",
    ("ldp_trainable", "trainable"): "rewards, ray",
    ("LDPGPUCBSearch.private", "trainable"): "rewards, ray",
    ("LDPTGPUCBSearch.private", "trainable"): "rewards, ray",
    ("LDPMoMAGPUCBSearch.private", "trainable"): "rewards, ray",
    ("LDPATAGPUCBSearch.private", "trainable"): "rewards, ray",
    ("DUETSSearch.private", "trainable"): "duets, ray",
    ("run_federated", "objectives"): "agents",
    ("DPFTSDESearch.private", "objective"): "agents, ray",
    ("answering", "make_curator"): "rows, ray",
}
"""Covered by two whole runs (``test_independence``), where a record is all that is returned."""

SAME = {
    ("DPGIBOSearch", "groups"): ("DPGIBOSampler", "groups"),
    ("PrivateSampler", "groups"): ("DPGIBOSampler", "groups"),
    ("PrivateSearch", "groups"): ("DPGIBOSampler", "groups"),
    ("private_objective", "groups"): ("DPGIBOSampler", "groups"),
    ("private_trainable", "groups"): ("DPGIBOSampler", "groups"),
    ("DPGIBOSearch", "record_ids"): ("DPGIBOSampler", "record_ids"),
    ("PrivateSampler", "record_ids"): ("DPGIBOSampler", "record_ids"),
    ("PrivateSampler.private", "objective"): ("DPGIBOSampler.private", "objective"),
    ("PrivateSampler.tell_private", "losses"): ("DPGIBOSampler.tell_private", "losses"),
    ("PrivateSearch", "record_ids"): ("DPGIBOSampler", "record_ids"),
    ("PrivateSearch.private", "trainable"): ("DPGIBOSearch.private", "trainable"),
    ("private_objective", "record_ids"): ("DPGIBOSampler", "record_ids"),
    ("private_trainable", "record_ids"): ("DPGIBOSampler", "record_ids"),
    ("Curator", "groups"): ("DPGIBOSampler", "groups"),
    ("Curator.resume", "groups"): ("DPGIBOSampler", "groups"),
    ("Curator.resume", "X"): ("Curator", "X"),
    ("Curator.resume", "outcomes"): ("Curator", "outcomes"),
    ("convert.as_reward", "returned"): ("ldp_objective", "objective"),
}
"""What is the same code as another entry."""

BY_TYPES = {
    ("PrivateSearch.fit", name)
    for name in ("X", "y", "X_valid", "y_valid", "groups", "groups_valid", "params")
}
"""Covered where a search takes its records apart (``tests/sklearn_search/test_types.py``)."""

NOT_COVERED = {
    ("PrivateSearch.score", "y"), ("PrivateSearch.score", "params"),
    *((f"PrivateSearch.{name}", "X") for name in (
        "score", "predict", "predict_proba", "predict_log_proba", "decision_function",
        "score_samples", "transform", "inverse_transform",
    )),
}  # fmt: skip
"""What asks the fitted model of records that no guarantee covers."""

OF_OPTUNA = "after_trial"
"""Optuna's hook: its values are released ones."""


def _public():
    """(name, function or class) of everything that users call."""
    for package in ("optuna_samplers", "raytune_searchers", "sklearn_search"):
        module = importlib.import_module(package)
        for name in module.__all__:
            yield name, getattr(module, name)
    yield "Curator", Curator
    for module in (losses, convert):
        for name, found in vars(module).items():
            own = inspect.isfunction(found) and found.__module__ == module.__name__
            if name[0] != "_" and (own or _is_loss(found)):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", found


OWN = {"privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search"}


def _calls():
    """(name, function) of everything that users call, with the methods of classes."""
    for name, found in _public():
        if isinstance(found, type) and found in _MADE_OF:
            yield name, found.__call__
            continue
        yield name, found
        if isinstance(found, type):
            for method, call in inspect.getmembers(found, inspect.isroutine):
                home = (getattr(call, "__module__", None) or "").partition(".")[0]
                if method[0] != "_" and method != OF_OPTUNA and home in OWN:
                    yield f"{name}.{method}", call


def _parameters():
    """Annotations by (name, parameter) of everything that users call."""
    return {
        (name, parameter.name): parameter.annotation
        for name, call in _calls()
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name[0] != "_" and parameter.name not in ("self", "kwargs")
    }


_SIMPLE = {"int", "float", "str", "bool", "bytes", "None", "Path", "os.PathLike[str]", "Address"}


def _may_hold_records(annotation):
    return not {part.strip() for part in str(annotation).split("|")} <= _SIMPLE


def test_every_parameter_that_may_hold_records_is_known():
    named = {p for (_, p), annotation in _parameters().items() if _may_hold_records(annotation)}
    assert named - PER_RECORD - PUBLIC == set(), "say whether they bring per-record data"


def test_every_public_entry_of_per_record_data_has_a_door():
    """In the table above, or in one that is the same, or in a pair of whole runs."""
    doors = {door.covers for door in DOORS.values()}
    taken = {entry for entry in _parameters() if entry[1] in PER_RECORD}
    assert taken - doors - BY_RUNS.keys() - SAME.keys() - NOT_COVERED - BY_TYPES == set()
    assert set(SAME.values()) <= doors | BY_RUNS.keys()
    assert set(BY_RUNS.values()) <= RUNS.keys()
