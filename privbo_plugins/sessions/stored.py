"""Reads the runs of a vault, and claims for them what the vault alone can tell.

Nothing is started, drawn or charged. A vault does not know what a study, an experiment or a
modeler shows beside the releases: each kind of run says so (:data:`NOT_KNOWN`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.registry import entry
from privbo_plugins.errors import TOGETHER, VaultError
from privbo_plugins.page import Report, Section, Table
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.privacy.local import stored_mechanism
from privbo_plugins.privacy.statement import legible
from privbo_plugins.privacy.words import WORDS
from privbo_plugins.reports import (
    federation_report,
    records_report,
    reward_history,
    reward_report,
    row_history,
    rows_report,
)
from privbo_plugins.sessions.broadcasts import broadcasts_of, claimed_of, published
from privbo_plugins.sessions.reader import LossReader
from privbo_plugins.sessions.rewards import STUDY, RewardSession
from privbo_plugins.sessions.rows import Curator, holds_answers, table_of
from privbo_plugins.sessions.run_settings import asked_of
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Space
from privbo_plugins.store.run import NEVER_COMPARED, Run
from privbo_plugins.store.vault import Vault

LABEL = "data label"
"""Kind of marks: on whose records a run is."""

NOT_KNOWN: Mapping[str, tuple[str, ...]] = {
    kind: tuple(text.format_map(WORDS) for text in texts)
    for kind, texts in WORDS["not_known"].items()
}
"""What a vault alone cannot know, by kind of run."""

_RAY = ("ray/", "ray-ldp/")
"""Prefixes of runs whose trials say that they begin, and are compared."""

_NO_CLAIM = (
    "{!r} holds one agent's own trials: they are that agent's secret, nothing of them is released "
    "from here, and so there is nothing to claim. Ask the vault of the federation's server."
)

_NO_PLACES = "A vault keeps no parameters of rewards: sampler.recommend(study) knows them."

_NO_MODEL = "A vault knows no model: the modeler's sampler.recommend(study) does."


_Told = tuple[PrivacyGuarantee, Callable[[str], Report] | None]
"""The claim of a run, and what makes its report of a title; None before anything is released."""


@dataclass(frozen=True)
class StoredRun:
    """One run of a vault.

    Attributes:
        vault: Where it lies.
        name: What its host calls it.
        run_id: Its identity.
        settings: What it was started with.
        frozen: What its first release has fixed; empty before that.
    """

    vault: Vault
    name: str
    run_id: str
    settings: Mapping[str, Any]
    frozen: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Its name, in one line that steers no terminal."""
        return legible(self.name + f" (study {self.study})" * (self.study is not None))

    @property
    def study(self) -> str | None:
        """The name of its study, where its own is a code."""
        return self._mark(STUDY)

    @property
    def host_name(self) -> str:
        """Its study's name, or what follows the host's prefix in its own."""
        return self.study or self.name.partition("/")[2]

    @property
    def kind(self) -> str:
        """A key of :data:`NOT_KNOWN`."""
        known = set(self.settings)
        for kind, names in _MARKS.items():
            if names <= known:
                return kind
        raise VaultError(
            f"The vault holds {self.name!r} with settings that this version does not know. Read "
            "it with the version that started it."
        )

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that it runs; of the mechanism where the vault knows no other."""
        named = ("algorithm", "mechanism", "population")
        told = next((self.settings[name] for name in named if name in self.settings), "")
        config = self.settings.get("config")
        asked = config.get("algorithm") if isinstance(config, Mapping) else None
        return asked if isinstance(asked, str) else str(told)

    @property
    def not_known(self) -> tuple[str, ...]:
        """Lists what the vault alone cannot know of it."""
        return NOT_KNOWN[self.kind]

    @property
    def label(self) -> str | None:
        """The label of its data; None if it has none."""
        return self._mark(LABEL)

    def marks(self, kind: str) -> tuple[str, ...]:
        """Lists the facts of a kind that the vault holds of it."""
        return self._run.marks(kind)

    def _mark(self, kind: str) -> str | None:
        return next(iter(self.marks(kind)), None)

    @property
    def n_releases(self) -> int:
        """Number of releases; of an agent's own trials, which are none, zero."""
        with self.vault.transaction(self.run_id) as tx:
            return tx.n_released()

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """The claim for it, as far as the vault knows.

        Raises:
            ValueError: If it is an agent's own, or of an algorithm that is not registered here.
            VaultError: If the vault is damaged, or of a version that this one does not know.
        """
        return self._told[0]

    def report(self) -> Report:
        """The page for people.

        Raises:
            ValueError: As for :attr:`guarantee`, or if nothing has been released yet.
            VaultError: As there.
            ImportError: If the ``viz`` extra is not installed, when it is written.
        """
        _, make = self._told
        if make is None:
            raise ValueError(f"Nothing has been released for {self.name!r} yet.")
        made = make(f"Private tuning report: {self.name}")
        with self.vault.transaction("") as tx:
            head = tx.head()
        facts = [
            ("kind", self.kind),
            ("algorithm or mechanism", self.algorithm),
            ("data", self.label or "not labelled"),
            ("head of the ledger", f"{head.digest} (line {head.n})"),
            ("how to check the claim", "privbo certificate, and privbo verify"),
        ]
        unknown = Table((), [(fact,) for fact in self.not_known])
        return replace(made, sections=[
            Section("What was run", Table((), facts)),
            Section("What this vault alone cannot know", unknown),
            *made.sections,
        ])  # fmt: skip

    @cached_property
    def _run(self) -> Run:
        return Run(self.vault, self.run_id, self.settings, begun_here=False)

    @cached_property
    def _told(self) -> _Told:
        if self.kind == "agent":
            raise ValueError(_NO_CLAIM.format(self.name))
        told: _Told = getattr(self, f"_{self.kind}")()
        return told

    @cached_property
    def session(self) -> LossReader:
        """Reads a run of kind "records"."""
        own = self.settings
        config = entry(own["algorithm"]).load_config().from_dict(own["config"])
        session = LossReader(self._run, config, seed=own["seed"], maximize=own["maximize"])
        if self.frozen:
            session.set_space(Space.from_dict(self.frozen["space"]))
        return session

    @cached_property
    def rewards(self) -> RewardSession:
        """Reads a run of kind "rewards"."""
        own = self.settings
        limits = {name: own[name] for name in ("user_budget", "user_delta")}
        return RewardSession(
            stored_mechanism(own), self.vault, self.name, **limits, **asked_of(own)
        )

    def _records(self) -> _Told:
        session = self.session
        entered = session.run.entered() or not self.name.startswith(_RAY)
        reasons = [] if entered else ["no private trial has run"]
        guarantee = session.guarantee([*reasons, *self._unseen])

        if session.space is None:
            return guarantee, None

        def report(title: str) -> Report:
            history = session.history()
            known = session.recommendation() if history.values or len(history.path) else None
            return records_report(title, guarantee, history, known)

        return guarantee, report

    @property
    def _unseen(self) -> list[str]:
        """Tells why a searcher of Ray Tune would claim nothing of a run without marks."""
        return [NEVER_COMPARED] * (self.name.startswith(_RAY) and bool(self._run.uncompared()))

    def _rewards(self) -> _Told:
        ledger = self.rewards
        released = list(ledger.evaluations().values())
        guarantee = ledger.guarantee(
            len(released), users_named=ledger.users_named, reasons=self._unseen
        )
        history = reward_history(None, [(None, value) for value in released], ledger.mechanism)
        return guarantee, lambda title: reward_report(title, guarantee, history, _NO_PLACES)

    def _federation(self) -> _Told:
        settings = dict(self.settings)
        z = settings.pop("noise_multiplier")  # the one that rounds were drawn with
        config = evolve(FederationConfig.from_dict(settings), epsilon=None, z=z)
        guarantee = claimed_of(self._run, config, held=False)
        history = published(config, broadcasts_of(self._run))
        return guarantee, lambda title: federation_report(title, guarantee, history)

    def _rows(self) -> _Told:
        curator = Curator.resume(
            vault=self.vault.handle, run_name=table_of(self.name) or self.name
        )
        guarantee, manifest = curator.guarantee(), curator.manifest

        if manifest is None:
            return guarantee, None

        def report(title: str) -> Report:
            history = row_history(
                list(curator.answers().items()),
                maximize=None,
                answer_variance=manifest.answer_variance,
            )
            return rows_report(title, guarantee, history, manifest.to_dict(), _NO_MODEL)

        return guarantee, report


_MARKS: Mapping[str, set[str]] = {
    "records": {"algorithm", "config", "maximize", "seed"},
    "rewards": {"mechanism", "epsilon", "delta", "low", "high", "user_budget", "user_delta"},
    "federation": {"n_agents", "n_rounds", "noise_multiplier"},
    "rows": {"mechanism", "n", "d", "norm_bound"},
    "agent": {"space"},
}
"""Settings by which a run of each kind is known."""


def runs_of(vault: Vault) -> list[StoredRun]:
    """All runs of a vault, by name; the answers of a released table count as its own."""
    with vault.transaction("") as tx:
        found = []
        for name in sorted(tx.hosts()):
            tx.run_id = tx.run_of_host(name) or ""
            settings = tx.settings()
            if settings is not None and not holds_answers(name):
                found.append(StoredRun(vault, name, tx.run_id, settings, tx.frozen()))
    return found


def run_named(vault: Vault, name: str | None) -> StoredRun:
    """The run of a name, of what follows the host's prefix in it, of its study, or the only one.

    Raises:
        ValueError: If there is none, or more than one; the text lists them.
    """
    runs = runs_of(vault)
    found = [run for run in runs if name in (None, run.name)]
    short = f"/{name}", f":{name}"
    found = found or [run for run in runs if run.study == name or run.name.endswith(short)]
    if len(found) == 1:
        return found[0]
    told = ", ".join(repr(run.title) for run in runs) or "no run at all"
    asked = "--run was not given" if name is None else f"--run={name!r} names none or several"
    known = [] if found else [one for run in runs for one in (run.name, run.host_name)]
    meant = [f" Did you mean {legible(one)!r}?" for one in get_close_matches(name or "", known, 1)]
    told = f"The vault holds {told}, and {asked}.{''.join(meant)} Give one of these names."
    raise ValueError(told + f" {TOGETHER}." * (len(runs) > 1))
