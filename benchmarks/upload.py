"""How long a vector of losses takes to its vault through Ray, and what its host holds meanwhile.

``python -m benchmarks.upload`` sends vectors of growing length from a worker of Ray

- as a private trial does: ``LossChannel.tell``, from the first look at what Ray stores to the
  released value, with the vault in a SQLite file;
- plainly: an actor that appends blocks of the same size to a list, one call each, all of them sent
  without waiting for any, and then joins them and stores them in a file of the same kind, in one
  transaction of the same vault, without a release;
- one block after another, as it was before: the same plain actor, each call awaited.

Then 64 trials end at the same time, each with the longest vector, in four workers: what the host's
process holds beyond what it held before is sampled. The cap is what may have begun to arrive, as
much again in the queue, and the vector that is being stored with a copy of it. ``--write`` keeps
the figures in ``benchmarks/results/upload.json`` with a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray
from tqdm import tqdm

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault
from raytune_searchers._channel import BLOCK_BYTES, LOSSES, LossChannel, TrialSender
from raytune_searchers.hosts.base import actor_name, anchor, connect
from raytune_searchers.hosts.losses import RunSettings, VaultHost
from raytune_searchers.hosts.uploads import HELD_BYTES

RESULTS = Path(__file__).parent / "results"

LENGTHS = (1_000, 10_000, 100_000, 1_000_000)

TOGETHER, WORKERS = 64, 4

PRIVATE, PLAIN, ONE_BY_ONE = "private trial", "plain actor", "plain actor, one by one"


class Host(VaultHost):
    """A vault's host that tells its process."""

    def process(self) -> int:
        """Its number."""
        return os.getpid()


class Plain:
    """An actor that takes blocks and stores them.

    Args:
        url: Of its vault.
    """

    def __init__(self, url: str) -> None:
        self._vault = open_vault(url)
        self._blocks: list[bytes] = []

    def process(self) -> int:
        """Its number."""
        return os.getpid()

    def take(self, block: bytes) -> None:
        """One more block."""
        self._blocks.append(block)

    def store(self, trial: str) -> None:
        """All of them, as one vector."""
        vector = np.frombuffer(b"".join(self._blocks))
        self._blocks.clear()
        with self._vault.transaction("plain") as tx:
            tx.put_losses(trial, vector)


# Senders, in workers of Ray ---------------------------------------------------------------------


def losses(n: int) -> Any:
    """A vector that compresses badly."""
    return np.random.default_rng(0).random(n)


def timed(send: Callable[[Any], Any], n: int) -> float:
    """Seconds of sending a vector that is there."""
    vector = losses(n)
    began = time.perf_counter()
    send(vector)
    return time.perf_counter() - began


def tell(name: str, trial: str, n: int) -> float:
    """As a private trial."""
    channel = LossChannel(TrialSender(name, LOSSES))
    return timed(lambda vector: channel.tell(trial, np.array([0.5]), vector), n)


def send_plainly(actor: Any, trial: str, n: int, awaited: bool) -> float:
    """As to any actor."""

    def send(vector: Any) -> None:
        raw = vector.data.cast("B")
        calls = []
        for start in range(0, len(raw), BLOCK_BYTES):
            calls.append(actor.take.remote(bytes(raw[start : start + BLOCK_BYTES])))
            if awaited:
                ray.get(calls[-1])
        ray.get([*calls, actor.store.remote(trial)])

    return timed(send, n)


def at_once(send: Callable[[str], Any], trials: list[str]) -> None:
    """Trials that end at the same time; one thread each: the host sees no difference."""
    with ThreadPoolExecutor(len(trials)) as pool:
        list(pool.map(send, trials))


# Receivers --------------------------------------------------------------------------------------


def private_host(folder: str, trials: list[str]) -> tuple[Any, Any, Callable[[], None]]:
    """(name, channel, what ends it) of a run in which these trials are asked."""
    run = uuid.uuid4().hex
    config = GIBOConfig(1.0, n_steps=1, n_starts=1, batch_size=10 * len(trials))
    settings = RunSettings(run, config, False, 0, "loss", Space({"x": Float(0.0, 1.0)}), b"")
    own = anchor(actor_name(Host, "benchmark", run), Host, may_begin=True)
    channel, _, _ = connect(own, settings, f"sqlite:///{folder}/{run}.db")
    channel.call("ask", "start", False)
    return own.name, channel, own.end


def start(channel: Any, name: str, n: int, trials: list[str]) -> None:
    """Brings a run to its first step, in which vectors are kept, and hands out its slots."""
    ray.get(ray.remote(tell).remote(name, "start", n))
    for trial in trials:
        channel.call("ask", trial, True)


def sent_privately(name: str, n: int, trial: str) -> Any:
    """Seconds of a private trial in a worker, once there."""
    return ray.remote(tell).remote(name, trial, n)


def sent_plainly(actor: Any, n: int, awaited: bool, trial: str) -> Any:
    """The same to a plain actor."""
    return ray.remote(send_plainly).remote(actor, f"{trial}/{awaited}", n, awaited)


def lengths(folder: str, repeats: int) -> dict[str, Any]:
    """Median seconds of every way, by the vector's length; the ways in turn."""
    found: dict[str, Any] = {}
    for n in LENGTHS:
        trials = [str(i) for i in range(repeats + 1)]
        name, channel, end = private_host(folder, trials)
        start(channel, name, n, trials)
        plain = ray.remote(Plain).remote(f"sqlite:///{folder}/{uuid.uuid4().hex}.db")
        ways: dict[str, Callable[[str], Any]] = {
            PRIVATE: partial(sent_privately, name, n),
            PLAIN: partial(sent_plainly, plain, n, False),
            ONE_BY_ONE: partial(sent_plainly, plain, n, True),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for trial in tqdm(trials, desc=f"{n} records"):
            for way, send in ways.items():
                seconds[way].append(ray.get(send(trial)))
        end()
        ray.kill(plain)
        kept = {way: sorted(took[1:]) for way, took in seconds.items()}  # the first one begins
        found[str(n)] = {
            way: {"seconds": [round(s, 4) for s in took], "median": round(median(took), 4)}
            for way, took in kept.items()
        }
        found[str(n)]["ratio to plain"] = round(median(kept[PRIVATE]) / median(kept[PLAIN]), 3)
    return found


def resident(process: int) -> float:
    """MB that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line) / 1024


def watched(process: int, work: Callable[[], None]) -> dict[str, Any]:
    """Seconds of some work, and MB that a process holds meanwhile beyond what it held before."""
    before, done = resident(process), threading.Event()
    samples: list[tuple[float, float]] = []

    def sample() -> None:
        began = time.perf_counter()
        while not done.wait(0.02):
            samples.append((time.perf_counter() - began, resident(process) - before))

    thread = threading.Thread(target=sample)
    thread.start()
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    done.set()
    thread.join()
    thinned = samples[:: max(1, len(samples) // 200)]
    return {
        "seconds": round(took, 2),
        "most MB beyond before": round(max(mb for _, mb in samples), 1),
        "MB over time": [(round(s, 2), round(mb, 1)) for s, mb in thinned],
    }


def together(folder: str, n: int) -> dict[str, Any]:
    """64 trials that end at the same time, by way."""
    trials = [str(i) for i in range(TOGETHER)]
    shares = [trials[i::WORKERS] for i in range(WORKERS)]
    worker = ray.remote(at_once)

    def work(send: Callable[[str], Any]) -> Callable[[], None]:
        return lambda: ray.get([worker.remote(send, share) for share in shares])

    name, channel, end = private_host(folder, trials)
    start(channel, name, n, trials)
    found = {PRIVATE: watched(channel.call("process"), work(lambda trial: tell(name, trial, n)))}
    end()
    plain = ray.remote(Plain).remote(f"sqlite:///{folder}/{uuid.uuid4().hex}.db")
    ray.get(plain.take.remote(b""))
    process = ray.get(plain.process.remote())
    found[PLAIN] = watched(process, work(lambda trial: send_plainly(plain, trial, n, False)))
    ray.kill(plain)
    return found


# Figures ----------------------------------------------------------------------------------------


def draw(result: dict[str, Any], path: Path) -> None:
    """Seconds by length, and the host's memory over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for way in (PRIVATE, PLAIN, ONE_BY_ONE):
        seconds = [result["lengths"][str(n)][way]["median"] for n in LENGTHS]
        left.loglog(LENGTHS, seconds, "o-", label=way)
    left.set(xlabel="records", ylabel="seconds, to the stored vector", title="one trial")
    left.legend()
    for way, found in result["together"].items():
        right.plot(*zip(*found["MB over time"], strict=True), label=way)
    right.axhline(result["cap MB"], color="black", linestyle=":", label="cap")
    right.set(xlabel="seconds", ylabel="MB in the host, beyond before")
    right.set_title(f"{TOGETHER} trials of {LENGTHS[-1]} records end together")
    right.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures with a vault in a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS}")
    arguments = parser.parse_args()
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {
            "load before": round(os.getloadavg()[0], 1),
            "cap MB": round((2 * HELD_BYTES + 2 * 8 * LENGTHS[-1]) / 2**20),
            "lengths": lengths(folder, arguments.repeats),
            "together": together(folder, LENGTHS[-1]),
        }
    ray.shutdown()
    for n, ways in result["lengths"].items():
        told = ", ".join(
            f"{way} {ways[way]['median']:.4f} s" for way in (PRIVATE, PLAIN, ONE_BY_ONE)
        )
        print(f"{n:>8s} records: {told}; {ways['ratio to plain']:.2f} times plain")
    for way, found in result["together"].items():
        print(
            f"{TOGETHER} together, {way}: {found['seconds']:.1f} s, "
            f"{found['most MB beyond before']:.0f} MB at most beyond before"
        )
    if arguments.write:
        (RESULTS / "upload.json").write_text(json.dumps(result, indent=2) + "\n")
        draw(result, RESULTS / "upload.png")


if __name__ == "__main__":
    main()
