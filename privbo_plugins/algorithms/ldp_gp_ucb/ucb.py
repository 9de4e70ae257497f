"""The base of the four algorithms: evaluations in, upper confidence bounds out."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.domain import Arms, Box, make_domain
from privbo_plugins.algorithms.protocols import Evaluation, RewardAlgorithm
from privbo_plugins.algorithms.search import CANDIDATES, Score
from privbo_plugins.models.reward_posterior import RewardPosterior
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]
Predictor = Callable[[Array], tuple[Array, Array]]


class RewardUCB(RewardAlgorithm):
    """Ask/tell over noisy rewards; maximises inside, in either direction of the host.

    Args:
        config: Settings.
        space: The space.
        maximize: Whether larger values are better.
        seed: Drives ties, candidates and dictionaries.
    """

    config: UCBConfig

    def __init__(self, config: UCBConfig, space: Space, **more: Any) -> None:
        super().__init__(config, space, **more)
        self.domain: Arms | Box = make_domain(config, space)
        self._points: list[Array] = []
        self._begin()

    def ask(
        self, key: int, pending: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """The next evaluation; it waits for none of the pending ones."""
        return Evaluation(self._maximiser(key, pending))

    def _maximiser(self, key: int, pending: Sequence[Evaluation]) -> Array:
        points = [self.space.snap(evaluation.x) for evaluation in pending]
        inputs = self.domain.inputs(np.array(points).reshape(-1, len(self.space)))
        return self._best(self._score(inputs), 1, key)

    def _best(self, score: Score, *coins: int) -> Array:
        """The point that maximises a score, with coins of the seed's."""
        rng = np.random.default_rng([self.seed, *coins])
        near = np.array(self._points[-CANDIDATES:]).reshape(-1, len(self.space))
        return self.domain.best(score, near, rng)

    @property
    @abc.abstractmethod
    def beta(self) -> float:
        """Width of the confidence interval of the next evaluation."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Makes a model that has learnt nothing."""

    @abc.abstractmethod
    def _take(self, evaluation: Evaluation, z: Array, reward: float) -> None:
        """Takes in one reward to be maximised, of an input."""

    @abc.abstractmethod
    def _predictor(self, pending: Array) -> Predictor:
        """Mean mu and deviation sigma of f at inputs, with pending ones told their own mean."""

    def _score(self, pending: Array) -> Score:
        """The upper confidence bound mu + beta sigma of inputs, given pending inputs."""
        predict, beta = self._predictor(pending), self.beta

        def ucb(Z: Array) -> Array:
            mu, sigma = predict(Z)
            return mu + beta * sigma

        return ucb

    def mean(self, Z: Array) -> Array:
        """Posterior mean of f at inputs, in the algorithm's unit; for maximisation."""
        return self._predictor(Z[:0])(Z)[0]

    def _learn(self, evaluation: Evaluation, value: float) -> None:
        x = self.space.snap(evaluation.x)
        self._points.append(x)
        self._take(evaluation, self.domain.inputs(x[None])[0], self._reward(value))

    def _recommended(self) -> Array:
        """The point with the largest posterior mean, shape (D,)."""
        return self._best(self.mean, 2)


class ModelUCB(RewardUCB):
    """UCB on a posterior that each reward updates."""

    _model: RewardPosterior

    def _predictor(self, pending: Array) -> Predictor:
        return (self._model.imagining(pending) if len(pending) else self._model).predict
