"""Secrets of a run: distinctive numbers and texts, and what finds them again."""

import secrets

import numpy as np

from tests.leaks.hostile import Told
from tests.leaks.scanner import Scanner

N_RECORDS = 16


class Secrets:
    """Makes distinctive numbers and a text that goes with them, and looks for all of them.

    Args:
        home: Whose they are, as "agent 1: "; empty if nobody else is there.
        size: Of each vector of losses; None for single rewards.
        seed: Of the numbers.
    """

    def __init__(self, home="", size=None, seed=None):
        self.home, self.size = home, size
        self.rng = np.random.default_rng(seed)
        self.scanner = Scanner()
        self.token = f"patient-{secrets.token_hex(8)}"
        self.user = f"user-{secrets.token_hex(8)}"
        self.scanner.add_text("token", self.token)
        self.scanner.add_text("user", self.user)
        self.values = []

    @property
    def calls(self):
        return len(self.values)

    def reward(self):
        """In (0.11, 0.88): a double of full precision whose float32, too, has many digits."""
        y = float(_long(self.rng, 0.12, 0.88, 1)[0])
        self.values.append(y)
        name = f"call {self.calls:03d}"
        self.scanner.add_number(name, y)
        self.scanner.add_number(f"{name} in float32", float(np.float32(y)))
        self.scanner.add_number(f"1 - {name}", 1 - y)  # a minimiser's unit
        self.scanner.add_raw(f"{name} in half-ranges", 2 * y - 1)  # what a mechanism sees
        self.scanner.add_raw(f"- {name}", -y)
        return y

    def vector(self, size=None):
        vector = _long(self.rng, 0.11, 0.99, size or self.size or N_RECORDS)
        self.values.append(vector)
        self.scanner.add_vector(f"call {self.calls:03d}", vector[:40])
        return vector

    def told(self, host=None):
        return Told(self.token, self.vector() if self.size else self.reward(), host)

    def add_raw(self, name, values):
        for i, value in enumerate(np.ravel(values)):
            self.scanner.add_raw(f"{name}[{i}]", float(value))

    def hits(self, name, blob):
        return self.scanner.hits(blob)


def _long(rng, low, high, size):
    """Uniform numbers whose six digits do not end in 0: shorter ones stand in any page."""
    found = rng.uniform(low, high, size)
    while (short := np.char.str_len([f"{value:.6g}" for value in found]) < len("0.123456")).any():
        found[short] = rng.uniform(low, high, int(short.sum()))
    return found
