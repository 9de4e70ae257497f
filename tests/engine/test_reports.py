"""Pages for people: what stands where, and what does not stand there at all."""

import math
import re

import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.plan import spent_by_round
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.privacy.guarantee import FederationGuarantee, LocalGuarantee
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.subsampling import pld_epsilon
from privbo_plugins.reports import reward_history, reward_report, row_history, rows_report
from privbo_plugins.sessions.broadcasts import published
from privbo_plugins.spaces import Categorical, Float, Int, Space

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")

LOCAL = LocalGuarantee(True, "randomised response", 1.0, 0.0, 3, 1, 1.0, 0.0, False)
COIN = make_mechanism(1.0, bound=1.0)


def text_of(page):
    """What a reader sees outside of pictures."""
    plain = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", "|", plain)


# Rewards ----------------------------------------------------------------------------------------


def test_without_a_mechanism_nothing_is_a_release_and_no_reward_is_shown():
    history = reward_history(Space({"x": Float(0, 1)}), [(np.array([0.5]), 0.48151623)], None)
    assert list(history.values) == []
    told = LocalGuarantee(False, "none", math.inf, 0.0, 0, 0, math.inf, 0.0, False)
    page = reward_report("A run", told, history, None).to_html()
    assert "No privatised reward has been released" in page
    assert "0.4815" not in page


def test_settings_that_were_asked_often_are_listed_with_what_is_known_of_each():
    """Four releases of one arm: the mean is known to 1.96 sd / 2, of a Duchi coin on [-1, 1]."""
    space = Space({"arm": Int(0, 3), "kind": Categorical(("a", "b"))})
    x = space.encode({"arm": 2, "kind": "b"})
    told = [(x, value) for value in (2.0, 2.0, -2.0, 2.0)]
    told.append((space.encode({"arm": 1, "kind": "a"}), 2.0))
    page = text_of(reward_report("R", LOCAL, reward_history(space, told, COIN), None).to_html())
    coin = (math.e + 1) / (math.e - 1)
    rows = [row.strip("|").split("||") for row in page.splitlines()]
    assert ["arm = 2, kind = b", "4", "1", f"±{1.96 * coin / 2:.2g}"] in rows
    assert page.index("arm = 2") < page.index("arm = 1")


def test_a_release_without_a_known_place_is_shown_and_placed_nowhere():
    space = Space({"x": Float(0, 1)})
    history = reward_history(space, [(None, 1.0), (np.array([0.25]), -1.0)], COIN)
    assert list(history.values) == [1.0, -1.0]
    assert history.points[0] is None
    assert history.points[1] == {"x": 0.25}
    assert np.isnan(history.path[0]).all()
    assert "Settings that users were asked" in reward_report("R", LOCAL, history, None).to_html()


# Rows -------------------------------------------------------------------------------------------


def little(rows):
    """The posterior of a model that thinks little of what was answered."""
    return -np.asarray(rows, dtype=float), np.full(len(rows), 0.5)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_rows_are_those_that_the_model_thinks_best(maximize):
    answers = [(4, 9.0), (2, 1.0), (7, 5.0), (4, 9.0)]
    history = row_history(answers, maximize=maximize, answer_variance=4.0, posterior=little)
    assert history.noise == 2.0
    told = FederationGuarantee(True, 29, 3.997, 0.0246, 1.0, 3, 1)
    page = text_of(
        rows_report("R", told, history, {"mechanism": "gaussian"}, {"row": 2}).to_html()
    )
    after = page[page.index("Best rows") :]
    order = re.findall(r"\|(\d)\|\|[\d.]+\|\|(-\d)", after)
    expected = [("2", "-2"), ("4", "-4"), ("7", "-7")]
    assert order == (expected if maximize else expected[::-1])
    assert "gaussian" in page


# Federations ------------------------------------------------------------------------------------


def test_a_broadcast_becomes_two_numbers():
    config = FederationConfig(n_agents=4, z=2.0, n_rounds=3)
    broadcast = Broadcast(1, np.array([[3.0, -4.0]]), np.array([0.5]))
    history = published(config, [broadcast])
    (done,) = history.rounds
    assert (done.number, done.size, done.noise) == (1, math.sqrt(12.5), 0.5)
    expected = {t: pld_epsilon(1.0, 2.0, t, config.delta) for t in (1, 2, 3)}
    assert dict(history.spent) == pytest.approx(expected)


def test_epsilon_of_many_rounds_is_worked_out_for_some_and_for_the_released_ones():
    config = FederationConfig(n_agents=4, z=20.0, n_rounds=60, population="explore")
    counts = [t for t, _ in spent_by_round(config, 17)]
    assert (counts[0], counts[-1]) == (1, 60)
    assert 17 in counts
    assert len(counts) <= 13
    assert counts == sorted(set(counts))
