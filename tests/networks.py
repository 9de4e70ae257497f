"""Machines of their own on one machine: network namespaces, joined by a bad line.

Each namespace has one interface, a tunnel device whose packets this process carries: it delays
them, loses some, and carries none from or to a machine whose cable is pulled. TCP above it is the
system's own, so what is lost is sent again as on any line. (``tc netem`` would do the same where
the kernel has it.) Needs Linux, root, ``ip netns`` and /dev/net/tun.
"""

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
import uuid

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def missing():
    """Why there are no such machines here; empty if there are."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (Debian's iproute2)"
    if not os.access("/dev/net/tun", os.W_OK):
        return "there is no /dev/net/tun"
    probe = f"privbo-{uuid.uuid4().hex[:6]}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "ip netns is not allowed here"
    _ip("netns", "del", probe)
    return ""


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """Some machines, 10.77.0.1, 10.77.0.2, ..., each in a namespace.

    Args:
        n: How many.
        delay: Seconds that a packet is under way.
        loss: Probability that it is lost.
        seed: Drives which are.
    """

    def __init__(self, n, *, delay, loss, seed=0):
        self._name = f"privbo-{uuid.uuid4().hex[:6]}"
        self._delay, self._loss, self._rng = delay, loss, random.Random(seed)
        self._pulled = set()
        self._devices = []
        self.carried = self.lost = 0
        self._closing = threading.Event()
        self._n = n
        self._thread = threading.Thread(target=self._carry, name="the line", daemon=True)

    def __enter__(self):
        try:
            for machine in range(1, self._n + 1):
                self._devices.append(self._begin(machine))
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._closing.set()
        self._thread.join()
        self._remove()

    def _remove(self):
        for device in self._devices:
            os.close(device)
        for machine in range(1, self._n + 1):
            subprocess.run(["ip", "netns", "del", self._namespace(machine)], capture_output=True)

    def _namespace(self, machine):
        return f"{self._name}-{machine}"

    def _begin(self, machine):
        """A namespace whose one interface is the other end of the descriptor returned."""
        namespace, name = self._namespace(machine), f"pv{os.getpid() % 100000}x{machine}"
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("netns", "add", namespace)
        _ip("link", "set", name, "netns", namespace)
        inside = ("-n", namespace)
        _ip(*inside, "addr", "add", f"{address(machine)}/24", "dev", name)
        _ip(*inside, "link", "set", name, "up")
        _ip(*inside, "link", "set", "lo", "up")
        return device

    def command(self, machine, *words):
        """Words that run a program on one of the machines."""
        return ["ip", "netns", "exec", self._namespace(machine), *map(str, words)]

    def pull(self, machine):
        """Pulls a machine's cable."""
        self._pulled.add(machine)

    def plug(self, machine):
        """Plugs it in again."""
        self._pulled.discard(machine)

    # The line -----------------------------------------------------------------------------------

    def _carry(self):
        under_way = []
        count = 0
        while not self._closing.is_set():
            left = under_way[0][0] - time.monotonic() if under_way else 0.05
            for device in select.select(self._devices, [], [], min(max(left, 0.0), 0.05))[0]:
                packet = os.read(device, 2**16)
                to = self._destination(packet)
                if to is None or not self._survives(self._devices.index(device) + 1, to):
                    self.lost += 1
                    continue
                count += 1
                heapq.heappush(under_way, (time.monotonic() + self._delay, count, to, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(under_way)
                os.write(self._devices[to - 1], packet)
                self.carried += 1

    def _destination(self, packet):
        if packet[0] >> 4 != 4:  # IPv6 looks for neighbours; there are none
            return None
        machine = packet[19]
        return machine if 1 <= machine <= self._n else None

    def _survives(self, source, to):
        return not {source, to} & self._pulled and self._rng.random() >= self._loss


def address(machine):
    """Of a machine in its network."""
    return f"10.77.0.{machine}"
