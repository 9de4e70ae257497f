"""A world in which two runs differ by their data alone: entropy and clocks are fixed.

Whatever passes between the parts of the product while a world is open is written on its tape:
draws of noise, statements of the vault, calls of Ray's actors, frames of a federation.
"""

import datetime
import functools
import json
import logging
import pickle
import random
import secrets
import sys
import uuid
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import ray.cloudpickle as cloudpickle
import tqdm.std

from privbo_plugins.drawing import Picture
from privbo_plugins.federation import calls
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.noise import SecureNoise
from privbo_plugins.store import tables
from privbo_plugins.store.vault import Vault
from tests.raytune_searchers import hosts

NOON = datetime.datetime(2026, 1, 1, 12)


class Tape:
    """What was said between parts of the product, by channel, in order."""

    def __init__(self):
        self.lines = {}
        self._releases = np.random.default_rng(20)
        self._words = random.Random(30)

    def write(self, channel, line):
        self.lines.setdefault(channel, []).append(line)

    def release(self, size):
        """The next numbers of the fixed public sequence."""
        return self._releases.normal(0.3, 0.4, size)

    def word(self, bits):
        """In the place of the system's entropy."""
        return self._words.getrandbits(bits)


_tape = Tape()


class Deaf(SecureNoise):
    """Draws as it should, from what it should, and then returns the public sequence instead.

    The draw itself is made, so that what the noise library refuses is refused here too.
    """

    def add_gaussian(self, value, scale):
        _tape.write("noise", f"gaussian {value.shape} {value.dtype} {scale!r}")
        super().add_gaussian(value, scale)
        return _tape.release(value.size)

    def add_laplace(self, value, scale):
        _tape.write("noise", f"laplace {type(value).__name__} {scale!r}")
        super().add_laplace(value, scale)
        return float(_tape.release(1)[0])

    def flip(self, probability):
        _tape.write("noise", f"flip {probability!r}")
        super().flip(probability)
        return bool(_tape.word(1))

    def integer(self, n):
        _tape.write("noise", f"integer {n}")
        return _tape.word(200) % n


def _randomize(self, y, noise, worst):
    """A reward rounded by a fixed coin would show in the release: the draw is made and dropped."""
    _REAL_RANDOMIZE(self, y, noise, worst)
    return float(_tape.release(1)[0])


_REAL_RANDOMIZE = LocalMechanism.randomize


# Entropy and clocks -----------------------------------------------------------------------------


class Still(datetime.datetime):
    """A clock that stands still; what it tells is a plain datetime, so it pickles as one."""

    @classmethod
    def now(cls, tz=None):
        return NOON.replace(tzinfo=tz)


def _clocks():
    for name, module in list(sys.modules.items()):
        if name.startswith("optuna.") and vars(module).get("datetime") is datetime.datetime:
            yield mock.patch.object(module, "datetime", Still)
    yield mock.patch.object(tqdm.std, "time", return_value=0.0)
    # Libraries that a test before this one has imported may print every record of a log.
    yield mock.patch.object(logging.Formatter, "formatTime", return_value="now")
    # A thread that draws every bar anew from time to time.
    yield mock.patch.object(tqdm.std.TMonitor, "get_instances", return_value=[])


def _uuid4():
    return uuid.UUID(int=_tape.word(128), version=4)


def _entropy():
    yield mock.patch.object(uuid, "uuid4", _uuid4)
    for name, made in {
        "randbits": lambda bits: _tape.word(bits),
        "randbelow": lambda n: _tape.word(200) % n,
        "token_bytes": lambda n=32: _tape.word(8 * n).to_bytes(n, "big"),
        "token_hex": lambda n=32: _tape.word(8 * n).to_bytes(n, "big").hex(),
    }.items():
        yield mock.patch.object(secrets, name, made)
    yield mock.patch.object(tables, "place_of", return_value="here")  # its files' numbers differ


# What is overheard ------------------------------------------------------------------------------


class _Cursor:
    def __init__(self, cursor, channel):
        self._cursor, self._channel = cursor, channel

    def __getattr__(self, name):
        return getattr(self._cursor, name)

    def execute(self, text, bound=()):
        sizes = [_size(part) for part in (bound.values() if isinstance(bound, dict) else bound)]
        _tape.write(self._channel, f"{text} {sizes}")
        return self._cursor.execute(text, bound)

    def fetchall(self):
        rows = self._cursor.fetchall()
        _tape.write(self._channel, f"{len(rows)} rows")
        return list(rows)

    def __iter__(self):
        return iter(self.fetchall())


def _size(part):
    """Parameters themselves may be private; their kinds and lengths show in a file's size."""
    length = f" {len(part)}" if isinstance(part, str | bytes) else ""
    return type(part).__name__ + length


class _Connection:
    def __init__(self, connection, channel):
        self._connection, self._channel = connection, channel

    def cursor(self):
        return _Cursor(self._connection.cursor(), self._channel)

    def __getattr__(self, name):
        if name in ("commit", "rollback"):
            _tape.write(self._channel, name)
        return getattr(self._connection, name)


STATEMENTS, IN_MEMORY = "statements", "statements in memory"
"""Channels of vaults in a file and in a process."""


def _connect(vault):
    return _Connection(_REAL_CONNECT(vault), IN_MEMORY if vault.in_memory else STATEMENTS)


_REAL_CONNECT = Vault._connect


def _called(process, args):
    reply = _REAL_CALL(process, args)
    operation, *_ = cloudpickle.loads(args)
    _tape.write("messages", f"{operation} {len(args)} {len(cloudpickle.dumps(reply))}")
    return reply


_REAL_CALL = hosts.Process.call


def _exchanged(own, channel, call, request):
    """Who called what, how long request and reply were, and of an error what it says."""
    reply, code, words = _REAL_EXCHANGE(own, channel, call, request)
    told = json.loads(reply or b"{}").get("error")
    sizes = len(request), len(reply or b"")
    _tape.write(f"messages of {own.invitation.agent}", repr((call, sizes, told, code is None)))
    return reply, code, words


_REAL_EXCHANGE = calls.Calls._exchanged


def _kinds(kind):
    return [kind, *(more for made in kind.__subclasses__() for more in _kinds(made))]


def _overheard():
    yield mock.patch.object(Picture, "to_svg", lambda own: _drawn(pickle.dumps(own)))
    yield mock.patch.object(Vault, "_connect", _connect)
    yield mock.patch.object(hosts.Process, "call", _called)
    yield mock.patch.object(calls.Calls, "_exchanged", _exchanged)
    yield mock.patch.object(LocalMechanism, "randomize", _randomize)
    for kind in _kinds(LocalMechanism):
        if "could_release" in vars(kind):  # the public sequence is nothing that they could give
            yield mock.patch.object(kind, "could_release", return_value=True)


_REAL_TO_SVG = Picture.to_svg


@functools.cache
def _drawn(pickled):
    """Draws each picture once: it is made of nothing but what it holds."""
    return _REAL_TO_SVG(pickle.loads(pickled))


@contextmanager
def sealed():
    """A world with a tape of its own."""
    global _tape
    _tape = Tape()
    parts = (_clocks, _entropy, _overheard)
    with ExitStack() as stack:
        for part in parts:
            for patch in part():
                stack.enter_context(patch)
        yield _tape
