"""Rounds over many studies in one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import optuna
from optuna.storages import InMemoryStorage
from optuna.study import Study
from tqdm.auto import tqdm

from privbo_plugins.errors import PrivacyWarning

if TYPE_CHECKING:
    from optuna_samplers.dp_fts_de import DPFTSDESampler

Objective = Callable[[optuna.Trial], float]


def run_federated(
    studies: Sequence[Study],
    objectives: Sequence[Objective],
    n_rounds: int,
    *,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    show_progress_bar: bool = False,
) -> None:
    """Runs many agents' studies round by round in this process, one after another.

    Every study ends with its start-up trials and ``n_rounds`` more. Studies that have some
    already, from a run that was interrupted, catch up. For agents in threads or processes of
    their own call ``study.optimize`` there instead: their samplers wait for each other.

    Args:
        studies: One an agent; each has a :class:`DPFTSDESampler` of its own.
        objectives: One a study, from a trial to the agent's own value.
        n_rounds: Rounds after the start-up trials, >= 0. The server releases at most
            ``config.n_rounds`` of them; in the others agents use what they have.
        catch: Exceptions of an objective that fail its trial only, as for ``study.optimize``.
        show_progress_bar: Whether to show one bar over all trials.

    Raises:
        ValueError: If the lists do not match, or a sampler is of another kind or appears twice.

    Warns:
        PrivacyWarning: If studies share a storage, where whoever reads one reads all.

    Example:
        >>> import optuna
        >>> from optuna_samplers import DPFTSDESampler, FederatedServer, FederationConfig
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> server = FederatedServer(FederationConfig(n_agents=2, epsilon=4.0, n_rounds=2))
        >>> studies = [
        ...     optuna.create_study(sampler=DPFTSDESampler(server.connect(n), seed=n))
        ...     for n in range(2)
        ... ]
        >>> objective = lambda trial: (trial.suggest_float("x", 0, 1) - 0.3) ** 2
        >>> run_federated(studies, [objective, objective], n_rounds=3)
        >>> len(server.broadcasts())
        2
    """
    samplers = _checked(studies, objectives, n_rounds)
    total = max((sampler.n_startup for sampler in samplers), default=0) + n_rounds
    done = [len(study.get_trials(deepcopy=False)) for study in studies]
    with tqdm(total=len(studies) * total, disable=not show_progress_bar, unit="trial") as bar:
        bar.update(sum(min(n, total) for n in done))
        for number in range(min(done, default=total), total):
            turn = [i for i, n in enumerate(done) if n <= number]
            for i in range(len(studies)):
                if i in turn:
                    samplers[i].send(studies[i])
                else:
                    samplers[i].leave()  # it is ahead: the others need not wait for it
            for i in turn:
                studies[i].optimize(objectives[i], n_trials=1, catch=catch)
                bar.update()


def _checked(
    studies: Sequence[Study], objectives: Sequence[Objective], n_rounds: int
) -> list[DPFTSDESampler]:
    from optuna_samplers.dp_fts_de import DPFTSDESampler

    if len(studies) != len(objectives):
        raise ValueError(
            f"run_federated needs one objective a study, got {len(studies)} studies and "
            f"{len(objectives)} objectives."
        )
    if n_rounds < 0:
        raise ValueError(f"n_rounds must not be negative, got {n_rounds}.")
    samplers = [study.sampler for study in studies]
    if not all(isinstance(sampler, DPFTSDESampler) for sampler in samplers):
        raise ValueError(
            "Every study needs a DPFTSDESampler of its own: "
            "optuna.create_study(sampler=DPFTSDESampler(server.connect(agent)))."
        )
    if len({id(sampler) for sampler in samplers}) < len(samplers):
        raise ValueError("Two studies share a sampler: one sampler is one agent.")
    _warn_if_shared(studies)
    return samplers  # type: ignore[return-value]


def _warn_if_shared(studies: Sequence[Study]) -> None:
    stores = [study._storage for study in studies if _is_shareable(study)]
    if len({id(store) for store in stores}) < len(stores):
        warnings.warn(
            "Several agents' studies lie in one storage: whoever can read one agent's points and "
            "values can read those of all. Give every agent a storage of its own.",
            PrivacyWarning,
            stacklevel=4,
        )


def _is_shareable(study: Study) -> bool:
    return not isinstance(study._storage, InMemoryStorage)
