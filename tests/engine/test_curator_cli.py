"""The curator's command line, and the files that go to and fro."""

import json
import math
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
from privbo_plugins.algorithms.po_gp_ucb.exchange import (
    read_answers,
    read_request,
    read_seen,
    write_answers,
    write_request,
)
from privbo_plugins.cli import curator as command_line
from privbo_plugins.cli import main as privbo
from privbo_plugins.cli.curator import column, read_table
from privbo_plugins.files import LogHead


def main(arguments):
    return privbo(["curator", *arguments])


COLUMNS = ["--columns", "age:18:98", "bmi:10:60", "sex=F,M"]
RANDOMISED = ["--outcome-epsilon", "1", "--outcome-range", "-3", "3"]
PRIVACY = ["--epsilon", "2", "--delta", "1e-6"]


@pytest.fixture
def folder(tmp_path):
    """A clinic's folder: 30 people, five of them without an outcome yet."""
    rng = np.random.default_rng(0)
    lines = ["name,age,bmi,sex,score"]
    for i in range(30):
        y = "" if i % 6 == 0 else f"{rng.normal():.4f}"
        lines.append(
            f"Jane Doe {i},{rng.integers(18, 95)},{rng.normal(27, 5):.2f},{'FM'[i % 2]},{y}"
        )
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def replaced(usual, more):
    """Options of one value in place of the usual ones, which may not be given twice."""
    twice = {i for i, word in enumerate(usual) if word.startswith("--") and word in more}
    return [w for i, w in enumerate(usual) if not {i, i - 1} & twice] + [*more]


def release(folder, *more, columns=COLUMNS, out="t.npz"):
    return main(replaced(
        ["release", str(folder / "people.csv"), *columns, *PRIVACY, "--vault",
         f"sqlite:///{folder}/curator.db", "--out", str(folder / out)], more
    ))  # fmt: skip


def answer(folder, *more, outcome="score"):
    return main(replaced(
        ["answer", str(folder / "people.csv"), "--outcome", outcome,
         "--vault", f"sqlite:///{folder}/curator.db", "--request", str(folder / "request.json"),
         "--out", str(folder / "answers.json")], more
    ))  # fmt: skip


def request(folder, *rows):
    table = ReleasedTable.load(folder / "t.npz")
    write_request(folder / "request.json", table.manifest.digest, rows)
    return table


def told(folder):
    table = ReleasedTable.load(folder / "t.npz")
    return read_answers(folder / "answers.json", table.manifest.digest)


def test_a_table_is_released_once_and_written_again(folder, capsys):
    assert release(folder) == 0
    assert "epsilon = 2.00 at delta = 1e-06, for the table" in capsys.readouterr().out
    assert release(folder, out="again.parquet") == 0
    one, two = ReleasedTable.load(folder / "t.npz"), ReleasedTable.load(folder / "again.parquet")
    assert np.array_equal(one.Z, two.Z)
    assert one.manifest == two.manifest
    assert one.Z.shape == (30, 4)
    assert one.manifest.scaling == {
        "columns": ["age", "bmi", "sex=F", "sex=M"],
        "low": [18.0, 10.0, 0.0, 0.0],
        "high": [98.0, 60.0, 1.0, 1.0],
    }


def test_the_file_holds_what_the_bounds_make_of_the_rows(folder):
    """Noise so small that the scaled rows can be read: of columns that stay out, nothing."""
    columns = ["--columns", "bmi:0:100"]
    assert release(folder, "--neighbor-distance", "1e-5", columns=columns) == 0
    lines = (folder / "people.csv").read_text().splitlines()[1:]
    expected = np.array([[float(line.split(",")[2]) / 100 - 0.5] for line in lines])
    assert np.abs(ReleasedTable.load(folder / "t.npz").Z - expected).max() < 1e-3


def test_people_with_several_rows_are_protected_by_the_column_that_names_them(folder, capsys):
    path = folder / "people.csv"
    head, *lines = path.read_text().splitlines()
    visits = [f"{line},{i % 10 or ''}" for i, line in enumerate(lines)]
    path.write_text("\n".join([f"{head},patient", *visits]) + "\n")
    persons = ["--groups", "patient"]
    with_ids = ["--columns", "bmi:0:100", "patient:0:10"]
    assert release(folder, *persons, columns=with_ids) == 2
    assert "leave it out of --columns" in capsys.readouterr().err
    assert release(folder, "--run", "rows", out="rows.npz") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "'patient' reads like the id of a person" in said
    assert "--groups COLUMN protects persons whole" in said
    named = [*persons, "--rows-per-group", "2", "--unit", "patient", *RANDOMISED]
    assert release(folder, *named) == 0
    assert "in the rows of one patient (at most 2 count)" in capsys.readouterr().out
    table = request(folder, 1, 11, 21)
    one_row = math.sqrt(len(table.manifest.scaling["columns"]))
    assert table.manifest.sensitivity == pytest.approx(math.sqrt(2) * one_row, rel=1e-6)
    assert answer(folder) == 2
    assert "give it groups=" in capsys.readouterr().err
    assert answer(folder, *persons) == 0
    assert sorted(told(folder)) == [1, 11, 21]


def test_answers_are_told_once_and_kept_in_the_clinics_own_figures(folder, capsys):
    assert release(folder, *RANDOMISED) == 0
    request(folder, 1, 2)
    assert answer(folder) == 0
    first = told(folder)
    assert sorted(first) == [1, 2]
    request(folder, 1, 2, 6, 3)
    (folder / "answers.json").unlink()
    assert answer(folder) == 0
    assert "Without an outcome yet: rows 6." in capsys.readouterr().err
    later = told(folder)
    assert sorted(later) == [1, 2, 3]
    assert all(later[row] == first[row] for row in first)
    guarantee = json.loads((folder / "answers.json").read_text())["guarantee"]
    assert guarantee["n_answers"] == 3
    assert 2.0 < guarantee["epsilon"] <= 3.0


def test_a_report_is_of_the_file_alone_or_of_the_vaults_answers(folder, capsys):
    """Also which column they come from: one that is neither released nor another's."""
    assert release(folder, columns=["--columns", "age:18:98", "bmi:10:60"]) == 0
    request(folder, 1)
    assert answer(folder, outcome="age") == 2
    assert "Column 'age' is in the released table" in capsys.readouterr().err
    assert not (folder / "answers.json").exists()
    assert answer(folder) == 0  # a refused column ties nothing
    raw = (folder / "people.csv").read_text().splitlines()[2].split(",")[-1]
    assert told(folder) == {1: float(raw)}
    request(folder, 1, 2)
    assert answer(folder, outcome="sex") == 2
    assert "come from column 'score', not from 'sex'" in capsys.readouterr().err
    assert sorted(told(folder)) == [1]
    report = ["report", "--table", str(folder / "t.npz")]
    assert main([*report, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 2.0
    assert main([*report, "--vault", f"sqlite:///{folder}/curator.db"]) == 0
    said = capsys.readouterr().out
    assert "as they are" in said
    assert "answers are tied to one column of the data, by its name" in said


class Strange(ValueError):
    """An error of another library, whose text quotes an entry and which nobody can rebuild."""

    def __init__(self, entry, place):
        super().__init__(f"{entry} at {place}")


@pytest.mark.parametrize("watched", [False, True])
def test_errors_of_other_libraries_are_named_and_not_quoted(folder, capsys, monkeypatch, watched):
    assert release(folder) == 0

    def fails(*_):
        if watched:  # the second round ends it
            monkeypatch.setattr(command_line, "read_outcomes", reads)
        raise Strange("Jane Doe", 7)

    reads = command_line.read_outcomes
    monkeypatch.setattr(command_line, "read_outcomes", fails)
    more = ("--watch", "0.01", "--until", "0") if watched else ()
    assert answer(folder, *more) == (0 if watched else 2)
    seen = capsys.readouterr()
    assert "an exception" in seen.err
    assert "Jane" not in seen.out + seen.err


@pytest.mark.parametrize("watch", [(), ("--watch", "0.01")], ids=["once", "watching"])
def test_until_is_the_most_that_is_ever_told(folder, watch):
    assert release(folder) == 0
    request(folder, *(row for row in range(30) if row % 6))
    for _ in range(2):
        assert answer(folder, *watch, "--until", "4") == 0
        assert len(told(folder)) == 4


@pytest.mark.parametrize("randomised", [True, False])
def test_an_examination_without_a_result_counts_as_the_worst_or_keeps_its_row_waiting(
    folder, capsys, randomised
):
    path = folder / "people.csv"
    lines = path.read_text().splitlines()
    lines[2] = lines[2].rsplit(",", 1)[0] + ",inf"
    path.write_text("\n".join(lines) + "\n")
    how = ["--outcome-epsilon", "20", "--outcome-range", "-3", "3"] if randomised else []
    assert release(folder, *how) == 0
    request(folder, 0, 1, 2)  # row 0 is not known yet
    assert answer(folder) == 0
    assert sorted(told(folder)) == ([1, 2] if randomised else [2])
    if randomised:
        assert told(folder)[1] == pytest.approx(-3.0, abs=6.0)
    else:
        assert "Without an outcome yet: rows 0, 1." in capsys.readouterr().err


def test_answers_that_a_crash_kept_from_the_file_are_written_later(folder):
    assert release(folder) == 0
    table = request(folder, 1, 2)
    assert answer(folder) == 0
    write_answers(folder / "answers.json", table.manifest.digest, {1: told(folder)[1]}, {})
    assert answer(folder) == 0
    assert sorted(told(folder)) == [1, 2]


def test_a_table_of_another_vault_is_not_vouched_for(folder, capsys):
    assert release(folder) == 0
    other = [*PRIVACY, "--vault", f"sqlite:///{folder}/other.db", "--out"]
    data = str(folder / "people.csv")
    assert main(["release", data, *COLUMNS, *other, str(folder / "other.npz"),
                 "--mechanism", "projection"]) == 0  # fmt: skip
    vault = ["--vault", f"sqlite:///{folder}/curator.db"]
    capsys.readouterr()
    assert main(["report", "--table", str(folder / "other.npz"), *vault]) == 2
    assert "is not what this vault has released" in capsys.readouterr().err
    foreign = ReleasedTable.load(folder / "other.npz").manifest.digest
    write_request(folder / "request.json", foreign, [1])
    assert answer(folder) == 2
    assert not (folder / "answers.json").exists()


def test_blank_lines_never_shift_rows(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("age\n30\n\n50\n")
    rows = read_table(path, [column("age:0:99")])
    assert np.isnan(rows[:, 0]).tolist() == [False, True, False]
    path.write_text("age,bmi\n30,20\n\n50,21\n")
    with pytest.raises(ValueError, match="Line 3 is empty"):
        read_table(path, [column("age:0:99")])
    path.write_text("age,bmi\n30,20\n50,21\n\n\n")
    assert len(read_table(path, [column("age:0:99")])) == 2


def test_a_file_whose_first_line_is_no_text_is_refused_without_a_byte_of_it(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"age,\xff\xfe\n3,4\n")
    with pytest.raises(ValueError, match=r"x\.csv is no UTF-8 text") as refusal:
        read_table(tmp_path / "x.csv", [column("age:0:99")])
    assert "0xff" not in str(refusal.value)


ODD_LINES = [
    b"n/k,21,1", b"\xff\xfe,21,1", b"30", b"x" * 200_000 + b",21,1", b'"[3, 4]",21,1', b"1j,2,1",
]  # fmt: skip


@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: line[:12].decode(errors="replace"))
def test_one_line_of_a_file_decides_its_own_entries_alone(line, tmp_path):
    def read(second):
        (tmp_path / "x.csv").write_bytes(b"age,bmi,sex\n30,20,0\n" + second + b"\n50,22,1\n")
        return read_table(tmp_path / "x.csv", [column("age:0:99"), column("bmi:0:99")])

    ordinary, odd = read(b"40,21,1"), read(line)
    assert odd.shape == ordinary.shape
    assert odd[[0, 2]].tobytes() == ordinary[[0, 2]].tobytes()
    assert np.isnan(odd[1]).any()


@pytest.mark.parametrize(
    ("more", "columns", "text"),
    [
        ([], ["--columns", "height:0:1"], "has no column 'height'"),
        (["--delta", "2"], COLUMNS, "delta must lie in (0, 1)"),
        (["--neighbor-distance", "1.2"], COLUMNS, "Column 'sex' holds choices"),
        (["--r", "9"], COLUMNS, "r must lie between 1 and"),
        (["--outcome-range", "0", "1"], COLUMNS, "do nothing without outcome_epsilon"),
        (["--out", "table.txt"], COLUMNS, ".npz or a .parquet"),
        *(
            ([], ["--columns", text], "public bounds")
            for text in ("age", "age:1", "age:low:high", ":1")
        ),
    ],
)
def test_what_is_refused_is_explained_and_quotes_nobody(folder, capsys, more, columns, text):
    assert release(folder, *more, columns=columns) == 2
    seen = capsys.readouterr()
    assert text in seen.err
    assert "Jane" not in seen.err + seen.out
    assert not (folder / "t.npz").exists()


def test_a_file_that_is_missing_is_named(folder, capsys):
    assert release(folder) == 0
    request(folder, 1)
    (folder / "people.csv").unlink()
    assert answer(folder) == 2
    assert "people.csv" in capsys.readouterr().err
    assert not (folder / "answers.json").exists()
    assert main(["report", "--table", str(folder / "none.npz")]) == 2
    assert "none.npz" in capsys.readouterr().err


def test_entries_that_are_missing_or_unknown_count_as_the_middle():
    assert np.isnan(column("age:1:2").read([" NA "])).all()
    assert column("sex=F,M").read(["M", "F"]).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert np.isnan(column("sex=F,M").read(["?"])).all()


# Files ------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder):
    files = ("t.npz", "request.json", "answers.json", "curator.db")
    return {name: stat.S_IMODE((folder / name).stat().st_mode) for name in files}


@pytest.mark.parametrize("randomised", [False, True], ids=["exact", "randomised"])
def test_exact_outcomes_are_for_their_owner_alone_and_other_files_for_whom_the_umask_allows(
    folder, umask, randomised
):
    assert release(folder, *(RANDOMISED if randomised else ())) == 0
    public = 0o666 & ~umask
    for rows in ((1,), (1, 2)):
        request(folder, *rows)
        assert answer(folder) == 0
        assert modes(folder) == {
            "t.npz": public, "request.json": public, "curator.db": 0o600,
            "answers.json": public if randomised else 0o600,
        }  # fmt: skip
        if not randomised:
            (folder / "answers.json").chmod(0o644)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_the_published_mechanism_warns_and_its_table_is_for_its_owner_alone(
    folder, umask, ending, capsys
):
    assert release(folder, "--mechanism", "projection", out=f"t.{ending}") == 0
    assert stat.S_IMODE((folder / f"t.{ending}").stat().st_mode) == 0o600
    seen = capsys.readouterr()
    assert "WARNING: Nothing is protected" in seen.err
    assert seen.out.count("NOT PROTECTED") == 1


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_replacing_a_file_opens_it_to_nobody_new(folder, mode):
    assert release(folder) == 0
    for name in ("t.npz", "request.json"):
        (folder / name).touch()
        (folder / name).chmod(mode)
    assert release(folder) == 0
    write_request(folder / "request.json", "one", [1])
    for name in ("t.npz", "request.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) & 0o077 == mode & 0o077


def test_no_file_is_open_to_others_even_while_it_is_written(folder, monkeypatch):
    assert release(folder) == 0
    request(folder, 1)
    seen = []
    plain = os.replace

    def spied(source, target, *, src_dir_fd, dst_dir_fd):
        seen.append(stat.S_IMODE(os.stat(source, dir_fd=src_dir_fd).st_mode))
        plain(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", spied)
    monkeypatch.setattr(os, "chmod", lambda *_: pytest.fail("created open or closed, not later"))
    assert answer(folder) == 0
    assert set(seen) == {0o600}


@pytest.mark.parametrize("name", ["answers.json", "t.npz", "t.parquet"])
def test_a_name_that_is_exchanged_while_a_file_is_written_gets_nothing(
    folder, monkeypatch, capsys, name
):
    """Whoever may write the folder puts a link where the new file has just been created."""
    if name == "answers.json":
        assert release(folder) == 0
        request(folder, 1)
    loot, swapped = folder / "loot", []
    loot.touch()
    plain = os.open

    def swapping(path, flags, *mode, dir_fd=None):
        opened = plain(path, flags, *mode, dir_fd=dir_fd)
        hidden = Path(os.fsdecode(path)).name
        if flags & os.O_EXCL and hidden.startswith("."):
            (folder / hidden).unlink()
            (folder / hidden).symlink_to(loot)
            swapped.append(hidden)
        return opened

    monkeypatch.setattr(os, "open", swapping)
    if name == "answers.json":
        assert answer(folder) == 2
    else:
        assert release(folder, "--mechanism", "projection", out=name) == 2
    assert len(swapped) == 1
    assert loot.read_bytes() == b""
    assert not (folder / name).exists()
    assert not (folder / swapped[0]).is_symlink()
    assert "only you can write to" in capsys.readouterr().err


# What answer files remember -----------------------------------------------------------------


def put(folder, source, target="curator.db"):
    shutil.copy(folder / source, folder / target)


@pytest.mark.parametrize("how", [[], RANDOMISED], ids=["as they are", "randomised"])
def test_a_vault_that_was_put_back_answers_nothing_anew(folder, capsys, how):
    assert release(folder, *how) == 0
    put(folder, "curator.db", "backup")
    request(folder, 1, 2)
    assert answer(folder) == 0
    written = (folder / "answers.json").read_bytes()
    put(folder, "backup")
    for asked in ((1, 2), (3,)):
        request(folder, *asked)
        assert answer(folder) == 2
        assert "older backup" in capsys.readouterr().err
        assert (folder / "answers.json").read_bytes() == written


@pytest.mark.parametrize("emptied", [False, True], ids=["told", "emptied"])
def test_a_new_file_of_answers_asks_those_beside_it(folder, capsys, emptied):
    assert release(folder, *RANDOMISED) == 0
    request(folder)
    assert answer(folder) == 0  # so that the backup knows where it has lain
    put(folder, "curator.db", "backup")
    request(folder, 1, 2)
    assert answer(folder) == 0
    path = folder / "answers.json"
    if emptied:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"answers": {}}))
    (folder / "else.json").write_text("{}")
    (folder / "folder.json").mkdir()
    new = ["--out", str(folder / "new.json")]
    assert answer(folder, *new) == 0
    (folder / "new.json").unlink()
    put(folder, "backup")
    assert answer(folder, *new) == 2
    assert "older backup" in capsys.readouterr().err
    assert not (folder / "new.json").exists()


def test_a_file_that_lost_its_answers_still_knows_how_far_the_vault_came(folder, capsys):
    assert release(folder, *RANDOMISED) == 0
    put(folder, "curator.db", "backup")
    request(folder, 1, 2)
    assert answer(folder) == 0
    path = folder / "answers.json"
    stored = json.loads(path.read_text())
    heads = {run: dict(seen, places=[]) for run, seen in stored["vault"].items()}
    path.write_text(json.dumps(stored | {"answers": {}, "vault": heads}))
    put(folder, "backup")
    assert answer(folder) == 2
    assert "older backup" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["before", "after"])
def test_of_two_copies_of_a_vault_one_answers_for_one_file(folder, capsys, when):
    """Whether the copy was made before the first answer or after it: the other one notices."""
    assert release(folder, *RANDOMISED) == 0
    elsewhere = ["--vault", f"sqlite:///{folder}/copy.db"]
    if when == "before":
        put(folder, "curator.db", "copy.db")
    request(folder)
    assert answer(folder) == 0
    if when == "after":
        put(folder, "curator.db", "copy.db")
        assert answer(folder, *elsewhere) == 0  # a vault that was moved, as far as it can tell
        elsewhere = []
    path = folder / "answers.json"
    stored = json.loads(path.read_text())
    places = {run: seen | {"n": 0, "digest": ""} for run, seen in stored["vault"].items()}
    path.write_text(json.dumps(stored | {"vault": places}))  # heads alone refuse most copies too
    request(folder, 1)
    assert answer(folder, *elsewhere) == 2
    assert "is a copy" in capsys.readouterr().err
    assert told(folder) == {}


@pytest.mark.parametrize("lost", ["put back", "thrown away"])
def test_a_vault_that_has_lost_a_release_does_not_draw_it_anew(folder, capsys, lost):
    assert release(folder, "--delta", "2", out="none.npz") == 2
    assert main(["release", str(folder / "people.csv"), "--columns", "age:18:98", *PRIVACY,
                 "--vault", f"sqlite:///{folder}/curator.db", "--run", "first",
                 "--out", str(folder / "first.npz")]) == 0  # fmt: skip
    put(folder, "curator.db", "backup")
    assert release(folder) == 0
    written = (folder / "t.npz").read_bytes()
    if lost == "put back":
        put(folder, "backup")
    else:
        (folder / "curator.db").unlink()
    assert release(folder) == 2
    assert "knows nothing of" in capsys.readouterr().err
    assert (folder / "t.npz").read_bytes() == written
    if lost == "put back":
        with closing(sqlite3.connect(folder / "curator.db")) as vault, vault:
            charged = "SELECT count(*) FROM privbo_events WHERE kind = 'charge'"
            assert vault.execute(charged).fetchone() == (1,)


def test_an_answer_that_the_vault_never_gave_is_refused_and_kept(folder, capsys):
    assert release(folder) == 0
    table = request(folder, 1)
    digest = table.manifest.digest
    assert answer(folder) == 0
    right = told(folder)[1]
    for wrong in ({1: right + 1}, {1: right, 2: 0.5}):
        write_answers(folder / "answers.json", digest, wrong, {})
        assert answer(folder) == 2
        assert "does not hold" in capsys.readouterr().err
        assert told(folder) == wrong


def test_requests_and_answers_name_their_table(tmp_path):
    asked, told = tmp_path / "r.json", tmp_path / "a.json"
    assert (read_request(asked, "one", 5), read_answers(told, "one")) == ([], {})
    write_request(asked, "one", [3, 1, 3])
    assert read_request(asked, "one", 5) == [3, 1]
    with pytest.raises(ValueError, match="another released table"):
        read_request(asked, "two", 5)
    with pytest.raises(ValueError, match="integers from 0 to 2"):
        read_request(asked, "one", 3)
    assert read_seen(told, "one") == {}
    seen = {"run": LogHead(3, "abc", ("here", "there"))}
    write_answers(told, "one", {4: 0.5, 2: -1.0}, {"protected": True}, seen)
    assert read_answers(told, "one") == {2: -1.0, 4: 0.5}
    assert read_seen(told, "one") == seen
    with pytest.raises(ValueError, match="no privbo-request-1 file"):
        read_request(told, "one", 5)


_ANSWERS = {"format": "privbo-answers-1", "table": "one", "answers": {}}
WRONG = [
    *(
        (text, read_answers, "is no privbo")
        for text in ("", "[]", '{"format": "else"}', "[" * 10**5)
    ),
    *(
        (json.dumps(_ANSWERS | {"answers": answers}), read_answers, "one finite outcome")
        for answers in ({"1": "x"}, {"-2": 1.0}, {"1": math.nan}, [1], None)
    ),
    *(
        (json.dumps(_ANSWERS | {"vault": seen}), read_seen, "was changed since it was written")
        for seen in ([1], {"a": 1}, {"a": {}}, {"a": {"n": "1", "digest": "", "places": []}})
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "read", "why"), WRONG)
def test_a_file_that_was_changed_or_is_of_another_kind_is_refused(text, read, why, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        read(tmp_path / "a.json", "one")
