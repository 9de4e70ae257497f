"""Messages that one reader alone can open: X25519, HKDF and ChaCha20-Poly1305 of cryptography.

A message travels through memory and files that others can read (Ray's object store, a federation's
server). Each is sealed with a key of its own, so a nonce is never used twice, and for a context
that the reader must know: what was sealed for one run, operation and trial (or agent) opens for no
other.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from privbo_plugins.errors import PrivacyError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise ImportError(
        "Vectors are sealed with cryptography: pip install 'privbo-plugins[ray]', or "
        "'privbo-plugins[federation]' for agents in other processes. In one process "
        "server.connect(agent) needs nothing."
    ) from None

KEY = 32
"""Bytes of a key."""

PADDED_TO = 2**13
"""A message's length is a multiple of this: of short ones (a user's name) it tells nothing."""

_NONCE = bytes(12)
"""Every key encrypts one message."""


class Meeting:
    """What two sides agree on, for any purpose: X25519, then HKDF.

    Args:
        private: One's private key.
        public: The other's public key.

    Raises:
        ValueError: If the public key is none.

    Example:
        >>> one, two = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        >>> here = Meeting(one, two.public_key().public_bytes_raw())
        >>> there = Meeting(two, one.public_key().public_bytes_raw())
        >>> here.key("us") == there.key("us"), here.key("us") == here.key("them")
        (True, False)
    """

    def __init__(self, private: bytes | X25519PrivateKey, public: bytes) -> None:
        if isinstance(private, bytes):
            private = X25519PrivateKey.from_private_bytes(private)
        self._secret = private.exchange(X25519PublicKey.from_public_bytes(public))

    def key(self, purpose: str) -> bytes:
        """A key of 32 bytes; another purpose gives another one."""
        return HKDF(hashes.SHA256(), KEY, None, purpose.encode()).derive(self._secret)


def sealed(key: bytes, text: bytes, context: str) -> bytes:
    """Encrypted and authenticated; a key is used once."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, context.encode())


def opened(key: bytes, sent: bytes, context: str) -> bytes:
    """Returns what :func:`sealed` was given.

    Raises:
        ValueError: If it is not that.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sent, context.encode())
    except InvalidTag:
        pass
    raise ValueError("This was not sealed with this key for this purpose.")


# Messages to one reader -------------------------------------------------------------------------


class AnotherKeyError(PrivacyError):
    """A message was sealed to a key that its reader no longer has: ask for the new one."""


@dataclass(frozen=True)
class Message:
    """What only the holder of one private key can read.

    Attributes:
        reader: The public key that it was sealed to.
        sender: The sender's public key, made for this message.
        text: The ciphertext.
    """

    reader: bytes
    sender: bytes
    text: bytes

    @classmethod
    def to(cls, reader: bytes, value: Any, context: str) -> Message:
        """Seals a value.

        Args:
            reader: The reader's public key.
            value: Anything that can be pickled; only its rough length can be seen.
            context: What it is sealed for, such as a run and a trial.

        Raises:
            ValueError: If the key is none.
        """
        own = X25519PrivateKey.generate()
        sender = own.public_key().public_bytes_raw()
        key = Meeting(own, reader).key(_purpose(reader, sender))
        return cls(reader, sender, sealed(key, _padded(pickle.dumps(value)), context))


class Reader:
    """The only holder of a private key, which lives as long as this object.

    Example:
        >>> reader = Reader()
        >>> message = Message.to(reader.public, [0.25, 0.5], "run r, trial 7")
        >>> reader.read(message, "run r, trial 7")
        [0.25, 0.5]
        >>> reader.read(message, "run r, trial 8")
        Traceback (most recent call last):
        ValueError: This was not sealed with this key for this purpose.
    """

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def __reduce__(self) -> Any:
        raise PrivacyError("A reader's private key cannot be pickled: it opens losses and names.")

    def read(self, message: Message, context: str) -> Any:
        """Opens a message that was sealed for a context.

        Raises:
            AnotherKeyError: If it was sealed to another reader, such as an earlier one.
            ValueError: If it was sealed for something else, or is damaged.
        """
        if message.reader != self.public:
            raise AnotherKeyError("The message was sealed to another key. Ask for the new one.")
        key = Meeting(self._private, message.sender).key(_purpose(self.public, message.sender))
        return pickle.loads(opened(key, message.text, context))


def _purpose(reader: bytes, sender: bytes) -> str:
    return f"message from {sender.hex()} to {reader.hex()}"


def _padded(text: bytes) -> bytes:
    """Fills up to whole steps; unpickling stops at the end of the pickle."""
    return text + bytes(-len(text) % PADDED_TO)
