"""Controls: what a product would leave that did look at a record, and that the comparison sees it.

A look is put where private values pass; each makes one slip, and one sink must show it.
"""

import logging
import warnings
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy import mechanisms
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.sessions import records, rows
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.rounds import Rounds, RoundSum
from privbo_plugins.store.transaction import Transaction
from raytune_searchers import _evaluations
from tests.independence.runs import RUNS
from tests.independence.seen import differences, left_by
from tests.independence.zoo import ORDINARY, ZOO


def looked_at(where, name, look):
    """A patch: ``look`` gets the arguments first."""
    real = getattr(where, name)

    def looked(*args, **kwargs):
        look(*args)
        return real(*args, **kwargs)

    return mock.patch.object(where, name, looked)


def quotes(values):
    if not (np.abs(np.asarray(values, dtype=float)) < 5).all():
        raise ValueError(f"unusual: {values!r}")


def warns(values):
    if not np.isfinite(values).all():
        warnings.warn("some record is not finite", PrivacyWarning, stacklevel=2)


def logs(values):
    logging.getLogger("privbo").debug("norm %r", float(np.linalg.norm(values)))


def prints(values):
    print(float(np.sum(values)))


SLIPS = {
    "quotes": (quotes, "beyond the range", "exceptions"),
    "warns": (warns, "nan", "warnings"),
    "logs": (logs, "beyond the range", "log"),
    "prints": (prints, "beyond the range", "console"),
}
"""What a look does, for which odd record, and where that must show."""

PLACES = {
    "records": ("records, ask and tell", mechanisms, "clip_values", 0),
    "records, ray": ("records, ray", mechanisms, "clip_values", 0),
    "rewards": ("rewards, duchi", LocalMechanism, "clip", 1),
    "rewards, ray": ("rewards, ray", LocalMechanism, "clip", 1),
    "duets": ("duets", LocalMechanism, "clip", 1),
    "rounds": ("rounds", RoundSum, "add", 2),
    "rows": ("rows", rows, "rows_within", 0),
    "outcomes": ("outcomes", LocalMechanism, "clip", 1),
}
"""By system: a run, a function that private values pass, and which argument they are."""


ALWAYS = "records"
"""The system whose controls are in every run; those of the others are soak."""


def shown(run, entry, patch, folder):
    """Sinks that show which of two runs was on the odd record."""
    with patch:
        left = [left_by(RUNS[run][1], ZOO[e] if e else _ordinary, folder) for e in ("", entry)]
    return {name.partition(":")[0] for name in differences(*left)}


def _ordinary():
    return ORDINARY


@pytest.mark.parametrize(("system", "slip"), [
    pytest.param(system, slip, marks=() if system == ALWAYS else pytest.mark.soak)
    for system in PLACES for slip in SLIPS
])  # fmt: skip
def test_control_a_look_at_a_record_is_seen(system, slip, tmp_path):
    look, entry, sink = SLIPS[slip]
    run, where, name, place = PLACES[system]
    patch = looked_at(where, name, lambda *args: look(args[place]))
    assert sink in shown(run, entry, patch, tmp_path)


# Branches ---------------------------------------------------------------------------------------


def inside(values):
    """Whether nothing of it would be clipped."""
    return bool((np.abs(np.asarray(values, dtype=float)) <= 1.0).all())


def _of_losses(tx, _trial, y):
    if inside(y):
        tx.held()


def _of_a_reward(curator, _trial, reward, *_):
    if inside(reward):
        curator.replay("another")


def _of_a_vector(rounds, _agent, message):
    if inside(message):
        with rounds.run.transaction() as tx:
            tx.charges()


def _of_rows(curator, *_):
    if inside(curator._table.X):
        curator.answers()


def _of_a_trial(channel, _admitted, trial, _user, reward):
    if inside(reward):
        channel.call("record", trial)


BRANCHES = {
    "records": ("records, ask and tell", Transaction, "put_losses", _of_losses, "statements"),
    "records, ray": ("records, ray", Transaction, "put_losses", _of_losses, "statements"),
    "rewards": ("rewards, duchi", RewardSession, "release", _of_a_reward, "statements"),
    "rewards, ray": ("rewards, ray", _evaluations, "_release", _of_a_trial, "messages"),
    "rounds": ("rounds", Rounds, "submit", _of_a_vector, "statements"),
    "rows": ("rows", rows.Curator, "release", _of_rows, "statements"),
}
"""A statement or a message that only records get of which nothing is clipped."""


@pytest.mark.parametrize("system", [
    pytest.param(system, marks=() if system == ALWAYS else pytest.mark.soak) for system in BRANCHES
])  # fmt: skip
def test_control_a_statement_that_clipped_records_skip_is_seen(system, tmp_path):
    run, where, name, look, sink = BRANCHES[system]
    found = shown(run, "beyond the range", looked_at(where, name, look), tmp_path)
    assert sink in found
    assert "noise" not in found


def test_control_a_draw_that_clipped_records_skip_is_seen(tmp_path):
    real = records.Session._draw

    def draw(session, query, blocks, scale, noise):
        known = list(blocks)
        if all(map(inside, known)):
            noise.add_gaussian(np.zeros(1), scale)
        return real(session, query, known, scale, noise)

    patch = mock.patch.object(records.Session, "_draw", draw)
    assert "noise" in shown("records, ask and tell", "beyond the range", patch, tmp_path)


def test_control_another_size_of_what_the_vault_holds_is_seen(tmp_path):
    real = Transaction.put_losses

    def short(tx, trial, y):
        real(tx, trial, y if inside(y) else np.tile(y, 2000))

    patch = mock.patch.object(Transaction, "put_losses", short)
    found = shown("records, ask and tell", "beyond the range", patch, tmp_path)
    assert found >= {"files", "vault", "statements"}
