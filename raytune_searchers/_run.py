"""The driver's side of a run whose private state a host holds: what it calls, compares and keeps.

What the driver knew after the last ``save`` is lost at a restore; what the vault knows is not, and
always wins.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import ray
import ray.cloudpickle as cloudpickle

from privbo_plugins.errors import (
    NotLossesError,
    PrivacyWarning,
    VaultError,
    paid_for,
    warn,
)
from privbo_plugins.files import replace_file
from privbo_plugins.plots import Report
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.scheduler import FirstTrials
from privbo_plugins.shown import (
    ALTERED,
    BESIDE,
    Shown,
    TrialRecord,
    altered,
    comparable,
    complaints,
)
from raytune_searchers._arguments import checked_handle, checked_run, identify, private_url
from raytune_searchers._audit import Row, Stored, read, stored_record
from raytune_searchers._channel import SHORT_RUN, Channel
from raytune_searchers._space import TuneSpace
from raytune_searchers.hosts.actors import anchor, check_lives, connect, furthest
from raytune_searchers.hosts.base import Host, Settings, actor_name

BY_CLIENT = (
    "This process is connected by Ray Client (ray://...), with which Tune runs in a process of "
    "the cluster: this search, which keeps the ledger and says what may be claimed, would not be "
    "where the trials are. Submit the script as a Ray Job instead: 'ray job submit -- python "
    "script.py', with ray.init() and no address in it, or run it on a machine of the cluster "
    "with ray.init(address='auto')."
)

_DETAILS = ("history", "published", "beside", "vouched", "entered")
"""What of a report grows with the run."""

_GROWN = 1.1
"""What grows is written again where the run is so many times as long."""

_ENDED = "the vault has ended; this is what it showed at the search's last checkpoint"

_MORE_RELEASED = "the vault ended, and more had been released than its last report knew"


@dataclass
class Known:
    """What a driver knows of a run without asking its host; all of it public.

    Attributes:
        head: How far the chain of releases was seen.
        report: The last report, of the vault or its :attr:`ComparedRun._STATUS`.
        closed: Whether a vault in memory was closed, so that this report tells all of it.
        exposed: Why nothing may be claimed, as far as it was seen here.
        passed: Trials of which something was shown while the vault failed.
        unaudited: Whether something was shown that nothing has compared yet.
        notes: What the vault was given to note, which may not have answered.
    """

    head: tuple[int, str] = (0, "")
    report: dict[str, Any] | None = None
    closed: bool = False
    exposed: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    unaudited: bool = False
    notes: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """All of it; the ledger may go on, so the report says its cap."""
        return vars(self) | {"report": self.lasting()}

    def lasting(self) -> dict[str, Any] | None:
        """The last report, of what may have been spent since."""
        if self.report is None or self.closed:
            return self.report
        return {**self.report, "guarantee": self.report["guarantee"].at_most()}

    def see(self, head: tuple[int, str]) -> None:
        """Takes how far the chain of releases has come.

        Raises:
            VaultError: If it does not go on from what was seen.
        """
        self.head = furthest(self.head, head)

    def learn(self, other: Known) -> None:
        """Takes what was seen of the same run elsewhere.

        Raises:
            VaultError: If it was another chain of releases.
        """
        self.head = furthest(*sorted((self.head, other.head)))
        self.exposed |= other.exposed
        self.passed |= other.passed
        self.unaudited = self.unaudited or other.unaudited
        told = [report for report in (self.report, other.report) if report is not None]
        self.report = max(told, key=lambda report: report["head"][0], default=None)

    def claim(self, report: Mapping[str, Any]) -> Any:
        """The guarantee of the last report of a vault that has ended, and what was seen since."""
        guarantee = report["guarantee"]
        note = _ENDED if self.closed else f"{_ENDED}, and the most that it may have spent"
        reasons = sorted(self.exposed | set(guarantee.reasons))
        if self.unaudited:
            reasons.append("the vault ended before every result was compared with it")
        if self.head[0] > report.get("head", self.head)[0]:
            reasons.append(_MORE_RELEASED)
        notes = tuple(dict.fromkeys((*guarantee.notes, *self.notes, note)))
        kept = guarantee.protected and not reasons
        return replace(guarantee, notes=notes, protected=kept, reasons=tuple(reasons))


class ComparedRun:
    """A run whose ledger a host keeps: the way there, and what Tune shows compared with it.

    Args:
        vault: None or a database URL, as users give it.
        run_name: Name of the run in the database; None makes one.
        noise: Test injection.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    _HOST: type[Host[Any]] | None = None
    """What the host holds; None where there is nothing that needs one."""
    _STATUS: ClassVar[str] = "status"
    """The host's operation that tells what each save keeps."""
    _ENDS_WITH_HOST: ClassVar[bool] = True
    """Whether trials have releases of their own, so that nothing is left to do where a vault in
    memory is gone."""

    _WARNS_AT_ONCE: ClassVar[bool] = True
    """Whether a driver hears of a run of which nothing can be claimed when it begins."""

    _PLAIN: ClassVar[str]
    """The reason given for a value that never passed through the host."""
    _BESIDE: ClassVar[str] = BESIDE
    """And for a value that stands beside it, undeclared."""
    _WRAP: ClassVar[str]
    """What to do about a plain value."""

    _OF_THIS_PROCESS: ClassVar[str] = "_anchor _channel _broken _kept _pace"
    """Names of what a class keeps for this process alone: no pickle holds them."""

    _metric: str | None
    _mode: str | None
    _space: TuneSpace | None
    _param_space: Mapping[str, Any]

    def _start(
        self, vault: str | Path | None, run_name: str | None, noise: NoiseSource | None
    ) -> None:
        self._handle = checked_handle(vault)
        self._run = checked_run(run_name, self._handle)
        self._vault_id = None if self._handle is None else identify(self._handle)
        self._known = Known()
        self._attach(may_begin=True, noise=noise)

    def _settings(self) -> Settings:
        """Returns the settings of the run that the host needs, but for what was seen of it."""
        raise ValueError("Without privacy there is no ledger.")

    @property
    def _actor_name(self) -> str:
        where = None if self._handle is None else self._vault_id
        return "" if self._HOST is None else actor_name(self._HOST, where, self._run)

    # State ----------------------------------------------------------------------------------

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        """Makes the parts that belong to this process and are never pickled."""
        kind, name = self._HOST, self._actor_name
        self._anchor: Any = kind and anchor(name, kind, may_begin=may_begin, noise=noise)
        self._channel: Channel | None = None
        self._broken: Exception | None = None
        self._kept: tuple[Path | None, int] = None, 0
        self._pace = FirstTrials()

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings.

        Raises:
            VaultError: If this process is connected by Ray Client.
        """
        if self._HOST is not None and ray.util.client.ray.is_connected():
            raise VaultError(BY_CLIENT)  # else Tuner would send it there
        classes = type(self).__mro__
        left_out = {n for c in classes for n in vars(c).get("_OF_THIS_PROCESS", "").split()}
        state = {n: v for n, v in self.__dict__.items() if n not in left_out}
        return state | {"_known": copy.copy(self._known)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        before = self.__dict__.get("_anchor")  # keeps a vault in memory alive meanwhile
        self.__dict__.update(state)
        self._attach()
        del before

    def _keep(self, folder: Path | None) -> None:
        """Remembers where the run stands, for when its vault has ended.

        What grows with a run is written beside its state, if the vault ends with the driver: not
        at each save, but whenever the run has grown by a tenth, and at its end; then all that is
        ever written is a multiple of what was written last.

        Raises:
            VaultError: If the vault has ended.
        """
        channel = self._channel
        if channel is None:
            return
        status = channel.call(self._STATUS, self._known.unaudited)
        self._known.see(status["head"])
        self._known.report = status
        if folder is None or self._handle is not None or not status.get("partial"):
            return
        done, (where, kept) = status["done"], self._kept
        kept = kept if where == folder else 0
        if done >= _GROWN * kept or (status.get("finished") and done > kept):
            report = channel.call("report", self._known.unaudited)
            details = {name: report[name] for name in _DETAILS if name in report}
            kept_now = {"details": details, "head": report["head"]}
            path = _details_in(folder, self._run)
            replace_file(path, lambda f: cloudpickle.dump(kept_now, f), private=False)
            self._kept = folder, done

    # The vault ------------------------------------------------------------------------------

    def _call(self, operation: str, *args: Any) -> Any:
        return self._open().call(operation, *args)

    def _open(self) -> Channel:
        if self._handle is not None and not ray.is_initialized():
            self._channel = None  # what is left is the database
        if self._channel is None:
            self._channel = self._connect()
        return self._channel

    def _connect(self) -> Channel:
        url = None if self._handle is None else private_url(self._handle)
        settings = replace(self._settings(), vault_id=self._vault_id, seen=self._known.head)
        channel, self._vault_id, reasons = connect(self._anchor, settings, url)
        if self._WARNS_AT_ONCE and self._known.report is None:
            warn_unprotected(reasons)
        return channel

    def _ready(self) -> TuneSpace:
        """The space, once everything is known that a run needs.

        Raises:
            RuntimeError: If space, metric or mode are not known.
        """
        name = type(self).__name__
        if self._space is None:
            raise RuntimeError(
                f"{name} has no search space yet: a fit brings the Tuner's param_space=, or pass "
                "search_space= to the search, with at least one Tune domain such as "
                "tune.uniform(0, 1)."
            )
        if self._metric is None or self._mode is None:
            raise RuntimeError(
                f"{name} needs metric= and mode= (here or in TuneConfig), got "
                f"metric={self._metric!r} and mode={self._mode!r}."
            )
        return self._space

    def _check_lives(self) -> None:
        """Ends the experiment in the driver, once, before its trials fail for it one by one."""
        if self._ENDS_WITH_HOST and self._HOST is not None and self._handle is None:
            check_lives(self._anchor)

    # What the user reads ---------------------------------------------------------------------

    def _report(self, *, now: bool = False) -> dict[str, Any]:
        """The vault's public report, or the last one that was saved if a vault in memory ended.

        Args:
            now: Whether only what the vault says now will do.

        Raises:
            VaultError: If a database does not answer, is gone, or shows less than it did.
        """
        try:
            for reason in self._known.exposed:  # the vault may have failed when it was first told
                self._call("mark_unprotected", reason)
            report: dict[str, Any] = self._call("report", self._known.unaudited)
            self._known.see(report["head"])
        except VaultError:
            last = self._known.lasting()
            if now or last is None or self._handle is not None:
                raise
            known = {**last, **_kept_details(self._kept[0], self._run, last)}
            return {**known, "guarantee": self._known.claim(known)}
        self._known.report = report
        return report

    def close(self) -> None:
        """Ends the vault's actor, if there is one.

        A vault in memory is gone then, one in a database is not.

        The last report is kept, so that ``guarantee``, ``recommend`` and ``report`` still work.
        """
        if self._HOST is None:
            return
        with suppress(RuntimeError, ValueError):  # ended, never begun, or refused to this process
            self._report(now=True)
            self._known.closed = self._handle is None and self._channel is not None
        self._anchor.end()
        self._channel = None

    # What Tune shows ------------------------------------------------------------------------

    def _read(self, trial: str, row: Row) -> Shown:
        """Reads what a row shows that a release or a declaration must account for."""
        return read(trial, row, self._metric, self._parameters)

    @property
    def _parameters(self) -> set[str]:
        """Returns the names that a trial's config may hold."""
        return set(self._param_space)

    def _configs(self, trial_id: str) -> list[Row]:  # noqa: ARG002
        """Flattened configs that a trial was given, as far as they are known here."""
        return []

    @paid_for()
    def _look(self, trial_id: str, row: Row) -> None:
        """Compares a row of a trial that goes on."""
        shown = self._read(trial_id, row)
        if self._HOST is not None and shown:
            self._unless_broken(self._audit, trial_id, row)
        self._compare(shown, given=self._configs(trial_id))

    @paid_for()
    def _look_at_end(
        self, trial_id: str, row: Row, error: bool, take: Callable[[str, Row, bool], object]
    ) -> None:
        """Compares the last row of a trial, before and while its end is taken.

        Args:
            trial_id: Its id.
            row: The row, flattened.
            error: Whether it failed.
            take: Takes the end, and compares what the host knows of the trial.
        """
        shown, given = self._read(trial_id, row), self._configs(trial_id)
        self._compare(shown, given=given)
        self._unless_broken(take, trial_id, row, error)
        if self._HOST is None:
            return
        if error and self._ENDS_WITH_HOST:
            self._unless_broken(self._call, "check_kind")
        if comparable(shown.config, given):
            self._see_whole(trial_id)

    def _audit(self, trial_id: str, row: Row) -> TrialRecord:
        """Compares a row with what the host knows now."""
        shown = self._read(trial_id, row)
        record: TrialRecord = self._call("record", trial_id, tuple(shown.extras))
        self._known.see(record.head)
        self._compare(shown, record)
        return record

    def _compare(
        self, shown: Shown, record: TrialRecord | None = None, given: Sequence[Row] = ()
    ) -> None:
        """Marks the run unprotected by what a row shows that is not as it should be.

        Args:
            shown: What it shows.
            record: What the host knows of the trial; None where it is not asked.
            given: The configs that the trial was given: a function may have written into one, and
                Tune shows it in every row.
        """
        reasons = [ALTERED] if self._HOST is not None and altered(shown.config, given) else []
        if record is not None:
            reasons += complaints(shown, record, plain=self._PLAIN, beside=self._BESIDE)
        for reason in reasons:
            known = reason in self._known.exposed
            self._known.exposed |= {reason}  # the vault may be gone, or go
            try:
                self._call("mark_unprotected", reason)
            except VaultError as error:
                self._broken = VaultError(str(error))
            if not known:
                warn_unprotected([reason], self._WRAP if reason == self._PLAIN else "")

    def _see_whole(self, trial_id: str) -> None:
        """Has the vault remember that every row of a trial was compared, if so."""
        if self._ENDS_WITH_HOST and trial_id not in self._known.passed:
            self._unless_broken(self._call, "mark_compared", trial_id)

    def _unless_broken(self, step: Callable[..., Any], *args: Any) -> None:
        """Carries a step out; if the vault fails or the fit must end, the next suggestion says so.

        Tune would wrap what is raised here into an error of its own, trial by trial.
        """
        try:
            step(*args)
        except (NotLossesError, VaultError) as error:
            self._broken = type(error)(str(error))
            if any(isinstance(a, Mapping) and self._read(str(args[0]), a) for a in args):
                self._known.unaudited = True
                self._known.passed |= {str(args[0])}

    def _checked_report(self, stored: Sequence[Stored]) -> dict[str, Any]:
        """The report after comparing what an experiment holds with it."""
        report = self._report()
        seen = [self._look_again(trial, report) for trial in stored]
        if not all(seen) or (stored and not self._known.passed):
            self._known.unaudited = not all(seen)
        report = self._report()
        return {**report, "guarantee": replace(report["guarantee"], where="Ray Tune")}

    def _look_again(self, stored: Stored, report: Mapping[str, Any]) -> bool:
        """Compares a stored trial with a report, and says whether that could be done."""
        trial, given = stored.trial, [*self._configs(stored.trial), *stored.given]
        forgotten = report.get("partial") and trial not in report.get("published", ())
        rows = [self._read(trial, row) for row in stored.rows]
        for shown in rows:
            self._compare(shown, None if forgotten else stored_record(trial, report), given)
        if forgotten:  # the vault has ended, and kept less
            return not any(rows)
        open_ones = {*report.get("uncompared", ()), *self._known.passed}
        if stored.comparable(given) and trial in open_ones:
            self._known.passed -= {trial}
            self._see_whole(trial)
        return True


def warn_unprotected(reasons: Sequence[str], fix: str = "") -> None:
    """Warns that nothing can be claimed, if there are reasons."""
    if reasons:
        warn(f"Nothing is protected: {'; '.join(reasons)}. {fix}".strip(), PrivacyWarning)


def detail(report: Mapping[str, Any], name: str) -> Any:
    """A part of a report that grows with the run.

    Raises:
        VaultError: If the vault has ended, and with it this part.
    """
    if name not in report:
        raise VaultError(
            "The vault in memory has ended, and of a run of more than "
            f"{SHORT_RUN} trials the search's checkpoint keeps no single releases, which "
            "history() and report() need; guarantee() and recommend() go without. A vault in "
            "a database keeps them."
        )
    return report[name]


def _details_in(folder: Path, run: str) -> Path:
    """The file beside a search's state that keeps these parts of a vault in memory."""
    return folder / f"searcher-history-{run}.pkl"


def _kept_details(folder: Path | None, run: str, last: Mapping[str, Any]) -> dict[str, Any]:
    """Returns these parts as they were kept last, and whether the last status goes beyond them."""
    path = None if folder is None else _details_in(folder, run)
    if path is None or not last.get("partial") or not path.is_file():
        return {}
    found = cloudpickle.loads(path.read_bytes())
    return {**found["details"], "partial": found["head"] != last["head"]}


class Reported(abc.ABC):
    """Tells programs and people where a run stands."""

    @abc.abstractmethod
    def status(self) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""

    @abc.abstractmethod
    def _page(self, results: Iterable[Any]) -> Report:
        """Makes the content of a report."""

    def report(self, path: str | Path, results: Iterable[Any] = ()) -> Path:
        """Writes an HTML page: guarantee, recommendation, what has been released, in pictures.

        Of a federation it tells rounds and budget, and nothing of any agent's own trials.

        Args:
            path: Where to write.
            results: As for :meth:`guarantee`.

        Returns:
            The path written.

        Raises:
            ImportError: If the ``viz`` extra is not installed.
        """
        return replace(self._page(results), status=self.status()).write(path)
