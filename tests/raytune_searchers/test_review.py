"""What readers who meant harm have found, each as a test."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

import ray
from ray import tune

from privbo_plugins.errors import ObjectiveFailedError, PrivacyError, PrivacyWarning, VaultError
from privbo_plugins.returned import as_losses
from privbo_plugins.scrub import attempt
from raytune_searchers import DPGIBOSearch, _trainable
from raytune_searchers._channel import LossChannel
from tests.raytune_searchers.runs import LINE, RECORDS, fit, make_search, squares

pytestmark = pytest.mark.usefixtures("the_ray")


class Panic(BaseException):
    """What libraries written in other languages raise."""


class Panics:
    """An object whose conversion to an array quotes a record."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Panic(f"on record {RECORDS[0]}")


class Chatters:
    """An object whose conversion to an array warns about a record."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        warnings.warn(f"record {RECORDS[0]} looks odd", UserWarning, stacklevel=1)
        return RECORDS


def begun(search: DPGIBOSearch) -> DPGIBOSearch:
    """As Tune begins a fit."""
    assert search.set_search_properties(None, None, dict(LINE), num_samples=-1)
    return search


def told(search: DPGIBOSearch, trial: str) -> float:
    """One whole trial, through the channels that the driver and the worker use."""
    config = search.suggest(trial)
    assert isinstance(config, dict)
    channel = search._open()
    channel.call("enter", trial, "attempt")
    value = channel.tell(trial, np.array([config["x"]]), squares(config))
    search.on_trial_complete(trial, {"loss": value, "trial_id": trial})
    return value


def protected(search: DPGIBOSearch) -> bool:
    """What the search says at the moment."""
    return search.guarantee().protected


# Conversion is the user's code too --------------------------------------------------------------


@pytest.mark.parametrize("made", [Panics(), [Panics()] * 3])
def test_what_a_returned_object_raises_is_withheld(made: Any) -> None:
    losses, error = _trainable._converted(made)
    assert losses is None
    assert isinstance(error, ObjectiveFailedError | ValueError)
    assert str(RECORDS[0]) not in str(error)


def test_what_a_returned_object_warns_of_is_not_heard() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(as_losses(Chatters()), RECORDS)


def test_masked_records_count_as_not_scored() -> None:
    losses = as_losses(np.ma.array([0.1, 0.2, 0.9], mask=[False, True, False]))
    assert np.isnan(losses).tolist() == [False, True, False]


def test_one_odd_record_does_not_fail_the_others() -> None:
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("Jane Doe")

    losses = as_losses([0.5, Odd(), 0.25])
    assert np.isnan(losses).tolist() == [False, True, False]
    assert attempt(lambda: as_losses([0.5, Odd()]), lambda _: None)[1] is None


# One ledger for one run -------------------------------------------------------------------------


def test_a_host_that_is_begun_again_does_not_begin_another_ledger(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    path.unlink()
    ray.kill(search._anchor.actor)
    with pytest.raises(VaultError, match=r"not where it was|no such table"):  # new host, or old
        search._call("ask", "b", False)
    search._anchor.end()


def test_another_vault_in_its_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    path.unlink()
    make_search(vault=f"sqlite:///{path}")
    search._anchor.end()
    with pytest.raises(VaultError, match="gone"):
        search._call("ask", "b", False)


def test_a_vault_that_was_set_back_under_a_living_host_is_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    shutil.copy(path, backup)
    told(search, "b")
    shutil.copy(backup, path)
    with pytest.raises(VaultError, match="set back"):
        search._call("ask", "c", False)
    search._anchor.end()


def test_a_vault_that_was_set_back_between_two_processes_is_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    search = begun(make_search(vault=f"sqlite:///{path}"))
    told(search, "a")
    shutil.copy(path, backup)
    told(search, "b")
    search.save(str(tmp_path / "state"))
    search._anchor.end()
    shutil.copy(backup, path)
    later = DPGIBOSearch(1, metric="loss", mode="min", vault=f"sqlite:///{path}")
    later.restore(str(tmp_path / "state"))
    with pytest.raises(VaultError, match="set back"):
        later._call("ask", "c", False)


def test_reading_does_not_disturb_a_run(tmp_path: Path) -> None:
    search = begun(make_search(vault=f"sqlite:///{tmp_path / 'vault.db'}"))
    told(search, "a")
    search.save_to_dir(str(tmp_path), "session")
    out = search.suggest("b")
    reader = DPGIBOSearch.from_experiment(tmp_path)
    assert reader.guarantee().protected
    assert search._call("give_back", frozenset()) == ["b"]  # it was out until now
    assert isinstance(out, dict)
    search.close()


def test_another_searchers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "searcher-state-1.pkl").write_bytes(ray.cloudpickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="holds no experiment of DPGIBOSearch"):
        DPGIBOSearch.from_experiment(tmp_path)


# What is stored must be accounted for -----------------------------------------------------------


def test_nothing_is_claimed_before_a_trial_ran_privately() -> None:
    search = begun(make_search())
    search.suggest("a")
    assert not protected(search)
    search.on_trial_complete("a", error=True)
    assert "no trial has run inside search.private" in str(search.guarantee())
    told(search, "b")
    assert protected(search)
    search.close()


@pytest.mark.parametrize(
    "result",
    [
        {"experiment_id": 0.7},
        {"config/auc": 0.7},
        {"config/x": 0.5, "auc": 0.7},
        {"should_checkpoint": 0.7},
        {"checkpoint_dir_name": "checkpoint_000000"},
        {"train/auc": 0.7},
        {"loss": [0.7, 0.8]},
        {"loss": np.array([0.7, 0.8])},
        {"loss": "0.7"},
    ],
)
def test_whatever_nobody_accounts_for_unprotects(result: dict[str, Any]) -> None:
    search = begun(make_search())
    told(search, "a")
    assert protected(search)
    search.suggest("b")
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        search.on_trial_result("b", {"trial_id": "b", "training_iteration": 1} | result)
    assert not protected(search)
    search.close()


def test_what_tune_itself_writes_is_no_concern() -> None:
    search = begun(make_search())
    told(search, "a")
    search.suggest("b")
    search.on_trial_result(
        "b",
        {
            "trial_id": "b",
            "training_iteration": 1,
            "config/x": 0.5,
            "checkpoint_dir_name": None,
            "time_total_s": 1.0,
            "loss": float("nan"),
        },
    )
    assert protected(search)
    search.close()


def test_a_name_vouches_for_itself_only() -> None:
    assert _trainable.flat({"train": {"loss": 1.0, "n": {}}, "a/b": 2}) == {
        "train/loss": 1.0,
        "train/n": {},
        "a/b": 2,
    }
    search = begun(make_search())
    told(search, "a")
    search.suggest("b")
    search._call("vouch", "report_public(train/loss)", "b")
    search.on_trial_result("b", {"train/loss": 1.0})
    assert protected(search)
    with pytest.warns(PrivacyWarning, match="other names"):
        search.on_trial_result("b", {"train/loss": 1.0, "train/auc": 0.7})
    assert not protected(search)
    search.close()


def test_an_exposure_outlives_the_vault(tmp_path: Path) -> None:
    search = begun(make_search())
    told(search, "a")
    search.save(str(tmp_path / "state"))
    search.suggest("b")
    with pytest.warns(PrivacyWarning, match="other names"):
        search.on_trial_result("b", {"auc": 0.7})
    ray.kill(search._anchor.actor)
    guarantee = search.guarantee()
    assert not guarantee.protected
    assert "other names" in str(guarantee)


def test_an_exposure_that_the_vault_could_not_take_is_told_it_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = begun(make_search())
    told(search, "a")
    search.suggest("b")
    call = search._call

    def failing(operation: str, *args: Any) -> Any:
        if operation == "mark_unprotected":
            raise VaultError("The vault refused an operation.")
        return call(operation, *args)

    monkeypatch.setattr(search, "_call", failing)
    with pytest.warns(PrivacyWarning, match="other names"):
        search.on_trial_result("b", {"auc": 0.7})
    monkeypatch.undo()
    assert not protected(search)
    assert not call("report", False)["guarantee"].protected
    search.close()


def test_what_passed_by_while_the_vault_was_gone_unprotects(tmp_path: Path) -> None:
    search = begun(make_search())
    told(search, "a")
    search.save(str(tmp_path / "state"))
    search.suggest("b")
    ray.kill(search._anchor.actor)
    search.on_trial_complete("b", {"loss": 0.7, "trial_id": "b"})
    assert not search.guarantee().protected
    with pytest.raises(VaultError, match="The vault of this run is gone"):
        search.suggest("c")


def test_a_vault_that_ends_after_everything_was_compared_leaves_its_last_word(
    tmp_path: Path,
) -> None:
    search = begun(make_search())
    value = told(search, "a")
    search.save(str(tmp_path / "state"))
    ray.kill(search._anchor.actor)
    guarantee = search.guarantee()
    assert guarantee.protected
    assert "the vault has ended" in str(guarantee)
    assert search.history().values[0][2] == value


def test_one_private_trainable_in_another_is_refused(tmp_path: Path) -> None:
    search = make_search()
    inner = search.private(squares)

    def outer(config: dict[str, Any]) -> Any:
        try:
            inner(config)
        except PrivacyError as error:
            (tmp_path / "said").write_text(str(error))
        try:
            tune.report({"loss": float("nan")})
        except PrivacyError:
            (tmp_path / "closed").touch()
        return squares(config)

    results = fit(search, search.private(outer), tmp_path, num_samples=1, name="nested")
    assert not results.errors
    assert "inside another one" in (tmp_path / "said").read_text()
    assert (tmp_path / "closed").exists()
    assert protected(search)
    search.close()


def test_a_small_inline_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "RAY_max_direct_call_object_size", "1000")
    sent: list[Any] = []
    with pytest.raises(PrivacyError, match="object store"):
        LossChannel(lambda *args: (None, sent.append(args))).tell("a", np.zeros(1), RECORDS)
    assert sent == []


@pytest.mark.parametrize(
    "query", ["sslpassword=hunter2", "PASSWORD=hunter2", "ssl_secret=hunter2"]
)
def test_secrets_in_the_query_of_a_url_are_refused(query: str) -> None:
    with pytest.raises(ValueError, match="env:NAME") as raised:
        make_search(vault=f"postgresql://user@host/db?{query}")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("metric", ["config/x", "time_total_s/a", "done"])
def test_a_metric_may_not_hide_among_tunes_own(metric: str) -> None:
    with pytest.raises(ValueError, match="metric may not be"):
        make_search(metric=metric)


def test_a_host_knows_its_operations_only() -> None:
    search = begun(make_search())
    search.suggest("a")
    with pytest.raises(ValueError, match="no operation"):
        search._call("_session")
    search.close()
