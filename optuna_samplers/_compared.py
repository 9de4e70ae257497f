"""What a study shows, compared with the run of a vault that a certificate is of.

For ``privbo verify``. Nothing is written: neither into the study nor into the vault. Values, and
what trials of any state hold beside them, are compared anew. Spaces and constants are compared by
``sampler.guarantee(study)`` alone; what it found it has marked in the vault, where a certificate's
claim is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.study import Study

from optuna_samplers import _local, _losses, _study
from optuna_samplers._audit import attributes_note
from optuna_samplers._base import LossStudies
from optuna_samplers._evaluations import OTHER_RELEASE, read_evaluations
from optuna_samplers._losses import unexplained
from optuna_samplers._publish import note_of, shows_claim
from optuna_samplers._rewards import RewardSampler
from privbo_plugins.files import LogHead
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.sessions.stored import StoredRun
from privbo_plugins.store.run import PLACE
from privbo_plugins.store.vault import resolve_url

Found = tuple[str, bool | None, str]
"""What was compared, whether it agrees (None: was not compared), and what was found."""


def compare_study(url: str, name: str, run: StoredRun) -> list[Found]:
    """A study beside the run of a vault.

    Args:
        url: Of the study's storage.
        name: Of the study.
        run: What its values must come from.

    Raises:
        ValueError: If there is no such study, it has several objectives and the run no scores, or
            the vault keeps no values of this kind of run.
    """
    study = _opened(url, name)
    if run.kind == "records":
        n = len(study.directions)
        released = {key: told.values(n) for key, told in run.session.published().items()}
    elif run.kind == "rewards":
        _study.refuse_multi_objective(study, "A certificate's run")
        released = {key: [value] for key, value in run.rewards.evaluations().items()}
    else:
        raise ValueError(
            f"{run.name!r} is a run of kind {run.kind!r}, whose vault keeps no values of trials "
            "to compare a study with. Leave --study out, and ask the host's own guarantee."
        )
    claim = _claimed(study, run)
    return [
        _head(study, run),
        *_attributes(study, run),
        _values(study, released),
        _beside(study, run),
        _claim(study, claim),
        *_note(study, run, claim),
    ]


def _opened(url: str, name: str) -> Study:
    parsed = resolve_url(url)
    file = parsed.database or ""
    if parsed.get_backend_name() == "sqlite" and not Path(file).is_file():
        raise ValueError("--study names no file that exists: give the storage of the study.")
    storage = optuna.storages.RDBStorage(
        parsed.render_as_string(hide_password=False), skip_table_creation=True
    )
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise ValueError(
            "--study-name names no study of this storage: give the name that it was created with."
        ) from None
    return study


def _head(study: Study, run: StoredRun) -> Found:
    head = _study.StudyRollbackGuard(study, run.run_id).head()
    if head == LogHead():
        return "run", False, "the study has never shown this run: it belongs to another vault"
    with run.vault.transaction(run.run_id) as tx:
        known = tx.holds(head)
    if not known:
        return (
            "head",
            False,
            "the study has seen releases that the vault does not hold: the vault was restored "
            "from an older backup, or is another copy",
        )
    return "head", True, f"line {head.n}, the last that the study has shown, is in the vault"


def _attributes(study: Study, run: StoredRun) -> list[Found]:
    """Compares the run, the places of its vault, the direction and the split of a study."""
    name, own = _losses.RUN_ATTR, {"run": run.run_id, "vault": run.vault.vault_id}
    if run.kind != "records":
        code = {"run": run.name.rpartition("/")[2], "study": _study.own_name(study)}
        name, own = _local.RUN_ATTR, own | code
    places, known = run.marks(PLACE), study.user_attrs
    found = {name: known.get(name) == own}
    found |= {place: told in places for place, told in known.items() if _study.PLACE_ATTR in place}
    if "maximize" in run.settings:
        found["direction"] = run.settings["maximize"] == (study.directions[0].name == "MAXIMIZE")
    if _study.SPLIT_ATTR in known or run.marks(_study.SPLIT_ATTR):  # of a search for scikit-learn
        split = json.dumps(known.get(_study.SPLIT_ATTR), sort_keys=True)
        found[_study.SPLIT_ATTR] = run.marks(_study.SPLIT_ATTR) == (split,)
    return [(n, fits, f"{'' if fits else 'not '}as the vault has it") for n, fits in found.items()]


def _values(study: Study, released: Mapping[str, Sequence[float]]) -> Found:
    shown = _study.completed(study)
    strange = [
        str(trial.number)
        for trial in shown
        if not _alike(trial.values or (), released.get(_study.key_of(trial), ()))
    ]
    hidden = sorted(released.keys() - set(map(_study.key_of, shown)))
    wrong = strange or hidden
    told = ", ".join(wrong[:5]) + (", ..." if len(wrong) > 5 else "")
    found = f"{len(shown)} trials show what the vault has released for them"
    if strange:
        found = (
            f"{len(strange)} of {len(shown)} trials show values that the vault has not released "
            f"for them (trials {told})"
        )
    elif hidden:
        found = (
            f"{len(hidden)} released values are shown by no completed trial (trials {told}); "
            "a state was changed, or a crash kept them back"
        )
    return "values", not wrong, found


def _alike(shown: Sequence[float], released: Sequence[float]) -> bool:
    """Checks whether a trial shows what was released for it, of all objectives."""
    return 0 < len(shown) == len(released) and all(map(_study.same, shown, released))


def _beside(study: Study, run: StoredRun) -> Found:
    if run.kind == "records":
        trials = [*map(_study.still, study.get_trials(deepcopy=False))]
        found = list(unexplained(run.session, run.session.published(), {}, trials))
    else:
        stored = read_evaluations(study, run.rewards.mechanism)
        other = [OTHER_RELEASE] if stored.contradicted_by(run.rewards.evaluations()) else []
        found = [*stored.reasons, *other]
    if found:
        return "beside values", False, "; ".join(dict.fromkeys(found))
    return "beside values", True, "trials hold nothing else that was not declared public"


def _claimed(study: Study, run: StoredRun) -> PrivacyGuarantee:
    """Makes the claim of the ledger, with the notes on the study."""
    notes = attributes_note(study)
    if run.kind == "rewards":
        notes = read_evaluations(study, run.rewards.mechanism).notes
    return replace(run.guarantee, notes=(*run.guarantee.notes, *notes))


def _claim(study: Study, claim: PrivacyGuarantee) -> Found:
    """The paragraph that the study shows beside the one that the ledger lets claim."""
    told = str(study.user_attrs.get(_study.GUARANTEE_ATTR, ""))
    if not told:
        return "claim", False, "the study shows no guarantee: ask sampler.guarantee(study)"
    if told.startswith("NOT PROTECTED"):
        return "claim", False, "the study says of itself that it is not protected"
    if told != claim.lasting:
        return (
            "claim", False,
            "the study shows another guarantee than the vault's: it was changed, or written by "
            "another version or for another run, or the study holds more by now; "
            "sampler.guarantee(study) writes it anew",
        )  # fmt: skip
    return "claim", True, "the study shows the vault's guarantee, to the letter"


def _note(study: Study, run: StoredRun, claim: PrivacyGuarantee) -> Iterator[Found]:
    """The same of optuna-dashboard's note, if there is one; a user's is not compared."""
    host = LossStudies if run.kind == "records" else RewardSampler
    if note := note_of(study):
        agrees = shows_claim(note, host._values_are(study, claim), claim)
        told = {
            True: "shows it, too (its recommendation was not compared)",
            False: "shows another, or more: remove it, and sampler.publish(study) writes it anew",
            None: "was edited by a user: trust nothing in it",
        }
        yield "note", agrees, f"optuna-dashboard's note {told[agrees]}"
