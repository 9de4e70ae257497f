"""What hides a vector in a sum: masks that cancel, and shares from which lost ones come back.

Notation (Bonawitz et al. 2017, *Practical Secure Aggregation for Privacy-Preserving Machine
Learning*, Figure 4; signatures and the round of consistency checks left out):

    ============  ====================================================================  =======
    symbol        meaning                                                               shape
    ============  ====================================================================  =======
    U_1, U_2,     agents that have sent keys, shares, masked vectors:
    U_3           U_3 is a part of U_2, which is a part of U_1                          sets
    c, s          an agent's key pairs: for what it tells others, and for masks         32 bytes
    b_u           seed of agent u's own mask                                            32 bytes
    s_uv          what agents u and v agree on from their keys                          32 bytes
    PRG(key)      ChaCha20's key stream, as integers modulo 2^64                        (d,)
    x_u           agent u's vector with its share of noise, as integers modulo 2^64     (d,)
    y_u           x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)        (d,)
    t             shares from which a secret comes back; fewer say nothing of it        scalar
    ============  ====================================================================  =======

A server that sees all y_u, u in U_3, sees the sum of x_u once it knows b_u of U_3 and the keys s
of U_2 without U_3, and nothing else of any x_u. An agent hands out shares of one of the two for
each other agent, never of both, and 2t > N + (agents that collude), so no coalition ever has both.

Keys come from the operating system and are used in one attempt at one round.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import PrivacyError
from privbo_plugins.federation.link import NEEDED
from privbo_plugins.sealing import Meeting

try:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
except ImportError:
    raise ImportError(NEEDED.format("cryptography")) from None

Words = NDArray[np.uint64]
"""Integers modulo 2^64."""

PRIME = 2**521 - 1
"""Shares are numbers modulo this Mersenne prime."""
SHARE = 66
"""Bytes of a share."""
SEED = 32
"""Bytes of a seed, and of a key."""


@dataclass(frozen=True)
class Keys:
    """What one agent keeps to itself for one attempt at a round.

    Attributes:
        c: Private key for what it tells other agents.
        s: Private key for masks.
        b: Seed of its own mask.
    """

    c: bytes = field(repr=False)
    s: bytes = field(repr=False)
    b: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Keys:
        """From the operating system."""
        return cls(*(secrets.token_bytes(SEED) for _ in range(3)))

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "An agent's keys cannot be pickled: they hide its vector. Join the round again in the "
            "other process, which makes new ones."
        )

    @cached_property
    def known_c(self) -> X25519PrivateKey:
        """c, read."""
        return _known(self.c)

    @cached_property
    def public(self) -> Public:
        """The public half, which every agent may know."""
        return Public(public_of(self.c), public_of(self.s), hashlib.sha256(self.b).digest())


@dataclass(frozen=True)
class Public:
    """What an agent tells everybody.

    Attributes:
        c: Public key for messages to it.
        s: Public key for masks.
        b: SHA-256 of the seed of its own mask, so that wrong shares of it are noticed.
    """

    c: bytes
    s: bytes
    b: bytes


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return _known(private).public_key().public_bytes_raw()


def _known(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


def stream(key: bytes, d: int) -> Words:
    """PRG(key): ChaCha20's key stream from block 0, as d integers modulo 2^64."""
    cipher = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * d)), dtype="<u8").astype(np.uint64)


def pair_mask(meeting: Meeting, u: int, v: int, purpose: str, d: int) -> Words:
    """Makes the mask that agent u adds for agent v: the negative of what v adds for u.

    Args:
        meeting: Of the private key s of one and the public key s of the other.
        u: Whose mask it is.
        v: With whom.
        purpose: Round and attempt.
        d: Length.
    """
    mask = stream(meeting.key(f"{purpose} mask {min(u, v)} {max(u, v)}"), d)
    return mask if u < v else np.uint64(0) - mask


def masked(x: Words, u: int, keys: Keys, others: Mapping[int, Public], purpose: str) -> Words:
    """y_u, what the server is sent.

    Args:
        x: x_u, shape (d,).
        u: The agent's number.
        keys: Its keys.
        others: U_2 without u.
        purpose: Round and attempt.
    """
    y: Words = x + stream(keys.b, len(x))
    s_u = _known(keys.s)
    for v, public in others.items():
        y += pair_mask(Meeting(s_u, public.s), u, v, purpose, len(x))
    return y


# Shares of secrets ------------------------------------------------------------------------------


def split(secret: bytes, t: int, agents: Iterable[int]) -> dict[int, bytes]:
    """Shares of a secret, any t of which give it back (Shamir 1979).

    Args:
        secret: 32 bytes.
        t: How many are needed.
        agents: Numbers from 0 of those who get one each; at least t.

    Example:
        >>> shares = split(bytes(range(32)), 2, [0, 3, 5])
        >>> joined({3: shares[3], 5: shares[5]}) == bytes(range(32))
        True
    """
    polynomial = [int.from_bytes(secret, "big")]
    polynomial += [secrets.randbelow(PRIME) for _ in range(t - 1)]
    return {agent: _at(polynomial, agent + 1).to_bytes(SHARE, "big") for agent in agents}


def _at(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def joined(shares: Mapping[int, bytes]) -> bytes:
    """The secret of which as many shares as are needed are given, by agent.

    Raises:
        ValueError: If they are no shares of one secret of 32 bytes.
    """
    weights = _at_zero(tuple(shares))
    value = sum(
        weight * int.from_bytes(share, "big")
        for weight, share in zip(weights, shares.values(), strict=True)
    )
    if (value := value % PRIME) >= 2 ** (8 * SEED):
        raise ValueError("These are no shares of one secret.")
    return value.to_bytes(SEED, "big")


@lru_cache(maxsize=8)
def _at_zero(agents: tuple[int, ...]) -> list[int]:
    """Lagrange's weights at 0."""
    weights = []
    for j in agents:
        over = under = 1
        for m in agents:
            if m != j:
                over = over * (m + 1) % PRIME
                under = under * (m - j) % PRIME
        weights.append(over * pow(under, -1, PRIME) % PRIME)
    return weights
