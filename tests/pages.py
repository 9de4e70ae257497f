"""Pages of the documentation as programs: their blocks of code, and what runs them.

``python -m tests.pages PAGE`` runs one page in the present folder, from top to bottom, as its
reader would: blocks of Python share one namespace, commands run in a shell. Before the output of
each block stands a line with ``MARK`` and the block's line in the page. A comment on the line
before a block says what is special about it:

- ``<!-- not run: why -->``: it is parsed only, for that reason;
- ``<!-- varies: 1.78, 0.0015 -->``, before an output: these numbers stand for any others.

A block of ``text`` is the output of the block before it; ``...`` in it stands for anything. A
block without a language is a picture.
"""

from __future__ import annotations

import ast
import bisect
import io
import json
import multiprocessing
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
import warnings
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = [ROOT / "docs" / name for name in ("extending.md", "any-host.md")]
"""Their blocks are compared with the files that they name, and run by tests/test_extending.py."""
RECIPES = [page for page in PAGES if page.name.startswith("how-to-")]
"""Each section of these goes on from the page's first block alone, in a folder of its own."""

MARK = "\x1e"
NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"
SHELL = ("console", "bash", "sh")
READING = ("", "text", "mermaid", "diff", "{toctree}", "{include}", "{eval-rst}")
"""What is for readers, or for Sphinx, of which tests/test_site.py makes the site."""
FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n+)?"
    r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced block: its language, the line of its first line, and the note before it."""

    language: str
    line: int
    code: str
    note: str

    @property
    def runs(self):
        return self.language in ("python", *SHELL) and not self.note.startswith("not run: ")


def blocks(page):
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            found["info"].strip(),
            text.count("\n", 0, found.start("code")) + 1,
            found["code"],
            (found["note"] or "").strip(),
        )
        for found in FENCE.finditer(text)
    ]


def headings(page):
    """Line and text of each heading of a page."""
    text = FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page.read_text())
    found = re.finditer(r"^#+ (.+)$", text, re.MULTILINE)
    return [(text.count("\n", 0, one.start()) + 1, one[0]) for one in found]


def sections(page):
    """A page's blocks before its first heading of second order, and below each of these."""
    lines = [line for line, heading in headings(page) if heading.startswith("## ")]
    parts = [[] for _ in range(len(lines) + 1)]
    for block in blocks(page):
        parts[bisect.bisect(lines, block.line)].append(block)
    return parts


def commands(block):
    """What is typed in a block of a shell; lines after ``$``, with what a backslash continues."""
    joined = block.code.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line.strip()]
    if block.language == "console":
        if not all(line.startswith("$ ") for line in lines):
            raise ValueError("Commands begin with `$ `; show what they print in a block of text.")
        lines = [line[2:] for line in lines]
    return [re.sub(r"\s+", " ", line) for line in lines]


def outputs(page):
    """Blocks that run with the outputs that the page shows after them."""
    for before, shown in pairwise(blocks(page)):
        if shown.language == "text" and before.runs:
            yield before, shown


def agrees(shown, said):
    """Whether what was printed is what the page shows, but for whitespace."""
    kind, _, numbers = shown.note.partition(": ")
    varying = numbers.split(", ") if kind == "varies" else []

    def pattern(text):
        parts = re.split("|".join(map(re.escape, varying)), text) if varying else [text]
        return NUMBER.join(map(re.escape, parts))

    words = " ".join(shown.code.split()).split("...")
    wanted = ".*".join(pattern(part.strip()) for part in words)
    return re.fullmatch(wanted.replace(".*", " ?.* ?"), " ".join(said.split())) is not None


# What is parsed ---------------------------------------------------------------------------------


def _typed(block):
    for command in commands(block):
        check_command(shlex.split(command, comments=True))


def _sql(block):
    if not sqlite3.complete_statement(block.code):
        raise ValueError("This statement has no end.")


def _yaml(block):
    import yaml

    list(yaml.safe_load_all(block.code))


PARSERS = {
    "python": lambda block: ast.parse(block.code),
    "json": lambda block: json.loads(block.code),
    "toml": lambda block: tomllib.loads(block.code),
    "yaml": _yaml,
    "sql": _sql,
    **dict.fromkeys(SHELL, _typed),
    **dict.fromkeys(READING, lambda block: None),
}


def parse(block):
    """Reads a block as what it says that it is."""
    language = re.sub(r"^(\{.*\}).*", r"\1", block.language)  # a directive may have an argument
    if language not in PARSERS:
        raise ValueError(f"Nothing reads a block of {language!r}; known are {[*PARSERS]}.")
    PARSERS[language](block)


def check_command(words):
    """That a command exists and takes these words, without running it."""
    if words[0] == "privbo":
        parsed(words[1:])
    elif words[0] == "make":
        make = ["make", "--dry-run", "--directory", str(ROOT), *words[1:]]
        subprocess.run(make, check=True, capture_output=True)
    elif words[:2] == ["python", "-m"]:
        check_module(words[2], words[3:])


def parsed(words):
    """Parameters of a command of ``privbo`` as it would be called."""
    import click

    from privbo_plugins.cli import privbo

    command = privbo
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        raise ValueError(f"There is no command {words[0]!r}.")
    try:
        # Nothing is run, so there is no vault to open.
        with redirect_stdout(io.StringIO()), patch("privbo_plugins.store.vault.open_vault"):
            return command.make_context("privbo", list(words)).params
    except click.exceptions.Exit:  # --help, --version
        return {}


def check_module(name, words):
    """That a module is there, and its source has the options that are typed for it."""
    base = ROOT / Path(*name.split("."))
    file = base / "__main__.py" if base.is_dir() else base.with_suffix(".py")
    if not file.exists():
        raise ValueError(f"There is no module {name} to run.")
    text = file.read_text()
    for shared in re.findall(r"^from (examples\.\w+) import", text, flags=re.MULTILINE):
        text += (ROOT / Path(*shared.split("."))).with_suffix(".py").read_text()
    missing = [one for one in words if one.startswith("--") and f'"{one}"' not in text]
    if missing:
        raise ValueError(f"{name} takes no {' '.join(missing)}.")


# What is run ------------------------------------------------------------------------------------


def run(page, after=""):
    """Runs a page in this process, whose ``__main__`` it becomes, and then some more lines."""
    from privbo_plugins.errors import UtilityWarning

    warnings.simplefilter("error", UtilityWarning)  # no example whose noise drowns what it shows
    main = ModuleType("__main__")
    sys.modules["__main__"] = main  # functions of the page travel to other processes by value
    first, *others = sections(page)
    _run(page, first, main.__dict__)
    begun, home = dict(main.__dict__), Path.cwd()
    for number, section in enumerate(others):
        if page in RECIPES:
            main.__dict__.clear()
            main.__dict__.update(begun)
            folder = home / f"recipe-{number}"
            folder.mkdir()
            os.chdir(folder)
        _run(page, section, main.__dict__)
    exec(after, main.__dict__)


def _run(page, section, names):
    for block in (one for one in section if one.runs):
        print(f"\n{MARK}{block.line}", flush=True)
        if block.language == "python":
            # tracebacks point into the page
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(page), "exec"), names)
            continue
        for command in commands(block):
            words = shlex.split(command, comments=True)
            if words[0] == "make":
                check_command(words)
            elif words[0] == "privbo" and "ray" not in sys.modules:  # which takes no fork
                _forked(words[1:])
            else:
                subprocess.run(["bash", "-c", command], check=True)


def _forked(words):
    """Runs `privbo` in a fork, which need not import again what the page has imported."""
    from privbo_plugins.cli import main

    typed = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(main(words)))
    typed.start()
    typed.join()
    assert typed.exitcode == 0, words


if __name__ == "__main__":
    from tests.pages import run as run_page

    given = [Path(sys.argv[1]), *sys.argv[2:]]
    sys.argv[1:] = []
    run_page(*given)
