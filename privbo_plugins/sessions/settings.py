"""Settings of a curator and of a federation's server, for all who take or show them.

Nothing heavy is imported here: the command line makes its options of these settings, and searchers
share some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from privbo_plugins.privacy.settings import NoiseSettings, Word
from privbo_plugins.settings import Count, Rule, again, is_finite, one_of, setting, settings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
    from privbo_plugins.privacy.source import NoiseSource
    from privbo_plugins.sessions.tables import Outcomes
    from privbo_plugins.spaces import Space

MECHANISMS = ("gaussian", "projection")
"""How a table is released."""

_Mechanism = Annotated[Literal["gaussian", "projection"], one_of(*MECHANISMS)]
_Length = Annotated[  # whose square neither over- nor underflows
    float,
    Rule(
        "a finite number > 0, from 1e-100 to 1e+100",
        lambda x: is_finite(x) and 1e-100 <= x <= 1e100,
    ),
]
_Column = Annotated[
    str,
    Rule(
        "a column's name of 1 to 512 characters",
        lambda x: isinstance(x, str) and 0 < len(x) <= 512,
    ),
]


@settings(eq=False)
class CuratorSettings:
    """Keywords of :class:`privbo_plugins.sessions.rows.Curator`; rows are never printed."""

    X: ArrayLike = setting(
        "One row per person (or whatever is protected), shape (n, d); a list of rows needs "
        "``bounds`` or ``columns``, which say how wide it is. An entry that is no number is "
        "missing. A row's number is public, and so is the order: shuffle first if the order "
        "reveals something.",
        kw_only=False,
        repr=False,
    )
    epsilon: float = setting("Privacy parameter of the table's release, finite and > 0.")
    delta: float = setting("Privacy parameter of the table's release, in (0, 1).")
    neighbor_distance: _Length | None = setting(
        "nu: the claim compares tables of which a row differs by at most this, in Euclidean norm "
        "over all columns together, in scaled units. None compares rows that differ in any way; "
        "that needs ``bounds`` or ``norm_bound``.",
        default=None,
    )
    mechanism: _Mechanism = setting(
        '"gaussian" (sound), or "projection" (as published, with no privacy guarantee).',
        default="gaussian",
    )
    bounds: ArrayLike | None = setting(
        "Public (low, high) of each column, shape (d, 2). Column j becomes (x - middle) / (high - "
        "low), in [-1/2, 1/2]; missing entries become 0. None leaves units as they are.",
        default=None,
    )
    norm_bound: _Length | None = setting(
        "R: rows are moved into this norm. None for sqrt(d) / 2 with ``bounds``, otherwise for "
        "2^20 times ``neighbor_distance``.",
        default=None,
    )
    r: Count | None = setting(
        'Columns of the released table; None for d ("gaussian"), or for the largest that the '
        'published theorem allows ("projection").',
        default=None,
    )
    columns: Sequence[str] | None = setting("Names for the manifest, public.", default=None)
    groups: Any = setting(
        "The person that each row belongs to, ids of shape (n,), private: persons are protected "
        "then, each with up to ``rows_per_group`` rows. None where each row is a person.",
        default=None,
        repr=False,
    )
    rows_per_group: Count | None = setting(
        "The most rows of one person that count, public; noise grows with its square root. Of "
        "further ones the public middle is released and the worst outcome counts. None for 1 "
        "with ``groups``.",
        default=None,
    )
    unit: Word | None = setting(
        "What one of those who are protected is called in every text, such as patient; None for "
        "row, or with ``groups`` person.",
        default=None,
    )
    outcomes: Outcomes | None = setting(
        "Outcomes by row, shape (n,), or a function of the row's number; None for a curator that "
        "only releases.",
        default=None,
        repr=False,
    )
    outcome_epsilon: float | None = setting(
        "Privacy parameter of one row's answer, which is then privatised; without one, answers "
        "are given as they are.",
        default=None,
    )
    outcome_range: tuple[float, float] | None = setting(
        "(low, high) from public knowledge that outcomes are clipped to.",
        default=None,
    )
    outcome_mechanism: str = setting(
        '"laplace", "duchi", "piecewise", "hybrid" or "gaussian".',
        default="laplace",
    )
    outcome_delta: float | None = setting(
        'Delta of one row\'s answer, for "gaussian" only.',
        default=None,
    )
    outcome_column: _Column | None = setting(
        "Name of the column that outcomes come from, public. The first answer ties the run to it. "
        "None ties nothing: outcomes are then whatever this program gives.",
        default=None,
    )
    maximize: bool = setting(
        "Whether large outcomes are wanted; NaN counts as the opposite end of the range.",
        default=True,
    )
    vault: str | Path | None = setting(
        "Where ledger, released table and answers are kept: None for this process's memory, or a "
        "path or database URL such as ``curator.db``. Without one another process would "
        "release the table a second time.",
        default=None,
    )
    run_name: str = setting("Name of the release in the vault.", default="table")
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@settings(eq=False)
class RoundSettings:
    """When the rounds of a federation end."""

    deadline: float | None = setting(
        "Seconds from the first vector of a round after which it closes without those that have "
        "not sent.",
        default=60.0,
    )
    hold: bool = setting(
        "Run rounds on the server's own clock, one every ``deadline`` seconds, whoever sends.",
        default=False,
    )


@settings(eq=False)
class FederatedServerSettings:
    """Keywords of :class:`privbo_plugins.sessions.rounds.FederatedServer`."""

    config: FederationConfig = setting("Public settings.", kw_only=False)
    space: Space | None = setting(
        "What all agents tune; None takes the space of the first agent that joins.",
        default=None,
    )
    agents: Sequence[str] | None = setting(
        "Names of the agents, as many as ``config.n_agents``; None for their numbers.",
        default=None,
    )
    deadline: float | None = again(
        RoundSettings, "deadline", default=60.0, more="None waits for ever."
    )
    hold: bool = again(
        RoundSettings,
        "hold",
        default=False,
        more="They begin with the server. Then no agent's presence moves another's vector into "
        "another round, and add/remove holds for the timing too. Needs ``space``.",
    )
    vault: str | Path | None = setting(
        "Where ledger and broadcasts are kept, a path or URL; None for memory. A server that is "
        "started again over the same database and ``run_name`` goes on where it ended.",
        default=None,
    )
    run_name: str = setting("Name of the run in the vault.", default="federation")
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)
