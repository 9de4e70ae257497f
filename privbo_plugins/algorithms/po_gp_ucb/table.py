"""What a curator releases and a modeler loads: a table Z, and a manifest of how it was made.

The file is numpy's ``.npz`` (loaded without pickle), or Parquet where pyarrow is installed, with
the manifest as JSON beside the numbers. Every reader of the file can check its claims.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.files import replace_file
from privbo_plugins.privacy.accountant import Event, GaussianEvent, compose_epsilon, gdp_delta
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee
from privbo_plugins.privacy.local import LocalMechanism, make_mechanism
from privbo_plugins.privacy.words import ROW
from privbo_plugins.settings import Rule, Stored, evolve, setting, settings

Array = NDArray[np.float64]

_UNREADABLE = (
    KeyError, TypeError, AttributeError, OSError, ValueError, EOFError, NotImplementedError,
    RecursionError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What readers raise on files that are none of ours."""

MEMORY = "memory"
"""Store of a ledger that ends with its process."""

IN_MEMORY = (
    "the ledger was in a process's memory: another process would release the table anew, and the "
    "losses would add up. A curator needs a vault= on disk"
)

_FORMAT = "privbo-released-table-1"
_META = b"privbo_manifest"


_Text = Annotated[str, Rule("a text", lambda x: isinstance(x, str))]
_Whole = Annotated[int, Rule("an integer", lambda x: type(x) is int)]
_Number = Annotated[  # NaN is none; a sum of two must not overflow
    float,
    Rule("a number", lambda x: type(x) in (int, float) and (abs(x) <= 1e150 or x == math.inf)),
]
_Texts = Annotated[
    tuple[str, ...],
    Rule("texts", lambda x: isinstance(x, tuple) and all(isinstance(t, str) for t in x)),
]
_Facts = Annotated[dict[str, Any], Rule("facts by name", lambda x: isinstance(x, dict))]
_Place = Annotated[
    dict[str, str],
    Rule(
        "texts by name",
        lambda x: isinstance(x, dict) and all(isinstance(t, str) for t in x.values()),
    ),
]
_Mixing = Annotated[
    dict[str, Any],
    Rule("facts with a kind", lambda x: isinstance(x, dict) and isinstance(x.get("kind"), str)),
]


@settings
class TableManifest(Stored):
    """Says how a table was released. Public, all of it.

    {settings}

    Raises:
        ValueError: If a fact is of another kind than it should be.
    """

    mechanism: _Text = setting('"gaussian" or "projection".')
    n: _Whole = setting("Rows.")
    d: _Whole = setting("Columns of the secret table.")
    r: _Whole = setting("Columns of the released one.")
    epsilon: _Number = setting("As it was asked for.")
    delta: _Number = setting("As it was asked for.")
    mu: _Number | None = setting(
        "Gaussian DP parameter of the release; None where nothing is claimed.", default=None
    )
    neighbor_distance: _Number | None = setting(
        "nu; None for rows that differ in any way.", default=None
    )
    norm_bound: _Number | None = setting(
        "R, which rows were clipped to, in released units.", default=None
    )
    sensitivity: _Number | None = setting("Delta.", default=None)
    noise_sd: _Number = setting("sigma, in released units; 0 where no noise was added.")
    projection: _Mixing = setting(
        'How columns were mixed: "identity", "seeded" with its seed, or "secret".'
    )
    unit: _Text = setting("What one of those who are protected is called.", default=ROW)
    rows_per_group: _Whole | None = setting(
        "k, the rows of one of them that count at most; None where each row is one.", default=None
    )
    scaling: _Facts | None = setting(
        "Public bounds of the columns and their names, if given.", default=None
    )
    noise: _Text = setting("Where the randomness came from.")
    protected: bool = setting("Whether differential privacy is claimed.")
    reasons: _Texts = setting("Why it is not, if so.", default=())
    outcomes: _Facts | None = setting(
        "How answers are randomised; None if they are given as they are.", default=None
    )
    ledger: _Place = setting("Vault and run in which the release is charged.", default={})
    digest: _Text = setting(
        "SHA-256 of Z and of all that stands above, so that both stay as they were.", default=""
    )

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TableManifest:
        """Makes the manifest of which :meth:`to_dict` was stored.

        Raises:
            ValueError: If fields are missing or unknown, or of other kinds than they should be.
        """
        try:
            made = super().from_dict(stored)
            mechanism_of(made.outcomes)
            return made
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            pass
        raise ValueError("This is no manifest of a released table, or one of another version.")

    def guarantee(self, n_answers: int = 0) -> OutsourcedGuarantee:
        """Makes the claim for the table, and for one answer a row if answers are randomised.

        Args:
            n_answers: Rows whose outcome has been told.
        """
        mechanism = mechanism_of(self.outcomes)
        k = self.rows_per_group or 1
        delta = total_delta(self.delta, mechanism, k)
        claimed, mu = self.protected and self.mu is not None, self.mu or math.inf
        return OutsourcedGuarantee(
            protected=claimed,
            mechanism=self.mechanism,
            epsilon=total_epsilon(mu, self.epsilon, delta, mechanism, k) if claimed else math.inf,
            delta=delta,
            neighbor_distance=self.neighbor_distance,
            n_rows=self.n,
            unit=self.unit,
            rows_per_group=self.rows_per_group,
            parameters={
                "sensitivity": self.sensitivity,
                "noise_sd": self.noise_sd,
                "norm_bound": self.norm_bound,
                "projection": self.projection["kind"],
                **({} if self.rows_per_group is None else {"rows_per_group": k}),
            },
            outcomes=None if mechanism is None else described(mechanism),
            n_answers=n_answers,
            reasons=self.reasons,
            notes=(IN_MEMORY,) if self.ledger.get("store") == MEMORY else (),
            composed=(frozenset(Counter(of_one(mu, mechanism, k)).items()),),
        )

    @property
    def answer_variance(self) -> float:
        """Variance that randomising adds to an answer; 0 if answers are given as they are."""
        mechanism = mechanism_of(self.outcomes)
        return 0.0 if mechanism is None else mechanism.noise.variance


# The table and one answer together --------------------------------------------------------------


def answer_settings(mechanism: LocalMechanism | None) -> dict[str, Any] | None:
    """Lists how answers are randomised, as a curator's arguments; None if they are not."""
    if mechanism is None:
        return None
    return {
        "outcome_epsilon": mechanism.epsilon,
        "outcome_range": [mechanism.low, mechanism.high],
        "outcome_mechanism": mechanism.name,
        "outcome_delta": mechanism.delta or None,
    }


def mechanism_of(settings: Mapping[str, Any] | None) -> LocalMechanism | None:
    """The inverse of :func:`answer_settings`."""
    if settings is None:
        return None
    low, high = settings["outcome_range"]
    return make_mechanism(
        settings["outcome_epsilon"],
        value_range=(low, high),
        mechanism=settings["outcome_mechanism"],
        delta=settings["outcome_delta"],
    )


def described(mechanism: LocalMechanism) -> str:
    """An answer mechanism in words."""
    settings = ", ".join(f"{k}={v}" for k, v in mechanism.parameters().items())
    return f"clipped to the public range and randomised ({settings})"


def total_delta(delta: float, mechanism: LocalMechanism | None, k: int) -> float:
    """Delta of the table and of one answer to each of a person's k rows."""
    return delta + (0.0 if mechanism is None else k * mechanism.delta)


def total_epsilon(
    mu: float, epsilon: float, delta: float, mechanism: LocalMechanism | None, k: int
) -> float:
    """Epsilon of the table and of one answer a row: other people's answers do not count.

    Args:
        mu: Gaussian DP parameter of the table, for all rows of a person.
        epsilon: Of the table, at its own delta.
        delta: :func:`total_delta`.
        mechanism: Of an answer; None where answers are not part of the claim.
        k: Rows of one person that count at most.
    """
    if mechanism is None:
        return epsilon
    composed = compose_epsilon(of_one(mu, mechanism, k), delta)
    return min(epsilon + k * mechanism.epsilon, composed)


def of_one(mu: float, mechanism: LocalMechanism | None, k: int) -> list[Event]:
    """Lists the releases of one person: k rows of the table at once, and their answers."""
    answers = [] if mechanism is None else [mechanism.evaluation.event] * k
    return [GaussianEvent(mu), *answers]


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A released table and its manifest.

    Args:
        Z: Row i is the image of the curator's row i, shape (n, r).
        manifest: How it was made.

    Raises:
        ValueError: If Z is not finite, the manifest is another table's, or what it says does
            not fit together. This guards against mishaps, not against a forger: ask the curator.
    """

    Z: Array
    manifest: TableManifest

    def __post_init__(self) -> None:
        if self.Z.ndim != 2 or not np.isfinite(self.Z).all():
            raise ValueError(f"Z must be a finite matrix (n, r), got one of shape {self.Z.shape}.")
        if self.manifest.digest != digest(self.Z, self.manifest):
            raise ValueError(
                "The table and its manifest do not belong together: the table was changed "
                "after its release. Ask the curator for the file again."
            )
        if not _consistent(self.manifest):
            raise ValueError(
                "The manifest claims more than its own noise gives. Ask the curator for the "
                "file again."
            )

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.Z)

    @property
    def r(self) -> int:
        """Number of columns."""
        return int(self.Z.shape[1])

    def guarantee(self, n_answers: int = 0) -> OutsourcedGuarantee:
        """Makes the manifest's claim after so many answers."""
        return self.manifest.guarantee(n_answers)

    def save(self, path: str | Path) -> Path:
        """Writes ``.npz``, or ``.parquet`` by the path's ending; replaces the file at once.

        Who may read it is for the umask to say; an unprotected table is for its owner alone.

        Raises:
            ValueError: If the ending is another, or pyarrow is needed and not installed.
        """
        target = Path(path)
        write = _WRITERS[checked_ending(target)]
        protected = self.manifest.protected
        replace_file(target, lambda file: write(self, file), private=not protected)
        return target

    @classmethod
    def load(cls, path: str | Path) -> ReleasedTable:
        """Reads what :meth:`save` wrote.

        Raises:
            ValueError: If it is no released table, or was changed since.
            FileNotFoundError: If there is no such file.
        """
        source = Path(path)
        read = _READERS[checked_ending(source)]
        if not source.exists():
            raise FileNotFoundError(errno.ENOENT, "There is no file", str(source))
        try:
            Z, text = read(source)
            fields = json.loads(text)
            known = fields.pop("format") == _FORMAT
        except _UNREADABLE:
            known = False
        if not known:
            raise ValueError(f"{source} is no released table, or one of another version.")
        return cls(Z, TableManifest.from_dict(fields))


def digest(Z: Array, manifest: TableManifest) -> str:
    """SHA-256 of a table's shape and numbers, and of what its manifest says of them."""
    said = {name: value for name, value in manifest.to_dict().items() if name != "digest"}
    made = hashlib.sha256(json.dumps([list(Z.shape), said], sort_keys=True).encode())
    made.update(np.ascontiguousarray(Z, dtype="<f8").tobytes())
    return made.hexdigest()


def _consistent(said: TableManifest) -> bool:
    """Tells if a manifest's epsilon follows from its noise."""
    if not said.protected:
        return True
    if said.mechanism != "gaussian" or said.mu is None or said.sensitivity is None:
        return False
    enough = said.noise_sd * said.mu >= said.sensitivity * (1 - 1e-9)
    return enough and gdp_delta(said.mu, said.epsilon) <= said.delta * (1 + 1e-6)


def sealed(Z: Array, manifest: TableManifest) -> ReleasedTable:
    """A table with a manifest that names both by their digest."""
    return ReleasedTable(Z, evolve(manifest, digest=digest(Z, manifest)))


def checked_ending(path: Path) -> str:
    """The ending of a file that a table can be written to.

    Raises:
        ValueError: If it is another.
    """
    if path.suffix not in _WRITERS:
        raise ValueError(f"A released table is a .npz or a .parquet file, got {path.name!r}.")
    return path.suffix


def _described(table: ReleasedTable) -> str:
    return json.dumps({"format": _FORMAT, **table.manifest.to_dict()})


def _write_npz(table: ReleasedTable, file: BinaryIO) -> None:
    np.savez(file, Z=table.Z, manifest=np.array(_described(table)))


def _read_npz(path: Path) -> tuple[Array, str]:
    # numpy leaves a file that it opened itself open if it is none of its own
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return np.asarray(stored["Z"], dtype=float), str(stored["manifest"])


def _pyarrow() -> Any:
    try:
        import pyarrow as arrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(
            "Parquet files need pyarrow: pip install pyarrow, or use a .npz file."
        ) from None
    return arrow


def _write_parquet(table: ReleasedTable, file: BinaryIO) -> None:
    arrow = _pyarrow()
    columns = {f"z{j}": table.Z[:, j] for j in range(table.r)}
    made = arrow.table(columns).replace_schema_metadata({_META: _described(table).encode()})
    arrow.parquet.write_table(made, file)


def _read_parquet(path: Path) -> tuple[Array, str]:
    stored = _pyarrow().parquet.read_table(path)
    Z = np.column_stack([column.to_numpy() for column in stored.columns])
    return np.asarray(Z, dtype=float), (stored.schema.metadata or {})[_META].decode()


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
_READERS = {".npz": _read_npz, ".parquet": _read_parquet}
