"""Runs experiments on secret losses in a Ray of its own, so that every byte it leaves is scanned.

``python -m tests.raytune_searchers.leak_driver private|control FOLDER``, with a line on standard
input when Ray may end. The losses are made inside the trainables from a key that lies in the
folder ``LEAK_SECRET``, outside of everything that is scanned; which vectors were made is listed
beside it. ``LEAK_VAULT`` is a vault's URL, which is secret too. ``private`` leaves nothing behind;
``control`` leaks in every way that is scanned for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import re
import sys
import traceback
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import cloudpickle, tune
from ray.tune.search import Searcher

from tests.raytune_searchers.conftest import INIT

N, MANY = 120, 30_000


# Secrets --------------------------------------------------------------------------------------


def sentinels(key: bytes, call: str, n: int) -> np.ndarray:
    """Random doubles of full precision in (0.1, 1), shape (n,)."""
    seed = int.from_bytes(hashlib.sha256(key + call.encode()).digest())
    return np.random.default_rng(seed).uniform(0.11, 0.99, n)


def token(key: bytes, call: str) -> str:
    """A patient's name."""
    return f"patient-{hashlib.sha256(key + b'name' + call.encode()).hexdigest()[:16]}"


def fresh(n: int) -> tuple[str, np.ndarray]:
    """A name and losses that nobody has seen before, entered into the list of all of them."""
    folder = Path(os.environ["LEAK_SECRET"])
    key, call = (folder / "key").read_bytes(), uuid.uuid4().hex
    with (folder / "calls").open("a") as calls:
        calls.write(f"{call} {n}\n")
    return token(key, call), sentinels(key, call, n)


def number() -> int:
    """Which trial of the experiment this is, from 1."""
    found = re.search(r"_[0-9a-f]{8}_(\d+)_", Path(tune.get_context().get_trial_dir()).name)
    assert found is not None
    return int(found[1])


# Private trainables ---------------------------------------------------------------------------


def mutating(config: dict[str, Any]) -> np.ndarray:
    """Returns its losses, and leaves them in its config."""
    name, y = fresh(N)
    config["losses"], config["x"], config[name] = y.tolist(), float(y[0]), y
    return y


def big(config: dict[str, Any]) -> np.ndarray:
    """Several blocks of losses; the first trial fails at first."""
    name, y = fresh(MANY)
    mark = Path(os.environ["LEAK_SECRET"]) / "failed"
    if number() == 1 and not mark.exists():
        mark.touch()
        raise RuntimeError(f"{name} {y[:50].tolist()}")
    return y


def _raise(error: BaseException) -> Any:
    raise error


def _with_cause(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    try:
        float(f"{name} {y.tolist()}")
    except ValueError as error:
        raise RuntimeError(repr(y)) from error


def _with_note(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    error = ValueError(name)
    error.add_note(str(y.tolist()))
    raise error


def _custom_class(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    members = {"__str__": lambda _: str(y.tolist()), "data": y}
    raise type(f"Bad_{name}_{y[0]!r}", (Exception,), members)()


def _with_attribute(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    error = OSError(5, f"{name} {y.tolist()}", f"/{y[1]!r}")
    error.losses = y  # type: ignore[attr-defined]
    raise error


def _record_missing(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    return {0.5: 1}[float(y[2])]


def _warns(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn(f"{name} {y.tolist()}", RuntimeWarning, stacklevel=2)


def _reports(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    tune.report({"loss": float(y.mean()), "losses": y})


def _reports_and_goes_on(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    try:
        tune.report({"loss": float(y.mean()), "losses": y})
    except Exception:
        raise ValueError(name) from None


def _mutates(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    config["losses"], config["x"] = y.tolist(), float(y[0])
    raise ValueError(f"{config}")


class _Evil:
    """An array-like whose conversion quotes its data."""

    def __init__(self, y: np.ndarray) -> None:
        self.y = y

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise ValueError(f"cannot convert {self.y.tolist()}")

    def __repr__(self) -> str:
        return f"Evil({self.y.tolist()})"


WAYS: list[Any] = [
    lambda name, y, _: _raise(ValueError(f"{name}: {y.tolist()}")),
    _with_cause,
    _with_note,
    _custom_class,
    _with_attribute,
    _record_missing,
    lambda name, y, _: _raise(KeyError(name, *y.tolist())),
    lambda name, y, _: _raise(ExceptionGroup(name, [ValueError(repr(y))])),
    lambda name, y, _: _raise(UnicodeDecodeError("utf-8", y.tobytes(), 0, 1, name)),
    lambda name, y, _: _raise(UserWarning(repr(y.tolist()))),
    lambda name, y, _: _raise(SystemExit(f"{name} {y.tolist()}")),
    _warns,
    _reports,
    _reports_and_goes_on,
    _mutates,
    lambda name, y, _: y[:-1],
    lambda name, y, _: y.reshape(2, -1),
    lambda name, y, _: float(y.mean()),
    lambda name, y, _: [name, *map(str, y)],
    lambda name, y, _: {"losses": y, "loss": float(y.mean()), "name": name},
    lambda name, y, _: _Evil(y),
    lambda name, y, _: (float(v) for v in y),
]
"""Each fails, and quotes its data."""


def good(config: dict[str, Any]) -> np.ndarray:
    """Losses, and nothing wrong."""
    return fresh(N)[1]


def failing(way: Any) -> Any:
    """A trainable that goes wrong in one way."""
    return lambda config: way(*fresh(N), config)


def all_ways(private: Any, config: dict[str, Any]) -> Any:
    """Every way in one trial, and what came out of it in one exception."""
    errors: list[Exception] = []
    for trainable in private:
        try:
            trainable(config)
        except Exception as error:
            errors.append(error)
        except SystemExit as error:
            errors.append(RuntimeError(f"{error!r} {error.__cause__!r} {error.__context__!r}"))
    raise ExceptionGroup(f"{len(errors)} failures", errors)


ALONE: list[Any] = [_with_cause, _with_attribute, _mutates, _reports]
"""Ways that get a trial of their own, after the first that is good and one for all of them."""


def make_wild(search: Any) -> Any:
    """The trainable whose trials go wrong."""
    private = {
        1: search.private(good),
        2: functools.partial(all_ways, [search.private(failing(way)) for way in WAYS]),
        **{i: search.private(failing(way)) for i, way in enumerate(ALONE, 3)},
    }

    def wild(config: dict[str, Any]) -> Any:
        return private.get(number(), private[1])(config)

    return wild


WILD_TRIALS = 3 + len(ALONE)


# Trainables that leak -------------------------------------------------------------------------


def _leaks_into_home(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    (Path.home() / "notes.txt").write_text(f"{name} {y.tolist()}")
    return {"loss": 0.5}


def _leaks_by_mutation(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    config["losses"] = y.tolist()
    return {"loss": 0.5}


def _leaks_by_print(name: str, y: np.ndarray, config: dict[str, Any]) -> Any:
    print(name, y.tolist(), os.environ["LEAK_VAULT"], flush=True)
    print(name, y.tolist(), flush=True, file=sys.stderr)
    return {"loss": 0.5}


LEAKS: list[Any] = [
    _reports,
    lambda name, y, _: _raise(ValueError(f"{name}: {y.tolist()}")),
    _with_attribute,
    _leaks_by_mutation,
    _leaks_by_print,
    _leaks_into_home,
]


def leaky(config: dict[str, Any]) -> Any:
    """Every trial leaks in another way."""
    name, y = fresh(N)
    return LEAKS[number() - 1](name, y, config)


class Remembering(Searcher):  # type: ignore[misc]
    """Keeps what it is told, and saves it."""

    def __init__(self) -> None:
        super().__init__(metric="loss", mode="min")
        self.told: list[Any] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": len(self.told) / 10}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.told.append(result)

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(self))

    def restore(self, checkpoint_path: str) -> None:
        pass


# The two runs ---------------------------------------------------------------------------------


def keep(folder: Path, search: Any, trainable: Any, results: Any) -> dict[str, Any]:
    """Writes down everything that a user holds after ``fit``, and returns facts about it."""
    folder.mkdir()
    (folder / "search.pickle").write_bytes(pickle.dumps(search))
    (folder / "search.cloudpickle").write_bytes(cloudpickle.dumps(search))
    (folder / "trainable.cloudpickle").write_bytes(cloudpickle.dumps(trainable))
    (folder / "frame.csv").write_text(results.get_dataframe().to_csv())
    shown = [repr(search), repr(trainable), repr(results), *map(repr, results)]
    (folder / "shown.txt").write_text("\n".join(shown))
    told = [t for e in results.errors for t in (repr(e), *traceback.format_exception(e))]
    (folder / "errors.txt").write_text("\n".join(told))
    (folder / "errors.pickle").write_bytes(cloudpickle.dumps(results.errors))
    numbers = [v for r in results for v in ({**(r.metrics or {}), **(r.config or {})}).values()]
    return {
        "trials": len(results),
        "errors": len(results.errors),
        "public": [v for v in numbers if isinstance(v, float) and np.isfinite(v)],
    }


def run_private(root: Path) -> dict[str, Any]:
    """Experiments that leave nothing private behind."""
    from tests.raytune_searchers.runs import ledger, make_search, tuner

    small, large, odd = make_search(), make_search(vault="env:LEAK_VAULT"), make_search()
    experiments = {
        "small": (small, small.private(mutating), {}),
        "big": (large, large.private(big), {"failure": tune.FailureConfig(max_failures=1)}),
        "wild": (odd, make_wild(odd), {"num_samples": WILD_TRIALS}),
    }
    facts = {}
    for name, (search, private, settings) in experiments.items():
        try:
            results = tuner(search, private, root / "experiments", name=name, **settings).fit()
        except RuntimeError:  # what it left is scanned all the same
            traceback.print_exc()
            continue
        folder = root / "objects" / name
        facts[name] = keep(folder, search, private, results)
        guarantee = search.guarantee(results)
        (folder / "guarantee.txt").write_text(f"{guarantee}\n{guarantee!r}")
        (folder / "public.txt").write_text(f"{search.history()} {search._report()}")
        charges, _, held = ledger(search)
        facts[name] |= {"protected": guarantee.protected, "held": held, "charges": len(charges)}
    return facts


def run_control(root: Path) -> dict[str, Any]:
    """An experiment that leaks, and a vector in the object store."""
    from tests.raytune_searchers.runs import tuner

    search = Remembering()
    results = tuner(
        search,
        leaky,
        root / "experiments",
        name="control",
        param_space={},
        num_samples=len(LEAKS),
    ).fit()
    facts = {"control": keep(root / "objects" / "control", search, leaky, results)}
    _held.append(ray.put(fresh(MANY)[1]))
    return facts


_held: list[Any] = []


def main() -> None:
    kind, root = sys.argv[1], Path(sys.argv[2])
    settings = INIT | {"include_dashboard": False, "log_to_driver": True, "logging_level": "INFO"}
    ray.init(address="local", _temp_dir=str(root / "ray"), **settings)
    facts = {"private": run_private, "control": run_control}[kind](root)
    (root / "facts.json").write_text(json.dumps(facts))
    sys.stdin.readline()
    ray.shutdown()


if __name__ == "__main__":
    main()
