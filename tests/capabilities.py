"""Lists every capability with the tests that prove it: ``python -m tests.capabilities --write``.

The page docs/capabilities.md is made of capabilities.toml. tests/test_capabilities.py compares it
with the registry, with the public names of the packages and with the files that they name, so a
capability or its proof cannot go unnoticed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.contracts import pages

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "capabilities.md"
MODULE = "tests.capabilities"


class Row(NamedTuple):
    """One capability.

    Attributes:
        names: Public names that give it; each must exist.
        proofs: Test files; "file: word" names a word that must stand in the file.
        what: In one phrase.
    """

    names: Sequence[str]
    proofs: Sequence[str]
    what: str = ""


class Hosted(NamedTuple):
    """One algorithm of the registry, or a wrapper, on both hosts.

    Attributes:
        what: The algorithm's name in the registry, or what the wrapper is for.
        system: In words.
        optuna: Its public name there.
        ray: Its public name there.
        on_optuna: Tests that prove it there.
        on_ray: Tests that prove it there.
    """

    what: str
    system: str
    optuna: str
    ray: str
    on_optuna: Sequence[str]
    on_ray: Sequence[str]


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def _rows(part):
    return [Row(**row) for row in _TABLES[part]]


SYSTEMS = [Hosted(**system) for system in _TABLES["systems"]]
USES, PROMISES, COMMANDS = map(_rows, ("uses", "promises", "commands"))
EXAMPLES = _TABLES["examples"]
"""Programs of examples/ by name: the demos of every system, and the applications."""


def rows():
    """Every row but those of the systems."""
    return [*USES, *PROMISES, *COMMANDS]


def proofs():
    """Every proof that a table names, a path in tests/."""
    for one in SYSTEMS:
        yield from (*one.on_optuna, *one.on_ray)
    for row in rows():
        yield from row.proofs
    yield from EXAMPLES.values()


def _links(named):
    files = dict.fromkeys(proof.partition(": ")[0] for proof in named)
    return ", ".join(f"[{Path(file).stem}](../tests/{file})" for file in files)


def _names(row):
    return ", ".join(f"`{name}`" for name in row.names)


def _of_the_hosts():
    """What of Optuna and Ray Tune is tried with every system, by the names of the matrices."""
    from tests.contracts import optuna_matrix, tune_matrix

    lines = []
    for host, matrix, file in (
        ("Optuna", optuna_matrix.ROWS, "contracts/test_optuna_matrix.py"),
        ("Ray Tune", tune_matrix.ROWS, "raytune_searchers/test_tune_matrix.py"),
    ):
        found = [one.name for one in matrix]
        lines.append([host, ", ".join(found), _links([file])])
    return pages.table(["host", "tried with every system", "test"], lines)


def table():
    """All tables in Markdown."""
    systems = [
        [f"`{s.what}`: {s.system}", f"`{s.optuna}`: {_links(s.on_optuna)}",
         f"`{s.ray}`: {_links(s.on_ray)}"]
        for s in SYSTEMS
    ]  # fmt: skip
    parts = {
        "Systems": pages.table(["system", "Optuna", "Ray Tune"], systems),
        "Uses": pages.table(
            ["capability", "names", "tests"],
            [[row.what, _names(row), _links(row.proofs)] for row in USES],
        ),
        "Promises": pages.table(
            ["capability", "names", "tests"],
            [[row.what, _names(row), _links(row.proofs)] for row in PROMISES],
        ),
        "Commands": pages.table(
            ["command", "tests"], [[_names(row), _links(row.proofs)] for row in COMMANDS]
        ),
        "Demos and applications": pages.table(
            ["program", "test"],
            [
                [f"`python -m examples.{name}`", _links([proof])]
                for name, proof in EXAMPLES.items()
            ],
        ),
        "Features of the hosts": _of_the_hosts(),
    }
    return "\n\n".join(f"## {head}\n\n{part}" for head, part in parts.items())


if __name__ == "__main__":
    pages.main(MODULE, PAGE, table)
