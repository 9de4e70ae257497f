"""What is stored must be accounted for by a release or a declaration."""

import contextlib

import numpy as np
import pytest

from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.shown import DRAW
from raytune_searchers import _trainable
from tests.inside import call_host, kill_host, tell
from tests.raytune_searchers.runs import (
    begun,
    channel_of,
    ledger,
    make_search,
    protected,
    squares,
    told,
)

pytestmark = pytest.mark.usefixtures("local_hosts")


@pytest.mark.parametrize("shown", ["its own", "another's", "no number"])
def test_the_draw_beside_an_estimate_is_the_trials_own(shown):
    search = begun(make_search())
    told(search, "a")
    config = search.suggest("b")
    channel = channel_of(search)
    channel.call("enter", "b", "attempt")
    value = tell(channel, "b", np.array([config["x"]]), squares(config))
    own, other = (channel.call("record", trial).beside[DRAW] for trial in ("b", "a"))
    draw = {"its own": own, "another's": other, "no number": str(own)}[shown]
    _, releases, _ = ledger(search)
    assert [release.values[0] for release in releases] == [other, own]
    assert value not in (other, own)
    result = {"loss": value, "trial_id": "b", "privbo_release": draw}
    with contextlib.nullcontext() if draw == own else pytest.warns(PrivacyWarning):
        search.on_trial_complete("b", result)
    assert protected(search) == (shown == "its own")
    search.close()


def test_nothing_is_claimed_before_a_trial_ran_privately():
    search = begun(make_search())
    search.suggest("a")
    assert not protected(search)
    search.on_trial_complete("a", error=True)
    assert "no trial has run inside search.private" in search.guarantee().details()
    told(search, "b")
    assert protected(search)
    search.close()


UNKNOWN = [
    {"experiment_id": 0.7}, {"config/auc": 0.7}, {"config/x": 0.5, "auc": 0.7},
    {"should_checkpoint": 0.7}, {"hyperband_info": 0.7}, {"hyperband_info": {"budget": 0.7}},
    {"hyperband_info/budget": 0.7}, {"hyperband_info/auc": 1},
    {"checkpoint_dir_name": "checkpoint_000000"}, {"train/auc": 0.7}, {"privbo_release": 0.7},
    {"loss": [0.7, 0.8]}, {"loss": np.array([0.7, 0.8])}, {"loss": "0.7"},
    {"experiment_tag": 0.7}, {"done": 0.7}, {"training_iteration": 1.7},
    {"training_iteration": [0.7]}, {"time_this_iter_s": "0.7"},
    {"time_this_iter_s": 0.7, "timestamp": 1}, {"experiment_tag": "0.7", "timestamp": 1},
    {"training_iteration": 7, "timestamp": 1}, {"done": True, "timestamp": 1},
    {"timestamp": 1, "time_this_iter_s": 0.7, "loss": float("nan")},
    {"timesteps_since_restore": 7}, {"config/x": 0.7}, {"config/x": [0.7, 0.8]},
    {"config/x": np.array([0.7, 0.8])}, {"config/x/auc": 0.7},
]  # fmt: skip
KNOWN = [
    {"hyperband_info": {}}, {"hyperband_info": {"budget": 4}}, {"hyperband_info/budget": 4},
    {"checkpoint_dir_name": None, "time_total_s": 1.0, "loss": float("nan")},
]  # fmt: skip


@pytest.mark.parametrize(
    ("result", "known"), [*((row, False) for row in UNKNOWN), *((row, True) for row in KNOWN)]
)
def test_whatever_nobody_accounts_for_unprotects(result, known):
    """But for what Tune and its schedulers write."""
    search = begun(make_search())
    told(search, "a")
    assert protected(search)
    config = search.suggest("b")
    own = {"trial_id": "b", "training_iteration": 1}
    own |= {"config/x": config["x"]} if known else {}
    with contextlib.nullcontext() if known else pytest.warns(PrivacyWarning, match="Nothing is"):
        search.on_trial_result("b", own | result)
    assert protected(search) == known
    search.close()


def test_a_name_vouches_for_itself_only():
    assert _trainable.flat({"train": {"loss": 1.0, "n": {}}, "a/b": 2}) == {
        "train/loss": 1.0,
        "train/n": {},
        "a/b": 2,
    }
    search = begun(make_search())
    told(search, "a")
    search.suggest("b")
    call_host(search, "declare_public", "report_public(train/loss)", "b")
    search.on_trial_result("b", {"train/loss": 1.0})
    assert protected(search)
    with pytest.warns(PrivacyWarning, match="other names"):
        search.on_trial_result("b", {"train/loss": 1.0, "train/auc": 0.7})
    assert not protected(search)
    search.close()


def test_an_exposure_outlives_the_vault(tmp_path):
    search = begun(make_search())
    told(search, "a")
    search.save(str(tmp_path / "state"))
    search.suggest("b")
    with pytest.warns(PrivacyWarning, match="other names"):
        search.on_trial_result("b", {"auc": 0.7})
    kill_host(search)
    guarantee = search.guarantee()
    assert not guarantee.protected
    assert "other names" in guarantee.details()


def test_what_passed_by_while_the_vault_was_gone_unprotects(tmp_path):
    search = begun(make_search())
    told(search, "a")
    search.save(str(tmp_path / "state"))
    search.suggest("b")
    kill_host(search)
    search.on_trial_complete("b", {"loss": 0.7, "trial_id": "b"})
    assert not search.guarantee().protected
    with pytest.raises(VaultError, match="The vault of this run is gone"):
        search.suggest("c")
