"""One run of rewards, one algorithm and one space: stored with it, compared, and never two."""

import json
from contextlib import suppress

import pytest

from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.cli import main
from privbo_plugins.errors import SpaceChangedError
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.spaces import Categorical, Float, Int, Space
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import open_vault

from .scenes import at_once

LINE = Space({"x": Float(0.0, 1.0)})
MIXED = Space({"x": Float(0.0, 1.0), "kind": Categorical(("a", "b")), "k": Int(1, 6)})
UCB = {"algorithm": "gp-ucb", "maximize": True}


def opened(vault, **given):
    return RewardSession(make_mechanism(1.0, value_range=(0.0, 1.0)), vault, "loop/a", **given)


def notes(session):
    return session.guarantee(len(session.evaluations()), users_named=True).details()


# Joining ----------------------------------------------------------------------------------------


def test_a_run_goes_on_with_the_settings_and_the_space_that_it_was_begun_with(vault):
    settings = {**UCB, **UCBConfig(low=0.0, high=1.0).to_dict()}
    first = opened(vault, config=settings, space=MIXED)
    value = first.release("0", 0.5, "Jane", 0.0)
    again = opened(vault, config=dict(reversed(settings.items())), space=MIXED)
    assert again.evaluations() == {"0": value}
    assert again.replay("0") == value


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize(
    ("other", "error", "why"),
    [
        ({"space": MIXED}, SpaceChangedError, r"over x, .*another space \(.*kind.*, or other"),
        ({"space": Space({"x": Float(0.0, 2.0)})}, SpaceChangedError, r"\(x, or other ranges"),
        ({"space": None}, SpaceChangedError, r"another space \(none,"),
        ({"config": {**UCB, "algorithm": "tgp-ucb"}}, ValueError, "'gp-ucb' then and 'tgp-ucb'"),
        ({"config": {**UCB, "maximize": False}}, ValueError, "maximize=True then and False now"),
        ({"config": {**UCB, "T": 9}}, ValueError, "T=None then and 9 now"),
        ({"config": {"algorithm": "gp-ucb"}}, ValueError, "maximize=True then and None now"),
        ({"config": None}, ValueError, "algorithm='gp-ucb' then and None now"),
        ({"config": None, "space": None}, SpaceChangedError, r"another space \(none,"),
    ],
)
def test_a_run_is_not_joined_with_others_or_with_none(vault, other, error, why, evaluated):
    own = {"config": UCB, "space": LINE}
    first = opened(vault, **own)
    if evaluated:
        first.release("0", 0.5, "Jane", 0.0)
    with pytest.raises(error, match=why):
        opened(vault, **(own | other))
    opened(vault, **own).release("1", 0.5, "Joe", 0.0)
    assert opened(vault, **own).guarantee(1, users_named=True).protected


def test_a_run_of_any_algorithm_stays_one(vault):
    """As with any sampler of Optuna's own: nothing is stored, and no space is given later."""
    opened(vault).release("0", 0.5, "Jane", 0.0)
    opened(vault).release("1", 0.5, "Joe", 0.0)
    session = opened(vault)
    with vault.transaction(session.run.run_id) as tx:
        assert (tx.settings(), tx.frozen()) == (session.run.settings, {})
    with pytest.raises(SpaceChangedError, match=r"over none, .*Nothing was drawn"):
        opened(vault, config=UCB, space=LINE)


def test_settings_that_cannot_be_stored_begin_no_run(vault):
    with pytest.raises(TypeError, match="JSON"):
        opened(vault, config={"algorithm": object()})
    with vault.transaction("") as tx:
        assert tx.hosts() == []


def joins(path, x, ready, answer):
    vault = open_vault(f"sqlite:///{path}")
    ready()
    with suppress(SpaceChangedError):
        opened(vault, config=UCB, space=Space({"x": Float(0.0, x)}))
        answer(x)
        return
    answer(0.0)


def test_of_workers_that_join_at_once_with_two_spaces_those_of_one_go_on(tmp_path):
    path = tmp_path / "v.db"
    jobs = [(path, 1.0 + i % 2) for i in range(4)]
    answers = at_once(joins, *jobs, folder=tmp_path)
    assert sorted(answers) in ([0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 2.0, 2.0])


# What a vault alone tells -----------------------------------------------------------------------


def said(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_vault_alone_names_the_algorithm_that_asked(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")
    url, page = f"sqlite:///{tmp_path}/v.db", tmp_path / "r.html"
    session = opened(open_vault(url), config={**UCB, "algorithm": "moma-gp-ucb"}, space=MIXED)
    session.release("0", 0.5, "Jane", 0.0)
    told = said(capsys, "guarantee", "--vault", url, "--run", "a")
    assert told == said(capsys, "guarantee", "--vault", url)
    assert told.startswith("loop/a (rewards, moma-gp-ucb)\n")
    assert notes(session) in told
    facts = json.loads(said(capsys, "guarantee", "--vault", url, "--run", "a", "--json"))
    assert (facts["kind"], facts["algorithm"]) == ("rewards", "moma-gp-ucb")
    said(capsys, "report", "--vault", url, "--out", str(page))
    assert "<td>moma-gp-ucb</td>" in page.read_text()


@pytest.mark.parametrize("config", [3, {"algorithm": 3}, {}])
def test_what_was_never_stored_is_no_algorithm(config):
    vault = open_vault()
    settings = {**opened(vault).run.settings, "config": config}
    begin_or_join(vault, "loop/b", settings)
    assert {run.algorithm for run in runs_of(vault)} == {"duchi"}
