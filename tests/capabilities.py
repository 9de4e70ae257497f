"""Lists every capability with the tests that prove it: ``python -m tests.capabilities --write``.

The page docs/capabilities.md is made of the tables below. tests/test_capabilities.py compares them
with the registry, with the public names of the packages and with the files that they name, so a
capability or its proof cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.contracts import pages

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "capabilities.md"
MODULE = "tests.capabilities"

OPTUNA, RAY = "tests/optuna_samplers", "tests/raytune_searchers"
ENGINE, CONTRACTS = "tests/engine", "tests/contracts"


class Row(NamedTuple):
    """One capability.

    Attributes:
        what: In one phrase.
        names: Public names that give it; each must exist.
        proofs: Test files; "file: word" names a word that must stand in the file.
    """

    what: str
    names: Sequence[str]
    proofs: Sequence[str]


class Hosted(NamedTuple):
    """One algorithm of the registry, or a wrapper, on both hosts.

    Attributes:
        what: The algorithm's name in the registry, or what the wrapper is for.
        system: In words.
        optuna: Its public name there.
        ray: Its public name there.
        on_optuna: Tests that prove it there.
        on_ray: Tests that prove it there.
    """

    what: str
    system: str
    optuna: str
    ray: str
    on_optuna: Sequence[str]
    on_ray: Sequence[str]


REWARDS = [f"{OPTUNA}/test_ldp_lifecycle.py", f"{CONTRACTS}/test_leaks_optuna.py"]
RAY_REWARDS = [f"{RAY}/test_ldp_main_job.py", f"{RAY}/test_ldp_faults.py"]

SYSTEMS = [
    Hosted(
        "dp-gibo",
        "tunes on per-record losses of one team",
        "DPGIBOSampler",
        "DPGIBOSearch",
        [f"{OPTUNA}/test_lifecycle.py", f"{OPTUNA}/test_processes.py"],
        [f"{RAY}/test_main_job.py", f"{RAY}/test_faults.py", f"{RAY}/test_same_sequence.py"],
    ),
    Hosted(
        "released-means",
        "makes any sampler or searcher centrally private",
        "private_objective",
        "private_trainable",
        [f"{OPTUNA}/test_private_objective.py"],
        [f"{RAY}/test_private_trainable.py"],
    ),
    Hosted(
        "gp-ucb",
        "tunes on one privatised answer a user",
        "LDPGPUCBSampler",
        "LDPGPUCBSearch",
        REWARDS,
        RAY_REWARDS,
    ),
    Hosted(
        "tgp-ucb",
        "the same with truncated rewards, as published",
        "LDPTGPUCBSampler",
        "LDPTGPUCBSearch",
        REWARDS,
        RAY_REWARDS,
    ),
    Hosted(
        "ata-gp-ucb",
        "the same with adaptive truncation, as published",
        "LDPATAGPUCBSampler",
        "LDPATAGPUCBSearch",
        REWARDS,
        RAY_REWARDS,
    ),
    Hosted(
        "moma-gp-ucb",
        "the same with medians of means, as published",
        "LDPMoMAGPUCBSampler",
        "LDPMoMAGPUCBSearch",
        REWARDS,
        RAY_REWARDS,
    ),
    Hosted(
        "po-gp-ucb",
        "a modeler chooses rows of a curator's released table",
        "POGPUCBSampler",
        "POGPUCBSearch",
        [f"{OPTUNA}/test_po_gp_ucb.py"],
        [f"{RAY}/test_po_gp_ucb.py"],
    ),
    Hosted(
        "dp-fts-de",
        "agents of a federation share noisy sums alone",
        "DPFTSDESampler",
        "DPFTSDESearch",
        [f"{OPTUNA}/test_federated.py", f"{OPTUNA}/test_federated_crash.py"],
        [f"{RAY}/test_federated.py", f"{RAY}/test_federated_faults.py"],
    ),
    Hosted(
        "duets",
        "many agents tune one objective and send few numbers",
        "DUETSSampler",
        "DUETSSearch",
        [f"{OPTUNA}/test_duets.py"],
        [f"{RAY}/test_duets.py"],
    ),
    Hosted(
        "any sampler, local",
        "makes any sampler or searcher locally private",
        "ldp_objective",
        "ldp_trainable",
        [f"{OPTUNA}/test_ldp_lifecycle.py: ldp_objective"],
        [f"{RAY}/test_ldp_main_job.py: ldp_trainable"],
    ),
    Hosted(
        "an algorithm of your own",
        "a registered algorithm runs on both hosts without a class of its own",
        "PrivateSampler",
        "PrivateSearch",
        [f"{OPTUNA}/test_from_outside.py"],
        [f"{RAY}/test_from_outside.py"],
    ),
    Hosted(
        "PrivateSearch for scikit-learn",
        "an estimator like GridSearchCV, whose trials run on either host",
        "sklearn_search.PrivateSearch",
        "sklearn_search.PrivateSearch",
        ["tests/sklearn_search/test_search.py", "tests/sklearn_search/test_estimator_checks.py"],
        [f"{RAY}/test_sklearn_search.py"],
    ),
]

USES = [
    Row(
        "losses of other records, or in another order, are refused",
        ["record_ids="],
        [f"{OPTUNA}/test_silent_mistakes.py: record_ids", f"{RAY}/test_hosts.py: record_ids",
         "tests/independence/test_doors.py: record_ids"],
    ),
    Row(
        "losses, scores and per-record metrics of models, with their bounds",
        ["privbo_plugins.losses"],
        [f"{ENGINE}/test_losses.py"],
    ),
    Row(
        "ask and tell",
        ["tell_private", "guarded", "replay"],
        [
            f"{OPTUNA}/test_lifecycle.py: tell_private",
            f"{OPTUNA}/test_dashboard_values.py: replay",
        ],
    ),
    Row("a loop without a host", [], ["tests/examples/test_any_loop.py"]),
    Row(
        "public metrics beside a private value",
        ["report_public"],
        [f"{RAY}/test_closing.py: report_public", f"{RAY}/test_shown.py"],
    ),
    Row(
        "a curator answers trials on the host",
        ["answer_trials", "answering"],
        [f"{OPTUNA}/test_po_gp_ucb.py: answer_trials", f"{RAY}/test_po_gp_ucb.py: answering"],
    ),
    Row(
        "a federation in one process, over a network, and in trials of Ray",
        ["FederatedServer", "FederationConfig", "run_federated", "agent_trials", "LocalLink",
         "RemoteLink", "connect", "Link", "Alone", "Participant", "calibrate"],
        [f"{ENGINE}/test_federation_server.py", f"{ENGINE}/test_federation_remote.py",
         f"{OPTUNA}/test_federated_network.py", f"{RAY}/test_federated.py: agent_trials"],
    ),
    Row(
        "a masked federation, whose server sees a noisy sum alone",
        ['trust="aggregate"'],
        [f"{ENGINE}/test_aggregate.py", f"{ENGINE}/test_aggregate_audit.py"],
    ),
    Row(
        "an agent sends early, or leaves",
        ["send", "leave"],
        [f"{OPTUNA}/test_federated.py: .send(", f"{OPTUNA}/test_federated.py: .leave("],
    ),
    Row(
        "a plan before any data",
        ["plan"],
        [f"{ENGINE}/test_plan.py", f"{ENGINE}/test_reward_plan.py",
         f"{ENGINE}/test_table_plan.py"],
    ),
    Row("the plan names a better method", [], [f"{ENGINE}/test_plan.py: advice"]),
    Row("settings of the papers", ["paper"], [f"{CONTRACTS}/test_settings.py: paper("]),
    Row("a search space declared in advance, constants included", ["search_space="],
        [f"{CONTRACTS}/test_leaks_constants.py: search_space="]),
    Row("choices are selected by released values", [], [f"{ENGINE}/test_choices.py"]),
    Row("few parameters with little noise are searched by released values", [],
        [f"{ENGINE}/test_value_search.py"]),
    Row("a clipping norm that adapts privately", ["clipping_norm="],
        [f"{ENGINE}/test_session.py: adaptive", f"{ENGINE}/test_plan.py: adaptive"]),
    Row("local mechanisms: Laplace, Duchi, piecewise, hybrid, Gaussian", [],
        [f"{ENGINE}/test_local_mechanisms.py"]),
    Row("arms with a known covariance or features", ["kernel_matrix="],
        [f"{OPTUNA}/test_ldp_lifecycle.py: kernel_matrix"]),
    Row("a released table, answers as they are or randomised", ["neighbor_distance=",
        "outcome_epsilon="], [f"{ENGINE}/test_po_gp_ucb_curator.py: outcome_epsilon"]),
    Row("rounds on the server's clock, which hide presence", ["hold=True"],
        [f"{ENGINE}/test_federation_server.py: hold=True"]),
    Row("an agent refuses a server with other settings; certificates of institutions",
        ["agreed=", "client_ca"],
        [f"{ENGINE}/test_federation_remote.py: agreed=",
         f"{ENGINE}/test_federation_remote.py: client_ca"]),
    Row("a vault by URL, or by a variable that holds it", ["vault=", "env:NAME"],
        [f"{ENGINE}/test_vault.py", f"{ENGINE}/test_cli.py: env:"]),
    Row("conditional parameters, flattened", [], [f"{OPTUNA}/test_conditional.py"]),
    Row(
        "the search of a saved experiment, and its end",
        ["from_experiment", "close"],
        [f"{RAY}/test_faults.py: from_experiment", f"{RAY}/test_lifetimes.py"],
    ),
    Row("several nodes of Ray", [], [f"{RAY}/test_cluster.py"]),
    Row(
        "what a run recommends, its history, whether it is finished, where it stands",
        ["recommend", "history", "finished", "status"],
        [f"{CONTRACTS}/test_verbs.py", f"{CONTRACTS}/test_runs.py", f"{ENGINE}/test_status.py"],
    ),
]  # fmt: skip

PROMISES = [
    Row(
        "a claim with neighbours, population and what is not covered",
        ["guarantee"],
        [f"{CONTRACTS}/test_guarantee.py", f"{CONTRACTS}/test_guarantee_claims.py"],
    ),
    Row("epsilons agree with independent accountants", [], [f"{ENGINE}/test_accountant.py"]),
    Row(
        "no figure is smaller than the ledger's",
        [],
        [f"{CONTRACTS}/test_claims_cut_off.py", f"{RAY}/test_behind.py"],
    ),
    Row(
        "certificates that others verify",
        ["privbo certificate", "privbo verify"],
        [f"{ENGINE}/test_certificate.py", f"{OPTUNA}/test_verified_study.py"],
    ),
    Row(
        "losses of several runs on the same records are added up",
        ["privbo label"],
        [f"{ENGINE}/test_certificate.py: label", f"{CONTRACTS}/test_several_runs.py"],
    ),
    Row(
        "reports as one HTML file",
        ["report"],
        [f"{CONTRACTS}/test_runs.py", f"{ENGINE}/test_report_pages.py"],
    ),
    Row(
        "pictures, note and mark in optuna-dashboard",
        ["publish"],
        [f"{OPTUNA}/test_publish.py", f"{OPTUNA}/test_dashboard.py"],
    ),
    Row("TensorBoard and MLflow show releases alone", [], [f"{RAY}/test_tune_matrix.py"]),
    Row(
        "a wrapped objective stores no raw loss, in no exception, log or frame",
        ["private"],
        [f"{CONTRACTS}/test_leaks_optuna.py", f"{CONTRACTS}/test_leaks_ray.py",
         f"{CONTRACTS}/test_leaks_exceptions.py", f"{CONTRACTS}/test_leaks_frames.py",
         f"{CONTRACTS}/test_leaks_vault.py", f"{CONTRACTS}/test_leaks_cli.py",
         "tests/engine/test_sealing.py", "tests/sklearn_search/test_leaks.py"],
    ),
    Row("raw losses are deleted after a run", ["purge"], [f"{CONTRACTS}/test_leaks_vault.py"]),
    Row(
        "one record decides nothing but its releases",
        [],
        ["tests/independence/test_independence.py", "tests/independence/test_doors.py",
         "tests/sklearn_search/test_independence.py"],
    ),
    Row(
        "empirical audits of every mechanism",
        [],
        [f"{ENGINE}/test_audit.py", f"{ENGINE}/test_local_audit.py",
         f"{ENGINE}/test_federated_audit.py", f"{ENGINE}/test_aggregate_audit.py",
         f"{ENGINE}/test_duets_audit.py", f"{ENGINE}/test_po_gp_ucb_audit.py"],
    ),
    Row(
        "what a host shows is audited beside the ledger",
        [],
        [f"{OPTUNA}/test_endings.py", f"{RAY}/test_audit.py"],
    ),
    Row(
        "a release is charged once, drawn once and replayed after a crash",
        [],
        [f"{CONTRACTS}/test_faults_crash.py", f"{ENGINE}/test_release_model.py",
         f"{RAY}/test_faults.py"],
    ),
    Row(
        "a vault that was put back is noticed",
        [],
        [f"{CONTRACTS}/test_faults_put_back.py", f"{ENGINE}/test_rollback_guard.py"],
    ),
    Row(
        "PostgreSQL, and many workers on it",
        [],
        [f"{OPTUNA}/test_hammered.py", f"{OPTUNA}/test_processes.py: postgres"],
    ),
    Row(
        "trainings are charged to the training records",
        ["training_mu="],
        [f"{ENGINE}/test_session.py: training_mu", f"{OPTUNA}/test_lifecycle.py: training_mu"],
    ),
    Row(
        "an epsilon and a delta that were asked for are not exceeded",
        ["epsilon=", "delta="],
        [f"{OPTUNA}/test_asked_figures.py"],
    ),
    Row(
        "a user's evaluations compose over all runs of a vault",
        ["user_delta=", "user_budget="],
        [f"{ENGINE}/test_figures.py: user_delta"],
    ),
    Row(
        "users are charged under one name, up to their budget",
        ["user_id="],
        [f"{ENGINE}/test_rewards.py", f"{ENGINE}/test_users.py"],
    ),
    Row("damaged input from outside is refused", [], ["tests/fuzz/test_parsers.py"]),
]  # fmt: skip

COMMANDS = [
    *[Row("", [f"privbo plan {kind}"], [f"{ENGINE}/test_cli.py"])
      for kind in ("dp-gibo", "rewards", "federation")],
    *[Row("", [f"privbo {name}"], [f"{ENGINE}/test_cli.py"]) for name in ("guarantee", "report")],
    *[Row("", [f"privbo {name}"], [f"{ENGINE}/test_certificate.py"])
      for name in ("certificate", "verify", "label")],
    *[Row("", [f"privbo curator {name}"], [f"{ENGINE}/test_curator_cli.py"])
      for name in ("release", "answer", "report")],
    Row("", ["privbo federation serve"],
        [f"{ENGINE}/test_cli.py", f"{ENGINE}/test_federation_proxy.py"]),
]  # fmt: skip

_RUN = "tests/examples/test_examples.py"
_APPLIED = "tests/examples/test_applications.py"

EXAMPLES = {
    "any_loop": "tests/examples/test_any_loop.py: any_loop",
    "clinical": f"{_APPLIED}: clinical",
    "demo": f"{_RUN}: examples.demo",
    "demo_distributed": f"{_RUN}: demo_distributed",
    "demo_federated": f"{_RUN}: demo_federated",
    "demo_federated_ray": f"{_RUN}: demo_federated_ray",
    "demo_local": f"{_RUN}: demo_local",
    "demo_outsourced": f"{_RUN}: demo_outsourced",
    "demo_ray": f"{_RUN}: demo_ray",
    "demo_sklearn": f"{_RUN}: demo_sklearn",
    "handwriting": f"{_APPLIED}: handwriting",
    "loans": f"{_APPLIED}: loans",
    "torch_ray": f"{_RUN}: torch_ray",
}
"""Programs of examples/ by name: the demos of every system, and the applications."""


def rows() -> list[Row]:
    """Every row but those of the systems."""
    return [*USES, *PROMISES, *COMMANDS]


def proofs() -> Iterator[str]:
    """Every proof that a table names."""
    for one in SYSTEMS:
        yield from (*one.on_optuna, *one.on_ray)
    for row in rows():
        yield from row.proofs
    yield from EXAMPLES.values()


def _links(named: Sequence[str]) -> str:
    files = dict.fromkeys(proof.partition(": ")[0] for proof in named)
    return ", ".join(f"[{Path(file).stem}](../{file})" for file in files)


def _names(row: Row) -> str:
    return ", ".join(f"`{name}`" for name in row.names)


def _of_the_hosts() -> str:
    """What of Optuna and Ray Tune is tried with every system, by the names of the matrices."""
    from tests.contracts import optuna_matrix, tune_matrix

    lines = []
    for host, matrix, file in (
        ("Optuna", optuna_matrix.ROWS, f"{CONTRACTS}/test_optuna_matrix.py"),
        ("Ray Tune", tune_matrix.ROWS, f"{RAY}/test_tune_matrix.py"),
    ):
        found: list[str] = [one.name for one in matrix]
        lines.append([host, ", ".join(found), _links([file])])
    return pages.table(["host", "tried with every system", "test"], lines)


def table() -> str:
    """All tables in Markdown."""
    systems = [
        [f"`{s.what}`: {s.system}", f"`{s.optuna}`: {_links(s.on_optuna)}",
         f"`{s.ray}`: {_links(s.on_ray)}"]
        for s in SYSTEMS
    ]  # fmt: skip
    parts = {
        "Systems": pages.table(["system", "Optuna", "Ray Tune"], systems),
        "Uses": pages.table(
            ["capability", "names", "tests"],
            [[row.what, _names(row), _links(row.proofs)] for row in USES],
        ),
        "Promises": pages.table(
            ["capability", "names", "tests"],
            [[row.what, _names(row), _links(row.proofs)] for row in PROMISES],
        ),
        "Commands": pages.table(
            ["command", "tests"], [[_names(row), _links(row.proofs)] for row in COMMANDS]
        ),
        "Demos and applications": pages.table(
            ["program", "test"],
            [
                [f"`python -m examples.{name}`", _links([proof])]
                for name, proof in EXAMPLES.items()
            ],
        ),
        "Features of the hosts": _of_the_hosts(),
    }
    return "\n\n".join(f"## {head}\n\n{part}" for head, part in parts.items())


if __name__ == "__main__":
    pages.main(MODULE, PAGE, table)
