"""What the command line prints and writes of a vault: no secret that the vault holds, or held."""

import warnings
from functools import partial

import numpy as np
import pytest

from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
from privbo_plugins.algorithms.po_gp_ucb.exchange import write_request
from privbo_plugins.cli import main
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault
from tests.drivers import ON_STUDIES
from tests.leaks.secrets import Secrets
from tests.systems import PRIVATE_ANSWERS, Rows, objective_of

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")


def of_study(system, n_trials, url, **settings):
    """A study's secrets, and what holds the vault."""
    hosted = ON_STUDIES[system](vault=url, **settings)
    own = Secrets(size=None if hosted.named else 16)
    study = hosted.study(study_name="s")
    named = {"user_id": lambda trial: own.user} if hosted.named else {}
    private = hosted.private(objective_of(own, {}), **named)
    study.optimize(private, n_trials=n_trials)
    return own, private


def rows(url):
    """Rows, and outcomes that are randomised."""
    own = Rows()
    own.scanner.add_vector("y", own.y)
    curator = own.curator(own.y, vault=url, **PRIVATE_ANSWERS)
    own.scanner.allow(np.abs(curator.release().Z).ravel().tolist())
    for row in (4, 7):
        curator.evaluate(row)
    return own, curator


def agent(url):
    """An agent's own trials, which are in the vault as they are."""
    own = Secrets()
    history = AgentHistory("s", Space({"x": Float(0.0, 1.0)}), vault=url)
    for number in range(3):
        history.append(number, np.array([own.reward()]), own.reward())
    return own, history


HELD = {
    "records": partial(of_study, "records", 4, batch_size=3),  # raw losses of a batch are there
    "rewards": partial(of_study, "rewards", 5, mechanism="laplace"),
    "outside": partial(of_study, "outside", 4),
    "any sampler": partial(of_study, "any sampler, local", 5, mechanism="laplace"),
    "duets": partial(of_study, "duets", 5),
    "rows": rows,
    "agent": agent,
}
"""What a vault holds, and whose secrets it was made of."""


@pytest.mark.parametrize("what", HELD)
def test_no_secret_of_a_vault_is_printed_or_written(what, tmp_path, capfd):
    url = f"sqlite:///{tmp_path}/vault.db"
    with warnings.catch_warnings(action="ignore"):
        own, _host = HELD[what](url)
    if what in ("records", "agent"):  # else there would be nothing to find
        assert own.hits("vault", (tmp_path / "vault.db").read_bytes())
    capfd.readouterr()
    page = tmp_path / "report.html"
    done = [main(["guarantee", "--vault", url, *more]) for more in ([], ["--json"])]
    name = runs_of(open_vault(url))[0].name
    for more in ([], ["--json"]):
        done.append(main(["guarantee", "--vault", url, "--run", name, *more]))
    done.append(main(["report", "--vault", url, "--run", name, "--out", str(page)]))
    done.append(main(["report", "--vault", url, "--run", "none", "--out", str(page)]))
    files = [tmp_path / "c.json", tmp_path / "c.md"]
    certify = ["certificate", "--vault", url, "--run", name, "--out", *map(str, files)]
    done += [main(certify), main(["verify", str(files[0]), "--vault", url, "-v"])]
    refused = 2 * (what == "agent")
    assert done == [*[refused] * 5, 2, *[refused] * 2]
    said = capfd.readouterr()
    assert own.hits("printed", f"{said.out}{said.err}".encode()) == []
    for path in (page, *files):
        assert path.exists() == (what != "agent")
        assert not path.exists() or own.hits("written", path.read_bytes()) == []


def test_no_row_leaves_the_curators_side(tmp_path, capfd):
    """What is printed, released, answered and kept, of people whose outcomes are randomised."""
    own = Secrets()
    X, y = own.vector(20), own.vector(20)
    own.add_raw("scaled", X - 0.5)
    people = "".join(f"{own.token},{x},{o}\n" for x, o in np.column_stack([X, y]).tolist())
    data, table, url = tmp_path / "people.csv", tmp_path / "t.npz", f"sqlite:///{tmp_path}/c.db"
    data.write_text(f"name,x,y\n{people}")
    how = ["--epsilon", "2", "--delta", "1e-6", "--outcome-epsilon", "1", "--vault", url]
    how += ["--outcome-range", "0", "1", "--columns", "x:0:1", "--out", str(table)]
    assert main(["curator", "release", str(data), *how]) == 0
    released = ReleasedTable.load(table)
    own.scanner.allow(np.abs(released.Z).ravel().tolist())
    asked, told = tmp_path / "request.json", tmp_path / "answers.json"
    write_request(asked, released.manifest.digest, [1, 2])
    files = ["--request", str(asked), "--out", str(told), "--vault", url]
    assert main(["curator", "answer", str(data), "--outcome", "y", *files]) == 0
    said = capfd.readouterr()
    assert own.hits("data", data.read_bytes())  # the control
    assert own.hits("printed", f"{said.out}{said.err}".encode()) == []
    for path in (table, told, tmp_path / "c.db"):
        assert own.hits(path.name, path.read_bytes()) == []


def test_a_command_that_fails_inside_prints_nothing_of_what_it_read(tmp_path, capfd, monkeypatch):
    """A curator's file, and a library that quotes it."""
    own = Secrets()
    y = own.reward()
    (tmp_path / "people.csv").write_text(f"age,name\n{y},{own.token}\n")

    def quotes(*_args, **_more):
        raise TypeError(f"{own.token}: {y!r}")

    monkeypatch.setattr("privbo_plugins.sessions.tables.checked_rows", quotes)
    url = f"sqlite:///{tmp_path}/vault.db"
    code = main(
        ["curator", "release", str(tmp_path / "people.csv"), "--columns", "age:0:1", "--epsilon",
         "1", "--delta", "1e-6", "--vault", url, "--out", str(tmp_path / "t.npz")]
    )  # fmt: skip
    said = capfd.readouterr()
    assert code == 1
    assert said.err == (
        "Failed inside (TypeError). What it says is withheld: it may quote data.\n"
    )
    assert own.hits("printed", f"{said.out}{said.err}".encode()) == []


def test_control_a_command_that_quotes_is_found(tmp_path, capfd, monkeypatch):
    own = Secrets()
    y = own.reward()
    with monkeypatch.context() as patch:
        patch.setattr("privbo_plugins.cli.outcome.said", lambda error: f"{error} {y!r}")
        assert main(["guarantee", "--vault", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert own.hits("printed", capfd.readouterr().err.encode())
