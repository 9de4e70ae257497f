"""``privbo verify --study``: what a study shows beside the vault that a certificate is of."""

import functools
import json
import re
import shutil

import numpy as np
import optuna
import pytest

from optuna_samplers import DPGIBOSampler, LDPMoMAGPUCBSampler, _publish, private_objective
from privbo_plugins import scores
from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.cli import main
from privbo_plugins.federation import FederatedServer
from privbo_plugins.spaces import Float, Space

pytestmark = pytest.mark.usefixtures("study_tables")


def losses(trial):
    return np.linspace(0.1, 0.9, 20) * trial.suggest_float("x", 0, 1)


def reward(trial):
    return 1 - abs(float(trial.suggest_float("x", 0, 1)) - 0.5)


def _sampler(kind, url):
    """A sampler, its private objective, and which way it goes."""
    if kind == "records":
        sampler = DPGIBOSampler(1.0, n_starts=2, n_steps=2, vault=url)
        return sampler, sampler.private(losses), "minimize"
    sampler = LDPMoMAGPUCBSampler(1.0, bound=1.0, seed=0, replays=2, vault=url)
    return sampler, sampler.private(reward), "maximize"


@pytest.fixture(scope="module")
def run_of(tmp_path_factory, empty_study):
    """A folder with a study, its vault and its certificate, which each test copies."""

    @functools.cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        shutil.copy(empty_study, folder / "study.db")
        url, storage = f"sqlite:///{folder}/v.db", f"sqlite:///{folder}/study.db"
        own, private, way = _sampler(kind, url)
        study = optuna.create_study(
            storage=storage, sampler=own, study_name="digits", direction=way
        )
        study.optimize(private, n_trials=5)
        own.guarantee(study)
        assert main(["certificate", "--vault", url, "--out", str(folder / "c.json")]) == 0
        return folder

    return run


@pytest.fixture(params=["records", "rewards"])
def told(request, tmp_path, study_tables, run_of):
    """A study with its certificate, and how it is verified."""
    url, storage = f"sqlite:///{tmp_path}/v.db", f"sqlite:///{tmp_path}/study.db"
    shutil.copytree(run_of(request.param), tmp_path, dirs_exist_ok=True)
    sampler, _, _ = _sampler(request.param, url)
    study = optuna.load_study(study_name="digits", sampler=sampler, storage=storage)
    path = str(tmp_path / "c.json")
    return study, ["verify", path, "--vault", url, "--study", storage, "--study-name", "digits"]


def test_a_study_that_shows_releases_alone_agrees(told, capsys):
    _, command = told
    assert main(command) == 0
    assert re.fullmatch(r"All \d+ lines agree\.\n", capsys.readouterr().out)
    assert main([*command, "-v"]) == 0
    verdict, _, said = capsys.readouterr().out.partition("\n")
    assert re.fullmatch(r"All \d+ lines agree\.", verdict)
    assert "agrees   study: values: 5 trials show what the vault has released" in said
    assert "agrees   study: head: line" in said
    assert "agrees   study: claim: the study shows the vault's guarantee, to the letter" in said


def test_a_guarantee_beside_the_study_refuses_a_vault_that_was_set_back(told, tmp_path, capsys):
    """By paths, and by the study's name: a run of rewards has a code for its own."""
    study, _ = told
    vault, private = tmp_path / "v.db", study.sampler.private
    beside = ["guarantee", "--vault", str(vault), "--study", str(tmp_path / "study.db")]
    shutil.copy(vault, tmp_path / "old.db")
    records = study.direction == optuna.study.StudyDirection.MINIMIZE
    study.optimize(private(losses if records else reward), n_trials=2)
    study.sampler.guarantee(study)
    assert main([*beside, "--run", "digits"]) == 0
    agreeing = 8 if records else 7  # one of the place where the vault was before
    assert f"The study beside it: All {agreeing} lines agree." in capsys.readouterr().out
    shutil.copy(tmp_path / "old.db", vault)
    assert main(beside[:3]) == 0, "the vault alone cannot know it"
    assert "whether it was restored from an older backup" in capsys.readouterr().out
    assert main(beside) == 3
    said = capsys.readouterr().out
    assert "DIFFERS  study: head: the study has seen releases that" in said
    assert "-GDP" not in said
    assert "-LDP" not in said


CHANGED = {"mechanism": "duchi", "epsilon": 0.1, "delta": 1e-9, "low": -0.5, "high": 2.0}


@pytest.mark.parametrize("name", [*CHANGED, "release"])
@pytest.mark.parametrize("told", ["rewards"], indirect=True)
def test_a_changed_digit_beside_a_reward_is_found(told, name, capsys):
    study, command = told
    marker = dict(study.trials[1].user_attrs["privbo:play"])
    changed = {"release": marker["release"] + 0.125, **CHANGED}[name]
    _overwrite(study, "privbo:play", {**marker, name: changed})
    assert main(command) == 3
    assert "DIFFERS  study: beside values" in capsys.readouterr().out


def _overwrite(study, name, value):
    """As an editor of the storage's file would."""
    with study._storage._backend.engine.begin() as connection:
        done = connection.exec_driver_sql(
            "UPDATE trial_user_attributes SET value_json = ? WHERE trial_id = ? AND key = ?",
            (json.dumps(value), study.trials[1]._trial_id, name),
        )
        assert done.rowcount == 1


SEVERAL = {
    "UPDATE trial_values SET value = value + 0.125 WHERE objective = 1": "study: values: 3 of 3",
    "UPDATE trial_system_attributes SET value_json = '-0.125' WHERE key LIKE 'constraints%'":
        "study: beside values",
}  # fmt: skip


@pytest.mark.parametrize("change", SEVERAL)
def test_all_values_and_constraints_of_a_study_of_scores_are_compared(change, tmp_path, capsys):
    url, storage = f"sqlite:///{tmp_path}/v.db", f"sqlite:///{tmp_path}/study.db"
    y = np.arange(20) % 2
    private = private_objective(
        lambda trial: scores.predictions(y, predicted=y * (trial.suggest_float("x", 0, 1) > 0.5)),
        scores=["precision", "recall"], constraints={"recall": 0.5}, mu=1, n_trials=3, vault=url,
    )  # fmt: skip
    both = ["maximize", "maximize"]
    study = optuna.create_study(study_name="digits", storage=storage, directions=both)
    study.optimize(private)
    path = str(tmp_path / "c.json")
    assert main(["certificate", "--vault", url, "--out", path]) == 0
    command = ["verify", path, "--vault", url, "--study", storage, "--study-name", "digits"]
    assert main(command) == 0
    with study._storage._backend.engine.begin() as connection:
        assert connection.exec_driver_sql(change).rowcount == 3
    capsys.readouterr()
    assert main(command) == 3
    assert f"DIFFERS  {SEVERAL[change]}" in capsys.readouterr().out


@pytest.mark.parametrize("told", ["rewards"], indirect=True)
def test_a_study_of_several_objectives_is_refused_in_words(told, capsys):
    study, command = told
    both = ["minimize", "minimize"]
    optuna.create_study(study_name="both", storage=study._storage, directions=both)
    assert main([*command[:-1], "both"]) == 2
    assert "2 directions" in capsys.readouterr().err


def test_a_study_of_another_vault_or_none_is_found(told, tmp_path, capsys):
    study, command = told
    optuna.create_study(study_name="another", storage=study._storage)
    assert main([*command[:-1], "another"]) == 3
    assert "the study has never shown this run" in capsys.readouterr().out
    assert main([*command[:-1], "none"]) == 2
    assert "names no study of this storage" in capsys.readouterr().err
    assert main([*command[:5], f"sqlite:///{tmp_path}/none.db", *command[6:]]) == 2
    assert "names no file that exists" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
    assert main(command[:-2]) == 0, "the run knows the study's name"
    assert main([*command[:-4], *command[-2:]]) == 2
    assert "in the storage that --study gives" in capsys.readouterr().err


def test_a_kind_of_run_that_keeps_no_values_is_refused(tmp_path, capsys):
    url, storage = f"sqlite:///{tmp_path}/v.db", f"sqlite:///{tmp_path}/study.db"
    config = FederationConfig(n_agents=2, epsilon=4.0, n_rounds=2)
    server = FederatedServer(config, space=Space({"x": Float(0, 1)}), vault=url)
    for agent in (0, 1):
        server.connect(agent).submit(np.ones(config.message_length))
    optuna.create_study(study_name="digits", storage=storage)
    path = str(tmp_path / "c.json")
    assert main(["certificate", "--vault", url, "--out", path]) == 0
    study = ["--study", storage, "--study-name", "digits"]
    assert main(["verify", path, "--vault", url, *study]) == 2
    assert "keeps no values of trials" in capsys.readouterr().err


def _added(study):
    study.add_trial(optuna.trial.create_trial(value=0.48151623))


def _pruned(study):
    state = optuna.trial.TrialState.PRUNED
    study.add_trial(optuna.trial.create_trial(state=state, intermediate_values={0: 0.48151623}))


def _running(study):
    study._storage.set_trial_user_attr(study.ask()._trial_id, "raw", [0.48151623, 0.2])


def _ahead(study):
    (name,) = [name for name in study.user_attrs if name.startswith("privbo:head:")]
    n, digest = study.user_attrs[name]
    study.set_user_attr(name, [n + 9, digest])


def _forged_run(study):
    name = "privbo:run" if "privbo:run" in study.user_attrs else "privbo:ldp"
    study.set_user_attr(name, study.user_attrs[name] | {"vault": "0" * 32})


def _forged_place(study):
    head = next(name for name in study.user_attrs if name.startswith("privbo:head:"))
    study.set_user_attr(head.replace("head", "place") + ":" + "a" * 8, "a" * 24)


def _forged_split(study):
    study.set_user_attr("privbo:split", {"given": True, "train": 5, "valid": 10**6})


def _note_of(study):
    said = _publish._Board(study).read("dashboard:note_str:")
    return said[: said.rindex("\n\n*Kept up")]


def _write_note(study, body):
    assert body not in (_note_of(study), _publish._signed(_note_of(study)))
    study._storage.set_study_system_attr(study._study_id, "dashboard:note_str:0", body)


def _forged_note(study):
    body = re.sub(r"\d[\d.]* %", "50 %", _note_of(study))
    _write_note(study, _publish._signed(body))


FALSE = "epsilon = 0.001: not a trace of any record is left."
FORGED = {
    "in front": ("**What", f"# {FALSE}\n\n**What"),
    "of values": ("Each is", "Without risk, each is"),
    "among the recommended": ("### Guarantee", f"{FALSE}\n\n### Guarantee"),
    "in a cell": ("| --- | --- |\n", f"| --- | --- |\n| <h1>{FALSE}</h1> | |\n"),
    "under another heading": ("### Guarantee", f"### Guarantee\n\n{FALSE}\n\n### Guarantee"),
    "in the guarantee": ("- In full", f"- {FALSE}\n- In full"),
    "at the end": ("`privbo:guarantee`.", f"`privbo:guarantee`.\n\n{FALSE}"),
}


@pytest.mark.parametrize("place", FORGED)
def test_a_note_that_was_signed_again_says_nothing_but_what_is_written_here(place, told, capsys):
    study, command = told
    study.sampler.publish(study)
    _write_note(study, _publish._signed(_note_of(study).replace(*FORGED[place])))
    assert main(command) == 3
    assert re.findall("^DIFFERS  study: (.*?): ", capsys.readouterr().out, re.M) == ["note"]


def test_a_note_that_a_user_edited_is_told_apart_and_not_hidden(told, capsys):
    study, command = told
    study.sampler.publish(study)
    assert main(command) == 0
    before = capsys.readouterr().out
    _write_note(study, f"{FALSE}\n\n{_publish._signed(_note_of(study))} Mine.")
    assert main(command) == 3, "the guarantee names it, and was written before"
    study.sampler.guarantee(study)
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert re.findall(r"\d+(?= lines agree)", said) == [
        str(int(n) - 1) for n in re.findall(r"\d+(?= lines agree)", before)
    ]
    assert "NOT COMPARED  study: note: optuna-dashboard's note was edited by a user" in said
    vault, storage = command[command.index("--vault") + 1], command[command.index("--study") + 1]
    assert main(["guarantee", "--vault", vault, "--study", storage]) == 0
    assert "NOT COMPARED  study: note: " in capsys.readouterr().out


HIDDEN = (
    "UPDATE trials SET state = 'FAIL' WHERE number = 1",
    "1 released values are shown by no completed trial (trials 1)",
)
TURNED = (
    "UPDATE study_directions SET direction = 'MAXIMIZE'",
    "DIFFERS  study: direction: not as the vault has it",
)


@pytest.mark.parametrize(
    ("told", "edit", "found"),
    [("records", *HIDDEN), ("rewards", *HIDDEN), ("records", *TURNED)],
    indirect=["told"],
)
def test_an_edit_of_the_database_is_found(told, edit, found, capsys):
    study, command = told
    with study._storage._backend.engine.begin() as connection:
        connection.exec_driver_sql(edit)
    assert main(command) == 3
    assert found in capsys.readouterr().out


def test_a_split_that_was_edited_is_found_and_does_not_go_on(tmp_path, capsys):
    """Only the seed of the split is changed: the number of validation records stays."""
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn_search import PrivateSearch

    url, storage = f"sqlite:///{tmp_path}/v.db", f"sqlite:///{tmp_path}/study.db"
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 2)), rng.integers(2, size=600)
    search = PrivateSearch(
        linear.LogisticRegression(), {"C": optuna.distributions.FloatDistribution(0.1, 10)},
        mu=1.0, n_trials=8, seed=0, vault=url, storage=storage, study_name="s",
        load_if_exists=True,
    )  # fmt: skip
    study = search.fit(X, y).study_
    certificate = f"{tmp_path}/c.json"
    assert main(["certificate", "--vault", url, "--out", certificate]) == 0
    command = ["verify", certificate, "--vault", url, "--study", storage, "-v"]
    assert main(command) == 0
    assert "agrees   study: privbo:split: as the vault has it" in capsys.readouterr().out
    own = study.user_attrs["privbo:split"]
    study.set_user_attr("privbo:split", own | {"by": 7})
    assert main(command) == 3
    assert "DIFFERS  study: privbo:split: not as the" in capsys.readouterr().out
    with pytest.raises(ValueError, match="row i would be another record"):
        search.set_params(random_state=7).fit(X, y)
    study.set_user_attr("privbo:split", own)
    search.set_params(random_state=0).fit(X, y)
    assert main(command) == 0


UNPROTECTED = "NOT PROTECTED. No guarantee holds for this run."
CHANGES = [
    (_added, r"values: 1 of 6 trials show values that .* not released for them \(trials 5\)"),
    (_pruned, "beside values: .*not declared public"),
    (_running, "beside values: .*not declared public"),
    (_ahead, "head: the study has seen releases that"),
    (lambda study: study.set_user_attr("privbo:guarantee", UNPROTECTED),
     "claim: the study says of itself"),
    (lambda study: study.set_user_attr("team", "oncology"), "claim: [a-z]"),
    (_forged_run, "privbo:(run|ldp): [a-z]"),
    (_forged_place, "privbo:place:[0-9a-f]{8}:aaaaaaaa: [a-z]"),
    (_forged_split, "privbo:split: [a-z]"),
    (_forged_note, "note: [a-z]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), CHANGES)
def test_a_change_of_the_study_is_found_and_nothing_is_written(change, line, told, capsys):
    """Though nobody has asked for a guarantee since; others' attributes the paragraph has."""
    study, command = told
    study.sampler.publish(study)
    assert main([*command, "-v"]) == 0
    assert "agrees   study: note: " in capsys.readouterr().out
    change(optuna.load_study(study_name="digits", storage=command[command.index("--study") + 1]))
    before = dict(study.user_attrs)
    assert main(command) == 3
    said = capsys.readouterr().out
    assert re.search(f"^DIFFERS  study: {line}", said, re.M), said
    assert "0.4815" not in said
    assert dict(study.user_attrs) == before
    if "team" in before:
        study.sampler.publish(study)
        assert main(command) == 0
        assert "team" in study.user_attrs["privbo:guarantee"]
