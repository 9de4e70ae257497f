"""A curator's table in which a person has several rows: the person is protected, up to a cap."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privbo_plugins.algorithms.po_gp_ucb.table import of_one
from privbo_plugins.errors import PrivacyError
from privbo_plugins.groups import Groups
from privbo_plugins.privacy.accountant import compose_epsilon
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.store.vault import open_vault

from .helpers import Recorded
from .oracles import gaussian_mu

IDS = ["ann", "bob", "ann", "cyd", "ann", "bob", None, "ann"]
ANN = [0, 2, 4, 7]
BOUNDS = [(0.0, 1.0), (-1.0, 1.0)]
X = np.random.default_rng(0).uniform(size=(8, 2))
Y = np.random.default_rng(1).uniform(size=8)
USUAL = {"epsilon": 1.0, "delta": 1e-5, "bounds": BOUNDS, "groups": IDS, "unit": "patient"}
RANDOMISED = {"outcome_epsilon": 0.5, "outcome_range": (0.0, 1.0)}
ENTRIES = st.floats(width=64) | st.sampled_from([-1e300, 1e300, math.nan, math.inf, 0.0, 1.0])


def curator_of(rows=X, **more):
    return Curator(rows, **{**USUAL, **more})


def exact_of(rows, **more):
    noise = Recorded(0)
    manifest = curator_of(rows, noise=noise, **more).release().manifest
    return noise.exact, manifest


exact_of_all = functools.cache(functools.partial(exact_of, X))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 9])
@given(own=arrays(float, (4, 2), elements=ENTRIES))
def test_whatever_a_persons_rows_hold_they_move_the_table_by_its_sensitivity_at_most(k, own):
    other = X.copy()
    other[ANN] = own
    before, manifest = exact_of_all(rows_per_group=k)
    after, _ = exact_of(other, rows_per_group=k)
    moved = (after - before).reshape(8, 2)
    assert np.linalg.norm(moved) <= manifest.sensitivity
    assert (np.abs(moved).sum(axis=1) > 0).sum() <= k
    assert set(np.flatnonzero(np.abs(moved).sum(axis=1))) <= set(ANN[:k])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_sensitivity_is_attained_by_opposite_corners(k):
    low, high = X.copy(), X.copy()
    low[ANN], high[ANN] = [0.0, -1.0], [1.0, 1.0]
    (one, manifest), (other, _) = exact_of(low, rows_per_group=k), exact_of(high, rows_per_group=k)
    assert np.linalg.norm(one - other) == pytest.approx(manifest.sensitivity, rel=1e-6)
    assert manifest.sensitivity == pytest.approx(math.sqrt(k) * math.sqrt(2), rel=1e-6)
    assert manifest.noise_sd == pytest.approx(
        manifest.sensitivity / gaussian_mu(1.0, 1e-5), rel=1e-4
    )


def test_near_neighbours_add_up_in_the_same_way():
    _, manifest = exact_of(X, rows_per_group=4, neighbor_distance=0.3)
    assert manifest.sensitivity == pytest.approx(2 * 0.3, rel=1e-6)


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=20), st.integers(1, 5))
def test_the_first_rows_of_each_person_count(ids, k):
    ids = [*ids, "d"]
    expected = [ids[:i].count(own) < k for i, own in enumerate(ids)]
    assert Groups(ids).first(k).tolist() == expected


def test_rows_beyond_the_cap_decide_nothing(tmp_path):
    """Neither in the table nor by an answer."""
    other, y = X.copy(), Y.copy()
    other[[4, 7]], y[[4, 7]] = [[1e9, math.nan], [0.3, math.inf]], [math.nan, -7.0]
    told = []
    for rows, outcomes in ((X, Y), (other, y)):
        curator = curator_of(
            rows, rows_per_group=2, outcomes=outcomes, noise=InsecureNoise(3), **RANDOMISED
        )
        told.append((curator.release().Z.tolist(), [curator.evaluate(row) for row in range(8)]))
    assert told[0] == told[1]


def test_a_person_pays_for_the_table_and_for_an_answer_to_each_row():
    curator = curator_of(rows_per_group=3, outcomes=Y, **RANDOMISED)
    mu = curator.release().manifest.mu
    claim = curator.guarantee()
    events = of_one(mu, curator._randomised, 3)
    assert len(events) == 4
    assert claim.epsilon == min(1.0 + 3 * 0.5, compose_epsilon(events, claim.delta))
    one_row = Curator(X, epsilon=1.0, delta=1e-5, bounds=BOUNDS, **RANDOMISED)
    assert claim.epsilon > one_row.release().guarantee().epsilon
    told = claim.details()
    assert "each patient of the curator's table" in told
    assert "the rows of one patient (at most 3 count)" in told
    assert "row of the curator" not in claim.details().partition("Details")[0]


def test_a_curator_that_does_not_know_whose_rows_they_are_neither_releases_nor_answers(tmp_path):
    url = f"sqlite:///{tmp_path}/curator.db"
    more = {"vault": url, "outcomes": Y, **RANDOMISED}
    with pytest.raises(PrivacyError, match="give it groups="):
        curator_of(groups=None, rows_per_group=2, **more).release()
    with open_vault(url).transaction("") as tx:
        assert not tx.charges()
    table = curator_of(rows_per_group=2, **more).release()
    resumed = Curator.resume(vault=url, outcomes=Y)
    with pytest.raises(PrivacyError, match="At most 2 rows of one patient count"):
        resumed.evaluate(0)
    assert resumed.release().manifest == table.manifest
    again = Curator.resume(vault=url, outcomes=Y, groups=IDS)
    first = again.evaluate(0)
    assert Curator.resume(vault=url).guarantee().unit == "patient"
    assert resumed.evaluate(0) == first  # what was told is replayed


def test_plain_answers_are_not_covered_and_need_no_persons(tmp_path):
    url = f"sqlite:///{tmp_path}/curator.db"
    curator_of(rows_per_group=2, vault=url).release()
    assert Curator.resume(vault=url, outcomes=Y).evaluate(7) == Y[7]


@pytest.mark.parametrize(
    "ids", [IDS[::-1], ["ann", "bob", "bob", "cyd", "ann", "bob", None, "ann"]]
)
def test_a_run_goes_on_with_the_same_persons_alone(tmp_path, ids):
    url = f"sqlite:///{tmp_path}/curator.db"
    more = {"vault": url, "outcomes": Y, **RANDOMISED}
    curator_of(groups=None, rows_per_group=1, **more)  # binds nothing
    curator = curator_of(rows_per_group=1, **more)
    for again in (lambda: curator_of(**{**more, "groups": ids}), lambda: Curator.resume(
        vault=url, outcomes=Y, groups=ids
    )):  # fmt: skip
        with pytest.raises(ValueError, match="other persons than this run's") as refused:
            again()
        assert not any(name in str(refused.value) for name in ("ann", "bob", "cyd"))
    assert Curator.resume(vault=url, outcomes=Y, groups=IDS).evaluate(3) == curator.evaluate(3)
    with open(url.removeprefix("sqlite:///"), "rb") as stored:
        assert not any(name in stored.read() for name in (b"ann", b"bob", b"cyd"))


def test_a_run_goes_on_with_the_same_cap_alone(tmp_path):
    url = f"sqlite:///{tmp_path}/curator.db"
    curator_of(rows_per_group=2, vault=url).release()
    rows, persons = {"unit": None, "groups": None}, {"unit": None, "rows_per_group": 2}
    for more in ({"rows_per_group": 3}, rows, persons):
        with pytest.raises(Exception, match="with other settings"):
            curator_of(vault=url, **more)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"groups": IDS[1:]}, "one id for each of the 8 rows"),
        ({"groups": ["ann"] * 8}, "two persons at least"),
        ({"groups": 3}, "must list the id of each row"),
        ({"rows_per_group": 0}, "rows_per_group"),
        ({"mechanism": "projection"}, "has no guarantee"),
        ({"unit": ""}, "unit"),
    ],
)
def test_what_makes_no_sense_is_refused_without_an_id(more, why):
    with pytest.raises(ValueError, match=why) as refused:
        curator_of(**more)
    assert not any(name in str(refused.value) for name in ("ann", "bob", "cyd"))
