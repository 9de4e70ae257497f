"""How a command ends: what is printed of warnings and errors, and with which exit code."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

from privbo_plugins.errors import (
    FederationError,
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    UtilityWarning,
    VaultError,
)
from privbo_plugins.redaction import own_error, public_name
from privbo_plugins.settings import declaration

FAILED, REFUSED, DIFFERS, INTERRUPTED, UNHEARD = 1, 2, 3, 130, 141
"""Exit codes beside 0."""

_OWN_TEXTS = (ObjectiveFailedError, FederationError)
"""Errors of the engine that :func:`~privbo_plugins.redaction.own_error` does not know."""

Act = Callable[[argparse.Namespace], int | None]
"""A command; it may say with which exit code it ends."""


def carried_out(act: Act, given: argparse.Namespace) -> int:
    """Carries a command out; its exit code.

    The engine's warnings are printed in the end, each once; those of other libraries are not,
    because whether one is given may depend on data. Of an error that is none of the engine's only
    the kind is told: its text and its traceback may quote data.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for kind in (PrivacyWarning, UtilityWarning):
            warnings.simplefilter("always", kind)
        try:
            return _carried_out(act, given)
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                print(f"WARNING: {text}", file=sys.stderr)


def _carried_out(act: Act, given: argparse.Namespace) -> int:
    try:
        return act(given) or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, PrivacyError, VaultError, *_OWN_TEXTS) as error:
        return _ended(f"Refused: {said(error)}", REFUSED)
    except ImportError as error:
        return _ended(f"Refused: {error}", REFUSED)
    except BrokenPipeError:  # nobody reads on: cli.main ends quietly
        raise
    except OSError as error:
        name = f": {error.filename}" if error.filename else ""
        return _ended(f"Refused: {error.strerror or public_name(error)}{name}", REFUSED)
    except Exception as error:
        return _ended(
            f"Failed inside ({public_name(error)}). What it says is withheld: it may quote data.",
            FAILED,
        )


def said(error: Exception) -> str:
    """The text of an engine's error; those of other libraries may quote an entry."""
    return str(error) if type(error) in _OWN_TEXTS else own_error(error)[1]


def _ended(why: str, code: int) -> int:
    print(why, file=sys.stderr)
    return code


def print_json(facts: Any) -> None:
    """Prints facts for programs."""
    print(json.dumps(facts, indent=1))


def add_json(command: argparse.ArgumentParser) -> None:
    """Adds ``--json``."""
    command.add_argument("--json", action="store_true", help="for programs")


def add_vault(command: argparse.ArgumentParser, text: str, *, required: bool = True) -> None:
    """Adds ``--vault``."""
    command.add_argument("--vault", required=required, metavar="URL", help=text)


def of_setting(declared: type, name: str, more: str = "") -> dict[str, Any]:
    """What an option shares with a setting that it gives: its meaning, and its default.

    Args:
        declared: The class of the settings.
        name: Of the setting.
        more: What else is to be said of the option.
    """
    meaning, default = declaration(declared, name)
    text = f"{meaning} {more}".strip().rstrip(".").replace("``", "").replace("%", "%%")
    shown = text[:1].lower() + text[1:]
    if default is MISSING:
        return {"help": shown, "required": True}
    return {"help": shown, "default": default}


def check_lasting(url: str) -> None:
    """That a vault outlives this process.

    Raises:
        ValueError: If it is none on disk.
    """
    if "://" not in url and not url.startswith("env:"):
        raise ValueError(
            "--vault must be a database such as sqlite:///private.db, or env:NAME for a URL in an "
            "environment variable: a vault in memory ends with the program."
        )
