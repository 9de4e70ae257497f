"""Controls of the scanner: it finds every encoding, at every offset, and nothing else."""

import base64
import json
import pickle
import secrets
import struct

import numpy as np
import pytest

from tests.leaks import Scanner, exception_leaks, number_forms, pair_forms, text_forms
from tests.leaks.secrets import Secrets

VECTOR = {
    "json list": lambda v: json.dumps(v.tolist()).encode(),
    "numpy repr": lambda v: repr(v).encode(),
    "float32 numpy repr": lambda v: repr(v.astype(np.float32)).encode(),
    "little-endian float32": lambda v: v.astype("<f4").tobytes(),
    "big-endian float32": lambda v: v.astype(">f4").tobytes(),
    "bytes repr": lambda v: repr(v.tobytes()).encode(),
    "base64": lambda v: base64.b64encode(v.tobytes()),
    "base64 moved by one": lambda v: base64.b64encode(b"x" + v.tobytes()),
    "base64 moved by two": lambda v: base64.urlsafe_b64encode(b"xy" + v.tobytes()),
    "pickle": pickle.dumps,
    "pickle of floats": lambda v: pickle.dumps(v.tolist()),
    "pickle protocol 0": lambda v: pickle.dumps(v.tolist(), protocol=0),
    "mean": lambda v: repr(float(v.mean())).encode(),
    "bytes of the mean": lambda v: np.array(v.mean(), dtype=">f8").tobytes(),
}

NUMBER = {
    "repr": lambda y: repr(y).encode(),
    "12 digits": lambda y: f"{y:.12g} ".encode(),
    "8 digits": lambda y: f"{y:.8g} ".encode(),
    "6 digits": lambda y: f"{y:.6g} ".encode(),
    "exponent": lambda y: f"{y:.16e}".encode(),
    "percent": lambda y: f"{100 * y!r}%".encode(),
    "float.hex": lambda y: y.hex().encode(),
    "float64 <": lambda y: struct.pack("<d", y),
    "float64 >": lambda y: struct.pack(">d", y),
    "hex": lambda y: struct.pack("<d", y).hex().encode(),
    "HEX": lambda y: struct.pack(">d", y).hex().upper().encode(),
    "bytes repr": lambda y: repr(struct.pack("<d", y)).encode(),
    "base64": lambda y: base64.b64encode(struct.pack("<d", y)),
    "base64 moved": lambda y: base64.urlsafe_b64encode(b"x" + struct.pack(">d", y)),
    "base64 of a vector": lambda y: base64.b64encode(struct.pack("<3d", 1.5, y, 2.5)),
    "pickle": lambda y: pickle.dumps({"y": y}),
    "pickle 0": lambda y: pickle.dumps([y], protocol=0),
    "decimal float32": lambda y: str(np.float32(y)).encode(),
}

REWARD = {
    "negative": lambda y: repr(-y).encode(),
    "negative bytes": lambda y: struct.pack(">d", -y),
    "float32 as a double <": lambda y: struct.pack("<d", np.float32(y)),
    "float32 as a double >": lambda y: struct.pack(">d", np.float32(y)),
    "half-range": lambda y: struct.pack("<d", 2 * y - 1),
    "complement": lambda y: repr(1 - y).encode(),
}
"""What only rewards are searched for as."""


def _found_at_every_offset(scanner, blob):
    noise = secrets.token_bytes(2000)
    return all(scanner.hits(before * b"\xfe" + b" " + blob + b" " + noise) for before in range(9))


@pytest.mark.parametrize("encode", VECTOR.values(), ids=VECTOR.keys())
def test_each_encoding_of_a_vector_is_found(encode):
    own = Secrets(size=24, seed=1)
    assert _found_at_every_offset(own.scanner, encode(own.vector()))


@pytest.mark.parametrize("encode", NUMBER.values(), ids=NUMBER.keys())
def test_each_encoding_of_a_number_is_found(encode):
    one, many = Secrets(seed=1), Secrets(size=24, seed=1)
    assert _found_at_every_offset(one.scanner, encode(one.reward()))
    assert _found_at_every_offset(many.scanner, encode(float(many.vector()[3])))
    assert one.scanner.hits(secrets.token_bytes(100_000)) == []


@pytest.mark.parametrize("encode", REWARD.values(), ids=REWARD.keys())
def test_each_encoding_of_a_reward_is_found(encode):
    own = Secrets(seed=1)
    assert _found_at_every_offset(own.scanner, encode(own.reward()))


@pytest.mark.parametrize("length", [0.5, 100.0])
@pytest.mark.parametrize(
    "encode",
    [
        lambda v: v.tobytes(),
        lambda v: v.astype(">f8").tobytes(),
        lambda v: base64.b64encode(b"x" + v.tobytes()),
        lambda v: repr(v.tolist()).encode(),
        pickle.dumps,
    ],
)
def test_each_encoding_of_an_agents_vector_is_found(encode, length):
    own, vector = Secrets(), np.random.default_rng(0).normal(size=20) * length
    own.add_raw("vector", vector)
    assert len(own.scanner.hits(encode(vector))) >= 20


def test_every_pattern_is_found_at_every_offset():
    first, second = np.random.default_rng().uniform(0.11, 0.99, 2)
    patterns = [*number_forms(float(first)), *pair_forms(first, second), *text_forms("p-8c1f00e9")]
    scanner = Scanner()
    scanner.add_vector("losses", np.array([first, second]))
    scanner.add_text("name", "p-8c1f00e9")
    for encoding, pattern, _ in patterns:
        if len(pattern) >= 8:
            for before in range(8):
                hits = scanner.hits(b"\xff" * before + pattern + b"\xff" * 3)
                assert any(encoding in hit for hit in hits), encoding


def test_nothing_is_found_in_unrelated_bytes_and_numbers():
    """Two megabytes against 2000 patterns: the chance of any false hit is below 1e-4."""
    scanner = Scanner()
    assert scanner.hits(secrets.token_bytes(1000)) == []
    scanner.add_vector("losses", np.random.default_rng().uniform(0.11, 0.99, 60))
    text = json.dumps(np.random.default_rng().uniform(0, 1, 20_000).tolist())
    assert scanner.hits(secrets.token_bytes(2_000_000)) == []
    assert scanner.hits(text.encode()) == []


def test_what_a_public_number_shares_is_no_hit_but_the_rest_is():
    scanner = Scanner()
    scanner.add_number("x", 0.123456789012345)
    scanner.allow([0.123456700000001])
    assert not scanner.hits(b"[0.123457]")
    assert scanner.hits(b"[0.12345679]")
    assert scanner.hits(b"[0.123456789012345]")


def test_shortened_digits_inside_a_longer_number_are_no_hit():
    scanner = Scanner()
    scanner.add_number("x", 0.123456789012345)
    assert scanner.hits(b"[0.123457]")
    assert not scanner.hits(b"[0.1234571]")
    assert not scanner.hits(b"[10.123457]")


def test_exceptions_are_searched_with_what_they_hold_and_came_from():
    own = Secrets()
    y = own.reward()

    def caught(call):
        try:
            call()
        except Exception as error:
            return error
        raise AssertionError

    def quotes():
        try:
            raise ValueError(f"{own.token} {y!r}")
        except ValueError as error:
            raise RuntimeError("hidden") from error

    def holds():
        kept = y
        raise ValueError("something else" if kept else "")

    def groups():
        raise ExceptionGroup("hidden", [KeyError(y)])

    for call, where in ((quotes, "exception"), (holds, "holds"), (groups, "exception")):
        leaks = exception_leaks(caught(call), own.scanner)
        assert any(where in leak for leak in leaks)
        assert any("printed" in leak for leak in leaks)
