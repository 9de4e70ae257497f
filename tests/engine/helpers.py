"""What several tests of the engine share: small spaces, losses and drivers."""

import threading

import numpy as np
import sqlalchemy as sa

from privbo_plugins.algorithms.dp_gibo import DPGIBO, make_plan
from privbo_plugins.algorithms.protocols import Release
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.records import Session
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault


class Counting(InsecureNoise):
    """Counts what is drawn."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.draws = 0

    def add_laplace(self, value, scale):
        self.draws += 1
        return super().add_laplace(value, scale)

    def add_gaussian(self, value, scale):
        self.draws += 1
        return super().add_gaussian(value, scale)


class Recorded(InsecureNoise):
    """Keeps what Gaussian noise is to hide, and its scales."""

    exact, scales = np.empty(0), ()

    def add_gaussian(self, value, scale):
        self.exact, self.scales = np.asarray(value), (*self.scales, scale)
        return super().add_gaussian(value, scale)


class NoNoise(InsecureNoise):
    """Adds nothing: shows what a mechanism makes of its input."""

    def add_gaussian(self, value, scale):
        return value

    add_laplace = add_gaussian


class Crash(BaseException):
    """Stands for a crash: not an Exception."""


def in_threads(count, work):
    """Calls work with 0, 1, ... at the same moment; returns the errors."""
    errors = []
    barrier = threading.Barrier(count)

    def guarded(index):
        try:
            barrier.wait(30)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def everything_in(folder):
    """Gives the bytes of a folder's files, one after another."""
    return b"".join(p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file())


def altered(url, *statements):
    """Changes a vault's tables as another program would."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def cube(d):
    """The unit cube itself as a space."""
    return Space({f"x{j:02d}": Float(0.0, 1.0) for j in range(d)})


def quadratic(n, d, seed, width=0.2):
    """Per-record losses |x - a_i|² / (2 d) with random a_i; also the minimiser of their mean."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(0.3, 0.7, d) + rng.uniform(-width, width, (n, d))
    return lambda x: ((x - a) ** 2).sum(1) / (2 * d), a.mean(0)


def start(config, space, n, seed=0, **more):
    """An algorithm with its plan."""
    return DPGIBO(config, space, seed=seed, plan=make_plan(config, space, n), **more)


def cost(plan):
    """Square of the mu that everything planned costs together."""
    return (
        plan.n_steps * (plan.mu_gradient**2 + plan.mu_norm**2)
        + plan.n_values * plan.mu_value**2
        + plan.mu_comparison**2
    )


def answer(query, Y, noise=None):
    """Carries a query out on losses of shape (n, m); exact without a noise source."""
    values = query.exact([Y])
    if noise is not None and np.isfinite(query.mu):
        values = noise.add_gaussian(values, gaussian_scale(query.sensitivity, query.mu))
    published = (values + query.offset).tolist()
    return Release(query.kind, query.key, tuple(published), query.meta)


def open_session(
    config, space=None, *, vault=None, maximize=False, noise=None, host_key="run", seed=0
):
    """A session of a run, over a new in-memory vault unless one is given."""
    session = Session.open(
        vault or open_vault(),
        host_key,
        config,
        maximize=maximize,
        seed=seed,
        noise=noise or InsecureNoise(0),
    )
    if space is not None:
        session.set_space(space)
    return session


def tell(session, trial, losses):
    """One whole trial: ask, evaluate, tell."""
    space = session.space
    x = session.ask(trial).x
    return session.tell(trial, space.decode(x), space, losses(x))[0]


def run_session(session, losses, limit=2000):
    """Trials until the plan is used up; the published values."""
    values = []
    while not session.finished and len(values) < limit:
        values.append(tell(session, f"t{len(values):04d}", losses))
    return values


def decoded(space, params):
    """Parameters as an array in coordinate order."""
    return np.array([params[name] for name in space.names])
