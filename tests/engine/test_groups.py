"""Persons with several rows: what an entry is, and that no other person's rows move it."""

import math
import pickle
import re
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbo_plugins import losses
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.registry import planned
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.errors import NotLossesError, PrivacyWarning
from privbo_plugins.groups import Groups, Unit
from privbo_plugins.privacy.mechanisms import gaussian_scale, mean_of_clipped_values
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.privacy.settings import RecordSettings
from privbo_plugins.privacy.words import as_row, plural
from privbo_plugins.sessions.records import Session
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault

from .auditing import audited_mu

VALUES = st.floats(-3, 3) | st.sampled_from([math.nan, math.inf, -math.inf, 1e300])
IDS = st.integers(0, 6) | st.sampled_from(["ann", "bob", "7", b"ann"])
ROWS = st.lists(st.tuples(IDS, VALUES), min_size=1, max_size=40)


def brute_force(rows, per_group, cap, worst=1.0):
    """One value a person, by its id."""
    clipped = [(i, min(max(y, 0.0), 1.0) if math.isfinite(y) else worst) for i, y in rows]
    each = {person: [y for i, y in clipped if i == person] for person in {i for i, _ in clipped}}
    if per_group == "sum":
        return {person: min(math.fsum(ys), cap) for person, ys in each.items()}
    return {person: math.fsum(ys) / len(ys) for person, ys in each.items()}


def entries_of(rows, per_group="mean", cap=None):
    ids, y = zip(*rows, strict=True)
    return losses.by_group(list(y), list(ids), per_group, group_bound=cap)


def persons_in_order(rows):
    kinds = [int, str, bytes]
    return sorted({i for i, _ in rows}, key=lambda i: (kinds.index(type(i)), i))


@pytest.mark.parametrize(("per_group", "cap"), [("mean", None), ("sum", 2.5)])
@given(rows=ROWS, seed=st.integers(0, 5))
def test_entries_are_those_of_brute_force_in_whatever_order_rows_stand(rows, per_group, cap, seed):
    rows = [("first", 0.5), (-1, 0.25), *rows]
    expected = brute_force(rows, per_group, cap)
    found = entries_of(rows, per_group, cap)
    assert found == pytest.approx([expected[i] for i in persons_in_order(rows)], abs=1e-12)
    shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    assert entries_of(shuffled, per_group, cap) == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize(("per_group", "cap"), [("mean", None), ("sum", 2.5)])
@given(
    others=ROWS,
    one=st.lists(VALUES, min_size=1, max_size=9),
    two=st.lists(VALUES, min_size=1, max_size=9),
    seed=st.integers(0, 5),
)
def test_one_persons_rows_move_no_other_entry_by_a_bit(others, one, two, seed, per_group, cap):
    """However many rows it has, and wherever they stand among the others'."""
    others = [(-1, 0.125), *others]
    rng = np.random.default_rng(seed)

    def found(own):
        rows = list(others)
        for y in own:
            rows.insert(int(rng.integers(len(rows) + 1)), ("odd", y))
        place = persons_in_order(rows).index("odd")
        entries = entries_of(rows, per_group, cap)
        assert 0 <= entries[place] <= (cap or 1.0)
        return np.delete(entries, place).tobytes()

    assert found(one) == found(two)


@given(
    others=ROWS,
    one=st.lists(VALUES, min_size=1, max_size=9),
    two=st.lists(VALUES, min_size=1, max_size=9),
    name=st.sampled_from(["odd", "zoe", 99]),
)
def test_an_exchanged_person_moves_the_mean_by_one_over_the_number_of_persons(
    others, one, two, name
):
    """Under another id and with another number of rows; the noise is planned for no more."""
    others = [(-1, 0.125), *others]
    means = []
    for own, person in ((one, "odd"), (two, name)):
        y = entries_of([*others, *((person, value) for value in own)])
        means.append(mean_of_clipped_values([y[:, None]], 0.0, 1.0, 1.0)[0])
    assert abs(means[0] - means[1]) <= (1 + 1e-9) / len(y)


def test_missing_ids_are_one_person_and_no_refusal():
    for missing in (None, math.nan, math.inf, [1], np.datetime64("2020-01-01")):
        assert losses.by_group([1.0, 0.0, 0.5], ["a", missing, None]).tolist() == [1.0, 0.25]
    of_floats = losses.by_group([1.0, 0.0, 0.5], np.array([3.0, math.nan, math.nan]))
    assert of_floats.tolist() == [1.0, 0.25]
    assert Groups(np.array([1, 2, np.nan, np.nan], dtype=np.longdouble)).n == 3


def test_a_number_is_the_same_person_in_any_type():
    lists = [[5, 7, 5], np.array([5, 7, 5], dtype=np.int8), [5.0, 7.0, 5], ["5", "7", "5"]]
    labels = [Groups(ids).labels for ids in lists]
    assert len(set(labels)) == 1
    assert Groups([2**70, 2**70 + 1]).n == Groups(["\ud800", "b"]).n == 2
    assert Groups([10**5000, 1]).n == 2


FIGURES = re.compile(r"\d")


@pytest.mark.parametrize("bad", [
    lambda: losses.by_group([0.1, 0.2, 0.3], ["a", "b"]),
    lambda: losses.by_group([0.1, 0.2], ["a", "b", "a"]),
    lambda: losses.by_group([0.1, 0.2], "ab"),
    lambda: losses.by_group([0.1, 0.2], 7),
    lambda: losses.by_group([0.1, 0.2], []),
    lambda: losses.by_group([0.1, 0.2], np.ones((2, 2))),
    lambda: losses.by_group([0.1, 0.2], ["a", "a"]),
    lambda: losses.by_group([0.1, 0.2], np.array(["2020-01-01"] * 2, dtype="M8[D]")),
])  # fmt: skip
def test_what_is_refused_tells_neither_figures_nor_ids(bad):
    with pytest.raises(ValueError, match=r"groups must ") as refused:
        bad()
    assert not FIGURES.search(str(refused.value))
    assert refused.value.__context__ is refused.value.__cause__ is None


@pytest.mark.parametrize(("given", "words"), [
    ({"per_group": "median"}, "per_group must be one of mean, sum"),
    ({"per_group": "sum"}, "group_bound, which per_group='sum' needs, must be"),
    ({"per_group": "sum", "group_bound": -1}, "must be a finite number > 0, got -1"),
    ({"per_group": "sum", "group_bound": 2, "bound": (-1, 1)}, r"for a sum of rows in \(-1, 1\)"),
    ({"group_bound": 2}, "a mean needs none"),
    ({"bound": (1, 0)}, "finite y_low < y_high|low < high"),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        losses.by_group([0.1, 0.2], ["a", "b"], **given)


@pytest.mark.parametrize(("given", "words"), [
    ({"per_group": "sum"}, "groups= stands in place of record_ids="),
    ({"group_bound": 2.0}, "groups= stands in place of record_ids="),
    ({"groups": ["a", "b"], "record_ids": ["a", "b"]}, "in place of record_ids="),
    ({"unit": "1 patient"}, "unit must be a noun in the singular"),
    ({"unit": "{mu}"}, "unit must be a noun"),
    ({"unit": ""}, "unit must be a noun"),
])  # fmt: skip
def test_settings_of_a_run_that_do_not_go_together_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Unit.of(RecordSettings(**given), GIBOConfig(mu=1.0))


def test_a_sum_of_a_persons_rows_is_what_the_noise_is_planned_for():
    given = RecordSettings(groups=["a", "b"], per_group="sum", group_bound=3.0, unit="patient")
    unit, config = Unit.of(given, MeansConfig(mu=1.0, n_trials=4, loss_bound=0.5))
    assert (config.loss_bound, unit.rows, unit.cap, unit.word) == (3.0, [0.0, 0.5], 3.0, "patient")
    assert Groups(["a", "b", "a"]).entries([9.0, 0.25, 0.25], unit, 0.5).tolist() == [0.75, 0.25]


@given(rows=st.lists(IDS, min_size=1, max_size=30), more=st.lists(IDS, max_size=30))
def test_who_is_held_out_rows_do_not_decide(rows, more):
    ids = ["first", -1, *rows]
    known = set(ids)
    again = [*reversed(ids), *(i for i in more if i in known)]
    one, two = Groups(ids), Groups(again)
    assert one.ranks(3).tolist() == two.ranks(3).tolist()
    assert sorted(one.ranks(3)) == list(range(one.n))
    assert one.labels == two.labels


def test_another_id_changes_one_place_at_most():
    """Who joins where another has left: among the first ones one person changes, or nobody."""
    ids = [f"p{i}" for i in range(30)]
    for new in (f"q{i}" for i in range(40)):
        before, after = Groups(ids), Groups([*ids[:-1], new])
        held = [
            {known[i] for i in np.flatnonzero(groups.ranks(0) < 15)}
            for groups, known in ((before, sorted(ids)), (after, sorted([*ids[:-1], new])))
        ]
        assert len(held[0] - held[1]) <= 1


# Runs -------------------------------------------------------------------------------------------

LINE = Space({"x": Float(0.0, 1.0)})
PERSONS = ["a", "b", "a", "c", "a", "b"]


def session(unit=None, groups=None, vault=None, **how):
    config = MeansConfig(mu=20.0, n_trials=3)
    made = Session.open(vault or open_vault(None), "run", config, maximize=False, unit=unit, **how)
    made.groups = groups
    return made


MEAN = Unit.of_rows("patient", (0.0, 1.0), "mean", None)


def test_only_the_entries_of_persons_reach_the_vault():
    run = session(MEAN, Groups(PERSONS))
    run.tell("0", {"x": 0.5}, LINE, [0.0, 0.5, 0.5, 1.0, 1.0, 0.5])
    assert run.n_records == 3
    claim = run.guarantee()
    assert (claim.unit, claim.population, claim.n_records) == ("patient", "validation patients", 3)
    assert "in one validation patient's rows, any number of them, under the" in claim.neighbours
    told = claim.details() + claim.to_markdown() + claim.lasting + claim.to_json()
    assert "patient" in told
    assert "record" not in re.sub(r"n_records|-records|docs/\S+", "", told)


def test_losses_and_groups_with_another_index_each_are_not_matched_by_their_place():
    pandas = pytest.importorskip("pandas")
    ids = pandas.Series(["ann", "bob", "ann"], index=[7, 8, 9])
    told = pandas.Series([1.0, 0.0, 0.5], index=[7, 8, 9])
    assert losses.by_group(told, ids).tolist() == [0.75, 0.0]
    assert losses.by_group(told.to_numpy(), ids).tolist() == [0.75, 0.0]
    assert losses.by_group(told[::-1], ["ann", "bob", "ann"]).tolist() == [0.75, 0.0]
    with pytest.raises(NotLossesError, match="another pandas index each"):
        losses.by_group(told[::-1], ids)
    run = session(MEAN, Groups(ids))
    with pytest.raises(NotLossesError, match="another pandas index each"):
        run.tell("0", {"x": 0.5}, LINE, told[::-1])
    assert run.ledger() == run.releases() == []
    run.tell("0", {"x": 0.5}, LINE, told)
    assert len(run.ledger()) == 1


@pytest.mark.parametrize("rows", [[0.5] * 5, [0.5] * 7, [0.5] * 3])
def test_another_number_of_rows_is_refused_without_figures_and_nothing_is_charged(rows):
    run = session(MEAN, Groups(PERSONS))
    with pytest.raises(NotLossesError, match="another length") as refused:
        run.tell("0", {"x": 0.5}, LINE, rows)
    assert not FIGURES.search(str(refused.value))
    assert run.ledger() == run.releases() == []


def test_a_process_that_does_not_know_the_persons_is_refused(tmp_path):
    vault = open_vault(str(tmp_path / "private.db"))
    session(MEAN, Groups(PERSONS), vault).tell("0", {"x": 0.5}, LINE, [0.5] * 6)
    with pytest.raises(ValueError, match="groups= is neither pickled nor stored"):
        session(MEAN, None, vault).tell("1", {"x": 0.5}, LINE, [0.5] * 3)
    with pytest.raises(ValueError, match=r"started with other settings .*unit='patient' then"):
        session(None, None, vault)
    sums = Unit.of_rows("patient", (0.0, 1.0), "sum", 1.0)
    with pytest.raises(ValueError, match="per_group='mean' then and 'sum' now"):
        session(sums, Groups(PERSONS), vault)
    other = Unit.of_rows("patient", (0.0, 2.0), "mean", None)
    with pytest.raises(ValueError, match=r"loss_bound=\[0.0, 1.0\] then and \[0.0, 2.0\] now"):
        session(other, Groups(PERSONS), vault)


def test_a_plan_names_its_entries_and_a_unit_is_one_of_them():
    config = MeansConfig(mu=1.0, n_trials=4)
    for unit, said in [
        (Unit(), "n=20 records"), (Unit("patient"), "n=20 patients"),
        (Unit("patient", records_in_blocks=(900, 20, 0)), "n=20 blocks"),
    ]:  # fmt: skip
        assert said in str(planned(config, LINE, 20, unit))
    for word in ("patients", "records"):
        with pytest.raises(ValueError, match="in the singular"):
            RecordSettings(unit=word)
    for word in ("boss", "campus", "hospital visit", as_row("p" * 40)):
        assert RecordSettings(unit=word).unit == word


def test_other_persons_are_refused_and_another_order_of_rows_is_none(tmp_path):
    vault = open_vault(str(tmp_path / "private.db"))
    known = Groups(PERSONS)
    run = session(MEAN, known, vault)
    run.labels.expect(known.labels)
    run.tell("0", {"x": 0.5}, LINE, [0.5] * 6)
    again = Groups([*PERSONS[::-1], "c"])
    joined = session(MEAN, again, vault)
    joined.labels.expect(again.labels)
    joined.tell("1", {"x": 0.25}, LINE, [0.5] * 7)
    with pytest.raises(ValueError, match="others than the run's") as refused:
        session(MEAN, None, vault).labels.expect(Groups(["a", "b", "d"]).labels)
    assert not FIGURES.search(str(refused.value))


def test_rows_in_another_order_than_the_first_are_refused():
    pd = pytest.importorskip("pandas")
    run = session(MEAN, Groups(PERSONS))
    rows = pd.Series([0.5] * 6, index=list("uvwxyz"))
    run.tell("0", {"x": 0.5}, LINE, rows)
    with pytest.raises(ValueError, match="another order"):
        run.tell("1", {"x": 0.5}, LINE, rows[::-1])


def test_several_runs_with_other_units_claim_for_a_record_alone():
    from privbo_plugins.privacy.guarantee import of_all

    claims = [session(MEAN, Groups(PERSONS)).guarantee(), session().guarantee()]
    told = of_all([("a", claims[0]), ("b", claims[1])])
    assert told.unit == "record"
    assert any("for a single record" in note for note in told.notes)
    assert told.population == "validation patients; validation records"


def test_plurals():
    words = ("record", "person", "family", "branch", "household", "day", "boss")
    many = ["records", "persons", "families", "branches", "households", "days", "bosses"]
    assert [plural(word) for word in words] == many


# Audits -----------------------------------------------------------------------------------------

N, RUNS, CLAIM = 20, 1000, 2.0
SMALL, LARGE = [(i, 0.5) for i in range(N - 1)], 30


def counted_per_row(rows):
    """Mutant: every row of a person is an entry."""
    return np.array([y for _, y in rows])


def mean_over_rows(rows):
    """Mutant: the mean over all rows, as one entry a person has of it."""
    return np.full(N, np.mean([y for _, y in rows]))


def sum_without_cap(rows):
    """Mutant: rows of a person add up."""
    return N * np.array([sum(y for i, y in rows if i == p) / N for p in {i for i, _ in rows}])


@pytest.mark.parametrize(("make", "sound"), [
    (entries_of, True), (counted_per_row, False), (mean_over_rows, False),
    (sum_without_cap, False),
])  # fmt: skip
def test_an_audit_finds_out_who_counts_a_person_by_rows(make, sound):
    """One person of 30 rows, all of them 1 or all of them 0; noise for one entry of 20."""
    noise, scale = InsecureNoise(7), gaussian_scale(1.0 / N, CLAIM)
    worlds = [[*SMALL, *[("odd", y)] * LARGE] for y in (0.0, 1.0)]
    exact = [float(np.mean(make(rows))) for rows in worlds]
    scores = [
        [float(noise.add_gaussian(np.array([value]), scale)[0]) for _ in range(RUNS)]
        for value in exact
    ]
    found = audited_mu(*scores)
    assert (found <= CLAIM) == sound
    assert found >= 0.4 * CLAIM


def test_groups_are_no_part_of_a_pickled_sampler():
    optuna_samplers = pytest.importorskip("optuna_samplers")
    ids = ["patient-3b1f", "patient-99aa", "patient-3b1f"]
    sampler = optuna_samplers.DPGIBOSampler(mu=1.0, groups=ids, seed=0)
    blob = pickle.dumps(sampler)
    assert b"patient-3b1f" not in blob
    assert b"patient-3b1f" not in repr(vars(pickle.loads(blob))).encode()
    assert pickle.loads(blob)._groups is None


ROWS_OR_WHOLE = {
    "rows": ({}, "patient row"),
    "rows of another word": ({"unit": "visit row"}, "visit row"),
    "rows in blocks": ({"records_in_blocks": (12, 3, 0)}, "patient row"),
    "persons by groups": ({"groups": list("aab")}, "patient"),
    "entries that have ids": ({"record_ids": list("abc")}, "patient"),
    "whole persons in blocks": ({"records_in_blocks": (12, 3, 0, 1)}, "patient"),
}


@pytest.mark.parametrize("case", ROWS_OR_WHOLE)
def test_no_claim_takes_rows_for_persons_where_nothing_groups_them(case):
    """Whether ids repeat is private: that they were given decides."""
    given, word = ROWS_OR_WHOLE[case]
    settings, config = {"unit": "patient"} | given, MeansConfig(mu=1.0, n_trials=4)
    warned = word == "patient row"
    with pytest.warns(PrivacyWarning, match="groups no rows") if warned else nullcontext():
        unit, _ = Unit.of(RecordSettings(**settings), config)
    assert unit.word == word
    claim = session(unit).guarantee()
    said = f"{claim.details()} {claim.lasting} {claim.to_markdown()}"
    rows = word.endswith("row")
    assert (f"each {word} is protected for itself alone" in said) == rows
    assert ("under the same id" in said or "under one id" in said) == (not rows)
    assert not rows or not re.search(r"\b(patients?|visits?)\b(?!\s+rows?\b)", said)


def test_beside_scores_no_text_names_groups_as_the_way_out():
    config = MeansConfig(mu=1.0, n_trials=4, scores=["f1"])
    said = "Where each patient has one row, ignore this: .*message='unit=.*blocks"
    with pytest.warns(PrivacyWarning, match=said) as told:
        unit, _ = Unit.of(RecordSettings(unit="patient"), config)
    claim = Session.open(open_vault(), "run", config, maximize=True, unit=unit).guarantee()
    assert "groups=ids" not in str(told[0].message)
    assert "groups=" not in f"{claim.details()} {claim.lasting}"
    assert "patient row is protected for itself alone" in claim.details()


def test_a_refused_resume_names_the_unit_as_given_and_a_budget_where_it_is_one():
    vault = open_vault()
    session(None, None, vault)
    with pytest.raises(ValueError, match=r"unit='record' then and 'patient' now\)\. Use the same"):
        session(Unit("patient row"), None, vault)


def test_where_each_row_is_an_entry_no_claim_speaks_of_several():
    """A unit that has a name alone promises nothing for more rows than one."""
    run = session(Unit("patient"), None)
    run.tell("0", {"x": 0.5}, LINE, [0.0, 0.5, 0.5])
    assert "rows" not in run.guarantee().neighbours
    assert run.guarantee().unit == "patient"
