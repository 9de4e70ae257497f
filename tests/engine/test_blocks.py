"""A record touches the score of its own block alone, whatever a fit does, and no score is told.

The mutants break what this rests on: generators of their own, copies of arguments, disjoint
blocks, and functions that look at their own places alone.
"""

import contextlib
import dataclasses
import functools
import pickle
import random
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins import blocks as module
from privbo_plugins import sanitize
from privbo_plugins.algorithms.released_means import MeansConfig, ReleasedMeans, make_plan
from privbo_plugins.blocks import check_blocks, in_blocks, plan_blocks
from privbo_plugins.groups import Unit, whose
from privbo_plugins.privacy.guarantee import of_all
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.privacy.settings import RecordSettings
from privbo_plugins.sessions.records import Session
from privbo_plugins.store.vault import open_vault
from tests.independence.zoo import ORDINARY, QUOTED, ZOO, Raises

from .helpers import cube
from .test_audit import CLAIM, POWER, RUNS, audit_query

# Which record is in which block -----------------------------------------------------------------


@given(st.integers(4, 300), st.integers(0, 5), st.data())
def test_every_record_is_in_one_block_and_sizes_differ_by_one_at_most(n, seed, data):
    K = data.draw(st.integers(2, n // 2))
    score = in_blocks(len, n, K, seed=seed)
    places = score.places()
    assert np.array_equal(np.sort(np.concatenate(places)), np.arange(n))
    sizes = [len(own) for own in places]
    assert len(sizes) == K
    assert max(sizes) - min(sizes) <= 1
    again = in_blocks(len, n, K, seed=seed).places()
    assert all(np.array_equal(*pair) for pair in zip(places, again, strict=True))


def dealt(n_rows):
    """The block of each person, by the blocks of their rows; persons have 1 to 4 rows."""
    ids = np.repeat([f"p{i}" for i in range(len(n_rows))], n_rows)
    found = {}
    for block, own in enumerate(in_blocks(len, None, 3, groups=ids).places()):
        for person in np.unique(ids[own]):
            assert found.setdefault(str(person), block) == block
            assert np.isin(np.flatnonzero(ids == person), own).all()
    return found


@given(st.lists(st.integers(1, 4), min_size=6, max_size=12), st.integers(0, 5), st.integers(1, 4))
def test_persons_are_dealt_whole_and_the_rows_of_one_move_no_other(n_rows, place, others):
    before = dealt(n_rows)
    counts = np.bincount(list(before.values()), minlength=3)
    assert counts.max() - counts.min() <= 1
    assert dealt([*n_rows[:place], others, *n_rows[place + 1 :]]) == before


def test_a_pickle_holds_places_alone():
    """No id, nor what tells persons from others: their fingerprint stays in the process."""
    ids = np.repeat([f"Jane-{i}" for i in range(12)], 2)
    score = in_blocks(len, None, 3, groups=ids)
    (label,) = set(score.settings()["record_ids"])
    told = pickle.dumps(score)
    assert not any(private.encode() in told for private in ("Jane", label))
    again = pickle.loads(told)
    assert all(np.array_equal(*pair) for pair in zip(score.places(), again.places(), strict=True))
    assert "record_ids" not in again.settings()


def test_a_function_that_shuffles_its_places_finds_the_same_in_every_trial():
    score = in_blocks(lambda places: (np.random.shuffle(places), places[0])[1], N, K)  # noqa: NPY002
    assert score().tolist() == score().tolist()


@pytest.mark.parametrize("K", [1, 6, 2.5, True, "2", None])
def test_another_number_of_blocks_is_refused_with_rule_value_and_fix(K):
    with pytest.raises(ValueError, match=r"from 2 to n / 2 = 5.*got .* for n = 10\. Take fewer"):
        check_blocks(K, 10)
    with pytest.raises(ValueError, match="n_blocks"):
        in_blocks(len, 10, K)


@pytest.mark.parametrize(
    ("args", "more", "said"),
    [((3, 2), {}, "n_records must be an integer >= 4"),
     ((10, 2), {"seed": -1}, "seed must be an integer"),
     ((5, 2), {"groups": list("aabbccdd")}, "number of persons in groups=, which is 4"),
     ((None, 3), {"groups": list("aabbccdd")}, "n / 2 = 2")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(args, more, said):
    with pytest.raises(ValueError, match=said):
        in_blocks(len, *args, **more)


@given(st.integers(4, 10**6), st.sampled_from([0.1, 1.0, 5.0, float("inf")]), st.integers(1, 20))
def test_a_planned_number_is_always_allowed_and_follows_public_numbers_alone(n, mu, d):
    K = plan_blocks(n, mu, d)
    check_blocks(K, n)
    assert K == 2 or n / K >= module.FEWEST * (d + 1)
    assert K == 2 or K <= np.ceil(module.ENOUGH * (d + 1) / mu)


# A record and its block -------------------------------------------------------------------------

N, K = 24, 4


def careless(y, seen, places):
    """Draws as often as its data decide, of every generator, and changes what it is given."""
    own = y[places]
    for _ in range(int(abs(own).sum() * 10) % 7):
        np.random.random()  # noqa: NPY002
        random.random()
    seen["mean"] = seen.get("mean", 0.0) + float(own.mean())
    return seen["mean"] + np.random.random() + random.random()  # noqa: NPY002


def moved(y, other, function=careless):
    """Blocks whose score another value of one record moves."""
    scores = [in_blocks(functools.partial(function, v), N, K)({}) for v in (y, other)]
    return np.flatnonzero(scores[0] != scores[1])


def neighbours(place, value):
    y = np.linspace(0.0, 3.0, N)
    other = y.copy()
    other[place] = value
    return y, other


@given(st.integers(0, N - 1), st.floats(-50, 50))
def test_another_record_moves_no_score_but_that_of_its_own_block(place, value):
    places = in_blocks(len, N, K).places()
    own = next(block for block in range(K) if place in places[block])
    assert set(moved(*neighbours(place, value))) <= {own}


def _next_record_too(y, seen, places):
    """Mutant: looks at a neighbour of its last record."""
    return y[places].mean() + y[(places[-1] + 1) % N]


@pytest.mark.parametrize("mutant", ["generators", "arguments", "neighbour"])
def test_control_without_its_own_state_a_record_moves_other_blocks(mutant, monkeypatch):
    function = careless
    if mutant == "generators":
        monkeypatch.setattr(module, "_own_generators", lambda *_: contextlib.nullcontext())
    elif mutant == "arguments":
        monkeypatch.setattr(module.copy, "deepcopy", lambda given: given)
    else:
        function = _next_record_too
    found = [len(moved(*neighbours(place, 1.7), function)) for place in range(N)]
    assert max(found) > 1


def test_the_process_has_its_generators_back():
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    in_blocks(functools.partial(careless, np.ones(N)), N, K)({})
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002


def test_torch_is_seeded_too():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(1)
    score = in_blocks(lambda _, places: float(torch.rand(len(places))[0]), N, K)
    before = torch.get_rng_state()
    assert len(set(score(1).tolist())) == K
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert score(1).tolist() == score(2).tolist()


@pytest.mark.slow
def test_several_processes_find_the_same():
    pytest.importorskip("joblib", reason="joblib is not installed")
    given = functools.partial(careless, np.linspace(0, 3, N))
    alone = in_blocks(given, N, K)({})
    assert np.array_equal(in_blocks(given, N, K, n_jobs=2)({}), alone)


def test_each_block_that_is_done_is_counted():
    done = []
    in_blocks(lambda _, places: 1.0, N, K, progress=done.append)(0)
    assert done == list(range(K))


# What fails, and what is told of it -------------------------------------------------------------


def of_entry(entry, _, places):
    """The score of the first record's block is what an entry makes."""
    return entry() if 0 in places else ORDINARY


@pytest.mark.parametrize("odd", ZOO)
def test_whatever_a_block_returns_the_others_have_their_scores(odd, caplog):
    with warnings.catch_warnings(record=True, action="always") as heard:
        found = in_blocks(functools.partial(of_entry, ZOO[odd]), N, K)(0)
    (own,) = [b for b, places in enumerate(in_blocks(len, N, K).places()) if 0 in places]
    assert np.delete(found, own).tolist() == [ORDINARY] * (K - 1)
    assert found.dtype == np.float64
    assert heard == []
    assert QUOTED not in caplog.text


def _fails(kind, _, places):
    if 0 in places:
        raise kind(QUOTED)
    warnings.warn(QUOTED, UserWarning, stacklevel=1)
    return 0.25


@pytest.mark.parametrize("kind", [ValueError, MemoryError, SystemExit, RecursionError])
def test_a_block_that_fails_has_the_given_score_and_nothing_is_said(kind):
    with warnings.catch_warnings(record=True, action="always") as heard:
        found = in_blocks(functools.partial(_fails, kind), N, K, failed=1.0)(0)
    assert sorted(found.tolist()) == [0.25, 0.25, 0.25, 1.0]
    assert np.isnan(in_blocks(functools.partial(_fails, kind), N, K)(0)).sum() == 1
    assert heard == []


def test_blocks_that_fail_all_do_not_fail_the_trial():
    assert np.isnan(in_blocks(lambda _: 1 / 0, N, K)(0)).all()


def test_an_interruption_gets_through_without_a_text():
    with pytest.raises(KeyboardInterrupt) as raised:
        in_blocks(functools.partial(_fails, KeyboardInterrupt), N, K)(0)
    assert raised.value.args == ()


def test_control_warnings_of_a_block_would_be_heard(monkeypatch):
    monkeypatch.setattr(sanitize, "unheard", contextlib.nullcontext())
    with pytest.warns(UserWarning, match=QUOTED):
        in_blocks(functools.partial(_fails, Raises), N, K)(0)


# An audit ---------------------------------------------------------------------------------------


def worst_case(dealt=None, sees=lambda y, places: y[places].max(initial=0.0)):
    """The release of a trial's mean score, on tables that differ in one record."""
    K = 20
    score = in_blocks(lambda y, places: float(sees(y, places)), 2 * K, K)
    if dealt is not None:
        places = dealt(score.places())
        score.places = lambda: places
    tables = np.zeros((2, 2 * K))
    tables[1, score.places()[3][-1]] = 1.0
    config = MeansConfig(mu=CLAIM, n_trials=1)
    means = ReleasedMeans(config, cube(1), seed=0, plan=make_plan(config, cube(1), K))
    query = means.value_query("0", "start", -1, np.zeros(1))
    return query, *(score(table)[:, None] for table in tables)


def test_a_release_of_blocks_is_as_private_as_it_claims_for_any_record():
    bound = audit_query(*worst_case(), SecureNoise(), RUNS)
    assert POWER[RUNS] * CLAIM <= bound <= CLAIM


def _twice(places):
    """Mutant: the record that differs is in a second block."""
    return [*places[:5], np.append(places[5], places[3][-1]), *places[6:]]


def _neighbours(y, places):
    """Mutant: a block sees the record after each of its own."""
    return y[np.concatenate([places, (places + 1) % len(y)])].max()


@pytest.mark.parametrize(
    "broken", [{"dealt": _twice}, {"sees": _neighbours}], ids=["in two blocks", "sees another's"]
)
def test_the_audit_flags_blocks_that_share_a_record(broken):
    assert audit_query(*worst_case(**broken), InsecureNoise(0), RUNS) > CLAIM


# A run of blocks --------------------------------------------------------------------------------


def run_of(score, vault=None):
    """A run that has the settings of blocks."""
    given = RecordSettings(**score.settings())
    unit, config = Unit.of(given, MeansConfig(mu=1.0, n_trials=4))
    session = Session.open(
        open_vault() if vault is None else vault, "run", config, maximize=False, seed=0, unit=unit
    )
    session.labels.expect(whose(given)[1])
    session.set_space(cube(1))
    return session


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
@pytest.mark.parametrize("entries", [4, 5, 10], ids="{} entries".format)
def test_a_vector_that_is_not_of_the_run_s_blocks_is_refused(entries):
    """As losses of validation records, which train elsewhere, are."""
    score = in_blocks(len, 10, 5)
    session = run_of(score)
    with pytest.raises(ValueError, match=r"A run of blocks takes.*\*\*score\.settings\(\)"):
        session.tell("0", {"x00": 0.5}, cube(1), np.zeros(entries))
    assert session.ledger() == []
    session.tell("0", {"x00": 0.5}, cube(1), score())


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
@pytest.mark.parametrize(
    "settings",
    [None, {"seed": 1}, {"n_records": 11}, {"groups": np.arange(10), "n_records": None}],
    ids=str,
)
def test_scores_of_blocks_are_refused_where_a_run_was_not_told_of_their_deal(settings):
    """It would claim each block as a record, or name other records than theirs."""
    score = in_blocks(lambda places: places[0] / 10, 10, 5)
    deal = {"n_records": 10, "n_blocks": 5}
    session = run_of(SimpleNamespace(settings=dict) if settings is None
                     else in_blocks(len, **(deal | settings)))  # fmt: skip
    with pytest.raises(ValueError, match="A run of blocks takes"):
        session.tell("0", {"x00": 0.5}, cube(1), score())
    assert session.ledger() == []


MADE_OF = {
    "of two deals": lambda one, two: np.maximum(one, two),
    "a mean of two": lambda one, two: np.mean([one, two], axis=0),
    "side by side": lambda one, two: np.concatenate([one, two]),
    "in another order": lambda one, _: one[::-1],
    "sorted": lambda one, _: np.sort(one),
    "scaled": lambda one, _: (one - one.mean()) / one.std(),
    "some": lambda one, _: one[:5],
    "a list": lambda one, _: one.tolist(),
    "a series": lambda one, _: pd.Series(one),
    "another deal's": lambda _, two: two,
}
"""From the scores of two deals to vectors that a record may touch at several entries."""


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
@pytest.mark.parametrize("made", MADE_OF)
def test_what_is_made_of_scores_is_refused_and_scores_that_have_travelled_are_not(made):
    one, two = (in_blocks(lambda places: places[0] / 10, 10, 5, seed=i) for i in (0, 1))
    session = run_of(one)
    with pytest.raises(ValueError, match="A run of blocks takes"):
        session.tell("0", {"x00": 0.5}, cube(1), MADE_OF[made](one(), two()))
    assert session.ledger() == []
    with pytest.raises(ValueError, match="read-only"):
        one().__iadd__(two())
    session.tell("0", {"x00": 0.5}, cube(1), pickle.loads(pickle.dumps(one())))


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"n_blocks": 6}, {"n_records": 25}, {"unit": "patient"}],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.filterwarnings("ignore:unit='patient' is a name")
def test_a_run_that_goes_on_refuses_another_deal(other):
    vault, deal = open_vault(), {"n_records": N, "n_blocks": K}
    run_of(in_blocks(len, **deal), vault)
    run_of(in_blocks(len, **deal), vault)
    with pytest.raises(ValueError, match=r"other settings \((records_in_blocks|unit)="):
        run_of(in_blocks(len, **(deal | other)), vault)


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
def test_a_run_that_goes_on_refuses_blocks_of_other_persons():
    vault, ids = open_vault(), np.repeat(np.arange(12), 2)
    session = run_of(in_blocks(len, None, 3, groups=ids), vault)
    session.tell("0", {"x00": 0.5}, cube(1), in_blocks(len, None, 3, groups=ids)())
    run_of(in_blocks(len, None, 3, groups=np.append(ids, 0)), vault)  # rows decide nothing
    with pytest.raises(ValueError, match="others than the run's"):
        run_of(in_blocks(len, None, 3, groups=ids + 1), vault)
    with pytest.raises(ValueError, match=r"other settings \(.*records_in_blocks="):
        run_of(in_blocks(len, 12, 3, unit="row"), vault)  # dealt by places instead


def test_a_claim_of_blocks_counts_records_and_names_both_populations():
    score = in_blocks(len, None, 50, groups=np.arange(5000), unit="patient")
    session = run_of(score)
    session.tell("0", {"x00": 0.5}, cube(1), score())
    claim = session.guarantee()
    assert (claim.n_records, claim.in_blocks, claim.parameters["blocks"]) == (5000, True, 50)
    assert claim.population == "patients, of training and validation"
    assert "one patient, of training or validation" in claim.neighbours
    assert claim.deltas[0] < 1 / 5000
    apart = dataclasses.replace(
        claim, in_blocks=False, neighbours="one held out", population="patients held out"
    )
    both = of_all([("a", claim), ("b", apart)])
    assert not both.in_blocks
    assert (both.neighbours, both.population) == (apart.neighbours, apart.population)
    assert "training patients" in " ".join(both.details().split())


@pytest.mark.parametrize(
    ("more", "said"),
    [({"groups": list("aab")}, "give groups= to in_blocks"),
     ({"record_ids": list("abc")}, "leave groups= and record_ids= out"),
     ({"training_mu": 1.0}, "training_mu=.*nothing more"),
     *[({"records_in_blocks": deal}, r"records_in_blocks must be \(n, K, seed\).*got")
       for deal in (100, (100, 20), (10, 6, 0), (100, 1, 0), (100, 20, -1), (100, 2.5, 0))]],
    ids=str,
)  # fmt: skip
def test_settings_that_do_not_go_with_blocks_are_refused(more, said):
    pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")
    from optuna_samplers import DPGIBOSampler

    with pytest.raises(ValueError, match=said):
        DPGIBOSampler(mu=1.0, **({"records_in_blocks": (100, 20, 0)} | more))


@pytest.mark.parametrize("made", ["of two deals", "side by side", "in another order", "sorted"])
def test_a_run_of_records_refuses_what_is_made_of_scores(made):
    one, two = (in_blocks(lambda places: places[0] / 10, 10, 5, seed=i) for i in (0, 1))
    session = run_of(SimpleNamespace(settings=dict))
    with pytest.raises(ValueError, match="A run of blocks takes"):
        session.tell("0", {"x00": 0.5}, cube(1), MADE_OF[made](one(), two()))
