"""The vault's host: one Ray actor that holds a run's session.

Trials send their losses to it through :mod:`raytune_searchers._channel`, and get the released
value back.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import CentralConfig
from privbo_plugins.errors import BudgetExceededError, PrivacyError
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.records import Session
from privbo_plugins.shown import TrialRecord
from privbo_plugins.spaces import Space
from privbo_plugins.store.run import stored_settings
from privbo_plugins.store.vault import Vault
from raytune_searchers._channel import (
    LOSSES,
    UNWATCHED,
    Entry,
)
from raytune_searchers.hosts.base import RunHost, Watch

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RunSettings:
    """Everything public that a host needs to start or join a run.

    Attributes:
        run: Name of the run.
        config: The algorithm's settings.
        maximize: Whether per-record values are scores.
        seed: Drives designs.
        metric: Under which name trials report.
        space: With descriptions instead of choices.
        choices: The pickled space of the driver, for trials only; the host never opens it.
        adopt_trials: Whether a run that exists keeps its own n_trials: nobody gave one, and what
            Tune says of its number of samples differs between a fit and a restore.
        vault_id: Identity of the vault, if it must exist already.
        seen: How far the driver has seen the chain of releases: the vault must hold it.
        watched: Whether the searcher is somebody else's: then a trial runs only while somebody of
            ours compares what is shown of it, and only before the plan's end.
    """

    run: str
    config: CentralConfig
    maximize: bool
    seed: int | None
    metric: str
    space: Space
    choices: bytes
    adopt_trials: bool = False
    vault_id: str | None = None
    seen: tuple[int, str] = (0, "")
    watched: bool = False


class VaultHost(RunHost[Session]):
    """A session and its vault behind one method that never raises.

    Args:
        settings: The run.
        url: Database of the vault; None keeps it in this process.
        noise: Test injection.
    """

    MISSING = LOSSES
    FIXED = ("config", "maximize", "metric", "space")

    def __init__(self, settings: RunSettings, url: str | None, noise: NoiseSource | None) -> None:
        super().__init__(settings, url, noise)
        self._watch = Watch(self.name)

    def _opened(self) -> Session:
        key, vault = f"ray/{self._settings.run}", self._open_vault()
        s = self._settings = _adopted(self._settings, vault, key)
        session = Session.open(
            vault, key, s.config, maximize=s.maximize, seed=s.seed, noise=self._noise
        )
        session.set_space(s.space)
        return session

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: RunSettings) -> tuple[str, tuple[str, ...]]:
        """Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
            VaultError: If it has seen more of the run.
        """
        _ = self._session  # whose own number of trials may have been adopted
        own = self._settings
        if settings.adopt_trials:
            kept = settings.config.with_trials(own.config.n_trials)
            settings = replace(settings, config=kept)
        if settings.watched != own.watched:
            raise ValueError(
                "This run is held by a search of its own, which suggests its trials, and "
                "private_trainable goes on with runs of private_trainable only (or the other way "
                "round). Close the one before the other goes on, or give another run_name=."
            )
        return super().join(settings)

    def finished(self) -> bool:
        """Whether the plan is used up."""
        self._session.refresh()
        return self._session.finished

    def give_back(self, living: frozenset[str]) -> list[str]:
        """Gives back the slots of trials that the driver no longer knows."""
        return self._session.run.give_back(living)

    def ask(self, trial: str, beyond: bool) -> tuple[str, Array | None]:
        """("ask", point), ("wait", None) or ("finished", None); beyond the plan none waits."""
        session = self._session
        session.refresh()
        if session.finished:
            return "finished", None
        proposal = session.ask(trial) if beyond else session.ask_planned(trial)
        if proposal is None:
            return ("finished" if session.finished else "wait"), None
        return "ask", proposal.x

    def place(self, trial: str, x: Array) -> None:
        """Enters a trial at a point that the driver chose."""
        self._session.place(trial, x)

    def record(self, trial: str, operations: Collection[str] = ()) -> TrialRecord:
        """Returns the record of a trial, and which of some operations it declared public."""
        session = self._session
        head = session.run.head()
        shown = session.published([trial]).get(trial)
        return TrialRecord(
            None if shown is None else shown.value,
            session.run.entered(trial),
            session.run.declared_by(trial, operations),
            (head.n, head.digest),
            None if shown is None else shown.draw,
        )

    def watch(self, trial: str, job: str) -> None:
        """From now on the driver of a job compares what is shown of a trial."""
        self._watch.begin(trial, job)

    def unwatch(self, trial: str) -> None:
        """Records that no callback compares a trial's rows any more."""
        self._watch.end(trial)

    def drawn(self, trial: str) -> float | None:
        """The noisy draw of a trial whose published value is an estimate."""
        shown = self._session.published([trial]).get(trial)
        return None if shown is None else shown.draw

    def fail(self, trial: str) -> None:
        """Gives a trial's slot back."""
        self._session.fail(trial)

    def tell_plain(self, trial: str, x: Array, value: float) -> None:
        """Takes the plain float of an unprotected trial."""
        space = self._settings.space
        self._session.tell_plain(trial, space.decode(x), space, value)

    def _guarantee(self, reasons: list[str]) -> Guarantee:
        return self._session.guarantee(reasons)

    def _unused(self) -> list[str]:
        watched = self._settings.watched
        inside = "of private_trainable has run" if watched else "has run inside search.private"
        return [] if self._session.run.entered() else [f"no trial {inside}"]

    def _done(self) -> int:
        return self._session.run.n_told()

    def _details(self) -> dict[str, Any]:
        session = self._session
        session.refresh()
        published = session.published()
        return {
            "history": session.history(),
            "published": {trial: shown.value for trial, shown in published.items()},
            "drawn": {t: shown.draw for t, shown in published.items() if shown.draw is not None},
            "vouched": session.run.declared_public(),
        }

    def _status_of_page(self, unaudited: bool) -> dict[str, Any]:
        session = self._session
        session.refresh()
        recommendation: Array | None = None
        with suppress(ValueError):  # nothing has been released yet
            recommendation = session.recommended_point()
        return {
            **super()._status_of_page(unaudited),
            "recommendation": recommendation,
            "plan": session.plan,
            "finished": session.finished,
        }

    def ledger(self) -> tuple[list[Any], list[Any], list[str]]:
        """Charges, releases, and trials whose raw losses are still held."""
        session = self._session
        return session.ledger(), session.releases(), session.run.held_losses()

    def purge(self) -> None:
        """Deletes every raw loss."""
        self._session.purge()

    # The trials' side -----------------------------------------------------------------------

    def enter(self, trial: str, attempt: str, job: str = "") -> Entry:
        """A trial starts; it is charged for its training unless it has been told before.

        Args:
            trial: The trial.
            attempt: Names this attempt of it and no other.
            job: Of the driver that has begun the trial.

        Raises:
            PrivacyError: If nobody compares what will be shown of it.
            BudgetExceededError: If the plan is used up, and nobody else ends the experiment.
        """
        if self._settings.watched and not self._watch.covers(trial, job, attempt):
            raise PrivacyError(UNWATCHED)
        value, x = self._session.enter(trial)
        if value is None:
            self._refuse_beyond_the_end()
            self._session.charge_training(f"{trial}/{attempt}")
        public = self._declared(trial, value)
        return Entry(self._settings.metric, value, public, (self._settings.choices, x))

    def charge_training(self, attempt: str) -> None:
        """Charges the training of a model that no trial fits."""
        self._session.charge_training(attempt)

    def _refuse_beyond_the_end(self) -> None:
        if self._settings.watched and self.finished():
            raise BudgetExceededError(
                "The budget of this run is spent: as many trials were released as n_trials= of "
                "private_trainable says. Give num_samples= of TuneConfig the same number. "
                "Nothing was evaluated or charged."
            )

    def expect_records(self, run: str, message: Message) -> None:
        """Says whose losses the driver's trials tell, in which order."""
        self._session.labels.expect(self._read(message, "expect_records", run))

    def tell(self, trial: str, message: Message, x: Array) -> float:
        """Tells the losses of a trial, and returns what may be published of them."""
        losses, index = self._read(message, "tell", trial)
        space = self._settings.space
        return self._session.tell(trial, space.decode(x), space, losses, index=index).value


def _adopted(settings: RunSettings, vault: Vault, key: str) -> RunSettings:
    stored = stored_settings(vault, key)
    if stored is None or not settings.adopt_trials:
        return settings
    began_with = type(settings.config).from_dict(stored["config"])
    return replace(settings, config=settings.config.with_trials(began_with.n_trials))
