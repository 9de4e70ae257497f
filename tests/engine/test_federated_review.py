"""What a hostile review of federated tuning looked at.

Numbers are exact or closed forms; a source that adds no noise shows the sums that noise has to
hide, and only where no claim about its run is looked at.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from privbo_plugins.algorithms.dp_fts_de import FederationConfig, RoundSum
from privbo_plugins.algorithms.dp_fts_de import config as config_module
from privbo_plugins.errors import FederationError, PrivacyError
from privbo_plugins.federation import FederatedServer, connect
from privbo_plugins.federation import server as server_module
from privbo_plugins.privacy.accountant import gdp_compose, gdp_epsilon
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.privacy.subsampling import Calibration, pld_epsilon
from privbo_plugins.spaces import Float, Space

Array = np.ndarray[Any, np.dtype[np.float64]]

M, S, DEADLINE = 4, 1.0, 10.0

LINE = Space({"x": Float(0.0, 1.0)})


class Silence(InsecureNoise):
    """Adds nothing."""

    def add_gaussian(self, value: Array, scale: float) -> Array:
        return value


def config_of(**changed: Any) -> FederationConfig:
    settings = {"n_agents": 10, "epsilon": 2.0, "delta": 1e-2, "n_rounds": 1, "n_features": M}
    return FederationConfig(**{**settings, "crowd": "explore", "clipping_norm": S, **changed})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(server_module, "time", SimpleNamespace(monotonic=lambda: hands.now))
    return hands


# Who takes part decides which vectors of others are in a sum ------------------------------------


def first_sum(clock: SimpleNamespace, *, present: bool, hold: bool) -> Array:
    """The first broadcast, without its noise, times N; the others act alike in both worlds."""
    server = FederatedServer(
        config_of(), space=LINE, deadline=DEADLINE, hold=hold, noise=Silence(0)
    )
    if present:
        server.connect(0).submit(np.zeros(M))
    clock.now += DEADLINE + 0.5
    server.poll()
    for n in range(1, server.config.n_agents):
        server.connect(n).submit(np.eye(M)[0])
    clock.now += DEADLINE + 0.5
    server.poll()
    return np.asarray(server.broadcasts()[0].weights[0] * server.config.n_agents)


def test_on_the_servers_clock_one_agents_presence_changes_a_sum_by_at_most_the_bound(
    clock: SimpleNamespace,
) -> None:
    with_it = first_sum(clock, present=True, hold=True)
    without = first_sum(clock, present=False, hold=True)
    assert np.linalg.norm(with_it - without) <= S


def test_otherwise_who_is_there_when_is_said_to_be_public(clock: SimpleNamespace) -> None:
    """The first message starts a round's clock, so presence can move others' vectors."""
    with_it = first_sum(clock, present=True, hold=False)
    without = first_sum(clock, present=False, hold=False)
    assert np.linalg.norm(with_it - without) > S
    on_its_clock = FederatedServer(config_of(), space=LINE, hold=True).guarantee()
    assert "does not (add or remove" in on_its_clock.neighbours
    assert "is taken as public" in FederatedServer(config_of()).guarantee().neighbours


@pytest.mark.parametrize("hold", [False, True])
def test_what_an_agent_says_changes_a_sum_by_at_most_the_bound(
    clock: SimpleNamespace, hold: bool
) -> None:
    """With who sends when kept as it is: what the mechanism does give today."""
    sums = []
    for vector in (np.zeros(M), np.full(M, 1e9)):
        server = FederatedServer(
            config_of(), space=LINE, deadline=DEADLINE, hold=hold, noise=Silence(0)
        )
        server.connect(0).submit(vector)
        for n in range(1, 5):
            server.connect(n).submit(np.eye(M)[0])
        clock.now += DEADLINE + 0.5
        server.poll()
        sums.append(server.broadcasts()[0].weights[0] * server.config.n_agents)
    assert np.linalg.norm(sums[0] - sums[1]) <= S


def test_a_held_round_is_released_whoever_takes_part(clock: SimpleNamespace) -> None:
    released = []
    for present in (False, True):
        server = FederatedServer(config_of(), space=LINE, deadline=DEADLINE, hold=True)
        if present:
            server.connect(0).submit(np.zeros(M))
        clock.now += DEADLINE + 0.5
        released.append(server.poll())
    assert released[0] == released[1]


# A ledger that was lost or set back ----------------------------------------------------------


def forget(_vault: Path, _backup: Path) -> None:
    pass


def set_back(vault: Path, backup: Path) -> None:
    shutil.copy(backup, vault)


def remove(vault: Path, _backup: Path) -> None:
    vault.unlink()


@pytest.mark.parametrize(
    ("durable", "damage"), [(False, forget), (True, set_back), (True, remove)]
)
def test_a_server_that_lost_its_ledger_is_found_out(
    durable: bool, damage: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    config = config_of(n_agents=1, n_rounds=2)
    vault, backup = tmp_path / "server.db", tmp_path / "backup.db"
    url = f"sqlite:///{vault}" if durable else None
    path, secret = tmp_path / "socket", tmp_path / "secret"
    received: list[bytes] = []

    def begin() -> FederatedServer:
        server = FederatedServer(config, vault=url)
        server.listen(path, secret=secret)
        return server

    def send() -> bool:
        t = link.submit(np.ones(M))
        found = None if t is None else link.collect(t)
        if found is not None:
            received.append(found.weights.tobytes())
        return found is not None

    server = begin()
    link = connect(server.invitation(0))
    try:
        assert send()
        if durable:
            shutil.copy(vault, backup)
        assert send()
        assert not send()
        server.close()
        damage(vault, backup)
        server = begin()
        told = False
        try:
            while send():
                pass
            told = not link.guarantee().protected
        except (FederationError, PrivacyError):
            told = True
        assert told or len(set(received)) == config.n_rounds
    finally:
        link.close()
        server.close()


def test_with_its_ledger_a_server_releases_nothing_twice(tmp_path: Path) -> None:
    """The control: the same restart with the vault in place."""
    config = config_of(n_agents=1, n_rounds=2)
    url = f"sqlite:///{tmp_path / 'server.db'}"
    server = FederatedServer(config, vault=url)
    for _ in range(2):
        server.connect(0).submit(np.ones(M))
    again = FederatedServer(config, vault=url)
    assert again.connect(0).submit(np.ones(M)) is None
    old, new = server.broadcasts(), again.broadcasts()
    assert [b.weights.tobytes() for b in old] == [b.weights.tobytes() for b in new]


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5])
def test_what_was_spent_is_what_the_ledger_says(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another version of a library found another noise multiplier for the same budget."""
    url = f"sqlite:///{tmp_path / 'server.db'}"
    settings: dict[str, Any] = {"n_agents": 1, "n_rounds": 3}
    server = FederatedServer(config_of(**settings), vault=url)
    for _ in range(2):
        server.connect(0).submit(np.ones(M))
    usual = config_module.calibrate

    def other(**budget: Any) -> Calibration:
        found = usual(**budget)
        return Calibration(found.q, found.z * factor, found.epsilon, found.delta, found.n_rounds)

    guarantee = FederatedServer(config_of(**settings), vault=url).guarantee()
    mu = gdp_compose(charge.mu for charge in server.ledger())
    assert guarantee.epsilon_spent == pytest.approx(gdp_epsilon(mu, 1e-2), rel=1e-6)
    monkeypatch.setattr(config_module, "calibrate", other)
    with pytest.raises(ValueError, match="noise multiplier that this version"):
        FederatedServer(config_of(**settings), vault=url)


# Who may decide what ---------------------------------------------------------------------------


def test_a_space_in_which_nothing_varies_is_refused() -> None:
    server = FederatedServer(config_of(crowd="prior", clipping_norm=None))
    with pytest.raises(ValueError, match="varies"):
        server.connect(0).join(Space({"x": Float(1.0, 1.0)}).to_dict())
    server.connect(1).join(Space({"x": Float(0.0, 1.0)}).to_dict())


def test_nobody_can_write_into_what_others_receive() -> None:
    server = FederatedServer(config_of(n_agents=1))
    server.connect(0).submit(np.ones(M))
    weights = server.connect(0).broadcasts()[0].weights
    with pytest.raises(ValueError, match="WRITEABLE"):
        weights.setflags(write=True)


# What held -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "z", "delta"), [(0.35, 1.0, 0.02), (0.1, 0.5, 1e-4), (0.9, 0.8, 1e-3)]
)
def test_a_rounds_epsilon_covers_adding_and_removing(q: float, z: float, delta: float) -> None:
    """Against both directions' hockey-stick divergence by quadrature."""
    epsilon = pld_epsilon(q, z, 1, delta)
    x = np.linspace(-12 * z - 2, 12 * z + 3, 200_001)
    absent = norm.pdf(x, 0, z)
    present = q * norm.pdf(x, 1, z) + (1 - q) * absent
    found = [
        float(np.maximum(one - math.exp(epsilon) * two, 0).sum() * (x[1] - x[0]))
        for one, two in ((present, absent), (absent, present))
    ]
    assert max(found) <= delta * (1 + 1e-6)
    assert max(found) >= delta * 0.99


@pytest.mark.parametrize("bound", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("P", [1, 3, 7])
def test_no_vector_however_odd_is_longer_than_the_bound_in_integers(bound: float, P: int) -> None:
    config = config_of(n_regions=P, clipping_norm=bound, n_features=64)
    rng = np.random.default_rng(P)
    odd = [
        np.full(64, 1.7e308),
        np.full(64, 5e-324),
        np.full(64, bound / math.sqrt(64 * P) * (1 + 1e-15)),
        rng.standard_normal(64) * 10.0 ** rng.uniform(-320, 308, 64),
        np.where(rng.random(64) < 0.1, np.inf, 1.0),
    ]
    for t in (1, 25, 60):
        for w in odd:
            total = RoundSum(config, t, [True] * 10)
            total.add(int(rng.integers(10)), w)
            assert sum(int(v) ** 2 for v in total._total) <= 2**72
