"""DUETS as a Ray Tune searcher: the trials that run at the same time are its agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets import DUETS
from privbo_plugins.algorithms.duets.algorithm import Epoch
from privbo_plugins.algorithms.duets.config import PUBLISHED, DUETSConfig, DUETSSettings
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.privacy.local import OptionalRewardPrivacy
from privbo_plugins.settings import Published, WholeNumber, part, setting, settings, takes
from raytune_searchers._audit import Row
from raytune_searchers._rewards import RewardSearch
from raytune_searchers._settings import RewardSearchSettings
from raytune_searchers._space import TuneSpace

Array = NDArray[np.float64]

TAG = "duets"
"""The config entry that says what a trial is."""


@settings(eq=False)
class _Settings(RewardSearchSettings, OptionalRewardPrivacy, DUETSSettings):
    """Keywords of :class:`DUETSSearch`."""

    tags: bool = setting(
        "Adds an entry ``duets`` to every trial's config, which Tune's tables and "
        "dashboards show: ``active_share`` (of the space that is left), ``reals`` (numbers "
        "sent so far, an agent), and of a draw its ``agent`` and ``epoch``. The trainable "
        "gets it too, so leave it off for one that passes its whole config on.",
        default=False,
    )
    seed: WholeNumber | None = setting(
        "The number behind all coins, an integer >= 0; never drives noise.", default=None
    )


class DUETSSearch(Published, RewardSearch):
    """Many workers that share one objective and send each other little.

    N agents explore by epochs: each evaluates points that its coin draws uniformly from what is
    left of the space, and after an epoch every agent drops what is certainly not the best. The
    trials that run at the same time are the agents: a free worker takes a draw of the open
    epoch. A draw whose trial fails is evaluated again at the same point, three times at most, and
    then counts as the worst value of its epoch. While the last draws of an epoch are out, and
    after ``n_trials``, further trials evaluate the most promising points that are not evaluated
    yet: no worker waits. Those points do not inform the epochs, so an epoch's outcome does not
    depend on which worker was fast; ``recommend`` uses them.

    Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
    Uniform Sampling with Shared Randomness*. As published it is
    ``DUETSSearch.paper(N, n_trials=N * T)``.

    With a finite ``epsilon`` every reward is privatised in the worker that evaluates it: wrap the
    trainable with ``search.private``.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.

    Example:
        >>> from ray import tune
        >>> search = DUETSSearch(4, n_trials=64, metric="score", mode="max", seed=1)
        >>> # results = tune.Tuner(
        >>> #     lambda config: {"score": 1 - abs(config["x"] - 0.5)},
        >>> #     param_space={"x": tune.uniform(0, 1)},
        >>> #     tune_config=tune.TuneConfig(
        >>> #         search_alg=search, num_samples=64, max_concurrent_trials=4
        >>> #     ),
        >>> # ).fit()
        >>> # search.recommend(), search.status()["active_share"]
    """

    _PUBLISHED = PUBLISHED

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        mechanism, scale = given.made()
        config = part(given, DUETSConfig, **scale)
        self._tagged: bool = bool(given.tags)
        self._tags: dict[str, dict[str, Any]] = {}
        super().__init__(DUETS, config, mechanism, given)
        self._check_tag(self._param_space)

    def _check_tag(self, param_space: Mapping[str, Any]) -> None:
        if self._tagged and TAG in param_space:
            raise ValueError(
                f"The search space holds {TAG!r}, under which tags=True says what a trial is: "
                "give it another name, or use tags=False."
            )

    # Tune's hooks ---------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Takes what the Tuner knows; False if it holds another space than the search's own.

        Raises:
            ValueError: If the space holds the name under which tags are shown.
        """
        self._check_tag(config)
        before = self._mode
        taken = super().set_search_properties(metric, mode, config, **spec)
        if self._mode != before:  # what counted as the worst would count as the best
            self._scheduler = {**self._scheduler, "lost": []}
        self._tags.clear()
        return taken

    def _suggestion(self, trial_id: str) -> dict[str, Any]:
        suggestion = super()._suggestion(trial_id)
        if not self._tagged:
            return suggestion
        if trial_id not in self._tags:
            self._tags[trial_id] = self._tag(self._evaluations.get(trial_id))
        return {**suggestion, TAG: dict(self._tags[trial_id])}

    @property
    def _parameters(self) -> set[str]:
        return super()._parameters | ({TAG} if self._tagged else set())

    def _tag(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """Returns the tag of a trial in Tune; it stays the same if the trial asks again."""
        now = self._duets()
        tag = {"active_share": now.public_state.active.share, "reals": now.communication.per_agent}
        if evaluation is None or evaluation.draw is None:
            return tag
        return {"agent": evaluation.agent, "epoch": evaluation.epoch, **tag}

    def _evaluation(self, space: TuneSpace) -> Evaluation | None:
        """A listed point, a free draw, one that a restore has dropped, or a spare."""
        if self._points:
            return Evaluation(space.take_first(self._points))
        draws = self._learned(space)
        evaluation = draws.next(self._asked, self._out(self._live))
        if evaluation is None or evaluation.draw is not None:
            return evaluation
        # Of the trials that are out, a restore may have dropped those that have not reported yet.
        dropped = draws.next(self._asked, self._out(self._here))
        return evaluation if dropped is None or dropped.draw is None else dropped

    def _complete(self, trial_id: str, x: Array | None, result: Row, error: bool) -> bool:
        self._tags.pop(trial_id, None)
        return super()._complete(trial_id, x, result, error)

    # What the user reads --------------------------------------------------------------------

    def _duets(self) -> DUETS:
        """The algorithm after everything that trials have shown.

        Raises:
            ValueError: If the space is not known yet.
        """
        if self._space is None:
            raise ValueError("There is nothing to show yet: the search knows no space.")
        return cast(DUETS, self._learned(self._space).algorithm)

    def history(self) -> list[Epoch]:  # type: ignore[override]
        """Returns what each epoch has led to: inducing set, what is left, numbers sent."""
        return list(self._duets().history) if self._read_results() else []

    def status(self) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready; with a known space DUETS' own progress too.

        The keys are those of :func:`privbo_plugins.status.status`, then DUETS' own.
        """
        known = {} if self._space is None else self._duets().status()
        return super().status() | known

    def finished(self) -> bool:
        """Tells whether the last epoch has closed; never without ``n_trials=``."""
        return bool(self._read_results()) and self._duets().finished

    def _summary(self) -> dict[str, Any] | None:
        return None if self._space is None else self.status()
