"""The one way out: charge, draw, store, replay.

The caller says what is to be released, what it costs and how it is drawn; this module alone hands
a source of noise to the drawing, and only between a charge and a store. All three
happen in one transaction. A release that the vault holds already is replayed for any order.

Where the drawing is done by another process (a worker of Ray Tune, so that a raw reward stays
there), the charge hands out a token, and only the token's holder may store what it drew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import PrivacyError
from privbo_plugins.privacy.noise import SecureNoise, choose, is_secure
from privbo_plugins.privacy.source import NoiseSource, ShareSource

if TYPE_CHECKING:
    from privbo_plugins.privacy.local import LocalMechanism
    from privbo_plugins.store.run import Run
    from privbo_plugins.store.transaction import Transaction

P = TypeVar("P", bound=Mapping[str, Any] | float)
IntArray = NDArray[np.int64]

TEST_NOISE = "the noise came from a test source"
"""Why nothing may be claimed for releases that did not come from the system's entropy."""


@dataclass(frozen=True)
class Order:
    """What is to be released.

    Attributes:
        kind: Of the release.
        key: Which one of its kind; what was released of both is replayed.
        charge: Checks the budget and writes the charge; if it raises, nothing is drawn.
    """

    kind: str
    key: str
    charge: Callable[[Transaction], None]


class Outlet:
    """The way out of one run, in one process.

    Args:
        run: The run.
        noise: Test injection only; the run is reported as unprotected then. None is secure.
    """

    def __init__(self, run: Run, noise: NoiseSource | None = None) -> None:
        self._run = run
        self._noise: NoiseSource = SecureNoise() if noise is None else noise
        if self.uses_test_noise:
            run.mark_unprotected(TEST_NOISE)

    @property
    def uses_test_noise(self) -> bool:
        """Checks whether the noise is a test's."""
        return not is_secure(self._noise)

    def release(
        self, tx: Transaction, order: Order, draw: Callable[[NoiseSource], P], *,
        ahead: bool = False,
    ) -> P:  # fmt: skip
        """Charges, draws and stores; or replays.

        Args:
            tx: Of the run.
            order: What is to be released.
            draw: From a source of noise to what may be published: JSON-ready fields, or one
                number.
            ahead: Whether it is no release yet: a user's own code sees it first, in another
                transaction. However that ends, the charge stands and the draw is the same.

        Raises:
            PrivacyError: If the charge is refused; nothing is drawn.
            VaultError: If the vault was restored from an older backup or refuses; nothing is
                published.
        """
        known: P | None = (tx.drawn if ahead else tx.released)(order.kind, order.key)
        if known is not None:
            return known
        self._run.check(tx)
        order.charge(tx)
        if self.uses_test_noise:
            from privbo_plugins.store.log import UNPROTECTED  # a trial has no ledger

            tx.mark(UNPROTECTED, TEST_NOISE)
        payload = draw(self._noise)
        (tx.keep_drawn if ahead else tx.release)(order.kind, order.key, payload)
        return payload

    def sample(self, n: int, q: float) -> list[bool]:
        """A Poisson sample of n members, each with probability q.

        Its coins are part of the next release, which is charged for it.
        """
        return [choose(self._noise, q) for _ in range(n)]

    # Drawn elsewhere ------------------------------------------------------------------------

    def admit(self, tx: Transaction, order: Order) -> tuple[Any, str]:
        """Charges for what another process draws: (its release if there is one, a token).

        An attempt that started earlier loses its token: of all that draw, one may store.
        """
        known = tx.released(order.kind, order.key)
        if known is not None:
            return known, ""
        self._run.check(tx)
        order.charge(tx)
        return None, tx.hand_token(order.key)

    def accept(self, tx: Transaction, order: Order, token: str, payload: P) -> P:
        """Stores what the holder of a token drew; a release that is there already is replayed.

        Raises:
            PrivacyError: If the token is void.
        """
        known: P | None = tx.released(order.kind, order.key)
        if known is not None:
            return known
        self._run.check(tx)
        if not tx.takes_token(order.key, token):
            raise PrivacyError(
                "A release without a valid charge was refused: it was never charged, or another "
                "attempt of this trial has started since. Nothing was published."
            )
        tx.release(order.kind, order.key, payload)
        return payload


def draw_reward(
    mechanism: LocalMechanism, reward: float, worst: float, noise: NoiseSource | None
) -> float:
    """Draws what :meth:`Outlet.admit` charged for, in the process that holds the raw reward.

    Args:
        mechanism: What happens to a reward.
        reward: The raw reward.
        worst: What NaN and infinity count as.
        noise: Test injection only, which the ledger knows of.
    """
    return mechanism.randomize(reward, SecureNoise() if noise is None else noise, worst)


def draw_share(d: int, scale: float, noise: ShareSource | None) -> IntArray:
    """An agent's share of a federation's noise, drawn where its vector is.

    The server charges before the sum is opened, and nothing of a share is seen without the sum.

    Args:
        d: Length.
        scale: Standard deviation; 0 for none.
        noise: Test injection only, which the ledger knows of.
    """
    if scale == 0:
        return np.zeros(d, dtype=np.int64)
    return (SecureNoise() if noise is None else noise).discrete_gaussian(d, scale)


def is_test(noise: NoiseSource | None) -> bool:
    """Checks whether a source that was handed over is a test's."""
    return noise is not None and not is_secure(noise)
