"""What stands stored wherever a run is cut off, and what ``privbo verify`` makes of a change.

The ledger is read beside the product, from the rows of the vault. It is compared with everything
that a reader of the study has at that moment: after each commit of a charge, so before anything
could be written of it, and whether or not anything is written of it later.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest

from optuna_samplers import _compared as compared
from optuna_samplers import private_objective
from privbo_plugins.cli import main
from privbo_plugins.sessions.stored import run_named
from privbo_plugins.store.vault import Vault, open_vault
from tests.contracts.optuna_subjects import N_RECORDS, SUBJECTS, Ground, Records, Rewards
from tests.inside import EVALUATIONS, LEDGER

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning"),
]

GUARANTEE = "privbo:guarantee"


# Every system -----------------------------------------------------------------------------------


class Trained(Records):
    """DP-GIBO, whose trainings have a declared cost."""

    name = "DP-GIBO, training_mu"
    settings: ClassVar[dict[str, Any]] = {"value_share": 0.2, "training_mu": 0.5}


class Means(Records):
    """Released means under Optuna's own sampler."""

    name = "private_objective"

    def _begin(self):
        self.sampler = optuna.samplers.RandomSampler(seed=0)
        how = {"mu": 1.0, "n_trials": self.n_trials, "training_mu": 0.5}
        self.means = private_objective(self._vector, vault=self.ground.vault, **how)

    def _vector(self, trial):
        trial.suggest_float("x", 0.0, 1.0)
        return self.ground.numbers(N_RECORDS)

    def objective(self, act=None):
        return self.means

    def guarantee(self, study):
        return self.means.guarantee(study)

    def done(self, study):
        return self.means.finished(study)


class Named(Rewards):
    """One user is asked in each trial."""

    name = "LDP GP-UCB, one user"
    named: ClassVar[dict[str, str]] = {"user_id": "Jane"}

    def done(self, study):
        return len(study.trials) >= self.n_trials


ALL = {
    kind.name: kind
    for kind in (
        *SUBJECTS.values(), Trained, Means, Named,
    )
}  # fmt: skip


# The ledger, and what is said of it -------------------------------------------------------------


def ledger_of(ground):
    """Figures by name; of pure local privacy the epsilons of one user add up."""
    charges = ground.stored(f"SELECT population, mu FROM {LEDGER}")
    evaluations = ground.stored(f"SELECT person, epsilon FROM {EVALUATIONS}")
    of = {who: [mu for whose, mu in charges if whose == who] for who, _ in charges}
    spent = {who: math.sqrt(sum(mu**2 for mu in costs)) for who, costs in of.items()}
    users = Counter()
    for person, epsilon in evaluations:
        users[person] += epsilon
    return {
        "mu": spent.get("validation", 0.0),
        "rho": spent.get("validation", 0.0) ** 2 / 2,
        "releases": len(of.get("validation", ())),
        "training": spent.get("training", 0.0),
        "trainings": len(of.get("training", ())),
        "rounds": len(of.get("agents", ())),
        "evaluations": max(Counter(person for person, _ in evaluations).values(), default=0),
        "answers": len(evaluations),
        "epsilon": max(users.values(), default=0.0),
    }


_FIGURE = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)"
SAID = {
    rf"\bmu(?: spent)?[ =:]+{_FIGURE}": "mu",
    rf"Training records: {_FIGURE}-GDP": "training",
    rf"rho = {_FIGURE}": "rho",
    r"(\d+) releases": "releases",
    rf"compose to (?:at most )?{_FIGURE}-GDP": "training",
    r"(\d+) trainings": "trainings",
    r"in (?:\d+ of )?(\d+) rounds": "rounds",
    r"in (\d+) of \d+ rounds": "rounds",
    r"had (\d+) evaluations": "evaluations",
    r"(\d+) evaluations so far": "answers",
    r"n = (\d+) evaluations": "answers",
    rf"evaluations: epsilon = {_FIGURE}": "epsilon",
    r"told so far: (\d+)": "answers",
}
"""What a text says of what was spent, and the figure of the ledger that it must not fall short of.

What one evaluation costs is no such figure: "1-LDP", which a user pays each time.
"""


def too_small(text, ledger):
    """What a text says and the ledger has more of."""
    plain = " ".join(re.sub(r"\\(.)", r"\1", text).split())
    return [
        f"{found[0]!r} where the ledger has {ledger[name]:.6g}"
        for pattern, name in SAID.items()
        for found in re.finditer(pattern, plain)
        if float(found[1]) < ledger[name] * (1 - 1e-9)
    ]


def stored_in(study):
    """Everything that a reader of the study finds, by name."""
    yield from ((name, str(value)) for name, value in study.user_attrs.items())
    system = study._storage.get_study_system_attrs(study._study_id)
    notes = {}
    for name in sorted(system, key=lambda name: (len(name), name)):  # a note lies in parts
        stem = name.rpartition(":")[0]
        notes[stem] = notes.get(stem, "") + str(system[name])
    yield from notes.items()
    for trial in study.get_trials(deepcopy=False):
        held = trial.user_attrs | trial.system_attrs
        yield from ((f"{trial.number}: {name}", str(value)) for name, value in held.items())


@contextmanager
def looking(look):
    """Looks after each transaction of any vault, and before whatever comes next."""
    original = Vault.transaction

    @contextmanager
    def watched(self, *args, **kwargs):
        with original(self, *args, **kwargs) as tx:
            yield tx
        look()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vault, "transaction", watched)
        yield


@pytest.mark.parametrize("name", ALL)
def test_whatever_is_stored_says_no_less_than_the_ledger_wherever_a_run_is_cut_off(name, tmp_path):
    ground = Ground(tmp_path)
    subject = ALL[name](ground)
    study = optuna.create_study(sampler=subject.sampler, direction=subject.direction)
    ledgers = []
    found = []
    publisher = getattr(subject, "means", subject.sampler)

    def look():
        ledger = ledger_of(ground)
        if ledger not in ledgers:
            ledgers.append(ledger)
        for where, text in stored_in(study):
            found.extend(f"{where}: {what}" for what in too_small(text, ledgers[-1]))

    private = subject.objective()
    with looking(look):
        study.optimize(private, n_trials=1)
        subject.guarantee(study)
        if hasattr(publisher, "publish"):
            publisher.publish(study)
        for _ in range(subject.n_trials - 1):
            if not subject.done(study):
                study.optimize(private, n_trials=1)
            look()
    assert found == []
    assert len(ledgers) >= (3 if subject.own_study else 4), "the ledger went on while it looked"

    guarantee = subject.guarantee(study)
    assert guarantee.protected
    printed = [guarantee.details(), guarantee.to_markdown(), guarantee.lasting]
    assert [what for text in printed for what in too_small(text, ledger_of(ground))] == []
    assert study.user_attrs[GUARANTEE] == guarantee.lasting
    assert too_small(str(guarantee), {n: 2 * f + 1 for n, f in ledgers[-1].items()}), "control"
    subject.close()


@pytest.mark.parametrize("method", ["dp-gibo", "released-means"])
def test_a_search_stores_and_says_no_less_than_its_ledger_wherever_it_is_cut_off(method, tmp_path):
    """Of scikit-learn's: its last fit is of the model that it publishes."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (the sklearn extra)")
    from sklearn.linear_model import Ridge

    from sklearn_search import PrivateSearch

    ground, rng = Ground(tmp_path), np.random.default_rng(0)
    storage = f"sqlite:///{ground.shared}/study.db"
    ledgers = []
    found = []

    class Watched(Ridge):
        def fit(self, X, y):
            study = optuna.load_study(study_name="s", storage=storage)
            ledgers.append(ledger_of(ground))
            for where, text in stored_in(study):
                found.extend(f"{where}: {what}" for what in too_small(text, ledgers[-1]))
            return super().fit(X, y)

    search = PrivateSearch(
        Watched(), {"alpha": optuna.distributions.FloatDistribution(0.1, 10)}, mu=1.0,
        n_trials=6, loss="absolute", y_range=(0, 1), training_mu=0.5, method=method, seed=0,
        storage=storage, study_name="s", vault=ground.vault, load_if_exists=True,
    )  # fmt: skip
    for _ in range(2):
        search.fit(rng.uniform(size=(80, 2)), rng.uniform(size=80))
        assert ledger_of(ground)["trainings"] == len(ledgers)
        assert too_small(str(search.guarantee_), ledger_of(ground)) == []
        rng = np.random.default_rng(0)
    assert found == []
    assert [ledger["trainings"] for ledger in ledgers] == list(range(1, len(ledgers) + 1))


# Verification -----------------------------------------------------------------------------------


def other_digits(text):
    """The text with each digit changed, one at a time."""
    places = [i for i, c in enumerate(text) if c.isdecimal()]
    return [f"{text[:i]}{(int(text[i]) + 1) % 10}{text[i + 1 :]}" for i in places]


@pytest.fixture(params=[n for n, kind in ALL.items() if kind.guarded])
def cut_off(request, tmp_path, empty_study):
    """A study that was stopped in between, its certificate, and how it is verified."""
    ground = Ground(tmp_path)
    subject = ALL[request.param](ground)
    storage = f"sqlite:///{shutil.copy(empty_study, ground.shared)}"
    study = optuna.create_study(
        study_name="s", storage=storage, sampler=subject.sampler, direction=subject.direction
    )
    study.optimize(subject.objective(), n_trials=4)
    path = str(ground.shared / "c.json")
    assert main(["certificate", "--vault", ground.vault, "--out", path]) == 0
    where = ["--study", storage, "--study-name", "s"]
    return study, subject, ["verify", path, "--vault", ground.vault, *where]


def test_verify_compares_the_paragraph_of_a_study_to_the_letter(cut_off, capsys):
    """Nobody has asked for a guarantee since the first release."""
    study, subject, command = cut_off
    assert main(command) == 0
    text = study.user_attrs[GUARANTEE]
    claim = compared._claimed(study, run_named(open_vault(subject.ground.vault), None))
    agrees = [
        compared._claim(SimpleNamespace(user_attrs={GUARANTEE: told}), claim)[1]
        for told in (text, *other_digits(text))
    ]
    assert agrees == [True] + [False] * (len(agrees) - 1)
    assert len(agrees) > 5
    study.set_user_attr(GUARANTEE, other_digits(text)[0])
    capsys.readouterr()
    assert main(command) == 3
    assert "DIFFERS  study: claim: the study shows another guarantee" in capsys.readouterr().out
