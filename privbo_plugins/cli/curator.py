"""The curator's command line: release a table, answer requests, report what was promised.

    privbo curator release people.csv --columns age:18:98 bmi:10:60 \
        --epsilon 2 --delta 1e-6 --neighbor-distance 0.2 --vault sqlite:///curator.db \
        --out table.npz
    privbo curator answer people.csv --outcome readmitted \
        --vault sqlite:///curator.db --request request.json --out answers.json
    privbo curator report --table table.npz

For people who look after data and do not program. Everything private stays in the data file, and
in the vault (answers that were told, and the ledger); no text of this program quotes an entry.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbo_plugins.cli.outcome import add_json, add_vault, of_setting, print_json, said
from privbo_plugins.errors import VaultError
from privbo_plugins.sessions.settings import MECHANISMS, ON_EXCESS, CuratorSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privbo_plugins.sessions.rows import Curator

    Array = NDArray[np.float64]

# The data file ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the data file and its public bounds.

    Args:
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

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Their bounds."""
        return [(self.low, self.high)] * len(self.names)

    def read(self, text: str) -> list[float]:
        """Convert an entry; one that is neither a number nor a choice is missing, NaN."""
        if self.choices:
            known = text.strip() in self.choices
            return [
                float(text.strip() == choice) if known else math.nan for choice in self.choices
            ]
        return [_number(text)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # how many entries are missing, or which, is nobody else's to see
        return math.nan


def column(text: str) -> Column:
    """``name:low:high`` or ``name=choice,choice``.

    Raises:
        argparse.ArgumentTypeError: If it is neither.

    Example:
        >>> column("age:18:98").bounds
        [(18.0, 98.0)]
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
        raise argparse.ArgumentTypeError(
            f"{text!r} must be name:low:high with public bounds, or name=choice,choice."
        ) from None


def read_rows(path: Path, read: dict[str, Callable[[str], list[float]]]) -> list[list[float]]:
    """Entries of some columns of a CSV file, one list a row.

    Args:
        path: The file; its first line names the columns.
        read: From a column's name to what reads an entry.

    Raises:
        ValueError: If the first line is no UTF-8 text or names no such column, or lines cannot be
            told apart; never for what an entry holds, which is missing if nothing can be read.
    """
    csv.field_size_limit(_LONGEST)
    try:
        return _read_rows(path, read)
    except csv.Error:
        raise ValueError(f"{path.name} is no CSV file.") from None


def _read_rows(path: Path, read: dict[str, Callable[[str], list[float]]]) -> list[list[float]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        if any(_NOT_READ in name for name in header):
            raise ValueError(f"{path.name} is no UTF-8 text; save it as CSV in UTF-8.")
        missing = [name for name in read if name not in header]
        if missing:
            raise ValueError(f"{path.name} has no column {', '.join(map(repr, missing))}.")
        places = [(header.index(name), name) for name in read]
        return [
            [entry for place, name in places for entry in read[name](_cell(line, place))]
            for line in _told_apart(lines, blank_is_missing=len(header) == 1)
        ]


_NOT_READ = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 2**31 - 1
"""Characters of an entry: a long one is no number, and no reason to refuse a file."""


def _cell(line: list[str], place: int) -> str:
    return line[place] if place < len(line) else ""


def _told_apart(lines: Iterator[list[str]], blank_is_missing: bool) -> Iterator[list[str]]:
    """Lines of a file; blank ones may end it, and are entries if they can be."""
    blank = 0
    for number, line in enumerate(lines, start=2):
        if not line and not blank_is_missing:
            blank = blank or number
            continue
        if blank:
            raise ValueError(f"Line {blank} is empty, so rows would be counted wrongly.")
        yield line or [""]


def read_table(path: Path, columns: Sequence[Column]) -> Array:
    """The columns' entries, shape (n, d)."""
    import numpy as np

    return np.array(read_rows(path, {c.name: c.read for c in columns}), dtype=float)


def read_outcomes(path: Path, name: str) -> Array:
    """One outcome a row, shape (n,); NaN where it is not known yet."""
    import numpy as np

    rows = read_rows(path, {name: lambda text: [_number(text)]})
    return np.array(rows, dtype=float).reshape(-1)


# Commands ---------------------------------------------------------------------------------------


def release(given: argparse.Namespace) -> None:
    """Releases a table once; a second call writes the same file again."""
    from tqdm import tqdm

    from privbo_plugins.sessions.rows import Curator

    columns: list[Column] = given.columns
    _check_target(given)
    X = read_table(given.data, columns)
    curator = Curator(
        X,
        epsilon=given.epsilon,
        delta=given.delta,
        neighbor_distance=given.neighbor_distance,
        mechanism=given.mechanism,
        bounds=[bounds for c in columns for bounds in c.bounds],
        columns=[name for c in columns for name in c.names],
        on_excess=given.on_excess,
        r=given.r,
        outcome_epsilon=given.outcome_epsilon,
        outcome_range=None if given.outcome_range is None else tuple(given.outcome_range),
        outcome_mechanism=given.outcome_mechanism,
        outcome_delta=given.outcome_delta,
        vault=given.vault,
        run_name=given.run,
    )
    _check_released(given.out, curator)
    with tqdm(total=len(X), desc="noise", unit=" rows", file=sys.stderr, delay=1) as bar:
        table = curator.release(lambda done, _of: bar.update(done - bar.n))
    table.save(given.out)
    print(
        f"{table.n} rows with {table.r} columns are in {given.out}. Give the modeler this file.\n"
    )
    print(curator.guarantee())


def _check_target(given: argparse.Namespace) -> None:
    """Before anything is drawn and paid for: a file, a lasting vault, columns that stay hidden.

    Raises:
        ValueError: If one of them is not there.
    """
    from privbo_plugins.algorithms.po_gp_ucb.table import checked_ending

    checked_ending(given.out)
    if "://" not in given.vault and not given.vault.startswith("env:"):
        raise ValueError(
            "--vault must be a database such as sqlite:///curator.db: a ledger in memory forgets "
            "that the table was released."
        )
    nu = given.neighbor_distance
    chosen = [c.name for c in given.columns if c.choices]
    if chosen and nu is not None and nu < math.sqrt(2):
        raise ValueError(
            f"Column {chosen[0]!r} holds choices, and two choices lie 1.42 apart: within "
            f"--neighbor-distance {nu:g} they are not hidden at all. Leave the column out, give a "
            "distance of at least 1.42, or none."
        )


def _check_released(path: Path, curator: Curator) -> None:
    """That a table's file which is there already holds what the vault has released.

    Raises:
        ValueError: If it is something else than a released table.
        VaultError: If the vault knows nothing of it: the table would be released anew.
    """
    from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable

    if not path.exists():
        return
    found, held = ReleasedTable.load(path).certificate, curator.certificate
    if held is None or held.digest != found.digest:
        raise VaultError(
            f"{path.name} holds a release that this vault knows nothing of under this name: it "
            "was restored from an older backup, is a copy, or is another vault, and would release "
            "the rows a second time. Give the vault of that release, or another --out for a table "
            "of other people."
        )


def answer(given: argparse.Namespace) -> None:
    """Answers what a modeler asks for, once or until stopped."""
    told = 0
    for _ in _rounds(given.watch):
        try:
            told = _answer_once(given)
        except ValueError as error:  # a file that somebody is just saving, say
            if given.watch is None:
                raise
            print(f"Not answered in this round: {said(error)}", file=sys.stderr)
        if given.until is not None and told >= given.until:
            break
    print(f"{told} outcomes have been told so far; they are in {given.out}.")


def _rounds(seconds: float | None) -> Iterator[None]:
    yield
    while seconds is not None:
        time.sleep(seconds)
        yield


def _answer_once(given: argparse.Namespace) -> int:
    """Answers the rows asked for whose outcome is known; how many were told in all."""
    from privbo_plugins.algorithms.po_gp_ucb.exchange import read_request
    from privbo_plugins.sessions.answer_file import AnswerFile
    from privbo_plugins.sessions.rows import Curator

    y = read_outcomes(given.data, given.outcome)
    curator = Curator.resume(
        vault=given.vault,
        run_name=given.run,
        outcomes=y,
        outcome_column=given.outcome,
        maximize=not given.minimize,
    )
    released = curator.certificate
    if released is None:
        raise ValueError("The vault holds no released table: release it first.")
    rows = read_request(given.request, released.digest, curator.n)
    answers, told = AnswerFile(given.out, curator), curator.answers()
    new = [row for row in rows if row not in told]
    known = [row for row in new if _is_known(y[row], released.outcomes is not None)]
    room = len(known) if given.until is None else max(given.until - len(told), 0)
    for row in known[:room]:
        curator.evaluate(row)
    n_told = answers.write()
    _tell_progress(len(known[:room]), [row for row in new if row not in known])
    return n_told


def _is_known(y: float, randomised: bool) -> bool:
    """Whether an outcome can be told: infinity says that there is none, if that stays hidden."""
    return not math.isnan(y) and (randomised or math.isfinite(y))


def _tell_progress(answered: int, waiting: list[int]) -> None:
    if answered or waiting:
        left = f" Without an outcome yet: rows {', '.join(map(str, waiting))}." if waiting else ""
        print(f"{answered} rows answered.{left}", file=sys.stderr)


def report(given: argparse.Namespace) -> None:
    """Prints what may be claimed: of a file alone, or with the vault of everything told."""
    from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
    from privbo_plugins.sessions.rows import Curator

    table = ReleasedTable.load(given.table)
    guarantee = table.guarantee()
    if given.vault is not None:
        curator = Curator.resume(vault=given.vault, run_name=given.run)
        if curator.certificate != table.certificate:
            raise ValueError(
                f"{given.table.name} is not what this vault has released as {given.run!r}."
            )
        guarantee = curator.guarantee()
    print_json(guarantee.to_dict()) if given.json else print(guarantee)


# The command line -------------------------------------------------------------------------------


def add_to(commands: Any) -> None:
    """Adds ``curator`` to a command line."""
    made = commands.add_parser(
        "curator",
        help="release a table with differential privacy, and answer a modeler's requests",
        description="Release a table with differential privacy, and answer a modeler's requests.",
        epilog="A row's number counts from 0 in the order of the data file. The order is public: "
        "shuffle the file first if it tells something.",
    )
    own = made.add_subparsers(dest="curator", required=True)
    _release_options(own.add_parser("release", help="release a table, once"))
    _answer_options(own.add_parser("answer", help="answer which outcome rows have"))
    _report_options(own.add_parser("report", help="print what may be claimed"))


def _vault_options(command: argparse.ArgumentParser, *, required: bool) -> None:
    add_vault(
        command,
        "database of the ledger and of what was told, such as sqlite:///curator.db; keep it "
        "where only you can read it, and never throw it away: without it, nothing stops a second "
        "release",
        required=required,
    )
    command.add_argument("--run", **of_setting(CuratorSettings, "run_name"))


def _release_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(act=release)
    command.add_argument("data", type=Path, help="CSV file, its first line names the columns")
    command.add_argument(
        "--columns", nargs="+", required=True, type=column, metavar="NAME:LOW:HIGH",
        help="columns to release with their public bounds (never taken from the data), or "
        "NAME=CHOICE,CHOICE for texts; all other columns stay out",
    )  # fmt: skip
    command.add_argument("--epsilon", type=float, **of_setting(CuratorSettings, "epsilon"))
    command.add_argument("--delta", type=float, **of_setting(CuratorSettings, "delta"))
    command.add_argument("--out", type=Path, required=True, help=".npz or .parquet")
    _vault_options(command, required=True)
    command.add_argument(
        "--neighbor-distance", type=float, metavar="NU",
        help="protect a row against changes of up to NU only, where 1 is one column's whole "
        "range; without it a row is protected whatever it holds",
    )  # fmt: skip
    command.add_argument(
        "--mechanism", choices=MECHANISMS, **of_setting(CuratorSettings, "mechanism")
    )
    command.add_argument(
        "--on-excess", choices=ON_EXCESS, **of_setting(CuratorSettings, "on_excess")
    )
    command.add_argument("--r", type=int, help="columns of the released table, at most as many")
    ends = {"nargs": 2, "metavar": ("LOW", "HIGH")}
    numbers: dict[str, dict[str, Any]] = {"epsilon": {}, "range": ends, "delta": {}}
    for name, how in numbers.items():
        shared = of_setting(CuratorSettings, f"outcome_{name}")
        command.add_argument(f"--outcome-{name}", type=float, **how, **shared)
    command.add_argument("--outcome-mechanism", **of_setting(CuratorSettings, "outcome_mechanism"))


def _answer_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(act=answer)
    command.add_argument("data", type=Path, help="CSV file with the same rows in the same order")
    command.add_argument(
        "--outcome",
        required=True,
        help="its column with outcomes: empty where not known yet, inf where there is none. The "
        "first answer ties the release to it; unless outcomes are randomised, it must be none of "
        "the released columns",
    )
    command.add_argument("--request", type=Path, required=True, help="the modeler's file")
    command.add_argument(
        "--out",
        type=Path,
        required=True,
        help="answers, a JSON file; it also "
        "remembers the vault, which is refused if it was restored from an older backup or copied "
        "since",
    )
    _vault_options(command, required=True)
    command.add_argument("--minimize", action="store_true", help="small outcomes are wanted")
    command.add_argument(
        "--watch", type=float, metavar="SECONDS", help="look again every so often"
    )
    command.add_argument("--until", type=int, metavar="N", help="answer N rows at most, then stop")


def _report_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(act=report)
    command.add_argument("--table", type=Path, required=True, help="the released file")
    _vault_options(command, required=False)
    add_json(command)
