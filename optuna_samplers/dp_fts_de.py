"""DP-FTS-DE as an Optuna sampler: one study is one agent of a federation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from optuna_samplers._sampler import OfStudy, StudySampler, Wanted
from optuna_samplers._scheduler import value_of
from optuna_samplers._settings import SpaceSettings
from optuna_samplers._space import to_space
from optuna_samplers._study import JOINED_ATTR, completed, next_number, show_guarantee, whole
from privbo_plugins.algorithms.dp_fts_de.plan import FederationPlan, make_federation_plan
from privbo_plugins.errors import FederationError, SpaceChangedError, warn
from privbo_plugins.federation import Alone, Link, Participant
from privbo_plugins.plots import FederationHistory, Report
from privbo_plugins.privacy.guarantee import FederationGuarantee, PrivacyGuarantee
from privbo_plugins.reports import federation_report
from privbo_plugins.sessions.scheduler import Attempt
from privbo_plugins.settings import setting, settings, takes
from privbo_plugins.spaces import Space
from privbo_plugins.status import status

Array = NDArray[np.float64]


_ANOTHER_SPACE = (
    "The parameters that all trials of this study have in common have changed, so the agent has "
    "left the federation, which tunes others, and goes on alone."
)


@dataclass(eq=False)
class _Agent(OfStudy):
    """What one sampler object keeps of one study."""

    participant: Participant | None = None


@settings(eq=False)
class _Settings(SpaceSettings):
    """Keywords of :class:`DPFTSDESampler`."""

    link: Link = setting(
        "The way to the server: ``server.connect(agent)`` in its process, or "
        "``connect(invitation)`` in another.",
        kw_only=False,
    )


class DPFTSDESampler(StudySampler[_Agent]):
    """One agent of a federation: learns from its own study and from the server's broadcasts.

    The study is this agent's secret: its points and exact values are stored as Optuna always
    does, so keep it where only the agent can read. What leaves the agent is one vector a round,
    to the server that it trusts; what others receive is covered by :meth:`guarantee`.

    Trials before ``config.n_startup`` lie in the agent's own sub-region. From then on every trial
    is a round: the agent sends a vector drawn from its posterior, waits until the server releases
    the round (at most its deadline), and evaluates a point that its own model or the broadcast
    chooses.
    Once the server has released all its rounds, or cannot be reached, the agent goes on alone.

    Source: Dai, Low and Jaillet, *Differentially Private Federated Bayesian Optimization with
    Distributed Exploration*, Algorithm 2.

    {settings}

    Raises:
        ValueError: If ``search_space`` holds nothing that varies.
        SpaceChangedError: If the other agents tune another space.

    Warns:
        UtilityWarning: If there are so few agents that the noise is likely to drown the signal.

    Example:
        >>> import optuna
        >>> from optuna_samplers import FederatedServer, FederationConfig
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> server = FederatedServer(FederationConfig(n_agents=1, epsilon=4.0, n_rounds=2))
        >>> sampler = DPFTSDESampler(server.connect(0), seed=0)
        >>> study = optuna.create_study(sampler=sampler)
        >>> study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=14)
        >>> sampler.guarantee(study).n_released
        2
    """

    _OWN_STUDY = True

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        if not hasattr(given.link, "collect"):
            raise ValueError(
                f"link must be as of server.connect(agent), got a {type(given.link).__name__}."
            )
        self.link = given.link
        super().__init__(given)
        FederationPlan(self.link.config, (), ()).warn_if_noise_dominates()
        space = to_space(self._search_space or {})
        if space is not None:
            self.link.join(space.to_dict())
        self.quiet = False
        """Whether trials use what was received without sending anything."""

    def _new_state(self, study: Study) -> _Agent:
        return _Agent()

    @property
    def n_startup(self) -> int:
        """Trials before the first round."""
        return self.link.config.n_startup

    # Optuna's hooks -------------------------------------------------------------------------

    def reseed_rng(self) -> None:
        """New seeds for points and draws."""
        super().reseed_rng()
        with self._lock:
            for of_storage in self._states.values():
                for own in of_storage.values():
                    if own.participant is not None:
                        own.participant.reseed(self._seed)

    def _suggest(self, study: Study, trial: FrozenTrial, wanted: Wanted) -> dict[str, Any]:
        """Returns the next point, once the server has released the round."""
        space = to_space(wanted)
        if space is None:
            return {}
        participant = self._participant(study, space)
        history = _history(study, space)
        x = participant.next_point(*history, trial.number, takes_part=not self.quiet)
        return space.decode(x)

    def _participant(self, study: Study, space: Space) -> Participant:
        with self._lock:
            own = self._state(study)
            known = own.participant
            if known is None or known.space != space:
                known = self._joined(study, space)
                if not isinstance(known.link, Alone) or known.link.for_good:
                    own.participant = known
            return known

    def _joined(self, study: Study, space: Space) -> Participant:
        """Takes part if it can; an agent that took part before goes on alone if it cannot."""
        storage, study_id = study._storage, study._study_id
        try:
            joined = self._made(study, self.link, space)
            storage.set_study_system_attr(study_id, JOINED_ATTR, True)
            return joined
        except FederationError as error:
            alone, why = Alone(self.link, for_good=False), f"This agent goes on alone: {error}"
        except SpaceChangedError:
            if JOINED_ATTR not in storage.get_study_system_attrs(study_id):
                raise
            self.leave()
            alone, why = Alone(self.link), _ANOTHER_SPACE
        warn(why, UserWarning)
        return self._made(study, alone, space)

    def _made(self, study: Study, link: Link, space: Space) -> Participant:
        maximize = study.direction == StudyDirection.MAXIMIZE
        return Participant(link, space, maximize=maximize, seed=self._seed)

    # What the user writes and reads ---------------------------------------------------------

    def send(self, study: Study) -> None:
        """Sends the vector of the study's next trial, without waiting for the round.

        For loops over many studies in one thread (:func:`optuna_samplers.run_federated`), where
        every agent has to send before one can wait.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        study, space = whole(study), self._known_space(study)
        if space is not None:
            self._participant(study, space).send(*_history(study, space), next_number(study))

    def leave(self) -> None:
        """Says that this agent sends nothing for now, so that rounds need not wait for it."""
        with suppress(FederationError):  # an absent server does not wait
            self.link.leave()

    def recommend(self, study: Study) -> dict[str, Any]:
        """The agent's own best trial's parameters: its values are exact, and its own.

        Raises:
            ValueError: If no trial has completed.
        """
        return dict(whole(study).best_trial.params)

    def guarantee(self, study: Study | None = None) -> FederationGuarantee:
        """Claims what holds for the server's broadcasts, and shows it in a study that is given.

        Raises:
            FederationError: If the server cannot be reached.
        """
        guarantee = self.link.guarantee()
        if study is not None:  # whose name is the agent's own, and is left out
            show_guarantee(whole(study), guarantee)
        return guarantee

    def history(self, study: Study | None = None) -> FederationHistory:
        """Returns what the server has broadcast, and nothing of this agent's own trials.

        Args:
            study: Not needed: what is broadcast is the same for all agents.

        Raises:
            FederationError: If the server cannot be reached.
        """
        from privbo_plugins.sessions.broadcasts import published

        return published(self.link.config, self.link.broadcasts())

    def plan(self, *, seconds_per_trial: float | None = None) -> FederationPlan:
        """Tells what the federation releases and costs each agent, from its public settings.

        Args:
            seconds_per_trial: How long a trial takes, if you know it: then the plan says how long
                all rounds do, where every agent has a process of its own.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        config = self.link.config
        return make_federation_plan(config).presented(seconds_per_trial, config.n_agents)

    def finished(self, study: Study | None = None) -> bool:
        """Checks whether the server has released all its rounds: agents go on alone.

        Args:
            study: Not needed: rounds are the same for all agents.

        Raises:
            FederationError: If the server cannot be reached.
        """
        guarantee = self.link.guarantee()
        return guarantee.n_released >= guarantee.n_rounds

    def status(self, study: Study | None = None) -> dict[str, Any]:
        """Tells where the rounds stand, JSON-ready: see :func:`privbo_plugins.status.status`.

        Nothing of this agent's own trials is in it.

        Args:
            study: Shows the guarantee as well, if one is given.

        Raises:
            FederationError: If the server cannot be reached.
        """
        guarantee = self.guarantee(study)
        return status(guarantee, guarantee.n_released, guarantee.n_rounds)

    def _values_are(self, study: Study, guarantee: PrivacyGuarantee) -> str:
        return (
            "They are exact and this agent's own secret, as the whole study is: do not share it. "
            "The guarantee is for what the server broadcasts, and so are the pictures."
        )

    def _page(self, study: Study) -> Report:
        history = self.history()
        title = f"Federation report of agent {self.link.agent}"
        return federation_report(title, self.guarantee(study), history)


def _history(study: Study, space: Space) -> tuple[Array, Array]:
    """Points (n, D) and values (n,) of the study's completed trials in this space."""
    points, values = [], []
    for trial in completed(study):
        value = value_of(trial)
        shown = Attempt(trial.number, trial.params, "ended", value).evaluation(space)
        if shown is not None and value is not None:
            points.append(shown.x)
            values.append(value)
    return np.array(points).reshape(-1, len(space)), np.array(values, dtype=float)
