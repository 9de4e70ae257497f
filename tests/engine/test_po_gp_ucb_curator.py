"""The curator: one release for ever, one answer a row, and nobody's entries anywhere else.

Where only the bookkeeping is tested, seeded sources stand in for the system's entropy; two
curators over one vault get different seeds there, so that a second draw would show.
"""

import copy
import json
import math
import pickle
import warnings
from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from scipy.optimize import brentq

from privbo_plugins.algorithms.po_gp_ucb import TableManifest
from privbo_plugins.algorithms.po_gp_ucb.table import IN_MEMORY, sealed
from privbo_plugins.errors import ObjectiveFailedError, PrivacyError, PrivacyWarning, VaultError
from privbo_plugins.privacy import noise as noise_module
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.privacy.words import WORDS, texts_of
from privbo_plugins.sessions.rows import NOT_TIED, TIED, Curator
from privbo_plugins.settings import evolve
from privbo_plugins.store import vault as vault_module
from privbo_plugins.store.release import TEST_NOISE
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import open_vault
from tests.inside import answers_of, pseudonym, run_of, vault_of

from .helpers import Counting, Crash, NoNoise
from .oracles import gaussian_delta, gaussian_epsilon, gaussian_mu
from .scenes import at_once, release_table

SECRET, NAME = 48151.62342, "Jane Doe"
X = np.random.default_rng(0).uniform(size=(12, 3))
Y = np.random.default_rng(1).uniform(size=12)
USUAL = {"epsilon": 1.0, "delta": 1e-5, "norm_bound": 2.0}
PRIVATE = {"outcome_epsilon": 0.7, "outcome_range": (0.0, 1.0)}


def curator_of(rows=X, **more):
    return Curator(rows, **{**USUAL, **more})


def ledger(curator):
    with run_of(curator).transaction() as tx:
        return list(tx.charges())


# One release --------------------------------------------------------------------------------


def test_a_table_is_drawn_once_whoever_asks_and_whatever_its_rows_are_now(url):
    first = curator_of(vault=url).release()
    again = curator_of(vault=url)
    other = curator_of(1 - X, vault=url)
    for curator in (again, again, other):
        table = curator.release()
        assert np.array_equal(table.Z, first.Z)
        assert table.manifest == first.manifest
    assert len(ledger(again)) == 1
    noise = Counting()
    curator_of(vault=url, noise=noise).release()
    assert noise.draws == 0


def test_two_processes_release_one_table_and_one_answer_a_row(path, tmp_path):
    handle = f"sqlite:///{path}"
    open_vault(handle).close()
    answers = at_once(release_table, (handle, 1), (handle, 2), folder=tmp_path)
    assert answers[0] == answers[1]
    digest, values = answers[0]
    curator = curator_of(vault=handle, outcomes=Y, **PRIVATE)
    assert curator.release().manifest.digest == digest
    assert [curator.answers()[row] for row in range(12)] == values
    assert len(ledger(curator)) == 1


def unwarned(mechanism):
    if mechanism == "projection":
        return pytest.warns(PrivacyWarning, match="Nothing is protected")
    return nullcontext()


BROKEN = [
    *product(["charge", "draw", "put_table", "release"], [RuntimeError, Crash]),
    ("progress", KeyboardInterrupt),
]
"""Where a release breaks off, and by what; other errors of progress are dropped."""


@pytest.mark.parametrize(("place", "error"), BROKEN)
def test_a_crash_before_the_commit_leaves_neither_charge_nor_table(
    path, place, error, monkeypatch
):
    """Charge, draw and store are one transaction; the next release draws anew, charged once."""
    handle, drawn = f"sqlite:///{path}", 0
    measurement = noise_module._measurement

    def fail(*_):
        raise error("stop")

    def counted(*how):
        nonlocal drawn
        drawn += 1
        return fail() if place == "draw" else measurement(*how)

    curator = curator_of(vault=handle)
    with monkeypatch.context() as patched:
        patched.setattr(noise_module, "_measurement", counted)
        if place not in ("draw", "progress"):
            patched.setattr(Transaction, place, fail)
        with pytest.raises(error if place == "progress" else PrivacyError):
            curator.release(*([fail] if place == "progress" else []))
    assert drawn == (place != "charge")
    assert ledger(curator) == []
    assert "nothing has been released yet" in curator.guarantee().details()
    assert not curator.guarantee().protected
    table = curator.release()
    assert np.array_equal(curator_of(vault=handle).release().Z, table.Z)
    (charge,) = ledger(curator)
    made = table.manifest
    assert (charge.kind, charge.key) == ("table", "0")
    assert (charge.mu, charge.sensitivity, charge.scale) == (
        made.mu, made.sensitivity, made.noise_sd,
    )  # fmt: skip


OTHER_SETTINGS = [
    {"epsilon": 2.0}, {"delta": 1e-6}, {"norm_bound": 3.0}, {"neighbor_distance": 0.5},
    {"mechanism": "projection"}, {"bounds": [(0, 1)] * 3}, {"r": 2}, {"columns": ["a", "b", "c"]},
    PRIVATE, {**PRIVATE, "outcome_mechanism": "duchi"},
    {**PRIVATE, "outcome_mechanism": "gaussian", "outcome_delta": 1e-6},
]  # fmt: skip


@pytest.mark.parametrize("other", OTHER_SETTINGS, ids=str)
def test_other_settings_under_the_same_name_are_refused(other):
    """In both directions; a privatised run cannot be told its raw answers afterwards."""
    for one, two in ((other, {}), ({}, other)):
        vault = open_vault()
        with unwarned(one.get("mechanism", "gaussian")):
            curator_of(vault=vault.handle, outcomes=Y, **one)
        with pytest.raises(VaultError, match="with other settings"):
            curator_of(vault=vault.handle, outcomes=Y, **two)
        with unwarned(one.get("mechanism", "gaussian")):
            curator_of(vault=vault.handle, **one)
    for rows in (X[:-1], X[:, :-1], np.vstack([X, X])):
        vault = open_vault()
        curator_of(vault=vault.handle)
        with pytest.raises(VaultError, match="of another size"):
            curator_of(rows, vault=vault.handle)


def test_progress_is_told_in_rows():
    rows = np.zeros((6000, 3))
    seen = []
    curator_of(rows, noise=InsecureNoise(0)).release(lambda done, of: seen.append((done, of)))
    assert seen == [(5461, 6000), (6000, 6000)]


def test_progress_that_fails_takes_back_no_charge():
    curator = curator_of()
    table = curator.release(lambda _done, _of: 1 / 0)
    assert len(ledger(curator)) == 1
    assert np.array_equal(curator.release().Z, table.Z)


def damaged(raw, number):
    """A vault's file with one number changed, or after its end, or any one page, was lost."""
    yield raw.replace(number, np.array(0.25).tobytes().hex().encode(), 1)
    for length in (*range(4096, len(raw), 4096), len(raw) - 1):
        yield raw[:length]
    for start in range(0, len(raw), 4096):
        yield raw[:start] + bytes(4096) + raw[start + 4096 :]


def test_a_damaged_vault_never_releases_another_table(path, monkeypatch):
    """It is refused, or replayed where the damage lies elsewhere."""
    monkeypatch.setattr(vault_module.time, "sleep", lambda _: None)
    url, rows = f"sqlite:///{path}", np.zeros((600, 3))
    first, refused = curator_of(rows, vault=url).release(), []
    for raw in damaged(path.read_bytes(), first.Z[5].tobytes()[:8].hex().encode()):
        path.write_bytes(raw)
        try:
            assert np.array_equal(curator_of(rows, vault=url).release().Z, first.Z)
        except (VaultError, ValueError) as error:
            refused.append(str(error))
    assert "never stored in it" in refused[0]
    assert len(refused) > 20


# What is not protected, and says so ---------------------------------------------------------


def test_a_projection_is_never_protected_and_warns_each_time():
    vault = open_vault()
    for _ in range(2):
        with pytest.warns(PrivacyWarning, match="Nothing is protected.*column space"):
            curator = curator_of(vault=vault.handle, mechanism="projection")
        assert not curator.guarantee().protected
        table = curator.release()
        for claim in (curator.guarantee(), table.guarantee()):
            assert not claim.protected
            assert str(claim).startswith("NOT PROTECTED.")
            assert "one look tells almost any two neighbouring tables apart" in claim.details()
            assert claim.to_dict()["epsilon"] == "inf"
        assert table.manifest.mu is None
        assert table.manifest.noise_sd == 0.0
        assert [(c.mu, c.sensitivity) for c in ledger(curator)] == [(math.inf, math.inf)]


class Subclass(SecureNoise):
    """Could do anything."""


@pytest.mark.parametrize("source", [InsecureNoise(0), Subclass()])
@pytest.mark.parametrize("comes", ["first", "later"])
def test_test_noise_leaves_a_run_unprotected_for_ever(path, source, comes):
    """And its table, where it was drawn from there."""
    handle = f"sqlite:///{path}"
    table = curator_of(vault=handle, noise=source if comes == "first" else None).release()
    made = table.manifest
    assert made.protected is (comes == "later")
    assert "system's entropy" in made.noise or TEST_NOISE in (*made.reasons, made.noise)
    spoilt = curator_of(vault=handle, noise=source, outcomes=Y)
    for later in (spoilt, curator_of(vault=handle)):
        assert later.release().manifest == made
        claim = later.guarantee()
        assert not claim.protected
        assert claim.epsilon == math.inf
        assert TEST_NOISE in claim.details()


# Rows outside -------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [math.nan, math.inf, -1e308, SECRET])
def test_rows_outside_are_clipped(entry):
    rows = X.copy()
    rows[3, 1] = entry
    table = curator_of(rows, noise=InsecureNoise(0)).release()
    inside = X.copy()
    inside[3, 1] = 0.0 if not math.isfinite(entry) else math.copysign(1e300, entry)
    expected = curator_of(inside, noise=InsecureNoise(0)).release()
    np.testing.assert_allclose(table.Z, expected.Z, rtol=1e-4)


# Texts --------------------------------------------------------------------------------------


class Evil:
    """Quotes an entry when it is converted."""

    def __array__(self, *_, **__):
        raise RuntimeError(f"{NAME}: {SECRET}")

    def __float__(self):
        raise LookupError(f"{NAME}: {SECRET}")


def with_secret(**more):
    rows = X.copy()
    rows[2, 2] = SECRET
    return rows, {"outcomes": [SECRET] * 12, **more}


BAD_ARGUMENTS = [
    {"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": math.inf}, {"epsilon": math.nan},
    {"delta": 0.0}, {"delta": 1.0}, {"delta": math.nan}, {"mechanism": "laplace"},
    {"mechanism": None}, {"norm_bound": 0.0}, {"norm_bound": math.nan},
    {"norm_bound": math.inf}, {"norm_bound": "2"}, {"norm_bound": True}, {"norm_bound": 10**400},
    {"norm_bound": None}, {"neighbor_distance": 0.0}, {"neighbor_distance": -1.0},
    {"neighbor_distance": 1e-9}, {"neighbor_distance": math.inf}, {"bounds": [(0, 1)]},
    {"bounds": [(1, 0)] * 3}, {"bounds": [(0, math.nan)] * 3}, {"bounds": [(0, math.inf)] * 3},
    {"bounds": [(0, 0)] * 3}, {"bounds": [0, 1, 2]}, {"r": 0}, {"r": 4},
    {"r": 1.5}, {"r": "2"}, {"r": True}, {"r": 0, "mechanism": "projection"},
    {"r": 2.5, "mechanism": "projection"}, {"columns": ["a"]}, {"outcome_epsilon": 0.0},
    {"outcome_epsilon": 1.0}, {"outcome_range": (0.0, 1.0)}, {"outcome_delta": 1e-6},
    {"outcome_mechanism": "duchi"}, {**PRIVATE, "outcome_mechanism": "none"},
    {**PRIVATE, "outcome_epsilon": math.inf}, {**PRIVATE, "outcome_range": (1.0, 0.0)},
    {"outcome_column": ""}, {"outcome_column": "x" * 513}, {"outcome_column": 3},
    {**PRIVATE, "outcome_delta": 1e-6},
    {**PRIVATE, "outcome_mechanism": "gaussian", "outcome_delta": 0.6, "delta": 0.6},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_ARGUMENTS, ids=str)
def test_every_argument_outside_its_range_is_refused_without_quoting_an_entry(bad):
    rows, arguments = with_secret(**bad)
    vault = open_vault()
    with pytest.raises(ValueError, match=r"\w") as refused:
        curator_of(rows, vault=vault.handle, **arguments)
    said_nothing(refused.value)
    with vault.transaction("") as tx:
        assert tx.run_of_host("outsourced:table") is None  # nothing was begun


def said_nothing(error):
    while error is not None:
        for text in (str(error), repr(error), repr(vars(error)), repr(error.args)):
            for secret in (NAME, "Jane", "48151", "62342"):
                assert secret not in text
        assert error.__cause__ is None
        error = error.__context__


BAD_TABLES = [
    [[NAME, 1.0]], [[SECRET, NAME]], SECRET, [SECRET], [[SECRET], [SECRET, 1.0]], [], [[]],
    np.zeros((0, 3)), np.full((2, 2, 2), SECRET), {NAME: SECRET}, [[{NAME: SECRET}]], [[10**400]],
    Evil(), [[Evil()]], NAME, None,
]  # fmt: skip
"""What has no shape, or a list of rows with nothing public that says how wide they are."""


@pytest.mark.parametrize("bad", BAD_TABLES, ids=range(len(BAD_TABLES)))
def test_a_table_that_is_none_is_refused_without_quoting_an_entry(bad):
    with pytest.raises(ValueError, match="X must be a table of numbers") as refused:
        curator_of(bad)
    said_nothing(refused.value)


@pytest.mark.parametrize("bad", [[SECRET] * 11, SECRET, Evil(), NAME, {1: SECRET}], ids=range(5))
def test_outcomes_that_are_none_are_refused_without_quoting_one(bad):
    with pytest.raises(ValueError, match="one number for each of the 12 rows") as refused:
        curator_of(outcomes=bad)
    said_nothing(refused.value)


class Talkative:
    """Warns of what it is."""

    def __float__(self):
        warnings.warn(f"{SECRET} is unusual", RuntimeWarning, stacklevel=1)
        return SECRET


@pytest.mark.parametrize("action", ["error", "always"])
@pytest.mark.parametrize("odd", [np.ma.masked, np.complex64(0.25), Talkative()], ids=range(3))
def test_an_odd_cell_or_outcome_is_taken_without_a_warning(odd, action):
    rows, outcomes = X.tolist(), Y.tolist()
    rows[3][1] = outcomes[3] = odd
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        curator_of(rows, outcomes=outcomes, columns="xyz", **PRIVATE).release()
    assert not caught


@pytest.mark.parametrize("public", [{"columns": "xyz"}, {"bounds": [(0, 1)] * 3}], ids=str)
def test_a_list_of_rows_is_as_wide_as_what_is_public_says(public):
    """Not as its rows: a list of one row's own width would be refused, or cut, for that row."""
    for wide in (X.tolist(), [*X.tolist()[:11], [0.5] * 4]):
        assert curator_of(wide, **public).d == 3
    wider = [[*row, 0.5] for row in X.tolist()]
    for row in [wider[0], X.tolist()[0]]:  # as many rows fit as do: none, or one
        assert curator_of([*wider[:11], row], **public).release().Z.shape == (12, 3)


@pytest.mark.parametrize("row", [-1, 12, 1.0, True, "3", None, np.float64(1.0)])
def test_rows_that_are_none_are_refused(row):
    with pytest.raises(ValueError, match="row must be an integer from 0 to 11"):
        curator_of(outcomes=Y).evaluate(row)
    with pytest.raises(ValueError, match="can only release"):
        curator_of().evaluate(0)


def fails_with(error):
    def outcome(row):
        raise error

    return outcome


@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["raw", "private"])
@pytest.mark.parametrize(
    "outcome",
    [
        fails_with(ValueError(f"{NAME} has {SECRET}")), fails_with(KeyError(NAME)),
        fails_with(Crash(NAME)), fails_with(SystemExit(SECRET)), fails_with(GeneratorExit(NAME)),
        fails_with(type(NAME.replace(" ", ""), (Exception,), {})(SECRET)),
        lambda row: [SECRET, SECRET], lambda row: {NAME: SECRET},
    ],
)  # fmt: skip
def test_what_a_function_of_outcomes_says_is_withheld(outcome, private):
    curator = curator_of(outcomes=outcome, **private)
    if private:  # failing is told no more than any other outcome: it counts as the worst
        assert math.isfinite(curator.evaluate(0))
        return
    with pytest.raises(ObjectiveFailedError) as failed:
        curator.evaluate(0)
    said_nothing(failed.value)
    assert failed.value.__context__ is None
    assert curator.answers() == {}


@pytest.mark.parametrize(
    "outcome", [NAME, Evil(), SECRET * 1j, math.nan, math.inf, 10**400], ids=range(6)
)
def test_an_outcome_that_is_no_finite_number_is_none(outcome):
    curator = curator_of(outcomes=lambda row: outcome)
    with pytest.raises(PrivacyError, match="Row 0 has no finite outcome") as failed:
        curator.evaluate(0)
    said_nothing(failed.value)
    assert curator.answers() == {}
    assert math.isfinite(curator_of(outcomes=lambda row: outcome, **PRIVATE).evaluate(0))


def test_a_curator_is_neither_pickled_nor_copied_nor_quotes_its_rows():
    rows, arguments = with_secret(columns=["a", "b", "c"])
    curator = curator_of(rows, **arguments)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(PrivacyError, match="not pickled") as refused:
            attempt(curator)
        said_nothing(refused.value)
    for text in (repr(curator), str(curator), f"{curator}"):
        assert text == "Curator(n=12, d=3, mechanism='gaussian', run_name='table')"


# Answers ------------------------------------------------------------------------------------


def test_answers_as_they_are_are_told_once_and_kept(path):
    handle, asked = f"sqlite:///{path}", []

    def outcome(row):
        asked.append(row)
        return float(Y[row])

    curator = curator_of(vault=handle, outcomes=outcome)
    assert [curator.evaluate(row) for row in (3, np.int64(5), 3)] == [Y[3], Y[5], Y[3]]
    assert asked == [3, 5]
    again = curator_of(vault=handle, outcomes=np.full(12, 7.0))
    assert again.evaluate(3) == Y[3]
    assert again.evaluate(4) == 7.0
    assert again.answers() == {3: Y[3], 4: 7.0, 5: Y[5]}
    assert curator_of(vault=handle).answers() == again.answers()
    assert again.release().n == 12
    assert again.answers() == {3: Y[3], 4: 7.0, 5: Y[5]}


# One column ---------------------------------------------------------------------------------


NAMED = {"columns": ["age", "sex=F", "sex=M"], "outcomes": Y}


@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["raw", "private"])
def test_the_first_answer_ties_a_run_to_one_outcome_column(url, private):
    """Not the first curator: one that told nothing may have been given a wrong name."""
    how = {"vault": url, **NAMED, **private}
    curator_of(outcome_column="typo", **how)
    first, late = (curator_of(outcome_column=name, **how) for name in ("score", "stay"))
    told = first.evaluate(3)
    assert bool(told == Y[3]) != bool(private)
    for refused in (
        lambda: late.evaluate(4),
        lambda: curator_of(outcome_column="stay", **how),
        lambda: Curator.resume(vault=url, outcomes=Y, outcome_column="stay"),
    ):
        with pytest.raises(PrivacyError, match="come from column 'score', not from 'stay'"):
            refused()
    again = Curator.resume(vault=url, outcomes=Y, outcome_column="score")
    assert again.answers() == {3: told}
    fourth = again.evaluate(4)
    assert again.answers() == {3: told, 4: fourth}


@pytest.mark.parametrize("name", ["age", "sex", "sex=F"])
def test_a_column_of_a_released_table_is_never_told_as_it_is(url, name):
    """Of its own, or of another run's."""
    vault = open_vault()
    own = {"vault": vault.handle, "outcome_column": name, **NAMED}
    with pytest.raises(PrivacyError, match=f"Column '{name}' is in the released table"):
        curator_of(**own)
    randomised = curator_of(run_name="r", **own, **PRIVATE)
    assert randomised.evaluate(3) != Y[3]  # the guarantee adds table and answer up
    protecting = curator_of(vault=url, run_name="table", **NAMED)
    other = {"vault": url, "run_name": "other", "columns": "xyz", "outcomes": Y}
    begun = curator_of(outcome_column=name, **other)
    begun.release()
    protecting.release()
    for refused in (lambda: begun.evaluate(3), lambda: curator_of(outcome_column=name, **other)):
        with pytest.raises(PrivacyError, match=f"'{name}' is protected by the release 'table'"):
            refused()
    assert begun.answers() == {}
    assert protecting.guarantee().protected
    assert curator_of(outcome_column="score", **other).evaluate(3) == Y[3]


def test_a_table_of_a_column_that_another_run_tells_is_not_released(url):
    other = curator_of(
        vault=url, run_name="other", columns="xyz", outcomes=Y, outcome_column="sex"
    )
    late = curator_of(vault=url, **NAMED)
    assert other.evaluate(3) == Y[3]
    with pytest.raises(PrivacyError, match=r"'sex' is answered as it is.*'other'.*Leave it out"):
        late.release()
    assert late.manifest is None
    assert ledger(late) == []
    assert other.evaluate(4) == Y[4]  # a table that was not released protects nothing
    assert "'sex' is answered" in late.guarantee().details()


def test_a_column_of_randomised_answers_is_told_as_it_is_by_no_other_run(path):
    url = f"sqlite:///{path}"
    one = {"vault": url, "outcomes": Y, "outcome_column": "score"}
    randomised = curator_of(run_name="a", **one, **PRIVATE)
    exact = curator_of(run_name="b", **one)
    randomised.evaluate(1)
    with pytest.raises(PrivacyError, match="'score' is protected by the release 'a'"):
        exact.evaluate(1)
    with run_of(exact).transaction() as tx:
        tx.mark("outcome column", "stay")  # what run b has told
    with pytest.raises(PrivacyError, match="'stay' is answered as it is by the release 'b'"):
        curator_of(run_name="c", **{**one, "outcome_column": "stay"}, **PRIVATE)


def test_what_names_no_column_claims_nothing_of_it_until_its_next_answer(path):
    bare = curator_of(outcomes=Y, outcome_column="score")
    url = f"sqlite:///{path}"
    before = curator_of(vault=url, **NAMED)
    for curator in (bare, before):
        curator.release()
        curator.evaluate(1)
        assert NOT_TIED in curator.guarantee().notes
    after = Curator.resume(vault=url, outcomes=Y, outcome_column="score")
    assert after.evaluate(1) == Y[1]
    assert NOT_TIED in after.guarantee().notes  # replayed: nothing new was told
    after.evaluate(2)
    assert TIED in after.guarantee().notes
    with pytest.raises(PrivacyError, match="come from column 'score'"):
        Curator.resume(vault=url, outcomes=Y, outcome_column="stay")


MECHANISMS = [
    {"outcome_mechanism": "laplace"}, {"outcome_mechanism": "duchi"},
    {"outcome_mechanism": "piecewise"}, {"outcome_mechanism": "hybrid"},
    {"outcome_mechanism": "gaussian", "outcome_delta": 1e-6},
]  # fmt: skip


@pytest.mark.parametrize("how", MECHANISMS, ids=lambda how: how["outcome_mechanism"])
def test_privatised_answers_are_charged_and_drawn_once_a_row(path, how):
    handle = f"sqlite:///{path}"
    curators = [
        curator_of(vault=handle, outcomes=y, noise=InsecureNoise(seed), **{**PRIVATE, **how})
        for seed, y in enumerate((Y, 1 - Y))
    ]
    rows = [0, 3, 7, 11]
    told = [curators[0].evaluate(row) for row in rows]
    assert [curators[1].evaluate(row) for row in reversed(rows)] == told[::-1]
    assert curators[1].answers() == dict(zip(rows, told, strict=True))
    assert all(y not in told for y in Y.tolist())
    with answers_of(curators[0]).run.transaction() as tx:
        evaluations = tx.evaluations()
    assert [evaluation[2:4] for evaluation in sorted(evaluations)] == [
        (0.7, how.get("outcome_delta", 0.0))
    ] * 4
    assert len({person for _, person, *_ in evaluations}) == 4
    curators[0].release()
    assert curators[0].guarantee().n_answers == 4


def test_a_row_is_no_user_of_that_number_in_another_run(path):
    """Nor a row of that number of another table: neither pays for the other."""
    handle = f"sqlite:///{path}"
    curators = [curator_of(vault=handle, run_name=run, outcomes=Y, **PRIVATE) for run in "ab"]
    for curator in curators:
        curator.evaluate(3)
        assert answers_of(curator).most() == (1, 0.7)
        with answers_of(curator).run.transaction() as tx:
            people = {person for person, *_ in tx.evaluation_counts()}
    assert len(people) == 2
    asked = answers_of(curators[0])
    assert not any(pseudonym(asked, "x", name) in people for name in (3, "3"))


@pytest.mark.parametrize(("maximize", "worst"), [(True, -2.0), (False, 3.0)])
@pytest.mark.parametrize("given", ["array", "function"])
def test_what_is_no_number_counts_as_the_end_that_nobody_wants(maximize, worst, given):
    """And what a function fails at."""
    y = np.array([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.5, *[math.nan] * 6])
    curator = curator_of(
        outcomes=y if given == "array" else lambda row: 1 / 0 if row == 6 else float(y[row]),
        outcome_epsilon=1.0, outcome_range=(-2.0, 3.0), maximize=maximize, noise=NoNoise(0),
    )  # fmt: skip
    told = [curator.evaluate(row) for row in range(7)]
    assert told == pytest.approx([worst, worst, worst, 3.0, -2.0, 0.5, worst])


# Claims -------------------------------------------------------------------------------------


def claim_of(**how):
    curator = curator_of(outcomes=Y, **how)
    curator.release()
    curator.evaluate(1)
    return curator.guarantee()


@pytest.mark.parametrize(("epsilon", "answer"), [(0.3, 3.0), (1.0, 0.1), (1.0, 0.7), (4.0, 2.0)])
def test_table_and_answer_compose_to_what_loss_distributions_and_a_closed_form_say(
    epsilon, answer
):
    """An epsilon-DP answer loses at most +-epsilon by a biased coin: two Gaussians, weighted."""
    claim = claim_of(epsilon=epsilon, **{**PRIVATE, "outcome_epsilon": answer})
    assert claim.protected
    assert claim.delta == 1e-5
    mu = gaussian_mu(epsilon, 1e-5)
    coin = math.exp(answer) / (1 + math.exp(answer))

    def delta(e):
        return coin * gaussian_delta(mu, e - answer) + (1 - coin) * gaussian_delta(mu, e + answer)

    exact = brentq(lambda e: delta(e) - 1e-5, 0.0, 60)
    assert exact * (1 - 1e-6) <= claim.epsilon <= min(exact + 0.01, epsilon + answer)
    parts = [
        privacy_loss_distribution.from_gaussian_mechanism(1 / mu),
        privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(answer, 0)
        ),
    ]
    other = parts[0].compose(parts[1]).get_epsilon_for_delta(1e-5)
    assert claim.epsilon == pytest.approx(min(other, epsilon + answer), abs=0.01)
    assert "laplace" in claim.details()
    assert "the row's own outcome may differ in any way" in claim.details()


@pytest.mark.parametrize("answer", [0.3, 2.0])
def test_a_gaussian_answer_composes_in_closed_form(answer):
    how = {"outcome_epsilon": answer, "outcome_range": (0.0, 1.0), "outcome_delta": 1e-6,
           "outcome_mechanism": "gaussian"}  # fmt: skip
    claim = claim_of(**how)
    assert claim.delta == pytest.approx(1.1e-5)
    mus = gaussian_mu(1.0, 1e-5), gaussian_mu(answer, 1e-6)
    exact = gaussian_epsilon(math.hypot(*mus), 1.1e-5)
    assert claim.epsilon == pytest.approx(exact, rel=1e-5)
    assert claim.epsilon >= exact * (1 - 1e-9)
    assert claim.epsilon <= 1.0 + answer


def test_a_claim_names_its_mechanism_neighbours_population_and_limits():
    curator = curator_of(neighbor_distance=0.25, outcomes=Y, delta=2.0**-14)
    curator.release()
    claim = curator.guarantee()
    assert claim.protected
    assert (claim.epsilon, claim.delta) == (1.0, 2.0**-14)
    text = claim.details()
    for part in (
        "epsilon = 1.00 at delta = 6.11e-05, for the table",
        "two tables of the same size that differ in one row, by at most 0.25 in Euclidean norm",
        "each row of the curator's table, against the modeler",
        "(n = 12)",
        "Gaussian noise on every one",
        "answers told so far: 0, as they are",
        "outcomes, which are told exactly",
    ):
        assert part in " ".join(text.split())
    assert claim.not_covered == texts_of("rows", "rows_near", "rows_plain")["not_covered"]
    assert "the row's own outcome" not in text
    curator.evaluate(0)
    assert "answers told so far: 1, as they are" in curator.guarantee().details()
    fields = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
    assert fields["epsilon"] == 1.0
    assert fields["neighbours"] == claim.neighbours
    assert WORDS["rows_plain"]["scope"]["answers"] in fields["not_covered"]
    assert fields["parameters"]["noise_sd"] == curator.release().manifest.noise_sd
    far = curator_of()
    far.release()
    assert "differ in one row, in any way" in far.guarantee().details()


@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["raw", "private"])
def test_a_table_claims_for_itself_what_its_curator_claims(path, private):
    curator = curator_of(neighbor_distance=0.25, vault=f"sqlite:///{path}", **private)
    table = curator.release()
    assert table.guarantee().protected
    assert table.guarantee() == curator.guarantee()


def test_a_manifest_holds_what_is_public_and_travels_in_json():
    curator = curator_of(bounds=[(0, 2)] * 3, norm_bound=None, columns=["a", "b", "c"], r=2)
    made = curator.release().manifest
    assert TableManifest.from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False))) == made
    assert (made.n, made.d, made.r, made.epsilon, made.delta) == (12, 3, 2, 1.0, 1e-5)
    assert made.projection == {"kind": "seeded", "seed": 0}
    assert made.scaling == {"columns": ["a", "b", "c"], "low": [0.0] * 3, "high": [2.0] * 3}
    assert made.ledger == {
        "vault": vault_of(curator).vault_id, "run": "table", "store": "memory",
    }  # fmt: skip
    assert IN_MEMORY in made.guarantee().notes
    assert made.protected
    assert made.reasons == ()


def test_other_releases_in_the_vault_are_drawn_anew_and_counted(path):
    url, tables = f"sqlite:///{path}", []
    for run in ("spring", "autumn", "winter"):
        curator = curator_of(vault=url, run_name=run)
        tables.append(curator.release().Z)
    assert (tables[0] != tables[1]).all()
    assert any("2 other releases" in note for note in curator.guarantee().notes)
    again = Curator.resume(vault=url, run_name="winter")
    assert again.manifest == curator.manifest
    assert again.guarantee() == curator.guarantee()


def test_a_resumed_curator_needs_no_rows_and_spends_no_release_without_them(path):
    url = f"sqlite:///{path}"
    made = curator_of(20.0 + X, bounds=[(20, 22)] * 3, outcomes=Y, vault=url)
    with pytest.raises(PrivacyError, match="resumed without X"):
        Curator.resume(vault=url).release()
    assert ledger(made) == []
    Z = made.release().Z
    resumed = Curator.resume(vault=url, outcomes=Y)
    assert resumed.evaluate(3) == made.evaluate(3)
    assert np.array_equal(resumed.release().Z, Z)


@pytest.mark.parametrize(
    "forged", [{"epsilon": 0.01}, {"noise_sd": 1e-9}, {"mu": 9.0}, {"mechanism": "projection"}]
)
def test_a_manifest_that_contradicts_itself_is_refused(forged):
    table = curator_of().release()
    with pytest.raises(ValueError, match="claims more than its own noise"):
        sealed(table.Z, evolve(table.manifest, **forged))
