"""Every algorithm by name: one entry each, and nothing is imported before it is asked for.

An entry says where an algorithm's class and its settings are. Sessions and hosts read this
and know no algorithm by its own name, so a further one is a further entry here, or one that its
own package registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, cast

from privbo_plugins.algorithms.protocols import CentralAlgorithm, CentralConfig
from privbo_plugins.groups import Unit
from privbo_plugins.privacy.figures import warn_of_delta
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.words import plural
from privbo_plugins.settings import named
from privbo_plugins.spaces import Space

CENTRAL, REWARD, ROW = "central", "reward", "row"
DISTRIBUTED, FEDERATED = "distributed", "federated"
KINDS = (CENTRAL, REWARD, ROW, DISTRIBUTED, FEDERATED)
"""Algorithms that tune on per-record losses, on one privatised number a trial, on rows of a
released table, with many agents that share one objective, and with agents that share nothing but
noisy sums. Only the first are :class:`~privbo_plugins.algorithms.protocols.CentralAlgorithm`,
and only the last is no :class:`~privbo_plugins.algorithms.protocols.RewardAlgorithm` either: each
of its agents is one side of a federation."""


@dataclass(frozen=True)
class Entry:
    """Where everything about one algorithm is.

    Places are written "module:name" and imported when they are asked for.

    Attributes:
        name: As vaults store it: lower case, without blanks.
        kind: One of :data:`KINDS`.
        algorithm: Its class, whose ``name`` is this one.
        config: Class of its settings. That of a central one is a
            :class:`~privbo_plugins.algorithms.protocols.CentralConfig`.

    Raises:
        ValueError: For another kind, or a place that is none.

    Example:
        >>> entry("dp-gibo").load_algorithm().__name__
        'DPGIBO'
    """

    name: str
    kind: str
    algorithm: str
    config: str

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.lower().replace(" ", "-"):
            raise ValueError(
                f"An algorithm's name is lower case without blanks, got {self.name!r}."
            )
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}.")
        for field in ("algorithm", "config"):
            if not all(getattr(self, field).partition(":")):
                raise ValueError(
                    f"{field} must be written 'module:name', got {getattr(self, field)!r}."
                )

    def load_algorithm(self) -> Any:
        """The algorithm's class."""
        return load(self.algorithm)

    def load_config(self) -> Any:
        """The class of its settings."""
        return load(self.config)


def load(place: str) -> Any:
    """Imports the object at "module:name".

    Raises:
        ImportError: If there is no such module, or no such name in it.
    """
    module, _, name = place.partition(":")
    found = import_module(module)
    if not hasattr(found, name):
        raise ImportError(f"{module} has no {name!r}, where the registry looks for it.")
    return getattr(found, name)


_HERE = "privbo_plugins.algorithms"
_UCB = f"{_HERE}.ldp_gp_ucb"

_BUILT_IN = (
    Entry("dp-gibo", CENTRAL, f"{_HERE}.dp_gibo:DPGIBO", f"{_HERE}.dp_gibo:GIBOConfig"),
    Entry(
        "released-means",
        CENTRAL,
        f"{_HERE}.released_means:ReleasedMeans",
        f"{_HERE}.released_means:MeansConfig",
    ),
    Entry("gp-ucb", REWARD, f"{_UCB}.gp_ucb:GPUCB", f"{_UCB}.config:UCBConfig"),
    Entry("tgp-ucb", REWARD, f"{_UCB}.tgp_ucb:TGPUCB", f"{_UCB}.config:UCBConfig"),
    Entry("ata-gp-ucb", REWARD, f"{_UCB}.ata_gp_ucb:ATAGPUCB", f"{_UCB}.config:UCBConfig"),
    Entry("moma-gp-ucb", REWARD, f"{_UCB}.moma_gp_ucb:MoMAGPUCB", f"{_UCB}.config:UCBConfig"),
    Entry(
        "po-gp-ucb",
        ROW,
        f"{_HERE}.po_gp_ucb.modeler:POGPUCB",
        f"{_HERE}.po_gp_ucb.modeler:RowsConfig",
    ),
    Entry("duets", DISTRIBUTED, f"{_HERE}.duets:DUETS", f"{_HERE}.duets:DUETSConfig"),
    Entry(
        "dp-fts-de", FEDERATED, f"{_HERE}.dp_fts_de:Agent", f"{_HERE}.dp_fts_de:FederationConfig"
    ),
)

_ENTRIES: dict[str, Entry] = {one.name: one for one in _BUILT_IN}


def register(new: Entry) -> Entry:
    """Adds an algorithm of another package; saying the same again changes nothing.

    Other processes (a worker of a database's study, Ray's actors) get the settings by pickle and
    know no more than their class: let that class say where the entry is, with
    ``registered_at = "module:NAME"``, and it is registered there on first use.

    Args:
        new: The entry.

    Returns:
        The entry.

    Raises:
        ValueError: If the name is taken by another entry.
    """
    known = _ENTRIES.setdefault(new.name, new)
    if known != new:
        raise ValueError(
            f"There is another algorithm of the name {new.name!r} ({known.algorithm}), and vaults "
            "know algorithms by their names: give this one a name of its own."
        )
    return new


def entries(*kinds: str) -> tuple[Entry, ...]:
    """All that is registered in this process, or of some kinds."""
    return tuple(one for one in _ENTRIES.values() if not kinds or one.kind in kinds)


def classes(*kinds: str) -> dict[str, Any]:
    """The classes of algorithms of some kinds, by name."""
    return {one.name: one.load_algorithm() for one in entries(*kinds)}


def entry(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ValueError: If there is none.
    """
    if name not in _ENTRIES:
        raise ValueError(
            f"No algorithm of the name {name!r} is registered in this process, only "
            f"{', '.join(_ENTRIES)}. Let the class of its settings say where its entry is: "
            "registered_at = 'module:NAME', in a module that every process can import."
        )
    return _ENTRIES[name]


def algorithm_of(config: CentralConfig) -> type[CentralAlgorithm]:
    """The class of a central algorithm, by its settings.

    Raises:
        ValueError, TypeError: As :func:`entry_of`.
    """
    return cast("type[CentralAlgorithm]", entry_of(config).load_algorithm())


def check_incumbent(config: CentralConfig, space: Space | None) -> None:
    """Refuses an incumbent that is no point of a space, once there is one.

    Raises:
        ValueError: If it is none.
    """
    given = getattr(config, "incumbent", None)  # which other packages' settings need not have
    if space is not None and given is not None:
        space.incumbent(given)


def planned(config: CentralConfig, space: Space, n_records: int, unit: Unit) -> Any:
    """Makes the plan of a run to be, and warns where its delta is large for so many records.

    Args:
        config: Settings of the algorithm.
        space: The search space.
        n_records: Entries of a vector of losses.
        unit: What one of them is.

    Raises:
        ValueError: If there is no such run, or the incumbent is no point of the space.
    """
    check_incumbent(config, space)
    warn_of_asked(config, n_records, unit)
    made: Any = algorithm_of(config).make_plan(config, space, n_records)
    return replace(made, n_asked=config.n_trials, entries=unit.entries)


def warn_of_asked(config: CentralConfig, n_records: int, unit: Unit) -> None:
    """Warns where the delta that settings ask for is large for so many entries of a unit."""
    n = (unit.records_in_blocks or [n_records])[0]
    warn_of_delta(getattr(config, "asked", {}).get("delta"), n, plural(unit.word))


def of_rewards(name: str, given: Any) -> tuple[Any, Any, LocalMechanism | None]:
    """Finds an algorithm that learns from rewards: (its class, its settings, the mechanism).

    Args:
        name: Of the algorithm.
        given: Its settings and those of the privacy, as a user gives them.

    Raises:
        ValueError: For every setting outside its range.
    """
    known = entry(name)
    cls, (mechanism, scale) = known.load_config(), given.made()
    return known.load_algorithm(), cls(**named(given, cls, but=scale), **scale), mechanism


def entry_of(config: CentralConfig) -> Entry:
    """The entry of a central algorithm, by its settings.

    Raises:
        ValueError: If it is not registered, cannot be found where its settings say that it is, is
            of another kind, or has settings of another class.
        TypeError: If the settings name no algorithm.
    """
    kind = type(config)
    name, place = getattr(kind, "algorithm", None), getattr(kind, "registered_at", None)
    if not isinstance(name, str):
        raise TypeError(
            f"{kind.__name__} names no algorithm that tunes on per-record losses: such settings "
            "have algorithm = '...', the name of their entry in the registry."
        )
    if name not in _ENTRIES and place is not None:
        register(_brought(name, place))
    found = entry(name)
    if found.kind != CENTRAL:
        raise ValueError(
            f"{name} is an algorithm of kind {found.kind}, which does not tune on "
            "per-record losses."
        )
    if not isinstance(config, found.load_config()):
        raise ValueError(
            f"{kind.__name__} claims to hold the settings of {name}, whose settings are of class "
            f"{found.config.partition(':')[2]}."
        )
    return found


def _brought(name: str, place: str) -> Entry:
    """The entry that settings say stands somewhere."""
    try:
        return cast(Entry, load(place))
    except ImportError as error:
        raise ValueError(
            f"The entry of {name} is not at {place!r} in this process ({error}): an algorithm "
            "belongs in a module that every process can import, not into a script."
        ) from None
