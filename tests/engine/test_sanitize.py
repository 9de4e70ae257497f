"""Whose words may be told: those of the engine's own classes, and of no look-alike."""

import traceback

import pytest

from privbo_plugins import sanitize
from privbo_plugins.convert import as_losses, as_reward
from privbo_plugins.errors import NotARewardError, NotLossesError, PrivacyError, VaultError
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.sanitize import (
    OWN_ERRORS,
    of_converting,
    own_error,
    own_words,
    retelling,
    sanitized,
)
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.store.vault import open_vault

NAME = "Jane Doe"


def raising(error):
    raise error


def of_the_same_name(kind):
    return type(kind.__name__, (Exception,), {})


def test_what_is_no_reward_keeps_the_engine_s_own_words():
    _, error = sanitize.call(lambda: as_reward([0.25, 0.5]), sanitized)
    assert type(error) is NotARewardError
    assert "The objective must return one reward" in str(error)
    _, error = sanitize.call(lambda: as_reward(None), of_converting)
    assert type(error) is NotARewardError
    _, error = sanitize.call(lambda: as_losses(0.5), of_converting)
    assert type(error) is NotLossesError
    assert "before averaging" in str(error)


@pytest.mark.parametrize("kind", [k for k in OWN_ERRORS.values() if "Not" not in k.__name__])
def test_what_an_object_raises_as_it_is_converted_is_none_of_the_engine_s(kind):
    _, error = sanitize.call(lambda: raising(kind(NAME)), of_converting)
    assert type(error) is not kind
    assert NAME not in str(error)


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
def test_the_words_of_what_only_looks_like_an_own_error_are_not_told(kind, strange):
    error = strange(kind)(NAME)
    assert own_words(error) is None
    assert type(own_error(error)) is PrivacyError
    for translate in (own_words, sanitized):
        _, told = sanitize.call(lambda: raising(error), translate)
        assert type(told) is not type(error)
        assert NAME not in repr(told) + str(told)


@pytest.mark.parametrize("kind", OWN_ERRORS.values(), ids=lambda kind: kind.__name__)
def test_own_errors_are_made_again_and_bring_nothing_along(kind):
    def fails():
        who = NAME
        assert who
        try:
            raise KeyError(who)
        except KeyError:
            raise kind("The rule.") from None

    for translate in (own_words, sanitized):
        _, told = sanitize.call(fails, translate)
        assert type(told) is kind
        assert str(told) == "The rule."
        assert (told.__traceback__, told.__context__, told.__cause__) == (None, None, None)


# Frames ------------------------------------------------------------------------------------------

REWARD = 0.173205080757


def shown(error):
    """What a printer of local variables shows of all frames but this file's own."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename != __file__:
            for value in frame.f_locals.values():
                yield f"{value!r} {getattr(value, 'args', '')} {getattr(value, 'keywords', '')}"
                yield from (repr(cell) for cell in _cells(value))


def _cells(value):
    return [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]


def session(**settings):
    mechanism = make_mechanism(1.0, value_range=(0.0, 1.0))
    ledger = RewardSession(mechanism, open_vault(), "study", **settings)
    ledger.release("1", 0.5, NAME, 0.0)
    ledger.charge("2", "Joe")
    return ledger


class Anonymous:
    """What is no name, and shows a person all the same."""

    def __repr__(self):
        return NAME


CALLS = {
    "check": lambda ledger, trial, user: ledger.check(trial, user),
    "charge": lambda ledger, trial, user: ledger.charge(trial, user),
    "release": lambda ledger, trial, user: ledger.release(trial, REWARD, user, 0.0),
    "adopt": lambda ledger, trial, user: ledger.adopt(trial, user, 0.5),
}
REFUSED = {
    "a budget": ("3", NAME, "Ask another user", ("check", "charge", "release")),
    "no name": ("3", Anonymous(), "A user's name must be", tuple(CALLS)),
    "another user": ("2", NAME, "charged to another user", ("charge", "release")),
}


@pytest.mark.parametrize(("why", "name"), [(why, n) for why in REFUSED for n in REFUSED[why][3]])
def test_frames_of_a_refused_user_hold_neither_name_nor_reward(why, name):
    trial, user, words, _ = REFUSED[why]
    ledger = session(user_budget=1.0 if why == "a budget" else None)
    with pytest.raises((ValueError, PrivacyError), match=words) as caught:
        CALLS[name](ledger, trial, user)
    texts = list(shown(caught.value))
    assert texts
    assert [text for text in texts if NAME in text or str(REWARD) in text] == []
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)


def test_control_a_frame_that_holds_a_name_is_seen():
    with pytest.raises(KeyError) as caught:
        exec(
            compile("def held(who): raise KeyError\nheld(name)", "elsewhere", "exec"),
            {"name": NAME},
        )
    assert any(NAME in text for text in shown(caught.value))


def test_what_passes_a_method_that_retells_is_what_it_returns_and_raises():
    class Held:
        @retelling
        def half(self, number, *, of=2):
            """Of a number."""
            if number < 0:
                raise VaultError("No number is left.")
            return number / of

    assert (Held().half(3), Held().half(3, of=6)) == (1.5, 0.5)
    assert (Held.half.__name__, Held.half.__doc__) == ("half", "Of a number.")
    with pytest.raises(VaultError, match="No number is left") as caught:
        Held().half(-1)
    assert [f.f_code.co_name for f, _ in traceback.walk_tb(caught.value.__traceback__)][
        -1
    ] != "half"
    with pytest.raises(PrivacyError, match="failed inside the engine"):
        Held().half(1, of=0)


@pytest.mark.parametrize("given", [(), (NAME, NAME, NAME)])
@pytest.mark.parametrize("by_name", [{}, {"y": NAME}])
def test_a_call_with_other_arguments_names_those_that_there_are(given, by_name):
    @retelling
    def asked(self, who, of=None): ...

    with pytest.raises(TypeError, match=r"^asked\(who, of\): .*('who'|too many|'y')") as caught:
        asked(None, *given, **by_name)
    assert [text for text in shown(caught.value) if NAME in text] == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_who_ends_a_process_ends_it_through_a_method_that_retells(kind):
    @retelling
    def ending(who):
        raise kind(who)

    with pytest.raises(kind) as caught:
        ending(NAME)
    assert NAME not in repr(caught.value.args)
    assert [text for text in shown(caught.value) if NAME in text] == []
