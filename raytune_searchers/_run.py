"""The driver's side of a run whose private state a host holds: what it calls, compares and keeps.

What the driver knew after the last ``save`` is lost at a restore; what the vault knows is not, and
always wins.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

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

T = TypeVar("T")

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

    _HOST: ClassVar[type[Host[Any]] | None] = None
    """What the host holds; None where there is nothing that needs one."""
    _STATUS: ClassVar[str] = "status"
    """The host's operation that tells what each save keeps."""
    _ENDS_WITH_HOST: ClassVar[bool] = True
    """Whether trials have releases of their own, so that nothing is left to do where a vault in
    memory is gone."""

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
        self._head: tuple[int, str] = (0, "")
        """How far the chain of releases was seen."""
        self._last: dict[str, Any] | None = None
        """The last report, of the vault or its :attr:`_STATUS`."""
        self._closed = False
        """Whether a vault in memory was closed, so that its last report tells all of it."""
        self._exposed: frozenset[str] = frozenset()
        """Why nothing may be claimed, as far as it was seen here."""
        self._passed: frozenset[str] = frozenset()
        """Trials of which something was shown while the vault failed."""
        self._unaudited = False
        """Whether something was shown that nothing has compared yet."""
        self._attach(may_begin=True, noise=noise)

    def _settings(self) -> Settings:
        """Returns the settings of the run that the host needs."""
        raise ValueError("Without privacy there is no ledger.")

    def _settings_as(self, cls: Callable[..., T], **own: Any) -> T:
        """Makes settings of one kind, with what hosts of all runs must know."""
        maximize, seen = self._mode == "max", self._head
        return cls(run=self._run, vault_id=self._vault_id, seen=seen, maximize=maximize, **own)

    @property
    def _has_host(self) -> bool:
        """Checks whether there is anything that needs one."""
        return self._HOST is not None

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
        if self._has_host and ray.util.client.ray.is_connected():  # to whom Tuner would send it
            raise VaultError(BY_CLIENT)
        classes = type(self).__mro__
        left_out = {n for c in classes for n in vars(c).get("_OF_THIS_PROCESS", "").split()}
        state = {n: v for n, v in self.__dict__.items() if n not in left_out}
        return state | {"_last": self._lasting()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        before = self.__dict__.get("_anchor")  # keeps a vault in memory alive meanwhile
        self.__dict__.update(state)
        self._attach()
        del before

    def _lasting(self) -> dict[str, Any] | None:
        """The last report for what is stored: the ledger may go on, so it says its cap."""
        if self._last is None or self._closed:
            return self._last
        return {**self._last, "guarantee": self._last["guarantee"].at_most()}

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
        status = channel.call(self._STATUS, self._unaudited)
        self._see(status["head"])
        self._last = status
        if folder is None or self._handle is not None or not status.get("partial"):
            return
        done, (where, kept) = status["done"], self._kept
        kept = kept if where == folder else 0
        if done >= _GROWN * kept or (status.get("finished") and done > kept):
            report = channel.call("report", self._unaudited)
            details = {name: report[name] for name in _DETAILS if name in report}
            kept_now = {"details": details, "head": report["head"]}
            path = folder / self._details_name
            replace_file(path, lambda f: cloudpickle.dump(kept_now, f), private=False)
            self._kept = folder, done

    @property
    def _details_name(self) -> str:
        return f"searcher-history-{self._run}.pkl"

    def _kept_details(self) -> dict[str, Any]:
        """Returns the details of the last :meth:`_keep`, and whether the status goes beyond it."""
        last, (folder, _) = self._last or {}, self._kept
        path = None if folder is None else folder / self._details_name
        wanted = self._handle is None and last.get("partial")
        if not wanted or path is None or not path.is_file():
            return {}
        found = cloudpickle.loads(path.read_bytes())
        return {**found["details"], "partial": found["head"] != last["head"]}

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
        channel, self._vault_id, reasons = connect(self._anchor, self._settings(), url)
        self._warn_at_once(reasons)
        return channel

    def _warn_at_once(self, reasons: Sequence[str]) -> None:
        """Warns of a run of which nothing can be claimed from the start."""
        if reasons and self._last is None:
            text = f"Nothing is protected: {'; '.join(reasons)}."
            warn(text, PrivacyWarning)

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
        if self._ENDS_WITH_HOST and self._has_host and self._handle is None:
            check_lives(self._anchor)

    def _see(self, head: tuple[int, str]) -> None:
        self._head = furthest(self._head, head)

    # What the user reads ---------------------------------------------------------------------

    def _report(self) -> dict[str, Any]:
        """The vault's public report, or the last one that was saved if a vault in memory ended.

        Raises:
            VaultError: If a database does not answer, is gone, or shows less than it did.
        """
        try:
            return self._report_now()
        except VaultError:
            last = self._lasting()
            if last is None or self._handle is not None:
                raise
            known = {**last, **self._kept_details()}
            return {**known, "guarantee": self._as_far_as_known(known)}

    def _report_now(self) -> dict[str, Any]:
        for reason in self._exposed:  # the vault may have failed when it was first told
            self._call("mark_unprotected", reason)
        report: dict[str, Any] = self._call("report", self._unaudited)
        self._see(report["head"])
        self._last = report
        return report

    def _as_far_as_known(self, report: Mapping[str, Any]) -> Any:
        """The last saved guarantee of a vault that has ended, and what was seen since."""
        guarantee = report["guarantee"]
        note = _ENDED if self._closed else f"{_ENDED}, and the most that it may have spent"
        reasons = sorted(self._exposed | set(guarantee.reasons))
        if self._unaudited:
            reasons.append("the vault ended before every result was compared with it")
        if self._head[0] > report.get("head", self._head)[0]:
            reasons.append(_MORE_RELEASED)
        notes, kept = (*guarantee.notes, note), guarantee.protected and not reasons
        return replace(guarantee, notes=notes, protected=kept, reasons=tuple(reasons))

    def _detail(self, name: str) -> Any:
        """A part of the report that grows with the run.

        Raises:
            VaultError: If the vault has ended, and with it this part.
        """
        report = self._report()
        if name not in report:
            raise VaultError(
                "The vault in memory has ended, and of a run of more than "
                f"{SHORT_RUN} trials the search's checkpoint keeps no single releases, which "
                "history() and report() need; guarantee() and recommend() go without. A vault in "
                "a database keeps them."
            )
        return report[name]

    def close(self) -> None:
        """Ends the vault's actor, if there is one.

        A vault in memory is gone then, one in a database is not.

        The last report is kept, so that ``guarantee``, ``recommend`` and ``report`` still work.
        """
        if not self._has_host:
            return
        with suppress(RuntimeError, ValueError):  # ended, never begun, or refused to this process
            self._report_now()
            self._closed = self._handle is None and self._channel is not None
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
        if self._has_host and shown:
            self._unless_broken(self._audit, trial_id, row)
        self._compare_config(shown, self._configs(trial_id))

    def _end_trial(self, trial_id: str, result: Row, error: bool) -> object:
        """Takes the end of a trial, and compares what the host knows of it."""

    @paid_for()
    def _look_at_end(self, trial_id: str, row: Row, error: bool) -> None:
        """Compares the last row of a trial, before and while :meth:`_end_trial` takes it."""
        shown, given = self._read(trial_id, row), self._configs(trial_id)
        self._compare_config(shown, given)
        self._unless_broken(self._end_trial, trial_id, row, error)
        if error and self._has_host and self._ENDS_WITH_HOST:
            self._unless_broken(self._call, "check_kind")
        if self._has_host and comparable(shown.config, given):
            self._see_whole(trial_id)

    def _audit(self, trial_id: str, row: Row) -> TrialRecord:
        """Compares a row with what the host knows now."""
        shown = self._read(trial_id, row)
        record: TrialRecord = self._call("record", trial_id, tuple(shown.extras))
        self._see(record.head)
        self._compare(shown, record)
        return record

    def _compare(self, shown: Shown, record: TrialRecord) -> None:
        for reason in complaints(shown, record, plain=self._PLAIN, beside=self._BESIDE):
            self._expose(reason, self._WRAP if reason == self._PLAIN else "")

    def _compare_config(self, shown: Shown, given: Sequence[Row]) -> None:
        """Notices what a function has written into its config, which Tune shows in every row."""
        if self._has_host and altered(shown.config, given):
            self._expose(ALTERED)

    def _see_whole(self, trial_id: str) -> None:
        """Has the vault remember that every row of a trial was compared, if so."""
        if self._ENDS_WITH_HOST and trial_id not in self._passed:
            self._unless_broken(self._call, "mark_compared", trial_id)

    def _expose(self, reason: str, fix: str = "") -> None:
        known = reason in self._exposed
        self._exposed |= {reason}  # remembered here too: the vault may be gone, or go
        try:
            self._call("mark_unprotected", reason)
        except VaultError as error:
            self._broken = VaultError(str(error))
        if not known:
            text = f"Nothing is protected: {reason}. {fix}".strip()
            warn(text, PrivacyWarning)

    def _unless_broken(self, step: Callable[..., Any], *args: Any) -> None:
        """Carries a step out; if the vault fails or the fit must end, the next suggestion says so.

        Tune would wrap what is raised here into an error of its own, trial by trial.
        """
        try:
            step(*args)
        except (NotLossesError, VaultError) as error:
            self._broken = type(error)(str(error))
            if any(isinstance(a, Mapping) and self._read(str(args[0]), a) for a in args):
                self._unaudited, self._passed = True, self._passed | {str(args[0])}

    def _checked_report(self, stored: Sequence[Stored]) -> dict[str, Any]:
        """The report after comparing what an experiment holds with it."""
        report = self._report()
        seen = [self._look_again(trial, report) for trial in stored]
        if not all(seen) or (stored and not self._passed):
            self._unaudited = not all(seen)
        report = self._report()
        return {**report, "guarantee": replace(report["guarantee"], where="Ray Tune")}

    def _look_again(self, stored: Stored, report: Mapping[str, Any]) -> bool:
        """Compares a stored trial with a report, and says whether that could be done."""
        trial, given = stored.trial, [*self._configs(stored.trial), *stored.given]
        forgotten = report.get("partial") and trial not in report.get("published", ())
        rows = [self._read(trial, row) for row in stored.rows]
        for shown in rows:
            self._compare_config(shown, given)
            if not forgotten:
                self._compare(shown, stored_record(trial, report))
        if forgotten:  # the vault has ended, and kept less
            return not any(rows)
        if stored.comparable(given) and trial in {*report.get("uncompared", ()), *self._passed}:
            self._passed -= {trial}
            self._see_whole(trial)
        return True


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
