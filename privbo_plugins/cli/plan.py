"""``privbo plan``: what a run would cost and what its noise leaves to see, before any data.

Everything comes from public quantities. It prints the engine's own plans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from privbo_plugins.cli.outcome import AT_LEAST_ONE, Answer, Group, as_json, together
from privbo_plugins.settings import Stored, fields_of

if TYPE_CHECKING:
    from privbo_plugins.algorithms.protocols import NoisyPlan
    from privbo_plugins.spaces import Dimension, Space

T = TypeVar("T")


# Words that are typed ---------------------------------------------------------------------------


def dimension(text: str) -> tuple[str, Dimension]:
    """Reads a parameter and its range.

    Raises:
        click.BadParameter: If it is none.

    Example:
        >>> dimension("C:0.01:100:log")
        ('C', Float(low=0.01, high=100.0, log=True, step=None))
        >>> dimension("kernel=rbf,poly")[1].choices
        ('rbf', 'poly')
    """
    from privbo_plugins.spaces import Categorical, Float, Int

    name, _, choices = text.partition("=")
    if choices:
        return name, Categorical(tuple(choice.strip() for choice in choices.split(",")))
    why = ""
    try:
        name, low, high, *kind = text.split(":")
        log, whole = "log" in kind, "int" in kind
        if len(kind) == log + whole:
            ends = float(low), float(high)
            why = " Its low end must be below its high one." * (ends[0] >= ends[1])
            return name, Int(int(low), int(high), log) if whole else Float(*ends, log)
    except (TypeError, ValueError, OverflowError):
        pass
    raise click.BadParameter(
        f"{text!r} must be name:low:high, name:low:high:log (with low > 0), name:low:high:int, "
        f"name:low:high:int:log, or name=choice,choice.{why}"
    )


def space_of(dimensions: Sequence[tuple[str, Dimension]]) -> Space:
    """Makes the space of the typed parameters.

    Raises:
        ValueError: If a name appears twice, or nothing varies.
    """
    from privbo_plugins.spaces import Space, varying

    named = dict(dimensions)
    if len(named) < len(dimensions):
        raise ValueError("--space names a parameter twice. Give each of them one range.")
    space = Space(named)
    return varying(space if space.varies else None, "--space")


def setting(text: str) -> tuple[str, Any]:
    """Reads ``name=value``, where the value is JSON or else a text.

    Raises:
        click.BadParameter: If there is no name, or no value.

    Example:
        >>> setting("n_steps=25"), setting("kernel=matern52"), setting("loss_bound=[0, 2]")
        (('n_steps', 25), ('kernel', 'matern52'), ('loss_bound', (0, 2)))
    """
    name, _, value = text.partition("=")
    if not name or not value:
        raise click.BadParameter(f"{text!r} must be name=value.")
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = value
    return name, tuple(read) if isinstance(read, list) else read


def configured(kind: type[T], given: Mapping[str, Any], more: Sequence[tuple[str, Any]]) -> T:
    """Makes settings from options, and from ``--set`` for all others.

    Args:
        kind: Class of the settings.
        given: By name; None for those that were not given.
        more: What ``--set`` named.

    Raises:
        ValueError: If there is no such setting, or a value is none for it.
    """
    fields = fields_of(kind).items()
    known = [name for name, field in fields if not isinstance(field.default, Stored)]
    unknown = [name for name, _ in more if name not in known]
    if unknown:
        raise ValueError(
            f"There is no setting {unknown[0]!r}. --set takes one of {', '.join(known)}."
        )
    settings = {name: value for name, value in given.items() if value is not None} | dict(more)
    return kind(**settings)


space_option = click.option(
    "--space", multiple=True, type=dimension, required=True, metavar="NAME:LOW:HIGH ...",
    help="parameters: name:low:high with :log or :int after it, or name=choice,choice",
)  # fmt: skip

_presented = together(
    click.option(
        "--seconds-per-trial", "seconds", type=float, help="then the plan says how long all take"
    ),
    click.option(
        "--workers", type=AT_LEAST_ONE,
        help="trials that run at once (of a federation: all agents)",
    ),
    as_json,
)  # fmt: skip
"""How a plan is shown."""

_set_option = click.option(
    "--set", "settings", multiple=True, type=setting, metavar="NAME=VALUE ...",
    help="further settings, by the engine's names",
)  # fmt: skip


federation_options = together(
    click.option(
        "--agents", "n_agents", type=AT_LEAST_ONE, required=True, help="agents on the roster"
    ),
    click.option("--epsilon", type=float, help="user-level budget of all rounds, or --set z"),
    click.option("--delta", type=float, help="of the budget; 1e-5 if it is not given"),
    click.option("--rounds", "n_rounds", type=AT_LEAST_ONE, help="rounds that release something"),
    click.option(
        "--trust", type=click.Choice(("server", "aggregate")),
        help="trust of agents: the server sees their vectors (server, if it is not given), "
        "or their noisy sum alone (aggregate)",
    ),
    _set_option,
)  # fmt: skip
"""Public settings of a federation."""


# Plans ------------------------------------------------------------------------------------------


@click.group(cls=Group, epilog="LDP, DUETS: rewards. Outsourced: sampler.plan() in Python.")
def plan() -> None:
    """Print what a run would cost, and whether the noise drowns the signal, before any data."""


@plan.command("dp-gibo")
@click.option("--mu", type=float, help="Gaussian DP budget of the run")
@click.option("--epsilon", type=float, help="or its epsilon")
@click.option("--delta", type=float, help="of that epsilon")
@click.option("--records", type=AT_LEAST_ONE, required=True, help="validation records")
@space_option
@click.option("--trials", type=AT_LEAST_ONE, help="the most trials that may be run")
@_set_option
@_presented
def dp_gibo(
    records: int, space: Any, trials: int | None, settings: Any, seconds: float | None,
    workers: int | None, **budget: float | None,
) -> Answer:  # fmt: skip
    """Plan tuning on per-record losses."""
    from privbo_plugins.algorithms.registry import entry, planned
    from privbo_plugins.groups import Unit

    kind = entry("dp-gibo").load_config()
    config = configured(kind, {**budget, "n_trials": trials}, settings)
    return _told(planned(config, space_of(space), records, Unit()), seconds, workers)


@plan.command()
@click.option("--epsilon", type=float, required=True, help="of one reward")
@click.option(
    "--range", "ends", type=float, nargs=2, required=True, metavar="LOW HIGH",
    help="public range of rewards",
)  # fmt: skip
@click.option("--trials", type=AT_LEAST_ONE, required=True, help="one user's reward each")
@click.option(
    "--mechanism", type=click.Choice(("laplace", "duchi", "piecewise", "hybrid", "gaussian")),
    default="duchi",
    help="what randomises a reward",
)  # fmt: skip
@click.option("--delta", type=float, help="for gaussian only")
@_presented
def rewards(
    ends: tuple[float, float], trials: int, delta: float | None, seconds: float | None,
    workers: int | None, **given: Any,
) -> Answer:  # fmt: skip
    """Plan tuning on one user's reward a trial."""
    from privbo_plugins.algorithms.reward_plan import make_reward_plan
    from privbo_plugins.privacy.figures import warn_of_delta
    from privbo_plugins.privacy.local import stored_mechanism

    low, high = ends
    mechanism = stored_mechanism({**given, "delta": delta or 0.0, "low": low, "high": high})
    warn_of_delta(delta, trials, "evaluations")
    return _told(make_reward_plan(mechanism, trials), seconds, workers)


@plan.command()
@federation_options
@_presented
def federation(
    settings: Any, seconds: float | None, workers: int | None, **options: Any
) -> Answer:
    """Plan agents that learn from noisy sums."""
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
    from privbo_plugins.algorithms.dp_fts_de.plan import make_federation_plan

    config = configured(FederationConfig, options, settings)
    return _told(make_federation_plan(config), seconds, workers or config.n_agents)


def _told(made: NoisyPlan, seconds: float | None, workers: int | None) -> Answer:
    made = made.presented(seconds, workers or 1)
    return Answer(made, made.to_dict() | {"noise_dominates": made.noise_dominates})
