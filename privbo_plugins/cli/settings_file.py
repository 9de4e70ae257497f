"""Options of a command from a file, so that a service needs no long command line.

    agents = 40                             # --agents 40
    space = ["C:0.001:1000:log", "n:1:9:int"]  # --space C:0.001:1000:log n:1:9:int
    hold = true                             # --hold

What is typed after the file's name wins.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def with_file(typed: Sequence[str], command: Sequence[str]) -> list[str]:
    """What was typed, with the options of a TOML file in the place of its name.

    Args:
        typed: The command line.
        command: The words after which the name of a file may stand.

    Raises:
        ValueError: If the file cannot be read, is no TOML, or holds something else than options.

    Example:
        >>> with_file(["serve", "--agents", "3"], ["serve"])
        ['serve', '--agents', '3']
    """
    n = len(command)
    if list(typed[:n]) != list(command) or len(typed) <= n or typed[n].startswith("-"):
        return list(typed)
    return [*command, *_options(Path(typed[n])), *typed[n + 1 :]]


def _options(path: Path) -> list[str]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"The settings {path} cannot be read: {error.strerror}.") from None
    except ValueError:  # its text quotes a line, in which a password may stand
        raise ValueError(f"The settings {path} are no TOML in UTF-8.") from None
    return [word for name, value in given.items() for word in _words(name, value)]


def _words(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    if value is False:
        return []
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return [option, *map(str, value)]
    if isinstance(value, str | int | float):
        return [f"{option}={value}"]
    raise ValueError(
        f"The setting {name} in the file must be a text, a number, true, false, or a list of "
        "texts or numbers; a table is none of them."
    )
