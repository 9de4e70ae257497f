"""Shared parts of the commands: how one ends, with which exit code, and options in common."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import click
from attrs import NOTHING

from privbo_plugins.errors import (
    FederationError,
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    UtilityWarning,
    VaultError,
)
from privbo_plugins.sanitize import own_error, public_name
from privbo_plugins.settings import declaration

FAILED, REFUSED, DIFFERS, INTERRUPTED, UNHEARD = 1, 2, 3, 130, 141
"""Exit codes beside 0."""

_OWN_TEXTS = (ObjectiveFailedError, FederationError)
"""Errors of the engine that :func:`~privbo_plugins.sanitize.own_error` does not know."""

DATABASE = "database of the ledger, such as sqlite:///private.db, or env:NAME for its URL"

AT_LEAST_ONE = click.IntRange(min=1)


class _Named(click.Command):
    def get_short_help_str(self, limit: int = 0) -> str:
        """Shows the first sentence whole in a list of commands."""
        return super().get_short_help_str(max(limit, 200))


class Command(_Named):
    """A command whose repeatable options take several words: ``--space x:0:1 y:0:1``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses; refuses words too many without quoting them: one may be a password."""
        ctx.allow_extra_args = True
        super().parse_args(ctx, list(self._repeated(args)))
        if ctx.args:
            ctx.fail(f"{len(ctx.args)} words belong to no option and no argument.")
        return []

    def _repeated(self, args: list[str]) -> Iterator[str]:
        """Writes the option before each of its words."""
        several = {
            name
            for one in self.params
            if isinstance(one, click.Option) and one.multiple
            for name in one.opts
        }
        option = ""
        for word, after in zip(args, [*args[1:], "-"], strict=False):
            if word in several and not after.startswith("-"):
                option = word
            elif option and not word.startswith("-"):
                yield from (option, word)
            else:
                option = ""
                yield word


class Group(_Named, click.Group):
    """Commands that belong together."""

    command_class = Command
    group_class = type


def carried_out(act: Callable[[], int | None]) -> int:
    """Carries a command out; returns its exit code.

    The engine's warnings are printed in the end, each once; those of other libraries are not,
    because whether one is given may depend on data. Of an error from outside the engine only
    the kind is printed: its text and its traceback may quote data.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for kind in (PrivacyWarning, UtilityWarning):
            warnings.simplefilter("always", kind)
        try:
            return _carried_out(act)
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                print(f"WARNING: {text}", file=sys.stderr)


def _carried_out(act: Callable[[], int | None]) -> int:
    try:
        return act() or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, PrivacyError, VaultError, *_OWN_TEXTS) as error:
        return _ended(f"Refused: {said(error)}", REFUSED)
    except ImportError as error:
        return _ended(f"Refused: {error}", REFUSED)
    except BrokenPipeError:  # the reader has ended: cli.main ends quietly
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
    """Returns an engine error's text; of others only the kind, as a text may quote an entry."""
    return str(error) if type(error) in _OWN_TEXTS else str(own_error(error))


def _ended(why: str, code: int) -> int:
    print(why, file=sys.stderr)
    return code


def print_json(facts: Any) -> None:
    """Prints facts for programs."""
    print(json.dumps(facts, indent=1))


as_json = click.option("--json", "as_json", is_flag=True, help="for programs")


def vault_at(text: str = DATABASE, *, required: bool = True) -> Callable[[Any], Any]:
    """Makes the option ``--vault``."""
    return click.option("--vault", required=required, metavar="URL", help=text)


def of_setting(declared: type, name: str) -> dict[str, Any]:
    """Makes an option's help and default from the setting that it gives.

    Args:
        declared: The class of the settings.
        name: Of the setting.
    """
    meaning, default = declaration(declared, name)
    text = meaning.strip().rstrip(".").replace("``", "")
    shown = text[:1].lower() + text[1:]
    return {"help": shown} | ({"required": True} if default is NOTHING else {"default": default})


def check_lasting(url: str) -> None:
    """Checks that a vault outlives this process.

    Raises:
        ValueError: If it is none on disk.
    """
    if "://" not in url and not url.startswith("env:"):
        raise ValueError(
            "--vault must be a database such as sqlite:///private.db, or env:NAME for a URL in an "
            "environment variable: a vault in memory ends with the program."
        )
