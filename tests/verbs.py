"""The verbs of all samplers and searchers, as one table: ``python -m tests.verbs --write``.

Every public name of a class that Optuna or Ray does not ask for is in it, or the test fails.
"""

from optuna.samplers import BaseSampler
from ray.tune.search import Searcher

import optuna_samplers
import raytune_searchers
from tests.contracts import pages

MODULE = "tests.verbs"
PAGE = pages.DOCS / "api.md"

SYSTEMS = {
    "DP-GIBO": ("DPGIBO",),
    "LDP GP-UCB": ("LDPGPUCB", "LDPTGPUCB", "LDPATAGPUCB", "LDPMoMAGPUCB"),
    "PO-GP-UCB": ("POGPUCB",),
    "DP-FTS-DE": ("DPFTSDE",),
    "DUETS": ("DUETS",),
}

VERBS = {
    "private": "Wraps the objective or the trainable, so that what it returns stays private.",
    "tell_private": "Tells a trial's per-record losses in an ask-and-tell loop.",
    "guarded": "A trial for an ask-and-tell loop that refuses to store what is private.",
    "replay": "Publishes what a crash kept from the study, without drawing it again.",
    "send": "Sends an agent's message of the round without waiting for its next trial.",
    "leave": "Leaves a federation for good; later trials are the agent's own.",
    "plan": "What a run will do and cost, before it starts.",
    "recommend": "The parameters that the releases so far recommend.",
    "finished": "Whether the plan is used up.",
    "guarantee": "What is protected, how much, for whom, and what is not.",
    "history": "What has been released so far, as data.",
    "status": "Where the run stands, JSON-ready.",
    "report": "Writes the guarantee and the pictures of a run as one HTML file.",
    "publish": "Shows note, recommendation and pictures in optuna-dashboard; also as a callback.",
    "purge": "Deletes the raw losses that a vault still holds, when a run is over.",
    "paper": "Makes the class as its paper publishes it.",
    "from_experiment": "The search of an experiment that Tune has saved.",
    "close": "Ends the actor that holds losses, ledger or server, if there is one.",
}
"""Meaning by name; what a name stands for, it stands for in every class."""

OF_ONE_HOST = {"mechanism", "link", "quiet", "n_startup", "left_out", "run"}
"""Attributes that say what an object was made with or has seen, no verbs."""

HOOKS = {"on_pause", "on_unpause"}
"""What a scheduler of Ray Tune calls of every searcher, although Tune's base class has it not."""


def classes():
    """(host, class) of every system."""
    found = {}
    for system, families in SYSTEMS.items():
        found[system] = [
            (host, getattr(package, family + suffix))
            for host, package, suffix in (
                ("Optuna", optuna_samplers, "Sampler"),
                ("Ray Tune", raytune_searchers, "Search"),
            )
            for family in families
        ]
    return found


def verbs_of(cls):
    """Public names that the host's own base does not have."""
    base = BaseSampler if issubclass(cls, BaseSampler) else Searcher
    return {name for name in dir(cls) if not name.startswith("_") and not hasattr(base, name)} - (
        OF_ONE_HOST | HOOKS
    )


def _having(known, verb):
    """The systems whose classes have the verb, or "all"."""
    told = [one for system, members in known.items() if (one := _part(system, members, verb))]
    for host in ("", " on Optuna", " on Ray Tune"):
        if told == [f"{system}{host}" for system in known]:
            return f"all{host}"
    return ", ".join(told)


def _part(system, members, verb):
    """A system by name, with what of it has the verb; empty for none of it."""
    hosts = [host for host, cls in members if verb in verbs_of(cls)]
    if not hosts or len(hosts) == len(members):
        return system if hosts else ""
    whole = [host for host, _ in members if host == hosts[0]]
    return f"{system} on {hosts[0]}" if hosts == whole else f"{system} (not all classes)"


def table():
    """The table in Markdown."""
    known = classes()
    lines = [(f"`{verb}`", meaning, _having(known, verb)) for verb, meaning in VERBS.items()]
    return pages.table(["verb", "what it does", "of"], lines)


if __name__ == "__main__":
    pages.main(MODULE, PAGE, table)
