"""Fixtures that several tests of the engine share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from privbo_plugins.sessions import rounds as server_module


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A federation server's clock; it stands until ``now`` is set, and waiting takes real time."""
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(server_module, "time", SimpleNamespace(monotonic=lambda: hands.now))
    return hands
