"""The systems of the matrix: how each is set up for a small experiment, and when one is sound."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune

from raytune_searchers import (
    DPFTSDESearch,
    DPGIBOSearch,
    DUETSSearch,
    FederationConfig,
    LDPGPUCBSearch,
    POGPUCBSearch,
    answering,
)
from tests.contracts import tune_trials as trials
from tests.contracts.tune_trials import PUBLIC, Quiet, is_number
from tests.inside import call_host, published_by

LINE = {"x": tune.uniform(0.0, 1.0)}

NOTHING = [(), ("no trial has run inside search.private",)]
"""A guarantee's reasons before anything was released."""


@dataclass
class Job:
    """One small experiment.

    Attributes:
        folder: Where everything lies; the experiment itself in ``folder``/results/run.
        search: The searcher.
        trainable: What the Tuner is given.
        space: The Tuner's ``param_space``.
        trials: Of a whole run in which nothing goes wrong.
        num_samples: What Tune is told; -1 where the search ends by itself.
        answers: The way to a curator, if there is one.
        body: What ``search.private`` has wrapped; None where nothing is wrapped.
        unseen: So many rounds of agents may be done although no result shows them.
    """

    folder: Path
    search: Any
    trainable: Any
    space: Mapping[str, Any]
    trials: int
    num_samples: int = -1
    answers: Any = None
    body: Any = None
    unseen: int = 0

    @property
    def results(self):
        return self.folder / "results"

    def tuner(self, *, search=None, trainable=None, run=None, **settings):
        """A quiet Tuner for it.

        Args:
            search: Instead of the search itself: one that is wrapped.
            trainable: Likewise.
            run: Of ``RunConfig``.
            settings: Of ``TuneConfig``.
        """
        own = {"search_alg": search or self.search, "num_samples": self.num_samples}
        where = {"storage_path": str(self.results), "name": "run", "verbose": 0}
        return tune.Tuner(
            trainable or self.trainable,
            param_space=dict(self.space),
            tune_config=tune.TuneConfig(**(own | {"reuse_actors": True} | settings)),
            run_config=tune.RunConfig(**(where | dict(run or {}))),
        )

    @property
    def path(self):
        """The experiment's own folder."""
        return self.results / "run"

    def restored(self, **flags):
        """A Tuner that goes on with the experiment; the search is the one that it has saved."""
        self.search = type(self.search).from_experiment(self.path)
        if self.body is not None:
            self.trainable = self.search.private(self.body)
        return tune.Tuner.restore(str(self.path), self.trainable, **flags)

    def close(self):
        """Ends its actors."""
        for one in (self.search, self.answers):
            if hasattr(one, "close"):
                one.close()


@dataclass(frozen=True)
class System(ABC):
    """One searcher.

    Attributes:
        name: The class, for the table.
        metric: Under which results show what is released.
        public: What a scheduler may look at.
    """

    name: str
    metric: str
    public: str = PUBLIC

    def interrupted(self, driver):
        """What a trial does in an experiment that Ctrl+C ends."""
        return trials.Interrupts(driver, 2.0 if self.name == "DPFTSDESearch" else 600.0)

    @contextmanager
    def job(self, folder, before=None, *, vault=None, **more):
        """An experiment whose actors end with the block.

        Args:
            folder: An empty one.
            before: What a trial does before it returns.
            vault: As the search's.
            more: Settings of the search.
        """
        for part in ("results", "secret"):
            (folder / part).mkdir(exist_ok=True)
        made = self._job(folder, before or Quiet(), {"vault": vault} | more)
        try:
            yield made
        finally:
            made.close()

    @abstractmethod
    def _job(self, folder, before, settings): ...

    def epochs(self, n, bad=-1):
        """What a trial does that shows a scheduler something so often, where it can."""
        return trials.Reports(n, bad) if self.public == PUBLIC else Quiet()

    def values(self, results):
        """What results show, by trial."""
        shown = {r.metrics["trial_id"]: r.metrics.get(self.metric) for r in results if r.metrics}
        return {trial: value for trial, value in shown.items() if is_number(value)}

    def check(self, job, results, *, released=None):
        """Results show releases and nothing else, the ledger agrees, the run is protected.

        Args:
            job: The experiment.
            results: Its ``ResultGrid``.
            released: So many trials have shown something; None for a whole run.
        """
        wanted = job.trials if released is None else released
        guarantee = job.search.guarantee(results)
        if wanted or guarantee.protected:
            assert guarantee.protected, guarantee
        else:  # nothing has happened of which anything could be claimed
            assert tuple(guarantee.reasons) in NOTHING, guarantee
        self._check_values(job, results, wanted)
        self._check_ledger(job, guarantee, wanted)

    def _check_values(self, job, results, wanted):
        shown = self.values(results)
        assert len(shown) == wanted, (len(shown), wanted)
        released = published_by(job.search)
        assert shown == {trial: released[trial] for trial in shown}

    @abstractmethod
    def _check_ledger(self, job, guarantee, wanted): ...


@dataclass(frozen=True)
class Records(System):
    """DP-GIBO: a start point, one step and two points to compare, five trials.

    Values have so much noise that they name no third point.
    """

    mu: float = 1.0
    plan: int = 5

    def _job(self, folder, before, settings):
        own = {
            "n_starts": 1, "n_steps": 1, "value_share": 0.005, "seed": 3, "lengthscale": 0.25,
            "memory": 0,
        }  # fmt: skip
        search = DPGIBOSearch(self.mu, metric=self.metric, mode="min", **(own | settings))
        body = trials.Losses(folder, before)
        return Job(folder, search, search.private(body), LINE, self.plan, body=body)

    def _check_ledger(self, job, guarantee, wanted):
        charges, releases, held = call_host(job.search, "ledger")
        assert sorted((c.kind, c.key) for c in charges) == sorted(
            (r.kind, r.key) for r in releases
        )
        paid = sum(c.mu**2 for c in charges)
        if wanted < job.trials:
            assert paid <= self.mu**2 + 1e-9
            return
        assert abs(paid - self.mu**2) < 1e-9
        assert held == []
        assert set(job.search.recommend()) == {"x"}


@dataclass(frozen=True)
class Rewards(System):
    """A search on privatised rewards: three trials, a user each."""

    make: Callable[..., Any] = LDPGPUCBSearch
    epsilon: float = 1.0

    def _job(self, folder, before, settings):
        own = {"value_range": (0.0, 1.0), "mechanism": "laplace", "seed": 3, "mode": "max"}
        made = self.make(epsilon=self.epsilon, metric=self.metric, **(own | settings))
        body = trials.Reward(folder, before)
        return Job(folder, made, made.private(body), LINE, 3, num_samples=3, body=body)

    def _check_ledger(self, job, guarantee, wanted):
        rows = [row for row in call_host(job.search, "ledger") if row[-1] is not None]
        assert [epsilon for _, _, epsilon, _, _ in rows] == [
            self.epsilon
        ] * guarantee.n_evaluations
        assert 0 <= len(rows) - wanted <= (wanted < job.trials)  # one that Tune has not seen
        if wanted:
            assert guarantee.epsilon_evaluation == self.epsilon
            assert set(job.search.recommend()) == {"x"}


@dataclass(frozen=True)
class Agents(System):
    """DP-FTS-DE: two agents of two trials each, one round."""

    epsilon: float = 4.0

    def _job(self, folder, before, settings):
        config = FederationConfig(
            n_agents=2, epsilon=self.epsilon, n_rounds=1, n_startup=1, n_features=20
        )
        own = {"search_space": dict(LINE), "n_trials": 2, "seed": 1, "deadline": 300.0}
        if settings.get("vault") is not None:
            own["agent_vaults"] = f"sqlite:///{folder}/secret/{{agent}}.db"
        search = DPFTSDESearch(config, **(own | settings))
        body = trials.OfAgent(folder, before)
        return Job(folder, search, search.private(body), {}, 4, body=body)

    def values(self, results):
        tags = {"agent", "round", self.metric}
        return {
            r.metrics["trial_id"]: r.metrics[self.metric]
            for r in results
            if tags <= set(r.metrics or ())
        }

    def _check_values(self, job, results, wanted):
        assert len(self.values(results)) == wanted
        told = [r.metrics for r in results if not r.error and "agent" in (r.metrics or {})]
        done = {(metrics["agent"], metrics["round"]) for metrics in told}
        assert done <= {(agent, number) for agent in (0, 1) for number in (1, 2)}
        if wanted >= job.trials:
            assert len(done) >= job.trials - job.unseen

    def _check_ledger(self, job, guarantee, wanted):
        assert guarantee.epsilon <= self.epsilon
        assert guarantee.epsilon_spent <= guarantee.epsilon * (1 + 1e-9)
        assert len(call_host(job.search, "ledger")) == guarantee.n_released
        if wanted >= job.trials:
            assert guarantee.n_released == guarantee.n_rounds == 1


def make_curator(folder, vault):
    """Three rows, each with a secret outcome that is randomised when it is told."""
    from privbo_plugins.sessions.rows import Curator

    return Curator(
        np.linspace(0.1, 0.9, 3)[:, None],
        epsilon=8.0,
        delta=1e-3,
        bounds=[(0.0, 1.0)],
        outcomes=lambda _: float(trials.secret(folder, 1)[0]),
        outcome_epsilon=2.0,
        outcome_range=(0.0, 1.0),
        vault=vault,
    )


@dataclass(frozen=True)
class Table(System):
    """PO-GP-UCB: a table of three rows, of which each is asked for once."""

    def _job(self, folder, before, settings):
        answers = answering(functools.partial(make_curator, folder, settings.pop("vault")))
        table = answers.release().save(folder / "secret" / "table.npz")
        known = {"lengthscale": 0.3, "signal_variance": 0.1, "noise_variance": 1e-2}
        search = POGPUCBSearch(table, metric=self.metric, mode="max", seed=1, **(known | settings))
        trainable = trials.Answer(folder, before, answers)
        return Job(folder, search, trainable, {}, 3, answers=answers)

    def _check_values(self, job, results, wanted):
        shown = self.values(results)
        assert len(shown) == wanted
        rows = {r.metrics["trial_id"]: r.config["row"] for r in results if r.metrics and r.config}
        assert shown == {trial: job.answers(rows[trial]) for trial in shown}

    def _check_ledger(self, job, guarantee, wanted):
        curators = job.answers.guarantee()
        assert curators.protected
        assert guarantee.epsilon == curators.epsilon
        assert min(wanted, 3) <= guarantee.n_answers <= curators.n_answers <= 3
        if wanted:
            assert set(job.search.recommend()) == {"row"}


SYSTEMS = {
    system.name: system
    for system in (
        Records("DPGIBOSearch", "loss"),
        Rewards("LDPGPUCBSearch", "reward"),
        Table("POGPUCBSearch", "answer", public="answer"),
        Agents("DPFTSDESearch", "federation_round", public="federation_round"),
        Rewards(
            "DUETSSearch",
            "reward",
            make=functools.partial(DUETSSearch, 2, n_trials=40, discretisation=64),
        ),
    )
}
"""By the name of the class."""
