"""A round's sum and its release: against the paper's lines, and its sensitivity in integers."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privbo_plugins.algorithms.dp_fts_de import FederationConfig, RoundSum, Temperature
from privbo_plugins.algorithms.dp_fts_de.plan import make_federation_plan
from privbo_plugins.algorithms.dp_fts_de.regions import region_weights
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.federation import FederatedServer
from privbo_plugins.privacy import noise as noise_module
from privbo_plugins.privacy.accountant import gdp_delta
from privbo_plugins.privacy.mechanisms import FRACTION_BITS, SENSITIVITY_SLACK
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise, choose
from tests.inside import draws_through

UNIT = 2.0**FRACTION_BITS
UNIFORM = Temperature(0.0, 0, 1)
AGGREGATE = {"trust": "aggregate"}


def config_of(**changed):
    published = {"population": "explore", "clipping_norm": 22.0, "n_rounds": 10}
    return FederationConfig(**{"n_agents": 6, "z": 1.0, "n_features": 5, **published, **changed})


def total_of(config, messages, *, t=1, chosen=None):
    total = RoundSum(config, t, [True] * config.n_agents if chosen is None else chosen)
    for n, w in messages.items():
        total.add(n, w)
    return total


def clip(w, bound):
    """The paper's: divided by max(1, |w| / bound)."""
    return np.asarray(w / max(1.0, float(np.linalg.norm(w)) / bound))


def vectors(config, seed=0, scale=1.0):
    """Some shorter than the bound of a region, some longer."""
    rng = np.random.default_rng(seed)
    bound = config.clipping_norm / math.sqrt(config.n_regions)
    size = scale * bound / math.sqrt(config.n_features)
    return {
        n: rng.uniform(0.2, 3.0) * size * rng.standard_normal(config.n_features)
        for n in range(config.n_agents)
    }


def integers(exact, S):
    """The exact sum in its fixed-point units."""
    units = exact / (S / UNIT)
    np.testing.assert_allclose(units, np.rint(units), rtol=1e-15)
    return [int(u) for u in np.rint(units)]


# The paper's lines ----------------------------------------------------------------------------


def algorithm_1(config, t, chosen, messages, normal):
    """Lines 5 to 11 as they are printed, with the given coins and N(0, 1) numbers (P, M)."""
    P, S, q, z = config.n_regions, config.clipping_norm, config.q, config.noise_multiplier
    phi = region_weights(config.n_agents, P, config.temperature(t))
    regions = []
    for p in range(P):
        w = np.zeros(config.n_features)
        for n in messages:
            if chosen[n]:
                w = w + phi[p, n] * clip(messages[n], S / math.sqrt(P))
        phi_max = max(phi[p, n] for n in range(config.n_agents))
        regions.append(w / q + z * S * phi_max / q * normal[p])
    return np.array(regions)


@pytest.mark.parametrize("t", [1, 12, 25, 60])
@pytest.mark.parametrize(
    "settings_of",
    [
        {},
        {"q": 0.35, "n_agents": 9, "n_regions": 4},
        {"q": 0.6, "n_agents": 5, "n_regions": 5, "z": 0.3, "clipping_norm": 1e-3},
        {"q": 0.35, "n_agents": 29, "n_regions": 2, "n_features": 40, "z": 4.0},
    ],
    ids=str,
)
def test_a_release_is_that_of_the_papers_lines(settings_of, t):
    config = config_of(**settings_of)
    rng = np.random.default_rng(t)
    messages = vectors(config, seed=t)
    chosen = (rng.random(config.n_agents) < config.q).tolist()
    normal = rng.standard_normal((config.n_regions, config.n_features))
    total = total_of(config, messages, t=t, chosen=chosen)
    released = total.broadcast(total.exact() + total.noise_scale * normal.ravel())
    expected = algorithm_1(config, t, chosen, messages, normal)
    np.testing.assert_allclose(
        released.weights, expected, rtol=1e-5, atol=1e-6 * config.clipping_norm
    )
    without = total.broadcast(total.exact()).weights
    exact = algorithm_1(config, t, chosen, messages, 0 * normal)
    np.testing.assert_allclose(without, exact, rtol=1e-9, atol=1e-9 * config.clipping_norm)
    phi_max = region_weights(config.n_agents, config.n_regions, config.temperature(t)).max(1)
    sd = config.noise_multiplier * config.clipping_norm * phi_max / config.q
    np.testing.assert_allclose(released.noise, sd, rtol=1e-5)
    assert (released.noise >= sd).all()


def test_a_server_releases_what_its_coins_and_its_noise_say():
    """The coins are drawn first, an agent each in the order of the roster, and the noise last."""
    config = config_of(q=0.5, n_regions=2, n_rounds=3)
    server, twin = FederatedServer(config, noise=InsecureNoise(3)), InsecureNoise(3)
    links = [server.connect(n) for n in range(config.n_agents)]
    for t in range(1, 4):
        messages = vectors(config, seed=t)
        for n in reversed(range(config.n_agents)):
            links[n].submit(messages[n])
        chosen = [choose(twin, config.q) for _ in range(config.n_agents)]
        normal = twin.add_gaussian(np.zeros(10), 1.0).reshape(2, 5)
        expected = algorithm_1(config, t, chosen, messages, normal)
        np.testing.assert_allclose(server.broadcasts()[-1].weights, expected, rtol=1e-5, atol=1e-5)


# Sensitivity ----------------------------------------------------------------------------------

ODD = st.sampled_from([
    0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e-200, 1e-160, 1e-8, 1.0, -1.0, 22.0, 1e8, 1e150, -1e160,
    1e200, 1.7976931348623157e308, -1.7976931348623157e308, math.nan, math.inf, -math.inf,
])  # fmt: skip
NUMBERS = st.one_of(ODD, st.floats(-100, 100), st.floats(allow_nan=True, allow_infinity=True))


@settings(max_examples=150)
@given(data=st.data())
def test_one_agent_changes_the_sum_by_at_most_the_bound_in_integers(data):
    N, M = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    S = data.draw(st.floats(1e-9, 1e9))
    config = config_of(
        n_agents=N,
        n_regions=data.draw(st.integers(1, N)),
        n_features=M,
        clipping_norm=S,
        temperature=data.draw(st.sampled_from([Temperature(), UNIFORM, Temperature(700.0)])),
    )
    row = st.lists(NUMBERS, min_size=M, max_size=M).map(np.array)
    messages = dict(enumerate(data.draw(st.lists(row, min_size=N, max_size=N))))
    t, n = data.draw(st.integers(1, 45)), data.draw(st.integers(0, N - 1))
    with_it = integers(total_of(config, messages, t=t).exact(), S)
    del messages[n]
    without = integers(total_of(config, messages, t=t).exact(), S)
    change = [a - b for a, b in zip(with_it, without, strict=True)]
    assert sum(c * c for c in change) <= 2 ** (2 * FRACTION_BITS)


def test_the_bound_is_used_up_by_a_long_vector():
    """Where all agents count alike; otherwise an agent's other regions count less."""
    config = config_of(n_regions=4, temperature=UNIFORM, n_features=3)
    change = integers(total_of(config, {2: np.array([1e9, -2e9, 3e9])}).exact(), 22.0)
    norm = math.sqrt(sum(c * c for c in change)) / UNIT
    assert 1 - 1e-9 < norm <= 1


@given(row=st.lists(NUMBERS, min_size=5, max_size=5).map(np.array))
@example(row=np.full(5, 1.7976931348623157e308))
@example(row=np.array([math.nan, 1.0, 2.0, 3.0, 4.0]))
def test_what_is_not_finite_counts_as_nothing(row):
    exact = total_of(config_of(n_regions=2), {1: row}).exact()
    assert np.isfinite(exact).all()
    if not np.isfinite(row).all():
        assert not exact.any()


def test_a_bound_so_tiny_that_squares_underflow_is_refused():
    with pytest.raises(ValueError, match="clipping_norm must be"):
        config_of(n_agents=1, clipping_norm=1e-170)
    config = config_of(n_agents=1, clipping_norm=1e-9)
    exact = total_of(config, {0: np.full(5, 1e-5)}).exact()
    assert np.linalg.norm(exact) <= 1e-9


# The normaliser is public ---------------------------------------------------------------------


@pytest.mark.parametrize("q", [1.0, 0.35])
def test_the_normaliser_does_not_depend_on_who_arrives(q):
    config = config_of(n_agents=10, q=q, n_regions=2, temperature=UNIFORM, clipping_norm=8.0)
    w = np.array([1.0, 2.0, 0.0, -1.0, 0.5])
    alone = total_of(config, {3: w})
    among_others = total_of(config, {n: w if n == 3 else np.zeros(5) for n in range(10)})
    assert alone.exact().tobytes() == among_others.exact().tobytes()
    one, two = (total.broadcast(total.exact()) for total in (alone, among_others))
    np.testing.assert_allclose(one.weights, [w / (10 * q)] * 2, rtol=1e-9, atol=1e-9)
    assert one.noise.tobytes() == two.noise.tobytes()


def test_an_unchosen_vector_changes_no_bit_of_the_sum():
    config = config_of(n_regions=2, q=0.5)
    messages = vectors(config)
    total = RoundSum(config, 1, [True, False, False, False, False, False])
    total.add(0, messages[0])
    before = total.exact().tobytes()
    for n in range(1, 6):
        for w in (messages[n], np.full(5, 1e300), np.full(5, math.nan), np.full(5, -math.inf)):
            total.add(n, w)
    assert total.exact().tobytes() == before


@pytest.mark.parametrize("arrived", [True, False], ids=["all came", "nobody came"])
def test_an_empty_subset_releases_noise_of_the_full_scale(arrived):
    """Seeded; 40000 numbers, five standard deviations of their spread are 1.8 %."""
    config = config_of(n_agents=5, q=1e-9, n_features=20_000, n_regions=2, n_rounds=1)
    server = FederatedServer(config, noise=InsecureNoise(0))
    for n in range(5) if arrived else [0]:
        server.connect(n).submit(np.ones(20_000))
    server.close_round()
    (released,) = server.broadcasts()
    phi_max = region_weights(5, 2, 15.0).max(1)
    for p in range(2):
        sd = 22.0 * phi_max[p] / 1e-9
        assert released.weights[p].std() == pytest.approx(sd, rel=5 / math.sqrt(2 * 20_000))
    assert len(server.ledger()) == 1


@pytest.mark.parametrize("shape", [(4,), (6,), (1, 5), (5, 1), ()], ids=str)
def test_a_message_of_another_shape_is_refused(shape):
    total = total_of(config_of(), {})
    with pytest.raises(ValueError, match=r"has shape \(5,\)"):
        total.add(0, np.ones(shape))
    assert not total.exact().any()


# Noise and coins --------------------------------------------------------------------------------


def test_noise_and_coins_come_from_the_vetted_library(monkeypatch):
    """One OpenDP measurement of the joint vector, at the full scale."""
    made, integers_of = [], []
    randbelow = noise_module.secrets.randbelow

    def recorded(draw, value):
        made.append((draw.kind, draw.parameter))
        return draw(value)

    def counted(n):
        integers_of.append(n)
        return randbelow(n)

    monkeypatch.setattr(noise_module.secrets, "randbelow", counted)
    config = config_of(q=0.35, n_regions=3, z=2.0, n_rounds=1)
    with draws_through(recorded):
        server = FederatedServer(config)
        for n in range(6):
            server.connect(n).submit(np.ones(5))
    assert (15, 2.0 * 22.0 * SENSITIVITY_SLACK) in made
    coins = sum(kind == "coin" for kind, _ in made)
    assert coins >= 1 or len(integers_of) == 6
    assert server.guarantee().protected


def test_the_noise_of_a_server_has_its_scale_and_no_seed():
    """Over the secure source: the spread of 4000 numbers within six standard deviations (6.7 %).

    False alarm below 4e-9.
    """
    config = config_of(n_agents=2, n_features=4000, n_rounds=1, clipping_norm=3.0, z=1.5)
    drawn = []
    for _ in range(2):
        server = FederatedServer(config)
        for n in range(2):
            server.connect(n).submit(np.zeros(4000))
        drawn.append(server.broadcasts()[0].weights[0])
    for weights in drawn:
        assert weights.std() == pytest.approx(1.5 * 3.0 / 2, rel=6 / math.sqrt(2 * 4000))
    assert (drawn[0] != drawn[1]).all()  # two of 4000 pairs of numbers may well be close


@pytest.mark.parametrize("q", [1e-3, 0.1, 0.35, 0.5, 0.65, 0.999])
@pytest.mark.parametrize("noise", [InsecureNoise(1), SecureNoise()], ids=["seeded", "secure"])
def test_coins_fall_with_their_probability(noise, q):
    """20000 coins, six standard deviations: six secure ones accuse with probability 1e-8."""
    runs = 20_000
    hits = sum(choose(noise, q) for _ in range(runs))
    assert abs(hits - q * runs) <= 6 * math.sqrt(runs * q * (1 - q)) + 6


@pytest.mark.parametrize("noise", [InsecureNoise(1), SecureNoise()], ids=["seeded", "secure"])
def test_certain_coins(noise):
    assert all(choose(noise, 1.0) for _ in range(200))
    assert not any(choose(noise, 1e-30) for _ in range(200))


def test_coins_of_different_agents_are_independent():
    """Seeded: chi-squared of 16 subsets of 4 agents over 8000 rounds, below its 1 - 1e-6."""
    noise, q, runs = InsecureNoise(5), 0.35, 8000
    counts = np.zeros(16)
    for _ in range(runs):
        counts[sum(choose(noise, q) << n for n in range(4))] += 1
    sizes = np.array([bin(s).count("1") for s in range(16)])
    expected = runs * q**sizes * (1 - q) ** (4 - sizes)
    assert ((counts - expected) ** 2 / expected).sum() < 54.0


# Settings ---------------------------------------------------------------------------------------


def test_a_plan_says_what_every_round_costs():
    """Q = 1, z = 2: T rounds are sqrt(T) / 2-GDP, whose delta at the printed epsilon is claimed.

    With 22 of 29 in a sum and c = 3, against n agents sqrt(19 / (22 - n)) / 2-GDP is left.
    """
    trusted = make_federation_plan(FederationConfig(29, z=2.0, n_rounds=4))
    assert [t for t, _ in trusted.spent] == [1, 2, 3, 4]
    config = FederationConfig(29, z=2.0, trust="aggregate", colluding=3)
    *against, all_shares = make_federation_plan(config).against
    assert ([n for n, _ in against], all_shares) == ([0, 3, 6, 9, 16], (17, math.inf))
    costs = [(math.sqrt(t) / 2, epsilon) for t, epsilon in trusted.spent]
    costs += [(math.sqrt(19 / (22 - n)) / 2, epsilon) for n, epsilon in against]
    for mu, epsilon in costs:
        assert gdp_delta(mu, epsilon) == pytest.approx(1e-5, rel=0.01)


@settings(max_examples=25)
@given(n_agents=st.integers(1, 10**4), times=st.floats(0.01, 9.0))
def test_a_delta_above_a_tenth_over_the_roster_warns_wherever_it_is_said(n_agents, times):
    """In the constructor, the plan and the guarantee; and nowhere if it is smaller."""
    large, delta = times > 1, times / (10 * n_agents)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = config_of(n_agents=n_agents, n_regions=1, delta=delta, n_rounds=1)
    told = [w for w in caught if issubclass(w.category, PrivacyWarning)]
    assert len(told) == large
    assert all(w.filename == __file__ and "1/(10 N)" in str(w.message) for w in told)
    assert ("WARNING: delta = " in str(make_federation_plan(config))) == large
    guarantee = FederatedServer(config).guarantee()
    assert ("is large for" in guarantee.lasting) == large
    assert ("is large for" in guarantee.details()) == large


def test_only_the_papers_settings_have_the_papers_delta():
    assert FederationConfig(n_agents=5, epsilon=1.0).delta == 1e-5
    with pytest.warns(PrivacyWarning, match=r"Give delta= of at most 1/\(10 N\) = 0.00344"):
        assert FederationConfig.paper(29).delta == pytest.approx(29**-1.1)
    with pytest.warns(PrivacyWarning):
        assert FederationConfig.paper(1, n_regions=1).delta == 0.5
    assert FederationConfig.paper(29, delta=1e-5).delta == 1e-5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"z": None}, "one of them"), ({"epsilon": 1.0}, "one of them"),
        ({"z": -1.0}, "z must be"), ({"z": math.nan}, "z must be"), ({"z": math.inf}, "z must be"),
        ({"z": None, "epsilon": 0.0}, "epsilon must be"),
        ({"z": None, "epsilon": math.nan}, "epsilon must be"),
        ({"q": 0.0}, "q must be a number in"), ({"n_agents": 0}, "n_agents must be"),
        ({"n_regions": 7}, "at least as many agents"),
        ({"clipping_norm": 0.0}, "clipping_norm must be"),
        ({"clipping_norm": math.nan}, "clipping_norm must be"),
        ({"value_range": (math.nan, 1.0)}, "value_range"),
        ({"trust": "nobody"}, "trust must be one of server, aggregate"),
        *((AGGREGATE | more, said) for more, said in (
            ({"q": 0.5}, "needs q=1"),
            ({"colluding": 6}, "colluding=6 must be less than n_agents=6"),
            ({"colluding": 0}, "colluding must be an integer >= 1"),
            ({"min_present": 3}, r"min_present=3 must lie in \[4, 6\]"),
            ({"min_present": 7}, r"min_present=7 must lie in \[4, 6\]"),
        )),
        ({"colluding": 1}, "belong to trust='aggregate'"),
        ({"min_present": 5}, "belong to trust='aggregate'"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_outside_their_range_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        config_of(**changed)
