"""Hypothesis strategies for damaged versions of valid inputs: bytes, texts and JSON values."""

import copy
import json

from hypothesis import strategies as st

ODD_NUMBERS = (
    0, -1, 1, 2, True, False, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e-320,
    1e-12, 1e17, 1e150, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
"""Numbers at the ends of what types hold, and values that are no numbers."""

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

_NEW_BYTES = st.sampled_from(ODD_BYTES) | st.binary(min_size=1, max_size=1)
_NEW_TEXT = st.sampled_from(ODD_TEXTS) | st.characters(max_codepoint=255)


@st.composite
def _damaged(draw, made, other, new):
    """Parts cut, doubled, replaced by odd ones, or spliced in from another input."""
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(made)))
        j = min(len(made), i + draw(st.integers(1, 20)))
        end = draw(st.sampled_from((i, i + 1, j, len(made))))
        part = draw(new | st.sampled_from((made[:0], made[i:j], other[i:])))
        made = made[:i] + part + made[end:]
    return made


def damaged_bytes(*valid):
    """One of these inputs, with parts that are odd or come from another one."""
    pairs = st.tuples(st.sampled_from(valid), st.sampled_from(valid))
    return pairs.flatmap(lambda pair: _damaged(*pair, _NEW_BYTES))


def damaged_text(*valid):
    """The same for texts."""
    pairs = st.tuples(st.sampled_from(valid), st.sampled_from(valid))
    return pairs.flatmap(lambda pair: _damaged(*pair, _NEW_TEXT))


@st.composite
def damaged_json(draw, *valid):
    """A copy in which some values are odd, swapped, missing, doubled, nested or of other types."""
    made = copy.deepcopy(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(made))
        if not places:
            return draw(_odd_value(made))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.booleans()):
            holder[key] = draw(_odd_value(holder[key]))
        else:
            _moved(draw, places, holder, key)
    return made


def _places(value):
    """Each container of a value with the key or index of each of its entries."""
    if not isinstance(value, dict | list):
        return
    for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(entry)


def _moved(draw, places, holder, key):
    """Drops an entry, copies another one over it, or gives it another place."""
    kind = draw(st.sampled_from(("dropped", "swapped", "moved")))
    if kind == "dropped":
        del holder[key]
    elif kind == "swapped":
        other, place = places[draw(st.integers(0, len(places) - 1))]
        holder[key] = copy.deepcopy(other[place])
    elif isinstance(holder, dict):
        holder[draw(st.sampled_from(ODD_TEXTS))] = holder.pop(key)
    else:
        holder.insert(key, copy.deepcopy(holder[key]))


def _odd_value(value):
    odd = [None, [], {}, "", [value], {"a": value}, [value, value], [[]]]
    odd += [_nested(5, value), _nested(200, value)]
    if isinstance(value, int | float) and abs(value) < 1e300:
        odd += [-value, value + 1, value * 2, value / 2, float(value), str(value)]
    found = st.sampled_from(ODD_NUMBERS) | st.sampled_from(ODD_TEXTS) | st.sampled_from(odd)
    return found | damaged_text(value) if isinstance(value, str) else found


def _nested(depth, value):
    for _ in range(depth):
        value = [value]
    return value


def as_json(value):
    """Of a value that may hold anything that JSON, as Python reads it, can express."""
    return json.dumps(value).encode()


def damaged_json_text(*valid):
    """Serialised: a damaged value, or a valid one with damaged bytes."""
    return damaged_json(*valid).map(_dumped) | damaged_bytes(*map(as_json, valid))


def _dumped(value):
    try:
        return as_json(value)
    except (ValueError, RecursionError):  # more digits than Python writes
        return b'{"a":' * 100
