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
from privbo_plugins.store.vault import Vault
from raytune_searchers._channel import LOSSES, RELEASE, UNWATCHED, Entry
from raytune_searchers.hosts import base
from raytune_searchers.hosts.base import (
    RUN,
    Host,
    Kind,
    Watch,
    check_kind,
    declared,
    record_of,
    remember,
)

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
        unit: What one entry of a vector is.
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
    unit: Unit = field(default_factory=Unit)


def _opened(host: Host) -> Session:
    key, vault = f"ray/{host.settings.run}", host.open_vault()
    s = host.settings = _adopted(host.settings, vault, key)
    session = Session.open(
        vault, key, s.config, maximize=s.maximize, seed=s.seed, noise=host.noise, unit=s.unit
    )
    session.set_space(s.space)
    remember(session.run, s.seen)
    return session


# The driver's side ------------------------------------------------------------------------------


def _join(host: Host, settings: RunSettings) -> tuple[str, tuple[str, ...]]:
    """As every host of a run; the number of trials may be the run's own.

    Raises:
        ValueError: If the driver's settings are not those of the run.
        VaultError: If it has seen more of the run.
    """
    _ = host.session  # whose own number of trials may have been adopted
    own: RunSettings = host.settings
    if settings.adopt_trials:
        kept = settings.config.with_trials(own.config.n_trials)
        settings = replace(settings, config=kept)
    if settings.watched != own.watched:
        raise ValueError(
            "This run is held by a search of its own, which suggests its trials, and "
            "private_trainable goes on with runs of private_trainable only (or the other way "
            "round). Close the one before the other goes on, or give another run_name=."
        )
    return base.join(host, settings)


def _finished(host: Host) -> bool:
    """Tells whether the plan is used up."""
    host.session.refresh()
    return bool(host.session.finished)


def _ask(host: Host, trial: str, beyond: bool) -> tuple[str, Array | None]:
    """("ask", point), ("wait", None) or ("finished", None); beyond the plan none waits."""
    session: Session = host.session
    if _finished(host):
        return "finished", None
    proposal = session.ask(trial) if beyond else session.ask_planned(trial)
    if proposal is None:
        return ("finished" if session.finished else "wait"), None
    return "ask", proposal.x


def _record(host: Host, trial: str, operations: Collection[str] = ()) -> TrialRecord:
    """Returns the record of a trial, and which of some operations it declared public."""
    value, beside = _shown(host, trial)
    return record_of(host, trial, operations, value, host.session.run.entered(trial), beside)


def _shown(host: Host, trial: str) -> tuple[float | None, dict[str, float]]:
    """Returns what was released of a trial, and what else by the name that shows it."""
    found: Published | None = host.session.published([trial]).get(trial)
    return (None, {}) if found is None else (found.value, found.beside(RELEASE))


def _watch(host: Host, trial: str, job: str) -> None:
    """From now on the driver of a job compares what is shown of a trial."""
    Watch(host.name).begin(trial, job)


def _unwatch(host: Host, trial: str) -> None:
    """Records that no callback compares a trial's rows any more."""
    Watch(host.name).end(trial)


def _tell_plain(host: Host, trial: str, x: Array, value: float) -> None:
    """Takes the plain float of an unprotected trial."""
    space: Space = host.settings.space
    host.session.tell_plain(trial, space.decode(x), space, value)


def _claim(host: Host, reasons: list[str]) -> Guarantee:
    return host.session.guarantee(reasons)  # type: ignore[no-any-return]


def _unused(host: Host) -> list[str]:
    watched = host.settings.watched
    inside = "of private_trainable has run" if watched else "has run inside search.private"
    return [] if host.session.run.entered() else [f"no trial {inside}"]


def _facts(host: Host) -> dict[str, Any]:
    session: Session = host.session
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
        "finished": _finished(host),
    }


def _details(host: Host) -> dict[str, Any]:
    session: Session = host.session
    published = session.published()
    return {
        "history": session.history(),
        "published": {trial: shown.value for trial, shown in published.items()},
        "beside": {t: known for t, one in published.items() if (known := one.beside(RELEASE))},
        "vouched": session.run.declared_public(),
    }


def _ledger(host: Host) -> tuple[list[Any], list[Any], list[str]]:
    """Charges, releases, and trials whose raw losses are still held."""
    session: Session = host.session
    return session.ledger(), session.releases(), session.run.held_losses()


# The trials' side -------------------------------------------------------------------------------


def _enter(host: Host, trial: str, attempt: str, job: str = "") -> Entry:
    """A trial starts; it is charged for its training unless it has been told before.

    Args:
        host: The host.
        trial: The trial.
        attempt: Names this attempt of it and no other.
        job: Of the driver that has begun the trial.

    Raises:
        PrivacyError: If nobody compares what will be shown of it.
        BudgetExceededError: If the plan is used up, and nobody else ends the experiment.
    """
    s: RunSettings = host.settings
    if s.watched and not Watch(host.name).covers(trial, job, attempt):
        raise PrivacyError(UNWATCHED)
    check_kind(host)
    value, x = host.session.enter(trial)
    if value is None and s.watched and _finished(host):
        raise BudgetExceededError(
            "The budget of this run is spent: as many trials were released as n_trials= of "
            "private_trainable says. Give num_samples= of TuneConfig the same number. "
            "Nothing was evaluated or charged."
        )
    if value is None:
        host.session.charge_training(f"{trial}/{attempt}")
    details = s.choices, x, getattr(s.config, "scores", None)
    beside = {} if value is None else _shown(host, trial)[1]
    return Entry(s.metric, value, declared(host, trial, value), details, beside)


def _expect_records(host: Host, run: str, message: Message) -> None:
    """Says whose losses the driver's trials tell, in which order, and which rows are whose."""
    labels, groups = host.read(message, "expect_records", run)
    host.session.labels.expect(labels)
    host.session.groups = groups


def _tell(host: Host, trial: str, message: Message, x: Array) -> tuple[float, dict[str, float]]:
    """Tells the losses of a trial: (what may be published, and what beside it by name)."""
    losses, index = host.read(message, "tell", trial)
    space: Space = host.settings.space
    told: Published = host.session.tell(trial, space.decode(x), space, losses, index=index)
    return told.value, told.beside(RELEASE)


def _release_score(host: Host, run: str, message: Message) -> tuple[float, float]:
    """Releases a last score of the model that was chosen: (estimate, standard deviation)."""
    pickled, rows, index = host.read(message, "release_score", run)
    score = cloudpickle.loads(pickled)
    return host.session.release_score(score, rows, index)  # type: ignore[no-any-return]


VAULT = Kind(
    missing=LOSSES,
    open=_opened,
    fixed=("config", "maximize", "metric", "space", "unit"),
    claim=_claim,
    unused=_unused,
    facts=_facts,
    details=_details,
    operations={
        **RUN,
        "join": _join,
        "finished": _finished,
        "give_back": "run.give_back",
        "ask": _ask,
        "place": "place",
        "record": _record,
        "watch": _watch,
        "unwatch": _unwatch,
        "fail": "fail",
        "tell_plain": _tell_plain,
        "ledger": _ledger,
        "purge": "purge",
        "release_score": _release_score,
        "enter": _enter,
        "charge_training": "charge_training",
        "expect_records": _expect_records,
        "tell": _tell,
    },
)
"""The host of a run on per-record losses."""


def _adopted(settings: RunSettings, vault: Vault, key: str) -> RunSettings:
    stored = stored_settings(vault, key)
    if stored is None or not settings.adopt_trials:
        return settings
    began_with = type(settings.config).from_dict(stored["config"])
    return replace(settings, config=settings.config.with_trials(began_with.n_trials))
