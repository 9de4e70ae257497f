"""The vault's host: one Ray actor that holds a run's session, and the way to it.

Trials send their losses to the host and get the released value back. The losses travel as direct
arguments of at most :data:`BLOCK_BYTES`: larger ones would pass through Ray's object store, which
is shared memory that may be spilled to disk. Nothing the host raises reaches Ray: a reply carries
the name and the text of an engine error, or no more than a type.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.errors import PrivacyError, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.privacy.noise import NoiseSource
from privbo_plugins.scrub import OWN_ERRORS, own_error
from privbo_plugins.session import SET_BACK, Session
from privbo_plugins.spaces import Space
from privbo_plugins.vault import Vault, open_vault

Array = NDArray[np.float64]

NAMESPACE = "privbo"

BLOCK_BYTES = 2**16
"""Below Ray's limit of 100 kB for arguments that travel inside the call itself."""

_TRIES = 5
_PATIENCE = 12
"""Times a trial looks for a host that ended: about 25 s in all."""

_WARNINGS: dict[str, type[Warning]] = {
    "PrivacyWarning": PrivacyWarning,
    "UtilityWarning": UtilityWarning,
}

LOST = (
    "The vault of this run is gone, and with it the ledger: it lay in the memory of a Ray actor, "
    "which ended with its driver or was killed. Nothing more can be released for this run; what "
    "it has published stays covered by its declared mu. Start a new run with another search "
    "object (on the same records its mu adds to this one's: squares add up), and give it a "
    "database to survive that: vault='sqlite:////private/folder/vault.db' or "
    "'env:NAME_OF_A_VARIABLE_WITH_A_POSTGRESQL_URL'."
)


@dataclass(frozen=True)
class RunSettings:
    """Everything public that a host needs to begin or join a run.

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
        at_least: Releases that the driver has seen: the ledger may not show fewer.
    """

    run: str
    config: GIBOConfig
    maximize: bool
    seed: int | None
    metric: str
    space: Space
    choices: bytes
    adopt_trials: bool = False
    vault_id: str | None = None
    at_least: int = 0


@dataclass(frozen=True)
class Entry:
    """What a trial is told when it begins."""

    metric: str
    choices: bytes
    value: float | None
    x: Array | None
    public: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What the vault knows of a trial that the host framework says has ended."""

    published: float | None
    entered: bool
    vouched: frozenset[str]
    released: int


@dataclass
class _Upload:
    name: str
    blocks: dict[int, bytes] = field(default_factory=dict)


class VaultHost:
    """A session and its vault behind one method that never raises.

    Args:
        settings: The run.
        url: Database of the vault; None keeps it in this process.
        noise: Test injection.
    """

    def __init__(self, settings: RunSettings, url: str | None, noise: NoiseSource | None) -> None:
        self._settings, self._url, self._noise = settings, url, noise
        self._opened: Session | None = None
        self._uploads: dict[str, _Upload] = {}
        self._warnings: list[tuple[str, str]] = []

    def call(self, operation: str, *args: Any) -> tuple[tuple[str, str] | None, Any]:
        """Carries out one operation: ((error's name, text) or None, result)."""
        method: Callable[..., Any] | None = _OPERATIONS.get(operation)
        if method is None:
            return ("ValueError", "The vault's host knows no operation of this name."), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reply = self._safely(method, args)
        for warning in caught:
            if warning.category.__name__ in _WARNINGS:
                self._warnings.append((warning.category.__name__, str(warning.message)))
        return reply

    def _safely(
        self, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[tuple[str, str] | None, Any]:
        try:
            return None, method(self, *args)
        except Exception as error:
            return own_error(error), None

    @property
    def _session(self) -> Session:
        if self._opened is None:
            key, known = f"ray/{self._settings.run}", self._settings.vault_id
            vault = open_vault(self._url, create=known is None)
            if known not in (None, vault.vault_id):
                raise VaultError(LOST)
            s = self._settings = _adopted(self._settings, vault, key)
            session = Session.open(
                vault,
                key,
                s.config,
                maximize=s.maximize,
                seed=s.seed,
                noise=self._noise,
            )
            session.set_space(s.space)
            if session.released < s.at_least:
                raise VaultError(SET_BACK)
            self._opened = session
        return self._opened

    # The driver's side ----------------------------------------------------------------------

    def join(self, settings: RunSettings) -> tuple[str, tuple[str, ...]]:
        """Identity of the vault, and why nothing may be claimed, if so from the start.

        Raises:
            ValueError: If the driver's settings are not those of the run.
        """
        session = self._session
        own = self._settings
        if settings.adopt_trials:
            kept = replace(settings.config, n_trials=own.config.n_trials)
            settings = replace(settings, config=kept)
        differing = [
            name
            for name in ("config", "maximize", "metric", "space")
            if getattr(settings, name) != getattr(own, name)
        ]
        if differing:
            raise ValueError(
                f"This run was begun with another {' and another '.join(differing)}. A budget "
                "cannot change under way: use the same settings, or another run= name (on the "
                "same records its mu adds to this one's: squares add up)."
            )
        if session.released < settings.at_least:
            raise VaultError(SET_BACK)
        return session.vault.vault_id, session.guarantee().reasons

    def finished(self) -> bool:
        """Whether the plan is used up."""
        self._session.refresh()
        return self._session.finished

    def told_warnings(self) -> list[tuple[str, str]]:
        """Warnings since the last call, for the driver to issue."""
        told, self._warnings = self._warnings, []
        return told

    def give_back(self, living: frozenset[str]) -> list[str]:
        """Gives back the slots of trials that the driver no longer knows."""
        return self._session.give_back(living)

    def ask(self, trial: str, fill_idle: bool) -> tuple[str, Array | None]:
        """("ask", point), ("wait", None) or ("finished", None)."""
        session = self._session
        session.refresh()
        if session.finished:
            return "finished", None
        proposal = session.ask(trial) if fill_idle else session.ask_planned(trial)
        if proposal is None:
            return ("finished" if session.finished else "wait"), None
        return "ask", proposal.x

    def place(self, trial: str, x: Array) -> None:
        """Enters a trial at a point that the driver chose."""
        self._session.place(trial, x)

    def verdict(self, trial: str) -> Verdict:
        """What is known of a trial."""
        session, mark = self._session, f"/{trial}"
        return Verdict(
            session.published_value(trial),
            trial in session.entered(),
            frozenset(v.removesuffix(mark) for v in session.vouched() if v.endswith(mark)),
            session.released,
        )

    def fail(self, trial: str) -> None:
        """Gives a trial's slot back and forgets what it had begun to send."""
        self._uploads.pop(trial, None)
        self._session.fail(trial)

    def tell_plain(self, trial: str, x: Array, value: float) -> None:
        """Takes the plain float of an unprotected trial."""
        space = self._settings.space
        self._session.tell_plain(trial, space.decode(x), space, value)

    def mark_unprotected(self, reason: str) -> None:
        """Records for ever that nothing may be claimed."""
        self._session.mark_unprotected(reason)

    def note(self, text: str) -> None:
        """Records a fact that the guarantee reports."""
        self._session.note(text)

    def report(self, unaudited: bool) -> dict[str, Any]:
        """Everything public: guarantee, recommendation, history.

        Args:
            unaudited: Whether a result passed by while the vault did not answer.
        """
        session = self._session
        session.refresh()
        reasons: list[str] = []
        recommendation: Array | None
        if not session.entered():
            reasons.append("no trial has run inside search.private")
        if unaudited:
            reasons.append(
                "results passed by unseen while the vault failed: give them to guarantee"
            )
        try:
            recommendation = session.recommended_point()
        except ValueError:  # nothing has been released yet
            recommendation = None
        return {
            "guarantee": session.guarantee(reasons),
            "recommendation": recommendation,
            "history": session.history(),
            "plan": session.plan,
            "published": {t: value for t, (_, _, value) in session.published().items()},
            "vouched": session.vouched(),
            "finished": session.finished,
            "released": session.released,
        }

    def ledger(self) -> tuple[list[Any], list[Any], list[str]]:
        """Charges, releases, and trials whose raw losses are still held."""
        session = self._session
        return session.ledger(), session.releases(), session.held_losses()

    def purge(self) -> None:
        """Deletes every raw loss."""
        self._uploads.clear()
        self._session.purge()

    # The trials' side -----------------------------------------------------------------------

    def enter(self, trial: str, attempt: str) -> Entry:
        """A trial begins; it is charged for its training unless it has been told before."""
        value, x = self._session.enter(trial)
        if value is None:
            self._session.charge_training(trial, attempt)
        public = sorted(self.verdict(trial).vouched)
        return Entry(self._settings.metric, self._settings.choices, value, x, tuple(public))

    def vouch(self, operation: str, trial: str) -> None:
        """Records what a trial declared public."""
        self._session.vouch(operation, trial)

    def stage(self, trial: str, upload: str, index: int, block: bytes) -> None:
        """Takes one block of a trial's losses; a new upload replaces an unfinished one."""
        held = self._uploads.get(trial)
        if held is None or held.name != upload:
            held = self._uploads[trial] = _Upload(upload)
        held.blocks[index] = block

    def commit(self, trial: str, upload: str, n_blocks: int, x: Array) -> float | None:
        """Tells the staged losses; None if some of them were lost on the way."""
        held = self._uploads.get(trial)
        if held is None or held.name != upload or len(held.blocks) != n_blocks:
            return None
        y = np.frombuffer(b"".join(held.blocks[i] for i in range(n_blocks)))
        space = self._settings.space
        value, _ = self._session.tell(trial, space.decode(x), space, y)
        del self._uploads[trial]
        return value


def _adopted(settings: RunSettings, vault: Vault, key: str) -> RunSettings:
    stored = Session.stored_settings(vault, key)
    if stored is None or not settings.adopt_trials:
        return settings
    return replace(
        settings, config=replace(settings.config, n_trials=stored["config"]["n_trials"])
    )


_OPERATIONS: dict[str, Callable[..., Any]] = {
    name: method
    for name, method in vars(VaultHost).items()
    if callable(method) and not name.startswith("_") and name != "call"
}


class Channel:
    """The way to a host, from the driver or from a trial.

    Args:
        send: From the arguments of :meth:`VaultHost.call` to what it returns.
    """

    def __init__(self, send: Callable[..., tuple[tuple[str, str] | None, Any]]) -> None:
        self._send = send

    def call(self, operation: str, *args: Any) -> Any:
        """The result of an operation.

        Raises:
            VaultError: If the vault is gone or refuses.
            PrivacyError: If the engine refuses.
            ValueError: If what was sent is not usable.
        """
        error, result = self._send(operation, *args)
        if error is not None:
            raise OWN_ERRORS[error[0]](error[1])
        return result

    def tell(self, trial: str, x: Array, losses: Array) -> float:
        """Sends one value a record and returns what may be published of them."""
        _check_inline_limit()
        raw = np.ascontiguousarray(losses, dtype=np.float64).tobytes()
        starts = range(0, len(raw), BLOCK_BYTES)
        for _ in range(_TRIES):  # a host that was restarted in between has lost the blocks
            upload = uuid.uuid4().hex
            for index, start in enumerate(starts):
                self.call("stage", trial, upload, index, raw[start : start + BLOCK_BYTES])
            value = self.call("commit", trial, upload, len(starts), x)
            if value is not None:
                return float(value)
        raise VaultError("The vault's host was restarted again and again while a trial told it.")


def _check_inline_limit() -> None:
    limit = os.environ.get("RAY_max_direct_call_object_size", "")
    if limit.isdigit() and int(limit) < BLOCK_BYTES + 2**10:
        raise PrivacyError(
            f"RAY_max_direct_call_object_size={limit} would send losses through Ray's object "
            f"store, which may be written to disk. Leave it unset, or above {BLOCK_BYTES + 2**10}."
        )


def local_channel(settings: RunSettings, url: str) -> Channel:
    """A host inside this process, for reading a finished run where no Ray is running."""
    return Channel(VaultHost(settings, url, None).call)


class Anchor:
    """What keeps an embedded vault alive in the driver, and must never be pickled.

    The actor lives as long as one searcher of its run lives in the process that began it.
    """

    def __init__(self, name: str, may_begin: bool, noise: NoiseSource | None) -> None:
        self.name, self.may_begin, self.noise = name, may_begin, noise
        self.actor: Any = None
        self.lock = threading.Lock()

    def end(self) -> None:
        """Ends the actor, if this process holds it."""
        with self.lock:
            if self.actor is not None:
                ray.kill(self.actor)
                self.actor = None


_ANCHORS: weakref.WeakValueDictionary[str, Anchor] = weakref.WeakValueDictionary()


def anchor(name: str, *, may_begin: bool = False, noise: NoiseSource | None = None) -> Anchor:
    """This process's anchor of a run, made on first use."""
    found = _ANCHORS.get(name)
    if found is None:
        found = _ANCHORS[name] = Anchor(name, may_begin, noise)
    return found


def driver_channel(own: Anchor, settings: RunSettings, url: str | None) -> Channel:
    """The driver's channel; begins the host where that is allowed.

    A vault in memory is begun once, by the process that made the searcher, and never again: a
    second one would have an empty ledger. A vault in a database may be opened by anyone.

    Raises:
        VaultError: If the vault is gone.
    """
    return Channel(lambda *args: _send_from_driver(own, settings, url, args))


def _send_from_driver(
    own: Anchor, settings: RunSettings, url: str | None, args: tuple[Any, ...]
) -> Any:
    for tries in range(_TRIES if ray.is_initialized() else 0):
        actor = _driver_actor(own, settings, url)
        try:
            return ray.get(actor.call.remote(*args))
        except Exception:  # Ray's errors, and what handles of an ended Ray raise
            if url is None:
                break
            own.actor = None  # the database holds everything: another host takes its place
            time.sleep(0.2 * 2**tries)
    _lost()


def _driver_actor(own: Anchor, settings: RunSettings, url: str | None) -> Any:
    with own.lock:
        if own.actor is not None:
            return own.actor
        if url is None and not own.may_begin:
            return _found_actor(own.name)
        own.may_begin = False
        own.actor = _begin_actor(own, settings, url)
        return own.actor


def _begin_actor(own: Anchor, settings: RunSettings, url: str | None) -> Any:
    here = ray.get_runtime_context().get_node_id()
    durable = url is not None
    remote = ray.remote(VaultHost).options(
        name=own.name,
        namespace=NAMESPACE,
        get_if_exists=durable,
        num_cpus=0,
        max_restarts=-1 if durable else 0,  # a restarted host without a database has no ledger
        max_task_retries=-1 if durable else 0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    try:
        return remote.remote(settings, url, own.noise)
    except ValueError:
        raise VaultError(
            f"A vault for the run {settings.run!r} is alive in this cluster, begun by another "
            "process. Give this search another run= name, or a vault in a database if both shall "
            "share one ledger."
        ) from None


def check_alive(own: Anchor) -> None:
    """For a vault in memory: that it may still be begun here, or lives.

    Raises:
        VaultError: If it is gone.
    """
    if own.actor is None and not own.may_begin:
        _found_actor(own.name)


def _found_actor(name: str) -> Any:
    if ray.is_initialized():
        try:
            return ray.get_actor(name, namespace=NAMESPACE)
        except (ValueError, RayError):
            pass
    _lost()


def _lost() -> NoReturn:
    raise VaultError(LOST)


_KNOWN: dict[str, Any] = {}


def trial_channel(name: str) -> Channel:
    """A trial's channel to the host that the driver began."""
    return Channel(lambda *args: _send_from_trial(name, args))


def _send_from_trial(name: str, args: tuple[Any, ...]) -> Any:
    for tries in range(_PATIENCE):
        try:
            return ray.get(_actor_of_trial(name).call.remote(*args))
        except RayActorError:
            _KNOWN.pop(name, None)
            if name.startswith("memory/"):
                _lost()
            time.sleep(0.1 * 1.5**tries)  # the driver begins another host over the database
        except RayError as error:
            raise PrivacyError(
                f"The vault's host did not answer ({type(error).__name__})."
            ) from None
    raise VaultError(
        "The vault's host ended, and the driver did not begin another one in time. What the "
        "database holds is safe: let the trial be retried (max_failures)."
    )


_SEEN: set[str] = set()


def _actor_of_trial(name: str) -> Any:
    """The host's actor.

    Raises:
        RayActorError: If it was known to this process before, and is not there now.
        VaultError: If there never was one.
    """
    try:
        if name not in _KNOWN:
            _KNOWN[name] = ray.get_actor(name, namespace=NAMESPACE)
            _SEEN.add(name)
        return _KNOWN[name]
    except (ValueError, RayError):
        pass
    if name in _SEEN:
        raise RayActorError
    raise VaultError(
        "No vault is alive for the search that made this private trainable. Either it is gone "
        "(a vault in memory ends with its driver; then nothing more can be released), or the "
        "trainable was made by another search than the one that suggests: after a restore, take "
        "search = DPGIBOSearch.from_experiment(path) and search.private(trainable), or give both "
        "searches the same vault= and run=."
    )
