"""A Ray cluster of several nodes on one machine, beside whatever other Rays run there.

Each node is a raylet of its own with its own address on the loopback device, so that a driver can
say to which node it belongs. The cluster lives in this process, which is none of its drivers:
those are processes of their own (``tests.worker.script``), which may be killed.
"""

import os
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SMALL = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
"""A node as small as it gets."""

HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 5,
}
"""A node that was killed is noticed within seconds; one that is merely slow is not given up."""


class Nodes:
    """The cluster and its nodes, by number.

    Args:
        folder: Where Ray keeps its files.
    """

    def __init__(self, folder):
        from ray.cluster_utils import Cluster

        self.folder = folder
        self._cluster = Cluster(shutdown_at_exit=False)
        self._nodes = {}
        self._most = 0

    @property
    def address(self):
        """Of the control store."""
        return str(self._cluster.gcs_address)

    @property
    def ids(self):
        """Ray's names of the nodes."""
        return {number: str(node.node_id) for number, node in self._nodes.items()}

    def add(self, number):
        """Starts a node; the first one holds the control store."""
        self._most = max(self._most, number + 1)
        own = {"node_ip_address": ip(number), "temp_dir": str(self.folder), **SMALL}
        if not self._nodes:
            own |= {"_system_config": HEALTH}
        self._nodes[number] = self._cluster.add_node(**own)

    def revive(self):
        """Starts the nodes that were killed, and waits until Ray knows that they were."""
        for number in range(self._most):
            if number not in self._nodes:
                self.add(number)
        self._cluster.wait_for_nodes(timeout=120)

    def processes(self, number):
        """What the processes of a node call themselves."""
        raylet = self._nodes[number].all_processes["raylet"][0].process.pid
        found = [Path(f"/proc/{pid}/cmdline") for pid in descendants(raylet)]
        return [path.read_bytes().decode() for path in found if path.exists()]

    def kill(self, number):
        """As a machine that loses its power: everything on it at once."""
        node = self._nodes.pop(number)
        raylet = node.all_processes["raylet"][0].process.pid
        for pid in [raylet, *descendants(raylet)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self):
        """Ends all nodes and what they have begun."""
        for number in sorted(self._nodes, reverse=True):
            self.kill(number)


def ip(number):
    """A node's address."""
    return f"127.0.0.{10 + number}"


def descendants(pid):
    """Processes that a process has begun, and those that they have."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        found += (children := parents.get(left.pop(), []))
        left += children
    return found


@contextmanager
def a_cluster(numbers):
    """So many nodes, and nothing of them afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ry", dir="/tmp"))  # short: sockets lie in it
    with pytest.MonkeyPatch.context() as patch:
        # Every ray.init on this machine would join the cluster that stands in Ray's own file.
        patch.setattr("ray._private.utils.write_ray_address", lambda *_: None)
        nodes = Nodes(folder)
        try:
            for number in range(numbers):
                nodes.add(number)
            yield nodes
        finally:
            nodes.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
