"""Shared parts of the commands: what one prints, how it ends, and options in common."""

from __future__ import annotations

import difflib
import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
from privbo_plugins.settings import HELP, fields_of

FAILED, REFUSED, DIFFERS, INTERRUPTED, UNHEARD = 1, 2, 3, 130, 141
"""Exit codes beside 0."""

_OWN_TEXTS = (ObjectiveFailedError, FederationError)
"""Errors of the engine that :func:`~privbo_plugins.sanitize.own_error` does not know."""

AT_LEAST_ONE = click.IntRange(min=1)


class Answer(NamedTuple):
    """Holds what a command tells in the end.

    Attributes:
        text: For people.
        facts: The same for programs, JSON-ready; of a command with ``--json``.
        code: Exit code.
    """

    text: object
    facts: Any = None
    code: int = 0


# How a command runs -----------------------------------------------------------------------------


class _Named(click.Command):
    def get_short_help_str(self, limit: int = 0) -> str:
        """Shows the first sentence whole in a list of commands."""
        return super().get_short_help_str(max(limit, 200))


class Command(_Named):
    """A command whose repeatable options take several words: ``--space x:0:1 y:0:1``."""

    def invoke(self, ctx: click.Context) -> int:
        """Prints the answer as text, or with ``--json`` as JSON; returns the exit code."""
        for_programs = ctx.params.pop("as_json", False)
        answer: Answer = super().invoke(ctx)
        shown = json.dumps(answer.facts, indent=1) if for_programs else answer.text
        print(shown, flush=True)
        return answer.code

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses; refuses words too many without quoting them: one may be a password."""
        ctx.allow_extra_args = True
        given = self.make_parser(ctx).parse_args(list(self._repeated(args)))[2]
        options = {one.opts[0]: one for one in self.params if isinstance(one, click.Option)}
        for name, one in options.items():
            if given.count(one) > 1 and not one.multiple:
                ctx.fail(f"{name} was given {given.count(one)} times, and takes one: {one.help}")
        super().parse_args(ctx, list(self._repeated(args)))
        if ctx.args:
            before = [word.partition("=")[0] for word in args[: args.index(ctx.args[0])]]
            at = [f" after {name} ({options[name].help})" for name in before if name in options]
            ctx.fail(f"{len(ctx.args)} word(s){''.join(at[-1:])} belong to no option or argument.")
        return []

    def _repeated(self, args: list[str]) -> Iterator[str]:
        """Writes the option before each of its words."""
        several = {
            name for one in self.params if getattr(one, "multiple", False) for name in one.opts
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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Finds a command; of one that is none it says which could be meant."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        known = ", ".join(difflib.get_close_matches(args[0], self.commands) or self.commands)
        ctx.fail(f"No such command {args[0]!r}. Take {known} (see --help). {self.epilog or ''}")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Shows the help where nothing was typed."""
        return super().parse_args(ctx, args or ["--help"])


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
            return act() or 0
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:  # the reader has ended: cli.main ends quietly
            caught.clear()
            raise
        except Exception as error:
            code, why = _ended(error)
            print(why, file=sys.stderr)
            return code
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                print(f"WARNING: {text}", file=sys.stderr)


def _ended(error: Exception) -> tuple[int, str]:
    """Exit code and text of a command that was refused, or failed inside."""
    if isinstance(error, (ValueError, PrivacyError, VaultError, *_OWN_TEXTS)):
        return REFUSED, f"Refused: {said(error)}"
    if isinstance(error, ImportError):
        return REFUSED, f"Refused: {error}"
    if isinstance(error, OSError):
        name = f": {error.filename}" if error.filename else ""
        return REFUSED, f"Refused: {error.strerror or public_name(error)}{name}"
    text = f"Failed inside ({public_name(error)}). What it says is withheld: it may quote data."
    return FAILED, text


def said(error: Exception) -> str:
    """Returns an engine error's text; of others only the kind, as a text may quote an entry."""
    return str(error) if type(error) in _OWN_TEXTS else str(own_error(error))


# Options in common ------------------------------------------------------------------------------


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes one decorator of several, which come in the order of a column of decorators."""
    return lambda command: functools.reduce(lambda made, add: add(made), options[::-1], command)


as_json = click.option("--json", "as_json", is_flag=True, help="for programs")


def vault_at(
    text: str = "ledger: a file such as private.db, a database URL, or env:NAME for one of these",
    *,
    required: bool = True,
    opens: bool = False,
) -> Callable[[Any], Any]:
    """Makes the option ``--vault``, of a database that outlives this process.

    Args:
        text: Its help.
        required: Whether it must be given.
        opens: Whether the command gets the vault, which must be there, instead of its URL.
    """

    def checked(_ctx: click.Context, _option: click.Parameter, given: str | None) -> Any:
        if given is None:
            return None
        if given.partition(":")[0] == "memory":
            raise ValueError(
                "--vault must be a file or a database: a vault in memory ends with the program."
            )
        from privbo_plugins.store.vault import as_handle, open_vault

        return open_vault(given, create=False) if opens else as_handle(given)

    return click.option("--vault", required=required, metavar="PATH", help=text, callback=checked)


def of_setting(declared: type, name: str, flag: str = "", **more: Any) -> Callable[[Any], Any]:
    """Makes the option of a setting, with its help and its default.

    Args:
        declared: The class of the settings.
        name: Of the setting.
        flag: Of the option; empty for the setting's name.
        **more: What else click is given, or other help.
    """
    field = fields_of(declared)[name]
    text = field.metadata[HELP].rstrip(".").replace("``", "")
    told = {"help": text[:1].lower() + text[1:]}
    told |= {"required": True} if field.default is NOTHING else {"default": field.default}
    return click.option(flag or f"--{name.replace('_', '-')}", **told | more)
