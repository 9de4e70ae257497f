"""A private reward on the trial's side: clipped, charged and privatised where it arises.

This is what the process of a trial imports for one reward: the mechanism and its noise, and no
ledger, which is an actor that it calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from privbo_plugins import sanitize
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import PrivacyWarning, VaultError, warn
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.store.release import draw_reward
from privbo_plugins.users import User, check_named, user_name
from raytune_searchers._channel import USERS_LEDGER, Channel, Entry, channel_of_trial
from raytune_searchers._trainable import (
    Publication,
    Told,
    Trainable,
    check_trainable,
    copied,
    keep_private,
    trial_id,
)

UserOf = User | Callable[[dict[str, Any]], User]

_LONGEST_NAME = 1000


def _begin(
    name: str, mechanism: LocalMechanism, user_id: UserOf | None, watched: bool,
    config: dict[str, Any],
) -> tuple[Publication | None, BaseException | None]:  # fmt: skip
    """Starts a trial: (how it publishes, None), or (None, an error with nothing private).

    Args:
        name: Of the ledger's actor.
        mechanism: What the wrapper promises to do to a reward.
        user_id: Whose reward a trial is.
        watched: Whether a search ends the experiment if the ledger is gone.
        config: The trial's.
    """
    trial = trial_id()
    whose = lambda: user_id(copied(config)) if callable(user_id) else user_id  # noqa: E731
    named, failure = sanitize.call(whose)
    if failure is not None:
        return None, failure
    user = None if user_id is None else _checked_name(named)
    channel = channel_of_trial(name, USERS_LEDGER, watched=watched)
    entry: Entry = channel.call_sealed("enter", trial, user)
    if entry.details[0] != mechanism:
        raise VaultError(
            "This private trainable was made with another mechanism, epsilon or range than "
            "the run that it found under its name. Give it another run_name=."
        )
    release = functools.partial(_release, channel, entry, trial, user)
    return Publication(trial, channel, entry, as_reward, release), None


def _release(channel: Channel, entry: Entry, trial: str, user: User | None, reward: float) -> Told:
    """Charges the user, draws here and stores the draw; whatever was stored first counts."""
    known, token = channel.call_sealed("charge", trial, user)
    if known is not None:  # another attempt of this trial was faster
        return float(known), {}
    mechanism, worst, noise = entry.details
    drawn = draw_reward(mechanism, reward, worst, noise)
    return float(channel.call("store", trial, token, drawn)), {}


def _checked_name(user: Any) -> User:
    """A user's name as plain data, so small that a sealed message has one length.

    Raises:
        ValueError: If it is none.
    """
    name = user_name(user)
    size = len(name) if isinstance(name, str | bytes) else name.bit_length() // 8
    if size > _LONGEST_NAME:
        raise ValueError(f"A user's name may have at most {_LONGEST_NAME} characters.")
    return name


def wrap(
    trainable: Trainable,
    name: str,
    mechanism: LocalMechanism,
    user_id: UserOf | None,
    user_budget: float | None,
    *,
    watched: bool = False,
) -> Any:
    """A function trainable whose reward is privatised where it arises.

    Args:
        trainable: The user's function.
        name: Of the actor that holds the ledger.
        mechanism: What happens to a reward.
        user_id: Whose reward a trial is.
        user_budget: What the ledger allows a user.
        watched: Whether a search ends the experiment if the ledger is gone.

    Raises:
        ValueError: If it is no function of a config, or a budget has no users.
    """
    check_trainable(trainable, "A private trainable", "one user's reward, a number")
    check_named(user_budget, user_id, "config")
    if user_id is not None and not callable(user_id):
        _checked_name(user_id)
        warn(
            "user_id= is one name, and Ray stores it with the trainable, where every process of "
            "the cluster can read it. Give a function of the config that finds the name in the "
            "trial: user_id=lambda config: os.environ['USER_NAME'].",
            PrivacyWarning,
        )
    private: Any = keep_private(
        trainable, functools.partial(_begin, name, mechanism, user_id, watched)
    )
    private.mechanism = mechanism
    return private
