"""Damaged versions of valid inputs, drawn from a seed: bytes, texts and JSON values."""

from __future__ import annotations

import json
import marshal
import random
from collections.abc import Callable
from typing import Any

ODD_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, True, False, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e-320,
    1e-12, 1e17, 1e150, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
"""Numbers at the ends of what types hold, and such as are none."""

ODD_TEXTS = (
    "", " ", "0", "-1", "1e999", "nan", "inf", "\0", "\ud800", "é", "١٢", "²", "a" * 300,
    "9" * 5000, "[", "{}", "%s", "../..", "//", ":", "@", "#", "?", "=", "\r\n", "\n", '"', "'",
    ",", "\ufeff",
)  # fmt: skip

ODD_BYTES = (
    *(text.encode("utf-8", "surrogatepass") for text in ODD_TEXTS),
    b"\xff", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80", b"\xfe\xff",
    b"[" * 3000, b"1" * 5000, b'{"a":' * 1500, b"NaN", b"Infinity", b"1e999", b"null", b"true",
)  # fmt: skip


def damaged_bytes(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Bits flipped, parts cut, doubled, moved, replaced or spliced in from another input."""
    made = bytearray(data)
    for _ in range(_times(rng)):
        i = rng.randrange(len(made) + 1)
        j = min(len(made), i + int(rng.expovariate(0.1)))
        rng.choice(_BYTE_CHANGES)(rng, made, i, j, other)
    return bytes(made)


def _flip(rng: random.Random, made: bytearray, i: int, _j: int, _other: bytes) -> None:
    if i < len(made):
        made[i] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, made: bytearray, i: int, _j: int, _other: bytes) -> None:
    if i < len(made):
        made[i] = rng.randrange(256)


def _cut(_rng: random.Random, made: bytearray, i: int, _j: int, _other: bytes) -> None:
    del made[i:]


def _drop(_rng: random.Random, made: bytearray, i: int, j: int, _other: bytes) -> None:
    del made[i:j]


def _double(_rng: random.Random, made: bytearray, i: int, j: int, _other: bytes) -> None:
    made[i:i] = made[i:j]


def _odd(rng: random.Random, made: bytearray, i: int, j: int, _other: bytes) -> None:
    made[i : rng.choice((i, j))] = rng.choice(ODD_BYTES)


def _splice(rng: random.Random, made: bytearray, i: int, _j: int, other: bytes) -> None:
    made[i:] = other[rng.randrange(len(other) + 1) :]


_BYTE_CHANGES: tuple[Callable[..., None], ...] = (
    _flip, _flip, _set, _cut, _drop, _double, _odd, _splice
)  # fmt: skip


def _times(rng: random.Random) -> int:
    return 1 + int(rng.expovariate(1.0))


def damaged_text(rng: random.Random, text: str, other: str = "") -> str:
    """Characters dropped, doubled, replaced by odd ones, or spliced in from another input."""
    for _ in range(_times(rng)):
        i = rng.randrange(len(text) + 1)
        j = min(len(text), i + int(rng.expovariate(0.2)))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:i] + text[j:]
        elif kind == 1:
            text = text[:j] + text[i:j] + text[j:]
        elif kind == 2:
            text = text[:i] + rng.choice(ODD_TEXTS) + text[rng.choice((i, j)) :]
        elif kind == 3:
            text = text[:i] + chr(rng.randrange(256)) + text[i + 1 :]
        elif kind == 4:
            text = text[:i] + other[rng.randrange(len(other) + 1) :]
        else:
            text = text[:i]
    return text


def damaged_json(rng: random.Random, value: Any) -> Any:
    """A copy in which some values are odd, swapped, missing, doubled, nested or of other types."""
    made = _copied(value)
    for _ in range(_times(rng)):
        places = list(_places(made))
        if not places:
            return _odd_value(rng, made)
        _change(rng, places, *rng.choice(places))
    return made


Place = tuple[Any, Any]
"""A container, and the key or index of an entry."""


def _copied(value: Any) -> Any:
    return marshal.loads(marshal.dumps(value))  # a tenth of a deep copy's time


def _places(value: Any) -> Any:
    if not isinstance(value, dict | list):
        return
    for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(entry)


def _change(rng: random.Random, places: list[Place], holder: Any, key: Any) -> None:
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, place = rng.choice(places)
        if _holds(other, place):
            holder[key] = _copied(other[place])
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(ODD_TEXTS)] = holder.pop(key)
    elif kind == 2:
        holder.insert(key, _copied(holder[key]))
    else:
        holder[key] = _odd_value(rng, holder[key])


def _holds(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _odd_value(rng: random.Random, value: Any) -> Any:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(ODD_NUMBERS)
    if kind == 3:
        return rng.choice(ODD_TEXTS)
    if kind == 4 and isinstance(value, str):
        return damaged_text(rng, value)
    if kind == 4 and isinstance(value, int | float) and abs(value) < 1e300:
        return rng.choice((-value, value + 1, value * 2, value / 2, float(value), str(value)))
    if kind == 5:
        return rng.choice((None, [], {}, [value], {"a": value}, [value, value], [[]]))
    if kind == 6:
        return _nested(rng.choice((5, 200)), value)
    return rng.choice((None, [], {}, ""))


def _nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def as_json(value: Any) -> bytes:
    """Of a value that may hold anything that JSON, as Python reads it, can express."""
    return json.dumps(value).encode()


def damaged_json_text(rng: random.Random, value: Any, other: bytes = b"{}") -> bytes:
    """Serialised: mostly a damaged value, sometimes the valid one with damaged bytes."""
    if rng.random() < 0.75:
        return _dumped(damaged_json(rng, value))
    return damaged_bytes(rng, as_json(value), other)


def _dumped(value: Any) -> bytes:
    try:
        return as_json(value)
    except (ValueError, RecursionError):  # more digits than Python writes
        return b'{"a":' * 100
