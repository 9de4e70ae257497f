"""The five systems, and how each runs on Optuna with secrets for data.

A run gathers what it leaves in a :class:`tests.leaks.evidence.Evidence`; every system has a
careless run as well, whose leaks must be found.
"""

from __future__ import annotations

import logging
import threading
import warnings
from dataclasses import dataclass, field
from functools import partial
from unittest import mock

import numpy as np
import optuna
from optuna.distributions import FloatDistribution

from optuna_samplers import (
    DPFTSDESampler,
    FederatedServer,
    FederationConfig,
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
    POGPUCBSampler,
    answer_trials,
    ldp_objective,
    private_objective,
    run_federated,
)
from optuna_samplers._sampler import StudySampler
from privbo_plugins.algorithms.dp_fts_de import RoundSum
from privbo_plugins.plots import Round
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.noise import SecureNoise
from privbo_plugins.sessions.rows import Curator
from tests.drivers import IDS, hosted
from tests.inside import algorithm_of, settings_of
from tests.leaks import hostile
from tests.leaks.hostile import Told
from tests.leaks.scanner import Scanner
from tests.leaks.secrets import N_RECORDS, Secrets
from tests.optuna_samplers.runs import make_sampler
from tests.optuna_samplers.scenes.federations import Recorder, Wrapper


def objective_of(own, ways):
    """Goes a way a trial, and is good in the end."""
    each = list(ways.values())

    def objective(trial):
        trial.suggest_float("x", 0, 1)
        told = own.told(trial)
        return each[trial.number](told) if trial.number < len(each) else told.y

    return objective


def states_of(study):
    return [trial.state.name for trial in study.trials]


LINE = {"x": FloatDistribution(0, 1)}

# Records: DP-GIBO -------------------------------------------------------------------------------


records_sampler = make_sampler
"""A short plan: two start points, two steps."""


def four_steps(**settings):
    return records_sampler(n_steps=4, **settings)


def sixth_sampler(**settings):
    """An algorithm that the product has never heard of."""
    return hosted("outside", **settings).sampler


def persons_sampler(**settings):
    """Persons with several rows, who are named."""
    return four_steps(groups=IDS, unit="patient", **settings)


VECTOR_WAYS = hostile.VECTORS | hostile.VECTOR_FAILS | hostile.OPTUNA


def by(build):
    """A sampler of ours makes objectives private, and tells of its runs."""

    def make(objective, *, user_id=None, **settings):
        sampler = build(**settings)
        named = {} if user_id is None else {"user_id": user_id}
        return sampler, sampler.private(objective, **named), sampler

    return make


def means(objective, **settings):
    """Released means under a sampler of Optuna's own."""
    n_trials = len(hostile.VECTORS) + 8
    private = private_objective(objective, mu=1.0, n_trials=n_trials, seed=3, **settings)
    return optuna.samplers.TPESampler(seed=0, n_startup_trials=5), private, private


def any_sampler(objective, **settings):
    """Privatised rewards under a sampler of Optuna's own, which shows nothing of its run."""
    private = ldp_objective(objective, **settings)
    return optuna.samplers.TPESampler(seed=0, n_startup_trials=5), private, None


def records(evidence, *, make, in_file=True, n_jobs=1):
    """A vector of losses a trial, of which each way goes wrong once."""
    own = evidence.of(Secrets(size=N_RECORDS))
    for i in IDS:
        own.scanner.add_text("id", i)
    vault = evidence.vault if in_file else None
    sampler, private, told = make(objective_of(own, VECTOR_WAYS), vault=vault)
    study = evidence.optimize(sampler, private, len(VECTOR_WAYS) + 12, n_jobs)
    evidence.add_told(told, study)
    told.purge(study)
    evidence.add_vault()
    evidence.allow(study.trials)

    states = states_of(study)
    assert bool(evidence.blobs["vault"]) == in_file
    assert told.finished(study)
    assert states.count("FAIL") == len(hostile.VECTOR_FAILS | hostile.OPTUNA) - 1
    assert states.count("PRUNED") == 1
    assert own.calls == len(states) > len(VECTOR_WAYS)


# Rewards: LDP, DUETS --------------------------------------------------------------------------

_CURRENT = []


def _wild(trial):
    """What is pickled with a wrapped objective is a name, not the rewards that it makes."""
    return _CURRENT[0](trial)


def _who(trial):
    return str(_CURRENT[1].user)


def wild(own, ways):
    """An objective that can be pickled."""
    _CURRENT[:] = objective_of(own, ways), own
    return _wild


REWARD_WAYS = hostile.REWARDS | hostile.REWARD_FAILS | hostile.OPTUNA


def rewards(evidence, *, make, mechanism="laplace", in_file=True, n_jobs=1, more=2):
    """Users with names and a vault's file, or nobody named and the vault in memory."""
    own = evidence.of(Secrets())
    settings = {
        "epsilon": 1.0,
        "value_range": (0.0, 1.0),
        "mechanism": mechanism,
        "delta": 1e-5 if mechanism == "gaussian" else None,
        "vault": evidence.vault if in_file else None,
        "user_id": _who if in_file else None,
    }
    sampler, private, told = make(wild(own, REWARD_WAYS), **settings)
    study = evidence.optimize(sampler, private, len(REWARD_WAYS) + more, n_jobs)
    guarantee = private.guarantee(study)
    evidence.add_guarantee(guarantee)
    evidence.add_objects(objective=private)
    if told is not None:
        evidence.add_told(told, study)
    evidence.add_vault()
    evidence.allow(study.trials)

    states = states_of(study)
    assert bool(evidence.blobs["vault"]) == in_file
    assert states.count("FAIL") == len(hostile.REWARD_FAILS | hostile.OPTUNA) - 1
    assert states.count("PRUNED") == 1
    assert own.calls == len(states) >= len(REWARD_WAYS)
    assert guarantee.protected
    assert guarantee.n_evaluations == states.count("COMPLETE")
    assert not in_file or guarantee.most_evaluations == guarantee.n_evaluations
    values = {trial.value for trial in study.trials}
    assert values.isdisjoint(own.values)
    assert values.isdisjoint({0.0, 1.0})  # nor a reward that was clipped
    return study


def duets_sampler(**settings):
    """Two agents on a line."""
    return hosted("duets", **({"search_space": LINE, "seed": 0} | settings)).sampler


def duets(evidence):
    """With privatised rewards; what agents send each other is searched too."""
    study = rewards(evidence, make=by(duets_sampler), more=8)
    algorithm = algorithm_of(study.sampler, study)
    heard = [broadcast.to_dict() for broadcast in algorithm.public_state.heard]
    evidence.add_messages(
        heard=heard, states=[algorithm.state_dict()], sides=[algorithm.server, algorithm.agents]
    )
    assert study.user_attrs["privbo:duets"]["epoch"] == algorithm.epoch >= 3
    assert len(heard) >= 2


# A federation: DP-FTS-DE ------------------------------------------------------------------------

N_AGENTS, N_ROUNDS, N_STARTUP = 3, 3, 2
N_TRIALS = N_STARTUP + N_ROUNDS + 1

SQUARE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(-2, 2)}


class Talkative(Wrapper):
    """Tells the server's vault what it sends, in a way that a debugging line might."""

    def submit(self, message):
        t = self.link.submit(message)
        self.link._rounds.run.mark("debug", repr(message[:3].tolist()))
        return t


class Agent:
    """An agent, its secrets, its study and the link that it was given."""

    def __init__(self, evidence, n, link):
        self.n, self.link = n, Recorder(link)
        self.own = evidence.of(Secrets(f"agent {n}: ", seed=41 + n))
        self.sampler = DPFTSDESampler(self.link, search_space=SQUARE, seed=n)
        self.study = optuna.create_study(
            storage=f"sqlite:///{evidence.folder}/agent-{n}.db", sampler=self.sampler
        )

    def objective(self, trial):
        """Tells its own study everything, and fails in ways that quote it."""
        trial.suggest_float("x", 0, 1)
        trial.suggest_float("y", -2, 2)
        told = self.own.told(trial)
        trial.set_user_attr(told.name, {told.name: told.y})
        trial.report(told.y, 0)
        if trial.number == 1:
            hostile.RAISED[("cause", "note", "class")[self.n % 3]](told)
        if trial.number == 3:
            hostile.OPTUNA["pruned"](told)
        return float(told.y)

    def work(self):
        self.study.optimize(self.objective, n_trials=N_TRIALS, catch=(Exception,))
        self.sampler.guarantee(self.study)

    def remember(self):
        """Its start-up points, what it sent, and what is left of that after clipping."""
        for trial in self.study.trials[:N_STARTUP]:
            self.own.add_raw(f"point {trial.number}", list(trial.params.values()))
        for t, (_, vector) in enumerate(self.link.sent, 1):
            shrink = min(1.0, self.link.config.norm / float(np.linalg.norm(vector)))
            for scale in {1.0, shrink}:
                self.own.add_raw(f"vector {t}", scale * vector)

    def gather(self, evidence):
        """What it keeps, knows and could publish."""
        home, study, sampler = f"agent {self.n}: ", self.study, self.sampler
        public = {k: v for k, v in sampler.__getstate__().items() if k != "link"}
        evidence.add_objects(
            home=home, trials=study.trials, settings=public, config=self.link.config
        )
        evidence.add("attributes", f"{home}attributes", repr(study.user_attrs))
        shown = [sampler, self.link.link, study]
        evidence.add("texts", f"{home}shown", "".join(f"{x!r}{x}" for x in shown))
        evidence.add_told(sampler, study, home=home, page=f"of agent {self.n}")
        evidence.add_messages(home, broadcasts=self.link.broadcasts(), received=self.link.received)

    def check_it_ran(self):
        states = states_of(self.study)
        assert len(states) == self.own.calls == N_TRIALS
        assert states.count("FAIL") == states.count("PRUNED") == 1
        assert len(self.link.sent) >= N_ROUNDS == len(self.link.received)


def federation_config(n_agents=N_AGENTS):
    """A small federation in the paper's mode."""
    return FederationConfig(
        n_agents=n_agents, population="explore", n_rounds=N_ROUNDS, n_startup=N_STARTUP,
        n_features=20, clipping_norm=22.0, z=2.0,
    )  # fmt: skip


def threads_of(agents):
    """Every agent in a thread of its own, which tells whose log is whose."""
    threads = [
        threading.Thread(target=agent.work, name=f"agent-{agent.n}", daemon=True)
        for agent in agents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def turns_of(agents, n_rounds=N_ROUNDS):
    run_federated(
        [agent.study for agent in agents],
        [agent.objective for agent in agents],
        n_rounds + 1,
        catch=Exception,
    )
    for agent in agents:
        agent.sampler.guarantee(agent.study)


def make_federation(evidence, link=lambda link: link):
    """(server, agents)."""
    server = FederatedServer(federation_config(), vault=evidence.vault, deadline=30.0)
    return server, [Agent(evidence, n, link(server.connect(n))) for n in range(N_AGENTS)]


def _sums(evidence, sums):
    """Nor may a sum, before noise, be anywhere at all."""
    assert len(sums) == N_ROUNDS
    everybody = evidence.of(Secrets())
    everybody.add_raw("sum", sums)
    everybody.add_raw("mean", np.array(sums) / N_AGENTS)


def _gather_federation(evidence, server, agents):
    for agent in agents:
        agent.remember()
        agent.gather(evidence)
    evidence.add_files()
    evidence.add_vault()
    texts = [server, server.config, server.ledger(), server.guarantee(), server.broadcasts()]
    evidence.add("texts", "server", "\n".join(map(repr, texts)))
    evidence.add_messages("server ", broadcasts=server.broadcasts())
    evidence.add_report(server.report, "of the server")


def federation(evidence, *, threads):
    """An agent's study, log and vectors are its own; nobody else's bytes may hold them.

    In one thread logs are one as well; only Optuna quotes what its own study found.
    """
    sums = []
    exact = RoundSum.exact

    def remembered(total):
        sums.append(exact(total))
        return sums[-1].copy()

    with mock.patch.object(RoundSum, "exact", remembered):
        server, agents = make_federation(evidence)
        with evidence.recorded(hosts=threads):
            (threads_of if threads else turns_of)(agents)
    _gather_federation(evidence, server, agents)
    _sums(evidence, sums)
    if not threads:
        evidence.blobs["console"].pop("stderr")
    for agent in agents:
        agent.check_it_ran()
        home = agent.own.home
        found = " ".join(evidence.hits("storage", at_home=True))
        assert f"{home}agent-{agent.n}.db at the end | token" in found
        assert f"| call {N_TRIALS:03d}" in found
        if threads:  # each agent's log is its own
            assert f"{home}agent-{agent.n}, host: True | token" in " ".join(
                evidence.hits("log", at_home=True)
            )
    assert evidence.blobs["vault"]
    assert server.guarantee().protected


# Rows that somebody else models: PO-GP-UCB ------------------------------------------------------

N_ROWS, D = 64, 2


class Rows(Secrets):
    """Rows and outcomes that no public number resembles; outcomes may be told where asked to."""

    def __init__(self):
        super().__init__()
        self.X = self.rng.uniform(0.11, 0.99, size=(N_ROWS, D))
        self.y = self.rng.uniform(0.11, 0.99, size=N_ROWS)
        self.scanner.add_vector("X", self.X.ravel())
        self.add_raw("scaled X", self.X - 0.5)  # as the mechanism sees it
        self.outcomes = Scanner()
        self.outcomes.add_vector("y", self.y)

    def told_of(self, row):
        return Told(self.token, self.X[row])

    def curator(self, outcome, **settings):
        known = {"bounds": [(0, 1)] * D, "outcomes": outcome}
        return Curator(self.X, epsilon=4.0, delta=1e-6, **(known | settings))


PRIVATE_ANSWERS = {"outcome_epsilon": 1.0, "outcome_range": (0.0, 1.0)}

ROW_WAYS = hostile.RAISED | hostile.UNUSABLE | hostile.ODD_ENTRIES | hostile.ODD_SCALARS


def _ask(evidence, curator, rows, more):
    """The modeler asks for rows, the curator answers; (study, sampler)."""
    curator.release().save(evidence.folder / "table.npz")
    sampler = POGPUCBSampler(evidence.folder / "table.npz", seed=0)
    study = optuna.create_study(
        storage=evidence.storage(), study_name="s", direction="maximize", sampler=sampler
    )
    for row in rows:
        study.enqueue_trial({"row": row})
    for _ in range(len(rows) + more):
        study.ask().suggest_int("row", 0, N_ROWS - 1)
        answer_trials(study, curator)
    return study, sampler


def _gather_rows(evidence, curator, study, sampler):
    evidence.add_files()
    evidence.add_vault()
    evidence.add_told(sampler, study)
    evidence.add("attributes", "of the study", repr(study.user_attrs))
    evidence.add("attributes", "trials", repr([vars(trial) for trial in study.trials]))
    evidence.add("texts", "curator", f"{curator}{curator!r}")
    evidence.add_objects(
        study=study, sampler=sampler, trials=study.trials, algorithm=algorithm_of(sampler, study)
    )
    Z = settings_of(sampler).Z
    evidence.add_messages(table=[Z.tobytes(), Z.tolist()])
    for own in evidence.secrets:
        own.scanner.allow(np.abs(Z).ravel().tolist())
    evidence.allow(study.trials)


def rows(evidence, *, private):
    """Each way goes wrong at a row of its own; plain answers are told as they are."""
    own = Rows()
    evidence.of(own)
    ways = list(ROW_WAYS.values())

    def outcome(row):
        return ways[row](own.told_of(row)) if row < len(ways) else own.y[row]

    answers = PRIVATE_ANSWERS if private else {}
    with evidence.recorded():
        curator = own.curator(outcome, vault=evidence.vault, **answers)
        study, sampler = _ask(evidence, curator, list(range(len(ways))), 4)
    _gather_rows(evidence, curator, study, sampler)

    states = states_of(study)
    assert evidence.blobs["vault"]
    # A private answer to what goes wrong is the worst outcome; such a row may be asked again.
    asked, more = states[: len(ways)], states[len(ways) :]
    assert set(asked) == {"COMPLETE" if private else "FAIL"}
    assert "COMPLETE" in more
    guarantee = sampler.guarantee(study)
    assert guarantee.protected
    assert guarantee.n_answers == states.count("COMPLETE")
    assert (guarantee.outcomes is not None) == private
    own.outcomes.allow([abs(trial.value) for trial in study.trials if trial.value is not None])
    told = [own.outcomes.scan(blobs) for blobs in evidence.blobs.values()]
    assert any(told) == (not private)  # which answers as it is asked to


# Careless runs: their leaks must be found -------------------------------------------------------


def _attaches(told):
    told.host.set_user_attr("data", np.asarray(told.y).tolist())
    return 0.5


def _warns(told):
    warnings.warn(told.text, stacklevel=1)
    return 0.5


EVERYWHERE = {"storage", "attributes", "pickles", "log", "console", "texts"}
SAID = {"log", "console"}
WITHHELD = set()
"""What Optuna logs under a sampler of its own, and ours keep out of its messages."""

CARELESS = {
    "returned": (lambda told: float(np.mean(told.y)), EVERYWHERE),
    "float32 returned": (lambda told: np.float32(np.mean(told.y)), {"storage", "pickles", "log"}),
    "list returned": (lambda told: [told.y, told.y], WITHHELD),
    "raised": (hostile.RAISED["text"], SAID),
    "caused": (hostile.RAISED["cause"], SAID),
    "noted": (hostile.RAISED["note"], SAID),
    "grouped": (hostile.RAISED["group"], SAID),
    "pruned": (hostile.OPTUNA["pruned"], SAID),
    "attached": (_attaches, {"storage", "attributes", "pickles"}),
    "printed": (lambda told: print(told.y) or 0.5, {"console"}),
    "warned": (_warns, {"warnings"}),
    "shown": (lambda told: hostile.Shown(told, TypeError), WITHHELD),
}
"""How an objective that is not private leaks, and where that must be found."""


def careless(evidence, *, sampler, size):
    """A leak a trial."""
    own = evidence.of(Secrets(size=size))
    known = {w: row for w, row in CARELESS.items() if not (size and w == "float32 returned")}
    objective = objective_of(own, {way: leak for way, (leak, _) in known.items()})
    made = sampler()
    study = evidence.optimize(made, objective, len(known))
    evidence.add("attributes", "of the trials", repr([t.user_attrs for t in study.trials]))
    for i, (_, sinks) in enumerate(known.values(), 1):
        withheld = sinks is WITHHELD and isinstance(made, StudySampler)
        for sink in SAID if sinks is WITHHELD and not withheld else sinks:
            evidence.expect(sink, f"call {i:03d}")
        if withheld:
            evidence.withheld.add(f"call {i:03d}")
    if evidence.kind == "sqlite":  # its statements show in the log
        evidence.expect("log", f"call {1 + list(known).index('attached'):03d}")
    unprotected = study.user_attrs.get("privbo:guarantee", "NOT PROTECTED")
    assert unprotected.startswith("NOT PROTECTED")


def careless_vault(evidence, **run):
    """:func:`careless`, and a mechanism that adds no noise, whose rewards the vault remembers."""
    careless(evidence, **run)
    own = evidence.secrets[0]
    first = own.calls + 1
    sampler = duets_sampler(vault=evidence.vault)
    with mock.patch.object(LocalMechanism, "randomize", lambda self, y, noise, worst: y):
        study = optuna.create_study(sampler=sampler, direction="maximize")
        with warnings.catch_warnings(action="ignore"):
            study.optimize(sampler.private(objective_of(own, {})), n_trials=3)
    evidence.add_vault()
    evidence.expect("vault", f"call {first:03d}")
    evidence.add_told(sampler, study)
    for sink in ("report", "dashboard"):
        evidence.expect(sink, f"call {first:03d}")
    # An agent with fewer rewards than a projection has numbers sends them as they are.
    algorithm = algorithm_of(sampler, study)
    for trial in study.trials:
        algorithm.tell(
            algorithm.evaluation_of(tuple(trial.system_attrs["privbo:draw"])), trial.value
        )
    evidence.add_messages(states=[algorithm.state_dict()])
    evidence.expect("messages", "call")


def careless_records(evidence, **run):
    """:func:`careless`, and a vault in the middle of a batch."""
    careless(evidence, **run)
    own = evidence.secrets[0]
    first = own.calls + 1
    sampler = records_sampler(batch_size=3, vault=evidence.vault)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective_of(own, {})), n_trials=4)
    evidence.add_vault()
    evidence.expect("vault", f"call {first + 2:03d}")
    sampler = records_sampler()
    with (
        mock.patch.object(SecureNoise, "add_gaussian", lambda self, x, scale: np.asarray(x)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=sampler)
        study.optimize(sampler.private(objective_of(own, {})), n_trials=2)
    drawn = [trial.user_attrs["privbo:release"] for trial in study.trials]
    own.add_raw("value without noise", drawn)
    evidence.add_told(sampler, study)
    evidence.expect("report", "value without noise[0]")
    evidence.expect("dashboard", "stored | value without noise[0]")
    evidence.expect("dashboard", f"/api/studies/{study._study_id} | value without noise[0]")


def careless_federation(evidence):
    """Debugging lines of a link and a server, and hints that one agent gives another."""
    add = RoundSum.add

    def loud(total, n, w):
        logging.getLogger("privbo.x").debug("agent %d sent %s", n, w.tobytes().hex())
        warnings.warn(repr(w[0]), stacklevel=1)
        print(repr(w[1]))
        add(total, n, w)

    with mock.patch.object(RoundSum, "add", loud):
        server, agents = make_federation(evidence, Talkative)
        with evidence.recorded():
            threads_of(agents)
    first = agents[0].own
    agents[1].study.set_user_attr("hint", first.values[0])
    agents[2].study.set_user_attr("hint", first.token)
    agents[1].link.received[99] = agents[0].link.sent[0][1]
    sent = Round(1, float(agents[0].link.sent[0][1][0]), 0.0)
    with mock.patch("privbo_plugins.sessions.broadcasts.round_of", return_value=sent):
        _gather_federation(evidence, server, agents)
    evidence.add_objects(home="agent 1: ", of_another=first.values[0])
    for n in range(N_AGENTS):
        evidence.expect("log", f"agent-{n}, host: False | vector 1[0] as float64< hex")
        evidence.expect("vault", "vector 1[0] as decimal")
    for whose in ("the server", *(f"agent {n}" for n in range(N_AGENTS))):
        evidence.expect("report", f"of {whose} | vector 1[0] as decimal")
    for n in range(1, N_AGENTS):  # at home agent 0 may see its own
        evidence.expect("dashboard", f"agent {n}: stored | vector 1[0] as decimal")
    evidence.expect("warnings", "vector 1[0]")
    evidence.expect("console", "vector 1[1]")
    evidence.expect("attributes", "agent 1: attributes | call 001")
    evidence.expect("storage", "agent 1: agent-1.db at the end | call 001")
    evidence.expect("storage", "agent 2: agent-2.db at the end | token")
    evidence.expect("messages", "agent 1: pickle of received | vector 1[0]")
    evidence.expect("pickles", "agent 1: pickle of of_another  | call 001")
    evidence.expect("texts", "agent 1: repr of of_another  | call 001")
    evidence.never = ("agent 0: ",)


def careless_rows(evidence):
    """A curator that tells, prints and writes rows."""
    own = Rows()
    evidence.of(own)
    with evidence.recorded():
        curator = own.curator(lambda row: float(own.X[row, 0]), vault=evidence.vault)
        study, sampler = _ask(evidence, curator, [0, 1], 1)
        np.savez(evidence.folder / "more.npz", X=own.X)
        print(own.X[0].tolist(), own.token)
        logging.getLogger("optuna.x").debug("row %s of %s", own.X[1].tolist(), own.token)
        warnings.warn(repr(own.X[2].tolist()), stacklevel=1)
    _gather_rows(evidence, curator, study, sampler)
    evidence.add_messages(rows=own.X)
    for name in ("study.db", "more.npz"):
        evidence.expect("storage", f"{name} at the end | X[")
    for wanted in ("X[0]", "token"):
        evidence.expect("console", wanted)
    for sink in ("vault", "attributes", "report", "dashboard"):
        evidence.expect(sink, "X[0]")
    for wanted in ("repr of trials  | X[0]",):
        evidence.expect("texts", wanted)
    for library in ("pickle", "cloudpickle"):
        evidence.expect("pickles", f"{library} of trials  | X[0]")
    evidence.expect("log", "X[2]")
    evidence.expect("warnings", "X[4]")
    evidence.expect("messages", "X[0]")


# The table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        secret: What must not be found.
        public: What anybody may see.
        runs: On Optuna, by name: each with its storage ("sqlite" or "journal").
        careless: Runs whose leaks must be found, likewise.
    """

    secret: str
    public: str
    runs: dict
    careless: dict = field(default_factory=dict)


SYSTEMS = {
    "records": System(
        secret="every trial's vector of losses, its mean, and texts that come with it",
        public="noisy values and gradients, points, settings",
        runs={
            "sqlite, vault file": ("sqlite", partial(records, make=by(four_steps))),
            "persons": ("sqlite", partial(records, make=by(persons_sampler))),
            "an algorithm from outside, vault in memory": (
                "journal",
                partial(records, make=by(sixth_sampler), in_file=False),
            ),
            "any sampler, 3 jobs": ("journal", partial(records, make=means, n_jobs=3)),
        },
        careless={
            "sqlite": (
                "sqlite",
                partial(careless_records, sampler=records_sampler, size=N_RECORDS),
            )
        },
    ),
    "rewards": System(
        secret="every reward, and the names of users",
        public="privatised rewards, points, settings",
        runs={
            "laplace": ("sqlite", partial(rewards, make=by(LDPGPUCBSampler))),
            "duchi": ("journal", partial(rewards, make=by(LDPTGPUCBSampler), mechanism="duchi")),
            "piecewise": (
                "journal",
                partial(rewards, make=by(LDPMoMAGPUCBSampler), mechanism="piecewise"),
            ),
            "hybrid": (
                "journal",
                partial(rewards, make=by(LDPATAGPUCBSampler), mechanism="hybrid"),
            ),
            "gaussian": ("journal", partial(rewards, make=any_sampler, mechanism="gaussian")),
            "any sampler, 3 jobs, vault in memory": (
                "journal",
                partial(rewards, make=any_sampler, in_file=False, n_jobs=3),
            ),
        },
        careless={
            "sqlite": (
                "sqlite",
                partial(
                    careless_vault,
                    sampler=lambda: optuna.samplers.RandomSampler(seed=0),
                    size=None,
                ),
            )
        },
    ),
    "federation": System(
        secret="an agent's values, points, texts and vectors, from others; each round's sum",
        public="noisy sums, settings",
        runs={
            "threads": ("sqlite", partial(federation, threads=True)),
            "turns": ("sqlite", partial(federation, threads=False)),
        },
        careless={"sqlite": ("sqlite", careless_federation)},
    ),
    "rows": System(
        secret="every row, and outcomes unless they are asked for as they are",
        public="the noisy table, rows' numbers, answers, settings",
        runs={
            "private answers": ("sqlite", partial(rows, private=True)),
            "plain answers": ("journal", partial(rows, private=False)),
        },
        careless={"sqlite": ("sqlite", careless_rows)},
    ),
    "duets": System(
        secret="every reward, and the names of users",
        public="privatised rewards, what agents send, points, settings",
        runs={"one job": ("journal", duets)},
        careless={
            "journal": (
                "journal",
                partial(
                    careless_vault, sampler=lambda: duets_sampler(epsilon=float("inf")), size=None
                ),
            )
        },
    ),
}
