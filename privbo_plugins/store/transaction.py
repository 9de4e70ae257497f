"""What one transaction reads and writes of a run: who evaluates what, its ledger, its releases."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import VaultError
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.store.log import (
    CHARGE,
    DAMAGED,
    DRAWN,
    EVALUATION,
    FROZEN,
    HOST,
    PAID,
    RELEASE,
    ROWS,
    RUN,
    TOKEN,
    Event,
    Log,
    Rows,
    cost_text,
    costs_of,
    hashed,
    numbers_of,
    parsed,
    stored_bytes,
    vector,
)

Array = NDArray[np.float64]

_LONGEST_FACT = 512

BLOCK = 2**16
"""Records in one stored block; statistics stream over blocks, so memory does not grow with n."""


class TrialRow(NamedTuple):
    """What the vault knows of one trial."""

    trial: str
    role: str
    step: int
    slot: int
    x: Array
    state: str
    value: float | None


_TRIAL = TrialRow._fields


class _Board(Rows):
    """Who evaluates what, and the losses that are still needed."""

    def trial(self, trial: str) -> TrialRow | None:
        """One trial, or None."""
        found = self.trials(trial=trial)
        return found[0] if found else None

    def trials(self, **where: Any) -> list[TrialRow]:
        """Trials of the run, by slot: all, or those of a ``state`` or a ``step``."""
        rows = self._select("board", *_TRIAL, **where)
        if not all(isinstance(row[0], str) and isinstance(row[3], int) for row in rows):
            raise VaultError(DAMAGED)
        found = [
            TrialRow(trial, role, step, slot, vector(x), state, value)
            for trial, role, step, slot, x, state, value in rows
        ]
        return sorted(found, key=lambda row: (row.slot, row.trial))

    def count(self, **where: Any) -> int:
        """Number of trials of a ``state`` or a ``step``."""
        return self._count("board", **where)

    def told(self) -> int:
        """Counts trials that have a value, also those whose losses are gone."""
        return self.count(state="done") + self.count(state="gone")

    def new_trial(self, trial: str, role: str, step: int, slot: int, x: Array) -> None:
        """Hands a slot to a trial."""
        self._insert(
            "board",
            trial=trial,
            role=role,
            step=step,
            slot=slot,
            x=stored_bytes(x),
            state="out",
        )

    def finish(self, trial: str, x: Array, value: float) -> None:
        """Marks a trial done, with the point it evaluated and the value it published."""
        self._update(
            "board",
            {"state": "done", "x": stored_bytes(x), "value": value},
            trial=trial,
        )

    def fail(self, trial: str) -> None:
        """Gives a trial's slot back, unless it is done."""
        self._update("board", {"state": "failed"}, trial=trial, state="out")

    def move(self, trial: str, step: int, slot: int) -> None:
        """Gives a trial a slot of another step as well, where its losses are read once more."""
        self._update("board", {"step": step, "slot": slot}, trial=trial)

    def reopen(self, trial: str) -> None:
        """Gives the slot of a done trial back, because its losses are gone."""
        self._update("board", {"state": "gone"}, trial=trial)

    def forget(self, trial: str) -> None:
        """Removes a failed trial, so that it can be handed a slot again."""
        self._delete("board", trial=trial, state="failed")

    def put_losses(self, trial: str, y: Array) -> None:
        """Stores one value a record, shape (n,), in blocks."""
        for block, start in enumerate(range(0, len(y), BLOCK)):
            data = stored_bytes(y[start : start + BLOCK])
            self._insert("losses", trial=trial, block=block, data=data)

    def blocks(self, trials: Sequence[str], n_records: int) -> Iterator[Array]:
        """Record-major blocks of shape (n_block, m) over the given trials."""
        for block in range(-(-n_records // BLOCK)):
            found = dict(self._select("losses", "trial", "data", block=block))
            for trial in trials:
                if trial not in found:
                    raise VaultError(f"The vault no longer holds the losses of trial {trial}.")
            yield np.stack([vector(found[trial]) for trial in trials], axis=1)

    def held(self) -> list[str]:
        """Trials whose raw losses are in the vault."""
        return sorted(trial for (trial,) in self._select("losses", "trial", block=0))

    def drop_losses(self, trials: Collection[str] | None = None) -> None:
        """Deletes the raw losses of some trials, or of all; ledger and releases stay."""
        if trials is None:
            self._delete("losses")
        for trial in trials or ():
            self._delete("losses", trial=trial)


class _Ledger(Log):
    """What was charged to whom, and what was released for it."""

    def charge(self, charge: Charge) -> None:
        """Writes a charge; the budget has been checked by the caller in this transaction."""
        cost = cost_text(charge.mu, charge.sensitivity, charge.scale)
        self._add(CHARGE, f"{charge.kind}/{charge.key}", cost, charge.population)

    def charged(self, kind: str, key: str) -> bool:
        """Checks whether a charge of this kind and key was written."""
        return self._said(CHARGE, f"{kind}/{key}") is not None

    def charges(self) -> list[Charge]:
        """The whole ledger of the run, in order."""
        columns = "key", "payload", "payer"
        rows = self._select("events", *columns, kind=CHARGE)
        return [
            Charge(*_key_of(key), mu, sensitivity, scale, who)
            for key, cost, who in rows
            for mu, sensitivity, scale in [costs_of(cost, 3)]
        ]

    def charges_by_mu(self) -> dict[tuple[str, float], int]:
        """Returns how many charges of the run have which (population, mu)."""
        found: dict[tuple[str, float], int] = {}
        for who, cost, n in self._fetch("charges_by_cost", kind=CHARGE):
            key = who, costs_of(cost, 3)[0]
            found[key] = found.get(key, 0) + int(n)
        return found

    def charges_since(self, seq: int) -> list[tuple[str, float]]:
        """(population, mu) of the run's charges after the log's first ``seq`` events."""
        return [
            (event.payer, costs_of(event.payload, 3)[0])
            for event in self.events_since(seq)
            if (event.run, event.kind) == (self.run_id, CHARGE)
        ]

    def released_since(self, seq: int) -> list[str]:
        """Runs of the releases after the first ``seq`` events, each as often as it released."""
        return [event.run for event in self.events_since(seq) if event.kind == RELEASE]

    def release(self, kind: str, key: str, payload: Mapping[str, Any] | float) -> int:
        """Stores a release, and returns its number; a second one of its name is refused."""
        fields = payload if isinstance(payload, Mapping) else [float(payload)]
        return self._add(RELEASE, f"{kind}/{key}", json.dumps(fields))

    def released(self, kind: str, key: str) -> Any:
        """The stored release of a kind and key: its fields, its number, or None."""
        said = self._said(RELEASE, f"{kind}/{key}")
        return None if said is None else _payload_of(kind, said)

    def keep_drawn(self, kind: str, key: str, payload: Mapping[str, Any] | float) -> None:
        """Stores what was drawn for a release that another transaction stores."""
        self._add(DRAWN, f"{kind}/{key}", json.dumps(payload))

    def drawn(self, kind: str, key: str) -> Any:
        """Returns what was drawn for a release of a kind and key, or None."""
        said = self._said(DRAWN, f"{kind}/{key}")
        return None if said is None else _payload_of(kind, said)

    def standing(self) -> list[tuple[str, str]]:
        """Lists (kind, key) of what was drawn and is not released yet."""
        return sorted(_key_of(key) for (key,) in self._fetch("standing", kind=RELEASE))

    def releases_after(self, seq: int) -> list[tuple[int, str, str, Any]]:
        """(number, kind, key, payload) of the run's releases after the log's first ``seq``."""
        rows = self._fetch("releases_after", kind=RELEASE, after=seq)
        return [
            (n, kind, name, _payload_of(kind, said))
            for n, key, said in rows
            for kind, name in [_key_of(key)]
        ]

    def n_released(self) -> int:
        """Number of releases of the run."""
        return self._count("events", kind=RELEASE)

    def charge_evaluation(self, trial: str, person: str, epsilon: float, delta: float) -> None:
        """Charges a person for an evaluation whose release is not drawn yet."""
        self._add(PAID, trial, cost_text(epsilon, delta), person)

    def payer(self, trial: str) -> str | None:
        """Returns the person who was charged for an evaluation, released or not."""
        found = self._select("events", "payer", kind=PAID, key=trial)
        return str(found[0][0]) if found else None

    def evaluations(self) -> list[tuple[str, str, float, float, float | None]]:
        """(trial, person, epsilon, delta, release or None) of every charged evaluation."""
        values = {(kind, key): value for _, kind, key, value in self.releases_after(0)}
        rows = self._select("events", "key", "payer", "payload", kind=PAID)
        return [
            (trial, who, *costs_of(cost, 2), values.get((EVALUATION, trial)))
            for trial, who, cost in rows
        ]

    def evaluation_counts(
        self, person: str | None = None
    ) -> list[tuple[str, str, str | None, float, float, int]]:
        """(person, run, mechanism, epsilon, delta, how many) in the whole vault.

        Args:
            person: Whose; other runs, which may charge the same person, are held up until the
                end of the transaction. None for everybody's.
        """
        if person is None:
            rows = self._fetch("counted")
        else:
            self._lock_vault()
            rows = self._fetch("counted_of", person=person)
        return [
            (who, run, _mechanism(settings), *costs_of(cost, 2), int(n))
            for who, run, settings, cost, n in rows
        ]


class Transaction(_Ledger, _Board):
    """Statements on one run inside one open transaction; see :meth:`Vault.transaction`."""

    # Runs ---------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any] | None:
        """Returns what the run was started with; None if the vault holds no such run."""
        begun = self._newest(RUN)
        return None if begun is None else parsed(begun[1], dict)

    def frozen(self) -> dict[str, Any]:
        """Returns what the first trial has fixed; empty before it.

        Raises:
            VaultError: If the vault has lost the run.
        """
        if not self.has_mark(RUN):
            raise VaultError("The vault no longer holds this run.")
        facts = self._select("events", "key", "payload", kind=FROZEN)
        return {name: parsed(payload, dict).get(name) for name, payload in facts}

    def run_of_host(self, host_key: str) -> str | None:
        """The run that a host key started, if any."""
        found = self._select("events", "payload", run="", kind=HOST, key=host_key)
        return str(found[0][0]) if found else None

    def hosts(self) -> list[str]:
        """Host keys of all runs in the vault."""
        return [str(key) for (key,) in self._select("events", "key", run="", kind=HOST)]

    def new_run(self, host_key: str, settings: Mapping[str, Any]) -> None:
        """Starts this transaction's run."""
        self.append(Event("", HOST, host_key, payload=self.run_id))
        self._add(RUN, host_key, json.dumps(settings))

    def freeze(self, frozen: Mapping[str, Any]) -> None:
        """Fixes what is known from the first trial on; a second value of a name is refused."""
        for name, value in frozen.items():
            self._add(FROZEN, name, json.dumps({name: value}))

    # Facts --------------------------------------------------------------------------------

    def mark(self, kind: str, text: str) -> None:
        """Notes a fact about the run, once; facts are never removed."""
        if not self.has_mark(kind, text):
            self._add(kind, _fact(text))

    def marks(self, kind: str) -> tuple[str, ...]:
        """All facts of a kind, sorted."""
        found = self._select("events", "key", kind=kind)
        return tuple(sorted(str(text) for (text,) in found))

    def has_mark(self, kind: str, text: str | None = None) -> bool:
        """Checks whether a fact was noted, whole; None asks for any fact of the kind."""
        found = self._newest(kind) if text is None else self._said(kind, _fact(text))
        return found is not None

    def uncompared(self, kind: str) -> list[str]:
        """Trials with a release that have no fact of a kind, sorted."""
        trials = self._fetch("uncompared trials", kind=kind)
        rewards = self._fetch("uncompared rewards", kind=kind)
        return sorted([*(str(t) for (t,) in trials), *(_key_of(key)[1] for (key,) in rewards)])

    # Tables -------------------------------------------------------------------------------

    def put_table(self, name: str, Z: Array) -> None:
        """Stores a released table's numbers, in blocks; its release says what shape they have."""
        for block, start in enumerate(range(0, Z.size, BLOCK)):
            numbers = stored_bytes(np.ravel(Z)[start : start + BLOCK])
            self._add(ROWS, f"{name}/{block}", numbers.hex())

    def table(self, name: str) -> Array:
        """The numbers of a released table, in order; none if it was never stored."""
        said = (self._said(ROWS, f"{name}/{block}") for block in itertools.count())
        blocks = itertools.takewhile(lambda text: text is not None, said)
        try:
            parts = [vector(bytes.fromhex(text or "")) for text in blocks]
        except ValueError:
            raise VaultError(DAMAGED) from None
        return np.concatenate([np.empty(0), *parts])

    # Tokens -------------------------------------------------------------------------------

    def hand_token(self, trial: str) -> str:
        """A token that the next release of an evaluation must show; earlier ones are void."""
        token = uuid.uuid4().hex
        self._add(f"{TOKEN}/{trial}", token)
        return token

    def takes_token(self, trial: str, token: str) -> bool:
        """Checks whether this is the evaluation's newest token."""
        newest = self._newest(f"{TOKEN}/{trial}")
        return newest is not None and newest[0] == token


def _fact(text: str) -> str:
    """A text as the log's key: one that is too long ends in its own digest."""
    short = _LONGEST_FACT - 65
    return text if len(text) <= _LONGEST_FACT else f"{text[:short]} {hashed(text)}"


def _payload_of(kind: str, said: str) -> Any:
    """Builds the released fields, or the one number of a reward."""
    return numbers_of(said, 1)[0] if kind == EVALUATION else parsed(said, dict)


def _key_of(key: str) -> tuple[str, str]:
    """Kind and key of a charge or a release."""
    kind, _, rest = key.partition("/")
    return kind, rest


@lru_cache(maxsize=256)
def _mechanism(settings: str | None) -> str | None:
    """The mechanism that a run's stored settings name, if they do."""
    name = parsed(settings, dict).get("mechanism") if settings else None
    return name if isinstance(name, str) else None
