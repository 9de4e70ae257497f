"""Certificates: what may be claimed for runs of a vault, as a file that others can check.

A certificate is its JSON and the head of the vault's log (:mod:`privbo_plugins.store.run`), from
which follows what was released since. To check one, it is made again from the vault, and both are
compared part by part (``privbo certificate``, ``privbo verify``). The vault notes the digest of
each certificate that it issues: one in which anything was changed is none of them.

Its form is :data:`SCHEMA`'s, a JSON schema that comes with the package. Keys that it does not name
are refused, so that nothing can be added to a certificate under the claim's cover.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

from privbo_plugins import __version__
from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.guarantee import Guarantee, PrivacyGuarantee, of_all
from privbo_plugins.privacy.statement import Statement, legible
from privbo_plugins.sessions.rows import answers_of
from privbo_plugins.sessions.stored import LABEL, StoredRun, runs_of
from privbo_plugins.store.log import SPLIT, hashed
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import Vault

FORMAT = "privbo-certificate-1"

ISSUED = "certificate"
"""Kind of marks: which certificates a vault has issued."""

SCHEMA = "certificate.schema.json"
"""The schema's file in the package."""

_ONE, _ALL = "the run", "all runs with the data label"
"""What a certificate is of."""

_LONGEST_LABEL = 80

_LOOKS = 5
"""How often a certificate is made anew because a worker has released meanwhile."""

_SHORT = 8
"""Characters of an identity that are public: too few to try out which values were released."""

_HOW = (
    "privbo verify CERTIFICATE --vault URL compares every line with the ledger, with --study "
    "and --study-name what an Optuna study shows."
)

_NO_SUM = (
    "{!r} names runs of several kinds, or of a kind whose figures are not added here: {}. Only "
    "runs on per-record losses add up under a label; users' rewards are added up over the whole "
    "vault already. Ask for the others one by one, with --run."
)

_OTHER_SPLITS = (
    "the runs have held out different records, and one of validation records bounds nothing for "
    "those that trained, so no figure holds for all of them"
)


class Line(NamedTuple):
    """Says what a check has found of one part; it agrees, differs, or (None) was not compared."""

    what: str
    agrees: bool | None
    found: str


@dataclass(frozen=True)
class Certificate:
    """Says what may be claimed for runs of a vault, in a form that others can check.

    Attributes:
        facts: As :data:`SCHEMA` has them.

    Example:
        >>> Certificate.of([]).facts["runs"]
        Traceback (most recent call last):
        ValueError: A certificate needs at least one run.
    """

    facts: Mapping[str, Any]

    @classmethod
    def of(cls, runs: Sequence[StoredRun], label: str | None = None) -> Certificate:
        """Makes the certificate of some runs of a vault as it is now, and writes nothing.

        Args:
            runs: Which ones; several must be on per-record losses.
            label: Of the data that they are on; None for that of the one run, if it has one.

        Raises:
            ValueError: If there is none, what they claim cannot be added up, or they release all
                the time.
        """
        if not runs:
            raise ValueError("A certificate needs at least one run.")
        vault = runs[0].vault
        for _ in range(_LOOKS):
            with vault.transaction("") as tx:
                head = tx.head()
            known = {run.run_id: run for run in runs_of(vault)}
            own = [known[run.run_id] for run in runs]  # anew: each remembers what it was asked
            facts = _facts(own, label, head)
            with vault.transaction("") as tx:
                if not _since(tx, head.n, own):
                    return cls(json.loads(json.dumps(facts, allow_nan=False)))
        raise ValueError(
            "Workers release faster than a certificate can be made of one moment. Ask again, or "
            "once they have stopped."
        )

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Reads what :meth:`to_json` has written.

        Raises:
            ValueError: If it is none, or has other fields than a certificate.
        """
        try:
            found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_once)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(
                f"This is no certificate: its format must be {FORMAT!r}, and each field must be "
                "there once."
            )
        made, fields = cls(found), schema()["properties"]
        try:
            readable = found.keys() == fields.keys() and made.to_markdown() and _parts(found)
            LogHead.of(found["ledger"]["lines"], found["ledger"]["head"], [])
        except (AttributeError, KeyError, TypeError, ValueError):
            readable = False
        if not readable:
            raise ValueError(
                "This certificate has fields that none has, or lacks some: it must hold "
                f"{', '.join(sorted(fields))}. Give the file as it was written."
            )
        return made

    @property
    def digest(self) -> str:
        """The hash that the vault notes when it issues this certificate."""
        return hashed(json.dumps(self.facts, sort_keys=True))

    def statement(self) -> Statement:
        """The claim, and how to check it."""
        facts = self.facts
        told = Statement.from_dict(facts["statement"])
        box = [
            ("Study or studies", "; ".join(run["run"] for run in facts["runs"])),
            ("Data", facts["data_label"] or "not labelled"),
            ("Covers", facts["covers"]),
            ("Date", facts["issued"]),
        ]
        more = [
            ("Made by", f"privbo-plugins {facts['version']}"),
            ("Ledger", f"{facts['ledger']['lines']} lines, head {facts['ledger']['head']}"),
            ("How to check it", facts["check"]),
        ]
        unknown = ("What the vault alone cannot know", list(facts["not_known"]))
        lists, folded = [*told.lists, unknown], [*told.folded, *more]
        return replace(told, rows=[*told.rows, *box], lists=lists, folded=folded)

    def to_json(self) -> str:
        """The file that can be checked."""
        return json.dumps(self.facts, indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """For people."""
        return f"# Privacy certificate\n\n{self.statement().to_markdown()}"

    def _repr_html_(self) -> str:
        return self.statement().to_html()


def schema() -> dict[str, Any]:
    """Reads the JSON schema of certificates; ``$defs`` has that of each system's guarantee."""
    text = (files("privbo_plugins") / SCHEMA).read_text(encoding="utf-8")
    return dict(json.loads(text))


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON.")


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields are there once: of two, readers would show one and check the other.

    Raises:
        ValueError: If one is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("A field is there twice.")
    return found


# What is claimed --------------------------------------------------------------------------------


def _facts(runs: Sequence[StoredRun], label: str | None, head: LogHead) -> dict[str, Any]:
    total = added(runs, label)
    return {
        "format": FORMAT,
        "version": __version__,
        "issued": datetime.now(UTC).isoformat(timespec="seconds"),
        "vault": runs[0].vault.vault_id[:_SHORT],
        "data_label": label if label is not None else runs[0].label,
        "covers": _ONE if label is None else _ALL,
        "runs": [
            {
                "run": run.name,
                "id": run.run_id[:_SHORT],
                "kind": run.kind,
                "algorithm": run.algorithm,
                "releases": run.n_releases,
                "protected": run.guarantee.protected,
                "figures": run.guarantee.figures(),
            }
            for run in runs
        ],
        "guarantee": total.to_dict(),
        "figures": total.figures(),
        "statement": asdict(total.statement(pages=False)),  # its reader has no docs/
        "not_known": list(dict.fromkeys(f for run in runs for f in run.not_known)),
        "ledger": {"lines": head.n, "head": head.digest},
        "check": _HOW,
    }


def added(runs: Sequence[StoredRun], label: str | None) -> PrivacyGuarantee:
    """The guarantee of a run, or of several on the same records together.

    Args:
        runs: The runs.
        label: Of the data, for the error.

    Raises:
        ValueError: If there are several, and not all are on per-record losses.
    """
    if len(runs) == 1:
        return runs[0].guarantee
    claims = [(run.title, run.guarantee) for run in runs]
    own = [(name, claim) for name, claim in claims if isinstance(claim, Guarantee)]
    if len(own) < len(runs):
        told = ", ".join(f"{run.name} ({run.kind})" for run in runs)
        raise ValueError(_NO_SUM.format(label, told))
    total, held = of_all(own), zip(runs, own, strict=True)
    splits = {run.marks(SPLIT) for run, (_, claim) in held if not claim.in_blocks} - {()}
    if len(splits) < 2:
        return total
    return replace(total, protected=False, reasons=(*total.reasons, _OTHER_SPLITS))


# Labels -----------------------------------------------------------------------------------------


def labelled(vault: Vault, label: str) -> list[StoredRun]:
    """All runs of a vault on the data of a label.

    Raises:
        ValueError: If there is none; the text lists the labels that there are.
    """
    known = [(run, run.label) for run in runs_of(vault)]
    found = [run for run, given in known if given == label]
    if not found:
        told = ", ".join(sorted({repr(given) for _, given in known if given})) or "no label"
        raise ValueError(
            f"No run of the vault has the data label {label!r}; it knows {told}. Give runs one: "
            "privbo label --vault URL --run NAME --data-label LABEL."
        )
    return found


def give_label(run: StoredRun, label: str) -> None:
    """Notes in the vault on which data a run is; for good, as every line of it.

    Raises:
        ValueError: If it is no short printable text, if it looks like another label, or if the
            run has another one.
    """
    if not label.strip() or len(label) > _LONGEST_LABEL or not label.isprintable():
        raise ValueError(
            f"A data label must be printable text of 1 to {_LONGEST_LABEL} characters, got "
            f"{len(label)}: a public name of the records, such as wards2026."
        )
    plain = " ".join(unicodedata.normalize("NFKC", label).split())
    if label != plain:  # what looks like another label would be added up without it
        raise ValueError(
            f"The data label {label!r} could be taken for {plain!r}: write it without spaces at "
            "its ends or several in a row, and with plain characters (Unicode's form NFKC)."
        )
    with run.vault.transaction(run.run_id) as tx:
        given = tx.marks(LABEL)
        if given and given != (label,):
            raise ValueError(
                f"{run.name} has the data label {given[0]!r}, which is kept for good; give that "
                f"one, or {given[0]!r} to the other runs on the same records."
            )
        tx.mark(LABEL, label)


# Issue and check --------------------------------------------------------------------------------


def issue(runs: Sequence[StoredRun], label: str | None = None) -> Certificate:
    """Makes a certificate, and notes it in the vault, so that the vault knows it again."""
    made = Certificate.of(runs, label)
    with runs[0].vault.transaction(runs[0].run_id) as tx:
        tx.mark(ISSUED, made.digest)
    return made


def verified(certificate: Certificate, vault: Vault) -> list[Line]:
    """Compares a certificate with the vault as it is now, line by line.

    Returns:
        What agrees, and what differs.

    Raises:
        VaultError: If the vault's chain does not fit what it holds.
    """
    told, runs = certificate.facts, {run.name: run for run in runs_of(vault)}
    names = [run["run"] for run in told["runs"]]
    missing = [name for name in names if name not in runs]
    lines = [_compared("vault", told["vault"], vault.vault_id[:_SHORT])]
    if missing or not names:
        absent = _short(", ".join(missing)) or "no run at all"
        return [*lines, Line("runs", False, f"the vault does not hold {absent}")]
    own, label = [runs[name] for name in names], str(told["data_label"])
    lines += [_issued(certificate, own), *_chain(told["ledger"], vault, own)]
    try:
        if told["covers"] == _ONE:
            now = Certificate.of(own).facts
        else:  # of all runs that have the label now
            now = Certificate.of(labelled(vault, label), label).facts
    except (ValueError, VaultError) as error:
        return [*lines, Line("claim", False, f"cannot be made again: {error}")]
    same = told["version"] == now["version"]
    by = f"made by {_short(told['version'])}, checked by {now['version']}"
    lines += [Line("version", True, by if same else f"{by}: words are not compared, figures are")]
    before, after = _parts(told, words=same), _parts(now, words=same)
    return lines + [_compared(n, before.get(n), after.get(n)) for n in {**before, **after}]


def _issued(certificate: Certificate, own: Sequence[StoredRun]) -> Line:
    when = f"dated {_short(certificate.facts['issued'])}"
    for run in own:
        with run.vault.transaction(run.run_id) as tx:
            if tx.has_mark(ISSUED, certificate.digest):
                found = f"the vault has issued this very certificate, {when}"
                return Line("issued", True, found)
    found = (
        f"the vault has never issued it as it stands ({when}): something in it was changed, or "
        "another vault or a copy has issued it"
    )
    return Line("issued", False, found)


def _chain(ledger: Mapping[str, Any], vault: Vault, own: Sequence[StoredRun]) -> list[Line]:
    n, head = ledger["lines"], ledger["head"]
    with vault.transaction("") as tx:
        known = tx.holds(LogHead(n, head))
        since = _since(tx, n, own) if known else 0
    if not known:
        found = (
            f"line {n} of the vault's chain is not {_short(head)}: the head was "
            "changed, or the vault was restored from an older backup or is another copy"
        )
        return [Line("ledger", False, found)]
    found = "nothing has been released since"
    if since:
        found = (
            f"the ledger has gone on since: {since} more release{'s' * (since > 1)}; ask for a "
            "new certificate"
        )
    fits = f"line {n} of the chain is the certificate's head"
    return [Line("ledger", True, fits), Line("up to date", not since, found)]


def _since(tx: Transaction, n: int, own: Sequence[StoredRun]) -> int:
    """Releases of some runs, the answers to their tables' rows included, after a line."""
    runs = {run.run_id for run in own}
    runs |= {tx.run_of_host(answers_of(run.name)) or "" for run in own}
    return sum(run in runs for run in tx.released_since(n))


_WORDS = {
    "statement",
    "not known",
    "check",
    "mechanism",
    "neighbours",
    "population",
    "not_covered",
}
"""Parts that another version may word differently without changing the claim."""


def _parts(facts: Mapping[str, Any], *, words: bool = True) -> dict[str, Any]:
    """The parts of a certificate that follow from the vault, by the names of their lines."""
    parts = {"runs": [run["run"] for run in facts["runs"]]}
    for name in ("data_label", "covers", "statement", "not_known", "check"):
        parts[name.replace("_", " ")] = facts[name]
    for run in facts["runs"]:
        parts |= {_short(f"{run['run']}: {name}"): value for name, value in run.items()}
    parts |= facts["guarantee"].items()
    parts |= {f"figures: {name}": value for name, value in facts["figures"].items()}
    return {_short(name): part for name, part in parts.items() if words or name not in _WORDS}


def _compared(what: str, told: Any, now: Any) -> Line:
    if _equal(told, now):
        return Line(what, True, _short(now))
    return Line(what, False, f"{_short(told)} in the certificate, {_short(now)} in the vault")


def _equal(told: Any, now: Any) -> bool:
    """Compares two parts; figures may differ in the last digits, as on another machine."""
    if type(told) is not type(now):
        return False
    if isinstance(told, float):
        return math.isclose(told, now, rel_tol=1e-9)
    if isinstance(told, dict):
        return told.keys() == now.keys() and all(_equal(told[k], now[k]) for k in told)
    if isinstance(told, list):
        return len(told) == len(now) and all(map(_equal, told, now))
    return bool(told == now)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = legible(text)
    return line if len(line) <= 100 else f"{line[:97]}..."
