"""Any sampler, centrally private: an objective whose clipped noisy mean is all that it returns.

The study keeps its own sampler and pruner, which see releases only. What is promised, and the
ledger behind it, are those of :class:`optuna_samplers.PrivateSampler`; here it proposes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import TrialPruned
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers._base import Objective, PrivateObjective, PrivateSampler
from optuna_samplers._guard import GuardedTrial
from optuna_samplers._sampler import StudySampler
from optuna_samplers._settings import LossRunSettings
from privbo_plugins import sanitize
from privbo_plugins.algorithms.protocols import CentralPlan
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.plots import History
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.sanitize import sanitized
from privbo_plugins.settings import again, called_with, named, part, setting, settings


class MeansObjective(PrivateObjective):
    """An objective for any sampler; made by :func:`private_objective`."""

    def __init__(self, sampler: PrivateSampler, objective: Objective) -> None:
        if not callable(objective):
            raise ValueError(
                "The objective must be a function of a trial that returns one value per "
                f"validation record, got a {type(objective).__name__}."
            )
        super().__init__(sampler, objective)

    def __call__(self, trial: optuna.Trial) -> float:
        """Evaluates the objective on a guarded trial and returns the released value.

        Raises:
            ValueError: If the study's sampler releases values of its own.
        """
        study = trial.study
        _refuse_private_sampler(study)
        value, error = self._sampler._evaluate(trial, self._objective)
        if error is None:
            self._sampler._count_released(study)
            return value
        pruned = isinstance(error, TrialPruned)
        self._sampler._count_lost(study, TrialState.PRUNED if pruned else TrialState.FAIL)
        raise error

    def guarded(self, trial: optuna.Trial) -> GuardedTrial:
        """The trial as a private objective sees it, for ask/tell: outputs need ``public=True``."""
        return self._sampler.guarded(trial)

    def tell(self, trial: optuna.Trial, losses: Any) -> float:
        """Tells per-record losses under ask/tell; the study gets the released value.

        Args:
            trial: From ``study.ask()``.
            losses: One value per validation record, shape (n_records,); entry i belongs to the
                same record in every trial.

        Returns:
            The released value.

        Raises:
            ValueError: If the vector is not usable; the trial stays running and can be told
                again. Also if the study's sampler releases values of its own.
        """
        _, error = sanitize.call(lambda: _refuse_private_sampler(trial.study), sanitized)
        value = float("nan")
        if error is None:
            value, error = self._sampler._paid_and_told(trial, losses)
        del losses
        if error is not None:
            raise error
        trial.study.tell(trial, value)
        return value

    @property
    def plan(self) -> Callable[[Mapping[str, BaseDistribution], int], CentralPlan]:
        """``plan(search_space, n_records)``, as of every sampler: what a run would release."""
        return self._sampler.plan

    def recommend(self, study: Study) -> dict[str, Any]:
        """The parameters with the best posterior mean over everything released.

        They need not be any trial's: ``study.best_params`` are those of the luckiest one.

        Raises:
            ValueError: If nothing has been released yet.
        """
        return self._sampler.recommend(study)

    def finished(self, study: Study) -> bool:
        """Whether the budget is spent; for ask/tell loops, which nothing stops."""
        return self._sampler.finished(study)

    def guarantee(self, study: Study) -> Guarantee:
        """What may be claimed for this study, after comparing its storage with the ledger."""
        return self._sampler.guarantee(study)

    def history(self, study: Study) -> History:
        """What the study has published, for :mod:`privbo_plugins.plots`."""
        return self._sampler.history(study)

    def status(self, study: Study) -> dict[str, Any]:
        """Where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        return self._sampler.status(study)

    def report(self, study: Study, path: str | Path) -> Path:
        """Writes an HTML page, as samplers do."""
        return self._sampler.report(study, path)

    def publish(self, study: Study, trial: FrozenTrial | None = None) -> None:
        """Shows in optuna-dashboard what the study's numbers are worth, as samplers do."""
        self._sampler.publish(study, trial)

    def replay(self, study: Study) -> list[int]:
        """Tells released values that a crash kept from reaching the study; draws nothing."""
        return self._sampler.replay(study)

    def purge(self, study: Study) -> None:
        """Deletes what the vault holds of raw losses; nothing is left behind by a release."""
        self._sampler.purge(study)


def _refuse_private_sampler(study: Study) -> None:
    """Refuses a sampler that would pay for its own releases, and take these for plain floats.

    Raises:
        ValueError: If the study has one.
    """
    if isinstance(study.sampler, StudySampler):
        raise ValueError(
            f"private_objective is for Optuna's own samplers; {type(study.sampler).__name__} "
            "releases values itself: study.optimize(sampler.private(objective)). Or give the "
            "study another sampler: optuna.create_study(sampler=optuna.samplers.TPESampler())."
        )


@settings(eq=False)
class _Settings(LossRunSettings, MeansConfig):
    """Arguments of :func:`private_objective`."""

    objective: Objective = setting(
        "From a guarded trial to a vector of shape (n_records,): losses to minimise or scores "
        "to maximise, in the study's direction. Entry i must belong to the same record in every "
        "trial and on every worker; NaN for a record that cannot be scored counts as the worst.",
        kw_only=False,
    )
    mu: float = again(MeansConfig, "mu", default=None)


@called_with(_Settings)
def private_objective(given: _Settings) -> MeansObjective:
    """Makes any sampler centrally private: each trial's clipped mean loss is released with noise.

    The vector goes to the vault, where it is forgotten with its release; what the study stores is
    mu-GDP for the validation records (replace-one), whatever its sampler and pruner make of it.
    N releases share mu, so each carries noise of loss_bound sqrt(N) / (n mu). The study stops
    when they are made. Every trial must suggest the same parameters.

    {settings}

    Returns:
        An objective for ``study.optimize`` with ``guarantee(study)`` and ``recommend(study)``.

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault cannot be opened for writing.

    Example:
        >>> import numpy as np, optuna
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> records = np.random.default_rng(0).normal(0.7, 0.1, size=1000)
        >>> private = private_objective(
        ...     lambda trial: (trial.suggest_float("x", 0, 1) - records) ** 2, mu=1, n_trials=30
        ... )
        >>> study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        >>> study.optimize(private)
        >>> len(study.trials), abs(private.recommend(study)["x"] - 0.7) < 0.15
        (30, True)
        >>> round(private.guarantee(study).mu_spent, 9)
        1.0
    """
    sampler = PrivateSampler(part(given, MeansConfig), **named(given, LossRunSettings))
    return MeansObjective(sampler, given.objective)
