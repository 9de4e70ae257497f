"""The systems, each as a short run on data of which one entry is given.

Everything but that entry is the same in all runs, and so is what the noise source returns.
"""

import contextlib
import functools
import sys
import traceback
import warnings
from unittest import mock

import numpy as np
import optuna
import ray.cloudpickle as cloudpickle

from optuna_samplers import (
    DPFTSDESampler,
    FederatedServer,
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    POGPUCBSampler,
    answer_trials,
    ldp_objective,
    private_objective,
)
from privbo_plugins.blocks import in_blocks
from privbo_plugins.federation import connect
from privbo_plugins.scores import predictions
from privbo_plugins.sessions import record_labels
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.spaces import Float, Space
from raytune_searchers import POGPUCBSearch, answering
from raytune_searchers.hosts.agents import AgentHost
from tests.drivers import ANY, TWO_SCORES, begin
from tests.independence.sealed import IN_MEMORY, Deaf
from tests.independence.zoo import ORDINARY
from tests.raytune_searchers import federated_scenes
from tests.raytune_searchers.hosts import LocalRay, evaluation
from tests.systems import SQUARE, duets_sampler, federation_config, records_sampler

N, PLACE = 6, 3
"""Records, and which of them is the odd one."""

_entry = []
"""What makes the odd record; functions below look here, so that no pickle of them holds it."""


_more = []
"""Further rows of the odd record's person."""


def given(entry):
    _entry[:] = [entry]


def losses(x):
    """One a record; a plain list, as users return it."""
    found = [(x - i / N) ** 2 for i in range(N)]
    found[PLACE] = _entry[0]()
    return found + _more


# Records: DP-GIBO -------------------------------------------------------------------------------


def _records(trial):
    return losses(trial.suggest_float("x", 0, 1))


def _array(trial):
    return np.array(_records(trial), dtype=object)


def _computed(trial):
    """A parameter with one value, which is the odd record's."""
    value = _entry[0]()
    trial.suggest_float("mean", value, value)
    return _records(trial)


def _later(trial):
    """Only the second trial's is odd: the first one fixed what a vector is."""
    found = _records(trial)
    return found if trial.number == 1 else [*found[:PLACE], ORDINARY, *found[PLACE + 1 :]]


def records(seen, entry, *, objective=_records, n=12, **settings):
    """In Optuna: the plan, and everything that can be asked of the sampler."""
    given(entry)
    sampler = records_sampler(**({"noise": Deaf(), "vault": seen.vault} | settings))
    private = seen.telling(sampler.private(objective))
    study = seen.optimize(sampler, private, n)
    seen.add_told(sampler, study)
    seen.add_vault()
    sampler.purge(study)
    left = [path.read_bytes() for path in sorted(seen.vault_folder.iterdir())]
    seen.add("vault", "after it was purged", b"".join(left))


def journal(seen, entry):
    """With a journal for a storage, and the vault in memory."""
    seen.kind = "journal"
    records(seen, entry, vault=None)


def told(seen, entry):
    """In Optuna under ask/tell, where what is refused may be told again."""
    given(entry)
    sampler = records_sampler(noise=Deaf(), vault=seen.vault)
    study = optuna.create_study(storage=seen.storage(), study_name="s", sampler=sampler)
    with seen.recorded():
        for _ in range(3):
            trial = study.ask()
            vector = _records(sampler.guarded(trial))
            try:
                seen.telling(sampler.tell_private)(trial, vector)
            except ValueError:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
    seen.add_files()
    seen.add_objects(sampler=sampler, trials=study.trials)
    seen.add_guarantee(sampler.guarantee(study))
    seen.add_vault()


# Means and scores, under a sampler of Optuna's ---------------------------------------------------


def _scored(trial):
    return predictions(_records(trial))


def means(seen, entry, *, objective=_records, **settings):
    """In Optuna: four trials, a last score, and everything that can be asked."""
    given(entry)
    private = private_objective(
        objective, mu=1.0, n_trials=4, final_share=0.36, noise=Deaf(), vault=seen.vault, **settings
    )
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=2)
    study = seen.optimize(sampler, seen.telling(private), 4)
    last = seen.telling(private.release_score)(study, TWO_SCORES[0], predictions(losses(0.5)))
    seen.add("texts", "last score", repr(last))
    seen.add_told(private, study)
    seen.add_vault()


# Persons with several rows ----------------------------------------------------------------------


def persons(seen, entry, *, run, **how):
    """The odd record is one row of a person, who has another id and more rows than else.

    The vault holds a digest of ids under a random key, of which the world here knows the entropy.
    """
    made = entry()
    usual = type(made) is float and made == ORDINARY
    odd = "p1" if usual else "another"
    _more[:] = [] if usual else [0.0, 1.0, 0.75]
    groups = ["p0", "p0", odd, odd, "p2", "p2", *[odd] * len(_more)]
    with mock.patch.object(record_labels, "_keyed", return_value="keyed"):
        try:
            run(seen, entry, groups=groups, **how)
        finally:
            _more.clear()


# Blocks -----------------------------------------------------------------------------------------


def blocks(seen, entry, *, run, **how):
    """The odd record trains in one of six blocks, whose score it is."""
    score = in_blocks(_of_a_block, 3 * N, N)
    _place[:] = [score.places()[PLACE][1]]
    with mock.patch.object(sys.modules[__name__], "losses", score):
        run(seen, entry, **score.settings(), **how)


_place = []


def _of_a_block(x, places):
    """The odd record decides whether the block can be fitted, and what its score is."""
    return _entry[0]() if _place[0] in places else float((x - places.mean() / N) ** 2)


# Rewards: LDP, DUETS ----------------------------------------------------------------------------


def _reward(trial):
    x = trial.suggest_float("x", 0, 1)
    return _entry[0]() if trial.number == PLACE else 1 - abs(x - 0.4)


def _computed_reward(trial):
    value = _entry[0]()
    trial.suggest_float("mean", value, value)
    return _reward(trial)


def rewards(seen, entry, *, build=None, mechanism="laplace", objective=_reward, n=PLACE + 4):
    """In Optuna: one user's reward is the odd one."""
    given(entry)
    how = {
        "value_range": (0.0, 1.0),
        "mechanism": mechanism,
        "delta": 1e-5 if mechanism == "gaussian" else None,
        "vault": seen.vault,
        "noise": Deaf(),
    }
    if build is None:
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=3)
        private = ldp_objective(objective, epsilon=1.0, user_id=_user, **how)
    else:
        sampler = build(epsilon=1.0, seed=0, **how)
        private = sampler.private(objective, user_id=_user)
    study = seen.optimize(sampler, seen.telling(private), n)
    seen.add_guarantee(private.guarantee(study), "of the objective ")
    seen.add_objects(objective=private)
    if hasattr(sampler, "recommend"):
        seen.add_told(sampler, study)
    seen.add_vault()


def _user(trial):
    return f"user {trial.number % 2}"


def _duets(**settings):
    return duets_sampler(**({"discretisation": 32, "first_epoch": 1} | settings))


# A federation: DP-FTS-DE ------------------------------------------------------------------------

PLANE = Space({"x": Float(0.0, 1.0)})


def _vector(entry, length):
    """What an agent sends."""
    found = np.linspace(-1.0, 1.0, length).tolist()
    found[PLACE] = entry()
    return found


def _gather_server(seen, server):
    texts = [server, server.config, server.ledger(), server.guarantee(), server.broadcasts()]
    seen.add("texts", "server", "\n".join(map(repr, texts)))
    seen.add_messages(broadcasts=server.broadcasts())
    seen.answer(seen.add_report, server.report)
    seen.add_vault()


def rounds(seen, entry, *, wire=False):
    """One agent's vectors are odd; agent 1 and the server's operator must not see it."""
    config = federation_config(2)
    with seen.recorded():
        server = FederatedServer(
            config, vault=seen.vault, deadline=30.0, noise=Deaf(), space=PLANE if wire else None
        )
        if wire:
            server.listen(secret=bytes(range(32)))
        links = [connect(server.invitation(n)) if wire else server.connect(n) for n in range(2)]
        for _ in range(config.n_rounds):
            t = links[1].submit(np.ones(config.message_length))
            vector = _vector(entry, config.message_length)
            with contextlib.suppress(ValueError):
                seen.telling(links[0].submit)(np.array(vector, dtype=float))
            server.close_round()  # if it was refused
            seen.telling(links[1].collect)(t)
        if wire:
            for link in links:
                link.close()
            server.close()
    _gather_server(seen, server)


def agents(seen, entry):
    """What one agent's objective returns is odd; its own study is its own secret."""
    given(entry)
    config = federation_config(2)
    server = FederatedServer(config, vault=seen.vault, deadline=30.0, noise=Deaf())
    with seen.recorded(hosts=False):
        studies = [
            optuna.create_study(
                sampler=DPFTSDESampler(server.connect(n), search_space=SQUARE, seed=n)
            )
            for n in range(2)
        ]
        for number in range(config.n_startup + config.n_rounds + 1):
            for study in studies:
                if number >= config.n_startup:
                    study.sampler.send(study)
            for n, study in enumerate(studies):
                _at_home(study, _agents_objective(n))
    seen.blobs["console"].clear()  # in one process an agent's own study speaks there too
    seen.add_objects(trials=studies[1].trials)
    seen.add_objects(summary=seen.answer(studies[1].sampler.status, studies[1]))
    _gather_server(seen, server)


def _at_home(study, objective):
    """A trial of an agent's own study, of which nobody else hears, whatever Optuna makes of it."""
    with warnings.catch_warnings(), contextlib.suppress(AssertionError):
        warnings.simplefilter("ignore")
        study.optimize(objective, n_trials=1, catch=(Exception,))


def _agents_objective(n):
    def objective(trial):
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", -2, 2)
        return _entry[0]() if n == 0 else x + y

    return objective


# Rows that somebody else models: PO-GP-UCB ------------------------------------------------------

N_ROWS = 12


def _curator(seen, *, rows, entry, **settings):
    X = [[i / N_ROWS, 0.5] for i in range(N_ROWS)]
    if rows:
        X[PLACE] = [entry(), 0.75]
    how = {"bounds": [(0, 1)] * 2, "outcomes": _outcome, "vault": seen.vault}
    answers = {"outcome_epsilon": 1.0, "outcome_range": (0.0, 1.0)}
    return Curator(X, epsilon=4.0, delta=1e-6, noise=Deaf(), **(how | answers | settings))


def _outcome(row):
    return _entry[0]() if row == PLACE else row / N_ROWS


def _public(seen, curator):
    """What is given to the modeler."""
    table = seen.telling(curator.release)()
    table.save(seen.folder / "table.npz")
    seen.add_messages(table=[table.Z.tobytes(), table.manifest])
    return table


def rows(seen, entry, *, odd, **settings):
    """In Optuna: one row is the odd one, or one row's outcome."""
    given(entry if odd == "outcome" else lambda: ORDINARY)
    with seen.recorded():
        try:
            make = seen.telling(_curator)
            curator = make(seen, rows=odd == "row", entry=entry, **settings)
            _public(seen, curator)
        except ValueError:
            return
        sampler = POGPUCBSampler(seen.folder / "table.npz", seed=0)
        study = optuna.create_study(
            storage=seen.storage(), study_name="s", direction="maximize", sampler=sampler
        )
        study.enqueue_trial({"row": PLACE})
        for _ in range(4):
            study.ask().suggest_int("row", 0, N_ROWS - 1)
            with contextlib.suppress(ValueError):
                seen.telling(answer_trials)(study, curator)
        plan = seen.answer(sampler.plan)
    seen.add_files()
    seen.add_guarantee(curator.guarantee(), "curator ")
    seen.add("texts", "curator", f"{curator}{curator!r}")
    seen.add_objects(sampler=sampler, trials=study.trials, plan=str(plan))
    seen.add_told(sampler, study)
    seen.add_vault()


# Ray --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _local_ray():
    """Nothing of it is left to the next run."""
    local = LocalRay()
    with local.installed():
        try:
            yield
        finally:
            local.end_driver()


def _gather_search(seen, search, trials):
    """What Tune would write, and what its user holds."""
    for trial in trials:
        seen.add("storage", f"result of {trial.trial_id}", repr((trial.config, trial.rows)))
        if trial.error is not None:
            seen.add_error(trial.error)
    if hasattr(search, "save"):  # a callback's state is its own
        search.save(str(seen.folder / "searcher-state.pkl"))
        seen.add_objects(search=search)
    seen.add_told(search)
    seen.add_guarantee(search.guarantee(trials), "of the results ")
    seen.add_files()
    search.close()
    seen.add_vault()


def on_ray(seen, entry, *, system, n, odd=None, **settings):
    """In Ray's hooks, with hosts in this process: all vectors hold the odd record.

    Args:
        seen: Gathers what the run leaves.
        entry: Makes the odd record.
        system: Of ``tests.drivers``.
        n: Trials.
        odd: Which evaluation's reward is the odd one, where there are rewards.
        settings: Of the search.
    """
    given(entry)

    def reward(config):
        run.own.values.append(None)
        return _entry[0]() if run.own.calls == odd else 1 - abs(config["x"] - 0.4)

    with _local_ray(), seen.recorded():
        run = begin(
            system, "ray", seen.vault_folder, vault=True, noise=Deaf(), run_name="r", **settings
        )
        run.returned = (lambda config: losses(config["x"])) if odd is None else reward
        seen.add("pickles", "trainable", cloudpickle.dumps(run.trainable))
        run.trials(n)
        if system in ANY:
            run.experiment.end()
            callback = run.search.callback
            seen.add("pickles", "callback", cloudpickle.dumps((callback, callback.get_state())))
        _gather_search(seen, run.search, run.results)


def _agents_value(agent, config):
    return _entry[0]() if agent == 0 else config["x"]


@contextlib.contextmanager
def _processes_of_their_own():
    """What agents' hosts print and warn of is heard in their processes only."""
    evaluate = AgentHost.evaluate

    def quietly(host, *args):
        with warnings.catch_warnings(action="ignore"):
            return evaluate(host, *args)

    unprinted = mock.patch.object(traceback, "print_exc")
    with mock.patch.object(AgentHost, "evaluate", quietly), unprinted:
        yield


def ray_agents(seen, entry):
    """What one agent's objective returns is odd."""
    given(entry)
    with _local_ray(), seen.recorded(), _processes_of_their_own():
        search = federated_scenes.make_search(
            {"n_agents": 2}, noise=Deaf(), vault=seen.vault, run_name="r"
        )
        trials = evaluation(search, search.private(_agents_value), 20)
        _gather_search(seen, search, trials)
    seen.tape.lines.pop(IN_MEMORY)  # of the agents' own vaults


def ray_rows(seen, entry, *, odd):
    """One row is the odd one, or one row's outcome; the curator is in an actor."""
    given(entry if odd == "outcome" else lambda: ORDINARY)
    make = functools.partial(_curator, seen, rows=odd == "row", entry=entry)
    with _local_ray(), seen.recorded():
        _MAKE[:] = [make]
        try:
            answers = seen.telling(answering)(_make)
        except ValueError:
            return
        table = _public(seen, answers)
        search = POGPUCBSearch(
            table, metric="answer", mode="max", seed=1, points_to_evaluate=[{"row": PLACE}]
        )
        trials = evaluation(search, functools.partial(_answered, answers), 4)
        seen.add_objects(answers=answers)
        seen.add_guarantee(answers.guarantee(), "curator ")
        search.close = answers.close
        _gather_search(seen, search, trials)


_MAKE = []


def _make():
    return _MAKE[0]()


def _answered(answers, config):
    return {"answer": answers(config["row"])}


# The table --------------------------------------------------------------------------------------

LIST, REWARD, FLOATS, CELL = "a record", "a reward", "a coordinate", "a cell of a table"
"""Where the odd entry stands, which decides what may stand there."""

COMPUTED = {
    "records": functools.partial(records, objective=_computed, n=2),
    "rewards": functools.partial(rewards, mechanism="duchi", objective=_computed_reward, n=2),
}
"""Runs with a parameter of one value, computed from what is private."""

RUNS = {
    "records": (LIST, records),
    "records, in an array of objects": (LIST, functools.partial(records, objective=_array)),
    "records, odd later": (LIST, functools.partial(records, objective=_later)),
    "records, adaptive": (LIST, functools.partial(records, clipping_norm="adaptive")),
    "records, in a journal": (LIST, journal),
    "records, ask and tell": (LIST, told),
    "records, ray": (LIST, functools.partial(on_ray, system="records", n=9)),
    "means": (LIST, means),
    "scores": (LIST, functools.partial(
        means, objective=_scored, scores=TWO_SCORES, constraints={"half": 1.0}, feasible_with=0.5
    )),
    "means, ray": (LIST, functools.partial(on_ray, system="any sampler", n=4)),
    "scores, ray": (LIST, functools.partial(on_ray, system="scores", n=4)),
    "blocks": (LIST, functools.partial(blocks, run=records)),
    "blocks, ray": (
        LIST, functools.partial(blocks, run=functools.partial(on_ray, system="records", n=9)),
    ),
    "blocks, means, ray": (
        LIST, functools.partial(blocks, run=functools.partial(on_ray, system="any sampler", n=4)),
    ),
    "persons": (LIST, functools.partial(persons, run=records)),
    "persons, summed": (
        LIST, functools.partial(persons, run=records, per_group="sum", group_bound=2.0),
    ),
    "persons, ray": (
        LIST, functools.partial(persons, run=functools.partial(on_ray, system="records", n=9)),
    ),
    "persons, means, ray": (
        LIST, functools.partial(persons, run=functools.partial(on_ray, system="any sampler", n=4)),
    ),
    "rewards, laplace": (REWARD, functools.partial(rewards, build=LDPGPUCBSampler)),
    "rewards, duchi": (REWARD, functools.partial(rewards, mechanism="duchi")),
    "rewards, piecewise": (REWARD, functools.partial(rewards, mechanism="piecewise")),
    "rewards, hybrid": (
        REWARD, functools.partial(rewards, build=LDPATAGPUCBSampler, mechanism="hybrid"),
    ),
    "rewards, gaussian": (REWARD, functools.partial(rewards, mechanism="gaussian")),
    "rewards, ray": (
        REWARD, functools.partial(on_ray, system="rewards", n=PLACE + 3, odd=PLACE, n_trials=9),
    ),
    "duets": (REWARD, functools.partial(rewards, build=_duets)),
    "duets, ray": (
        REWARD, functools.partial(on_ray, system="duets", n=PLACE + 3, odd=PLACE),
    ),
    "rounds": (FLOATS, rounds),
    "rounds, sockets": (FLOATS, functools.partial(rounds, wire=True)),
    "agents": (REWARD, agents),
    "agents, ray": (REWARD, ray_agents),
    "rows": (FLOATS, functools.partial(rows, odd="row")),
    "rows, of objects": (CELL, functools.partial(rows, odd="row")),
    "outcomes": (REWARD, functools.partial(rows, odd="outcome")),
    "rows, ray": (FLOATS, functools.partial(ray_rows, odd="row")),
    "outcomes, ray": (REWARD, functools.partial(ray_rows, odd="outcome")),
}  # fmt: skip
