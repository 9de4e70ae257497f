"""Hosts and trials in the process of the test, where what Ray does between processes is not asked.

:class:`LocalRay` stands for as much of Ray as the way to a host uses: named actors that are begun,
called, killed and found. Both ends of every call are the package's own, and so is everything that
decides who may begin a host and what is said where there is none. What is sent travels by pickle,
so that what could not reach another process does not reach a host here; an actor ends with the
handle of whoever began it; one with a database is begun again after its process has died.

:func:`run_trial` is one trial as Tune runs it, through the hooks of a search.
"""

from __future__ import annotations

import gc
import re
import uuid
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
import ray
import ray.cloudpickle as cloudpickle
from ray.exceptions import RayActorError
from ray.train._internal import session as ray_session

from privbo_plugins.errors import VaultError
from privbo_plugins.shown import flat
from raytune_searchers import DPFTSDESearch, _channel
from raytune_searchers._channel import HostActor
from raytune_searchers._search import FINISHED, merged
from raytune_searchers.hosts import actors, base, losses


def sent(value):
    """What arrives of it in another process."""
    return cloudpickle.loads(cloudpickle.dumps(value))


# Actors -----------------------------------------------------------------------------------------


class Process:
    """An actor's process: it holds the host, and may die.

    Args:
        begin: Makes the host, from pickled arguments.
        restarts: Whether another process takes its place when it dies.
        retries: Whether what it was doing is then done again.
    """

    def __init__(self, begin, restarts, retries):
        self._begin, self._restarts, self._retries = begin, restarts, retries
        self.host = begin()

    def end(self):
        """For good."""
        self.host = None

    def crash(self):
        """As a kill of the process: what it held in memory is gone."""
        self.host = self._begin() if self._restarts and self.host is not None else None

    def call(self, args):
        """What the host replies.

        Raises:
            RayActorError: If it is not there, or dies meanwhile.
        """
        host = self.host
        if host is None:
            raise RayActorError
        reply = sent(host.call(*cloudpickle.loads(args)))
        if self.host is host:
            return reply
        if self._retries and self.host is not None:
            return self.call(args)
        raise RayActorError


class Handle:
    """A way to an actor; the one of whoever began it ends it when it is dropped."""

    def __init__(self, process, *, owns=False):
        self.process = process
        self.call = SimpleNamespace(remote=lambda *args: Reply(process, args))
        if owns:
            weakref.finalize(self, process.end)


class Reply:
    """What a call has brought about, for ``ray.get``."""

    def __init__(self, process, args):
        self._reply, self._error = None, None
        try:
            self._reply = process.call(cloudpickle.dumps(args))
        except RayActorError as error:
            self._error = error

    def get(self):
        if self._error is not None:
            raise self._error
        return self._reply


class LocalRay:
    """Ray's named actors, in this process."""

    def __init__(self):
        self.running, self.job = True, uuid.uuid4().hex
        self._processes = {}
        self.arguments = {}
        """What each actor was begun with."""
        self._memory = {}

    # What Ray offers ------------------------------------------------------------------------

    def forget(self):
        """What a cluster remembers is gone when it ends."""
        self._memory.clear()

    def is_initialized(self):
        return self.running

    def get_runtime_context(self):
        worker = SimpleNamespace(mode=ray.SCRIPT_MODE)
        node, job = (lambda: "0" * 56), (lambda: self.job)
        return SimpleNamespace(worker=worker, get_node_id=node, get_job_id=job)

    def get_actor(self, name, namespace=None):
        process = self._processes.get(name)
        if process is None or process.host is None:
            raise ValueError(f"no actor {name}")
        return Handle(process)

    def kill(self, actor):
        actor.process.end()

    def remote(self, kind):
        def options(**wanted):
            return SimpleNamespace(remote=lambda *args: self._begun(kind, wanted, args))

        return SimpleNamespace(options=options)

    def _begun(self, kind, options, args):
        self.arguments[options["name"]] = args
        name, found = options["name"], self._processes.get(options["name"])
        if found is not None and found.host is not None:
            if options["get_if_exists"]:
                return Handle(found)
            raise ValueError(f"the name {name} is taken")
        blob = cloudpickle.dumps(args)
        process = Process(
            lambda: kind(*cloudpickle.loads(blob)),
            options["max_restarts"] != 0,
            options["max_task_retries"] != 0,
        )
        self._processes[name] = process
        return Handle(process, owns=True)

    def get(self, reply):
        return reply.get()

    def _remembers(self):
        """The cluster's own memory, which outlives its actors."""
        held = self._memory

        def listed(prefix, **_):
            return [key for key in held if key.startswith(prefix)]

        return SimpleNamespace(
            _internal_kv_initialized=lambda: True,
            _internal_kv_get=lambda key, **_: held.get(key),
            _internal_kv_exists=lambda key, **_: key in held,
            _internal_kv_put=lambda key, value, **_: held.update({key: value}),
            _internal_kv_del=lambda key, **_: held.pop(key, None),
            _internal_kv_list=listed,
        )

    def wait(self, replies, **_):
        return replies, []

    # What a test does to them ---------------------------------------------------------------

    @property
    def alive(self):
        """Names of the actors that are there."""
        return sorted(name for name, process in self._processes.items() if process.host)

    def end_driver(self):
        """What a killed driver leaves: no actor of its own, and nothing that this process knew."""
        for process in self._processes.values():
            process.end()
        gc.collect()
        actors._ANCHORS.clear()
        actors._KEPT.clear()
        _channel._KNOWN.clear()

    def end_ray(self):
        """``ray.shutdown`` and another ``ray.init``, in this process."""
        for process in self._processes.values():
            process.end()
        self._memory.clear()
        self.job = uuid.uuid4().hex

    @contextmanager
    def installed(self):
        """In the place of the real one, for hosts; everything else goes on to the real one."""
        real = {name: getattr(ray, name) for name in ("remote", "get", "wait", "kill")}
        with pytest.MonkeyPatch.context() as patch:
            for name in ("is_initialized", "get_runtime_context", "get_actor"):
                patch.setattr(ray, name, getattr(self, name))
            patch.setattr(_channel, "_PATIENCE", 2.0)  # nobody begins a host while this one waits
            for module in (actors, base, losses, _channel):
                patch.setattr(module, "kv", self._remembers())
            for name, original in real.items():
                patch.setattr(ray, name, _either(getattr(self, name), original))
            yield self
        for process in self._processes.values():
            process.end()


def crash(name):
    """Kills a host's process, from wherever this process is."""
    ray.get_actor(name, namespace=_channel.NAMESPACE).process.crash()


def lose(name):
    """Ends a host's actor for good."""
    ray.kill(ray.get_actor(name, namespace=_channel.NAMESPACE))


def refused(text):
    """What says of a vault these words and no others."""
    return pytest.raises(VaultError, match=f"^{re.escape(text)}$")


def _either(local, original):
    """Our own for hosts, their handles and their replies; Tune uses Ray's decorators too."""

    def chosen(*args, **kwargs):
        first = args[0] if args else None
        first = first[0] if isinstance(first, list) and first else first
        ours = isinstance(first, Handle | Reply) or first is HostActor
        return (local if ours else original)(*args, **kwargs)

    return chosen


# Trials -----------------------------------------------------------------------------------------


class Session:
    """As much of a trial's session as function trainables use."""

    world_rank = None
    loaded_checkpoint = None

    def __init__(self, trial, heard):
        self.trial_id = self.trial_name = trial
        self._heard = heard

    def report(self, metrics, checkpoint=None):
        self._heard(dict(metrics))

    def _get_or_create_inter_actor_queue(self):
        """What workers of Ray Train put in there is reported."""
        return SimpleNamespace(put=self.report)


@contextmanager
def in_session(trial, heard):
    """Where a trainable finds the session of its trial."""
    with mock.patch.object(ray_session, "_session", Session(trial, heard)):
        yield


@dataclass
class Trial:
    """What a ``ResultGrid`` shows of a trial.

    Attributes:
        trial_id: Its name.
        config: What it was to evaluate.
        metrics: Its last result.
        rows: Everything that it reported.
        error: What ended it, if anything did.
    """

    trial_id: str
    config: dict[str, Any]
    metrics: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None

    @property
    def metrics_dataframe(self):
        """As Tune reads it from result.json."""
        return pd.json_normalize(self.rows, sep="/")


class Grid(list[Trial]):
    """What a fit returns; like Tune's own it knows what the driver has given to each trial."""

    @property
    def _experiment_analysis(self):
        return SimpleNamespace(trials=list(self))


def run_trial(search, trainable, trial):
    """One trial, from its suggestion to its completion; None if nothing was suggested."""
    suggestion = search.suggest(trial)
    return evaluate(search, trainable, trial, suggestion) if isinstance(suggestion, dict) else None


def evaluate(search, trainable, trial, suggestion):
    """The rest of a trial to which a search has suggested something."""
    made = Trial(trial, merged(_of_the_tuner(search), suggestion))
    inside = sent(made.config)  # the function may write into it, and Tune repeats it in every row

    def heard(metrics):
        steps = len(made.rows) + 1
        own = {"trial_id": trial, "training_iteration": steps, "config": sent(inside)}
        made.metrics = {**metrics, **own}
        made.rows.append(made.metrics)
        search.on_trial_result(trial, flat(made.metrics))

    travelled = sent(trainable)
    with in_session(trial, heard):
        try:
            returned = travelled(inside)
        except Exception as error:
            made.error = error
    if made.error is None and returned is not None:
        heard(returned)
    last = flat(made.metrics) if made.metrics else None
    search.on_trial_complete(trial, last, error=made.error is not None)
    return made


def finish(search, trial, value, **more):
    """A trial that has run elsewhere reports once and completes."""
    result = {search.metric: value, "training_iteration": 1, **more}
    search.on_trial_result(trial, result)
    search.on_trial_complete(trial, result)


def _of_the_tuner(search):
    """The Tuner's param_space, which fills in constants; a federation has none."""
    inner = getattr(search, "searcher", search)  # of a limiter
    federated = isinstance(inner, DPFTSDESearch)
    return {} if federated else getattr(inner, "_param_space", {})


def evaluation(search, trainable, n=200, *, at_once=1, name="t"):
    """Trials until the search has finished or so many have run, some of them out together."""
    done = Grid()
    for start in range(0, n, at_once):
        trials = [f"{name}{i}" for i in range(start, min(n, start + at_once))]
        asked = {trial: search.suggest(trial) for trial in trials}
        given = {t: config for t, config in asked.items() if isinstance(config, dict)}
        done += [evaluate(search, trainable, trial, config) for trial, config in given.items()]
        if FINISHED in asked.values():
            break
        assert given, "nothing is suggested while no trial is out"
    return done
