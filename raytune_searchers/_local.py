"""Privatised rewards in Ray Tune: a trainable whose reward is randomised before it is reported.

Who does what: the worker runs the user's function, clips and privatises what it returns, and
reports the release. The ledger, one actor on the driver's node, charges the user before anything
is drawn and keeps the release: a trial that is tried again replays it. The raw reward never
leaves the worker.

The ledger is started by the driver: when the trainable is wrapped, if Ray is running then, else
when it is first pickled with Ray running, which Tune does with every trainable before it starts a
trial. A worker never starts one: it would end with that worker, and every worker would count for
itself. A trainable that a worker makes for itself (because it imported a module that calls
:func:`ldp_trainable`) therefore finds no ledger and fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import ray

from privbo_plugins.errors import PrivacyError, PrivacyWarning
from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import LocalMechanism, RewardPrivacy, make_mechanism
from privbo_plugins.privacy.settings import NoiseSettings, UserSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.rewards import check_user_budget, local_guarantee
from privbo_plugins.settings import again, called_with, named, setting, settings
from raytune_searchers._admission import LedgerSettings
from raytune_searchers._arguments import (
    check_target,
    checked_handle,
    checked_run,
    identify,
    private_url,
)
from raytune_searchers._audit import (
    ALTERED,
    Stored,
    altered,
    complaints,
    stored_in,
    stored_record,
)
from raytune_searchers._channel import Channel
from raytune_searchers._evaluations import PLAIN, UserOf, wrap
from raytune_searchers._trainable import Trainable
from raytune_searchers.hosts.base import actor_name, anchor, connect, furthest, in_worker
from raytune_searchers.hosts.rewards import LedgerHost


class Ledger:
    """The driver's way to the ledger of one trainable; pickled beside it, and started by that.

    Args:
        settings: The run.
        handle: Of the database, if there is one.
        noise: Test injection, for the ledger's actor only.
    """

    def __init__(
        self, settings: LedgerSettings, handle: str | None, noise: NoiseSource | None
    ) -> None:
        self._settings, self._handle = settings, handle
        self.name = actor_name(LedgerHost, settings.vault_id, settings.run)
        self._attach(may_begin=not in_worker(), noise=noise)
        if ray.is_initialized():
            self.begin()

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        self._anchor = anchor(self.name, LedgerHost, may_begin=may_begin, noise=noise)

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings; Tune pickles trainables before it starts any trial."""
        if ray.is_initialized():
            self.begin()
        state = self.__dict__.copy()
        del state["_anchor"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def begin(self) -> None:
        """Has the ledger's actor begin, unless this is a worker.

        Raises:
            VaultError: If the ledger was in memory and is gone.
        """
        if not in_worker():
            self._connect()

    @property
    def _unused(self) -> bool:
        """Checks whether Ray has never run, so that no trial can have."""
        return self._handle is None and self._anchor.may_begin and not ray.is_initialized()

    def _connect(self) -> Channel:
        url = None if self._handle is None else private_url(self._handle)
        channel, vault_id, _ = connect(self._anchor, self._settings, url)
        self._settings = replace(self._settings, vault_id=vault_id)
        self._see(channel.call("head"))
        return channel

    def _see(self, head: tuple[int, str]) -> None:
        """Remembers how far the releases were, here and wherever the trainable is sent."""
        self._settings = replace(self._settings, seen=furthest(self._settings.seen, head))

    def _report(self, channel: Channel) -> dict[str, Any]:
        report: dict[str, Any] = channel.call("report", False)
        self._see(report["head"])
        return report

    def guarantee(self, results: Iterable[Any] = ()) -> LocalGuarantee:
        """What may be claimed for everything that the trainable has reported.

        The ledger remembers which trials were compared; of others nothing is claimed.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``, or what ``tune.run`` returns: every row
                of every trial is compared with the ledger, and with the config that Tune's driver
                has given to the trial.

        Raises:
            VaultError: If the ledger was in memory and is gone, or its vault was restored from
                an older backup.
            PrivacyError: In a trial.

        Warns:
            PrivacyWarning: If the results hold what nobody has released or declared public.
        """
        if in_worker():
            raise PrivacyError("The guarantee is asked for in the driver, not in a trial.")
        if self._unused:
            return local_guarantee(self._settings.mechanism, 0, 0, users_named=False)
        channel, stored = self._connect(), stored_in(results)
        report, reasons = self._report(channel), set[str]()
        for trial in stored:
            reasons |= set(self._complaints(trial, report))
            if trial.comparable(trial.given):
                channel.call("compared", trial.trial)
        new = sorted(reasons.difference(report["guarantee"].reasons))
        for reason in new:
            channel.call("mark_unprotected", reason)
        if new:
            warnings.warn(f"Nothing is protected: {'; '.join(new)}.", PrivacyWarning, stacklevel=2)
        if any(trial.failed for trial in stored):
            channel.call("failed")
        guarantee: LocalGuarantee = self._report(channel)["guarantee"]
        return guarantee

    def _complaints(self, stored: Stored, report: dict[str, Any]) -> Iterator[str]:
        """Yields the reasons to claim nothing for an experiment that holds such a trial."""
        names = {name.split("/")[0] for config in stored.given for name in config}
        record = stored_record(stored.trial, report)
        for row in stored.rows:
            known = {n: v for n, v in row.items() if stored.given or not n.startswith("config/")}
            yield from complaints(known, self._settings.metric, names, record, PLAIN)
            if altered(row, stored.given):
                yield ALTERED


@settings(eq=False)
class _Settings(RewardPrivacy, UserSettings):
    """Arguments of :func:`ldp_trainable`."""

    trainable: Trainable = setting(
        "From a config to one number, the reward (or cost) of one user. NaN and infinity "
        "count as the end of the range that ``mode`` does not want. It may take further "
        "arguments by ``tune.with_parameters``.",
        kw_only=False,
    )
    epsilon: float = setting("Privacy parameter of one reward, > 0 and finite.")
    metric: str = setting("Under which name the release is reported.", default="reward")
    mode: str = setting('"max" for rewards, "min" for costs.', default="max")
    user_id: UserOf | None = setting(
        "Whose reward a trial is: a string, bytes or integer, or a function from the config "
        "to one. A user who is asked k times pays k times. None: every trial asks another "
        "user.",
        default=None,
    )
    vault: str | None = setting(
        "Where users' evaluations are counted (never a raw reward goes there): None for the "
        "memory of an actor, which ends with the driver, or a database URL, or "
        "``env:NAME``.",
        default=None,
    )
    run_name: str | None = setting(
        "Name of the run in the database; None makes one. Needed to go on with a ledger "
        "after ``Tuner.restore``.",
        default=None,
    )
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@called_with(_Settings)
def ldp_trainable(given: _Settings) -> Any:
    """Makes every trial of any searcher locally private: each trial is one user's reward.

    The reward is clipped and privatised in the worker that evaluates it, before Tune sees it: run
    the trials where the users' data are. Everything that Tune stores and shows afterwards, and
    whatever a searcher or scheduler makes of it, is eps-LDP. Source: Zhou and Tan, Curator 1, and
    the mechanisms of :mod:`privbo_plugins.privacy.local`.

    Call it in the driver: the ledger of the users' evaluations is started there, at once if Ray is
    running, else when Tune first pickles the trainable. Ray's own workers never begin one.

    {settings}

    Returns:
        A trainable for ``tune.Tuner``, with the attribute ``mechanism`` and the method
        ``guarantee(results)``.

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened.

    Example:
        >>> private = ldp_trainable(
        ...     lambda config: 1 - abs(config["x"] - 0.5), epsilon=1.0, value_range=(0, 1)
        ... )
        >>> private.mechanism.epsilon
        1.0
        >>> # results = tune.Tuner(private, param_space={"x": tune.uniform(0, 1)}).fit()
        >>> # print(private.guarantee(results))
    """
    mechanism = make_mechanism(given.epsilon, **named(given, RewardPrivacy, but=("epsilon",)))
    if given.metric is None or given.mode is None:
        raise ValueError("ldp_trainable needs a metric and a mode of its own.")
    check_target("ldp_trainable", given.metric, given.mode)
    check_user_budget(mechanism, given.user_budget, given.user_delta)
    handle = checked_handle(given.vault)
    settled = _settled(given, mechanism, handle)
    name = actor_name(LedgerHost, settled.vault_id, settled.run)
    private = wrap(given.trainable, name, mechanism, given.user_id, given.user_budget)
    private.guarantee = Ledger(settled, handle, given.noise).guarantee
    return private


def _settled(given: _Settings, mechanism: LocalMechanism, handle: str | None) -> LedgerSettings:
    return LedgerSettings(
        checked_run(given.run_name, handle),
        mechanism,
        given.user_budget,
        given.metric,
        given.mode == "max",
        None if handle is None else identify(handle),
        user_delta=given.user_delta,
    )
