"""What agents and a federation's server say to each other: JSON, read with suspicion.

Vectors are base64 of little-endian float64, so they arrive bit for bit, and all vectors of one
length take the same room. Nothing is ever unpickled. Anything else than a proper message is a
:class:`MalformedError`, which holds nothing of what was sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.errors import (
    FederationError,
    VaultError,
)
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.sanitize import OWN_ERRORS, public_name
from privbo_plugins.spaces import Space

T = TypeVar("T")
Array = NDArray[np.float64]

PROTOCOL = "privbo-federation/2"
ROOM = 2**16
"""Bytes of a message for everything but vectors."""
PAGE_BYTES = 2**22
"""Of broadcasts in one answer; one alone may be longer."""
LARGEST = 2**26
"""Bytes of an answer that agents take."""

_TOLD: dict[str, type[Exception]] = {
    **{name: kind for name, kind in OWN_ERRORS.items() if kind is not VaultError},
    FederationError.__name__: FederationError,
}
"""Errors that pass by name and text."""

_VAULT_FAILED = (
    "The federation's server cannot use its vault. Nothing was published; the server's operator "
    "needs the database back. Until then agents can go on alone."
)


class MalformedError(Exception):
    """What the other side sent is no message; carries nothing of it."""


def encoded(message: Mapping[str, Any]) -> bytes:
    """A message's bytes."""
    return json.dumps(message).encode()


def decoded(data: bytes) -> dict[str, Any]:
    """The message that bytes hold.

    Raises:
        MalformedError: If they hold none.
    """
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None  # raised below: the parser's own error holds what was sent
    if not isinstance(message, dict):
        raise MalformedError
    return message


def understood(read: Callable[[Any], T], sent: Any) -> T:
    """Reads a part of a message.

    Raises:
        MalformedError: If it says nothing; text and frames hold nothing of what was sent.
    """
    try:
        return read(sent)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        pass
    raise MalformedError


def text(data: bytes) -> str:
    """Bytes as JSON holds them."""
    return base64.b64encode(data).decode()


def binary(sent: Any, size: int | None = None) -> bytes:
    """Reads the bytes that :func:`text` was given.

    Raises:
        MalformedError: If it is none, or of another size.
    """
    try:
        data = base64.b64decode(sent, validate=True)
    except (TypeError, ValueError):
        data = None
    if data is None or size not in (None, len(data)):
        raise MalformedError
    return data


def packed(numbers: Array) -> str:
    """All bits of an array."""
    return text(np.ascontiguousarray(numbers, dtype="<f8").tobytes())


def unpacked(sent: Any) -> Array:
    """The array of which :func:`packed` made a text, flat.

    Raises:
        MalformedError: If it is none.
    """
    data = binary(sent)
    if len(data) % 8:
        raise MalformedError
    return np.frombuffer(data, dtype="<f8").astype(np.float64)


def token(value: Any) -> str:
    """A short text.

    Raises:
        MalformedError: If it is none.
    """
    if not isinstance(value, str) or not value.isascii() or len(value) > 64:
        raise MalformedError
    return value


def count(value: Any) -> int:
    """A number of things.

    Raises:
        MalformedError: If it is none.
    """
    if type(value) is not int or value < 0:
        raise MalformedError
    return value


def optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Reads what may be absent."""
    return lambda sent: None if sent is None else read(sent)


def texts(sent: Any) -> tuple[str, ...]:
    """A list of texts.

    Raises:
        MalformedError: If it is none.
    """
    if not (isinstance(sent, list) and all(isinstance(one, str) for one in sent)):
        raise MalformedError
    return tuple(sent)


def space(value: Any) -> dict[str, Any]:
    """The description of a space.

    Raises:
        MalformedError: If it describes none.
    """
    try:
        Space.from_dict(value)
    except Exception:
        value = None
    if not isinstance(value, dict):
        raise MalformedError
    return value


# Broadcasts, settings, claims -------------------------------------------------------------------


def broadcast_size(config: FederationConfig) -> int:
    """Bytes that a broadcast takes at most."""
    return 11 * config.n_regions * (config.message_length + 1) + 256


def request_size(config: FederationConfig) -> int:
    """Bytes that a request takes at most."""
    shares = 256 * config.n_agents if config.aggregated else 0
    return ROOM + 11 * config.message_length * config.n_regions + shares


def of_broadcast(broadcast: Broadcast, chain: str) -> dict[str, Any]:
    """A broadcast, and the digest of all that were released up to it."""
    weights, noise = packed(broadcast.weights), packed(broadcast.noise)
    return {"round": broadcast.round, "weights": weights, "noise": noise, "chain": chain}


def as_broadcast(sent: Mapping[str, Any], config: FederationConfig) -> tuple[Broadcast, str]:
    """Reads the broadcast that :func:`of_broadcast` was given.

    Raises:
        MalformedError: If it is none of this federation.
    """
    weights = unpacked(sent["weights"]).reshape(config.n_regions, config.message_length)
    noise = unpacked(sent["noise"]).reshape(config.n_regions)
    t = count(sent["round"])
    if not (np.isfinite(weights).all() and np.isfinite(noise).all() and 1 <= t <= config.n_rounds):
        raise MalformedError
    return Broadcast(t, weights, noise), token(sent["chain"])


def as_guarantee(
    sent: Mapping[str, Any], config: FederationConfig, seen: int
) -> FederationGuarantee:
    """An agent's own claim: of the server's only what its settings do not tell is believed.

    Args:
        sent: The server's claim, of which ``to_dict`` was sent.
        config: The settings that the agent has compared.
        seen: Rounds that the agent has seen released.

    Raises:
        MalformedError: If a part of it cannot be.
    """
    from privbo_plugins.sessions.broadcasts import claim

    told = {name: sent[name] for name in ("protected", "held")}
    reasons, released = texts(sent["reasons"]), max(count(sent["n_released"]), seen)
    fine = all(isinstance(value, bool) for value in told.values())
    if not fine or released > config.n_rounds or not (told["protected"] or reasons):
        raise MalformedError
    return claim(config, released, reasons, texts(sent["notes"]), held=told["held"])


@dataclass(frozen=True)
class Greeting:
    """How a server introduces itself to an agent.

    Attributes:
        epoch: Of the server's process: another one knows nothing of an open round.
        config: Of the federation.
        deadline: Of a round, in seconds.
        n_released: How many rounds were released.
        chain: The digest of what was released up to the round that the agent has asked for.
    """

    epoch: str
    config: FederationConfig
    deadline: float | None
    n_released: int
    chain: str | None


def as_greeting(sent: Mapping[str, Any]) -> Greeting:
    """A server's introduction.

    Raises:
        MalformedError: If it is none.
    """
    deadline = sent["deadline"]
    patient = deadline is None or (not isinstance(deadline, str) and float(deadline) >= 0)
    if sent["protocol"] != PROTOCOL or not patient:
        raise MalformedError
    return Greeting(
        token(sent["epoch"]),
        FederationConfig.from_dict(sent["config"]),
        deadline,
        count(sent["released"]),
        optional(token)(sent["chain"]),
    )


# Errors -----------------------------------------------------------------------------------------


def told(error: Exception) -> tuple[str, str]:
    """Name and text of what may be told to an agent."""
    name = type(error).__name__
    if _TOLD.get(name) is type(error):
        return name, str(error)
    if isinstance(error, VaultError):
        return "FederationError", _VAULT_FAILED
    return "FederationError", (
        f"The federation's server failed inside ({public_name(error)}). Its operator has to look "
        "after it; until then agents can go on alone."
    )


def raise_what_was_told(sent: Any) -> None:
    """Raises the error that :func:`told` described.

    Raises:
        MalformedError: If it describes none.
    """
    words = understood(texts, sent)
    if len(words) != 2:
        raise MalformedError
    raise _TOLD.get(words[0], FederationError)(words[1])
