"""One name, however it is spelt."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privbo_plugins.users import one_name

NAMES = st.text() | st.integers() | st.binary(max_size=20)


@settings(deadline=None)
@given(NAMES)
def test_the_one_spelling_is_its_own_and_a_text(name: Any) -> None:
    one = one_name(name)
    assert one_name(one) == one == one.strip()
    assert unicodedata.is_normalized("NFKC", one)


@settings(deadline=None)
@given(st.integers())
def test_an_integer_its_digits_and_their_bytes_are_one_name(number: int) -> None:
    spellings: list[Any] = [number, str(number), str(number).encode(), f"\t{number} "]
    assert {one_name(spelling) for spelling in spellings} == {str(number)}


@settings(deadline=None)
@given(st.text())
def test_text_is_one_name_with_its_bytes_and_its_normal_forms(text: str) -> None:
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    spellings = [text, text.encode(), f" {text}\n", *forms]
    assert len({one_name(spelling) for spelling in spellings}) == 1


@settings(deadline=None)
@given(st.integers(), st.integers())
def test_other_integers_are_other_names(one: int, two: int) -> None:
    assert (one_name(one) == one_name(two)) == (one == two)


def test_bytes_that_are_no_text_are_told_apart_by_their_digits() -> None:
    assert one_name(b"\xff\x00") == "bytes:ff00"
    assert one_name(b"\xff") != one_name(b"\xfe")


def test_a_lone_surrogate_is_a_name() -> None:
    assert one_name("\ud800") == "\ud800"


@pytest.mark.parametrize("user", [None, True, np.bool_(1), 7.0, ["Jane"], object()], ids=type)
def test_what_is_no_name_is_refused(user: Any) -> None:
    with pytest.raises(ValueError, match="must be a string, bytes or an integer") as caught:
        one_name(user)
    assert "Jane" not in str(caught.value)
