"""No raw reward in any byte that a study of privatised rewards leaves behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import importlib.util
import io
import logging
import pickle
import secrets
import struct
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from optuna_samplers import (
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
    ldp_objective,
)
from optuna_samplers._guard import GuardedTrialError
from optuna_samplers._local import LocalObjective
from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.plays import RewardCurator
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.vault import Transaction
from tests.leaks import Scanner, exception_leaks

GOOD = ("laplace", "duchi", "piecewise", "hybrid", "gaussian")
PLAY = "privbo:play"


# Sentinels and the scanner --------------------------------------------------------------------


class Ward:
    """Makes distinctive rewards and a text that goes with them; remembers all of them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.scanner = Scanner()
        self.token = f"patient-{secrets.token_hex(8)}"
        self.scanner.add_text("token", self.token)
        self.rewards: list[float] = []
        self.calls = 0

    def reward(self) -> float:
        """In (0.1, 1): a double of full precision whose float32, too, has many digits."""
        y = float(self.rng.uniform(0.11, 0.99))
        self.rewards.append(y)
        name = f"reward {len(self.rewards)}"
        self.scanner.add_number(name, y)
        self.scanner.add_number(f"{name} in float32", float(np.float32(y)))
        self.scanner.add_number(f"1 - {name}", 1 - y) if y < 0.89 else None
        self.scanner.add_raw(f"{name} in half-ranges", 2 * y - 1)  # what the mechanism sees
        self.scanner.add_raw(f"- {name}", -y)
        return y

    def good(self, trial: Any) -> float:
        trial.suggest_float("x", 0, 1)
        self.calls += 1
        return self.reward()


ENCODERS: dict[str, Callable[[float], bytes]] = {
    "repr": lambda y: repr(y).encode(),
    "12 digits": lambda y: f"{y:.12g} ".encode(),
    "8 digits": lambda y: f"{y:.8g} ".encode(),
    "6 digits": lambda y: f"{y:.6g} ".encode(),
    "exponent": lambda y: f"{y:.16e}".encode(),
    "percent": lambda y: f"{100 * y!r}%".encode(),
    "negative": lambda y: repr(-y).encode(),
    "utf-8 of float32": lambda y: str(np.float32(y)).encode(),
    "float.hex": lambda y: y.hex().encode(),
    "float64 <": lambda y: struct.pack("<d", y),
    "float64 >": lambda y: struct.pack(">d", y),
    "float32 as a double <": lambda y: struct.pack("<d", np.float32(y)),
    "float32 as a double >": lambda y: struct.pack(">d", np.float32(y)),
    "hex": lambda y: struct.pack("<d", y).hex().encode(),
    "HEX": lambda y: struct.pack(">d", y).hex().upper().encode(),
    "base64": lambda y: base64.b64encode(struct.pack("<d", y)),
    "base64 moved": lambda y: base64.urlsafe_b64encode(b"x" + struct.pack(">d", y)),
    "pickle": lambda y: pickle.dumps(y),
    "pickle 0": lambda y: pickle.dumps([y], protocol=0),
    "bytes repr": lambda y: repr(struct.pack("<d", y)).encode(),
    "half-range": lambda y: struct.pack("<d", 2 * y - 1),
    "complement": lambda y: repr(1 - y).encode(),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS.keys())
def test_control_the_scanner_finds_each_encoding(encoder: Callable[[float], bytes]) -> None:
    ward = Ward(1)
    y = ward.reward()
    while y > 0.89:
        y = ward.reward()
    for before in range(9):
        assert ward.scanner.hits(before * b"\xfe" + b" " + encoder(y) + b" end of the blob")
    assert ward.scanner.hits(secrets.token_bytes(100_000)) == []


def float32_of(rewards: list[float], data: bytes) -> list[float]:
    """Rewards whose four bytes, in either order, stand between others as one float32 would.

    Four bytes turn up by chance, in one of 4e9 places: this is for blobs up to some 100 kB.
    """
    return [y for y in rewards if any(struct.pack(f"{order}f", y) in data for order in "<>")]


# A study that fails in every way --------------------------------------------------------------


def _raise(error: BaseException) -> Any:
    raise error


class _Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


class _Bad:
    """An object that cannot be converted, and quotes its reward whoever asks."""

    def __init__(self, y: float, kind: type[BaseException] = ValueError) -> None:
        self.y, self.kind = y, kind

    def __float__(self) -> float:
        raise self.kind(f"cannot convert {self.y!r}")

    def __repr__(self) -> str:
        raise self.kind(f"cannot show {self.y!r}")

    __str__ = __repr__
    __len__ = __index__ = __float__  # type: ignore[assignment]


class _Shown(_Bad):
    def __repr__(self) -> str:
        return f"Shown({self.y!r})"


class _Array(_Bad):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.kind(f"no array of {self.y!r}")


class _Warns(_Bad):
    """Warns of its reward while it is converted; a filter makes that an error."""

    def __float__(self) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn(f"{self.y!r} is unusual", RuntimeWarning, stacklevel=2)
        return self.y


class _Tensor(_Bad):
    """Like a tensor that cannot leave its device."""

    def detach(self) -> Any:
        raise RuntimeError(f"tensor({self.y!r}) is elsewhere")


def _cause(ward: Ward, y: float) -> Any:
    try:
        float(f"{ward.token} {y!r}")
    except ValueError as error:
        raise RuntimeError(repr(y)) from error


def _context(ward: Ward, y: float) -> Any:
    try:
        {}[y]
    finally:
        raise OSError(5, f"{y!r}", f"/{ward.token}/{y!r}")


def _note(ward: Ward, y: float) -> Any:
    error = ValueError(ward.token)
    error.add_note(f"for reward {y!r}")
    raise error


def _class(ward: Ward, y: float) -> Any:
    raise type(f"Bad_{ward.token}_{y!r}", (Exception,), {"__str__": lambda _: str(y), "y": y})()


def _pruned(ward: Ward, y: float) -> Any:
    error = optuna.TrialPruned(f"{ward.token} {y!r}")
    error.reward = y  # type: ignore[attr-defined]
    raise error


def _closed(name: str, *arguments: Any) -> Callable[[Ward, float, Any], Any]:
    return lambda ward, y, trial: getattr(trial, name)(*(y if a is ... else a for a in arguments))


def _refused_suggestion(ward: Ward, y: float, trial: Any) -> Any:
    return trial.suggest_float("x", y, y / 2)


def _annotated_refusal(ward: Ward, y: float, trial: Any) -> Any:
    try:
        trial.suggest_float("bad", 2.0, 1.0)
    except ValueError as error:
        error.add_note(repr(y))
        raise


def _with_subclass(ward: Ward, y: float) -> Any:
    class Closed(GuardedTrialError):
        def __str__(self) -> str:
            return repr(y)

    raise Closed("report")


_PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0x7FF8_5EC2_37A1_93BD))[0]

WAYS: dict[str, Callable[..., Any]] = {
    "text": lambda ward, y, _: _raise(ValueError(f"{ward.token}: {y!r}")),
    "cause": lambda ward, y, _: _cause(ward, y),
    "context": lambda ward, y, _: _context(ward, y),
    "note": lambda ward, y, _: _note(ward, y),
    "class": lambda ward, y, _: _class(ward, y),
    "key": lambda ward, y, _: _raise(KeyError(ward.token, y)),
    "group": lambda ward, y, _: _raise(ExceptionGroup(ward.token, [ValueError(y), KeyError(y)])),
    "unicode": lambda ward, y, _: _raise(
        UnicodeDecodeError("utf-8", struct.pack("<d", y), 0, 1, ward.token)
    ),
    "stop": lambda ward, y, _: _raise(StopIteration(y)),
    "assertion": lambda ward, y, _: _raise(AssertionError(f"{y} {ward.token}")),
    "warning": lambda ward, y, _: _raise(UserWarning(repr(y))),
    "memory": lambda ward, y, _: _raise(MemoryError(y)),
    "pruned": lambda ward, y, _: _pruned(ward, y),
    "own": lambda ward, y, _: _raise(PrivacyError(f"{y!r}")),
    "own vault": lambda ward, y, _: _raise(VaultError(f"{y!r}")),
    "own guard": lambda ward, y, _: _with_subclass(ward, y),
    "report": _closed("report", ..., 0),
    "attribute": _closed("set_user_attr", "reward", ...),
    "constraint": _closed("set_constraint", "c", ...),
    "suggestion": _refused_suggestion,
    "noted suggestion": _annotated_refusal,
    "object": lambda _, y, __: _Bad(y),
    "object as type error": lambda _, y, __: _Bad(y, TypeError),
    "shown object": lambda _, y, __: _Shown(y),
    "array": lambda _, y, __: _Array(y),
    "tensor": lambda _, y, __: _Tensor(y),
    "warns": lambda _, y, __: _Warns(y),
    "list of objects": lambda _, y, __: [_Shown(y)],
    "two": lambda _, y, __: [y, y],
    "dict": lambda ward, y, _: {ward.token: y},
    "text returned": lambda ward, y, _: f"{ward.token} {y!r}",
    "bytes": lambda ward, y, _: struct.pack("<d", y),
    "complex": lambda _, y, __: complex(y, y),
    "generator": lambda _, y, __: (v for v in [y]),
    "ragged": lambda _, y, __: [[y], [y, y]],
    "none": lambda *_: None,
    "empty": lambda *_: [],
}
"""Ways that fail the trial or prune it, with an Exception."""

NUMBERS: dict[str, Callable[..., Any]] = {
    "float": lambda _, y, __: y,
    "float32": lambda _, y, __: np.float32(y),
    "numpy": lambda _, y, __: np.array([[y]]),
    "big-endian": lambda _, y, __: np.array(y, dtype=">f8"),
    "nan": lambda *_: _PAYLOAD,
    "infinite": lambda *_: -np.inf,
    "beyond the range": lambda _, y, __: 1e9 + y,
    "list": lambda _, y, __: [y],
}
"""Ways to return a reward."""

ABORTS: dict[str, Callable[..., Any]] = {
    "exit": lambda ward, y, _: _raise(SystemExit(y)),
    "exit text": lambda ward, y, _: _raise(SystemExit(f"{ward.token} {y!r}")),
    "interrupt": lambda ward, y, _: _raise(KeyboardInterrupt(y)),
    "generator exit": lambda ward, y, _: _raise(GeneratorExit(repr(y))),
    "cancelled": lambda ward, y, _: _raise(asyncio.CancelledError(y)),
    "odd": lambda ward, y, _: _raise(_Odd(ward.token, y)),
    "odd group": lambda ward, y, _: _raise(BaseExceptionGroup(repr(y), [_Odd(y)])),
    "exit in a conversion": lambda ward, y, _: _Bad(y, SystemExit),
    "odd in a conversion": lambda ward, y, _: _Bad(y, _Odd),
    "interrupt in a conversion": lambda ward, y, _: _Array(y, KeyboardInterrupt),
}
"""Ways that end a whole study."""


def run_wild(ward: Ward) -> Callable[[Any], Any]:
    """An objective that goes every way, one a trial, and is good in the end."""
    ways = [*WAYS.values()]
    for place, way in enumerate(NUMBERS.values()):
        ways.insert(5 * place, way)

    def wild(trial: Any) -> Any:
        y = ward.good(trial)
        return ways[trial.number](ward, y, trial) if trial.number < len(ways) else y

    return wild


class Traces:
    """Collects every byte that a study produces, the vault's file among them."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.artefacts: dict[str, bytes] = {}

    def storage(self) -> Any:
        if self.kind == "sqlite":
            return f"sqlite:///{self.folder}/study.db"
        file = optuna.storages.journal.JournalFileBackend(f"{self.folder}/study.log")
        return optuna.storages.JournalStorage(file)

    def add(self, name: str, data: bytes | str) -> None:
        blob = data if isinstance(data, bytes) else data.encode(errors="backslashreplace")
        self.artefacts[name] = blob

    def add_files(self, when: str) -> None:
        for path in self.folder.iterdir():
            self.add(f"{path.name} {when}", path.read_bytes())

    def add_objects(self, when: str, **objects: Any) -> None:
        for name, thing in objects.items():
            self.add(f"repr of {name} {when}", repr(thing))
            for library in ("pickle", "joblib", "cloudpickle"):
                if importlib.util.find_spec(library):
                    file = io.BytesIO()
                    importlib.import_module(library).dump(thing, file)
                    self.add(f"{library} of {name} {when}", file.getvalue())

    def callback(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if trial.number % 16 == 3:
            self.add_files(f"after trial {trial.number}")
            self.add_objects(f"after trial {trial.number}", study=study, sampler=study.sampler)
        self.add(f"trial {trial.number}", repr(trial) + repr(vars(trial)))


@pytest.fixture
def debug_log() -> Iterator[io.StringIO]:
    """Everything that any logger says at DEBUG, Optuna's and SQLAlchemy's among them."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    names = ("sqlalchemy.engine", "sqlalchemy.pool", "sqlalchemy.orm", "alembic")
    loggers = {name: logging.getLogger(name) for name in names}
    levels = {name: logger.level for name, logger in loggers.items()}
    root = logging.getLogger()
    level, verbosity = root.level, optuna.logging.get_verbosity()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    for logger in loggers.values():
        logger.setLevel(logging.DEBUG)
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    optuna.logging.enable_propagation()
    yield stream
    optuna.logging.disable_propagation()
    optuna.logging.set_verbosity(verbosity)
    for name, logger in loggers.items():
        logger.setLevel(levels[name])
    root.removeHandler(handler)
    root.setLevel(level)


def _traces(
    traces: Traces,
    sampler: Any,
    objective: Callable[[Any], Any],
    log: io.StringIO,
    capture: pytest.CaptureFixture[str],
    n_trials: int,
    n_jobs: int = 1,
) -> optuna.Study:
    study = optuna.create_study(storage=traces.storage(), study_name="s", sampler=sampler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(
            objective,
            n_trials=n_trials,
            n_jobs=n_jobs,
            catch=(Exception,),
            callbacks=[traces.callback],
            show_progress_bar=n_jobs == 1,
        )
    traces.add("warnings", "\n".join(f"{w.category} {w.message}" for w in caught))
    out, err = capture.readouterr()
    traces.add("stdout", out)
    traces.add("stderr", err)
    traces.add("log", log.getvalue())
    traces.add_files("at the end")
    traces.add_objects("at the end", study=study, sampler=sampler, trials=study.trials)
    traces.add("repr of objective", repr(objective))
    traces.add("attributes", repr(study.user_attrs))
    return study


_WARD: list[Ward] = []


def _module_wild(trial: Any) -> Any:
    """What is pickled with a wrapped objective is a name, not the rewards that it makes."""
    return run_wild(_WARD[-1])(trial)


CASES = [
    ("sqlite", "laplace", LDPGPUCBSampler),
    ("journal", "duchi", LDPTGPUCBSampler),
    ("journal", "piecewise", LDPMoMAGPUCBSampler),
    ("journal", "hybrid", LDPATAGPUCBSampler),
    ("journal", "gaussian", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mechanism", "build"), CASES, ids=[c[1] for c in CASES])
def test_a_study_leaves_no_raw_reward(
    kind: str,
    mechanism: str,
    build: Any,
    tmp_path: Path,
    debug_log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ward, traces = Ward(11), Traces(tmp_path, kind)
    _WARD.append(ward)
    settings: dict[str, Any] = {
        "reward_range": (0.0, 1.0),
        "mechanism": mechanism,
        "delta": 1e-5 if mechanism == "gaussian" else None,
        "vault": f"sqlite:///{tmp_path}/vault.db",
    }
    who = _Names(ward)
    if build is None:
        sampler: Any = optuna.samplers.TPESampler(seed=0, n_startup_trials=5)
        private = ldp_objective(_module_wild, epsilon=1.0, user_id=_who, **settings)
    else:
        sampler = build(1.0, seed=0, **settings)
        private = sampler.private(_module_wild, user_id=_who)
    _WHO.append(who)
    study = _traces(traces, sampler, private, debug_log, capfd, len(WAYS | NUMBERS) + 2)
    traces.add_objects("at the end", objective=private)
    guarantee = private.guarantee(study)
    traces.add("guarantee", str(guarantee) + repr(guarantee) + repr(guarantee.to_dict()))
    if build is not None:
        traces.add("recommendation", repr(sampler.recommend(study)))

    states = [trial.state.name for trial in study.trials]
    assert states.count("FAIL") == len(WAYS) - 1
    assert states.count("PRUNED") == 1
    assert ward.calls == len(states)
    assert guarantee.protected
    assert guarantee.n_plays == states.count("COMPLETE") == guarantee.most_plays
    log = debug_log.getvalue()
    assert "Trial 1 failed" in log
    assert "UPDATE" in log or kind == "journal"
    assert len(traces.artefacts["stderr"]) > 100  # the progress bar was on
    _check_clean(ward, study, traces)


def _check_clean(ward: Ward, study: optuna.Study, traces: Traces) -> None:
    values = [trial.value for trial in study.trials if trial.value is not None]
    public = [abs(v) for v in values] + [v for t in study.trials for v in t.params.values()]
    ward.scanner.allow(public)  # the progress bar shows six digits of released values
    assert ward.scanner.scan(traces.artefacts) == []
    assert set(values).isdisjoint(ward.rewards)
    assert set(values).isdisjoint({0.0, 1.0})  # nor a reward that was clipped
    payload = struct.pack("<d", _PAYLOAD)
    for name, blob in traces.artefacts.items():
        assert payload not in blob, name
        assert payload[::-1] not in blob, name


class _Names:
    """The users' names: one user with a name that may not show."""

    def __init__(self, ward: Ward) -> None:
        self.name = f"user-{secrets.token_hex(8)}"
        ward.scanner.add_text("name", self.name)


_WHO: list[_Names] = []


def _who(trial: Any) -> str:
    return _WHO[-1].name


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_a_study_without_a_vault_file_leaves_no_raw_reward(
    n_jobs: int, tmp_path: Path, debug_log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    ward, traces = Ward(12), Traces(tmp_path, "journal")
    _WARD.append(ward)
    private = ldp_objective(_module_wild, epsilon=0.5, bound=1.0, mechanism="laplace")
    sampler = optuna.samplers.RandomSampler(seed=1)
    study = _traces(traces, sampler, private, debug_log, capfd, len(WAYS | NUMBERS), n_jobs)
    traces.add_objects("at the end", objective=private)
    traces.add("guarantee", str(private.guarantee(study)))
    assert private.guarantee(study).protected
    _check_clean(ward, study, traces)


def test_small_artefacts_hold_no_single_float32(tmp_path: Path) -> None:
    ward, traces = Ward(13), Traces(tmp_path, "journal")
    _WARD.append(ward)
    private = ldp_objective(_quiet_reward, epsilon=1.0, reward_range=(0, 1), mechanism="laplace")
    study = optuna.create_study(storage=traces.storage(), study_name="s")
    study.optimize(private, n_trials=6)
    traces.add_files("at the end")
    traces.add_objects("at the end", study=study, objective=private)
    for name, blob in traces.artefacts.items():
        assert len(blob) < 200_000
        assert float32_of(ward.rewards, blob) == [], name
    traces.add_objects("leaky", rewards=np.array(ward.rewards, dtype=">f4"))
    assert float32_of(ward.rewards, traces.artefacts["pickle of rewards leaky"]) == ward.rewards


def _quiet_reward(trial: Any) -> float:
    return _WARD[-1].good(trial)


# Controls: an objective that is not private is found out ---------------------------------------


def _attached(ward: Ward, y: float, trial: Any) -> float:
    trial.set_user_attr("reward", y)
    return 0.5


LEAKY: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "returned": (lambda ward, y, _: y, {"files", "pickles", "log", "console"}),
    "float32 returned": (lambda ward, y, _: np.float32(y), {"files", "pickles", "log"}),
    "list returned": (lambda ward, y, _: [y, y], {"log", "console"}),
    "raised": (WAYS["text"], {"log", "console"}),
    "caused": (WAYS["cause"], {"log", "console"}),
    "noted": (WAYS["note"], {"log", "console"}),
    "grouped": (WAYS["group"], {"log", "console"}),
    "pruned": (WAYS["pruned"], {"log", "console"}),
    "attached": (_attached, {"files", "pickles", "log"}),
    "printed": (lambda ward, y, _: print(y) or 0.5, {"console"}),
    "warned": (lambda ward, y, _: warnings.warn(repr(y), stacklevel=1) or 0.5, {"warnings"}),
    "shown": (lambda ward, y, _: _Shown(y, TypeError), {"log", "console"}),
}


def _place(hit: str) -> str:
    places = {"study.": "files", "pickle of": "pickles", "std": "console", "warnings": "warnings"}
    return next((p for start, p in places.items() if hit.startswith(start)), hit.split(":")[0])


@pytest.mark.parametrize(("leaky", "places"), LEAKY.values(), ids=LEAKY.keys())
def test_control_an_objective_that_is_not_private_is_found_out(
    leaky: Callable[..., Any],
    places: set[str],
    tmp_path: Path,
    debug_log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # SQLite's statements show in the DEBUG log of SQLAlchemy, so it is the storage here
    ward, traces = Ward(14), Traces(tmp_path, "sqlite")
    sampler = optuna.samplers.RandomSampler(seed=0)

    def objective(trial: Any) -> Any:
        return leaky(ward, ward.good(trial), trial)

    study = optuna.create_study(storage=traces.storage(), study_name="s", sampler=sampler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(objective, n_trials=2, catch=(Exception,), show_progress_bar=True)
    traces.add("warnings", "\n".join(str(w.message) for w in caught))
    out, err = capfd.readouterr()
    traces.add("stdout", out)
    traces.add("stderr", err)
    traces.add("log", debug_log.getvalue())
    traces.add_files("at the end")
    traces.add("pickle of trials", pickle.dumps(study.trials))
    assert {_place(hit) for hit in ward.scanner.scan(traces.artefacts)} >= places


def test_control_a_vault_that_keeps_raw_rewards_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward = Ward(15)
    monkeypatch.setattr(LocalMechanism, "randomize", lambda self, y, noise, worst: y)
    private = ldp_objective(
        ward.good, epsilon=1.0, reward_range=(0, 1), vault=f"sqlite:///{tmp_path}/vault.db"
    )
    private(optuna.create_study().ask())
    assert ward.scanner.hits((tmp_path / "vault.db").read_bytes())


def test_control_a_pickled_closure_is_found_out() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    ward = Ward(16)
    kept = ward.reward()
    private = ldp_objective(lambda trial: kept, epsilon=1.0, reward_range=(0, 1))
    assert ward.scanner.hits(cloudpickle.dumps(private))  # what the objective itself holds


# Exceptions and their frames ------------------------------------------------------------------


def _links(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it holds, and what it came from."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        chain += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]


def printed(error: BaseException) -> bytes:
    """What log handlers print who show local variables, also of suppressed contexts.

    The first frame is the test's own, which knows the rewards.
    """
    text = []
    for link in _links(error):
        trace = link.__traceback__.tb_next if link.__traceback__ else None
        shown = traceback.TracebackException(
            type(link), link, trace, capture_locals=True, compact=False
        )
        text += [*shown.format(), repr(link.args), repr(vars(link)), repr(link.__reduce__())]
    return "\n".join(text).encode(errors="backslashreplace")


def leaks_of(error: BaseException, ward: Ward) -> list[str]:
    return exception_leaks(error, ward.scanner) + ward.scanner.hits(printed(error))


def _caught(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


def _failure(private: Any, n_jobs: int = 1) -> BaseException | None:
    """What comes out of a study; None where Optuna swallows it."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        return _caught(lambda: study.optimize(private, n_trials=2 * n_jobs - 1, n_jobs=n_jobs))
    finally:
        optuna.logging.set_verbosity(verbosity)


FAILING = WAYS | ABORTS


@pytest.mark.parametrize(
    ("way", "n_jobs"), [(way, 1) for way in FAILING] + [(way, 2) for way in list(FAILING)[::4]]
)
def test_exceptions_out_of_a_study_hold_no_reward(way: str, n_jobs: int) -> None:
    ward = Ward(21)
    private = ldp_objective(
        lambda trial: FAILING[way](ward, ward.good(trial), trial),
        epsilon=1.0,
        reward_range=(0, 1),
    )
    error = _failure(private, n_jobs)
    assert n_jobs > 1 or (error is None) == (way == "pruned")
    if error is not None:
        assert error.__cause__ is None
        assert error.__context__ is None
        assert leaks_of(error, ward) == []
        assert not isinstance(error, _Odd | ExceptionGroup)
        assert getattr(error, "code", 1) == 1


@pytest.mark.parametrize("way", FAILING)
def test_exceptions_of_ask_and_tell_hold_no_reward(way: str) -> None:
    ward = Ward(22)
    private = ldp_objective(
        lambda trial: FAILING[way](ward, ward.good(trial), trial), epsilon=1.0, bound=1.0
    )
    trial = optuna.create_study().ask()
    error = _caught(lambda: private(trial))
    assert error is not None
    assert [link for link in _links(error)] == [error]
    assert leaks_of(error, ward) == []
    assert PLAY not in trial.user_attrs


@pytest.mark.parametrize("way", [w for w in FAILING if "conversion" not in w])
def test_what_a_user_function_raises_is_withheld(way: str) -> None:
    ward, ran = Ward(23), []

    def who(trial: Any) -> Any:
        y = ward.good(trial)
        returned = FAILING[way](ward, y, trial)
        raise ValueError(f"{returned!r} {y!r}")

    private = ldp_objective(
        lambda trial: ran.append(1) or 0.5, epsilon=1.0, bound=1.0, user_id=who
    )
    error = _caught(lambda: private(optuna.create_study().ask()))
    assert error is not None
    assert leaks_of(error, ward) == []
    assert not ran


@pytest.mark.parametrize("returned", [lambda y: y, lambda y: _Shown(y), lambda y: [y, y]])
def test_a_user_that_is_none_is_not_quoted(returned: Callable[[float], Any]) -> None:
    ward = Ward(24)
    private = ldp_objective(
        ward.good, epsilon=1.0, bound=1.0, user_id=lambda trial: returned(ward.good(trial))
    )
    error = _caught(lambda: private(optuna.create_study().ask()))
    assert isinstance(error, ValueError)
    assert ward.scanner.hits(str(error).encode()) == []


@pytest.mark.parametrize("way", ["text", "cause", "context", "note", "class", "group", "odd"])
def test_control_exceptions_of_a_plain_objective_are_found_out(way: str) -> None:
    ward = Ward(25)
    error = _failure(lambda trial: FAILING[way](ward, ward.good(trial), trial))
    assert error is not None
    assert exception_leaks(error, ward.scanner)
    assert ward.scanner.hits(printed(error))


def test_control_local_variables_are_found_out() -> None:
    ward = Ward(26)

    def holds(trial: Any) -> float:
        y = ward.good(trial)
        raise ValueError("something else" if y else "")

    error = _failure(holds)
    assert error is not None
    assert ward.scanner.hits(str(error).encode()) == []
    assert exception_leaks(error, ward.scanner)
    assert ward.scanner.hits(printed(error))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError, _Odd])
@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (RewardCurator, "_charge"),
        (LocalMechanism, "randomize"),
        (LocalMechanism, "clip"),
        (Transaction, "charge_play"),
        (Transaction, "store_play"),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_errors_inside_a_release_hold_no_reward(
    owner: Any, place: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an interrupt that arrives while the engine holds the reward."""
    ward = Ward(27)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise kind(repr(ward.rewards))

    private = ldp_objective(ward.good, epsilon=1.0, bound=1.0)
    study = optuna.create_study()
    trial = study.ask()
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, fails)
        error = _caught(lambda: private(trial))
    assert error is not None
    assert leaks_of(error, ward) == []
    assert PLAY not in trial.user_attrs
    assert not private.guarantee(study).protected
    assert private(trial) == private(trial)  # nothing of the failed release was kept


def _storage_fails(error: BaseException) -> Callable[..., Any]:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fails


@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (optuna.trial.Trial, "set_user_attr"),
        (LocalObjective, "_worst"),
        (LocalObjective, "guarantee"),
        (LocalObjective, "_marker"),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
@pytest.mark.parametrize("kind", [optuna.exceptions.StorageInternalError, KeyboardInterrupt])
def test_errors_beside_a_release_hold_no_reward(
    owner: Any, place: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    ward = Ward(28)
    private = ldp_objective(ward.good, epsilon=1.0, bound=1.0)
    trial = optuna.create_study().ask()
    monkeypatch.setattr(owner, place, _storage_fails(kind("database is locked")))
    error = _caught(lambda: private(trial))
    assert isinstance(error, kind)
    assert leaks_of(error, ward) == []


class _Detached:
    def __init__(self, y: float) -> None:
        self.y = y

    def detach(self) -> Any:
        raise ValueError(f"tensor({self.y!r}) is sparse")


class _Property:
    def __init__(self, y: float) -> None:
        self.y = y

    @property
    def detach(self) -> Any:
        raise ValueError(f"no detach of {self.y!r}")


class _Half:
    """Detaches; its conversion to numpy quotes it."""

    def __init__(self, y: float) -> None:
        self.y = y

    def detach(self) -> Any:
        return self

    cpu = detach

    def numpy(self) -> Any:
        raise ValueError(f"cannot share {self.y!r}")


@pytest.mark.parametrize("build", [_Detached, _Property, _Half])
def test_tensors_that_cannot_be_read_quote_nothing(build: Callable[[float], Any]) -> None:
    ward = Ward(29)
    private = ldp_objective(lambda trial: build(ward.good(trial)), epsilon=1.0, bound=1.0)
    error = _caught(lambda: private(optuna.create_study().ask()))
    assert error is not None
    assert leaks_of(error, ward) == []


class _NoText:
    def __init__(self, y: float) -> None:
        self.y = y

    def __str__(self) -> str:
        raise ValueError(f"no text of {self.y!r}")


def test_an_exception_that_cannot_be_translated_is_withheld() -> None:
    ward = Ward(30)

    def objective(trial: Any) -> float:
        error = GuardedTrialError("report")
        error.operation = _NoText(ward.good(trial))  # type: ignore[assignment]
        raise error

    private = ldp_objective(objective, epsilon=1.0, bound=1.0)
    error = _caught(lambda: private(optuna.create_study().ask()))
    assert error is not None
    assert leaks_of(error, ward) == []


class _Name(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise ValueError(f"no name {self!s}")


def test_a_name_that_cannot_be_shown_is_withheld() -> None:
    ward = Ward(31)
    private = ldp_objective(
        ward.good, epsilon=1.0, bound=1.0, user_id=lambda trial: _Name(ward.token)
    )
    error = _caught(lambda: private(optuna.create_study().ask()))
    assert error is None or ward.scanner.hits(str(error).encode()) == []


def test_the_number_of_values_is_not_told() -> None:
    private = ldp_objective(lambda trial: np.zeros(7312), epsilon=1.0, bound=1.0)
    error = _caught(lambda: private(optuna.create_study().ask()))
    assert isinstance(error, ValueError)
    assert "7312" not in str(error)


def test_a_failing_vault_quotes_nothing(tmp_path: Path, debug_log: io.StringIO) -> None:
    ward = Ward(32)
    private = ldp_objective(
        ward.good, epsilon=1.0, bound=1.0, vault=f"sqlite:///{tmp_path}/vault.db", user_id=_who
    )
    _WHO.append(_Names(ward))
    study = optuna.create_study()
    private(study.ask())
    (tmp_path / "vault.db").write_bytes(b"no database any more")
    trial = study.ask()
    error = _caught(lambda: private(trial))
    assert isinstance(error, VaultError)
    assert exception_leaks(error, Scanner()) == []
    assert ward.scanner.hits(debug_log.getvalue().encode() + str(error).encode()) == []


# Values and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("mechanism", GOOD)
def test_no_release_is_the_clipped_reward(mechanism: str, epsilon: float) -> None:
    ward = Ward(41)
    delta = 1e-5 if mechanism == "gaussian" else None
    private = ldp_objective(
        lambda trial: ward.reward() * (1 if trial.number % 2 else 1e6),
        epsilon=epsilon,
        reward_range=(0, 1),
        mechanism=mechanism,
        delta=delta,
    )
    study = optuna.create_study()
    trials = [study.ask() for _ in range(30)]
    releases = {private(trial) for trial in trials}
    clipped = {min(y, 1.0) for y in ward.rewards} | {1.0}
    assert releases.isdisjoint(clipped)
    if mechanism in ("laplace", "gaussian"):
        assert len(releases) == 30


class _Reward(float):
    """A float that can be watched."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("fails", [False, True])
def test_the_raw_reward_is_gone_after_the_call(fails: bool) -> None:
    watched: list[weakref.ref[Any]] = []

    def objective(trial: Any) -> float:
        reward = _Reward(0.7312345678912345)
        watched.append(weakref.ref(reward))
        trial.suggest_float("x", 0, 1)
        if fails:
            with contextlib.suppress(ValueError):
                trial.suggest_float("y", 2, 1)  # remembered by the guard, frames and all
            raise ValueError(reward)
        return reward

    private = ldp_objective(objective, epsilon=1.0, reward_range=(0, 1), user_id="Jane")
    study = optuna.create_study(sampler=LDPGPUCBSampler(1.0, reward_range=(0, 1), seed=0))
    error = _caught(lambda: study.optimize(private, n_trials=1))
    assert (error is not None) is fails
    gc.collect()
    assert watched[0]() is None


def test_nothing_is_attached_before_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the study holds while the objective runs, and while the release is drawn."""
    ward, seen = Ward(42), []
    study = optuna.create_study()
    randomize = LocalMechanism.randomize

    def watched(self: LocalMechanism, y: float, noise: Any, worst: float) -> float:
        seen.append(pickle.dumps((study.trials, study.user_attrs)))
        return randomize(self, y, noise, worst)

    def objective(trial: Any) -> float:
        y = ward.good(trial)
        seen.append(pickle.dumps((study.trials, study.user_attrs)))
        return y

    monkeypatch.setattr(LocalMechanism, "randomize", watched)
    private = ldp_objective(objective, epsilon=1.0, reward_range=(0, 1), mechanism="laplace")
    trial = study.ask()
    study.tell(trial, private(trial))
    assert len(seen) == 2
    assert ward.scanner.scan({str(i): blob for i, blob in enumerate(seen)}) == []
    assert all(PLAY.encode() not in blob for blob in seen)
    leaky = pickle.dumps({"trials": study.trials, "reward": ward.rewards})
    assert ward.scanner.hits(leaky)
