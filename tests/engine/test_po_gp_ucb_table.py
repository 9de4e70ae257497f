"""Files of released tables: what was written is read, what was changed or is another is not."""

import json
import os
import pickle
import zipfile

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
from privbo_plugins.algorithms.po_gp_ucb.table import digest, sealed
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.settings import evolve

X = np.random.default_rng(0).uniform(size=(30, 3))
ENDINGS = ["npz", "parquet"]
each_ending = pytest.mark.parametrize("ending", ENDINGS)


def released(rows=X):
    return Curator(
        rows, epsilon=1.0, delta=1e-5, bounds=[(0, 1)] * rows.shape[1], r=2, columns="abc"
    ).release()


@pytest.fixture(params=ENDINGS)
def file(request, tmp_path):
    return released().save(tmp_path / f"table.{request.param}")


@each_ending
@pytest.mark.parametrize("as_text", [True, False])
def test_a_table_is_read_as_it_was_written(ending, as_text, tmp_path):
    table, path = released(), tmp_path / f"table.{ending}"
    assert table.save(str(path) if as_text else path) == path
    again = ReleasedTable.load(str(path) if as_text else path)
    assert again.Z.dtype == np.float64
    assert again.Z.tobytes() == table.Z.tobytes()
    assert again.manifest == table.manifest
    assert (again.n, again.r) == (30, 2)
    assert again.guarantee() == table.guarantee()
    assert again.save(tmp_path / f"again.{ending}").exists()


@each_ending
def test_extreme_numbers_and_a_single_cell_survive(ending, tmp_path):
    table = released()
    for Z in (np.array([[5e-324, -0.0], [1.7e308, 1 / 3]]), np.array([[0.1]])):
        made = sealed(Z, table.manifest)
        again = ReleasedTable.load(made.save(tmp_path / f"table.{ending}"))
        assert again.Z.tobytes() == Z.tobytes()


def test_what_is_not_contiguous_is_the_same_table(tmp_path):
    Z = np.asfortranarray(released().Z)
    manifest = released().manifest
    table = ReleasedTable(Z, evolve(manifest, digest=digest(Z.copy(order="C"), manifest)))
    assert np.array_equal(ReleasedTable.load(table.save(tmp_path / "t.npz")).Z, Z)


def test_a_digest_is_that_of_the_shape_and_every_number():
    Z, said = np.arange(6.0).reshape(2, 3), released().manifest
    others = [Z, Z.reshape(3, 2), Z + [[0, 0, 1e-15 * 2]] * 2, Z[:1], Z[::-1],
              np.where(Z == 0, -0.0, Z)]  # fmt: skip
    assert len({digest(other, said) for other in others}) == 6
    assert digest(Z, said) == digest(Z.astype(">f8").astype(float), said)


@pytest.mark.parametrize(
    "changed", [{"noise_sd": 0.5}, {"protected": False}, {"epsilon": 0.1}, {"reasons": ("x",)}]
)
def test_a_manifest_that_was_changed_is_refused(changed):
    table = released()
    with pytest.raises(ValueError, match="do not belong together"):
        ReleasedTable(table.Z, evolve(table.manifest, **changed))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_table_must_be_finite(bad):
    table = released()
    Z = table.Z.copy()
    Z[0, 0] = bad
    with pytest.raises(ValueError, match="finite matrix"):
        sealed(Z, table.manifest)


def rewritten(path, Z, manifest):
    """A file in the right format with other contents."""
    if path.suffix == ".npz":
        np.savez(path, Z=Z, manifest=np.array(manifest))
        return
    import pyarrow as arrow
    import pyarrow.parquet

    columns = {f"z{j}": Z[:, j] for j in range(Z.shape[1])}
    made = arrow.table(columns).replace_schema_metadata({b"privbo_manifest": manifest.encode()})
    pyarrow.parquet.write_table(made, path)


def manifest_text(**more):
    return json.dumps({"format": "privbo-released-table-1", **more})


def test_changed_numbers_are_refused(file):
    table = ReleasedTable.load(file)
    for i, j in ((0, 0), (29, 1)):
        Z = table.Z.copy()
        Z[i, j] = np.nextafter(Z[i, j], 9.0)
        rewritten(file, Z, manifest_text(**table.manifest.to_dict()))
        with pytest.raises(ValueError, match="changed after its release"):
            ReleasedTable.load(file)
    rewritten(file, table.Z[::-1], manifest_text(**table.manifest.to_dict()))
    with pytest.raises(ValueError, match="changed after its release"):
        ReleasedTable.load(file)


class Trap:
    """Leaves a trace if it is unpickled."""

    def __reduce__(self):
        return os.putenv, ("PRIVBO_TRAP", "sprung")


def archive(**arrays):
    return lambda path: np.savez(path, **{"Z": np.zeros((1, 1)), **arrays})


def bare_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 2)))


def zip_of(path):
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("Z.npy", b"no array")
        made.writestr("manifest.npy", b"no array")


WRONG = {
    "text": lambda path: path.write_text("rows, columns\n1,2\n"),
    "nothing": lambda path: path.write_bytes(b""),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Trap())),
    "bare array": bare_array,
    "object array": archive(Z=np.array([[Trap()]], dtype=object), manifest=np.array("{}")),
    "object manifest": archive(manifest=np.array([Trap()], dtype=object)),
    "no manifest": archive(),
    "no JSON": archive(manifest=np.array("{")),
    "a list": archive(manifest=np.array("[1]")),
    "another format": archive(manifest=np.array('{"format": "privbo-released-table-2"}')),
    "no fields": archive(manifest=np.array('{"format": "privbo-released-table-1"}')),
    "texts": archive(Z=np.array([["Jane"]]), manifest=np.array("{}")),
    "zip": zip_of,
}


@each_ending
@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG.keys())
def test_files_that_are_none_are_refused_and_nothing_is_unpickled(
    make, ending, tmp_path, monkeypatch
):
    path = tmp_path / "made.npz"
    make(path)
    path = path.rename(tmp_path / f"table.{ending}")
    sprung = []
    monkeypatch.setattr(os, "putenv", lambda *args: sprung.append(args))
    with pytest.raises(ValueError, match=r"is no (released table|manifest)"):
        ReleasedTable.load(path)
    assert sprung == []


def test_parquet_files_of_others_are_refused(tmp_path):
    import pyarrow as arrow
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    for columns in ({"z0": [1.0]}, {"z0": ["Jane"]}, {}):
        pyarrow.parquet.write_table(arrow.table(columns), path)
        with pytest.raises(ValueError, match="is no released table"):
            ReleasedTable.load(path)
    known = released().manifest.to_dict()
    made = arrow.table({"z0": ["Jane"]}).replace_schema_metadata(
        {b"privbo_manifest": manifest_text(**known).encode()}
    )
    pyarrow.parquet.write_table(made, path)
    with pytest.raises(ValueError, match="is no released table"):
        ReleasedTable.load(path)


@pytest.mark.parametrize("name", ["table", "table.csv", "table.npz.gz", "table.NPZ", "npz"])
def test_other_endings_are_refused(tmp_path, name):
    table = released()
    with pytest.raises(ValueError, match=r"\.npz or a \.parquet file"):
        table.save(tmp_path / name)
    with pytest.raises(ValueError, match=r"\.npz or a \.parquet file"):
        ReleasedTable.load(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@each_ending
def test_a_file_that_is_not_there_is_a_file_not_found(ending, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        ReleasedTable.load(tmp_path / f"table.{ending}")
    with pytest.raises(FileNotFoundError):
        released().save(tmp_path / "nowhere" / f"table.{ending}")
