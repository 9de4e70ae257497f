"""A federation's trial: a shell that asks the host of an agent to run, and reports two tags.

This is what the process of a trial imports; the agent, its objective and its model are the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
import ray.cloudpickle as cloudpickle
from ray.exceptions import RayActorError, RayError

from privbo_plugins.errors import PrivacyError, VaultError
from raytune_searchers._audit import REPEATED
from raytune_searchers._channel import NAMESPACE, Channel, MissingHost, Reply

Agent = int | str
Objective = Callable[[Any, dict[str, Any]], Any]
Finish = Callable[[Any, dict[str, Any] | None, float | None], Any]

AGENT, ROUND, RELEASED = "agent", "round", "federation_round"
"""Everything that a trial's config (the first two) and its result hold."""

_PATIENCE = 20
"""How often a trial looks for a host."""

HOST_ENDED = (
    "The process that hosts this agent ended while the trial waited for it. With agent_vaults= "
    "the agent goes on from its own trials; without, it is left out."
)


NO_REPEATS = (
    "ray.tune.search.Repeater runs a trial several times and tells the search a mean, but a trial "
    "of a federation is one agent's round, which is run once. Leave it out: give the search "
    "itself to TuneConfig. What a training's own randomness adds is averaged inside the objective."
)

AGENTS = MissingHost(
    lost=(
        "What the agents of this search have evaluated is gone: it lay in the memory of Ray "
        "actors, which ended with their driver or were killed. These agents cannot go on; what "
        "the federation has broadcast stays covered by its declared epsilon. Start a new run "
        "with another search object (on the same agents its privacy loss adds to this one's), and "
        "give each agent a database to survive that: agent_vaults='sqlite:////private/{agent}.db'."
    ),
    absent=(
        "No host is alive for this agent: it ends with its driver. Make the trainable with the "
        "very search that suggests; after a restore, take search = "
        "DPFTSDESearch.from_experiment(path) and search.private(objective)."
    ),
)
"""What is said of hosts of agents."""


def make_shell(
    objective: Objective,
    finish: Finish | None,
    agents: Sequence[Agent],
    hosts: Sequence[str],
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A trainable that has an agent's host run a trial, and reports its tags.

    Args:
        objective: The user's function.
        finish: What is to be done once an agent has done its trials.
        agents: Names, in the order of the roster.
        hosts: Name of the actor of each.
    """
    functions: bytes = cloudpickle.dumps((objective, finish))
    numbers = {agent: i for i, agent in enumerate(agents)}

    def federated(config: dict[str, Any]) -> dict[str, Any]:
        if REPEATED in config:
            raise PrivacyError(NO_REPEATS)
        agent, round_ = config[AGENT], config[ROUND]
        i = numbers[agent]
        channel = Channel(hosts[i], lambda *args: _send(hosts[i], args))
        released = channel.call("evaluate", i, round_ - 1, functions)
        return {AGENT: agent, ROUND: round_, RELEASED: released}

    federated.__name__ = federated.__qualname__ = str(getattr(objective, "__name__", "federated"))
    return federated


def _send(host: str, args: tuple[Any, ...]) -> Reply:
    """Asks once: whether a host that ends has evaluated, the search finds out before it retries.

    Raises:
        VaultError: If there is no host.
        PrivacyError: If it ended.
    """
    try:
        return ray.get(_actor_of(host).call.remote(*args))  # type: ignore[no-any-return]
    except RayActorError:
        raise PrivacyError(HOST_ENDED) from None
    except RayError as error:
        raise PrivacyError(f"An agent's host did not answer ({type(error).__name__}).") from None


def _actor_of(host: str) -> Any:
    """A host's actor; the driver of a restored experiment may be about to start it.

    Raises:
        VaultError: If there is none for a while.
    """
    for _ in range(_PATIENCE):
        try:
            return ray.get_actor(host, namespace=NAMESPACE)
        except (ValueError, RayError):
            time.sleep(0.5)
    raise VaultError(AGENTS.absent)
