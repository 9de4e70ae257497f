"""What an agent keeps of its own trials: once each, in order, for its owner alone."""

import math

import numpy as np
import pytest

from privbo_plugins.errors import SpaceChangedError, VaultError
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.spaces import Categorical, Float, Space

SPACE = Space({"x": Float(0, 1), "k": Categorical(("a", "b"))})


def url(folder):
    return f"sqlite:///{folder}/agent.db"


def filled(vault, none=math.nan):
    history = AgentHistory("a", SPACE, vault=vault, run_name="r")
    history.append(0, np.array([0.0, 0.25]), 3.5)
    history.append(1, np.array([1.0, 0.5]), none)
    history.append(2, np.array([1.0, 0.75]), -1.0)
    return history


def test_an_empty_history_has_points_of_the_right_shape():
    history = AgentHistory("a", SPACE)
    X, values = history.read()
    assert X.shape == (0, 2)
    assert values.shape == (0,)
    assert history.n_trials == 0


@pytest.mark.parametrize("none", [math.nan, math.inf, -math.inf])
def test_trials_without_a_finite_value_count_and_are_not_read(none, tmp_path):
    for history in (
        filled(None, none),
        filled(url(tmp_path), none),
        AgentHistory("a", SPACE, vault=url(tmp_path), run_name="r"),
    ):
        X, values = history.read()
        assert X.tolist() == [[0.0, 0.25], [1.0, 0.75]]
        assert values.tolist() == [3.5, -1.0]
        assert history.n_trials == 3


def test_the_first_write_of_a_trial_counts():
    history = filled(None)
    history.append(0, np.ones(2), 9.0)
    history.append(1, np.ones(2), 9.0)
    assert history.read()[1].tolist() == [3.5, -1.0]
    assert history.n_trials == 3


def test_runs_and_agents_are_kept_apart(tmp_path):
    filled(url(tmp_path))
    assert AgentHistory("a", SPACE, vault=url(tmp_path), run_name="other").n_trials == 0
    assert AgentHistory("b", SPACE, vault=url(tmp_path), run_name="r").n_trials == 0


def test_another_space_is_refused(tmp_path):
    filled(url(tmp_path))
    with pytest.raises(SpaceChangedError, match="another search space"):
        AgentHistory("a", Space({"x": Float(0, 2)}), vault=url(tmp_path), run_name="r")


def test_reading_begins_nothing(tmp_path):
    with pytest.raises(VaultError, match="There is no vault file"):
        AgentHistory("a", SPACE, vault=url(tmp_path), run_name="r", create=False)
    assert not (tmp_path / "agent.db").exists()
    filled(url(tmp_path))
    with pytest.raises(VaultError, match="holds no run 'other'"):
        AgentHistory("a", SPACE, vault=url(tmp_path), run_name="other", create=False)
    assert AgentHistory("a", SPACE, vault=url(tmp_path), run_name="r", create=False).n_trials == 3


@pytest.mark.parametrize(("number", "x"), [(-1, np.zeros(2)), (0, np.zeros(3)), (0, np.zeros(()))])
def test_what_makes_no_sense_is_refused(number, x):
    history = AgentHistory("a", SPACE)
    with pytest.raises(ValueError, match=r"point of shape \(2,\)"):
        history.append(number, x, 1.0)


def test_its_owner_is_told_once(tmp_path):
    assert not filled(url(tmp_path)).told()
    assert AgentHistory("a", SPACE, vault=url(tmp_path), run_name="r").told()
