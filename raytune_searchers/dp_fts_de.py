"""DP-FTS-DE as a Ray Tune searcher: a trial is one agent's round."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import ray
import ray.cloudpickle as cloudpickle

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.plan import FederationPlan, make_federation_plan
from privbo_plugins.algorithms.protocols import ATTEMPTS
from privbo_plugins.errors import UtilityWarning, VaultError, paid_for, warn
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.plots import FederationHistory, Report
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.privacy.settings import NoiseSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.reports import federation_report
from privbo_plugins.sessions.scheduler import HOPELESS, FailureCounts
from privbo_plugins.sessions.settings import RoundSettings
from privbo_plugins.settings import Count, Rule, again, integer, part, setting, settings, takes
from privbo_plugins.shown import Shown, TrialRecord
from privbo_plugins.spaces import varying
from privbo_plugins.status import status
from raytune_searchers._agents import (
    PAUSE,
    AgentHosts,
    Roster,
    check_rounds,
    checked_template,
    url_of,
)
from raytune_searchers._arguments import checked_run
from raytune_searchers._audit import Row, config_in, foreign, stored_in, value_in
from raytune_searchers._search import TuneSearch, merged
from raytune_searchers._settings import SearchSettings
from raytune_searchers._shell import (
    AGENT,
    RELEASED,
    ROUND,
    Agent,
    Finish,
    Objective,
    make_shell,
)
from raytune_searchers._space import TuneSpace, to_space
from raytune_searchers._trainable import Trainable
from raytune_searchers.hosts.agents import AgentSettings
from raytune_searchers.hosts.server import ServerHost, ServerSettings, Status

_MORE = "results hold more than an agent's name, its round and the number of rounds released"

_OUTSIDE = (
    "Wrap the function itself: tune.Tuner(search.private(objective), ...), and report nothing "
    "around it: what an agent evaluates is its secret."
)

_FAILED_NOTE = (
    "trials failed, which tells readers of Tune's results something of their agents; what "
    "an objective raises is withheld"
)

_LEFT_NOTE = "agents were left out after their host's process had ended"

_IDLE, _BUSY = 1.0, 0.05
"""Seconds that a suggestion waits for hosts: while no trial runs, and while some do."""


_Hosts = Annotated[
    int | str,
    Rule("'agent' or a number of processes >= 1", lambda x: x == "agent" or integer(1).holds(x)),
]


@settings(eq=False)
class _Settings:
    """Keywords of :class:`DPFTSDESearch`."""

    config: FederationConfig = setting(
        "The federation's public settings. Agents run ``n_startup`` trials before their "
        "first round.",
        kw_only=False,
    )
    search_space: Mapping[str, Any] = setting("Tune domains, nested or not, and constants.")
    mode: str = setting('"max" if large values are good, "min" if small ones are.', default="max")
    n_trials: Count = setting(
        "Trials of each agent, more than ``config.n_startup``.",
        default=40,
    )
    agents: Sequence[str] | None = setting(
        'Names of the agents, as many as ``config.n_agents``: letters, digits, "_", "-", '
        '"."; None for their numbers from 0. They are public.',
        default=None,
    )
    hosts: _Hosts = setting(
        'Number of processes that agents share, so many trials run at once; or "agent" for '
        "one each. Agents that share a host share a process and its memory: for owners who "
        'do not trust each other, take "agent". Hosts run on the driver\'s machine; a trial '
        "holds the CPU for them, and they are given no GPU.",
        default=2,
    )
    deadline: float | None = again(
        RoundSettings, "deadline", default=60.0, more="None waits for ever."
    )
    vault: str | Path | None = setting(
        "Where ledger and broadcasts are kept: None for the memory of the server's actor, "
        "which ends with the driver, or ``server.db``, "
        "``postgresql://user@host/db``, ``env:NAME``.",
        default=None,
    )
    agent_vaults: str | Path | None = setting(
        "Where each agent's trials are kept: None for its host's memory, or a path or URL "
        "with ``{agent}`` in it, such as ``/private/{agent}.db``, or ``env:NAME`` for "
        "one. Agents whose host ends go on from there.",
        default=None,
    )
    log_to: str | None = setting(
        "What objectives print, log and raise: None drops it, or a path with ``{agent}``, "
        'mode 0600; needs ``hosts="agent"``, because a process has one output. Ray\'s own '
        "logs never get it.",
        default=None,
    )
    seed: int | None = setting("Drives points and draws, never noise.", default=None)
    run_name: str | None = again(SearchSettings, "run_name", default=None)
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


class DPFTSDESearch(TuneSearch):
    """A whole federation in one experiment: each agent tunes its own objective on its own data.

    Agents learn from their own trials and from what a server broadcasts: sums of vectors that
    they send it, clipped and noised, so that what the others receive hides each agent's
    participation. Source: Dai, Low and Jaillet, *Differentially Private Federated Bayesian
    Optimization with Distributed Exploration*.

    A trial of Tune is one agent's round: its config and its results hold the tags ``agent`` and
    ``round``, and ``federation_round``, the number of rounds released so far. Parameters, values
    and models are the agent's secret: they stay in the process of its host, an actor, and in its
    own database if there is one. Readers of the experiment see which agent ran when, how
    long, and whether its trial failed.

    Results know one metric, ``federation_round``: leave out ``TuneConfig``'s metric, or give that
    one. ``ResultGrid.get_best_result`` means nothing here: an agent learns its best configuration
    through ``finish`` of :meth:`private`, or reads :func:`agent_trials`.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the server's database cannot be opened.

    Warns:
        UtilityWarning: If there are so few agents that the noise is likely to drown the signal.

    Example:
        >>> from ray import tune
        >>> search = DPFTSDESearch(
        ...     FederationConfig(n_agents=4, epsilon=4.0, n_rounds=3, n_startup=2),
        ...     search_space={"C": tune.loguniform(1e-4, 10)},
        ...     n_trials=5,
        ... )
        >>> private = search.private(lambda agent, config: -abs(config["C"] - agent))
        >>> # tune.Tuner(
        >>> #     private, tune_config=tune.TuneConfig(search_alg=search, num_samples=-1)
        >>> # ).fit()
        >>> # print(search.guarantee())
    """

    _HOST, _STATUS = ServerHost, "report"
    _OF_THIS_PROCESS = "_hosts _alone"
    _PLAIN = _BESIDE = _MORE
    _WRAP = _OUTSIDE
    _ENDS_WITH_HOST = False  # without their server agents go on alone
    _SEE_WHY = (
        "What an objective raises is withheld: give log_to= to keep it for the agents' owners, or "
        "call the bare function, which protects nothing: objective(agent, config)."
    )

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        config, run_name, seed = given.config, given.run_name, given.seed
        check_rounds(config, given.n_trials, given.deadline)
        self._config, self._trials, self._deadline = config, given.n_trials, given.deadline
        self._roster = Roster.checked(given)
        self._most_failures = max(HOPELESS, ATTEMPTS * config.n_agents)  # every agent's rounds
        self._lost: FailureCounts[tuple[int, int]] = FailureCounts()
        self._out: set[int] = set()
        super().__init__(
            part(
                given,
                SearchSettings,
                metric=RELEASED,
                seed=secrets.randbits(32) if seed is None else int(seed),
                run_name=None if given.vault is None else run_name,
            )
        )
        if run_name is not None and self._handle is None:
            self._run = checked_run(run_name, self._roster.vaults)
            self._attach(may_begin=True, noise=given.noise)
        FederationPlan(config, (), ()).warn_if_noise_dominates()
        # What agents tune is in no trial's config.
        self._tuned, self._param_space = self._param_space, {}

    # State ----------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """Name of the run in the databases."""
        return self._run

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        super()._attach(may_begin=may_begin, noise=noise)
        names = [f"{self._actor_name}/agents/{i}" for i in range(self._roster.n_hosts)]
        self._hosts = AgentHosts(self._roster, names, may_begin=may_begin, out=self._out)
        self._alone = False

    def _begin(self) -> None:
        """Has server and hosts begin: trials that a restored experiment resumes look for them."""
        super()._begin()
        if ray.is_initialized():
            self._hosts.begin(self._of_agents)

    # Tune's hooks ---------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **_spec: Any
    ) -> bool:
        """Takes nothing from the Tuner: what agents tune must not be in a trial's config.

        Raises:
            ValueError: If the Tuner has a ``param_space``, or another metric than results know.
        """
        if config:
            raise ValueError(
                "Give search_space= to DPFTSDESearch and no param_space= to the Tuner: Tune "
                "writes the latter, filled in, into every result, and here that is an agent's "
                f"secret. Got a param_space with {', '.join(map(str, config))}."
            )
        if metric not in (None, RELEASED):
            raise ValueError(
                f"Results of a federation know one metric, {RELEASED!r}, got metric={metric!r} "
                f"and mode={mode!r}: an agent's values are its secret. Leave both out of "
                "TuneConfig; mode= of the search says which values are good."
            )
        self._begin_fit(_spec)
        return True

    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Any]:  # noqa: ARG002
        """The agent with the fewest trials whose next one may begin: (agent, number)."""
        self._open()
        end = time.monotonic() + (_BUSY if self._here else _IDLE)
        while True:
            self._refresh()
            found = self._hosts.next(set(self._running().values()))
            if found is not None:
                self._hosts.change(found[0])
                return "ask", found
            if self._hosts.over(self._trials):
                return "finished", None
            if time.monotonic() > end:
                return "wait", None
            time.sleep(PAUSE)

    def _suggestion(self, trial_id: str) -> dict[str, Any]:
        agent, number = self._live[trial_id]
        return {AGENT: self._roster.names[int(agent)], ROUND: int(number) + 1}

    def _running(self) -> dict[str, int]:
        """The agent of each trial that is out.

        A trial that its host has finished is over, though Tune has more to do.
        """
        out = {trial: self._live[trial] for trial in self._here & set(self._live)}
        return {t: agent for t, (agent, k) in out.items() if not self._hosts.is_over(agent, k)}

    def _complete(self, trial_id: str, x: Any, result: Row, error: bool) -> bool:
        if x is not None:
            self._hosts.change(int(x[0]))
        if x is not None and error:
            self._lost.add((int(x[0]), int(x[1])), trial_id)
        if error:
            self._call("note", _FAILED_NOTE)
        self._audit(trial_id, result)
        return not error

    # What Tune shows ------------------------------------------------------------------------

    def _read(self, trial: str, row: Row) -> Shown:
        """Reads what a row, flattened, holds beside an agent's name and numbers of rounds."""
        names = foreign(row, RELEASED, (AGENT, ROUND)) - {AGENT, ROUND}
        agents = [row[name] for name in (AGENT, f"config/{AGENT}") if name in row]
        if any(
            type(agent) not in (int, str) or agent not in self._roster.names for agent in agents
        ):
            names.add(AGENT)
        rounds = [row[name] for name in (ROUND, f"config/{ROUND}") if name in row]
        rounds += [] if value_in(row, RELEASED) is None else [row[RELEASED]]
        most = max(self._trials, self._config.n_rounds)
        if any(type(number) is not int or not 0 <= number <= most for number in rounds):
            names.add(ROUND)
        return Shown(trial, None, dict.fromkeys(names), config_in(row))

    def _audit(self, trial_id: str, row: Row) -> TrialRecord:
        """No trial has a release of its own, and none may declare anything public."""
        record = TrialRecord(None, True, ())
        self._compare(self._read(trial_id, row), record)
        return record

    # Server and hosts -----------------------------------------------------------------------

    def _settings(self) -> ServerSettings:
        space, names = self._ready(), self._roster.names
        return ServerSettings(
            run=self._run,
            maximize=self._mode == "max",
            config=self._config,
            agents=tuple(map(str, names)) if isinstance(names[0], str) else None,
            space=space.public,
            deadline=self._deadline,
        )

    def _status(self) -> Status | None:
        """Asks where the rounds are; None if the server does not answer: agents go on alone."""
        try:
            status: Status = self._call("rounds")
            known = self._known
            known.see(status.head)
            if known.report is None or known.report["head"] != status.head:
                known.report = self._call("report", known.unaudited)
        except VaultError as error:
            if not self._alone:
                warn(f"The agents go on alone: {error}", UtilityWarning)
            self._alone = True
            return None
        return status

    @paid_for()
    def _refresh(self) -> None:
        """Learns from hosts where their agents are, and leaves out those whose host has ended."""
        status, skipped = self._status(), dict(sorted(self._lost.given_up()))
        for members, why in self._hosts.refresh(status, skipped, self._of_agents):
            names = ", ".join(str(self._roster.names[agent]) for agent in members)
            self._known.notes = (_LEFT_NOTE,)
            with suppress(VaultError):
                self._call("note", _LEFT_NOTE)
                for agent in members:
                    self._call("leave", agent)
            warn(f"These agents are left out: {names}. {why}", UserWarning)

    def _of_agents(self) -> AgentSettings:
        return AgentSettings(
            run=self._run,
            server=self._actor_name,
            config=self._config,
            members={},
            space=cloudpickle.dumps((self._space, self._tuned)),
            maximize=self._mode == "max",
            seed=int(self._seed or 0),
            trials=self._trials,
        )

    # What the user writes and reads ---------------------------------------------------------

    def private(self, objective: Objective, finish: Finish | None = None) -> Trainable:
        """Wraps the agents' objective for ``tune.Tuner``.

        Args:
            objective: From an agent (its name, or its number from 0) and a config to a number, on
                that agent's data. It runs in the agent's host; load the data inside: what it
                captures, Ray keeps in the cluster's memory. NaN is a trial without a value. What
                it raises is withheld; what it prints or logs goes to ``log_to``.
            finish: Called once in the host when an agent has done its trials, with the agent, its
                best config and its best value (both None if no trial had one), to keep the result
                where only the agent can read. A host that ends at this moment may not call it.

        Returns:
            A trainable that reports an agent's tags, and nothing else.

        Raises:
            ValueError: If one of them is no function.
        """
        for name, function in (("objective", objective), ("finish", finish)):
            if not callable(function) and not (name == "finish" and function is None):
                raise ValueError(
                    f"search.private takes {name} as a function, got a {type(function).__name__}."
                )
        return make_shell(objective, finish, self._roster.names, self._hosts.names)

    def guarantee(self, results: Iterable[Any] = ()) -> FederationGuarantee:
        """Claims what the ledger allows for all that this federation broadcasts.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``: results or configs that hold more than
                tags unprotect the run; what passed through this search was compared on the way.

        Raises:
            VaultError: If the server was in memory and has ended before anything was known of it.
        """
        return self._checked_report(stored_in(results))["guarantee"]  # type: ignore[no-any-return]

    def history(self) -> FederationHistory:
        """Returns what the server has broadcast; nothing of any agent's own trials.

        Raises:
            VaultError: If the server was in memory and has ended before anything was known of it.
        """
        from privbo_plugins.algorithms.dp_fts_de.plan import spent_by_round

        rounds = self._report().get("rounds", ())
        spent = spent_by_round(self._config, len(rounds))
        return FederationHistory(rounds, self._config.n_rounds, spent)

    def plan(self, *, seconds_per_trial: float | None = None) -> FederationPlan:
        """Says what the federation releases and costs each agent, from its public settings.

        Args:
            seconds_per_trial: How long a trial takes, if you know it: then the plan says how long
                all rounds do, where every agent has a process of its own.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        config = self._config
        return make_federation_plan(config).presented(seconds_per_trial, config.n_agents)

    def finished(self) -> bool:
        """Tells whether the server has released all its rounds: agents go on alone."""
        guarantee = self.guarantee()
        return guarantee.n_released >= guarantee.n_rounds

    def status(self) -> dict[str, Any]:
        """Tells where the rounds stand, JSON-ready: see :func:`privbo_plugins.status.status`.

        Nothing of any agent's own trials is in it.
        """
        guarantee = self.guarantee()
        return status(guarantee, guarantee.n_released, guarantee.n_rounds)

    def _page(self, results: Iterable[Any]) -> Report:
        guarantee = self.guarantee(results)
        title = f"Federation report: {self._run}"
        return federation_report(title, guarantee, self.history())

    @property
    def left_out(self) -> list[Agent]:
        """Agents whose host has ended without a database for their trials."""
        return [self._roster.names[i] for i in sorted(self._out)]

    def close(self) -> None:
        """Ends server and hosts; what was in memory is gone then, what is in databases is not."""
        super().close()
        self._hosts.end()


def agent_trials(
    agent_vaults: str | Path, agent: Agent, search_space: Mapping[str, Any], run: str
) -> list[tuple[dict[str, Any], float]]:
    """For the owner of an agent: what it has evaluated, read in the owner's own process.

    Args:
        agent_vaults: The agent's database, as given to :class:`DPFTSDESearch`.
        agent: Its name, or number.
        search_space: As given to the search.
        run: ``search.run``.

    Returns:
        (config, value) of every trial that has a value, in order.

    Raises:
        VaultError: If there is no such database.
        SpaceChangedError: If the run was over another space.

    Example:
        >>> # trials = agent_trials("sqlite:////private/{agent}.db", "oslo", space, "r")
        >>> # best = max(trials, key=lambda trial: trial[1])
    """
    space = varying(to_space(search_space), "search_space")
    url = url_of(str(checked_template(agent_vaults))).replace("{agent}", str(agent))
    history = AgentHistory(str(agent), space.public, vault=url, run_name=run, create=False)
    X, values = history.read()
    constants = dict(search_space)
    return [
        (merged(constants, space.suggestion(x)), float(value))
        for x, value in zip(X, values, strict=True)
    ]
