"""A sealed message opens for one reader and one purpose, and its length tells nothing."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the federation extra, or that of Ray")

from privbo_plugins.sealing import PADDED_TO, AnotherKeyError, Message, Reader

LOSSES = np.random.default_rng(3).random(3000)


def test_a_vector_arrives_to_the_last_bit_and_nothing_of_it_can_be_seen():
    reader = Reader()
    message = Message.to(reader.public, (LOSSES, "labels"), "trial a")
    vector, labels = reader.read(message, "trial a")
    assert vector.tobytes() == LOSSES.tobytes()
    assert labels == "labels"
    seen = pickle.dumps(message)
    assert not any(LOSSES[i : i + 1].tobytes() in seen for i in range(0, 3000, 7))
    assert b"labels" not in seen


def test_a_message_of_another_trial_is_not_opened():
    reader = Reader()
    message = Message.to(reader.public, LOSSES, "run r, trial a")
    for context in ("run r, trial b", "run s, trial a", ""):
        with pytest.raises(ValueError, match="not sealed with this key for this purpose"):
            reader.read(message, context)


@pytest.mark.parametrize("part", ["text", "sender"])
def test_a_changed_message_is_not_opened(part):
    reader = Reader()
    message = Message.to(reader.public, LOSSES, "a")
    raw = bytearray(getattr(message, part))
    raw[len(raw) // 2] ^= 1
    with pytest.raises(ValueError, match="not sealed with this key"):
        reader.read(replace(message, **{part: bytes(raw)}), "a")


def test_another_reader_asks_for_its_own_key():
    message = Message.to(Reader().public, LOSSES, "a")
    other = Reader()
    with pytest.raises(AnotherKeyError):
        other.read(message, "a")
    with pytest.raises(ValueError, match="not sealed with this key"):
        other.read(replace(message, reader=other.public), "a")


@pytest.mark.parametrize("key", [bytes(32), b"", b"\x01" + bytes(31)])
def test_a_key_that_is_none_seals_nothing(key):
    with pytest.raises(ValueError, match=r"\w"):
        Message.to(key, LOSSES, "a")


def test_each_message_has_a_key_of_its_own():
    reader = Reader()
    one, two = (Message.to(reader.public, 0.5, "a") for _ in range(2))
    assert one.sender != two.sender
    assert one.text != two.text


LENGTHS = st.integers(0, 1000)
WIDE = LENGTHS.map("\U00010348".__mul__) | LENGTHS.map(bytes)
NAMES = st.text(max_size=40) | WIDE | st.integers() | st.none()


@given(NAMES)
def test_the_length_of_a_message_tells_nothing_of_a_users_name(name):
    message = Message.to(Reader().public, name, "a")
    assert len(message.text) == PADDED_TO + 16


@given(st.lists(st.floats(), min_size=40, max_size=40))
def test_the_length_of_a_message_depends_on_the_number_of_losses_alone(losses):
    reader = Reader().public
    lengths = {len(Message.to(reader, np.array(y), "a").text) for y in (losses, [0.0] * 40)}
    assert len(lengths) == 1
