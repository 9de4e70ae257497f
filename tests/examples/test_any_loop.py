"""A loop that knows neither Optuna nor Ray is as private over the engine as they are."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.any_loop import PrivateLoop, PrivateRewards
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.cli import main as privbo
from privbo_plugins.errors import PrivacyError, PrivacyWarning, SpaceChangedError, VaultError
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.records import Session
from privbo_plugins.spaces import Float, Int, Space
from tests.independence.zoo import ORDINARY, ZOO
from tests.inside import n_compared, rewards_in, session_in, unspent
from tests.leaks import exception_leaks, hostile
from tests.leaks.secrets import Secrets

ROOT = Path(__file__).parents[2]
RECORDS = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
SETTINGS = {
    "n_starts": 2,
    "n_steps": 2,
    "value_share": 0.2,
    "lengthscale": 0.25,
    "noise_ratio": 0.01,
    "step_rule": "adagrad-norm",
    "step_size": 0.15,
}
"""With one parameter a plan of 9 trials."""

LINE = Space({"x": Float(0.0, 1.0)})
PLANE = Space({"x": Float(0.0, 1.0), "k": Int(1, 6)})

ignoring_test_noise = pytest.mark.filterwarnings("ignore:Nothing is protected")


def records_of(folder=None, mu=1.0, **more):
    """A short run, kept in a folder if there is one."""
    config = GIBOConfig(mu, **(SETTINGS | more.pop("settings", {})))
    return PrivateLoop(config, more.pop("space", LINE), **(kept_in(folder) | more))


def rewards_of(folder=None, **more):
    mechanism = make_mechanism(1.0, value_range=(0.0, 1.0))
    return PrivateRewards(mechanism, more.pop("space", LINE), **(kept_in(folder) | more))


def kept_in(folder):
    if folder is None:
        return {}
    return {"vault": f"sqlite:///{folder}/vault.db", "guard": f"{folder}/guard.json"}


def squares(x):
    return np.asarray((x - RECORDS) ** 2)


def told(loop, losses=squares):
    """Every turn until the plan is used up."""
    turns = []
    while not loop.finished:
        key, params = loop.ask()
        turns.append((params, loop.tell(key, losses(**params))))
    return turns


# The same as on the other hosts -----------------------------------------------------------------


def answer(x):
    """One user's; now and then it is none, which counts as what nobody wants."""
    return math.nan if 10 * x % 1 < 0.3 else abs(x - 0.3)


@ignoring_test_noise
@pytest.mark.parametrize(
    ("algorithm", "sampler", "maximize", "at_once"),
    [
        ("gp-ucb", "LDPGPUCBSampler", True, 1),
        ("gp-ucb", "LDPGPUCBSampler", False, 3),
        ("tgp-ucb", "LDPTGPUCBSampler", True, 3),
        ("moma-gp-ucb", "LDPMoMAGPUCBSampler", False, 1),
    ],
)
def test_rewards_are_asked_for_and_released_as_in_optuna(algorithm, sampler, maximize, at_once):
    """Optuna's sampler is the oracle; of records ``raytune_searchers/test_same_sequence.py``."""
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    import optuna_samplers

    space = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    own = {"value_range": (0.0, 1.0), "mechanism": "duchi", "seed": 3, "noise": InsecureNoise(5)}
    made = getattr(optuna_samplers, sampler)(1.0, search_space=space, **own)
    study = optuna.create_study(sampler=made, direction="maximize" if maximize else "minimize")
    private = made.private(lambda trial: answer(trial.params["x"]))
    rewards = rewards_of(seed=3, algorithm=algorithm, maximize=maximize, noise=InsecureNoise(5))
    for _ in range(18 // at_once):
        trials = [study.ask(space) for _ in range(at_once)]
        asked = [rewards.ask(trial.number) for trial in trials]
        assert [params for _, params in asked] == [trial.params for trial in trials]
        for trial, (key, params) in zip(trials, asked, strict=True):
            released = private(trial)
            study.tell(trial, released)
            assert rewards.tell(key, answer(params["x"])) == released
    assert any(math.isnan(answer(trial.params["x"])) for trial in study.trials)
    assert rewards.recommend() == made.recommend(study)


# What it claims ---------------------------------------------------------------------------------


def test_nothing_is_claimed_for_a_tests_noise_and_none_for_no_noise():
    for made in (
        lambda: records_of(noise=InsecureNoise(0)),
        lambda: records_of(mu=math.inf),
        lambda: rewards_of(noise=InsecureNoise(0)),
    ):
        with pytest.warns(PrivacyWarning, match="Nothing is protected"):
            loop = made()
        assert not loop.guarantee().protected


def test_a_key_that_nobody_was_handed_is_refused():
    for loop in (records_of(), rewards_of()):
        with pytest.raises(ValueError, match="handed out no such key"):
            loop.tell("made up", [0.5] * 9)


# The way back -----------------------------------------------------------------------------------


def left_open(folder, kind, *, told):
    """Three turns of a loop that is then gone: the third is told, but nobody hears of it, or not.

    What a process that is killed leaves of a release is tested with the engine.
    """
    loop = records_of(folder, seed=3) if kind == "records" else rewards_of(folder, seed=3)
    who = () if kind == "records" else ("Ann",)
    turns = []
    for n in range(3):
        key, params = loop.ask(*who)
        turns.append([key, params])
        if n < 2 or told:
            measured = squares(**params) if kind == "records" else params["x"]
            turns[-1].append(loop.tell(key, measured))
    return turns


def test_a_point_that_was_left_open_is_handed_out_again(tmp_path):
    turns = left_open(tmp_path, "records", told=False)
    loop = records_of(tmp_path)
    published = session_in(loop).published(turn[0] for turn in turns[:2])
    assert [told.value for told in published.values()] == [turn[2] for turn in turns[:2]]
    assert loop.guarantee().n_releases == 2
    key, params = loop.ask()
    assert (key != turns[2][0], params) == (True, turns[2][1])
    loop.tell(key, squares(**params))
    n_told, session = 3 + len(told(loop)), session_in(loop)
    last = n_compared(session.releases())
    assert n_told == 2 + 2 * 2 + last
    assert loop.guarantee().mu_spent ** 2 + unspent(session.plan, last) == pytest.approx(1.0)
    assert loop.guarantee().protected


@pytest.mark.parametrize("kind", ["records", "rewards"])
def test_a_release_that_its_loop_never_heard_of_is_replayed(kind, tmp_path):
    turns = left_open(tmp_path, kind, told=True)
    loop = records_of(tmp_path) if kind == "records" else rewards_of(tmp_path)
    before = loop.guarantee()
    for key, _, value in turns:
        assert loop.tell(key, [0.0] * 120) == value
    assert loop.guarantee() == before
    if kind == "records":
        assert before.n_releases == 3
    else:
        assert (before.n_evaluations, before.most_evaluations) == (3, 3)


def test_an_evaluation_that_was_left_open_costs_its_user_nothing(tmp_path):
    turns = left_open(tmp_path, "rewards", told=False)
    rewards = rewards_of(tmp_path, seed=3)
    assert (rewards.guarantee().n_evaluations, rewards.guarantee().most_evaluations) == (2, 2)
    with pytest.raises(ValueError, match="This process has handed out no such key"):
        rewards.tell(turns[2][0], 0.5)
    key, params = rewards.ask("Bob")
    rewards.tell(key, params["x"])
    learnt = [x for x, *_ in rewards_in(rewards)[1].state_dict()["evaluations"]]
    assert learnt == [[point["x"]] for point in (turns[0][1], turns[1][1], params)]
    assert (rewards.guarantee().n_evaluations, rewards.guarantee().most_evaluations) == (3, 2)


def test_a_run_goes_on_with_what_it_was_begun_with_or_not_at_all(tmp_path):
    told(records_of(tmp_path))
    with pytest.raises(ValueError, match="started with other settings"):
        records_of(tmp_path, mu=2.0)
    with pytest.raises(ValueError, match="started with other settings"):
        records_of(tmp_path, maximize=True)
    with pytest.raises(SpaceChangedError):
        records_of(tmp_path, space=PLANE)
    with pytest.raises(VaultError, match="is of another run"):
        rewards_of(tmp_path)
    with pytest.raises(ValueError, match="vault= and guard= together"):
        records_of(vault=f"sqlite:///{tmp_path}/vault.db")
    assert records_of(tmp_path).finished


# What the vault alone tells ---------------------------------------------------------------------


def both(folder):
    """A run of each kind in one vault, with a guard each."""
    loop = records_of(folder, run_name="digits")
    told(loop)
    rewards = rewards_of(
        folder, guard=f"{folder}/users.json", run_name="volume", algorithm="moma-gp-ucb"
    )
    for user in ("Ann", "Bob", "Ann"):
        key, params = rewards.ask(user)
        rewards.tell(key, params["x"])
    return loop, rewards


def test_the_vault_alone_tells_what_each_loop_claims(tmp_path, capsys):
    loops = both(tmp_path)
    url = kept_in(tmp_path)["vault"]
    for loop, name, what in zip(
        loops, ("digits", "volume"), ("records, dp-gibo", "rewards, moma-gp-ucb"), strict=True
    ):
        assert privbo(["guarantee", "--vault", url, "--run", name]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"loop/{name} ({what})\n")
        assert loop.guarantee().details() in printed
        assert what.endswith(loop.stored().algorithm)
    records, rewards = (loop.guarantee() for loop in loops)
    assert records == session_in(loops[0]).guarantee()
    assert rewards == rewards_in(loops[1])[0].guarantee(3, users_named=True)
    assert (records.protected, rewards.protected) == (True, True)


# What gets out ----------------------------------------------------------------------------------


def outcome(tell, own, *told):
    """What a call returns, or its exception, which is searched down to its frames."""
    try:
        return tell(*told)
    except BaseException as caught:
        error = caught
    del told  # the only frame that may know it is a test's
    leaks = exception_leaks(error, own.scanner)
    assert leaks == []
    return f"{error!r}"


RETURNED = hostile.UNUSABLE | hostile.ODD_SCALARS | hostile.ODD_ENTRIES
"""What a loop may tell that is no measurement."""

ABORTED = {name: hostile.ABORTS[name] for name in hostile.ABORTS if "conversion" in name}


def scanned(folder, own, *public):
    files = {path.name: path.read_bytes() for path in folder.iterdir() if "vault" not in path.name}
    assert any(files.values())
    for name, blob in {**files, "returned": repr(public).encode()}.items():
        assert own.hits(name, blob) == []


def test_no_loss_gets_out_however_it_is_told(tmp_path):
    own = Secrets(size=40)
    loop = records_of(tmp_path)
    ways = [*(RETURNED | hostile.NO_VECTOR | ABORTED).values(), *hostile.VECTORS.values()]
    measured = [way(own.told()) for way in ways]
    first = loop.tell(loop.ask()[0], own.vector())  # from now on it is known how many there are
    shown = [first]
    for vector in measured:
        key, params = loop.ask()
        shown += [key, params, outcome(loop.tell, own, key, vector)]
    assert sum("Error" in str(text) for text in shown) > 10
    assert loop.finished
    scanned(tmp_path, own, shown, loop.recommend(), loop.guarantee(), str(loop.guarantee()))


def test_no_reward_and_no_users_name_gets_out_however_it_is_told(tmp_path):
    own = Secrets()
    rewards = rewards_of(tmp_path)
    ways = RETURNED | ABORTED | hostile.NO_REWARD | hostile.REWARDS
    measured = [way(own.told()) for way in ways.values()]
    shown = []
    for reward in measured:
        key, params = rewards.ask(own.user)
        shown += [key, params, outcome(rewards.tell, own, key, reward)]
    with pytest.raises(ValueError, match="A user's name must be") as refused:
        rewards.ask(own.told())
    shown.append(repr(refused.value))
    assert sum("Error" in str(text) for text in shown) > 5
    assert 0 < rewards.guarantee().n_evaluations < len(ways)
    scanned(
        tmp_path, own, shown, rewards.recommend(), rewards.guarantee(), str(rewards.guarantee())
    )
    vault = (tmp_path / "vault.db").read_bytes()
    assert own.hits("vault", vault) == []  # neither a reward nor a name is ever stored


def test_what_the_engine_raises_holds_no_measurement(monkeypatch):
    """The engine itself may fail with the data in its hands: its exception is replaced."""
    own = Secrets(size=40)
    loop = records_of()
    key, _ = loop.ask()

    def failing(session, *told, **_):
        raise RuntimeError(repr(np.asarray(told[-1]).tolist()))

    monkeypatch.setattr(Session, "tell", failing)
    with pytest.raises(PrivacyError, match="failed inside the engine") as caught:
        loop.tell(key, own.vector())
    assert exception_leaks(caught.value, own.scanner) == []


class Deaf(InsecureNoise):
    """The same releases whatever the records are: all else must then be equal too."""

    def add_gaussian(self, value, scale):
        return super().add_gaussian(np.zeros_like(value), 0.1)


def seen_with(record):
    """Everything that a whole run shows if one of its records is this."""
    loop = records_of(seed=3, noise=Deaf(5))
    turns = told(loop, lambda x: [*squares(x)[:-1].tolist(), record()])
    return [turns, loop.recommend(), str(loop.guarantee())]


@ignoring_test_noise
def test_nothing_but_a_release_depends_on_what_a_record_looks_like():
    ordinary = seen_with(lambda: ORDINARY)
    assert len(ordinary[0]) == 9
    assert [name for name, record in ZOO.items() if seen_with(record) != ordinary] == []


# What it is made of -----------------------------------------------------------------------------

_ALONE = """
import sys
for name in ("optuna", "ray", "optuna_samplers", "raytune_searchers"):
    sys.modules[name] = None
import runpy
runpy.run_module("examples.any_loop", run_name="__main__")
"""


def test_it_runs_where_there_is_neither_optuna_nor_ray():
    done = subprocess.run(
        [sys.executable, "-c", _ALONE],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "dp-gibo recommends {" in done.stdout
    assert "gp-ucb recommends {" in done.stdout
    assert "mu = 1 (Gaussian differential privacy)" in done.stdout
    assert "epsilon = 1 at delta = 0 in each evaluation" in done.stdout
    assert "most often had 1 evaluation" in done.stdout
