"""What a ledger's host of a run on private rewards and its trials have in common.

The host imports this, and so it must not need Ray Tune: a host starts before the first trial does,
and Ray Tune takes longer to import than everything else that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.source import NoiseSource
from raytune_searchers._channel import Gone

USERS_LEDGER = Gone(
    lost=(
        "The ledger of this run's users is gone: it lay in the memory of a Ray actor, which "
        "ended with its driver or was killed. Nothing more can be released for this run, because "
        "nobody knows any longer who was asked how often; what it has published stays as private "
        "as it was declared to be. Start a new run with another search or ldp_trainable (the "
        "epsilons of users who are asked again add up), and give it a database to survive that: "
        "vault='sqlite:////private/folder/vault.db' or "
        "'env:NAME_OF_A_VARIABLE_WITH_A_POSTGRESQL_URL'."
    ),
    absent=(
        "No ledger is alive for this private trainable. Either it is gone (a ledger in memory "
        "ends with its driver; then nothing more can be released), or it was never started: make "
        "the trainable in the driver, with ldp_trainable or with the private method of the very "
        "search that suggests; after a restore, take search = type(search).from_experiment(path) "
        "and search.private(trainable), or give both the same vault= and run_name=."
    ),
)
"""What is said of a ledger of users."""


@dataclass(frozen=True)
class LedgerSettings:
    """Everything that a ledger's host needs to start or join a run; all of it public.

    Attributes:
        run: Name of the run.
        mechanism: What happens to a reward.
        user_budget: The most epsilon that one user may be charged in all.
        metric: Under which name trials report.
        maximize: Whether larger rewards are better.
        vault_id: Identity of the vault, if it must exist already.
        seen: How far the driver has seen the chain of releases: the ledger must hold it.
        user_delta: At which ``user_budget`` is meant.
    """

    run: str
    mechanism: LocalMechanism
    user_budget: float | None
    metric: str
    maximize: bool
    vault_id: str | None = None
    seen: tuple[int, str] = (0, "")
    user_delta: float = 0.0

    @property
    def worst(self) -> float:
        """Returns the value that NaN and infinity count as: the worst end of the range."""
        return self.mechanism.low if self.maximize else self.mechanism.high


@dataclass(frozen=True)
class Admission:
    """What a trial is told when it starts.

    Attributes:
        settings: The run.
        value: What was released of it before a crash, if anything.
        public: What it declared public before.
        noise: Test injection; it travels to trials only, in no pickle of a search or trainable.
    """

    settings: LedgerSettings
    value: float | None
    public: tuple[str, ...]
    noise: NoiseSource | None
