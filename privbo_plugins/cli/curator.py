"""The curator's command line: release a table, answer requests, print the guarantee.

    privbo curator release people.csv --columns age:18:98 bmi:10:60 \
        --epsilon 2 --delta 1e-6 --neighbor-distance 0.2 --vault curator.db \
        --out table.npz
    privbo curator answer people.csv --outcome readmitted \
        --vault curator.db --request request.json --out answers.json
    privbo curator report --table table.npz

For people who look after data and do not program. Everything private stays in the data file, and
in the vault (given answers, and the ledger); no text of this program quotes an entry.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from privbo_plugins.cli.outcome import Answer, Group, as_json, of_setting, said, together, vault_at
from privbo_plugins.errors import VaultError
from privbo_plugins.sessions.settings import MECHANISMS, CuratorSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privbo_plugins.sessions.rows import Curator

    Array = NDArray[np.float64]

# The data file ----------------------------------------------------------------------------------

_NOT_READ = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 2**31 - 1
"""Characters of an entry: a long one is no number, and no reason to refuse a file."""


class Column(NamedTuple):
    """A column of the data file and its public bounds.

    Attributes:
        name: Its name in the file's first line.
        low: Lower bound of numbers.
        high: Upper bound.
        choices: Or the texts it may hold: each becomes a column of zeros and ones.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Columns of the table that it becomes."""
        return [f"{self.name}={choice}" for choice in self.choices] or [self.name]

    def read(self, entries: Sequence[str]) -> Array:
        """Converts entries (n,), shape (n, names); what is no number and no choice is missing."""
        import numpy as np

        from privbo_plugins.convert import as_floats

        if not self.choices:
            return np.asarray(as_floats(entries)).reshape(-1, 1)
        texts = np.array([entry.strip() for entry in entries], dtype=object)
        found = np.array([texts == choice for choice in self.choices], dtype=bool).T
        return np.where(found.any(axis=1, keepdims=True), found, math.nan)


def column(text: str) -> Column:
    """Reads ``name:low:high`` or ``name=choice,choice``.

    Raises:
        click.BadParameter: If it is neither.

    Example:
        >>> column("age:18:98")
        Column(name='age', low=18.0, high=98.0, choices=())
        >>> column("sex=F,M").names
        ['sex=F', 'sex=M']
    """
    name, _, choices = text.partition("=")
    if choices:
        return Column(name, choices=tuple(choice.strip() for choice in choices.split(",")))
    try:
        name, low, high = text.rsplit(":", 2)
        return Column(name, float(low), float(high))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} must be name:low:high with public bounds, or name=choice,choice."
        ) from None


def read_table(path: Path, columns: Sequence[Column]) -> Array:
    """Reads some columns of a CSV file, whose first line names them; shape (n, d).

    Raises:
        ValueError: As :func:`read_entries`.
    """
    import numpy as np

    entries = read_entries(path, [one.name for one in columns])
    return np.hstack([one.read(own) for one, own in zip(columns, entries, strict=True)])


def read_entries(path: Path, names: Sequence[str]) -> list[list[str]]:
    """Reads the entries of some columns of a CSV file, (n,) each.

    Raises:
        ValueError: If the first line is no UTF-8 text or names no such column, or lines cannot be
            told apart; never for what an entry holds, which is missing if nothing can be read.
    """
    csv.field_size_limit(_LONGEST)
    try:
        with _opened(path) as file:
            lines = csv.reader(file)
            header = _names(lines)
            if any(_NOT_READ in name for name in header):
                raise ValueError(f"{path.name} is no UTF-8 text; save it as CSV in UTF-8.")
            missing = [name for name in names if name not in header]
            if missing:
                raise ValueError(f"{path.name} has no column {', '.join(map(repr, missing))}.")
            rows = list(_told_apart(lines, blank_is_missing=len(header) == 1))
    except csv.Error:
        raise ValueError(f"{path.name} is no CSV file.") from None
    places = [header.index(name) for name in names]
    return [[row[place] if place < len(row) else "" for row in rows] for place in places]


def _opened(path: Path) -> TextIO:
    return path.open(newline="", encoding="utf-8-sig", errors="replace")


def _names(lines: Iterator[list[str]]) -> list[str]:
    return [name.strip() for name in next(lines, [])]


def read_groups(path: Path, name: str | None) -> list[str | None] | None:
    """Reads the person of each row; None without a column, and for an empty entry."""
    if name is None:
        return None
    return [entry.strip() or None for entry in read_entries(path, [name])[0]]


def _told_apart(lines: Iterator[list[str]], blank_is_missing: bool) -> Iterator[list[str]]:
    """Yields lines of a file; blank ones may end it, and are entries if they can be."""
    blank = 0
    for number, line in enumerate(lines, start=2):
        if not line and not blank_is_missing:
            blank = blank or number
            continue
        if blank:
            raise ValueError(f"Line {blank} is empty, so rows would be counted wrongly.")
        yield line or [""]


def read_outcomes(path: Path, name: str) -> Array:
    """Reads one outcome a row, shape (n,); NaN where it is not known yet."""
    return read_table(path, [Column(name)])[:, 0]


# Commands ---------------------------------------------------------------------------------------


def _vault_options(*, required: bool) -> Callable[[Any], Any]:
    return together(
        vault_at(
            "ledger and answers: a file such as curator.db, a URL, or env:NAME; keep it where "
            "only you can read it, and never throw it away: without it, nothing stops a second "
            "release",
            required=required,
        ),
        of_setting(CuratorSettings, "run_name", "--run"),
    )


_taken = partial(of_setting, CuratorSettings)

_groups = click.option(
    "--groups", metavar="NAME",
    help="column with the person that each row belongs to, where people have several rows; it is "
    "not released",
)  # fmt: skip


@click.group(
    cls=Group,
    epilog="A row's number counts from 0 in the order of the data file. The order is public: "
    "shuffle the file first if it tells something.",
)
def curator() -> None:
    """Release a table with differential privacy, and answer a modeler's requests."""


@curator.command()
@click.argument("data", type=Path)
@click.option(
    "--columns", multiple=True, required=True, type=column, metavar="NAME:LOW:HIGH ...",
    help="columns to release with their public bounds (never taken from the data), or "
    "NAME=CHOICE,CHOICE for texts; all other columns stay out",
)  # fmt: skip
@_taken("epsilon", type=float)
@_taken("delta", type=float)
@click.option("--out", type=Path, required=True, help=".npz or .parquet")
@_vault_options(required=True)
@_taken(
    "neighbor_distance", type=float, metavar="NU",
    help="protect a row against changes of up to NU only, where 1 is one column's whole range; "
    "without it a row is protected whatever it holds",
)  # fmt: skip
@_taken("mechanism", type=click.Choice(MECHANISMS))
@_taken("r", type=int, help="columns of the released table, at most as many")
@_groups
@_taken(
    "rows_per_group", type=int,
    help="with --groups: the most rows of one person that count, 1 by default; the noise grows "
    "with its square root",
)  # fmt: skip
@_taken("unit", help="what one of those who are protected is called, such as patient")
@_taken("outcome_epsilon", type=float)
@_taken("outcome_range", type=float, nargs=2, metavar="LOW HIGH")
@_taken("outcome_delta", type=float)
@_taken("outcome_mechanism")
def release(
    data: Path, columns: Sequence[Column], out: Path, vault: str, run: str, groups: str | None,
    **settings: Any,
) -> Answer:  # fmt: skip
    """Release a table, once; a second call writes the same file again.

    DATA is a CSV file whose first line names the columns.
    """
    from tqdm import tqdm

    from privbo_plugins.groups import unit_of_rows
    from privbo_plugins.sessions.rows import Curator

    _check_target(out, columns, settings["neighbor_distance"])
    if groups in [one.name for one in columns]:
        raise ValueError(f"Column {groups!r} holds ids: leave it out of --columns.")
    X = read_table(data, columns)
    if groups is None:
        with _opened(data) as file:
            names = _names(csv.reader(file))
        settings["unit"] = unit_of_rows(settings["unit"], names, "--groups COLUMN")
    curator = Curator(
        X,
        bounds=[(one.low, one.high) for one in columns for _ in one.names],
        columns=[name for one in columns for name in one.names],
        groups=read_groups(data, groups),
        vault=vault,
        run_name=run,
        **settings,
    )
    _check_released(out, curator)
    with tqdm(total=len(X), desc="noise", unit=" rows", file=sys.stderr, delay=1) as bar:
        table = curator.release(lambda done, _of: bar.update(done - bar.n))
    table.save(out)
    return Answer(
        f"{table.n} rows with {table.r} columns are in {out}. Give the modeler this file.\n\n"
        f"{curator.guarantee().details()}"
    )


def _check_target(out: Path, columns: Sequence[Column], nu: float | None) -> None:
    """Checks before the first draw: a file, and columns that stay hidden.

    Raises:
        ValueError: If one of them is not there.
    """
    from privbo_plugins.algorithms.po_gp_ucb.table import checked_ending

    checked_ending(out)
    chosen = [c.name for c in columns if c.choices]
    if chosen and nu is not None and nu < math.sqrt(2):
        raise ValueError(
            f"Column {chosen[0]!r} holds choices, and two choices lie 1.42 apart: within "
            f"--neighbor-distance {nu:g} they are not hidden at all. Leave the column out, give a "
            "distance of at least 1.42, or none."
        )


def _check_released(path: Path, curator: Curator) -> None:
    """Checks that a table's file which is there already holds the release of this vault.

    Raises:
        ValueError: If it is something else than a released table.
        VaultError: If the vault knows nothing of it: the table would be released anew.
    """
    from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable

    if not path.exists():
        return
    found, held = ReleasedTable.load(path).manifest, curator.manifest
    if held is None or held.digest != found.digest:
        raise VaultError(
            f"{path.name} holds a release that this vault knows nothing of under this name: it "
            "was restored from an older backup, is a copy, or is another vault, and would release "
            "the rows a second time. Give the vault of that release, or another --out for a table "
            "of other people."
        )


@curator.command()
@click.argument("data", type=Path)
@click.option(
    "--outcome", required=True,
    help="its column with outcomes: empty where not known yet, inf where there is none. The "
    "first answer ties the release to it; unless outcomes are randomised, it must be none of "
    "the released columns",
)  # fmt: skip
@click.option("--request", type=Path, required=True, help="the modeler's file")
@click.option(
    "--out", type=Path, required=True,
    help="answers, a JSON file; it also remembers the vault, which is refused if it was restored "
    "from an older backup or copied since",
)  # fmt: skip
@_vault_options(required=True)
@_groups
@click.option("--minimize", is_flag=True, help="small outcomes are wanted")
@click.option("--watch", type=float, metavar="SECONDS", help="look again every so often")
@click.option("--until", type=int, metavar="N", help="answer N rows at most, then stop")
def answer(watch: float | None, until: int | None, out: Path, **given: Any) -> Answer:
    """Answer the outcomes that a modeler asks for, once or until stopped.

    DATA is the CSV file with the same rows in the same order.
    """
    told = 0
    while True:
        try:
            told = _answer_once(until=until, out=out, **given)
        except ValueError as error:  # a file that somebody is just saving, say
            if watch is None:
                raise
            print(f"Not answered in this round: {said(error)}", file=sys.stderr)
        if watch is None or (until is not None and told >= until):
            break
        time.sleep(watch)
    return Answer(f"{told} outcomes have been told so far; they are in {out}.")


def _answer_once(
    *, data: Path, outcome: str, request: Path, out: Path, vault: str, run: str, minimize: bool,
    until: int | None, groups: str | None,
) -> int:  # fmt: skip
    """Answers the requested rows whose outcome is known; returns the number of all answers."""
    from privbo_plugins.algorithms.po_gp_ucb.exchange import read_request
    from privbo_plugins.sessions.answer_file import AnswerFile
    from privbo_plugins.sessions.rows import Curator

    y = read_outcomes(data, outcome)
    curator = Curator.resume(
        vault=vault,
        run_name=run,
        outcomes=y,
        outcome_column=outcome,
        groups=read_groups(data, groups),
        maximize=not minimize,
    )
    released = curator.manifest
    if released is None:
        raise ValueError("The vault holds no released table: release it first.")
    rows = read_request(request, released.digest, curator.n)
    answers, told = AnswerFile(out, curator), curator.answers()
    new = [row for row in rows if row not in told]
    known = [row for row in new if _is_known(y[row], released.outcomes is not None)]
    answered = known if until is None else known[: max(until - len(told), 0)]
    for row in answered:
        curator.evaluate(row)
    n_told = answers.write()
    waiting = ", ".join(str(row) for row in new if row not in known)
    if answered or waiting:
        left = f" Without an outcome yet: rows {waiting}." if waiting else ""
        print(f"{len(answered)} rows answered.{left}", file=sys.stderr)
    return n_told


def _is_known(y: float, randomised: bool) -> bool:
    """Tells if an outcome can be told: infinity says that there is none, if that stays hidden."""
    return not math.isnan(y) and (randomised or math.isfinite(y))


@curator.command()
@click.option("--table", type=Path, required=True, help="the released file")
@_vault_options(required=False)
@as_json
def report(table: Path, vault: str | None, run: str) -> Answer:
    """Print what may be claimed: of a file alone, or with the vault of all answers."""
    from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
    from privbo_plugins.sessions.rows import Curator

    found = ReleasedTable.load(table)
    guarantee = found.guarantee()
    if vault is not None:
        curator = Curator.resume(vault=vault, run_name=run)
        if curator.manifest != found.manifest:
            raise ValueError(f"{table.name} is not what this vault has released as {run!r}.")
        guarantee = curator.guarantee()
    return Answer(guarantee.details(), guarantee.to_dict())
