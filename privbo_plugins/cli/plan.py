"""``privbo plan``: what a run would cost and what its noise leaves to see, before any data.

Everything comes from public quantities. What is printed are the engine's own plans.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from privbo_plugins.cli.outcome import add_json, print_json

if TYPE_CHECKING:
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
    from privbo_plugins.spaces import Dimension, Space

T = TypeVar("T")

_DIMENSION = (
    "{!r} must be name:low:high, name:low:high:log, name:low:high:int, name:low:high:int:log, or "
    "name=choice,choice."
)


class _Plan(Protocol):
    """What plans have in common."""

    @property
    def drowned(self) -> bool: ...

    def warn_if_drowned(self) -> None: ...

    def to_dict(self) -> dict[str, Any]: ...


# What is typed ----------------------------------------------------------------------------------


def dimension(text: str) -> tuple[str, Dimension]:
    """A parameter and its range.

    Raises:
        argparse.ArgumentTypeError: If it is none.

    Example:
        >>> dimension("C:0.01:100:log")
        ('C', Float(low=0.01, high=100.0, log=True, step=None))
        >>> dimension("kernel=rbf,poly")[1].choices
        ('rbf', 'poly')
    """
    from privbo_plugins.spaces import Categorical

    name, _, choices = text.partition("=")
    if choices:
        return name, Categorical(tuple(choice.strip() for choice in choices.split(",")))
    name, *rest = text.split(":")
    try:
        return name, _range(rest)
    except (TypeError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(_DIMENSION.format(text)) from None


def _range(parts: Sequence[str]) -> Dimension:
    from privbo_plugins.spaces import Float, Int

    low, high, *kind = parts
    log, whole = "log" in kind, "int" in kind
    if len(kind) != log + whole:
        raise ValueError
    return Int(int(low), int(high), log) if whole else Float(float(low), float(high), log)


def space_of(dimensions: Sequence[tuple[str, Dimension]]) -> Space:
    """The space of what was typed.

    Raises:
        ValueError: If a name appears twice, or nothing varies.
    """
    from privbo_plugins.spaces import Space

    named = dict(dimensions)
    if len(named) < len(dimensions):
        raise ValueError("--space names a parameter twice. Give each of them one range.")
    space = Space(named)
    if not space.varies:
        raise ValueError("--space must hold at least one parameter that varies.")
    return space


def setting(text: str) -> tuple[str, Any]:
    """``name=value``, where the value is JSON or else a text.

    Raises:
        argparse.ArgumentTypeError: If there is no name, or no value.

    Example:
        >>> setting("n_steps=25"), setting("kernel=matern52"), setting("loss_bound=[0, 2]")
        (('n_steps', 25), ('kernel', 'matern52'), ('loss_bound', (0, 2)))
    """
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be name=value.")
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = value
    return name, tuple(read) if isinstance(read, list) else read


def configured(kind: type[T], given: Mapping[str, Any], more: Sequence[tuple[str, Any]]) -> T:
    """Settings from options, and from ``--set`` for all others.

    Args:
        kind: Class of the settings.
        given: By name; None for those that were not given.
        more: What ``--set`` named.

    Raises:
        ValueError: If there is no such setting, or a value is none for it.
    """
    every = fields(kind)  # type: ignore[arg-type]
    known = [field.name for field in every if field.default_factory is MISSING]
    unknown = [name for name, _ in more if name not in known]
    if unknown:
        raise ValueError(
            f"There is no setting {unknown[0]!r}. --set takes one of {', '.join(known)}."
        )
    settings = {name: value for name, value in given.items() if value is not None} | dict(more)
    try:
        return kind(**settings)
    except TypeError:
        told = ", ".join(f"{name}={value!r}" for name, value in more)
        raise ValueError(
            f"--set holds a value of another kind than its setting: {told}."
        ) from None


# Plans ------------------------------------------------------------------------------------------


def of_records(given: argparse.Namespace) -> None:
    """Plans a run on per-record losses."""
    from privbo_plugins.algorithms.registry import entry

    found = entry("dp-gibo")
    options = {"mu": given.mu, "n_trials": given.trials}
    config = configured(found.load_config(), options, given.set)
    _show(found.make_plan(config, space_of(given.space), given.records), given)  # type: ignore[arg-type]


def of_rewards(given: argparse.Namespace) -> None:
    """Plans a run on privatised rewards."""
    from privbo_plugins.algorithms.reward_plan import make_reward_plan
    from privbo_plugins.privacy.local import stored_mechanism

    low, high = given.range if given.bound is None else (-given.bound, given.bound)
    mechanism = stored_mechanism(
        {
            "mechanism": given.mechanism,
            "epsilon": given.epsilon,
            "delta": given.delta or 0.0,
            "low": low,
            "high": high,
        }
    )
    _show(make_reward_plan(mechanism, given.trials), given)


def of_federation(given: argparse.Namespace) -> None:
    """Plans a federation."""
    from privbo_plugins.algorithms.dp_fts_de.plan import make_federation_plan

    _show(make_federation_plan(federation_config(given)), given)


def federation_config(given: argparse.Namespace) -> FederationConfig:
    """A federation's settings, as options give them.

    Raises:
        ValueError: For every setting outside its range.
    """
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig

    options = {
        "n_agents": given.agents, "epsilon": given.epsilon, "z": given.z, "delta": given.delta,
        "n_rounds": given.rounds, "q": given.q, "trust": given.trust,
        "colluding": given.colluding,
    }  # fmt: skip
    return configured(FederationConfig, options, given.set)


def _show(plan: _Plan, given: argparse.Namespace) -> None:
    if given.json:
        print_json(plan.to_dict() | {"drowned": plan.drowned})
    else:
        print(plan)
    plan.warn_if_drowned()


# The command line -------------------------------------------------------------------------------


def add_to(commands: Any) -> None:
    """Adds ``plan`` to a command line."""
    text = "what a run would cost, and whether the noise drowns the signal, before any data"
    made = commands.add_parser("plan", help=text, description=f"Prints {text}.")
    own = made.add_subparsers(dest="plan", required=True)
    _records_options(own.add_parser("dp-gibo", help="tuning on per-record losses"))
    _rewards_options(own.add_parser("rewards", help="tuning on one user's reward a trial"))
    federation = own.add_parser("federation", help="agents that learn from noisy sums")
    federation.set_defaults(act=of_federation)
    add_federation_options(federation)
    add_json(federation)


def _records_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(act=of_records)
    command.add_argument("--mu", type=float, required=True, help="Gaussian DP budget of the run")
    command.add_argument("--records", type=_count, required=True, help="validation records")
    add_space(command, required=True)
    command.add_argument("--trials", type=_count, help="the most trials that may be run")
    _set_option(command)
    add_json(command)


def _rewards_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(act=of_rewards)
    command.add_argument("--epsilon", type=float, required=True, help="of one reward")
    bounds = command.add_mutually_exclusive_group(required=True)
    bounds.add_argument(
        "--range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="public range of rewards"
    )
    bounds.add_argument("--bound", type=float, help="or their largest absolute value")
    command.add_argument("--trials", type=_count, required=True, help="one user's reward each")
    command.add_argument(
        "--mechanism",
        choices=("laplace", "duchi", "piecewise", "hybrid", "gaussian"),
        default="duchi",
    )
    command.add_argument("--delta", type=float, help="for gaussian only")
    add_json(command)


def add_federation_options(command: argparse.ArgumentParser) -> None:
    """Adds the public settings of a federation."""
    command.add_argument("--agents", type=_count, required=True, help="agents on the roster")
    command.add_argument("--epsilon", type=float, help="user-level budget of all rounds")
    command.add_argument("--z", type=float, help="or the noise multiplier")
    command.add_argument("--delta", type=float, help="of the budget; the default is 1e-5")
    command.add_argument("--rounds", type=_count, help="rounds that release something")
    command.add_argument("--q", type=float, help="probability of being chosen in a round")
    command.add_argument(
        "--trust", choices=("server", "aggregate"),
        help="whom agents trust with their vectors: the server (the default), or nobody: it sees "
        "their noisy sum alone",
    )  # fmt: skip
    command.add_argument(
        "--colluding", type=_count,
        help="agents that pool what they know with such a server, or add no noise",
    )  # fmt: skip
    _set_option(command)


def add_space(command: argparse.ArgumentParser, *, required: bool) -> None:
    """Adds ``--space``."""
    command.add_argument(
        "--space", nargs="+", type=dimension, required=required, metavar="NAME:LOW:HIGH",
        help="parameters: name:low:high with :log or :int after it, or name=choice,choice",
    )  # fmt: skip


def _set_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set", nargs="+", type=setting, action="extend", default=[], metavar="NAME=VALUE",
        help="further settings, by the engine's names",
    )  # fmt: skip


def _count(text: str) -> int:
    """A whole number >= 1.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number >= 1.")
    return int(text)
