"""Vectors on their way into a host, in blocks, of which the host never holds more than it can.

What a host receives is kept in its memory until the vector is complete and taken. So a sender asks
for its turn first: vectors come in as long as all that have begun are at most :data:`HELD_BYTES`
(one that is larger comes in alone), in the order in which their senders have asked. No more of a
vector is under way than has room here, so that calls in the host's queue come to at most as much
again. A turn ends when its vector is taken, when its owner has failed, or when its sender stood
still; what a host that was restarted does not know, its sender sends again from the start, under
another name. Blocks of two vectors meet nowhere: each upload has a buffer of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raytune_searchers._channel import Payload

Array = NDArray[np.float64]

HELD_BYTES = 2**24
"""Of vectors that have begun to arrive, in a host."""

STANDSTILL = 30.0
"""Seconds without a block after which a sender has lost its turn."""

_UNASKED = 5.0
"""Seconds without a question after which a sender waits no longer."""

_MOST_BYTES, _MOST_BLOCKS = 2**29, 2**16
"""Of a vector: as many records as a statistic accepts, in the smallest blocks that are sent."""

_STEP, _LONGEST = 0.02, 1.0
"""Seconds that a sender waits for each one before it, and at most."""


@dataclass
class _Upload:
    """A vector that arrives.

    Attributes:
        owner: Whose it is.
        vector: Where its blocks go, shape (n,).
        size: Bytes of every block but the last.
        seen: When something of it came last.
        missing: Numbers of the blocks that have not come.
    """

    owner: str
    vector: Array
    size: int
    seen: float
    missing: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(range(-(-self.vector.nbytes // self.size)))

    def put(self, index: int, block: bytes) -> None:
        """Lays a block where it belongs.

        Raises:
            ValueError: If it belongs nowhere.
        """
        start = index * self.size
        place = self.vector.data.cast("B")[start : start + self.size]
        if index < 0 or not len(place) or len(place) != len(block):
            raise ValueError("A block does not fit into the vector that it is said to be of.")
        place[:] = block
        self.missing.discard(index)


class Inbox:
    """The vectors that arrive at a host.

    Its time stands still while the host does other work: blocks that wait in its queue meanwhile
    are no standstill of their sender's.

    Args:
        room: Bytes for all of them together.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, room: int = HELD_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._room, self._clock = room, clock
        self._now, self._looked = 0.0, clock()
        self._open: dict[str, _Upload] = {}
        self._waiting: dict[str, tuple[str, float]] = {}

    @property
    def held(self) -> int:
        """Bytes of the vectors that have begun."""
        return sum(upload.vector.nbytes for upload in self._open.values())

    def turn(self, owner: str, upload: str, n_bytes: int, size: int) -> float:
        """Seconds after which to ask again; 0 if the upload may begin.

        Args:
            owner: Whose it is.
            upload: Its name.
            n_bytes: Of the vector.
            size: Of its blocks.

        Raises:
            ValueError: If there is no such vector.
        """
        if not 0 < n_bytes <= _MOST_BYTES or n_bytes % 8 or size <= 0:
            raise ValueError("An upload is a vector of doubles, in blocks that hold something.")
        if -(-n_bytes // size) > _MOST_BLOCKS:
            raise ValueError(f"An upload has at most {_MOST_BLOCKS} blocks.")
        self._let_go()
        if upload in self._open:
            return 0.0
        self._waiting[upload] = owner, self._now  # keeps its place, if it has one
        before = list(self._waiting).index(upload)
        if before or (self._open and self.held + n_bytes > self._room):
            return min(_STEP * (before + 1), _LONGEST)
        del self._waiting[upload]
        self._open[upload] = _Upload(owner, np.empty(n_bytes // 8), size, self._now)
        return 0.0

    def stage(self, upload: str, index: int, block: bytes) -> bool:
        """Takes a block; False if its upload has no turn, or no longer.

        Raises:
            ValueError: If the upload has no such block.
        """
        self._let_go()
        held = self._open.get(upload)
        if held is None:
            return False
        held.put(index, block)
        held.seen = self._now
        return True

    def take(self, owner: str, parcel: Payload) -> Array | None:
        """A vector, shape (n,), which is not held any longer; None if not all of it is here.

        Args:
            owner: Whose it is: nobody gets another one's.
            parcel: The vector, or the name of its upload.
        """
        if isinstance(parcel, bytes):
            return np.frombuffer(parcel)
        held = self._open.get(parcel)
        if held is None or held.owner != owner:
            return None
        del self._open[parcel]
        return None if held is None or held.missing else held.vector

    def drop(self, owner: str) -> None:
        """Forgets what an owner has begun."""
        self._open = {name: held for name, held in self._open.items() if held.owner != owner}
        self._waiting = {name: own for name, own in self._waiting.items() if own[0] != owner}

    def clear(self) -> None:
        """Forgets everything."""
        self._open.clear()
        self._waiting.clear()

    def _let_go(self) -> None:
        now = self._clock()
        self._now += min(now - self._looked, _LONGEST)
        self._looked = now
        begun, asked = self._now - STANDSTILL, self._now - _UNASKED
        self._open = {name: held for name, held in self._open.items() if held.seen >= begun}
        self._waiting = {name: own for name, own in self._waiting.items() if own[1] >= asked}


class Receiving:
    """The operations of a host that takes vectors, beside its own that takes one."""

    _inbox: Inbox

    def turn(self, owner: str, upload: str, n_bytes: int, size: int) -> float:
        """As :meth:`Inbox.turn`."""
        return self._inbox.turn(owner, upload, n_bytes, size)

    def stage(self, upload: str, index: int, block: bytes) -> bool:
        """As :meth:`Inbox.stage`."""
        return self._inbox.stage(upload, index, block)
