"""A third host: any loop that asks and tells is private over the engine, without Optuna or Ray.

:class:`PrivateLoop` is told one loss a validation record (for DP-GIBO or another algorithm of its
kind), :class:`PrivateRewards` one user's reward per evaluation (for LDP-GP-UCB and its siblings).
With ``vault=`` (a URL) and ``guard=`` (a file) a run outlives its process: open both again, and
go on, one process and thread at a time. ``python -m examples.any_loop`` tunes with both.
"""

from __future__ import annotations

import uuid
import warnings
from typing import Any

import numpy as np

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.protocols import CentralConfig, Evaluation
from privbo_plugins.algorithms.registry import entry
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.privacy.local import LocalMechanism, make_mechanism
from privbo_plugins.sanitize import retelling
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.stored import StoredRun, run_named
from privbo_plugins.spaces import Float, Int, Space
from privbo_plugins.store.rollback_guard import FileRollbackGuard
from privbo_plugins.store.vault import open_vault
from privbo_plugins.users import User, user_name


class _Loop:
    """What both kinds share: a vault, its guard, and what may be claimed."""

    def __init__(self, space: Space, vault: str | None, guard: Any, run_name: str) -> None:
        if (vault is None) != (guard is None):
            raise ValueError("Give vault= and guard= together: the file vouches for the vault.")
        self.space, self._vault, self._key = space, open_vault(vault), f"loop/{run_name}"

    def _begin(self, engine: Session | RewardSession, guard: str | None) -> None:
        self._engine = engine
        self._file = None if guard is None else FileRollbackGuard(guard, engine.run)
        if self._file is not None:
            engine.run.guarded_by(self._file)
        engine.run.note("what the loop itself logs, raises or sends is not covered")
        if reasons := "; ".join(self.guarantee().reasons):
            warnings.warn(f"Nothing is protected: {reasons}.", PrivacyWarning, stacklevel=3)

    def stored(self) -> StoredRun:
        """The run as its vault alone knows it: its algorithm, guarantee and report."""
        return run_named(self._vault, self._key)

    def guarantee(self) -> PrivacyGuarantee:
        """What may be claimed, from the vault's ledger, if it holds all that was seen of it."""
        with self._engine.run.transaction():
            pass  # it compares; a restored vault would claim what it remembers
        return self.stored().guarantee


class PrivateLoop(_Loop):
    """One loss (or score) a validation record, under mu-GDP; the vault keeps the proposals."""

    def __init__(
        self,
        config: CentralConfig,
        space: Space,
        *,
        maximize: bool = False,
        vault: str | None = None,
        guard: str | None = None,
        run_name: str = "records",
        **session: Any,
    ) -> None:
        super().__init__(space, vault, guard, run_name)
        self._session = Session.open(self._vault, self._key, config, maximize=maximize, **session)
        self._begin(self._session, guard)
        self._session.set_space(space)
        self._session.run.give_back([])  # what a crash left open

    @property
    def finished(self) -> bool:
        """Whether the plan is used up."""
        self._session.refresh()
        return self._session.finished

    def ask(self) -> tuple[str, dict[str, Any]]:
        """A key, and parameters to train and measure with; the training is charged."""
        key = uuid.uuid4().hex
        self._session.charge_training(key)
        return key, self.space.decode(self._session.ask(key).x)

    @retelling
    def tell(self, key: str, measured: Any) -> float:
        """What is released of the losses, or was released under their key before."""
        released, x = self._session.enter(key)
        if x is None:
            raise ValueError("ask() has handed out no such key.")
        if released is None:
            params = self.space.decode(x)
            released = self._session.tell(key, params, self.space, measured).value
        return released

    def recommend(self) -> dict[str, Any]:
        """Parameters that the releases recommend."""
        return self._session.recommendation()


class PrivateRewards(_Loop):
    """One user's reward per evaluation, each eps-LDP; the loop keeps the proposals itself."""

    def __init__(
        self,
        mechanism: LocalMechanism,
        space: Space,
        *,
        algorithm: str = "gp-ucb",
        maximize: bool = True,
        seed: int = 0,
        vault: str | None = None,
        guard: str | None = None,
        run_name: str = "rewards",
        **ledger: Any,
    ) -> None:
        super().__init__(space, vault, guard, run_name)
        found, low, high = entry(algorithm), mechanism.low, mechanism.high
        config = found.load_config()(low=low, high=high, noise=mechanism.noise)
        self._algorithm = found.load_algorithm()(config, space, maximize=maximize, seed=seed)
        self._worst, self._learnt = low if maximize else high, set[str]()
        self._out: dict[str, tuple[Evaluation, User]] = {}
        ledger["config"] = {**config.to_dict(), "algorithm": algorithm, "maximize": maximize}
        self._ledger = RewardSession(mechanism, self._vault, self._key, space=space, **ledger)
        self._begin(self._ledger, guard)
        self._asked = {} if self._file is None else self._file.noted()

    @retelling
    def ask(self, user: User) -> tuple[str, dict[str, Any]]:
        """A key, and parameters for this user, whose budget must allow for one more evaluation."""
        key, number = uuid.uuid4().hex, len(self._asked)
        self._ledger.check(key, user_name(user))
        evaluation = self._learned().ask(number, [one for one, _ in self._out.values()])
        self._asked[key] = [evaluation.x.tolist(), evaluation.epoch]
        if self._file is not None:
            self._file.note(key, self._asked[key])  # before there is any charge for it
        self._out[key] = evaluation, user_name(user)
        return key, self.space.decode(evaluation.x)

    @retelling
    def tell(self, key: str, measured: Any) -> float:
        """What is released of a reward, or was released under its key before."""
        if key in self._out:
            reward, (_, user) = as_reward(measured), self._out[key]
            self._ledger.release(key, reward, user, self._worst)
            del self._out[key]
        released = self._ledger.replay(key)
        if released is None:
            raise ValueError("This process has handed out no such key: ask() for another.")
        return released

    def _learned(self) -> Any:
        released = self._ledger.evaluations()
        for key, (x, epoch) in self._asked.items():
            if key in released and key not in self._learnt:
                self._algorithm.tell(Evaluation(np.array(x), epoch), released[key])
                self._learnt.add(key)
        return self._algorithm

    def recommend(self) -> dict[str, Any]:
        """The parameters with the largest posterior mean."""
        return self.space.decode(self._learned().recommendation())


def main() -> None:
    """Tunes a smoother on 300 secret records, and a volume on one answer of each of 300 users."""
    rng = np.random.default_rng(0)
    known, secret = rng.uniform(-1, 1, (2, 300))
    y_known, y_secret = (np.sin(6 * x) / 2 + rng.normal(0, 0.3, 300) for x in (known, secret))

    def losses(width: float) -> Any:
        near = np.exp(-(((secret[:, None] - known) / width) ** 2)) + 1e-9
        return (y_secret - near @ y_known / near.sum(1)) ** 2

    loop = PrivateLoop(GIBOConfig(mu=1.0), Space({"width": Float(0.01, 10, log=True)}))
    while not loop.finished:
        key, params = loop.ask()
        loop.tell(key, losses(**params))

    users = PrivateRewards(make_mechanism(1.0, value_range=(0, 1)), Space({"volume": Int(0, 10)}))
    for user, liked in enumerate(rng.normal(7, 1, 300)):
        key, params = users.ask(user)
        users.tell(key, abs(params["volume"] - liked) < 2)

    for one in (loop, users):
        print(f"{one.stored().algorithm} recommends {one.recommend()}\n\n{one.guarantee()}\n")


if __name__ == "__main__":
    main()
