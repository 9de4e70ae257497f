"""The command line: what is printed before and after a run, and what is refused."""

import json
import math
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import warnings
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.plan import make_federation_plan
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.plan import make_plan
from privbo_plugins.algorithms.reward_plan import make_reward_plan
from privbo_plugins.cli import main, privbo
from privbo_plugins.cli import plan as plans
from privbo_plugins.cli.outcome import carried_out
from privbo_plugins.errors import FederationError, PrivacyWarning
from privbo_plugins.federation import FederatedServer, connect
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.sessions.stored import NOT_KNOWN, run_named, runs_of
from privbo_plugins.spaces import Categorical, Float, Int, Space
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import open_vault
from tests.test_imports import HEAVY, loaded_by

from .helpers import in_threads
from .listeners import eventually, free_address

ROOT = Path(__file__).resolve().parents[2]

LINE = Space({"x": Float(0.0, 1.0)})
SHORT = GIBOConfig(mu=1.0, n_starts=2, n_steps=1)
PAIR = FederationConfig(n_agents=2, epsilon=4.0, n_rounds=2)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/vault.db"


# One program ------------------------------------------------------------------------------------

REWARDS = ["plan", "rewards", "--epsilon", "1", "--range", "-1", "1", "--trials", "9"]
RECORDS = ["plan", "dp-gibo", "--mu", "1", "--records", "5000"]
FEDERATED = ["plan", "federation", "--agents", "29", "--set", "z=2"]
MIXED = ["--space", "C:0.01:100:log", "depth:1:8:int", "kernel=rbf,poly"]


def test_asking_what_there_is_imports_nothing_heavy():
    heavy = {*HEAVY, "numpy", "scipy", "tqdm"} - {"click"}
    assert not heavy & set(loaded_by("privbo_plugins.cli")[""])
    probe = (
        "import sys\nfrom privbo_plugins.cli import main\n"
        "main(sys.argv[1:])\nprint(*sys.modules)\n"
    )
    for arguments in (["--help"], ["plan", "--help"], ["curator", "release", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", probe, *arguments], cwd=ROOT, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout.startswith("Usage: privbo")
        modules = set(done.stdout.splitlines()[-1].split())
        assert "privbo_plugins.cli" in modules
        assert not heavy & modules


def test_the_module_and_the_installed_command_are_one():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["privbo"].partition(":")
    assert getattr(import_module(module), name) is main
    done = subprocess.run(
        [sys.executable, "-m", "privbo_plugins", *REWARDS],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith("9 evaluations: one privatised reward")


def test_whoever_types_nothing_is_shown_what_there_is(capsys):
    for typed in ([], ["plan"], ["federation"]):
        assert main(typed) == main([*typed, "--help"]) == 0
        bare, helped = capsys.readouterr().out.split("Usage: ")[1:]
        assert bare == helped


ENDED = {
    IndexError("Jane Doe"): (
        1, "Failed inside (IndexError). What it says is withheld: it may quote data.\n"
    ),
    KeyboardInterrupt(): (130, ""),
}  # fmt: skip


@pytest.mark.parametrize("error", ENDED, ids=repr)
def test_what_fails_inside_is_told_by_its_kind_alone(error, capsys, monkeypatch):
    def fails(**_given):
        raise error

    monkeypatch.setattr(plans.rewards, "callback", fails)
    code = main(REWARDS)
    out, err = capsys.readouterr()
    assert ((code, err), out) == (ENDED[error], "")


def test_words_too_many_are_refused_and_not_quoted(capsys):
    """One may be a password."""
    for slip in (["hunter2"], ["--pasword=hunter2"], ["-phunter2"], ["--pasword", "hunter2"]):
        assert main([*REWARDS, *slip]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("Usage: privbo plan rewards")
        assert "hunter2" not in out + err


def test_every_command_has_help_and_names_a_missing_word(printed, capsys):
    assert printed("--version") == f"privbo, version {version('privbo-plugins')}\n"
    for words, command in every_command().items():
        said = printed(*words.split(), "--help")
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert all(one.opts[0] in said and one.help for one in options)
        if words == "doctor":  # which needs nothing
            continue
        assert main(words.split()) == 2
        assert "Error: Missing " in capsys.readouterr().err


def test_options_of_several_words_may_also_be_repeated(printed):
    once = printed(*RECORDS, "--space", "x:0:1", "y:0:1")
    assert printed(*RECORDS, "--space", "x:0:1", "--space", "y:0:1") == once
    assert printed(*RECORDS, "--space=x:0:1", "--space=y:0:1") == once


def every_command(made=privbo, words=""):
    """All commands by the words that call them."""
    if not isinstance(made, click.Group):
        return {words.strip(): made}
    below = [every_command(one, f"{words} {name}") for name, one in made.commands.items()]
    return {name: one for found in below for name, one in found.items()}


SINGLE = [
    (words, option.opts[0])
    for words, one in every_command().items()
    for option in one.params
    if isinstance(option, click.Option) and not option.multiple
]
"""Every option that takes one value, and its command."""


@pytest.mark.parametrize(("words", "name"), SINGLE, ids=map(" ".join, SINGLE))
def test_an_option_of_one_value_is_not_given_twice(words, name, capsys):
    (option,) = (one for one in every_command()[words].params if name in one.opts)
    values = [] if option.is_flag else ["Jane"] * option.nargs
    assert main([*words.split(), name, *values, name, *values]) == 2
    said = capsys.readouterr().err
    assert f"{name} was given 2 times" in said
    assert "Jane" not in said
    assert "None" not in said
    together = name == "--run" and words in {"guarantee", "certificate"}
    assert ("label --run A B" in said) == together


COMMANDS = {
    "plan dp-gibo": [*RECORDS[2:], *MIXED],
    "plan rewards": REWARDS[2:],
    "plan federation": FEDERATED[2:],
    "guarantee": ["--run", "digits"],
    "report": ["--run", "digits", "--out", "r.html"],
    "certificate": ["--run", "digits", "--out", "c.json"],
    "verify": ["issued.json"],
    "label": ["--run", "digits", "--data-label", "wards"],
    "doctor": [],
    "curator release": [
        "data.csv", "--columns", "age:0:1", "--epsilon", "4", "--delta", "1e-6", "--out", "n.npz",
        "--run", "new",
    ],
    "curator answer": ["--request", "r.json", "--out", "a.json", "--outcome", "y", "data.csv"],
    "curator report": ["--table", "table.npz"],
}  # fmt: skip
"""Every command but ``federation serve``, which ends with its federation, and what it needs."""

READING = {name for name in COMMANDS if not name.startswith(("plan", "curator release", "doctor"))}
"""Commands that refuse a vault which is not there."""


@pytest.fixture
def folder(tmp_path, monkeypatch, printed):
    """Where a vault lies, and files with which every command can run."""
    monkeypatch.chdir(tmp_path)
    vault, ages = "sqlite:///private.db", np.linspace(0, 1, 20)
    records(vault)
    printed("certificate", "--vault", vault, "--out", "issued.json", "--run", "digits")
    Path("data.csv").write_text("\n".join(["age,y", *(f"{age},{1 - age}" for age in ages), ""]))
    columns = {"bounds": [(0, 1)], "columns": ["age"]}
    Curator(ages[:, None], epsilon=4, delta=1e-6, vault=vault, **columns).release().save(
        "table.npz"
    )
    return tmp_path


def test_every_command_is_among_these():
    found = every_command()
    assert set(found) == {*COMMANDS, "federation serve"}
    takes_vault = {
        words for words, one in found.items() if any("--vault" in o.opts for o in one.params)
    }
    assert takes_vault == READING | {"curator release", "federation serve", "doctor"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_reader_has_ended_says_nothing(command, folder, capsys, monkeypatch):
    """Standard output is a pipe that has been closed, as by ``| head``."""
    vault = [] if command.startswith("plan") else ["--vault", "sqlite:///private.db"]
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as unheard:
        monkeypatch.setattr(sys, "stdout", unheard)
        code = main([*command.split(), *COMMANDS[command], *vault])
    assert (code, capsys.readouterr().err) == (141, "")
    made = [name for name in ("r.html", "c.json", "n.npz") if name in COMMANDS[command]]
    assert all((folder / name).is_file() for name in made)


@pytest.mark.parametrize("command", sorted(READING))
@pytest.mark.parametrize("mistyped", ["privat.db", "gone/private.db", "other.txt"])
def test_a_vault_that_is_not_there_is_refused_and_none_is_made(command, mistyped, folder, refused):
    before = sorted(folder.iterdir())
    said = refused(*command.split(), *COMMANDS[command], "--vault", f"sqlite:///{mistyped}")
    assert f"There is no vault file {mistyped}, and none was made." in said
    assert "private.db'" not in said  # a neighbour, whose name the user has not typed
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("command", sorted({*READING, "curator release"}))
def test_what_is_no_vault_on_disk_is_refused(command, folder, refused):
    own = [*command.split(), *COMMANDS[command], "--vault"]
    assert "--vault must be a file or" in refused(*own, "memory")
    assert "hunter22" not in refused(*own, "postgresql://u:hunter22@@:bad/db")


def test_only_the_engines_warnings_are_printed(capsys):
    """Whether another library warns may depend on an entry."""

    def act():
        warnings.warn("overflow encountered in 4711", RuntimeWarning, stacklevel=1)
        warnings.warn("4711 is odd", UserWarning, stacklevel=1)
        warnings.warn("Nothing is protected.", PrivacyWarning, stacklevel=1)
        warnings.warn("Nothing is protected.", PrivacyWarning, stacklevel=1)

    assert carried_out(act) == 0
    assert capsys.readouterr().err == "WARNING: Nothing is protected.\n"


def test_a_doctor_tells_what_there_is_writes_nothing_and_names_nothing_private(
    folder, printed, capsys, monkeypatch
):
    monkeypatch.setenv("HOME", str(folder.parent))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    said = printed("doctor", "--vault", "private.db")
    with sqlite3.connect("private.db") as database:
        (lines,) = database.execute("SELECT count(*) FROM privbo_events").fetchone()
    assert f"2 runs, {lines} lines whose chain fits; " in said
    assert f"numpy: {np.__version__}\n" in said
    assert str(folder.parent) not in said
    assert "digits" not in said
    assert json.loads(printed("doctor", "--json"))["system's entropy"] == "works"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before

    with sqlite3.connect("private.db") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE of_another_program (x)")
        before = {path: path.read_bytes() for path in folder.iterdir()}
        assert len(before) >= 3, "a log beside the file"
        assert "2 runs, " in printed("doctor", "--vault", "private.db")
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
    database.close()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert "2 runs, " in printed("doctor", "--vault", "private.db")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    open_vault("private.db").close()
    Path("private_jane.db").touch()

    with sqlite3.connect("private.db") as database:
        database.execute("UPDATE privbo_events SET payload = '' WHERE seq = 3")
    monkeypatch.setattr(os, "urandom", lambda _: b"")
    for wrong in (
        "private.db",
        "private_jan.db",
        "gone.db",
        "postgresql://u:hunter22@127.0.0.1:9/db",
        "env:UNSET",
    ):
        assert main(["doctor", "--vault", wrong]) == 2
        said = capsys.readouterr().out
        assert "\nvault: FAILED: " in said
        assert "system's entropy: FAILED" in said
        assert "hunter22" not in said
        assert str(folder) not in said.partition("\nvault: ")[2]
        assert "jane" not in said
    assert not Path("gone.db").exists()


# Plans ------------------------------------------------------------------------------------------


def mixed_plan():
    space = {"C": Float(0.01, 100.0, log=True), "depth": Int(1, 8), "kernel": Categorical("rp")}
    return make_plan(GIBOConfig(mu=1.0, n_trials=60, clipping_norm=0.5), Space(space), 5000)


PLANS = {
    "records, with the time": (
        [*RECORDS, *MIXED, "--trials", "60", "--set", "clipping_norm=0.5",
         "--seconds-per-trial", "1200", "--workers", "4"],
        lambda: mixed_plan().presented(1200.0, 4),
    ),
    "records, by epsilon": (
        ["plan", "dp-gibo", "--epsilon", "4", "--delta", "1e-5", "--records", "5000",
         "--space", "x:0:1"],
        lambda: make_plan(GIBOConfig(epsilon=4.0, delta=1e-5), LINE, 5000),
    ),
    "rewards, with the time": (
        ["plan", "rewards", "--epsilon", "1", "--range", "-1", "1", "--trials", "400",
         "--seconds-per-trial", "2"],
        lambda: make_reward_plan(make_mechanism(1.0, bound=1.0), 400).presented(2.0),
    ),
    "federation, with the time": (
        [*FEDERATED, "--rounds", "4", "--seconds-per-trial", "60"],
        lambda: make_federation_plan(FederationConfig(29, z=2.0, n_rounds=4)).presented(60.0, 29),
    ),
    "few records": (
        ["plan", "dp-gibo", "--mu", "0.1", "--records", "50", "--space", "x:0:1"],
        lambda: make_plan(GIBOConfig(mu=0.1), LINE, 50),
    ),
    "without noise": (
        ["plan", "dp-gibo", "--mu", "inf", "--records", "50", "--space", "x:0:1"],
        lambda: make_plan(GIBOConfig(mu=math.inf), LINE, 50),
    ),
    "rewards": (
        ["plan", "rewards", "--epsilon", "1", "--range", "0", "1", "--trials", "400"],
        lambda: make_reward_plan(make_mechanism(1.0, value_range=(0.0, 1.0)), 400),
    ),
    "federation, a server that is not trusted": (
        [*FEDERATED, "colluding=3", "--trust", "aggregate"],
        lambda: make_federation_plan(FederationConfig(29, z=2.0, trust="aggregate", colluding=3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_the_engines_for_people_and_for_programs(kind, capsys):
    arguments, made = PLANS[kind]
    plan = made()
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == f"{plan}\n"
    assert err.startswith("WARNING: The noise of one step is" if kind == "few records" else "")
    assert bool(err) == plan.noise_dominates
    assert main([*arguments, "--json"]) == 0
    expected = plan.to_dict() | {"noise_dominates": plan.noise_dominates}
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([*RECORDS, "--space", "x:0:1", "--set", "nsteps=3"], "There is no setting 'nsteps'"),
        ([*RECORDS, "--space", "x:0:1", "--trials", "3"], "n_trials=3 leaves no room"),
        ([*RECORDS, "--space", "x:0:1", "x:0:2"], "names a parameter twice"),
        ([*RECORDS, "--space", "x:1:1"], "at least one parameter that varies"),
        ([*REWARDS[:3], "0", *REWARDS[4:]], "got 0.0"),
        (
            ["plan", "rewards", "--epsilon", "1", "--range", "1", "0", "--trials", "9"],
            r"low < high, got (1.0, 0.0)",
        ),
        (FEDERATED[:-2], "epsilon= (a budget) or z="),
        ([*FEDERATED, "q=2"], "got 2"),
        ([*FEDERATED, "prior=3"], "There is no setting 'prior'"),
        ([*FEDERATED, "q=much"], "q must be a number in (0, 1], got 'much'"),
    ],
)
def test_a_plan_that_cannot_be_names_rule_and_value(arguments, why, refused):
    assert why in refused(*arguments)


@pytest.mark.parametrize("text", ["x", "x:0", "x:a:1", "x:0:1:lug", "x:0:1:log:log", "x:2:1"])
def test_a_parameter_that_is_none_is_refused_with_the_forms_that_there_are(text, capsys):
    assert main([*RECORDS, "--space", text]) == 2
    assert f"{text!r} must be name:low:high" in capsys.readouterr().err


# Vaults -----------------------------------------------------------------------------------------


def records(url, steps=9, config=SHORT):
    """A whole run of per-record losses."""
    session = Session.open(open_vault(url), "optuna/digits", config, maximize=False, seed=1)
    session.set_space(LINE)
    go_on(session, range(steps))
    return session


def go_on(session, trials):
    """More trials, as long as the plan has some."""
    for trial in trials:
        if not session.finished:
            x = session.ask(str(trial)).x
            session.tell(str(trial), LINE.decode(x), LINE, np.linspace(0.1, 0.9, 20))


def rewards(url, users=("Jane", "Joe", "Jane")):
    ledger = RewardSession(make_mechanism(1.0, bound=1.0), open_vault(url), "optuna-ldp/1f2e")
    for trial, user in enumerate(users):
        ledger.release(str(trial), 0.25, user, worst=-1.0)
    return ledger


def federation(url):
    server = FederatedServer(PAIR, space=LINE, vault=url)
    for agent in (0, 1):
        server.connect(agent).submit(np.ones(PAIR.message_length))
    return server


def table(url, **answers):
    X = np.linspace(0.1, 0.9, 12)[:, None]
    curator = Curator(
        X, epsilon=2.0, delta=1e-6, bounds=[(0, 1)], outcomes=1 - X[:, 0], vault=url, **answers
    )
    curator.release()
    for row in (3, 1):
        curator.evaluate(row)
    return curator


RANDOMISED = {"outcome_epsilon": 1.0, "outcome_range": (0.0, 1.0)}


def own_claim(host):
    return str(host.guarantee().details())


RUNS = {
    "records": (records, "digits", own_claim),
    "rewards": (rewards, "1f2e", lambda ledger: ledger.guarantee(3, users_named=True).details()),
    "rewards of nobody": (
        lambda url: rewards(url, (None, None)),
        "1f2e",
        lambda ledger: ledger.guarantee(2, users_named=False).details(),
    ),
    "federation": (federation, "federation", own_claim),
    "rows": (table, "table", own_claim),
    "rows, randomised": (lambda url: table(url, **RANDOMISED), "table", own_claim),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_vault_tells_the_hosts_own_claim_and_what_is_not_known_and_nothing_in_it_changes(
    run, url, tmp_path, printed
):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")
    begin, name, claimed = RUNS[run]
    host = begin(url)  # still there meanwhile
    kind, claim, own = run.split(",")[0].split(" ")[0], claimed(host), ["--vault", url]
    own += ["--run", name]

    def contents():
        with closing(sqlite3.connect(tmp_path / "vault.db")) as database, database:
            return list(database.iterdump())

    before = contents()
    headline, *parts, unknown = printed("guarantee", *own).rstrip().split("\n\n")
    paragraph = "\n\n".join(parts)
    assert kind in headline
    assert paragraph == claim
    assert unknown.splitlines()[1:] == [f"- {fact}" for fact in NOT_KNOWN[kind]]

    told = json.loads(printed("guarantee", *own, "--json"))
    assert (told["kind"], told["not_known"]) == (kind, list(NOT_KNOWN[kind]))
    stored_claim = run_named(open_vault(url), name).guarantee.to_dict()
    assert told["guarantee"] == json.loads(json.dumps(stored_claim))
    assert told["guarantee"]["protected"] is True

    printed("report", *own, "--out", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text()
    for part in (
        f"{claim.split()[0]} protected: each ",
        "What this vault alone cannot know",
        "head of the ledger",
    ):
        assert part in page
    assert page.count("<svg ") >= 1
    assert kind != "records" or "<td>x</td>" in page

    printed("guarantee", "--vault", url)
    assert contents() == before


def test_all_runs_of_a_vault_are_listed_with_their_claims(url, printed):
    held = records(url), federation(url), table(url, **RANDOMISED)
    ledger = rewards(url)
    ledger.run.mark_unprotected("a reason")
    AgentHistory("oslo", LINE, vault=url).append(0, np.array([0.25]), 0.48151623)
    said = printed("guarantee", "--vault", url)
    lines = dict(line.split("  (", 1) for line in said.splitlines() if "  (" in line)
    assert lines["optuna/digits"].startswith("records, dp-gibo; ")
    assert lines["optuna-ldp/1f2e"].endswith("3 releases)  NOT PROTECTED: a reason")
    assert "nothing to claim" in lines["agent:federation/oslo"]
    assert "0.4815" not in said
    told = json.loads(printed("guarantee", "--vault", url, "--json"))["runs"]
    protected = {run["run"]: run["protected"] for run in told}
    assert protected == {
        "agent:federation/oslo": None,
        "federation:federation": True,
        "optuna-ldp/1f2e": False,
        "optuna/digits": True,
        "outsourced:table": True,
    }
    assert sorted(lines) == sorted(protected)
    assert held


def test_a_name_that_fits_several_runs_or_none_is_refused_with_all_names(url, refused, printed):
    held = records(url), federation(url)
    typed = {"": "", "study": "", "optuna/digit": "'optuna/digits'", "ligits": "'digits'"}
    for name, meant in typed.items():
        more = ["--run", name] * bool(name)
        said = refused("report", "--vault", url, "--out", "r.html", *more)
        assert "'federation:federation', 'optuna/digits'" in said
        assert "privbo label --run A B --data-label NAME" in said
        assert ("names none or several" in said) == bool(more)
        assert ("Did you mean" in said) == bool(meant)
        assert not meant or f"Did you mean {meant}?" in said
    assert "--run A B --data-label NAME" in printed("guarantee", "--vault", url)
    assert len(runs_of(open_vault(url))) == len(held)


def test_a_run_without_a_release_claims_nothing_and_has_no_report_yet(url, printed, refused):
    open_vault(url).close()
    assert printed("guarantee", "--vault", url) == "The vault holds no run yet.\n"
    Session.open(open_vault(url), "optuna/new", SHORT, maximize=False)
    assert "in 0 releases" in printed("guarantee", "--vault", url, "--run", "new")
    for out, why in (("r.html", "Nothing has been released"), ("r.pdf", "got --out 'r.pdf'")):
        assert why in refused("report", "--vault", url, "--out", out)


def test_a_run_of_an_algorithm_from_outside_says_that_it_is_not_known_here(url, printed, refused):
    settings = records("memory").run.settings | {"algorithm": "theirs"}
    begin_or_join(open_vault(url), "optuna/digits", settings)
    said = refused("guarantee", "--vault", url, "--run", "digits")
    assert "'theirs' is registered" in said
    records(url.replace("vault.db", "both.db"))
    begin_or_join(open_vault(url.replace("vault.db", "both.db")), "optuna/theirs", settings)
    both = printed("guarantee", "--vault", url.replace("vault.db", "both.db"))
    assert "'theirs' is registered" in both
    assert "as far as the vault knows, protected" in both


# A served federation ----------------------------------------------------------------------------


@contextmanager
def serving(*typed):
    """A server of its own, which has printed its first line; it is killed in the end."""
    served = subprocess.Popen(
        [sys.executable, "-m", "privbo_plugins", "federation", "serve", *typed],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, preexec_fn=hears_interrupts,
    )  # fmt: skip
    try:
        yield served
    finally:
        served.kill()
        served.wait()


def of_two(folder, *more):
    """How two agents are served."""
    return [
        "--agents", "2", "--epsilon", "4", "--rounds", "2", "--space", "x:0:1", "--vault",
        f"sqlite:///{folder}/server.db", "--secret", str(folder / "key"), "--invitations",
        str(folder / "in"), *more,
    ]  # fmt: skip


def line(served):
    return served.stdout.readline()


def ended(served, by=signal.SIGTERM):
    served.send_signal(by)
    said = served.communicate(timeout=120)
    assert served.returncode == 0
    return said


def hears_interrupts():
    """A shell without job control starts what runs in the background deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def invitations(folder):
    return [(folder / "in" / f"agent-{agent}.invitation").read_text() for agent in (0, 1)]


def takes_part(text, rounds):
    link = connect(text)
    link.join(LINE.to_dict())
    for _ in range(rounds):
        t = link.submit(np.ones(link.config.message_length))
        assert t is not None
        assert link.collect(t) is not None
    link.close()


def both_take_part(folder, act):
    assert in_threads(2, lambda n: act(invitations(folder)[n])) == []


def test_a_served_federation_releases_its_rounds_and_ends_with_its_guarantee(tmp_path, printed):
    """Invitations outlive it, and are for their owner alone."""
    _, port = free_address()
    listening = ("--listen", f"127.0.0.1:{port}")
    with serving(*of_two(tmp_path, *listening)) as served:
        first, texts = line(served), invitations(tmp_path)
        assert first.startswith(f"Listening on 127.0.0.1:{port}.")
        link = connect(texts[0])
        assert f"SHA-256 {link.fingerprint}." in first
        assert re.fullmatch(r"([0-9A-F]{2}:){31}[0-9A-F]{2}", link.fingerprint)
        link.close()
        both_take_part(tmp_path, lambda text: takes_part(text, 2))
        time.sleep(0.5)
        out, err = ended(served, signal.SIGINT)
    assert err == ""
    assert "2 rounds released, 0 to come." in out
    claim = out[out.index("Privacy ") :].rstrip()
    assert re.match(r"Privacy +epsilon = 4\.00 at delta = \S+, for a whole agent", claim)
    assert not any(text.rpartition("#")[2] in first + out for text in texts)
    url = f"sqlite:///{tmp_path}/server.db"
    assert claim in printed("guarantee", "--vault", url, "--run", "federation")

    with serving(*of_two(tmp_path, *listening)) as served:
        assert line(served).startswith(f"Listening on 127.0.0.1:{port}.")
        assert invitations(tmp_path) == texts
        ended(served)
    assert len(set(texts)) == 2
    assert stat.S_IMODE((tmp_path / "in").stat().st_mode) == 0o700
    for path in [tmp_path / "key", *(tmp_path / "in").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_server_is_set_up_by_a_file_and_tells_how_it_is(tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f"""
        agents = 2
        epsilon = 4.0
        rounds = 7
        space = "x:0:1"
        vault = "sqlite:///{tmp_path}/server.db"
        secret = "{tmp_path}/key"
        invitations = "{tmp_path}/in"
        health = "127.0.0.1:0"
        hold = false
        """
    )
    with serving(settings, "--rounds", "2") as served:
        assert line(served).startswith("Listening on 127.0.0.1:")
        url = line(served).removeprefix("Its health: ").strip()
        facts = {"able": True, "rounds_released": 0, "rounds_left": 2, "trouble": ""}
        assert health(url) == facts
        with pytest.raises(urllib.error.HTTPError, match="404"):
            health(url.replace("/health", "/secret"))
        (tmp_path / "server.db").rename(tmp_path / "away.db")  # the vault is gone
        (tmp_path / "server.db").write_text("no database")

        def tries(text):
            with suppress(FederationError):
                takes_part(text, 1)

        both_take_part(tmp_path, tries)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            eventually_fails(url)
        served.send_signal(signal.SIGTERM)
        out, _ = served.communicate(timeout=120)
    assert "rounds released" not in out


def test_a_round_that_is_given_up_is_seen_in_health(tmp_path):
    """One of two agents comes, and the sum of one alone is never opened; then both do."""
    how = ("--trust", "aggregate", "--deadline", "3", "--health", "127.0.0.1:0")
    with serving(*of_two(tmp_path, *how)) as served:
        line(served)
        url = line(served).removeprefix("Its health: ").strip()
        with pytest.raises(FederationError, match="1 agents of at least 2 were there"):
            takes_part(invitations(tmp_path)[0], 1)
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            eventually_fails(url)
        facts = json.loads(caught.value.read())
        assert (facts["able"], facts["rounds_left"]) == (False, 2)
        assert "Round 1 was not released: 1 agents of at least 2" in facts["trouble"]
        both_take_part(tmp_path, lambda text: takes_part(text, 2))
        facts = {"able": True, "rounds_released": 2, "rounds_left": 0, "trouble": ""}
        eventually(lambda: says(url, facts))
        _, err = ended(served)
    assert err.count("WARNING: Round 1 was not released") == 1


def health(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def says(url, facts):
    with suppress(urllib.error.HTTPError):  # not able yet
        return health(url) == facts


def eventually_fails(url):
    for _ in range(600):
        health(url)
        time.sleep(0.1)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_invitations_go_into_no_folder_that_others_can_write(tmp_path, mode, refused):
    (tmp_path / "in").mkdir()
    (tmp_path / "in").chmod(mode)
    said = refused("federation", "serve", *of_two(tmp_path))
    assert "Other users can write into" in said
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("agents = ", "are no TOML"),
        ("password = 'hunter2'\n[", "are no TOML"),
        ("[space]\nx = 3", "The setting space in the file must be"),
        ("password = 'hunter2'", "No such option '--password'"),
        ("hold = 'hunter2'", "The setting hold in the file must be"),
        ("agents = 0", "x>=1"),
        ("listen = 7000", "'7000' must be host:port"),
        ("trust = 'nobody'", "'server', 'aggregate'"),
    ],
)
def test_a_file_of_settings_with_a_slip_is_refused(content, message, tmp_path, capsys):
    path = tmp_path / "settings.toml"
    whole = "" if "agents" in content else "agents = 3\n"
    more = f"""
        space = ["x:0:1"]
        vault = "env:NOWHERE"
        secret = "{tmp_path}/key"
        invitations = "{tmp_path}/in"
        """
    path.write_text(content if "[" in content else whole + content + more)
    assert main(["federation", "serve", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "hunter2" not in said
    assert main(["federation", "serve", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_a_federation_cannot_be_served_over_nothing(tmp_path, refused, capsys):
    own, none = ["federation", "serve", *of_two(tmp_path)], str(tmp_path / "none")
    (tmp_path / "file").touch()
    for name, value, why in (
        ("--vault", "memory", "--vault must be"),
        ("--invitations", str(tmp_path / "file"), "must be a folder"),
    ):
        at = own.index(name) + 1
        assert why in refused(*own[:at], value, *own[at + 1 :])
    assert "PEM certificates" in refused(*own, "--cert", none, "--key", none)
    assert main([*own, "--listen", "7000"]) == 2
    assert "'7000' must be host:port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["verfy"], "No such command 'verfy'. Take verify "),
        (["curator", "realese"], "No such command 'realese'. Take release "),
        (["plan", "outsourced"], "Outsourced: sampler.plan() in Python."),
        (["plan", "duets"], "LDP, DUETS: rewards."),
        (["status"], "No such command 'status'. Take plan, guarantee, report, "),
        (
            ["plan", "dp-gibo", "--mu", "1", "--records", "9", "--space", "C:1:0"],
            "low end must be",
        ),
        (["plan", "dp-gibo", "--mu", "1", "--records", "9", "--space", "C:0:1:log"], "low > 0"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_there_is(typed, told, capsys):
    assert main(typed) == 2
    assert told in " ".join(capsys.readouterr().err.split())
