"""DUETS as a Ray Tune searcher: the trials that run at the same time are its agents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets import ATTEMPTS, DUETS, DUETSConfig
from privbo_plugins.algorithms.duets.algorithm import Epoch
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.privacy.local import DEFAULT_MECHANISM, reward_privacy
from privbo_plugins.privacy.source import NoiseSource
from raytune_searchers._channel import TrialRecord
from raytune_searchers._rewards import RewardSearch
from raytune_searchers._space import TuneSpace

Array = NDArray[np.float64]
Draw = tuple[int | None, int | None, int | None]

TAG = "duets"
"""The config entry that says what a trial is."""

_TAGGED = frozenset(f"config/{TAG}/{name}" for name in ("agent", "epoch", "active_share", "reals"))


class DUETSSearch(RewardSearch):
    """Many workers that share one objective and send each other little.

    N agents explore by epochs: each plays points that its coin draws uniformly from what is left
    of the space, and after an epoch everybody drops what is certainly not the best. The trials
    that run at the same time are the agents: whoever is free takes a draw of the open epoch. A
    draw whose trial fails is played again at the same point, three times at most, and then counts
    as the worst value that is known. While the last draws of an epoch are out, and after
    ``n_trials``, further trials play the most promising points that nobody has played: no worker
    waits. They teach the epochs nothing, so an epoch's outcome does not depend on who was fast;
    ``recommend`` knows them.

    Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
    Uniform Sampling with Shared Randomness*. As published it is
    ``DUETSSearch(N, n_trials=N * T, epochs="paper", trimming="paper", inducing="sampled",
    coins="private", draws="independent", final="uniform", fit=False, constants="theorem")``.

    With a finite ``epsilon`` every reward is privatised in the worker that evaluates it: wrap the
    trainable with ``search.private``.

    Args:
        n_agents: N, number of agents. Trials at the same time may be fewer or more.
        epsilon: Privacy parameter of one reward, > 0; ``math.inf`` leaves rewards as they are.
        bound: Rewards are clipped to [-bound, bound]; optional without privacy.
        reward_range: Or to (low, high). At most one of the two, from public knowledge.
        mechanism: "laplace", "duchi", "piecewise", "hybrid" or "gaussian".
        delta: For "gaussian" only: it is (epsilon, delta)-LDP.
        n_trials: How many trials you plan, for the epochs' lengths; an agent plays
            T = ceil(n_trials / n_agents) of them. None if that is open: then no epoch is the
            last. It does not end the search: give ``num_samples`` to the Tuner.
        first_epoch: Plays of an agent in the first epoch.
        epochs: "doubling", or "paper" for T_j = floor(sqrt(T T_{j-1})), which needs ``n_trials``.
        trimming: "pointwise" drops points whose upper bound is below the best lower bound;
            "paper" takes the largest deviation for every point.
        inducing: "spanning" takes played points until they span the others; "sampled" draws
            them by coin, as published.
        coins: "shared": every party can replay them; "private": the server and the agent can, and
            more numbers are counted as sent. The search plays all parties, and knows every coin.
        draws: "stratified" spreads the draws of an epoch over cells of equal size, or
            "independent" as published.
        final: What the last epoch plays: "top" the most promising points, "best" the most
            promising one, or "uniform" as every other.
        fit: Whether the sizes of signal and noise are estimated from the rewards.
        p0: Oversampling of "sampled", > 0.
        beta: Width of the confidence intervals, in standard deviations; None for the theorem's.
        beta_scale: Multiplies it: smaller drops more, sooner.
        constants: "order", or "theorem" for the width as proven.
        failure: Failure probability of the theorem, in (0, 1).
        B: Bound on the norm of the objective, in units of its standard deviation.
        lam: Noise variance over signal variance, where ``fit`` is off.
        kernel: "rbf" or "matern52", on the unit cube.
        lengthscale: In units of the unit cube; None for 0.2 sqrt(D).
        discretisation: Number of points that stand for the space, >= 16.
        tags: Adds an entry ``duets`` to every trial's config, which Tune's tables and dashboards
            show: ``active_share`` (of the space that is left), ``reals`` (numbers sent so far, an
            agent), and of a draw its ``agent`` and ``epoch``. The trainable gets it too, so leave
            it off for one that passes its whole config on.
        metric: Under which name trials report; None takes ``TuneConfig``'s.
        mode: "max" for rewards, "min" for costs; None takes ``TuneConfig``'s.
        search_space: Tune domains, nested or not; None takes the Tuner's ``param_space``.
        points_to_evaluate: Configurations to evaluate first, beside the agents' draws.
        max_concurrent: The most trials that may be out at once; ``max_concurrent_trials`` of
            ``TuneConfig`` and ``ConcurrencyLimiter`` set it too.
        user_budget: The most epsilon that one user may pay in all; needs
            ``private(trainable, user_id=...)``.
        seed: The number behind all coins, an integer >= 0; never drives noise.
        vault: Where users' plays are counted: None for the memory of an actor on the driver's
            machine, which ends with the driver; ``sqlite:///private.db`` (a file on the driver's
            machine), ``postgresql://user@host/db`` or ``env:NAME`` survive it.
        run: Name of the run in the vault; None makes one. A search with the name of an earlier
            run goes on with its ledger.
        noise: For tests only; what was released with it is reported as unprotected.

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
        >>> # search.recommend(), search.summary()["active_share"]
    """

    def __init__(
        self,
        n_agents: int = DUETSConfig.n_agents,
        *,
        epsilon: float = math.inf,
        bound: float | None = None,
        reward_range: tuple[float, float] | None = None,
        mechanism: str = DEFAULT_MECHANISM,
        delta: float | None = None,
        n_trials: int | None = None,
        first_epoch: int = DUETSConfig.first_epoch,
        epochs: str = DUETSConfig.epochs,
        trimming: str = DUETSConfig.trimming,
        inducing: str = DUETSConfig.inducing,
        coins: str = DUETSConfig.coins,
        draws: str = DUETSConfig.draws,
        final: str = DUETSConfig.final,
        fit: bool = DUETSConfig.fit,
        p0: float = DUETSConfig.p0,
        beta: float | None = DUETSConfig.beta,
        beta_scale: float = DUETSConfig.beta_scale,
        constants: str = DUETSConfig.constants,
        failure: float = DUETSConfig.delta,
        B: float = DUETSConfig.B,
        lam: float = DUETSConfig.lam,
        kernel: str = DUETSConfig.kernel,
        lengthscale: float | None = DUETSConfig.lengthscale,
        discretisation: int = DUETSConfig.discretisation,
        tags: bool = False,
        metric: str | None = None,
        mode: str | None = None,
        search_space: Mapping[str, Any] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int | None = None,
        user_budget: float | None = None,
        seed: int | None = None,
        vault: str | None = None,
        run: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        made, scale = reward_privacy(
            epsilon, bound=bound, reward_range=reward_range, mechanism=mechanism, delta=delta
        )
        if not (isinstance(failure, Real) and 0 < failure < 1):
            raise ValueError(f"failure must lie in (0, 1), got {failure!r}.")
        if epochs == "paper" and n_trials is None:
            raise ValueError(
                'epochs="paper" is floor(sqrt(T T_{j-1})) with T = n_trials / n_agents: give '
                'n_trials=, or use epochs="doubling".'
            )
        config = DUETSConfig(
            **scale,
            n_agents=n_agents,
            first_epoch=first_epoch,
            epochs=epochs,
            horizon=_horizon(n_trials, n_agents),
            trimming=trimming,
            inducing=inducing,
            coins=coins,
            draws=draws,
            final=final,
            fit=fit,
            p0=p0,
            beta=beta,
            beta_scale=beta_scale,
            constants=constants,
            delta=failure,
            B=B,
            lam=lam,
            kernel=kernel,
            lengthscale=lengthscale,
            discretisation=discretisation,
        )
        if seed is not None and not _is_whole(seed, 0):
            raise ValueError(f"seed must be an integer >= 0 or None, got {seed!r}.")
        self._tagged: bool = bool(tags)
        self._tags: dict[str, dict[str, Any]] = {}
        self._failed: dict[Draw, set[str]] = {}
        self._ran: bool = True
        self._hopeless: list[Evaluation] = []
        super().__init__(
            DUETS,
            config,
            made,
            metric=metric,
            mode=mode,
            search_space=search_space,
            points_to_evaluate=points_to_evaluate,
            max_concurrent=max_concurrent,
            user_budget=user_budget,
            seed=seed,
            vault=vault,
            run=run,
            noise=noise,
        )
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
            self._transcript = {**self._transcript, "lost": []}
        self._tags.clear()
        self._failed.clear()
        self._hopeless.clear()
        return taken

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, or None while the limit is out.

        Raises:
            RuntimeError: If metric, mode or search space are not known.
            VaultError: If the ledger is gone.
        """
        suggestion = super().suggest(trial_id)
        if not (self._tagged and isinstance(suggestion, dict)):
            return suggestion
        if trial_id not in self._tags:
            self._tags[trial_id] = self._tag(self._evaluations.get(trial_id))
        return {**suggestion, TAG: dict(self._tags[trial_id])}

    def _tag(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """What Tune shows of a trial; it stays the same if the trial asks again."""
        now = self._duets()
        tag = {"active_share": now.public_state.active.share, "reals": now.communication.per_agent}
        if evaluation is None or evaluation.draw is None:
            return tag
        return {"agent": evaluation.agent, "epoch": evaluation.epoch, **tag}

    def _evaluation(self, space: TuneSpace) -> Evaluation | None:
        """A listed point, a draw that nobody has, one that a restore has dropped, or a spare."""
        if self._points:
            return Evaluation(self._listed(space))
        duets, left_out = self._duets(), self._hopeless
        evaluation = duets.ask(self._asked, [*self._out(self._live), *left_out])
        if evaluation is None or evaluation.draw is not None:
            return evaluation
        # Of the trials that are out, a restore may have dropped those that have not reported yet.
        dropped = duets.ask(self._asked, [*self._out(self._here), *left_out])
        return evaluation if dropped is None or dropped.draw is None else dropped

    def _complete(
        self, trial_id: str, x: Array | None, result: Mapping[str, Any], error: bool
    ) -> None:
        self._tags.pop(trial_id, None)
        evaluation = self._evaluations.get(trial_id)
        super()._complete(trial_id, x, result, error)
        if x is not None and evaluation is not None and trial_id not in self._learnt:
            self._count_attempt(trial_id, evaluation)
        if self._hopeless:
            self._give_up()

    def _audit(self, trial_id: str, result: Mapping[str, Any]) -> TrialRecord:
        record = super()._audit(trial_id, result)
        self._ran = record.entered
        return record

    def _count_attempt(self, trial_id: str, evaluation: Evaluation) -> None:
        """Notes that a trial of a draw has ended without a number, once a trial.

        One that the ledger knows to have been refused says nothing of the draw's point.
        """
        refused = self.mechanism is not None and not self._ran
        if evaluation.draw is None or refused:
            return
        failed = self._failed.setdefault(_draw_of(evaluation), set())
        if trial_id not in failed:
            failed.add(trial_id)
            if len(failed) == ATTEMPTS:
                self._hopeless.append(evaluation)

    def _give_up(self) -> None:
        """Draws that keep failing count as the worst: their epoch would never end.

        Nobody has observed that, so no recommendation rests on it.
        """
        duets = self._duets()
        worst = duets.worst([value for _, value in duets.evaluations])
        if worst is None:
            return
        for evaluation in self._hopeless:
            if _draw_of(evaluation) in duets.open_slots():
                duets.give_up(evaluation, worst)
        self._hopeless.clear()

    # What the ledger is compared with -------------------------------------------------------

    def _shows(self, result: Mapping[str, Any]) -> bool:
        return super()._shows(self._untagged(result))

    def _compare(self, result: Mapping[str, Any], record: TrialRecord) -> None:
        super()._compare(self._untagged(result), record)

    def _untagged(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """A result without the search's own config entry, which Tune repeats in it."""
        if not self._tagged:
            return result
        return {name: value for name, value in result.items() if name not in _TAGGED}

    # What the user reads --------------------------------------------------------------------

    def _duets(self) -> DUETS:
        """The algorithm after everything that trials have shown.

        Raises:
            ValueError: If the space is not known yet.
        """
        if self._space is None:
            raise ValueError("There is nothing to show yet: the search knows no space.")
        return cast(DUETS, self._learned(self._space))

    @property
    def history(self) -> list[Epoch]:  # type: ignore[override]  # older than the others' method
        """What each epoch has led to: its inducing set, what is left, numbers sent."""
        return [] if self._space is None else list(self._duets().history)

    def summary(self) -> dict[str, Any]:
        """Where the run stands, JSON-ready: open epoch, share of the space left, numbers sent.

        Raises:
            ValueError: If the space is not known yet.
        """
        return self._duets().summary()

    def _summary(self) -> dict[str, Any] | None:
        return None if self._space is None else self.summary()


def _draw_of(evaluation: Evaluation) -> Draw:
    return evaluation.epoch, evaluation.agent, evaluation.draw


def _horizon(n_trials: Any, n_agents: Any) -> int | None:
    """T = ceil(n_trials / N), plays of one agent."""
    if n_trials is None:
        return None
    if not _is_whole(n_trials, 1):
        raise ValueError(f"n_trials must be an integer >= 1 or None, got {n_trials!r}.")
    return math.ceil(n_trials / n_agents) if _is_whole(n_agents, 1) else None


def _is_whole(value: Any, least: int) -> bool:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return bool(whole and value >= least)
