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

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray

from privbo_plugins.errors import PrivacyError
from privbo_plugins.privacy.guarantee import LocalGuarantee
from privbo_plugins.privacy.local import LocalMechanism, RewardPrivacy, make_mechanism
from privbo_plugins.privacy.settings import UserSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.rewards import check_user_budget, local_guarantee
from privbo_plugins.settings import again, called_with, named, setting, settings
from privbo_plugins.users import PLAIN
from raytune_searchers._arguments import check_target
from raytune_searchers._audit import Stored, config_in, stored_in
from raytune_searchers._evaluations import UserOf, wrap
from raytune_searchers._run import ComparedRun
from raytune_searchers._settings import RewardSearchSettings, TrainableSettings
from raytune_searchers._trainable import Trainable
from raytune_searchers.hosts.actors import in_worker
from raytune_searchers.hosts.base import Host
from raytune_searchers.hosts.rewards import LedgerHost, LedgerSettings

FAILED_NOTE = (
    "trials failed: whether a trial fails may tell of its user's reward; what a private function "
    "raises is withheld, but not what is raised or logged around it"
)


class RewardsRun(ComparedRun):
    """A run on one privatised number a trial, before the host of its users' ledger."""

    _HOST: type[Host[Any]] | None = LedgerHost
    _PLAIN = PLAIN

    mechanism: LocalMechanism | None
    """What happens to a reward."""
    _user_budget: float | None
    _user_delta: float

    def _settings(self) -> LedgerSettings:
        if self.mechanism is None:
            return super()._settings()  # type: ignore[return-value]
        return LedgerSettings(
            run=self._run,
            maximize=self._mode == "max",
            mechanism=self.mechanism,
            user_budget=self._user_budget,
            user_delta=self._user_delta,
            metric=str(self._metric),
        )


class Ledger(RewardsRun):
    """The driver's way to the ledger of one trainable; pickled beside it, and started by that.

    Args:
        given: Arguments of :func:`ldp_trainable`.
        mechanism: What happens to a reward.
    """

    _WRAP = "Give tune.Tuner the trainable that ldp_trainable returned, as it is."
    _WARNS_AT_ONCE = False  # guarantee() tells

    def __init__(self, given: _Settings, mechanism: LocalMechanism) -> None:
        self.mechanism: LocalMechanism = mechanism
        self._user_budget, self._user_delta = given.user_budget, given.user_delta
        self._metric, self._mode = given.metric, given.mode
        self._param_space: dict[str, Any] = {}  # what a trial's config holds
        self._start(given.vault, given.run_name, given.noise)

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        super()._attach(may_begin=may_begin and not in_worker(), noise=noise)

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings; Tune pickles trainables before it starts any trial."""
        if ray.is_initialized():
            self.begin()
        return super().__getstate__()

    def begin(self) -> None:
        """Has the ledger's actor begin, unless this is a worker.

        Raises:
            VaultError: If the ledger was in memory and is gone.
        """
        if not in_worker():
            self._channel = None  # it may have ended
            self._known.see(self._call("head"))

    def _report(self, *, now: bool = True) -> dict[str, Any]:
        """The ledger's own: of one that is gone nothing is claimed."""
        return super()._report(now=now)

    def guarantee(self, results: Iterable[Any] = ()) -> LocalGuarantee:
        """Claims what the ledger allows for all that the trainable has reported.

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
            PrivacyWarning: If the results hold what was neither released nor declared public.
        """
        if in_worker():
            raise PrivacyError("The guarantee is asked for in the driver, not in a trial.")
        if self._handle is None and self._anchor.may_begin and not ray.is_initialized():
            # Ray has never run, so no trial can have
            return local_guarantee(self.mechanism, 0, 0, users_named=False)
        self.begin()
        stored = stored_in(results)
        self._checked_report(stored)
        if any(trial.failed for trial in stored):
            self._call("note", FAILED_NOTE)
        return self._report()["guarantee"]  # type: ignore[no-any-return]

    def _look_again(self, stored: Stored, report: Mapping[str, Any]) -> bool:
        """Compares a trial; which parameters it may show, only the config that it got tells."""
        configs = stored.given or [config_in(row) or {} for row in stored.rows]
        self._param_space = {name.split("/")[0]: ... for config in configs for name in config}
        return super()._look_again(stored, report)


@settings(eq=False)
class _Settings(TrainableSettings, RewardPrivacy, UserSettings):
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
    vault: str | Path | None = again(
        RewardSearchSettings, "vault", default=None, more="Never a raw reward goes there."
    )


@called_with(_Settings)
def ldp_trainable(given: _Settings) -> Any:
    """Makes every trial of any searcher locally private: each trial is one user's reward.

    The reward is clipped and privatised in the worker that evaluates it, before Tune sees it: run
    the trials where the users' data are. Everything that Tune stores and shows afterwards, and
    all that a searcher or scheduler makes of it, is eps-LDP. Source: Zhou and Tan, Curator 1, and
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
    ledger = Ledger(given, mechanism)
    private = wrap(
        given.trainable, ledger._actor_name, mechanism, given.user_id, given.user_budget
    )
    if ray.is_initialized():
        ledger.begin()
    private.guarantee = ledger.guarantee
    return private
