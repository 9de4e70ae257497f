"""Deals records into disjoint blocks, each of which is one entry of the vector of a trial.

Sample and aggregate (Nissim, Raskhodnikova, Smith 2007): a trial fits and validates inside each
block, and the block's score is one entry. A record, whether it trains or validates, touches the
score of its own block alone, so what is released is as private for it as for one who validates::

    from privbo_plugins.blocks import in_blocks

    score = in_blocks(fit_and_score, n_records=len(y), n_blocks=160)
    sampler = DPGIBOSampler(mu=1, **score.settings())
    # ... and in the objective: return score(trial.suggest_float("C", 1e-3, 1e3, log=True))

Notation:

    ======  ===========================================================  ==============
    symbol  meaning                                                      shape
    ======  ===========================================================  ==============
    n, K    records (or persons), blocks                                 integers
    m       records of a block, n / K, rounded up or down                integer
    d       parameters that vary                                         integer
    ======  ===========================================================  ==============

This rests on two things. Which block a record is in follows from its place (or its person's id)
and a public seed. And the score of a block depends on nothing of another block: so each begins
with copies of the arguments and with seeded global generators of Python, NumPy and torch (on the
CPU), which are put back afterwards. A block that fails is no number; what it raises or warns is
dropped, and what it prints is not. What the function itself keeps between two calls (a model that
starts warm, a cache, a generator of its own) it must not keep, and it must look at no record but
those of its places.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins import sanitize
from privbo_plugins.convert import BlockScores, as_reward
from privbo_plugins.groups import PERSON, Groups
from privbo_plugins.privacy.words import RECORD
from privbo_plugins.settings import integer

Array = NDArray[np.float64]
Places = NDArray[np.intp]

FEWEST = 75
"""Records of a block that :func:`plan_blocks` goes down to, for each parameter and one more."""

ENOUGH = 150
"""K mu that it aims at, for each parameter and one more."""

_LEAST = 2
"""A block that fits and validates has at least one record for each."""

_alone = threading.RLock()
"""Held by the block that uses the process's generators."""


def check_blocks(n_blocks: Any, n_records: int) -> None:
    """Checks a number of blocks.

    Raises:
        ValueError: If it is none, or blocks would have fewer than two records.
    """
    most = n_records // _LEAST
    if not (integer(2).holds(n_blocks) and n_blocks <= most):
        raise ValueError(
            f"n_blocks must be an integer from 2 to n / 2 = {most}, because a block needs a "
            f"record that trains and one that validates; got {n_blocks!r} for n = {n_records}. "
            "Take fewer blocks: plan_blocks(n_records, mu, d) of privbo_plugins.blocks chooses."
        )


def plan_blocks(n_records: int, mu: float, d: int) -> int:
    """Chooses K from public numbers: as many blocks as the noise asks for and records allow.

    K mu is 150 (d + 1), unless blocks then have fewer than 75 (d + 1) records: what is best for
    so few is seldom best for all.

    Args:
        n_records: n.
        mu: Of the run.
        d: Number of parameters that vary.

    Raises:
        ValueError: If there are fewer than four records.

    Example:
        >>> plan_blocks(100_000, 1.0, 2), plan_blocks(10_000, 1.0, 2), plan_blocks(50, 1.0, 2)
        (444, 44, 2)
    """
    integer(2 * _LEAST).check("The number of records that are dealt into blocks", n_records)
    wanted = math.ceil(min(ENOUGH * (d + 1) / mu, n_records)) if mu < math.inf else 2
    return max(2, min(wanted, n_records // (FEWEST * (d + 1))))


def needed(d: int, mu: float) -> str:
    """Says what tuning d parameters in blocks takes.

    Example:
        >>> needed(2, 1.0)
        'K mu of some 450 in blocks of 225, 101250 records'
    """
    K, m = ENOUGH * (d + 1), FEWEST * (d + 1)
    return f"K mu of some {K} in blocks of {m}, {math.ceil(K / mu) * m} records"


class Blocks:
    """What an objective calls for a vector with the score of each block, shape (K,).

    Called with parameters, it calls ``fit_and_score(*args, places, **kwargs)`` for each block.

    Args:
        fit_and_score: Fits on some of the records at ``places`` (m,), validates on others of
            them, and returns one number. It must not look at other records, and keep nothing
            from one call to the next.
        n_records: Number of records, or with ``groups`` of persons; public.
        n_blocks: K, at most half of it; see :func:`plan_blocks`.
        groups: The person of each record, shape (n_rows,): then whole persons are dealt, by a
            hash of their ids alone; their rows decide nothing.
        unit: What one of them is called in texts; None for record, or with ``groups`` person.
        seed: Which records are in which block; public. It must not change in a run.
        failed: Score of a block where the function raises or returns no number; NaN for the worst
            value of the mechanism (and no slope).
        n_jobs: Blocks at once, in processes of joblib, which get what the function holds; -1 for
            as many as there are cores. None for this process alone.
        progress: Called with each block that is done in this process; None for silence.

    Raises:
        ValueError: For settings that make no sense.

    Example:
        >>> y = np.arange(10.0)
        >>> score = in_blocks(lambda power, places: (y[places] ** power).max(), 10, 3)
        >>> [len(places) for places in score.places()], score(0).tolist()
        ([4, 3, 3], [1.0, 1.0, 1.0])
        >>> score.settings()
        {'records_in_blocks': (10, 3, 0), 'unit': 'record'}
        >>> patients = ["ann", "bob", "ann", "cyd", "dan"]  # of each row
        >>> in_blocks(len, None, 2, groups=patients, unit="patient").n_records
        4
    """

    def __init__(
        self,
        fit_and_score: Callable[..., Any],
        n_records: int | None,
        n_blocks: int,
        *,
        groups: Any = None,
        unit: str | None = None,
        seed: int = 0,
        failed: float = math.nan,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        ready = groups is None or isinstance(groups, Groups)
        persons: Groups | None = groups if ready else Groups(groups)
        n = n_records if persons is None else persons.n
        if n_records not in (None, n):
            raise ValueError(
                f"n_records must be the number of persons in groups=, which is {n}, or None; got "
                f"{n_records!r}."
            )
        integer(2 * _LEAST).check("n_records", n)
        self.n_records = int(n or 0)
        check_blocks(n_blocks, self.n_records)
        integer(0).check("seed", seed)
        self.n_blocks, self.seed = int(n_blocks), int(seed)
        self._unit = unit or (RECORD if groups is None else PERSON)
        self._function, self._failed = fit_and_score, float(failed)
        self._n_jobs, self._progress = n_jobs, progress
        self._labels = None if persons is None else persons.labels
        whole = () if persons is None else (1,)
        self._deal = (self.n_records, self.n_blocks, self.seed, *whole)
        self._places = self._dealt(persons)  # no id is kept

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the fingerprint of the persons, which is as private as their ids."""
        return vars(self) | {"_labels": None}

    def settings(self) -> dict[str, Any]:
        """Keywords of a sampler or a search, which then says who is protected.

        A run refuses another deal than its own, and with ``groups`` other persons: a
        fingerprint of all of them is the label of each block.
        """
        deal = {"records_in_blocks": self._deal}
        same = {} if self._labels is None else {"record_ids": [self._labels] * self.n_blocks}
        return {**deal, "unit": self._unit, **same}

    def places(self) -> list[Places]:
        """The places of each block's rows, in order; numbers of records differ by one at most."""
        return [own.copy() for own in self._places]  # a function may shuffle its own

    def _dealt(self, persons: Groups | None) -> list[Places]:
        if persons is not None:
            of = (persons.ranks(self.seed) % self.n_blocks)[persons.of]
            return [np.flatnonzero(of == block) for block in range(self.n_blocks)]
        dealt = np.random.default_rng(self.seed).permutation(self.n_records)
        return [np.sort(own) for own in np.array_split(dealt, self.n_blocks)]

    def __call__(self, *args: Any, **kwargs: Any) -> BlockScores:
        """One score a block, shape (K,), for a run with :meth:`settings`, which takes it as it is.

        What should be made of the scores is made in the function.
        """
        one = partial(_scores, self._function, args, kwargs, self.seed)
        blocks = list(enumerate(self.places()))
        if self._n_jobs in (None, 1):
            scores = one(blocks, self._progress)
        else:
            scores = self._at_once(one, blocks)
        return BlockScores.of(np.where(np.isfinite(scores), scores, self._failed), self._deal)

    def _at_once(self, one: Any, blocks: Sequence[Any]) -> Array:
        """The same in several processes; no file holds what they are sent."""
        import joblib  # scikit-learn has brought it

        n = min(joblib.effective_n_jobs(self._n_jobs), len(blocks))
        parts = [blocks[start::n] for start in range(n)]
        told = joblib.Parallel(n, max_nbytes=None)(joblib.delayed(one)(part) for part in parts)
        scores = np.empty(len(blocks))
        for start, own in enumerate(told):
            scores[start::n] = own
        return scores


in_blocks = Blocks
"""Makes a function of parameters that returns one score a block, out of one for a block."""


def _scores(
    function: Callable[..., Any], args: Any, kwargs: Any, seed: int, blocks: Any,
    progress: Callable[[int], object] | None = None,
) -> Array:  # fmt: skip
    """Scores of some blocks, shape (len(blocks),); NaN of one that fails."""
    scores = np.full(len(blocks), math.nan)
    for place, (number, own) in enumerate(blocks):
        with sanitize.unheard, np.errstate(all="ignore"), _own_generators(seed, number):
            mine, by_name = copy.deepcopy((args, kwargs))
            evaluate = partial(function, *mine, own, **by_name)
            score, error = sanitize.call(partial(_evaluated, evaluate))
        if isinstance(error, KeyboardInterrupt):
            raise error
        if score is not None:
            scores[place] = score
        if progress is not None:
            progress(number)
    return scores


def _evaluated(evaluate: Callable[[], Any]) -> float:
    """The number that a function returns."""
    return as_reward(evaluate())


@contextmanager
def _own_generators(seed: int, block: int) -> Iterator[None]:
    """Seeds the process's generators for one block, and puts them back."""
    own = int(np.random.SeedSequence([seed, block]).generate_state(1)[0])
    torch = sys.modules.get("torch")
    with _alone, ExitStack() as after:
        after.callback(random.setstate, random.getstate())
        after.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002  # what models use
        if torch is not None:
            after.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(own)
        random.seed(own)
        np.random.seed(own)  # noqa: NPY002
        yield
