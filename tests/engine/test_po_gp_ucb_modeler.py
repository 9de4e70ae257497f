"""The modeler: its covariances, its posterior, its bounds, and which row it asks for."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from privbo_plugins.algorithms.po_gp_ucb import (
    POGPUCB,
    RowsConfig,
    modeler,
    row_space,
    rows_config,
)
from privbo_plugins.algorithms.po_gp_ucb.kernel import CORRECTIONS, row_prior
from privbo_plugins.algorithms.po_gp_ucb.posterior import fit, gram, log_likelihood
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.errors import SpaceChangedError
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.spaces import Categorical, Float, Int, Space
from tests.inside import imagining

Z = np.random.default_rng(0).normal(size=(40, 2)) * [1.0, 0.5] + [3.0, -1.0]
GIVEN = {"lengthscale": 0.8, "signal_variance": 2.0, "noise_variance": 0.1}
each_correction = pytest.mark.parametrize("correction", CORRECTIONS)
both_directions = pytest.mark.parametrize("maximize", [True, False], ids=["max", "min"])


def model_of(rows=Z, *, maximize=True, seed=0, **more):
    config = RowsConfig(rows, **{"noise_sd": 0.3, **GIVEN, **more})
    return POGPUCB(config, row_space(len(rows)), maximize=maximize, seed=seed)


def tell(model, outcomes):
    for row, y in outcomes.items() if isinstance(outcomes, dict) else outcomes:
        model.tell(Evaluation(model.point(row)), y)
    return model


def f(rows):
    return np.asarray(np.sin(2 * rows[:, 0]) + 0.5 * rows[:, 1])


# Covariances --------------------------------------------------------------------------------


def kernel_of(correction, sigma=0.3, lengthscale=0.8):
    return row_prior(Z, sigma, correction).kernel(lengthscale, 2.0)


def gram_of(kernel, rows=Z):
    return gram(kernel, rows, range(len(rows)))


@pytest.mark.parametrize("correction", ["posterior", "kernel"])
@pytest.mark.parametrize("sigma", [0.1, 0.7])
def test_covariances_are_expectations_over_the_true_rows(correction, sigma):
    """Monte Carlo, 200 000 draws: a mean of numbers in [0, 2] has deviation at most .0023."""
    rng, draws = np.random.default_rng(1), 200_000
    if correction == "kernel":
        m, V = Z, np.full(2, sigma**2)
    else:  # the usual posterior of a Gaussian mean, column by column
        tau2 = Z.var(0) - sigma**2
        tau2 = np.where(tau2 > 0, np.maximum(tau2, 1e-3 * Z.var(0)), 1e-3 * Z.var(0))
        V = 1 / (1 / tau2 + 1 / sigma**2)
        m = V * (Z.mean(0) / tau2 + Z / sigma**2)
    K = kernel_of(correction, sigma).cross(Z, Z)
    for i, j in ((0, 1), (2, 9), (5, 6), (11, 30)):
        x, y = (m[k] + np.sqrt(V) * rng.standard_normal((draws, 2)) for k in (i, j))
        values = 2.0 * np.exp(-0.5 * ((x - y) ** 2).sum(1) / 0.8**2)
        assert K[i, j] == pytest.approx(values.mean(), abs=6 * values.std() / math.sqrt(draws))


@each_correction
@given(
    sigma=st.floats(0, 5), lengthscale=st.floats(1e-2, 50), seed=st.integers(0, 99),
    r=st.integers(1, 4),
)  # fmt: skip
@example(sigma=2e-265, lengthscale=1.0, seed=0, r=1)
@settings(max_examples=25)
def test_a_gram_matrix_has_the_variance_on_its_diagonal_and_no_negative_eigenvalue(
    correction, sigma, lengthscale, seed, r
):
    rows = np.random.default_rng(seed).normal(size=(12, r))
    rows[3], rows[:, 0] = rows[4], np.where(seed % 3 == 0, 1.0, rows[:, 0])
    kernel = row_prior(rows, sigma, correction).kernel(lengthscale, 3.0)
    K = gram_of(kernel, rows)
    assert np.array_equal(K, K.T)
    assert (np.diag(K) == 3.0).all()
    assert np.linalg.eigvalsh(K).min() > -1e-10
    assert K.max() <= 3.0 + 1e-12
    assert 0 < kernel.A <= 1


@each_correction
def test_without_noise_the_covariance_is_the_plain_one(correction):
    expected = 2.0 * np.exp(-0.5 * cdist(Z, Z, "sqeuclidean") / 0.8**2)
    np.testing.assert_allclose(gram_of(kernel_of(correction, 0.0)), expected, rtol=1e-10)


@each_correction
@pytest.mark.parametrize("offset", [1e9])
def test_a_table_far_from_zero_keeps_its_covariances(correction, offset):
    rows = np.round(Z * 2**10) / 2**10  # exact after the shift
    near, far = (
        row_prior(t, 0.3, correction).kernel(0.8).cross(t, t) for t in (rows, rows + offset)
    )
    np.testing.assert_allclose(far, near, atol=1e-6)


# Posterior ----------------------------------------------------------------------------------


def dense(model, told, rows, out=(), own=True):
    """Equation (1) over all n rows at once, with a covariance matrix of its own.

    Rows that are out have the mean that the others give them as their outcome. ``own`` says
    whether what stays with a row counts, in the variance of rows neither told nor out.
    """
    config = model.config
    n, sigma, length = config.n, config.noise_sd, config.lengthscale
    u, v = config.Z, np.zeros(config.Z.shape[1])
    if config.correction == "kernel":
        v = v + sigma**2
    elif config.correction != "none" and sigma:
        tau2 = np.maximum(u.var(0) - sigma**2, 1e-3 * u.var(0))
        v = 1 / (1 / tau2 + 1 / sigma**2)
        u = v * (u.mean(0) / tau2 + u / sigma**2)
    width = length**2 + 2 * v
    A = np.prod(length / np.sqrt(width))
    K = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            shape = A * np.exp(-0.5 * ((u[i] - u[j]) ** 2 / width).sum())
            K[i, j] = config.signal_variance * (1.0 if i == j else shape)
    prior = np.full(n, config.signal_variance * (1.0 if own else A))
    prior[[*(row for row, _ in told), *out]] = config.signal_variance
    places = [row for row, _ in told]
    y = np.array([value for _, value in told])
    mean = y.mean() if config.mean is None else config.mean
    noise = config.noise_variance + config.answer_variance

    def at(places, y, rows):
        S = np.linalg.inv(K[np.ix_(places, places)] + noise * np.eye(len(places)))
        k = K[np.ix_(rows, places)]
        return mean + k @ S @ (y - mean), prior[rows] - np.einsum("ij,jk,ik->i", k, S, k)

    if out:
        imagined, _ = at(places, y, list(out))
        places, y = [*places, *out], np.concatenate([y, imagined])
    return at(places, y, rows)


TOLD = [(3, 1.0), (7, -0.5), (3, 1.4), (20, 0.2), (39, 2.0)]


@each_correction
@both_directions
@pytest.mark.parametrize("more", [{}, {"mean": -1.5}, {"answer_variance": 0.7}], ids=str)
def test_the_posterior_is_equation_1(correction, maximize, more):
    """With a row told twice, at told rows and at others."""
    model = tell(model_of(correction=correction, maximize=maximize, **more), TOLD)
    rows = [0, 3, 7, 8, 39, 3]
    mu, sd = model.posterior(rows)
    expected, variance = dense(model, TOLD, rows)
    np.testing.assert_allclose(mu, expected, atol=1e-7)
    np.testing.assert_allclose(sd**2, variance, atol=1e-7)


@pytest.mark.parametrize("out", [(5,), (5, 11, 5), (3,), (3, 12)])
def test_rows_that_are_out_shrink_the_deviation_and_leave_the_mean(out):
    model = tell(model_of(), TOLD)
    rows = [row for row in range(40) if row not in (3, 7, 20, 39, *out)]
    mu, sd = imagining(model, list(out)).predict(Z[rows])
    expected, variance = dense(model, TOLD, rows, out)
    np.testing.assert_allclose(mu, expected, atol=1e-7)
    np.testing.assert_allclose(sd**2, variance, atol=1e-7)
    np.testing.assert_allclose(mu, model.posterior(rows)[0], atol=1e-9)


def test_without_noise_in_the_rows_the_posterior_is_that_of_another_library():
    model = tell(model_of(noise_sd=0.0, correction="none", mean=0.0), TOLD)
    places, y = zip(*TOLD, strict=True)
    kernel = ConstantKernel(2.0, "fixed") * RBF(0.8, "fixed")
    other = GaussianProcessRegressor(kernel, alpha=0.1, optimizer=None).fit(Z[list(places)], y)
    expected, deviation = other.predict(Z, return_std=True)
    mu, sd = model.posterior(range(40))
    np.testing.assert_allclose(mu, expected, atol=1e-7)
    np.testing.assert_allclose(sd, deviation, atol=1e-7)


def test_the_likelihood_is_the_normal_density():
    from scipy.stats import multivariate_normal

    rows, y = [3, 7, 3, 20], np.array([1.0, -0.5, 1.4, 0.2])
    kernel = kernel_of("posterior")
    K = gram_of(kernel)[np.ix_(rows, rows)] + 0.1 * np.eye(4)
    expected = multivariate_normal.logpdf(y, np.zeros(4), K)
    assert log_likelihood(kernel, 0.1, Z[rows], rows, y) == pytest.approx(expected, abs=1e-7)


# Bounds and choices -------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 2, 50])
def test_beta_is_that_of_theorem_3(t):
    config = RowsConfig(Z, noise_sd=0.0)
    assert config.beta(t) == pytest.approx(
        2 * (math.log(40) + 2 * math.log(t) + 2 * math.log(math.pi) - math.log(0.3))
    )


def bounds(model, told, out):
    sign = 1.0 if model.maximize else -1.0
    own = model.config.correction != "shared"
    mu, variance = dense(model, told, list(range(model.config.n)), out, own)
    beta = model.config.beta(len(told) + len(out) + 1)
    return np.asarray(sign * mu + model.config.beta_scale * np.sqrt(beta * variance))


@each_correction
@both_directions
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("out", [(), (5, 6)])
def test_the_row_asked_for_has_the_largest_upper_bound(correction, maximize, repeats, out):
    """Told rows are known as such where they may be asked again: with noise that is another f."""
    rng = np.random.default_rng(5)
    model = model_of(
        correction=correction, maximize=maximize, repeats=repeats, noise_sd=0.8,
        beta_scale=0.1 if repeats else 0.5,
    )  # fmt: skip
    told = [(int(row), float(rng.normal())) for row in rng.integers(0, 40, 7)]
    came_back = False
    for i, (row, y) in enumerate(told):
        tell(model, [(row, y)])
        evaluation = model.ask(i, [Evaluation(model.point(r)) for r in out])
        expected = bounds(model, told[: i + 1], out)
        if not repeats:
            expected[[*out, *(row for row, _ in told[: i + 1])]] = -np.inf
        assert expected[model.row(evaluation.x)] == pytest.approx(expected.max(), abs=1e-6)
        came_back |= model.row(evaluation.x) in {row for row, _ in told[: i + 1]}
    assert came_back is (repeats and correction != "none")


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("n_startup", [1, 4, 100])
def test_no_row_is_asked_twice_until_all_have_been(n, n_startup):
    model, seen = model_of(Z[:n], n_startup=n_startup), list[int]()
    for key in range(n):
        asked = model.row(model.ask(key).x)
        assert asked not in seen
        seen.append(asked)
        tell(model, {asked: -abs(asked - 3.0)})
    assert sorted(seen) == list(range(n))
    for key in (n, n + 1):
        again = model.ask(key)
        assert np.array_equal(again.x, model.recommendation())
        tell(model, {model.row(again.x): 0.0})


def test_startup_rows_are_drawn_by_the_seed_and_spread_over_all():
    """400 asks of 40 rows: a row is missed with probability 4e-5, all hit but for 2e-3."""
    model = model_of(n_startup=5)
    rows = [model.row(model.ask(key).x) for key in range(400)]
    assert set(rows) == set(range(40))
    assert rows == [model.row(model.ask(key).x) for key in range(400)]
    assert rows != [model_of(seed=1).row(model_of(seed=1).ask(key).x) for key in range(400)]
    tell(model, {0: 1.0, 1: 2.0})
    assert {model.row(model.ask(key).x) for key in range(400)} == set(range(2, 40))
    tell(model, {2: 1.0, 3: 2.0, 4: 0.0})
    assert len({model.row(model.ask(key).x) for key in range(20)}) == 1


def test_what_is_shared_is_the_variance_of_fs_mean_over_where_a_row_may_lie():
    """Monte Carlo: 4000 functions given what was told, each averaged over 300 draws of a row."""
    model = tell(model_of(noise_sd=0.5, correction="shared"), TOLD[:2])
    kernel, row, rng = model.config.prior.kernel(0.8, 2.0), 9, np.random.default_rng(4)
    u = kernel.m + kernel.w * (Z - kernel.m)
    told = np.array([3, 7])
    x = [u[i] + np.sqrt(kernel.v) * rng.standard_normal((300, 2)) for i in (row, *told)]
    # what is told of row 3 is f where row 3 lies: covariances with it are means over its draws
    K = np.array([[2.0 * np.exp(-0.5 * cdist(a, b, "sqeuclidean") / 0.64) for b in x] for a in x])
    S = K.mean((2, 3))[1:, 1:]
    np.fill_diagonal(S, 2.0 + 0.1)
    h = K[0, 1:].mean(2)  # (2, 300)
    posterior = K[0, 0] - h.T @ np.linalg.inv(S) @ h
    root = np.linalg.cholesky(posterior + 1e-9 * np.eye(300))
    f = root @ rng.standard_normal((300, 4000))
    _, sd = imagining(model, []).predict_shared(Z[[row]])
    assert sd[0] ** 2 == pytest.approx(f.mean(0).var(), rel=0.1)


def test_doubt_that_stays_with_every_row_is_no_reason_to_ask_for_one():
    """Two clouds, one of them asked many times: the doubt is about the other, and it is next.

    With all doubt in the bound both clouds look nearly alike, and the better outcomes win.
    """
    rng = np.random.default_rng(2)
    clouds = np.concatenate([rng.normal(0, 0.1, (20, 1)), rng.normal(4, 0.1, (20, 1))])
    chosen = {}
    for name, correction in {"default": {}, "posterior": {"correction": "posterior"}}.items():
        model = model_of(
            clouds, noise_sd=0.7, lengthscale=0.7, mean=0.0, noise_variance=0.01,
            beta_scale=0.1, **correction,
        )  # fmt: skip
        tell(model, [(row, 0.4 + 0.1 * math.sin(row)) for row in range(12)])
        evaluation = model.ask(0)
        chosen[name] = model.row(evaluation.x)
    assert chosen["default"] >= 20 > chosen["posterior"]


@each_correction
def test_blocks_give_what_one_block_gives(correction, monkeypatch):
    rows = np.random.default_rng(3).normal(size=(20_000, 2))
    asked = []
    for block in (2**13, 20_000, 777):
        monkeypatch.setattr(modeler, "_BLOCK", block)
        model = tell(model_of(rows, correction=correction), {5: 1.0, 9000: 2.0, 19_999: 0.0})
        asked.append([model.row(model.ask(key).x) for key in range(3)])
    assert asked[0] == asked[1] == asked[2]


def test_memory_does_not_grow_as_rows_times_outcomes():
    """200 000 rows and 60 outcomes: their covariances would take 96 MB, Z itself takes 3.2."""
    rows = np.random.default_rng(3).normal(size=(200_000, 2))
    model = model_of(rows)
    tell(model, [(37 * t, float(t % 7)) for t in range(60)])
    tracemalloc.start()
    try:
        model.ask(1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24e6


@pytest.mark.parametrize("low", [-7, 1, 10**6])
def test_rows_may_be_numbered_from_anywhere(low):
    space = Space({"patient": Int(low, low + 39)})
    one, two = POGPUCB(RowsConfig(Z), space), POGPUCB(RowsConfig(Z), row_space(40))
    for key in range(6):
        evaluations = one.ask(key), two.ask(key)
        (value,) = space.decode(evaluations[0].x).values()
        assert value - low == one.row(evaluations[0].x) == two.row(evaluations[1].x)
        for model, evaluation in zip((one, two), evaluations, strict=True):
            model.tell(evaluation, float(value - low))


@pytest.mark.parametrize(
    "space",
    [row_space(39), row_space(41), Space({"row": Float(0, 39)}),
     Space({"row": Int(0, 78, step=2)}), Space({"row": Categorical(tuple(range(40)))}),
     Space({"a": Int(0, 39), "b": Int(0, 39)})],
    ids=range(6),
)  # fmt: skip
def test_another_space_is_refused(space):
    with pytest.raises(SpaceChangedError, match="This table has 40 rows"):
        POGPUCB(RowsConfig(Z), space)


# Fitting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.3, 1.0])
def test_fitting_finds_the_length_scale_of_a_smooth_function(length):
    rng = np.random.default_rng(4)
    rows = rng.uniform(-2, 2, size=(120, 2))
    K = np.exp(-0.5 * cdist(rows, rows, "sqeuclidean") / length**2)
    y = np.linalg.cholesky(K + 1e-10 * np.eye(120)) @ rng.standard_normal(120) * 7.0
    model = POGPUCB(RowsConfig(rows), row_space(120))
    tell(model, dict(enumerate(y.tolist())))
    found = model._fitted()
    assert length / 1.4 < found.lengthscale < length * 1.4
    assert 49 / 5 < found.s2 < 49 * 5
    assert found.s2_n < 0.02 * found.s2


def test_fitting_a_released_table_takes_its_noise_for_what_it_is():
    """Corrected, the length-scale is near the true one; uncorrected, noise passes for roughness.

    Which shows in the outcomes' noise: rows that look alike then have different outcomes.
    """
    rng = np.random.default_rng(4)
    rows = rng.uniform(-2, 2, size=(150, 1))
    noisy = rows + 0.3 * rng.standard_normal((150, 1))
    y = dict(enumerate(np.sin(1.5 * rows[:, 0]).tolist()))
    found = [
        tell(POGPUCB(RowsConfig(noisy, 0.3, correction=c), row_space(150)), y)._fitted()
        for c in ("posterior", "none")
    ]
    assert found[0].s2_n < 0.5 * found[1].s2_n
    assert 0.3 < found[0].lengthscale < 3.0


OUTCOMES = [
    [1.0], [1.0, 2.0], [5.0] * 6, [0.1] * 5, [0.0] * 4, [1e12, -1e12, 3e12, 1e12],
    [1e-12, 2e-12, -1e-12, 0.0], [1e12, 1e12, 1e12 + 1e-3], [1e308, -1e308, 1e308, 0.0],
    [1e200, 1.0, -1.0, 0.0], [5e-324, 0.0, 5e-324], [1e-160, 2e-160, 0.0], [1e-150, 3e-150, 0.0],
    [0.0, 1e12, 1e-12, 1.0],
]  # fmt: skip
ODD_TABLES = [
    Z, np.ones((40, 2)), np.hstack([Z, np.ones((40, 2))]), np.repeat(Z[:10], 4, axis=0)
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OUTCOMES)), ids=[str(y) for y in OUTCOMES])
def test_fitting_survives_any_outcomes(number):
    """On every table, with every correction; the two go together in all ways over the outcomes.

    Without noise in the rows there is nothing to correct, so one table of them will do.
    """
    y = OUTCOMES[number]
    corrections = [CORRECTIONS[(number + i) % len(CORRECTIONS)] for i in range(len(ODD_TABLES))]
    cases = [(rows, 0.3, c) for rows, c in zip(ODD_TABLES, corrections, strict=True)]
    cases.append((ODD_TABLES[number % len(ODD_TABLES)], 0.0, corrections[0]))
    for rows, sigma, correction in cases:
        model = POGPUCB(RowsConfig(rows, sigma, correction=correction), row_space(40))
        tell(model, dict(enumerate(y)))
        assert model.row(model.ask(0).x) >= len(y)
        mu, sd = model.posterior(range(10))
        assert np.isfinite(mu).all()
        assert np.isfinite(sd).all()
        assert model.row(model.recommendation()) < len(y)


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_the_unit_of_outcomes_does_not_matter(factor):
    """Which row is asked for, and length-scale; up to where the search for it stops."""
    models = [POGPUCB(RowsConfig(Z, 0.1), row_space(40)) for _ in range(2)]
    for row in range(0, 40, 4):
        y = float(f(Z[[row]])[0])
        tell(models[0], {row: y})
        tell(models[1], {row: y * factor})
    one, two = (model._fitted() for model in models)
    assert two.lengthscale == pytest.approx(one.lengthscale, rel=1e-2)
    assert two.s2 == pytest.approx(one.s2 * factor**2, rel=5e-2)


def test_what_is_given_is_not_fitted_and_known_variance_is_added():
    model = tell(model_of(answer_variance=5.0), TOLD)
    found = model._fitted()
    assert (found.lengthscale, found.s2) == (0.8, 2.0)
    assert found.s2_n == pytest.approx(5.1)
    part = tell(model_of(lengthscale=None), TOLD)._fitted()
    assert (part.s2, part.s2_n) == (2.0, 0.1)
    direct = fit(
        row_prior(Z, 0.3, "posterior"), Z[[3, 7, 3, 20, 39]], [3, 7, 3, 20, 39],
        np.array([y for _, y in TOLD]) - 0.82, 1.0, 0.82,
        {"lengthscale": None, "s2": 2.0, "s2_n": 0.1}, 0.0,
    )  # fmt: skip
    assert direct.lengthscale == pytest.approx(part.lengthscale, rel=1e-6)


# Settings and state -------------------------------------------------------------------------

BAD = [
    {"correction": "maybe"}, {"lengthscale": 0.0}, {"lengthscale": math.inf}, {"lengthscale": "1"},
    {"signal_variance": -1.0}, {"noise_variance": 0.0}, {"noise_variance": math.nan},
    {"noise_sd": -0.1}, {"noise_sd": math.inf}, {"noise_sd": None}, {"answer_variance": -1.0},
    {"mean": math.nan}, {"mean": "0"},
    {"beta_scale": 0.0},
    {"beta_scale": True}, {"n_startup": 0}, {"n_startup": 1.5}, {"n_startup": True},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_settings_outside_their_ranges_are_refused(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        RowsConfig(Z, **bad)


@pytest.mark.parametrize(
    "rows", [np.empty((0, 2)), np.empty((2, 0)), np.ones(3), np.array([[np.nan]]),
             np.array([[np.inf, 1.0]]), np.ones((2, 2, 2))]
)  # fmt: skip
def test_rows_that_are_no_finite_matrix_are_refused(rows):
    with pytest.raises(ValueError, match="Z must be a finite matrix"):
        RowsConfig(rows)


def test_a_table_and_a_matrix_make_settings():
    table = Curator(Z, epsilon=1.0, delta=1e-5, norm_bound=5.0).release()
    config = rows_config(table, correction="kernel")
    assert np.array_equal(config.Z, table.Z)
    assert config.noise_sd == table.manifest.noise_sd > 0
    assert config.correction == "kernel"
    with pytest.raises(ValueError, match="manifest knows it"):
        rows_config(table, noise_sd=0.1)
    assert rows_config(Z.tolist()).noise_sd == 0.0
    assert rows_config(Z, 0.2).noise_sd == 0.2
    with pytest.raises(ValueError, match="matrix of numbers"):
        rows_config([["a"]])
