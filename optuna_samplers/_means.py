"""Any sampler, centrally private: an objective whose clipped noisy mean is all that it returns.

The study keeps its own sampler and pruner, which see releases only. What is promised, and the
ledger behind it, are those of :class:`optuna_samplers.PrivateSampler`; here it proposes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.exceptions import TrialPruned
from optuna.study import Study
from optuna.trial import TrialState

from optuna_samplers._base import LossStudies
from optuna_samplers._guard import Releasing, check_objective
from optuna_samplers._losses import Objective
from optuna_samplers._sampler import StudySampler
from optuna_samplers._settings import LossRunSettings
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.sanitize import retelling
from privbo_plugins.scores.score import check_directions, one_score
from privbo_plugins.settings import again, called_with, part, setting, settings


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
    incumbent: Mapping[str, Any] | None = again(
        MeansConfig, "incumbent", default=None,
        more="It is enqueued as the second trial: the first one tells the space.",
    )  # fmt: skip


class MeansObjective(Releasing, LossStudies):
    """An objective for any sampler; made by :func:`private_objective`.

    Args:
        config: Settings of the algorithm.
        given: Settings of the run, and the objective.
    """

    def __init__(self, config: MeansConfig, given: _Settings) -> None:
        check_objective(given.objective, "one value per validation record")
        self._objective = given.objective
        super().__init__(config, given)

    def _evaluate(self, trial: optuna.Trial) -> tuple[Any, Any]:
        self._check_study(trial.study)
        self._current(trial.study)
        value, error = self._released(trial, self._objective)
        pruned = isinstance(error, TrialPruned)
        lost = TrialState.PRUNED if pruned else TrialState.FAIL
        self._state(trial.study).ended(trial.study, TrialState.COMPLETE if error is None else lost)
        self._enqueue(trial.study)
        return value, error

    def _enqueue(self, study: Study) -> None:
        """Has the study evaluate the incumbent next, once, as soon as its space is known."""
        own, given = self._state(study), getattr(self._config, "incumbent", None)
        with self._lock:
            space = own.session.space
            if given is None or space is None or own.session.finished:
                return
            if own.once("the incumbent"):
                params = space.decode(space.incumbent(given)) | dict(given)
                study.enqueue_trial(params, skip_if_exists=True)

    @retelling
    def release_score(self, study: Study, score: Any, predictions: Any) -> tuple[float, float]:
        """Releases one score of the model that was chosen, out of ``final_share``; or replays it.

        Args:
            study: The study.
            score: One of :mod:`privbo_plugins.scores`, or a name: of one of the run's, if any.
            predictions: :func:`privbo_plugins.scores.predictions` of the same validation records.

        Returns:
            The estimate, and the standard deviation that noise gives it.

        Raises:
            ValueError: If nothing is kept for it, or these are other records.
            BudgetExceededError: If another score was released instead.
        """
        if not isinstance(study, Study):
            raise ValueError("The study comes first: release_score(study, score, predictions).")
        session = self._current(study).session
        made = one_score(score, getattr(session.config, "scores", None))
        return session.release_score(made, predictions)

    def _check_objectives(self, study: Study) -> None:
        """Refuses a study with more objectives than the run has scores."""
        if len(study.directions) > len(getattr(self._config, "scores", None) or (0,)):
            raise ValueError(
                f"This study has {len(study.directions)} directions: give private_objective as "
                "many scores=, in their order. Nothing was evaluated."
            )

    def _check_study(self, study: Study) -> None:
        """Refuses a sampler that would pay for its own releases, and take these for plain floats.

        Raises:
            ValueError: If the study has one.
        """
        names = [direction.name for direction in study.directions]
        check_directions(getattr(self._config, "scores", None), *names)
        if isinstance(study.sampler, StudySampler):
            raise ValueError(
                f"private_objective is for Optuna's own samplers; {type(study.sampler).__name__} "
                "releases values itself: study.optimize(sampler.private(objective)). Or give the "
                "study another sampler: "
                "optuna.create_study(sampler=optuna.samplers.TPESampler())."
            )


@called_with(_Settings)
def private_objective(given: _Settings) -> MeansObjective:
    """Makes any sampler centrally private: each trial's clipped mean loss is released with noise.

    With ``scores=``, scores such as F1 or AUC are released in place of a mean loss: the objective
    returns :func:`privbo_plugins.scores.predictions`, the first score is the trial's value, and
    all of them stand in its attribute ``privbo:scores``.

    The vector goes to the vault, where it is forgotten with its release; what the study stores is
    mu-GDP for the validation records (replace-one), and so is all that its sampler and pruner
    make of it. N releases share mu, so each carries noise of loss_bound sqrt(N) / (n mu). The
    study stops when they are made. Every trial must suggest the same parameters.

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
    return MeansObjective(part(given, MeansConfig), given)
