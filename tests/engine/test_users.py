"""One name, however it is spelt."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins.users import one_name

NAMES = st.text() | st.integers() | st.binary(max_size=20)


@given(NAMES)
def test_the_one_spelling_is_its_own_and_a_text(name):
    one = one_name(name)
    assert one_name(one) == one == one.strip()
    assert unicodedata.is_normalized("NFKC", one)


@given(st.integers())
def test_an_integer_its_digits_and_their_bytes_are_one_name(number):
    spellings = [number, str(number), str(number).encode(), f"\t{number} "]
    assert {one_name(spelling) for spelling in spellings} == {str(number)}


@given(st.text())
def test_text_is_one_name_with_its_bytes_and_its_normal_forms(text):
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    spellings = [text, text.encode(), f" {text}\n", *forms]
    assert len({one_name(spelling) for spelling in spellings}) == 1


@given(st.integers(), st.integers())
def test_other_integers_are_other_names(one, two):
    assert (one_name(one) == one_name(two)) == (one == two)


def test_bytes_that_are_no_text_are_told_apart_by_their_digits():
    assert one_name(b"\xff\x00") == "bytes:ff00"
    assert one_name(b"\xff") != one_name(b"\xfe")


def test_a_lone_surrogate_is_a_name():
    assert one_name("\ud800") == "\ud800"
