"""Nothing private in any byte that a study leaves behind."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import logging
import pickle
import secrets
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from runs import make_sampler

from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import VaultError
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.session import Session
from privbo_plugins.vault import open_vault
from tests.leaks import Scanner, exception_leaks, number_forms, pair_forms, text_forms

N = 24


def sentinels(size: int = N) -> np.ndarray:
    """Random doubles of full precision in (0.1, 1)."""
    return np.random.default_rng().uniform(0.11, 0.99, size)


# The scanner itself ---------------------------------------------------------------------------


ENCODERS: dict[str, Callable[[np.ndarray], bytes]] = {
    "repr": lambda v: repr(float(v[3])).encode(),
    "json list": lambda v: json.dumps(v.tolist()).encode(),
    "numpy repr": lambda v: repr(v).encode(),
    "float32 numpy repr": lambda v: repr(v.astype(np.float32)).encode(),
    "12 digits": lambda v: f"{v[3]:.12g} ".encode(),
    "8 digits": lambda v: b" ".join(f"{x:.8g}".encode() for x in v),
    "6 digits": lambda v: b" ".join(f"{x:.6g}".encode() for x in v),
    "exponent": lambda v: f"{v[3]:.16e}".encode(),
    "percent": lambda v: f"{100 * v[3]!r}%".encode(),
    "float.hex": lambda v: float(v[3]).hex().encode(),
    "little-endian float64": lambda v: v[3:4].astype("<f8").tobytes(),
    "big-endian float64": lambda v: v[3:4].astype(">f8").tobytes(),
    "little-endian float32": lambda v: v.astype("<f4").tobytes(),
    "big-endian float32": lambda v: v.astype(">f4").tobytes(),
    "hex": lambda v: v[3:4].tobytes().hex().encode(),
    "upper hex": lambda v: v[3:4].astype(">f8").tobytes().hex().upper().encode(),
    "bytes repr": lambda v: repr(v.tobytes()).encode(),
    "base64": lambda v: base64.b64encode(v.tobytes()),
    "base64 moved by one": lambda v: base64.b64encode(b"x" + v.tobytes()),
    "base64 moved by two": lambda v: base64.urlsafe_b64encode(b"xy" + v.tobytes()),
    "pickle": lambda v: pickle.dumps(v),
    "pickle of floats": lambda v: pickle.dumps(v.tolist()),
    "pickle protocol 0": lambda v: pickle.dumps(v.tolist(), protocol=0),
    "mean": lambda v: repr(float(v.mean())).encode(),
    "bytes of the mean": lambda v: np.array(v.mean(), dtype=">f8").tobytes(),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS.keys())
def test_the_scanner_finds_each_encoding(encoder: Callable[[np.ndarray], bytes]) -> None:
    vector, scanner = sentinels(), Scanner()
    scanner.add_vector("losses", vector)
    noise = secrets.token_bytes(5000)
    for before in range(9):
        assert scanner.hits(noise[:before] + b" " + encoder(vector) + b" " + noise)


def test_every_pattern_of_the_scanner_is_found_at_every_offset() -> None:
    first, second = sentinels(2)
    patterns = [*number_forms(float(first)), *pair_forms(first, second), *text_forms("p-8c1f00e9")]
    scanner = Scanner()
    scanner.add_vector("losses", np.array([first, second]))
    scanner.add_text("name", "p-8c1f00e9")
    for encoding, pattern, _ in patterns:
        if len(pattern) >= 8:
            for before in range(8):
                hits = scanner.hits(b"\xff" * before + pattern + b"\xff" * 3)
                assert any(encoding in hit for hit in hits), encoding


def test_the_scanner_finds_nothing_in_unrelated_bytes_and_numbers() -> None:
    # Two megabytes against 2000 patterns: the chance of any false hit is below 1e-4.
    scanner = Scanner()
    scanner.add_vector("losses", sentinels(60))
    others = np.random.default_rng().uniform(0, 1, 20_000)
    text = json.dumps(others.tolist())
    assert scanner.hits(secrets.token_bytes(2_000_000)) == []
    assert scanner.hits(text.encode()) == []


def test_what_a_public_number_shares_is_no_hit_but_the_rest_is() -> None:
    scanner = Scanner()
    scanner.add_number("x", 0.123456789012345)
    scanner.allow([0.123456700000001])
    assert not scanner.hits(b"[0.123457]")
    assert scanner.hits(b"[0.12345679]")
    assert scanner.hits(b"[0.123456789012345]")


def test_shortened_digits_inside_a_longer_number_are_no_hit() -> None:
    scanner = Scanner()
    scanner.add_number("x", 0.123456789012345)
    assert scanner.hits(b"[0.123457]")
    assert not scanner.hits(b"[0.1234571]")
    assert not scanner.hits(b"[10.123457]")


# A study that fails in every way --------------------------------------------------------------


class Ward:
    """Makes sentinel losses and returns or raises them in every way; remembers all of them."""

    def __init__(self) -> None:
        self.scanner = Scanner()
        self.calls = 0
        self.token = f"patient-{secrets.token_hex(8)}"
        self.scanner.add_text("token", self.token)

    def vector(self, size: int = N) -> np.ndarray:
        vector = sentinels(size)
        self.scanner.add_vector(f"trial call {self.calls}", vector)
        return vector

    def good(self, trial: Any) -> np.ndarray:
        trial.suggest_float("x", 0, 1)
        self.calls += 1
        return self.vector()

    def wild(self, trial: Any) -> Any:
        """The first trial is good, each further one goes wrong in another way, then all good."""
        trial.suggest_float("x", 0, 1)
        self.calls += 1
        y = self.vector()
        ways = [lambda: y, *(lambda way=way: way(self, y) for way in WAYS)]
        return ways[self.calls - 1]() if self.calls <= len(ways) else y


def _raise(error: BaseException) -> Any:
    raise error


def _with_cause(ward: Ward, y: np.ndarray) -> Any:
    try:
        float(f"{ward.token} {y.tolist()}")
    except ValueError as error:
        raise RuntimeError(repr(y)) from error


def _with_note(ward: Ward, y: np.ndarray) -> Any:
    error = ValueError(ward.token)
    error.add_note(str(y.tolist()))
    raise error


def _custom_class(ward: Ward, y: np.ndarray) -> Any:
    name = f"Bad_{ward.token}_{y[0]!r}"
    raise type(name, (Exception,), {"__str__": lambda _: str(y.tolist()), "data": y})()


def _with_attribute(ward: Ward, y: np.ndarray) -> Any:
    error = OSError(5, f"{ward.token} {y.tolist()}", f"/{y[1]!r}")
    error.losses = y  # type: ignore[attr-defined]
    raise error


class _Evil:
    """An array-like whose conversion quotes its data."""

    def __init__(self, y: np.ndarray) -> None:
        self.y = y

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise ValueError(f"cannot convert {self.y.tolist()}")

    def __repr__(self) -> str:
        return f"Evil({self.y.tolist()})"


def _in_part(y: np.ndarray, *values: float) -> np.ndarray:
    y = y.copy()
    y[: len(values)] = values
    return y


WAYS: list[Callable[[Ward, np.ndarray], Any]] = [
    lambda ward, y: _raise(ValueError(f"{ward.token}: {y.tolist()}")),
    _with_cause,
    _with_note,
    _custom_class,
    _with_attribute,
    lambda ward, y: _raise(KeyError(ward.token, *y.tolist())),
    lambda ward, y: _raise(ExceptionGroup(ward.token, [ValueError(repr(y))])),
    lambda ward, y: _raise(UnicodeDecodeError("utf-8", y.tobytes(), 0, 1, ward.token)),
    lambda _, y: _raise(UserWarning(repr(y.tolist()))),
    lambda ward, y: _raise(optuna.TrialPruned(f"{ward.token} {y.tolist()}")),
    lambda _, y: y[:-1],
    lambda _, y: np.concatenate([y, y]),
    lambda _, y: y.reshape(2, -1),
    lambda _, y: float(y.mean()),
    lambda ward, y: [ward.token, *map(str, y)],
    lambda ward, y: [ward.token] * len(y),
    lambda ward, y: {"losses": y, "name": ward.token},
    lambda _, y: _Evil(y),
    lambda _, y: (float(v) for v in y),
    lambda _, y: [y.tolist(), y[:-1].tolist()],
    lambda _, y: y + 1j * y,
    lambda *_: None,
    lambda _, y: y[:0],
    lambda _, y: _in_part(y, np.nan, np.inf, -np.inf),
    lambda _, y: [None, *y.tolist()[1:]],
    lambda _, y: y.astype(">f8"),
]


class Traces:
    """Collects every byte that a study produces, except the vault's own file."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.artefacts: dict[str, bytes] = {}
        self.log = io.StringIO()

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
            if not path.name.startswith("vault"):
                self.add(f"{path.name} {when}", path.read_bytes())

    def add_objects(self, when: str, **objects: Any) -> None:
        for name, thing in objects.items():
            self.add(f"repr of {name} {when}", repr(thing))
            self.add(f"pickled {name} {when}", pickle.dumps(thing))
            for library in ("joblib", "cloudpickle"):
                if importlib.util.find_spec(library):
                    file = io.BytesIO()
                    importlib.import_module(library).dump(thing, file)
                    self.add(f"{library} {name} {when}", file.getvalue())

    def callback(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        self.add_files(f"after trial {trial.number}")
        if trial.number % 8 == 3:
            self.add_objects(f"after trial {trial.number}", study=study, sampler=study.sampler)
        self.add(f"trial {trial.number}", repr(trial))


@pytest.fixture
def debug_log() -> Iterator[io.StringIO]:
    """Everything that any logger says at DEBUG; Optuna propagates into it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, level = logging.getLogger(), logging.getLogger().level
    verbosity = optuna.logging.get_verbosity()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    optuna.logging.enable_propagation()
    yield stream
    optuna.logging.disable_propagation()
    optuna.logging.set_verbosity(verbosity)
    root.removeHandler(handler)
    root.setLevel(level)


def _study_traces(
    traces: Traces,
    sampler: DPGIBOSampler,
    objective: Callable[[optuna.Trial], Any],
    log: io.StringIO,
    capture: pytest.CaptureFixture[str],
    n_trials: int,
) -> optuna.Study:
    study = optuna.create_study(storage=traces.storage(), study_name="s", sampler=sampler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(
            objective,
            n_trials=n_trials,
            catch=(Exception,),
            callbacks=[traces.callback],
            show_progress_bar=True,
        )
    traces.add("warnings", "\n".join(f"{w.category} {w.message}" for w in caught))
    out, err = capture.readouterr()
    traces.add("stdout", out)
    traces.add("stderr", err)
    traces.add("log", log.getvalue())
    traces.add_files("at the end")
    traces.add_objects("at the end", study=study, sampler=sampler, trials=study.trials)
    traces.add("user attributes", repr(study.user_attrs))
    traces.add("objective", repr(objective))
    if importlib.util.find_spec("pandas"):
        traces.add("dataframe", study.trials_dataframe().to_csv())
    return study


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
@pytest.mark.parametrize("place", ["memory vault", "vault file"])
def test_a_study_leaves_no_private_byte(
    kind: str,
    place: str,
    tmp_path: Path,
    debug_log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ward, traces = Ward(), Traces(tmp_path, kind)
    sampler = make_sampler(
        n_steps=4, vault=f"sqlite:///{tmp_path}/vault.db" if place == "vault file" else None
    )
    private = sampler.private(ward.wild)
    study = _study_traces(traces, sampler, private, debug_log, capfd, len(WAYS) + 20)
    traces.add("guarantee", str(sampler.guarantee(study)) + repr(sampler.guarantee(study)))
    traces.add("recommendation", repr(sampler.recommend(study)))

    states = [trial.state.name for trial in study.trials]
    assert sampler.finished(study)
    assert states.count("FAIL") >= 20
    assert states.count("PRUNED") == 1
    assert ward.calls == len(states) > len(WAYS)
    assert "Trial 1 failed" in debug_log.getvalue()
    assert len(traces.artefacts["stderr"]) > 100  # the progress bar was on
    for trial in study.trials:  # the progress bar shows six digits of released values
        ward.scanner.allow([trial.value or 0.0, *trial.params.values()])
    assert ward.scanner.scan(traces.artefacts) == []


def _returns_the_mean(ward: Ward) -> Callable[[optuna.Trial], Any]:
    return lambda trial: float(np.mean(ward.good(trial)))


def _returns_the_vector(ward: Ward) -> Callable[[optuna.Trial], Any]:
    return lambda trial: ward.good(trial)


def _raises_the_vector(ward: Ward) -> Callable[[optuna.Trial], Any]:
    return lambda trial: _raise(ValueError(str(ward.good(trial).tolist())))


def _attaches_the_vector(ward: Ward) -> Callable[[optuna.Trial], Any]:
    def objective(trial: optuna.Trial) -> float:
        trial.set_user_attr("losses", ward.good(trial).tolist())
        return 0.5

    return objective


def _prunes_with_the_vector(ward: Ward) -> Callable[[optuna.Trial], Any]:
    return lambda trial: _raise(optuna.TrialPruned(str(ward.good(trial).tolist())))


LEAKY = {
    "mean returned": (_returns_the_mean, {"files", "pickles", "log", "console"}),
    "vector returned": (_returns_the_vector, {"log", "console"}),
    "vector raised": (_raises_the_vector, {"log", "console"}),
    "vector attached": (_attaches_the_vector, {"files", "pickles"}),
    "pruned with it": (_prunes_with_the_vector, {"log", "console"}),
}


def _place(hit: str) -> str:
    places = {"study.": "files", "pickled trials": "pickles", "std": "console"}
    return next((p for start, p in places.items() if hit.startswith(start)), hit.split(":")[0])


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
@pytest.mark.parametrize(("leaky", "places"), LEAKY.values(), ids=LEAKY.keys())
def test_control_an_objective_that_is_not_private_is_found_out(
    kind: str,
    leaky: Callable[[Ward], Callable[[optuna.Trial], Any]],
    places: set[str],
    tmp_path: Path,
    debug_log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ward, traces = Ward(), Traces(tmp_path, kind)
    _study_traces(traces, make_sampler(), leaky(ward), debug_log, capfd, 3)
    assert {_place(hit) for hit in ward.scanner.scan(traces.artefacts)} >= places


# The vault file -------------------------------------------------------------------------------


def _vault_bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith("vault")}


@pytest.mark.parametrize("n", [2, 3, N, 900])
def test_the_vault_file_holds_no_loss_after_each_released_step(n: int, tmp_path: Path) -> None:
    """And, as the control, the losses of the batch under way are found."""
    scanner, seen = Scanner(), {"held": 0, "empty": 0}
    sampler = make_sampler(
        mu=2000.0, n_steps=4, batch_size=3, vault=f"sqlite:///{tmp_path}/vault.db"
    )

    def objective(trial: Any) -> np.ndarray:
        trial.suggest_float("x", 0, 1)
        vector = sentinels(n)
        scanner.add_vector(f"trial {trial.number}", vector[:40])
        return vector

    def look(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        hits = scanner.scan(_vault_bytes(tmp_path))
        if sampler._state(study).session.held_losses():
            seen["held"] += 1
            assert hits
        else:
            seen["empty"] += 1
            assert hits == []

    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective), callbacks=[look])
    assert seen["held"] == 8
    assert seen["empty"] >= 6


@pytest.mark.parametrize("memory", [3, -1])
def test_purge_empties_the_vault_file(memory: int, tmp_path: Path) -> None:
    ward = Ward()
    url = f"sqlite:///{tmp_path}/vault.db"
    sampler = make_sampler(mu=50.0, memory=memory, vault=url, n_steps=3)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(ward.good), n_trials=5)
    assert len(sampler._state(study).session.held_losses()) == 3
    assert ward.scanner.scan(_vault_bytes(tmp_path))
    sampler.purge(study)
    assert sampler._state(study).session.held_losses() == []
    assert ward.scanner.scan(_vault_bytes(tmp_path)) == []
    assert sampler.guarantee(study).n_releases == 6


def test_purge_in_the_middle_of_a_batch_empties_the_vault_file(tmp_path: Path) -> None:
    ward = Ward()
    sampler = make_sampler(batch_size=3, vault=f"sqlite:///{tmp_path}/vault.db")
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(ward.good), n_trials=4)
    assert ward.scanner.scan(_vault_bytes(tmp_path))
    sampler.purge(study)
    assert ward.scanner.scan(_vault_bytes(tmp_path)) == []


@pytest.mark.parametrize("seed", range(6))
def test_deleted_losses_of_any_size_leave_no_remnant(seed: int, tmp_path: Path) -> None:
    """Rows of many sizes, deleted in random order, so that pages are split and merged."""
    rng, scanner = np.random.default_rng(seed), Scanner()
    vault = open_vault(f"sqlite:///{tmp_path}/vault.db")
    alive: list[str] = []
    for i in range(150):
        size = int(rng.choice([1, 2, 5, 13, 40, 90, 200, 420]))
        vector = sentinels(size)
        for value in vector[:3]:
            scanner.add_number(f"{i}", value)
        with vault.transaction("run") as tx:
            tx.put_losses(str(i), vector)
            alive.append(str(i))
            if rng.random() < 0.4:
                gone = [alive.pop(int(rng.integers(len(alive)))) for _ in range(len(alive) // 3)]
                tx.drop_losses(gone)
    assert scanner.scan(_vault_bytes(tmp_path))  # the control: those alive are found
    with vault.transaction("run") as tx:
        tx.drop_losses(alive)
    vault.close()
    assert scanner.scan(_vault_bytes(tmp_path)) == []


def test_the_vault_file_and_the_study_file_may_not_be_the_same(tmp_path: Path) -> None:
    """Otherwise raw losses would lie in the storage that dashboards read."""
    ward = Ward()
    url = f"sqlite:///{tmp_path}/study.db"
    sampler = make_sampler(batch_size=3, vault=url)
    study = optuna.create_study(storage=url, sampler=sampler)
    with pytest.raises(VaultError, match="same database"):
        study.optimize(sampler.private(ward.good), n_trials=4)
    assert ward.scanner.hits((tmp_path / "study.db").read_bytes()) == []


# Exceptions and their frames ------------------------------------------------------------------


def _raised(objective: Callable[[optuna.Trial], Any], sampler: Any, n_jobs: int = 1) -> Any:
    study = optuna.create_study(sampler=sampler)
    try:
        study.optimize(objective, n_trials=1, n_jobs=n_jobs)
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_exceptions_out_of_a_private_objective_hold_no_data(way: int, n_jobs: int) -> None:
    ward, sampler = Ward(), make_sampler()

    def objective(trial: Any) -> Any:
        trial.suggest_float("x", 0, 1)
        return WAYS[way](ward, ward.vector())

    error = _raised(sampler.private(objective), sampler, n_jobs)
    if error is not None:
        assert error.__cause__ is None
        assert error.__context__ is None
        assert exception_leaks(error, ward.scanner) == []


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_control_frames_and_exceptions_of_a_plain_objective_are_found() -> None:
    ward, sampler = Ward(), make_sampler()

    def quotes(trial: Any) -> Any:
        y = ward.good(trial)
        raise ValueError(str(y.tolist()))

    def holds(trial: Any) -> Any:
        y = ward.good(trial)
        raise ValueError(f"{len(y)} records")

    def causes(trial: Any) -> Any:
        return _with_cause(ward, ward.good(trial))

    for objective, where in ((quotes, "exception"), (holds, "holds"), (causes, "exception")):
        leaks = exception_leaks(_raised(objective, sampler), ward.scanner)
        assert any(where in leak for leak in leaks)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_interrupts_of_the_objective_hold_no_data(kind: type[BaseException]) -> None:
    ward, sampler = Ward(), make_sampler()

    def objective(trial: Any) -> Any:
        raise kind(str(ward.good(trial).tolist()))

    error = _raised(sampler.private(objective), sampler)
    assert error is not None
    assert exception_leaks(error, ward.scanner) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
@pytest.mark.parametrize("place", ["_charge", "_draw", "_store"])
def test_errors_inside_a_release_hold_no_data(
    kind: type[BaseException], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an interrupt that arrives while the engine holds the vector."""
    ward, sampler = Ward(), make_sampler()

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise kind("here")

    monkeypatch.setattr(Session, place, fails)
    error = _raised(sampler.private(ward.good), sampler)
    assert error is not None
    assert exception_leaks(error, ward.scanner) == []


@pytest.mark.parametrize("way", [10, 12, 13, 14, 17])
def test_errors_of_tell_private_hold_no_data(way: int) -> None:
    ward, sampler = Ward(), make_sampler()
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    sampler.tell_private(trial, ward.vector())
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    losses = WAYS[way](ward, ward.vector())
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - any message, without data
        sampler.tell_private(trial, losses)
    assert raised.value.__context__ is None
    assert exception_leaks(raised.value, ward.scanner) == []


def test_a_failing_vault_quotes_nothing(
    tmp_path: Path, debug_log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward, sampler = Ward(), make_sampler(vault=f"sqlite:///{tmp_path}/vault.db")

    def collides(self: Session, tx: Any, query: Any, scale: float) -> None:
        charge = Charge(query.kind, query.key, query.mu, query.sensitivity, scale)
        tx.put_losses("0", ward.vector())
        tx.charge(charge)
        tx.put_losses("0", ward.vector())

    monkeypatch.setattr(Session, "_charge", collides)
    error = _raised(sampler.private(ward.good), sampler)
    assert "vault" in str(error)
    assert exception_leaks(error, ward.scanner) == []
    assert ward.scanner.hits(debug_log.getvalue().encode()) == []
    assert ward.scanner.scan(_vault_bytes(tmp_path)) == []
