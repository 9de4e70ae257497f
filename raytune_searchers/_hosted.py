"""Lifecycle of every search that stands before a host, and what results show.

What the driver knew after the last ``save`` is lost at a restore; what the vault knows is not, and
always wins.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray

from privbo_plugins.errors import (
    ForeignValueError,
    PrivacyError,
    PrivacyWarning,
    UtilityWarning,
    VaultError,
)
from privbo_plugins.files import replace_file
from privbo_plugins.privacy.source import NoiseSource
from raytune_searchers._arguments import (
    checked_handle,
    checked_run,
    identify,
    private_url,
)
from raytune_searchers._audit import (
    ALTERED,
    VOUCH,
    Row,
    Stored,
    altered,
    comparable,
    complaints,
    foreign,
    shown,
    stored_in,
    stored_record,
)
from raytune_searchers._channel import SHORT_RUN, Channel, TrialRecord
from raytune_searchers._search import TuneSearch
from raytune_searchers._settings import SearchSettings
from raytune_searchers._space import TuneSpace
from raytune_searchers.hosts.base import (
    Host,
    Settings,
    actor_name,
    anchor,
    check_alive,
    check_lives,
    connect,
    furthest,
)

Array = NDArray[np.float64]

BY_CLIENT = (
    "This process is connected by Ray Client (ray://...), with which Tune runs in a process of "
    "the cluster: this search, which keeps the ledger and says what may be claimed, would not be "
    "where the trials are. Submit the script as a Ray Job instead: 'ray job submit -- python "
    "script.py', with ray.init() and no address in it, or run it on a machine of the cluster "
    "with ray.init(address='auto')."
)

_DETAILS = ("history", "published", "drawn", "vouched", "entered")
"""What of a report grows with the run."""

_GROWN = 1.1
"""What grows is written again where the run is so many times as long."""

_ENDED = "the vault has ended; this is what it showed at the search's last checkpoint"

_MORE_RELEASED = "the vault ended, and more had been released than its last report knew"


class HostedSearch(TuneSearch):
    """Base of the searchers that keep a ledger in a host and compare every result with it.

    Args:
        given: What every searcher has that keeps a ledger.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    _HOST: ClassVar[type[Host]]
    _STATUS: ClassVar[str] = "report"
    """The host's operation that tells what each save keeps."""
    _PLAIN: ClassVar[str]
    """What is said of a value that never passed through the host."""
    _WRAP: ClassVar[str]
    """And what to do about it."""

    _OF_THIS_PROCESS: ClassVar[tuple[str, ...]] = (
        *TuneSearch._OF_THIS_PROCESS,
        "_anchor",
        "_channel",
        "_broken",
        "_kept",
        "_suggesting",
        "_reconcile",
    )

    _head: tuple[int, str] = (0, "")
    """How far the chain of releases was seen."""

    _closed: bool = False
    """Whether a vault in memory was closed, so that its last report tells all of it."""

    _passed: frozenset[str] = frozenset()
    """Trials of which something was shown while the vault failed."""

    _ENDS_WITH_HOST: ClassVar[bool] = True
    """Whether an experiment whose vault in memory is gone has nothing left to do."""

    _SEE_WHY: ClassVar[str] = (
        "Ray shows how in error.txt of each; what a private trainable raises is withheld there: "
        "call the function itself with one config to see it."
    )

    def __init__(self, given: SearchSettings) -> None:
        super().__init__(given, search_space=given.search_space)
        self._handle = checked_handle(given.vault)
        self._run = checked_run(given.run_name, self._handle)
        self._vault_id = None if self._handle is None else identify(self._handle)
        self._unaudited = False
        self._exposed: set[str] = set()
        self._last: dict[str, Any] | None = None
        self._attach(may_begin=True, noise=given.noise)

    @abc.abstractmethod
    def _settings(self) -> Settings:
        """Returns the settings of the run that the host needs."""

    @property
    def _has_host(self) -> bool:
        """Checks whether there is anything that needs one."""
        return True

    # State ----------------------------------------------------------------------------------

    @property
    def _actor_name(self) -> str:
        where = None if self._handle is None else self._vault_id
        return actor_name(self._HOST, where, self._run)

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        """Makes the parts that belong to this process and are never pickled."""
        super()._attach()
        self._anchor = anchor(self._actor_name, self._HOST, may_begin=may_begin, noise=noise)
        self._channel: Channel | None = None
        self._broken: str | None = None
        self._kept: tuple[Path | None, int] = None, 0
        self._suggesting = self._reconcile = False

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings.

        Raises:
            VaultError: If this process is connected by Ray Client.
        """
        if self._has_host and ray.util.client.ray.is_connected():  # to whom Tuner would send it
            raise VaultError(BY_CLIENT)
        return super().__getstate__() | {"_last": self._lasting()}

    def _lasting(self) -> dict[str, Any] | None:
        """The last report for what is stored: the ledger may go on, so it says its cap."""
        if self._last is None or self._closed:
            return self._last
        return {**self._last, "guarantee": self._last["guarantee"].at_most()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`get_state` gave, of this or an earlier process."""
        anchor = self.__dict__.get(
            "_anchor"
        )  # keeps an embedded vault alive while the anchor is looked up
        super().set_state(state)
        del anchor

    def save(self, checkpoint_path: str) -> None:
        """Writes the public state; Tune calls it now and then.

        Raises:
            VaultError: If the vault was in memory and is gone, while trials are out: Tune asks for
                no suggestion any more once all its trials have begun.
        """
        with suppress(VaultError, PrivacyError):  # the last one stays, and says so when it is read
            self._keep(Path(checkpoint_path).parent)
        super().save(checkpoint_path)
        if self._here and self._suggesting:
            self._check_lives()

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
        status = self._last = channel.call(self._STATUS, self._unaudited)
        self._see(status["head"])
        if folder is None or self._handle is not None or not status.get("partial"):
            return
        done, (where, kept) = status["done"], self._kept
        kept = kept if where == folder else 0
        if done >= _GROWN * kept or (status.get("finished") and done > kept):
            report = channel.call("report", self._unaudited)
            details = {name: report[name] for name in _DETAILS if name in report}
            kept_now = {"details": details, "head": report["head"]}
            replace_file(
                folder / self._details_name, lambda f: cloudpickle.dump(kept_now, f), private=False
            )
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

    def restore(self, checkpoint_path: str) -> None:
        """Reads what :meth:`save` wrote; what the vault knows beyond it always wins."""
        super().restore(checkpoint_path)
        self._kept = Path(checkpoint_path).parent, 0
        if self._reading:
            return
        with suppress(VaultError):  # of one that is gone it is told where it is asked
            self._begin()

    def _begin(self) -> None:
        """Has the host begin: trials that a restored experiment resumes ask for nothing."""
        known = None not in (self._metric, self._mode, self._space)
        if known and self._has_host and ray.is_initialized():
            self._open()

    # Tune's hooks ---------------------------------------------------------------------------

    def _begin_fit(self) -> None:
        super()._begin_fit()
        self._channel, self._suggesting = None, False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, ``FINISHED``, or None while a batch or the limit is out.

        Raises:
            RuntimeError: If metric, mode or search space are not known.
            VaultError: If the vault is gone.
        """
        if self._broken is not None:
            raise VaultError(self._broken)
        if not self._suggesting:  # once a fit, and never by those who only read
            self._suggesting = self._reconcile = True
        elif self._here:
            self._check_lives()
        return super().suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Looks at what was reported: what nobody vouched for or released unprotects the run."""
        super().on_trial_result(trial_id, result)
        if self._has_host and self._shows(result):
            self._unless_broken(self._look, trial_id, result)
        self._compare_config(result, self._configs(trial_id))

    def _look(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Compares what a trial shows with what it may show."""
        self._audit(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Looks at what is shown of a trial, and gives its slot back if it was never told."""
        shows, given = result or {}, self._configs(trial_id)
        self._compare_config(shows, given)
        self._unless_broken(super().on_trial_complete, trial_id, result, error)
        if self._has_host and comparable(shows, given):
            self._see_whole(trial_id)

    def _unless_broken(self, step: Callable[..., Any], *args: Any) -> None:
        """Carries a step out; if the vault fails, the next suggestion says so.

        Tune would wrap what is raised here into an error of its own, trial by trial.
        """
        try:
            step(*args)
        except VaultError as error:
            self._broken = str(error)
            if any(isinstance(a, Mapping) and self._shows(a) for a in args):
                self._unaudited, self._passed = True, self._passed | {str(args[0])}

    @property
    def _parameters(self) -> set[str]:
        """Returns the names that a trial's config may hold."""
        return set(self._param_space)

    def _shows(self, result: Mapping[str, Any]) -> bool:
        """Tells if a result holds anything that a release or a declaration must account for."""
        told = shown(result, self._metric) is not None
        return told or bool(foreign(result, self._metric, self._parameters))

    def _audit(self, trial_id: str, result: Mapping[str, Any]) -> TrialRecord:
        shows = foreign(result, self._metric, self._parameters)
        names = tuple(VOUCH.format(name) for name in sorted(shows))
        record: TrialRecord = self._call("record", trial_id, names)
        self._see(record.head)
        self._compare(result, record)
        return record

    def _compare(self, result: Mapping[str, Any], record: TrialRecord) -> None:
        for reason in complaints(result, self._metric, self._parameters, record, self._PLAIN):
            self._expose(reason, self._WRAP if reason == self._PLAIN else "")

    def _compare_config(self, row: Row, given: Sequence[Row]) -> None:
        """Notices what a function has written into its config, which Tune shows in every row."""
        if self._has_host and altered(row, given):
            self._expose(ALTERED)

    def _see(self, head: tuple[int, str]) -> None:
        self._head = furthest(self._head, head)

    def add_evaluated_point(self, *_args: Any, **_kwargs: Any) -> None:
        """Refused: a value from elsewhere is not a release of this run."""
        raise ForeignValueError(
            f"{type(self).__name__} learns from its own releases only; a value from elsewhere has "
            "no noise and no charge. Have the point evaluated: points_to_evaluate=[...]."
        )

    def _expose(self, reason: str, fix: str = "") -> None:
        known = reason in self._exposed
        self._exposed.add(reason)  # remembered here too: the vault may be gone, or go
        try:
            self._call("mark_unprotected", reason)
        except VaultError as error:
            self._broken = str(error)
        if not known:
            text = f"Nothing is protected: {reason}. {fix}".strip()
            warnings.warn(text, PrivacyWarning, stacklevel=2)

    # The vault ------------------------------------------------------------------------------

    def _ready(self) -> TuneSpace:
        """The space, once everything is known that a run needs.

        Raises:
            RuntimeError: If something is not.
            VaultError: If the run's vault was in memory and is gone.
        """
        self._check_alive()
        return super()._ready()

    def _check_alive(self) -> None:
        if self._has_host and self._handle is None:
            check_alive(self._anchor)

    def _check_lives(self) -> None:
        """Ends the experiment in the driver, once, before its trials fail for it one by one."""
        if self._ENDS_WITH_HOST and self._has_host and self._handle is None:
            check_lives(self._anchor)

    def _call(self, operation: str, *args: Any) -> Any:
        return self._open().call(operation, *args)

    def _open(self) -> Channel:
        if self._handle is not None and not ray.is_initialized():
            self._channel = None  # what is left is the database
        if self._channel is None:
            self._channel = self._connect()
        return self._channel

    def _connect(self) -> Channel:
        self._ready()
        settings = self._settings()
        url = None if self._handle is None else private_url(self._handle)
        channel, self._vault_id, reasons = connect(self._anchor, settings, url)
        if reasons and self._last is None:
            self._issue("PrivacyWarning", f"Nothing is protected: {'; '.join(reasons)}.")
        return channel

    @staticmethod
    def _issue(kind: str, text: str) -> None:
        category = PrivacyWarning if kind == "PrivacyWarning" else UtilityWarning
        warnings.warn(text, category, stacklevel=3)

    # What the user reads ---------------------------------------------------------------------

    def _report(self) -> dict[str, Any]:
        """The vault's public report, or the last one that was saved if the vault has ended."""
        try:
            return self._report_now()
        except VaultError:
            last = self._lasting()
            if last is None:
                raise
            known = {**last, **self._kept_details()}
            return {**known, "guarantee": self._as_far_as_known(known)}

    def _report_now(self) -> dict[str, Any]:
        for reason in self._exposed:  # the vault may have failed when it was first told
            self._call("mark_unprotected", reason)
        report: dict[str, Any] = self._call("report", self._unaudited)
        self._last = report
        self._see(report["head"])
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

    def _checked_report(self, results: Iterable[Any]) -> dict[str, Any]:
        """The report after comparing what a ``ResultGrid`` holds with it."""
        report, stored = self._report(), stored_in(results)
        seen = [self._look_again(trial, report) for trial in stored]
        if not all(seen) or (stored and not self._passed):
            self._unaudited = not all(seen)
        return self._report()

    def _look_again(self, stored: Stored, report: Mapping[str, Any]) -> bool:
        """Compares a stored trial with a report, and says whether that could be done."""
        trial, given = stored.trial, [*self._configs(stored.trial), *stored.given]
        unseen = trial in {*report.get("uncompared", ()), *self._passed}
        forgotten = report.get("partial") and trial not in report.get("published", ())
        rows = stored.rows if unseen else stored.rows[-1:]
        for row in rows:
            self._compare_config(row, given)
            if not forgotten:
                self._compare(row, stored_record(trial, report))
        if forgotten:  # the vault has ended, and kept less
            return not any(map(self._shows, rows))
        if unseen and stored.comparable(given):
            self._passed -= {trial}
            self._see_whole(trial)
        return True

    def _see_whole(self, trial_id: str) -> None:
        """Has the vault remember that every row of a trial was compared, if so."""
        if trial_id not in self._passed:
            self._unless_broken(self._call, "compared", trial_id)

    def _detail(self, name: str) -> Any:
        """A part of the report that grows with the run.

        Raises:
            VaultError: If the vault has ended, and with it this part.
        """
        report = self._report()
        if name not in report:
            raise VaultError(
                "The vault does not answer, and the search's checkpoint keeps single releases of "
                f"the first {SHORT_RUN} trials only: of longer runs the vault's database holds "
                "them. guarantee() and recommend() go without; for history() and report() put the "
                "database back."
            )
        return report[name]

    def close(self) -> None:
        """Ends the vault's actor; a vault in memory is gone then, one in a database is not.

        The last report is kept, so that ``guarantee``, ``recommend`` and ``report`` still work.
        """
        if not self._has_host:
            return
        with suppress(VaultError, RuntimeError):  # it has ended before, or there never was a run
            self._report_now()
            self._closed = self._handle is None and self._channel is not None
        self._anchor.end()
        self._channel = None
