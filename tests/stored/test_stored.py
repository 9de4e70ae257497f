"""What version 0.1 left half-finished is opened, continued and guarded by this one.

The files under ``v0_1`` were written by that version's own code (``make.py``), and are opened here
by programs as they were written for it (``scripts.py``).
"""

from __future__ import annotations

import json
import math
import pickle
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from optuna_samplers import FederatedServer, FederationConfig, PrivateSampler, answer_trials
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
from privbo_plugins.errors import FederationError, SpaceChangedError, VaultError
from privbo_plugins.store.tables import SCHEMA
from privbo_plugins.store.vault import open_vault
from tests.inside import trial_of_number
from tests.stored import scripts
from tests.stored.files import Rows, contents, restore
from tests.stored.make import said

# A trial that is evaluated again reports again.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The reported value is ignored:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* is called .* now; the old name:DeprecationWarning"),
]

HERE = Path(__file__).parent / "v0_1"

_PRESENT = {
    "epsilon_play": "epsilon_evaluation", "delta_play": "delta_evaluation",
    "n_plays": "n_evaluations", "most_plays": "most_evaluations",
}  # fmt: skip
"""Names of a guarantee's figures by those that version 0.1 gave them."""

_LINES = ("privbo_ledger", "privbo_releases", "privbo_marks")
"""Tables whose rows are never changed."""


class Left:
    """What a run of version 0.1 left, in a folder of this test's.

    Attributes:
        folder: Where its files lie.
        facts: What was true when it stopped.
        before: Every row of its vault.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        restore(HERE / name, folder)
        self.facts: dict[str, Any] = json.loads((HERE / name / "facts.json").read_text())
        self.vault = folder / "vault.db"
        self.before = contents(self.vault)

    def now(self) -> Rows:
        """Every row of the vault as it is."""
        return contents(self.vault)

    def settings(self, host_key: str = "") -> dict[str, Any]:
        """What the vault says that a run was started with."""
        runs = [run for run in self.before["privbo_runs"] if run[1].startswith(host_key)]
        (found,) = runs
        return dict(json.loads(found[2]))

    def tuning(self, **changes: Any) -> scripts.Tuning:
        """The program, as it was written for version 0.1."""
        return as_then(scripts.TUNING[self.name], self.folder, **changes)

    def lost(self, run: scripts.Tuning) -> optuna.Trial:
        """The trial whose worker died between its release and its end."""
        return trial_of_number(run.study, self.facts["lost"][0])


def as_then(program: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a program whose keywords may have newer names."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        return program(*args, **kwargs)


@pytest.fixture
def left(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    found = Left(request.param, tmp_path / "left")
    for name, place in scripts.places(found.folder).items():
        monkeypatch.setenv(name, place)
    return found


def over(*names: str) -> pytest.MarkDecorator:
    """The test runs over what these programs left."""
    return pytest.mark.parametrize("left", names, indirect=True)


def lines(rows: Rows) -> set[tuple[Any, ...]]:
    """What no later version may change or forget: charges, releases, evaluations and marks."""
    return {(table, *row) for table in _LINES for row in rows[table]} | plays(rows)


def plays(rows: Rows) -> set[tuple[Any, ...]]:
    """Without pseudonyms: a name gets another one where it is now spelt in one way."""
    return {("play", run, trial, *cost) for run, trial, _, *cost in rows["privbo_plays"]}


def drawn(rows: Rows) -> tuple[int, ...]:
    """Numbers of charges, of releases, and of evaluations with a release."""
    released = [row for row in rows["privbo_plays"] if row[-1] is not None]
    return len(rows["privbo_ledger"]), len(rows["privbo_releases"]), len(released)


def assert_no_less(guarantee: Any, then: Mapping[str, float]) -> None:
    """A guarantee that holds, and names no smaller loss than then."""
    now = said(guarantee)  # raises where nothing is claimed
    present = {_PRESENT.get(name, name): number for name, number in then.items()}
    assert set(now) >= set(present)
    for name, number in present.items():
        assert now[name] >= number * (1 - 1e-12), name


def assert_chained(left: Left) -> None:
    """Every line that the older version wrote is in the chain, and the chain is whole."""
    rows = left.now()
    chained = {row[1:4] for row in rows["privbo_chain"]}
    assert [row[0] for row in sorted(rows["privbo_chain"])] == [*range(1, len(chained) + 1)]
    for run, kind, key, *_ in left.before["privbo_ledger"]:
        assert (run, "charge", f"{kind}/{key}") in chained
    for run, _seq, kind, key, _payload in left.before["privbo_releases"]:
        assert (run, kind, key) in chained
    for run, trial, *_, value in left.before["privbo_plays"]:
        assert (run, "paid", trial) in chained
        assert value is None or (run, "play", trial) in chained
    marks = sum(kind == "mark" for _, kind, _ in chained)
    assert marks >= len(left.before["privbo_marks"])


def one_trial(left: Left) -> None:
    """By a process of its own."""
    run = left.tuning()
    run.study.optimize(run.private, n_trials=1)


@contextmanager
def put_back(left: Left) -> Iterator[None]:
    """What happens inside is undone, as by restoring a backup of the vault."""
    backup = left.folder / "backup.db"
    shutil.copy(left.vault, backup)
    yield
    shutil.copy(backup, left.vault)


# Studies ----------------------------------------------------------------------------------------

EACH_STUDY = over(*scripts.TUNING)


@EACH_STUDY
def test_a_study_and_its_ledger_read_as_they_did(left: Left) -> None:
    run = left.tuning()
    assert_no_less(run.guarantee(), left.facts["guarantee"])
    if _has_guarantee(run):
        sampler: Any = run.study.sampler
        assert_no_less(sampler.guarantee(run.study), left.facts["guarantee"])
    for number, (params, value) in left.facts["trials"].items():
        trial = run.study.trials[int(number)]
        assert (trial.params, trial.value) == (params, value)
    assert lines(left.before) <= lines(left.now())
    assert drawn(left.now()) == drawn(left.before)


def _has_guarantee(run: scripts.Tuning) -> bool:
    return hasattr(run.study.sampler, "guarantee")


@EACH_STUDY
def test_a_release_whose_worker_died_is_replayed_and_not_drawn_again(left: Left) -> None:
    number, params, release = left.facts["lost"]
    run = left.tuning()
    paid = {row for row in left.before["privbo_ledger"] if row[1] != "training"}
    assert run.private(left.lost(run)) == release
    assert run.private(left.lost(run)) == release
    rows = left.now()
    assert rows["privbo_releases"] == left.before["privbo_releases"]
    assert plays(rows) == plays(left.before)
    assert {row for row in rows["privbo_ledger"] if row[1] != "training"} == paid
    run.study.tell(number, release)
    assert run.study.trials[number].params == params
    assert_no_less(run.guarantee(), left.facts["guarantee"])


@over("records")
def test_what_a_crash_kept_from_a_study_is_told_to_it(left: Left) -> None:
    number, _, release = left.facts["lost"]
    run = left.tuning()
    assert run.study.sampler.replay(run.study) == [number]  # type: ignore[attr-defined]
    assert run.study.trials[number].value == release
    assert drawn(left.now()) == drawn(left.before)
    assert_no_less(run.guarantee(), left.facts["guarantee"])


@EACH_STUDY
def test_a_study_goes_on_to_its_end(left: Left) -> None:
    run = left.tuning()
    number, _, release = left.facts["lost"]
    run.study.tell(number, run.private(left.lost(run)))
    run.study.optimize(run.private, n_trials=run.n_trials - len(run.study.trials))
    assert {t.state for t in run.study.trials} == {TrialState.COMPLETE}
    assert run.study.trials[number].value == release
    assert_no_less(run.guarantee(), left.facts["guarantee"])
    assert lines(left.before) <= lines(left.now())
    assert_chained(left)
    if _has_guarantee(run):
        assert "x" in run.study.sampler.recommend(run.study)  # type: ignore[attr-defined]
    again = left.tuning()  # and another process after this one
    assert_no_less(again.guarantee(), said(run.guarantee()))


@over("records")
def test_records_of_an_older_version_pay_for_each_release_once(left: Left) -> None:
    run = left.tuning()
    run.study.sampler.replay(run.study)  # type: ignore[attr-defined]
    run.study.optimize(run.private, n_trials=run.n_trials)
    assert run.study.sampler.finished(run.study)  # type: ignore[attr-defined]
    rows = left.now()
    charges = {(kind, key): mu for _, kind, key, mu, *_ in rows["privbo_ledger"]}
    released = {(kind, key) for _, _, kind, key, _ in rows["privbo_releases"]}
    validation = {name: mu for name, mu in charges.items() if name[0] != "training"}
    assert set(validation) == released
    assert math.isclose(sum(mu**2 for mu in validation.values()), scripts.MU**2)
    assert run.guarantee().mu == scripts.MU


@over(*(name for name in scripts.TUNING if name != "records"))
def test_users_of_an_older_version_pay_for_each_evaluation_once(left: Left) -> None:
    run = left.tuning()
    run.study.tell(left.facts["lost"][0], run.private(left.lost(run)))
    run.study.optimize(run.private, n_trials=run.n_trials - len(run.study.trials))
    paid = left.now()["privbo_plays"]
    assert len(paid) == run.n_trials
    people = {person for _, _, person, *_ in paid}
    then = {person for _, _, person, *_ in left.before["privbo_plays"]}
    assert len(people) == len(then)
    assert (people == then) == (left.name != "numbered_users")  # names are spelt in one way now
    most = max(sum(epsilon for _, _, who, epsilon, *_ in paid if who == p) for p in people)
    if left.name == "moma_gp_ucb":  # Gaussian evaluations of one user cost less together
        assert scripts.EPSILON < run.guarantee().epsilon < most
    else:
        assert math.isclose(run.guarantee().epsilon, most)
    assert {t.value for t in run.study.trials} == {value for *_, value in paid}


@EACH_STUDY
def test_an_older_vault_that_is_put_back_after_it_was_joined_is_refused(left: Left) -> None:
    one_trial(left)
    assert_chained(left)
    with put_back(left):
        one_trial(left)
    before = drawn(left.now())
    with pytest.raises(VaultError, match="older backup"):
        one_trial(left)
    assert drawn(left.now()) == before


@EACH_STUDY
def test_a_pickled_sampler_and_a_pickled_objective_go_on(left: Left) -> None:
    sampler, private = pickle.loads((left.folder / "pickled.pkl").read_bytes())
    storage = scripts.url(left.folder / "study.db")
    study = optuna.load_study(study_name="tuning", storage=storage, sampler=sampler)
    study.optimize(private, n_trials=3)
    assert_no_less(left.tuning().guarantee(), left.facts["guarantee"])
    assert len(study.trials) == len(left.facts["trials"]) + 4
    assert lines(left.before) <= lines(left.now())
    assert_chained(left)


@EACH_STUDY
def test_a_chain_of_an_older_vault_is_checked(left: Left) -> None:
    one_trial(left)
    table = "ledger" if left.name == "records" else "plays"
    cheaper = {"ledger": "mu = mu / 2", "plays": "epsilon = epsilon / 2"}[table]
    with closing(sqlite3.connect(left.vault)) as vault, vault:
        vault.execute(f"UPDATE privbo_{table} SET {cheaper}")
    with pytest.raises(VaultError, match="damaged"):
        one_trial(left)


# Settings of studies ----------------------------------------------------------------------------

OTHER_RECORDS: dict[str, Any] = {
    "mu": 1.5,
    "n_steps": 3,
    "n_trials": 9,
    "batch_size": 2,
    "tolerance": 0.3,
    "n_starts": 1,
    "extra_values": 1,
    "clipping_norm": 0.5,
    "loss_bound": 1.0,
    "value_share": 0.3,
    "norm_share": 0.1,
    "kernel": "matern52",
    "lengthscale": 0.3,
    "noise_ratio": 0.02,
    "step_rule": "adam",
    "step_size": 0.2,
    "memory": 1,
    "centring": False,
    "exact_centre": True,
    "random_start": True,
    "average": 0.5,
    "training_mu": 0.2,
}
"""Each setting that version 0.1 stored, by its name then, and another value for it."""


def _tune_with(left: Left, config: GIBOConfig) -> optuna.Study:
    sampler = PrivateSampler(config, seed=3, vault=scripts.url(left.vault))
    study = scripts.study_in(left.folder, sampler, "minimize")
    study.optimize(sampler.private(scripts.losses), n_trials=1)
    return study


@over("records")
def test_stored_settings_of_records_are_those_that_are_compared(left: Left) -> None:
    assert set(left.settings()["config"]) == set(OTHER_RECORDS)


@over("records")
def test_records_go_on_with_settings_as_they_were_stored(left: Left) -> None:
    config = GIBOConfig.from_dict(left.settings()["config"])
    study = _tune_with(left, config)
    assert_no_less(study.sampler.guarantee(study), left.facts["guarantee"])  # type: ignore[attr-defined]
    assert len(left.now()["privbo_runs"]) == 1


@over("records")
def test_a_setting_that_this_version_does_not_know_is_another_one(left: Left) -> None:
    stored = left.settings()
    config = stored["config"]
    _change(
        left.vault,
        f"""UPDATE privbo_runs SET settings = '{
            json.dumps(stored | {"config": config | {"later": True}})
        }'""",
    )
    with pytest.raises(ValueError, match="later=True then and None now"):
        _tune_with(left, GIBOConfig.from_dict(config))


@over("records")
@pytest.mark.parametrize("name", OTHER_RECORDS)
def test_records_are_refused_any_other_setting(left: Left, name: str) -> None:
    config = left.settings()["config"] | {name: OTHER_RECORDS[name]}
    with pytest.raises(ValueError, match="other settings"):
        _tune_with(left, GIBOConfig.from_dict(config))
    assert lines(left.now()) == lines(left.before)


OTHER_REWARDS: list[tuple[str, dict[str, Any]]] = [
    ("tgp_ucb", {"mechanism": "duchi"}),
    ("tgp_ucb", {"bound": 2.0}),
    ("tgp_ucb", {"user_budget": 40.0}),
    ("gp_ucb", {"reward_range": (0, 2)}),
    ("gp_ucb", {"reward_range": (-1, 1)}),
    ("gp_ucb", {"user_budget": None}),
    ("moma_gp_ucb", {"delta": 1e-4}),
    ("any_sampler", {"epsilon": 1.0}),
]


@pytest.mark.parametrize(
    ("left", "changes"), OTHER_REWARDS, indirect=["left"], ids=lambda value: str(value)
)
def test_a_ledger_of_users_is_refused_any_other_setting(
    left: Left, changes: dict[str, Any]
) -> None:
    run = left.tuning(**changes)
    with pytest.raises(VaultError, match="another mechanism, epsilon, range or user budget"):
        run.study.optimize(run.private, n_trials=1)
    assert lines(left.now()) == lines(left.before)


def _draws(study: optuna.Study) -> list[tuple[int, ...]]:
    told = [trial.system_attrs.get("privbo:draw") for trial in study.trials]
    return [tuple(draw) for draw in told if draw is not None]


@over("duets", "duets_published")
def test_agents_go_on_with_the_draws_that_they_had(left: Left) -> None:
    run = left.tuning()
    before = _draws(run.study)
    following = run.study.ask()
    run.study.tell(following, run.private(following))
    assert following.params == left.facts["next"]  # of the same coins
    run.study.tell(left.facts["lost"][0], run.private(left.lost(run)))
    run.study.optimize(run.private, n_trials=5)
    draws = _draws(run.study)
    assert draws[: len(before)] == before
    assert len(draws) > len(before) > 1
    assert len(set(draws)) == len(draws)  # none is made again
    marks = [trial.system_attrs.get("privbo:duets") for trial in run.study.trials]
    assert len({str(mark) for mark in marks if mark is not None}) == 1


@over("duets")
@pytest.mark.parametrize(
    "changes",
    [
        {"n_trials": 24},
        {"failure": 0.1},
        {"discretisation": 128},
        {"first_epoch": 3},
        {"coins": "private", "trimming": "paper"},
        {"seed": 2},
    ],
    ids=str,
)
def test_agents_are_refused_any_other_setting(left: Left, changes: dict[str, Any]) -> None:
    run = left.tuning(**changes)
    with pytest.raises(SpaceChangedError):
        run.study.optimize(run.private, n_trials=1)
    assert drawn(left.now()) == drawn(left.before)


# A curator and a modeler ------------------------------------------------------------------------

EACH_CURATOR = over("rows", "rows_plain")


def _curator(left: Left, **changes: Any) -> Any:
    return as_then(scripts.curator, left.folder, private=left.name == "rows", **changes)


@EACH_CURATOR
def test_a_table_and_answers_are_told_as_they_were(left: Left) -> None:
    holder = _curator(left, outcomes=lambda _row: 0.0)  # which nobody asks any more
    assert holder.release().Z.tolist() == left.facts["table"]
    assert {str(row): y for row, y in holder.answers().items()} == left.facts["answers"]
    for row, y in left.facts["answers"].items():
        assert holder.evaluate(int(row)) == y
    assert drawn(left.now()) == drawn(left.before)
    assert_no_less(holder.guarantee(), left.facts["guarantee"])
    assert_chained(left)


@EACH_CURATOR
def test_a_modeler_and_a_curator_go_on(left: Left) -> None:
    number, _, answer = left.facts["lost"]
    holder, study = _curator(left), as_then(scripts.modeler, left.folder)
    assert_no_less(study.sampler.guarantee(study), left.facts["of the study"])
    assert answer_trials(study, holder) == 1
    assert study.trials[number].value == answer
    while len(study.trials) < len(scripts.ROWS):
        assert scripts.question_and_answer(study, holder) == 1
    assert sorted(holder.answers()) == [*range(len(scripts.ROWS))]  # each once
    assert_no_less(holder.guarantee(), left.facts["guarantee"])
    assert_no_less(study.sampler.guarantee(study), left.facts["of the study"])
    assert 0 <= study.sampler.recommend(study)["row"] < len(scripts.ROWS)
    assert lines(left.before) <= lines(left.now())
    assert_chained(left)


@EACH_CURATOR
def test_an_older_curators_vault_that_is_put_back_is_refused(left: Left) -> None:
    holder, study = _curator(left), as_then(scripts.modeler, left.folder)
    answer_trials(study, holder)
    with put_back(left):
        scripts.question_and_answer(study, holder)
    scripts.ask_row(study)
    with pytest.raises(VaultError, match="older backup"):
        answer_trials(study, _curator(left))


OTHER_ROWS: dict[str, Any] = {
    "epsilon": 3.0,
    "delta": 1e-7,
    "neighbor_distance": 0.2,
    "norm_bound": 0.5,
    "on_excess": "refuse",
    "bounds": [(18, 98), (10, 61)],
    "columns": ["age", "weight"],
    "projection_seed": 1,
    "r": 1,
    "outcome_epsilon": 3.0,
    "outcome_range": (0, 2),
    "outcome_mechanism": "duchi",
}


@over("rows")
@pytest.mark.parametrize("name", OTHER_ROWS)
def test_a_curator_is_refused_any_other_setting(left: Left, name: str) -> None:
    with pytest.raises(VaultError, match="other settings"):
        _curator(left, **{name: OTHER_ROWS[name]})
    assert lines(left.now()) == lines(left.before)


@over("files")
def test_a_curators_files_are_written_as_they_were(left: Left) -> None:
    assert left.facts["codes"] == [0, 0]
    assert scripts.release_files(left.folder, "again.npz") == 0
    table = ReleasedTable.load(left.folder / "again.npz")
    assert table.Z.tolist() == left.facts["table"]
    assert_no_less(table.certificate.guarantee(3), left.facts["guarantee"])
    assert scripts.answer_files(left.folder, [3, 2]) == 0
    assert scripts.told(left.folder) == left.facts["answers"]
    assert drawn(left.now()) == drawn(left.before)


@over("files")
def test_a_curators_files_go_on_and_refuse_a_vault_put_back(
    left: Left, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scripts.answer_files(left.folder, [3, 4, 5]) == 0
    told = scripts.told(left.folder)
    assert sorted(told) == ["1", "2", "3", "4", "5"]
    assert left.facts["answers"].items() <= told.items()
    assert_chained(left)
    with put_back(left):
        assert scripts.answer_files(left.folder, [6]) == 0
    told = scripts.told(left.folder)
    before = drawn(left.now())
    assert scripts.answer_files(left.folder, [7]) == 2
    assert "older backup" in capsys.readouterr().err
    assert scripts.told(left.folder) == told
    assert drawn(left.now()) == before


@over("files")
def test_an_older_file_of_answers_that_a_vault_does_not_hold_is_kept(
    left: Left, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (left.folder / "answers.json").read_text()
    _change(left.vault, "DELETE FROM privbo_plays")  # a backup of the time before them
    assert scripts.answer_files(left.folder, [1]) == 2
    assert "does not hold" in capsys.readouterr().err
    assert (left.folder / "answers.json").read_text() == written


# Federations ------------------------------------------------------------------------------------

EACH_FEDERATION = over("federation", "federation_explore")


def _config(left: Left) -> FederationConfig:
    kind = "explore" if left.name.endswith("explore") else "prior"
    return as_then(scripts.federation_config, kind)  # type: ignore[no-any-return]


@EACH_FEDERATION
def test_broadcasts_are_those_that_were_sent(left: Left) -> None:
    server = scripts.server(left.folder, _config(left))
    assert [b.weights.tolist() for b in server.broadcasts()] == left.facts["broadcasts"]
    assert server.digests() == left.facts["digests"]
    assert_no_less(server.guarantee(), left.facts["guarantee"])
    assert drawn(left.now()) == drawn(left.before)


@EACH_FEDERATION
def test_a_federation_goes_on_to_its_end(left: Left) -> None:
    config = _config(left)
    server = scripts.server(left.folder, config)
    studies = scripts.agents(left.folder, server)
    scripts.federate(studies, config.n_rounds)
    assert server.finished
    assert server.digests()[:1] == left.facts["digests"]
    assert len(server.ledger()) == config.n_rounds
    for study, then in zip(studies, left.facts["trials"], strict=True):
        assert len(study.trials) == config.n_startup + config.n_rounds
        for number, (params, value) in then.items():
            trial = study.trials[int(number)]
            assert (trial.params, trial.value) == (params, value)
        assert_no_less(study.sampler.guarantee(study), left.facts["guarantee"])
    assert lines(left.before) <= lines(left.now())
    assert_chained(left)


@EACH_FEDERATION
def test_a_server_that_lives_notices_that_an_older_vault_is_put_back(left: Left) -> None:
    server = scripts.server(left.folder, _config(left))
    with put_back(left):
        scripts.federate(scripts.agents(left.folder, server), 2)
    before = drawn(left.now())
    with pytest.raises(VaultError, match="older backup"):
        server.mark("note", "anything")
    assert drawn(left.now()) == before


@over("federation_explore")
def test_a_server_that_lives_draws_nothing_over_an_older_vault_put_back(left: Left) -> None:
    config = _config(left)
    server = scripts.server(left.folder, config)
    with put_back(left):
        scripts.federate(scripts.agents(left.folder, server), 2)
    before = drawn(left.now())
    north, south = (server.connect(name) for name in scripts.AGENTS)
    message = np.zeros(config.message_length)
    north.submit(message)
    with pytest.raises(FederationError, match="refused"):
        south.submit(message)
    assert drawn(left.now()) == before


OTHER_FEDERATIONS: list[tuple[str, str, Any]] = [
    ("federation_explore", "n_agents", 3),
    ("federation", "epsilon", 7.0),
    ("federation_explore", "delta", 0.04),
    ("federation_explore", "n_rounds", 4),
    ("federation_explore", "q", 0.4),
    ("federation_explore", "z", 2.0),
    ("federation_explore", "clipping_norm", 3.0),
    ("federation_explore", "n_regions", 1),
    ("federation_explore", "n_features", 9),
    ("federation_explore", "value_range", [0.0, 2.0]),
    ("federation_explore", "n_startup", 1),
    ("federation", "crowd", "explore"),
    ("federation", "prior", {"level": 0.5}),
    ("federation", "beta", 1.0),
    ("federation_explore", "lengthscale", 0.1),
    ("federation_explore", "noise_variance", 0.001),
    ("federation_explore", "power", 2),
    ("federation_explore", "temperature", {"start": 10.0}),
    ("federation_explore", "feature_seed", 1),
]
"""Each setting that version 0.1 stored, by its name then, and another value for it."""


def _stored_config(left: Left, **changes: Any) -> FederationConfig:
    stored = left.settings("federation:")
    del stored["noise_multiplier"]
    for name, value in changes.items():
        nested = isinstance(value, dict)
        stored[name] = stored[name] | value if nested else value
    return FederationConfig.from_dict(stored)


@over("federation")
def test_stored_settings_of_a_federation_are_those_that_are_compared(left: Left) -> None:
    compared = {name for _, name, _ in OTHER_FEDERATIONS}
    assert set(left.settings("federation:")) == compared | {"noise_multiplier"}


@EACH_FEDERATION
def test_a_federation_goes_on_with_settings_as_they_were_stored(left: Left) -> None:
    config = _stored_config(left)
    assert config == _config(left)
    server = scripts.server(left.folder, config)
    assert server.digests() == left.facts["digests"]


@pytest.mark.filterwarnings("ignore:delta = ")
@pytest.mark.parametrize(("left", "name", "value"), OTHER_FEDERATIONS, indirect=["left"])
def test_a_federation_is_refused_any_other_setting(left: Left, name: str, value: Any) -> None:
    config = _stored_config(left, **{name: value})
    with pytest.raises(ValueError, match="with other settings"):
        FederatedServer(config, vault=scripts.url(left.vault), run="hospitals")
    assert lines(left.now()) == lines(left.before)


@over("agent")
@pytest.mark.parametrize("create", [True, False])
def test_what_an_agent_found_is_read(left: Left, create: bool) -> None:
    history = scripts.history(left.folder, create=create)
    X, values = history.read()
    assert (X.tolist(), values.tolist()) == (left.facts["X"], left.facts["values"])
    assert history.n_trials == left.facts["n_trials"]
    history.append(history.n_trials, np.full(4, 0.5), 0.75)
    assert history.read()[1].tolist() == [*left.facts["values"], 0.75]


# Numbers of the tables ---------------------------------------------------------------------------


def _number(vault: Path) -> list[int]:
    with closing(sqlite3.connect(vault)) as database:
        return [row[0] for row in database.execute("SELECT number FROM privbo_schema")]


def _change(vault: Path, *statements: str) -> None:
    with closing(sqlite3.connect(vault)) as database, database:
        for statement in statements:
            database.execute(statement)


@over("records", "gp_ucb", "rows", "federation", "agent")
def test_tables_of_an_older_vault_get_their_number(left: Left) -> None:
    assert "privbo_schema" not in left.before
    for _ in range(2):
        open_vault(scripts.url(left.vault)).close()
        assert _number(left.vault) == [SCHEMA]
    _change(left.vault, "UPDATE privbo_schema SET number = 1", "DROP TABLE privbo_tokens")
    open_vault(scripts.url(left.vault)).close()
    assert _number(left.vault) == [SCHEMA]
    assert {*left.before, "privbo_chain", "privbo_tokens"} < set(left.now())
    assert lines(left.now()) == lines(left.before)


FUTURE = (
    f"UPDATE privbo_schema SET number = {SCHEMA + 1}",
    "DROP TABLE privbo_tokens",  # which this version would create again
    "CREATE TABLE privbo_future (one INTEGER)",
)


@over("records", "gp_ucb", "rows", "federation", "agent")
def test_a_vault_of_a_later_version_is_refused_and_left_as_it_is(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_vault(scripts.url(left.vault)).close()
    _change(left.vault, *FUTURE)
    written = left.vault.read_bytes()
    monkeypatch.delattr("privbo_plugins.store.vault._pause")  # a second look would change nothing
    programs: dict[str, Callable[[], Any]] = {
        "records": left.tuning,
        "gp_ucb": lambda: left.tuning().study.sampler.private(scripts.reward),  # type: ignore[attr-defined]
        "rows": lambda: scripts.curator(left.folder),
        "federation": lambda: scripts.server(left.folder, _config(left)),
        "agent": lambda: scripts.history(left.folder, create=False),
    }
    for program in (programs[left.name], lambda: open_vault(scripts.url(left.vault))):
        with pytest.raises(VaultError, match="later version") as told:
            program()
        assert f"up to {SCHEMA}" in str(told.value)
    assert left.vault.read_bytes() == written


@over("records")
def test_a_number_that_no_version_has_written_is_no_number(left: Left) -> None:
    open_vault(scripts.url(left.vault)).close()
    _change(left.vault, "UPDATE privbo_schema SET number = 'Jane'")
    with pytest.raises(VaultError) as told:
        left.tuning()
    assert "Jane" not in str(told.value)


# On a server -------------------------------------------------------------------------------------

_TYPES = {"DOUBLE": "DOUBLE PRECISION", "BLOB": "BYTEA"}


def _copied(left: Left, url: str) -> str:
    """The vault in a PostgreSQL database, as version 0.1 would have left it there."""
    import psycopg

    with closing(sqlite3.connect(left.vault)) as vault:
        made = vault.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for (text,) in made:
            for ours, theirs in _TYPES.items():
                text = text.replace(ours, theirs)
            connection.execute(text)
        for table, rows in left.before.items():
            for row in rows:
                places = ", ".join(["%s"] * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({places})", row)
    left.vault.unlink()
    return url


def _on_server(url: str, text: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        done = connection.execute(text)
        return done.fetchall() if done.description else []


@over("records", "gp_ucb")
def test_an_older_vault_on_a_server_goes_on(left: Left, postgres_database: str) -> None:
    url = _copied(left, postgres_database)
    run = left.tuning(vault=url)
    assert_no_less(run.guarantee(), left.facts["guarantee"])
    number, _, release = left.facts["lost"]
    assert run.private(left.lost(run)) == release
    run.study.tell(number, release)
    run.study.optimize(run.private, n_trials=run.n_trials - len(run.study.trials))
    assert_no_less(left.tuning(vault=url).guarantee(), said(run.guarantee()))
    assert _on_server(url, "SELECT number FROM privbo_schema") == [(SCHEMA,)]
    table = "releases" if left.name == "records" else "plays"
    stored = _on_server(url, f"SELECT * FROM privbo_{table}")
    assert set(left.before[f"privbo_{table}"]) < set(stored)
    ((linked,),) = _on_server(url, "SELECT count(*) FROM privbo_chain")
    assert linked >= len(lines(left.before))


@over("records")
def test_a_vault_of_a_later_version_on_a_server_is_refused(
    left: Left, postgres_database: str
) -> None:
    url = _copied(left, postgres_database)
    open_vault(url).close()
    for statement in FUTURE:
        _on_server(url, statement)
    with pytest.raises(VaultError, match="later version"):
        left.tuning(vault=url)
    assert _on_server(url, "SELECT to_regclass('privbo_tokens')") == [(None,)]
    assert _on_server(url, "SELECT number FROM privbo_schema") == [(SCHEMA + 1,)]
