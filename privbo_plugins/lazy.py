"""Packages whose public names are imported on first use (PEP 562).

A package lists its names twice: for editors and mypy under ``TYPE_CHECKING``, and for the
interpreter here; a test holds the two together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes a package's ``__getattr__``, ``__dir__`` and ``__all__``, which import nothing yet.

    Args:
        package: Its ``__name__``.
        homes: Public names, by the module that each comes from.

    Returns:
        The three, for the package's namespace. A name stays in it once it was asked for.

    Example:
        >>> getattr_, dir_, _ = on_first_use(__name__, {"math": ["pi"]})
        >>> getattr_("pi"), "pi" in dir_()
        (3.141592653589793, True)
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return __getattr__, __dir__, sorted(home_of)
