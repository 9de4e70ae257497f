"""What a curator releases and a modeler loads: a table Z, and a certificate of how it was made.

The file is numpy's ``.npz`` (loaded without pickle), or Parquet where pyarrow is installed, with
the certificate as JSON beside the numbers. Whoever has the file can check what was promised.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.privacy.guarantee import OutsourcedGuarantee

Array = NDArray[np.float64]

_FORMAT = "privbo-released-table-1"
_META = b"privbo_certificate"


@dataclass(frozen=True)
class Certificate:
    """How a table was released. Public, all of it.

    Attributes:
        mechanism: "gaussian" or "projection".
        n: Rows.
        d: Columns of the secret table.
        r: Columns of the released one.
        epsilon: What was asked for.
        delta: What was asked for.
        mu: Gaussian DP parameter of the release; None where nothing is claimed.
        neighbor_distance: nu; None for rows that differ in any way.
        norm_bound: R, which rows were clipped to, in released units.
        sensitivity: Delta.
        noise_sd: sigma, in released units; 0 where no noise was added.
        projection: How columns were mixed: "identity", "seeded" with its seed, or "secret".
        scaling: Public bounds of the columns and their names, if given.
        noise: Where the randomness came from.
        protected: Whether differential privacy is claimed.
        reasons: Why it is not, if so.
        ledger: Vault and run in which the release is charged.
        digest: SHA-256 of Z, so that a table and its certificate stay together.
    """

    mechanism: str
    n: int
    d: int
    r: int
    epsilon: float
    delta: float
    mu: float | None
    neighbor_distance: float | None
    norm_bound: float | None
    sensitivity: float | None
    noise_sd: float
    projection: dict[str, Any]
    scaling: dict[str, Any] | None
    noise: str
    protected: bool
    reasons: tuple[str, ...] = ()
    ledger: dict[str, str] = field(default_factory=dict)
    digest: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Certificate:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: If fields are missing or unknown.
        """
        try:
            return cls(**{**fields, "reasons": tuple(fields["reasons"])})
        except (KeyError, TypeError):
            raise ValueError(
                "This is no certificate of a released table, or one of another version."
            ) from None

    def guarantee(self) -> OutsourcedGuarantee:
        """What may be claimed of the table alone; answers are not part of it."""
        return OutsourcedGuarantee(
            protected=self.protected,
            mechanism=self.mechanism,
            epsilon=self.epsilon,
            delta=self.delta,
            neighbor_distance=self.neighbor_distance,
            n_rows=self.n,
            parameters={
                "sensitivity": self.sensitivity,
                "noise_sd": self.noise_sd,
                "norm_bound": self.norm_bound,
                "projection": self.projection["kind"],
            },
            reasons=self.reasons,
        )


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A released table and its certificate.

    Args:
        Z: Row i is the image of the curator's row i, shape (n, r).
        certificate: How it was made.

    Raises:
        ValueError: If Z is not finite, or the certificate is another table's.
    """

    Z: Array
    certificate: Certificate

    def __post_init__(self) -> None:
        if self.Z.ndim != 2 or not np.isfinite(self.Z).all():
            raise ValueError(f"Z must be a finite matrix (n, r), got one of shape {self.Z.shape}.")
        if self.certificate.digest != digest(self.Z):
            raise ValueError(
                "The table and its certificate do not belong together: the table was changed "
                "after its release. Ask the curator for the file again."
            )

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.Z)

    @property
    def r(self) -> int:
        """Number of columns."""
        return int(self.Z.shape[1])

    def guarantee(self) -> OutsourcedGuarantee:
        """What the certificate claims."""
        return self.certificate.guarantee()

    def save(self, path: str | Path) -> Path:
        """Writes ``.npz``, or ``.parquet`` by the path's ending; replaces the file at once.

        Raises:
            ValueError: If the ending is another, or pyarrow is needed and not installed.
        """
        target = Path(path)
        write = _WRITERS[_ending(target)]
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=target.suffix)
        os.close(handle)
        try:
            write(self, Path(name))
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return target

    @classmethod
    def load(cls, path: str | Path) -> ReleasedTable:
        """Reads what :meth:`save` wrote.

        Raises:
            ValueError: If it is no released table, or was changed since.
            FileNotFoundError: If there is no such file.
        """
        source = Path(path)
        read = _READERS[_ending(source)]
        if not source.exists():
            raise FileNotFoundError(f"There is no file {source}.")
        try:
            Z, text = read(source)
            fields = json.loads(text)
            known = fields.pop("format") == _FORMAT
        except (KeyError, TypeError, AttributeError, OSError, ValueError, zipfile.BadZipFile):
            known = False
        if not known:
            raise ValueError(f"{source} is no released table, or one of another version.")
        return cls(Z, Certificate.from_dict(fields))


def digest(Z: Array) -> str:
    """SHA-256 of a table's shape and numbers."""
    made = hashlib.sha256(json.dumps(list(Z.shape)).encode())
    made.update(np.ascontiguousarray(Z, dtype="<f8").tobytes())
    return made.hexdigest()


def _ending(path: Path) -> str:
    if path.suffix not in _WRITERS:
        raise ValueError(f"A released table is a .npz or a .parquet file, got {path.name!r}.")
    return path.suffix


def _described(table: ReleasedTable) -> str:
    return json.dumps({"format": _FORMAT, **table.certificate.to_dict()})


def _write_npz(table: ReleasedTable, path: Path) -> None:
    np.savez(path, Z=table.Z, certificate=np.array(_described(table)))


def _read_npz(path: Path) -> tuple[Array, str]:
    with np.load(path, allow_pickle=False) as stored:
        return np.asarray(stored["Z"], dtype=float), str(stored["certificate"])


def _pyarrow() -> Any:
    try:
        import pyarrow as arrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(
            "Parquet files need pyarrow: pip install pyarrow, or use a .npz file."
        ) from None
    return arrow


def _write_parquet(table: ReleasedTable, path: Path) -> None:
    arrow = _pyarrow()
    columns = {f"z{j}": table.Z[:, j] for j in range(table.r)}
    made = arrow.table(columns).replace_schema_metadata({_META: _described(table).encode()})
    arrow.parquet.write_table(made, path)


def _read_parquet(path: Path) -> tuple[Array, str]:
    stored = _pyarrow().parquet.read_table(path)
    Z = np.column_stack([column.to_numpy() for column in stored.columns])
    return Z, (stored.schema.metadata or {})[_META].decode()


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
_READERS = {".npz": _read_npz, ".parquet": _read_parquet}
