"""Whose words may be told: those of the engine's own classes, and of no look-alike."""

from __future__ import annotations

import pytest

from privbo_plugins.errors import BudgetExceededError, NotARewardError, PrivacyError, VaultError
from privbo_plugins.redaction import OWN_ERRORS, attempt, own_error, own_words, retold
from privbo_plugins.returned import as_reward

NAME = "Jane Doe"


def raising(error: BaseException) -> None:
    raise error


def of_the_same_name(kind: type[Exception]) -> type[Exception]:
    return type(kind.__name__, (Exception,), {})


class Strange(type):
    """Its classes' name is of no type that a table could look up."""

    @property
    def __name__(cls) -> list[str]:  # type: ignore[override]
        return [NAME]


def test_what_is_no_reward_keeps_the_engine_s_own_words() -> None:
    _, error = attempt(lambda: as_reward([0.25, 0.5]), retold)
    assert type(error) is NotARewardError
    assert "The objective must return one reward" in str(error)
    assert own_error(NotARewardError("None or several.")) == (
        "NotARewardError",
        "None or several.",
    )
    _, error = attempt(lambda: as_reward(None), own_words)
    assert type(error) is NotARewardError


def test_what_is_no_reward_is_still_a_value_error_where_it_always_was() -> None:
    from privbo_plugins import returned

    assert returned.NotARewardError is NotARewardError
    assert issubclass(NotARewardError, ValueError)


@pytest.mark.parametrize("kind", OWN_ERRORS.values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "strange",
    [
        lambda kind: type(kind.__name__, (kind,), {}),
        of_the_same_name,
        lambda kind: type("Narrower", (kind,), {"__str__": lambda _: NAME}),
    ],
    ids=["a subclass of its name", "another class of its name", "a subclass"],
)
def test_the_words_of_what_only_looks_like_an_own_error_are_not_told(
    kind: type[Exception], strange: object
) -> None:
    error = strange(kind)(NAME)  # type: ignore[operator]
    assert own_words(error) is None
    assert own_error(error)[0] == "PrivacyError"
    for translate in (own_words, retold):
        _, told = attempt(lambda: raising(error), translate)
        assert type(told) is not type(error)
        assert NAME not in repr(told) + str(told)


def test_a_class_whose_name_is_none_is_withheld() -> None:
    error = Strange("Own", (Exception,), {})(NAME)
    assert own_words(error) is None


@pytest.mark.parametrize("kind", OWN_ERRORS.values(), ids=lambda kind: kind.__name__)
def test_own_errors_are_made_again_and_bring_nothing_along(kind: type[Exception]) -> None:
    def fails() -> None:
        who = NAME
        assert who
        try:
            raise KeyError(who)
        except KeyError:
            raise kind("The rule.") from None

    for translate in (own_words, retold):
        _, told = attempt(fails, translate)
        assert type(told) is kind
        assert str(told) == "The rule."
        assert (told.__traceback__, told.__context__, told.__cause__) == (None, None, None)


def test_a_narrower_own_error_stays_the_narrower_one() -> None:
    assert type(retold(BudgetExceededError("x"))) is BudgetExceededError
    assert issubclass(BudgetExceededError, PrivacyError)
    assert own_words(VaultError("x")) is not None
