"""What the host of a run on per-record losses can be asked.

Trials send their losses to it through :mod:`raytune_searchers._channel`, and get the released
value back.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray.cloudpickle as cloudpickle
import ray.experimental.internal_kv as kv
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import CentralConfig
from privbo_plugins.errors import BudgetExceededError, PrivacyError
from privbo_plugins.groups import Unit
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.sealing import Message
from privbo_plugins.sessions.reader import Published
from privbo_plugins.sessions.records import Session
from privbo_plugins.shown import TrialRecord
from privbo_plugins.spaces import Space
from privbo_plugins.store.run import stored_settings
from raytune_searchers._channel import KV, LOSSES, RELEASE, UNWATCHED, Entry
from raytune_searchers.hosts.base import RunHost, Settings, by_name, remember

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Everything public that a host needs to start or join a run.

    Attributes:
        config: The algorithm's settings.
        maximize: Whether per-record values are scores.
        seed: Drives designs.
        metric: Under which name trials report.
        space: With descriptions instead of choices.
        choices: The pickled space of the driver, for trials only; the host never opens it.
        adopt_trials: Whether a run that exists keeps its own n_trials: nobody gave one, and what
            Tune says of its number of samples differs between a fit and a restore.
        unit: What one entry of a vector is.
        watched: Whether the searcher is somebody else's: then a trial runs only while somebody of
            ours compares what is shown of it, and only before the plan's end.
    """

    config: CentralConfig
    maximize: bool
    seed: int | None
    metric: str
    space: Space
    choices: bytes
    adopt_trials: bool = False
    watched: bool = False
    unit: Unit = field(default_factory=Unit)


class LossHost(RunHost[Session]):
    """The host of a run on per-record losses."""

    missing = LOSSES
    fixed = ("config", "maximize", "metric", "space", "unit")
    operations = RunHost.operations | by_name(
        "finished ask record watch unwatch tell_plain ledger",
        "enter expect_records tell release_score",
        "session.place session.fail session.purge session.charge_training session.run.give_back",
    )

    def open(self) -> Session:
        """Begins the run in the vault, or joins it."""
        key, vault = f"ray/{self.settings.run}", self.open_vault()
        s: RunSettings = self.settings
        stored = stored_settings(vault, key)
        if stored is not None:
            s = self.settings = _adopting(s, type(s.config).from_dict(stored["config"]))
        session = Session.open(
            vault, key, s.config, maximize=s.maximize, seed=s.seed, noise=self.noise, unit=s.unit
        )
        session.set_space(s.space)
        remember(session.run, s.seen)
        return session

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: RunSettings) -> tuple[str, tuple[str, ...]]:
        """As every host of a run; the number of trials may be the run's own.

        Raises:
            ValueError: If the driver's settings are not those of the run.
            VaultError: If it has seen more of the run.
        """
        _ = self.session  # whose own number of trials may have been adopted
        own: RunSettings = self.settings
        settings = _adopting(settings, own.config)
        if settings.watched != own.watched:
            raise ValueError(
                "This run is held by a search of its own, which suggests its trials, and "
                "private_trainable goes on with runs of private_trainable only (or the other way "
                "round). Close the one before the other goes on, or give another run_name=."
            )
        return super().join(settings)

    def finished(self) -> bool:
        """Tells whether the plan is used up."""
        self.session.refresh()
        return self.session.finished

    def ask(self, trial: str, beyond: bool) -> tuple[str, Array | None]:
        """("ask", point), ("wait", None) or ("finished", None); beyond the plan none waits."""
        session = self.session
        if self.finished():
            return "finished", None
        proposal = session.ask_planned(trial, beyond=beyond)
        if proposal is None:
            return ("finished" if session.finished else "wait"), None
        return "ask", proposal.x

    def record(self, trial: str, operations: Collection[str] = ()) -> TrialRecord:
        """Returns the record of a trial, and which of some operations it declared public."""
        value, beside = self._shown(trial)
        return self.record_of(trial, operations, value, self.session.run.entered(trial), beside)

    def _shown(self, trial: str) -> tuple[float | None, dict[str, float]]:
        """Returns what was released of a trial, and what else by the name that shows it."""
        found: Published | None = self.session.published([trial]).get(trial)
        return (None, {}) if found is None else (found.value, found.beside(RELEASE))

    def tell_plain(self, trial: str, x: Array, value: float) -> None:
        """Takes the plain float of an unprotected trial."""
        space: Space = self.settings.space
        self.session.tell_plain(trial, space.decode(x), space, value)

    def claim(self, reasons: list[str]) -> Guarantee:
        """Claims what the ledger allows."""
        return self.session.guarantee(reasons)

    def unused(self) -> list[str]:
        """Returns that no trial was private, if so."""
        watched = self.settings.watched
        inside = "of private_trainable has run" if watched else "has run inside search.private"
        return [] if self.session.run.entered() else [f"no trial {inside}"]

    def facts(self) -> dict[str, Any]:
        """Returns plan, recommendation, and how many trials have a value."""
        session = self.session
        recommendation: Array | None = None
        shortfall = ""
        with suppress(ValueError):  # nothing has been released yet
            recommendation, shortfall = session.recommended_point()
        return {
            "done": session.run.n_told(),
            "recommendation": recommendation,
            "shortfall": shortfall,
            "comparison": None if recommendation is None else session.comparison(),
            "plan": session.plan,
            "finished": self.finished(),
        }

    def details(self) -> dict[str, Any]:
        """Returns releases, and what was declared public."""
        session = self.session
        published = session.published()
        return {
            "history": session.history(),
            "published": {trial: shown.value for trial, shown in published.items()},
            "beside": {t: known for t, one in published.items() if (known := one.beside(RELEASE))},
            "vouched": session.run.declared_public(),
        }

    def ledger(self) -> tuple[list[Any], list[Any], list[str]]:
        """Charges, releases, and trials whose raw losses are still held."""
        session = self.session
        return session.ledger(), session.releases(), session.run.held_losses()

    # Trials of which a driver compares what they show, in the cluster's own memory -----------

    # A host that takes another's place finds them there; a driver that takes another's place is
    # another job, so what the earlier one has watched counts for nothing.

    def watch(self, trial: str, job: str) -> None:
        """From now on the driver of a job compares what is shown of a trial."""
        kv._internal_kv_put(self._watched(trial), job.encode(), overwrite=True, namespace=KV)

    def unwatch(self, trial: str) -> None:
        """Records that no callback compares a trial's rows any more."""
        kv._internal_kv_del(self._watched(trial), namespace=KV)

    def _watched(self, trial: str) -> bytes:
        return f"watched/{self.name}/{trial}".encode()

    def _covers(self, trial: str, job: str, attempt: str) -> bool:
        """Checks whether the driver of a job does; from now on it does so for this attempt alone.

        A driver that ends without a word may leave one behind, and whoever takes the trial up
        again in its place has to begin it anew.
        """
        found = kv._internal_kv_get(self._watched(trial), namespace=KV)
        told, own = None if found is None else found.decode(), f"{job}/{attempt}"
        if told == job:
            self.watch(trial, own)
        return told in (job, own)

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
        s: RunSettings = self.settings
        if s.watched and not self._covers(trial, job, attempt):
            raise PrivacyError(UNWATCHED)
        self.check_kind()
        value, x = self.session.enter(trial)
        if value is None and s.watched and self.finished():
            raise BudgetExceededError(
                "The budget of this run is spent: as many trials were released as n_trials= of "
                "private_trainable says. Give num_samples= of TuneConfig the same number. "
                "Nothing was evaluated or charged."
            )
        if value is None:
            self.session.charge_training(f"{trial}/{attempt}")
        details = s.choices, x, getattr(s.config, "scores", None)
        beside = {} if value is None else self._shown(trial)[1]
        return Entry(s.metric, value, self.declared(trial, value), details, beside)

    def expect_records(self, run: str, message: Message) -> None:
        """Says whose losses the driver's trials tell, in which order, and which rows are whose."""
        labels, groups = self.read(message, "expect_records", run)
        self.session.labels.expect(labels)
        self.session.groups = groups

    def tell(self, trial: str, message: Message, x: Array) -> tuple[float, dict[str, float]]:
        """Tells the losses of a trial: (what may be published, and what beside it by name)."""
        losses, index = self.read(message, "tell", trial)
        space: Space = self.settings.space
        told = self.session.tell(trial, space.decode(x), space, losses, index=index)
        return told.value, told.beside(RELEASE)

    def release_score(self, run: str, message: Message) -> tuple[float, float]:
        """Releases a last score of the model that was chosen: (estimate, standard deviation)."""
        pickled, rows, index = self.read(message, "release_score", run)
        score = cloudpickle.loads(pickled)
        return self.session.release_score(score, rows, index)


def _adopting(settings: RunSettings, own: CentralConfig) -> RunSettings:
    if not settings.adopt_trials:
        return settings
    return replace(settings, config=settings.config.with_trials(own.n_trials))
