"""The ledger of a federation: charges and stores its broadcasts, and makes the claim for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.plan import spent_by_round
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, Measure, RoundSum
from privbo_plugins.errors import FederationError, VaultError
from privbo_plugins.plots import FederationHistory, Round
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.privacy.ledger import AGENTS, Charge, check_budget
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.subsampling import rounds_of
from privbo_plugins.sanitize import public_name
from privbo_plugins.store.log import NOTE, UNPROTECTED
from privbo_plugins.store.release import Order, Outlet
from privbo_plugins.store.run import Run
from privbo_plugins.store.transaction import Transaction

Array = NDArray[np.float64]
R = TypeVar("R")

BROADCAST = "broadcast"
"""Kind of the releases and charges of a federation."""

NO_NOISE = "the federation was set up without noise (z = 0)"

_NO_VAULT = (
    "Round {t} was not released: the server's vault refused it. Nothing was published. Agents can "
    "go on alone; the server needs its database back."
)

_NO_RELEASE = (
    "Round {t} was not released: the server failed inside ({kind}). Nothing was published. Agents "
    "can go on alone; the server's operator has to look after it."
)


class BroadcastLedger:
    """Releases the rounds of a federation, each once.

    Args:
        run: Where charges and broadcasts are kept.
        config: The federation's settings.
        noise: Test injection only; None is secure.
    """

    def __init__(self, run: Run, config: FederationConfig, noise: NoiseSource | None) -> None:
        self.run, self.config = run, config
        self._outlet = Outlet(run, noise)
        self.known: dict[int, Broadcast] = {}
        self.lost = 0
        """Rounds that were paid for and whose sum was not opened."""
        self.read()

    def read(self) -> None:
        """Takes note of every round that any process has released in this run."""
        with self.run.transaction() as tx:
            self.known = {b.round: b for b in _broadcasts_in(tx)}
            self.lost = len(tx.charges()) - len(self.known)

    @property
    def n_left(self) -> int:
        """Rounds that may still be released; one that was paid for and not opened is used up."""
        return max(0, self.config.n_rounds - len(self.known) - self.lost)

    def coins(self) -> list[bool]:
        """Draws whose vectors count in the next round."""
        return self._outlet.sample(self.config.n_agents, self.config.q)

    def release(self, total: RoundSum) -> None:
        """Charges, draws and stores a round in one transaction; a known release is replayed.

        Raises:
            FederationError: If the round was not released; tells nothing of its sum.
        """

        def draw(noise: NoiseSource) -> dict[str, Any]:
            noisy = total.exact()
            if self.config.noise_multiplier != 0:
                noisy = noise.add_gaussian(noisy, total.noise_scale)
            return to_payload(total.broadcast(noisy))

        def released(tx: Transaction) -> Mapping[str, Any]:
            return self._outlet.release(tx, self._order(total), draw)

        self.known[total.t] = from_payload(total.t, self._guarded(total.t, released))

    def admit(self, measure: Measure) -> str:
        """Charges for a sum that agents open afterwards, and returns the token of the charge.

        The token is empty if another server of this run has released the round meanwhile: its
        broadcast counts, and the sum must not be opened.

        Raises:
            FederationError: If the round was not charged.
        """
        order = self._order(measure)
        known, token = self._guarded(measure.t, lambda tx: self._outlet.admit(tx, order))
        if known is not None:
            self.known[measure.t] = from_payload(measure.t, known)
        return token

    def accept(self, measure: Measure, token: str, broadcast: Broadcast) -> None:
        """Stores the broadcast of an opened sum.

        Raises:
            FederationError: If the round was not released.
        """
        order, payload = self._order(measure), to_payload(broadcast)
        stored = self._guarded(
            measure.t, lambda tx: self._outlet.accept(tx, order, token, payload)
        )
        self.known[measure.t] = from_payload(measure.t, stored)

    def _order(self, measure: Measure) -> Order:
        return Order(BROADCAST, str(measure.t), lambda tx: self._charge(tx, measure))

    def _charge(self, tx: Transaction, measure: Measure) -> None:
        """Charges a round; an attempt at one that was paid for and not opened pays again."""
        config, t = self.config, str(measure.t)
        earlier = sum(charge.key.split("/")[0] == t for charge in tx.charges())
        key = f"{t}/{earlier + 1}" if earlier else t
        mu = 1.0 / config.noise_multiplier if config.noise_multiplier else math.inf
        charge = Charge(BROADCAST, key, mu, measure.S, measure.noise_scale, AGENTS)
        check_budget(mu * math.sqrt(config.n_rounds), self.run.spent.of(tx, AGENTS).mu2, charge)
        tx.charge(charge)

    def _guarded(self, t: int, act: Callable[[Transaction], R]) -> R:
        """Acts in one transaction; an error tells nothing of the sum that is in its frames."""
        failure = ""
        try:
            with self.run.transaction() as tx:
                return act(tx)
        except Exception as error:
            failure = _NO_VAULT if isinstance(error, VaultError) else _NO_RELEASE
            failure = failure.format(t=t, kind=public_name(error))
        raise FederationError(failure)


def _broadcasts_in(tx: Transaction) -> list[Broadcast]:
    released = tx.releases_after(0)
    return [from_payload(int(key), told) for _, kind, key, told in released if kind == BROADCAST]


def broadcasts_of(run: Run) -> list[Broadcast]:
    """Reads every broadcast of a federation's ledger, in order."""
    with run.transaction() as tx:
        return _broadcasts_in(tx)


def claimed_of(run: Run, config: FederationConfig, *, held: bool) -> FederationGuarantee:
    """Makes the claim that a federation's ledger allows for its broadcasts.

    Args:
        run: The ledger's.
        config: The federation's settings.
        held: Whether rounds run on the server's clock, which the ledger does not know.
    """
    with run.transaction() as tx:
        reasons, noted = list(tx.marks(UNPROTECTED)), tx.marks(NOTE)
        released = len(tx.charges())
        lost = released - tx.n_released()
    if lost:
        noted = (
            *noted,
            f"{lost} of the rounds are paid for and not released: their sums were not opened",
        )
    return claim(config, released, reasons, noted, held=held)


def claim(
    config: FederationConfig,
    released: int,
    reasons: Sequence[str],
    notes: Sequence[str],
    *,
    held: bool,
) -> FederationGuarantee:
    """Makes the claim that the settings of a federation allow.

    Args:
        config: The settings.
        released: Rounds that are paid for.
        reasons: Why nothing may be claimed, if so.
        notes: Facts a reader should know.
        held: Whether rounds run on the server's clock.
    """
    if config.noise_multiplier == 0:
        reasons = [*reasons, NO_NOISE]
    infinite, z = bool(reasons), config.noise_multiplier
    rounds = rounds_of(config.q, z, config.n_rounds) if z else {}
    return FederationGuarantee(
        not reasons,
        config.n_agents,
        math.inf if infinite else config.epsilon_after(config.n_rounds),
        config.delta,
        math.inf if infinite else config.epsilon_after(released),
        config.n_rounds,
        released,
        parameters=config.mechanism_parameters(),
        reasons=tuple(dict.fromkeys(reasons)),
        notes=tuple(dict.fromkeys(notes)),
        composed=(frozenset(rounds.items()),) if rounds else (),
        held=held,
    )


def to_payload(broadcast: Broadcast) -> dict[str, Any]:
    """A broadcast as the ledger holds it."""
    return {"weights": broadcast.weights.tolist(), "noise": broadcast.noise.tolist()}


def from_payload(t: int, payload: Mapping[str, Any]) -> Broadcast:
    """Round t's broadcast, as the ledger holds it."""
    return Broadcast(t, _frozen(payload["weights"]), _frozen(payload["noise"]))


def _frozen(numbers: Any) -> Array:
    """Makes an array read-only, because all agents of this process share it."""
    array = np.array(numbers, dtype=float)
    return np.frombuffer(array.tobytes()).reshape(array.shape)


def published(config: FederationConfig, broadcasts: Sequence[Broadcast]) -> FederationHistory:
    """Describes rounds and budget of a federation for pictures and reports.

    Example:
        >>> history = published(FederationConfig(n_agents=4, z=1.0, n_rounds=2), [])
        >>> [t for t, _ in history.spent], len(history.rounds)
        ([1, 2], 0)
    """
    rounds = [round_of(broadcast) for broadcast in broadcasts]
    return FederationHistory(rounds, config.n_rounds, spent_by_round(config, len(rounds)))


def round_of(broadcast: Broadcast) -> Round:
    """Describes a broadcast in two numbers."""
    size, noise = (
        float(np.sqrt(np.mean(np.square(numbers))))
        for numbers in (broadcast.weights, broadcast.noise)
    )
    return Round(broadcast.round, size, noise)
