"""Rounds over many studies in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import optuna
from optuna.storages import InMemoryStorage
from optuna.study import Study

from optuna_samplers._study import next_number
from privbo_plugins.errors import FederationError, PrivacyWarning, warn

if TYPE_CHECKING:
    from optuna_samplers.dp_fts_de import DPFTSDESampler

Objective = Callable[[optuna.Trial], float]


def run_federated(
    studies: Sequence[Study],
    objectives: Sequence[Objective],
    n_rounds: int,
    *,
    catch: Iterable[type[Exception]] | type[Exception] = (),
) -> None:
    """Runs many agents' studies round by round in this process, one after another.

    Every study ends with its start-up trials and ``n_rounds`` more; after an interruption it
    catches up. Agents in threads or processes of their own call ``study.optimize`` instead.

    Args:
        studies: One an agent; each has a :class:`DPFTSDESampler` of its own.
        objectives: One a study, from a trial to the agent's own value.
        n_rounds: Rounds after the start-up trials, >= 0. The server releases at most
            ``config.n_rounds`` of them; in the others agents use what they have.
        catch: Exceptions of an objective that fail its trial only, as for ``study.optimize``.

    Raises:
        ValueError: If the lists do not match, or a sampler is of another kind or appears twice.

    Warns:
        PrivacyWarning: If studies share a storage, where a reader of one reads all.

    Example:
        >>> import optuna
        >>> from optuna_samplers import DPFTSDESampler, FederatedServer, FederationConfig
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> server = FederatedServer(FederationConfig(n_agents=2, epsilon=4.0, n_rounds=2))
        >>> samplers = [DPFTSDESampler(server.connect(n), seed=n) for n in range(2)]
        >>> studies = [optuna.create_study(sampler=sampler) for sampler in samplers]
        >>> objective = lambda trial: (trial.suggest_float("x", 0, 1) - 0.3) ** 2
        >>> run_federated(studies, [objective, objective], n_rounds=3)
        >>> len(server.broadcasts())
        2
    """
    samplers = _checked(studies, objectives, n_rounds)
    total = max((sampler.n_startup for sampler in samplers), default=0) + n_rounds
    try:
        for number in range(min(map(next_number, studies), default=total), total):
            _run_round(number, studies, samplers, objectives, catch)
    finally:
        for sampler in samplers:
            sampler.quiet = False


def _run_round(
    number: int,
    studies: Sequence[Study],
    samplers: Sequence[DPFTSDESampler],
    objectives: Sequence[Objective],
    catch: Iterable[type[Exception]] | type[Exception],
) -> None:
    """Runs a trial of every study that has not had it: all send before one waits.

    Studies that catch up with others send nothing: a round of theirs alone would be wasted.
    """
    due = [i for i, study in enumerate(studies) if next_number(study) <= number]
    for i in due:
        samplers[i].quiet = len(due) < len(studies)
        if not samplers[i].quiet:
            with suppress(FederationError):  # the trial itself tries again, and warns
                samplers[i].send(studies[i])
    for i in due:
        studies[i].optimize(objectives[i], n_trials=1, catch=catch)


def _checked(
    studies: Sequence[Study], objectives: Sequence[Objective], n_rounds: int
) -> list[DPFTSDESampler]:
    from optuna_samplers.dp_fts_de import DPFTSDESampler

    if callable(objectives) or len(studies) != len(objectives):
        given = "a function" if callable(objectives) else f"{len(objectives)} objectives"
        raise ValueError(
            f"run_federated needs a list of objectives, one a study, got {len(studies)} studies "
            f"and {given}."
        )
    if n_rounds < 0:
        raise ValueError(f"n_rounds must not be negative, got {n_rounds}.")
    samplers = [study.sampler for study in studies]
    if not all(isinstance(sampler, DPFTSDESampler) for sampler in samplers):
        raise ValueError(
            "Every study needs a DPFTSDESampler of its own: "
            "optuna.create_study(sampler=DPFTSDESampler(server.connect(agent)))."
        )
    known = [sampler for sampler in samplers if isinstance(sampler, DPFTSDESampler)]
    if len({sampler.link.agent for sampler in known}) < len(samplers):
        raise ValueError(
            "Two studies share a sampler or an agent's number: one study is one agent, "
            "DPFTSDESampler(server.connect(0)), DPFTSDESampler(server.connect(1)), ..."
        )
    _warn_if_shared(studies)
    return known


def _warn_if_shared(studies: Sequence[Study]) -> None:
    stores = [store for store in map(_place, studies) if store is not None]
    if len(set(stores)) < len(stores):
        warn(
            "Several agents' studies lie in one storage: a reader of one agent's points "
            "and values can read those of all. Give every agent a storage of its own.",
            PrivacyWarning,
        )


def _place(study: Study) -> str | None:
    """Names where a study is stored, equally for equal places; None for memory."""
    storage = study._storage
    if isinstance(storage, InMemoryStorage):
        return None
    backend = getattr(storage, "_backend", storage)
    engine = getattr(backend, "engine", None)
    path = getattr(backend, "_file_path", None)
    if path is not None:
        return str(os.path.realpath(path))
    return f"{type(backend).__name__} {id(backend)}" if engine is None else str(engine.url)
