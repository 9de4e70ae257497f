"""Compares what a study and its trials hold with what stands behind it, for every kind of secret.

Rules on values and what stands beside them are the engine's (:mod:`privbo_plugins.shown`). Here is
what Optuna's trials show, which of it this package writes itself, and which parameters all trials
of a study must have alike.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _space, _study
from optuna_samplers._publish import shown_by_others
from optuna_samplers._space import constants_of, described
from privbo_plugins.errors import SpaceChangedError
from privbo_plugins.privacy.local import LOCAL_MECHANISMS
from privbo_plugins.privacy.statement import legible
from privbo_plugins.shown import OTHER_VALUE, Shown, TrialRecord, complaints, same

BESIDE = "trials hold data beside the reward that was not declared public"
"""Why nothing is claimed of a study of rewards whose trials hold more."""

DECLARABLE = frozenset({"report", "should_prune", "set_user_attr", "set_constraint"})
"""Operations on a guarded trial whose caller may declare what it passes public."""

_COUNT, _FLAG = r"\d{1,9}", "(true|false)"
_NUMBER = r"(-?\d+(\.\d+)?(e[-+]?\d+)?|null)"
_ID, _SHORT_ID, _DIGEST = '"[0-9a-f]{32}"', "[0-9a-f]{8}", '"[0-9a-f]{16}"'
_DRAW = rf"(null|\[{_COUNT}, {_COUNT}, {_COUNT}\])"
_MECHANISM = f'"({"|".join(LOCAL_MECHANISMS)})"'
_FINITE = _NUMBER.replace("|null", "")
_EPOCH = ", ".join(
    f'"{name}": {_NUMBER}'
    for name in ("components", "down", "epoch", "inducing", "length", "per_agent", "share", "up")
)


def _forms(*forms: str) -> re.Pattern[str]:
    return re.compile("|".join(forms))


_OF_STUDIES = _forms(
    rf'privbo:run {{"run": {_ID}, "vault": {_ID}}}',
    rf'privbo:ldp {{"run": {_ID}, "study": "(?P<study>.*)", "vault": {_ID}}}',
    rf'privbo:duets {{"active_share": {_NUMBER}, "agents": \d+, "epoch": \d+, '
    rf'"epochs": \[({{{_EPOCH}}}(, )?)*\], "reals_down": {_NUMBER}, '
    rf'"reals_per_agent": {_NUMBER}, "reals_up": {_NUMBER}}}',
    r'privbo:split {"given": (true|false), "index": (true|false), '
    r'("persons": true, )?("random_state": \d+, )?"train": \d+, "valid": \d+}',
    rf'privbo:split {{"all": \d+, "blocks": \d+, '
    rf'"inside": ({_NUMBER}|"[A-Za-z]{{1,40}}(\(\d+\))?"), "random_state": \d+}}',
    f'{_study.GUARANTEE_ATTR} "[^\n]*"',
    f'{_study.EXPOSED_ATTR} "({re.escape(BESIDE)}|{re.escape(_space.CONSTANT_CHANGED)})"',
    rf'{_study.HEAD_ATTR}:{_SHORT_ID} \[\d+, "([0-9a-f]{{64}})?"\]',
    rf'{_study.PLACE_ATTR}:({_SHORT_ID}):(?P<place>{_SHORT_ID}) "(?P=place)[0-9a-f]{{16}}"',
)
"""User attributes that samplers and wrapped objectives give a study, each with its JSON."""

OF_TRIALS = _forms(
    rf"privbo:(epoch|row) {_COUNT}",
    rf"privbo:(claim|draw) {_DRAW}",
    rf'privbo:duets {{"key": \d+, "settings": {_DIGEST}, "space": {_DIGEST}}}',
)
"""System attributes that samplers give a trial."""

OF_REWARDS = _forms(
    rf"privbo:(agent|epoch) {_COUNT}",
    rf'privbo:play {{"delta": {_FINITE}, "epsilon": {_FINITE}, "high": {_FINITE}, '
    rf'"low": {_FINITE}, "mechanism": {_MECHANISM}, "release": {_FINITE}, '
    rf'"test_noise": {_FLAG}, "user_named": {_FLAG}}}',
    r'privbo:public \[("([^"\\]|\\.)*"(, )?)*\]',
)
"""User attributes that a wrapped reward, and its sampler, give a trial."""

_LONGEST_PLACE = 80

_NAMED = 5
"""Attributes that a note names, at most."""

_FILE = "artifacts:"
"""What Optuna calls a file that was uploaded to a study or a trial, up to its id."""

_LIST = rf"\[({_FINITE}(, )?)*\]"

_NAMED_OF_STUDIES = _forms(
    r'study:metric_names \[("([^"\\]|\\.)*"(, )?)*\]', f"qmc:[0-9a-f]{{64}} {_COUNT}",
    rf"\w+:parent:\d+ {_LIST}", f"{_study.JOINED_ATTR} true", rf"({_FILE}|dashboard:)(?s:.*)",
)  # fmt: skip
"""System attributes that Optuna and its samplers give a study, and what is looked at itself."""

_NAMED_OF_TRIALS = _forms(
    r"(fixed_params|search_space) \{.*\}", rf"(failed_trial|grid_id|\w+:generation) {_COUNT}",
    rf"(retry_history|x_for_tell) {_LIST}", rf"completed_rung_\d+ {_NUMBER}",
    r'(tpe|gp):relative_params:\d+ ".*"', r'(cma|sepcma|cmawm):optimizer:\d+ "[0-9a-f]*"',
    f"mlflow_run_id {_ID}", rf"(privbo:|{_FILE}|constraints[: ])(?s:.*)",
)  # fmt: skip
"""The same of a trial; :func:`_beside` looks at values of parameters, and at reports."""


# What this package writes -----------------------------------------------------------------------


_encoded = json.JSONEncoder(sort_keys=True).encode


def written(name: str, value: object, forms: re.Pattern[str]) -> re.Match[str] | None:
    """Matches an attribute, as JSON keeps it, with forms that this package writes."""
    try:
        return forms.fullmatch(f"{name} {_encoded(value)}")
    except (TypeError, ValueError, RecursionError):  # a storage in memory holds anything
        return None


def stored(attrs: Mapping[str, Any], name: str, forms: re.Pattern[str]) -> Any:
    """Reads an attribute as JSON keeps it; None unless it has a form that this package writes.

    In memory a subclass of a number may show two.
    """
    found = written(name, attrs[name], forms) if name in attrs else None
    return None if found is None else json.loads(found.string.removeprefix(f"{name} "))


def attributes_note(study: Study) -> list[str]:
    """Notes a study's files, and the names of attributes that somebody else wrote."""
    system = study._storage.get_study_system_attrs(study._study_id)
    trials = study.get_trials(deepcopy=False)
    of_others = shown_by_others(study) | {*_beside(trials)}
    of_others |= _unlike(system, _NAMED_OF_STUDIES)
    of_others = of_others.union(*(_unlike(t.system_attrs, _NAMED_OF_TRIALS) for t in trials))
    shown = study.user_attrs.items()
    others = sorted(of_others | {name for name, value in shown if not _is_own(study, name, value)})
    n_files = sum(name.startswith(_FILE) for name in system)
    notes = []
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        notes.append(
            "the study holds attributes which this sampler did not write and which are not "
            f"covered: {', '.join(map(legible, others[:_NAMED]))}{more}"
        )
    if n_files:
        notes.append(f"files were uploaded to the study, which are not covered: {n_files}")
    return notes


def _unlike(attrs: Mapping[str, Any], forms: re.Pattern[str]) -> set[str]:
    """Names the attributes that have none of these forms."""
    return {name for name, value in [*attrs.items()] if not written(name, value, forms)}


def _beside(trials: Sequence[FrozenTrial]) -> Iterator[str]:
    """Names values that Optuna keeps of no parameter, or out of its range, or of no report."""
    space = {name: one for t in trials for name, one in [*t.distributions.items()]}
    reported = {value for trial in trials for value in [*trial.intermediate_values.values()]}
    for trial in trials:
        attrs = dict(trial.system_attrs)
        rungs = [(n, v) for n, v in attrs.items() if n.startswith("completed_rung_")]
        yield from (n for n, v in rungs if isinstance(v, int | float) and v not in reported)
        for attr in ("fixed_params", "search_space", "relative_params"):
            held = _drawn(attrs) if attr == "relative_params" else attrs.get(attr)
            for name, value in held.items() if space and isinstance(held, dict) else ():
                values = value if attr == "search_space" and isinstance(value, list) else [value]
                if name not in space or not all(_space.contains(space[name], v) for v in values):
                    yield f"{attr}({name})"


def _drawn(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the parameters that a sampler shares, as JSON in parts, or a text under its name."""
    parts = sorted((n for n in attrs if ":relative_params:" in n), key=lambda n: (len(n), n))
    text = "".join(str(attrs[name]) for name in parts) or "{}"
    with suppress(TypeError, ValueError):
        return dict(json.loads(text))
    return {parts[0]: text}


def _is_own(study: Study, name: str, value: object) -> bool:
    """Checks whether an attribute of a study has a name and a form that this package writes."""
    found = written(name, value, _OF_STUDIES)
    known = None if found is None else found["study"]
    own_name = json.dumps(_study.own_name(study))[1:-1]
    return found is not None and known in (None, own_name)


# What a trial shows -----------------------------------------------------------------------------


def operation_on(operation: str, place: object) -> str:
    """An operation and the step, attribute or constraint that it writes to: ``report(3)``.

    Example:
        >>> operation_on("set_user_attr", "host")
        'set_user_attr(host)'
    """
    text = str(place)
    if len(text) > _LONGEST_PLACE or not text.isprintable():
        text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{operation}({text})"


def kind_of(operation: str) -> str:
    """``report`` of ``report(3)``."""
    return operation.partition("(")[0]


def outputs_of(trial: FrozenTrial, own: Collection[Any]) -> list[str]:
    """Operations that must have put something into a trial besides parameters and value.

    A pruned trial's value is what it has reported last, unless it was added from elsewhere.

    Args:
        trial: The trial.
        own: Attributes that are the plugin's own, and hold what the plugin writes there; and
            constraints, each as ("set_constraint", name).
    """
    found = []
    if trial.state == TrialState.PRUNED and trial.values and not _reported(trial):
        found.append("add_trial")
    found += [operation_on("report", step) for step in trial.intermediate_values]
    found += [operation_on("set_user_attr", n) for n in trial.user_attrs if n not in own]
    others = [name for name in trial.constraints if ("set_constraint", name) not in own]
    found += [operation_on("set_constraint", name) for name in others]
    files = [name for name in trial.system_attrs if name.startswith(_FILE)]
    found += [operation_on("upload_artifact", name.removeprefix(_FILE)) for name in files]
    ours = [(n, v) for n, v in trial.system_attrs.items() if n.startswith("privbo:")]
    if not all(written(name, value, OF_TRIALS) for name, value in ours):
        found.append("set_system_attr")
    return found


def _reported(trial: FrozenTrial) -> bool:
    reports = trial.intermediate_values
    return bool(reports) and _study.same(trial.values[0], reports[max(reports)])


def must_be_released(trial: FrozenTrial) -> bool:
    """Tells if a trial has a value to compare; storages show one shortly before it is complete."""
    shown = bool(trial.values) and trial.state != TrialState.PRUNED
    return shown or trial.state == TrialState.COMPLETE


def suspicions(
    trial: FrozenTrial,
    outputs: Iterable[str],
    released: Sequence[float] | None,
    public: Collection[str],
    plain: str,
    beside: str,
) -> Iterator[str]:
    """Yields the reasons to claim nothing of the data that one trial holds.

    Args:
        trial: Of any state.
        outputs: Those of :func:`outputs_of`.
        released: The releases that stand behind its values; None for none.
        public: Operations whose data were declared public.
        plain: What to say of a value that was not released.
        beside: What to say of other data; ``{}`` is the operation that wrote them.
    """
    first, *others = [*(trial.values or (None,))] if must_be_released(trial) else [None]
    own, *further = released or (None,)
    shown = Shown(_study.key_of(trial), _unsigned(first), dict.fromkeys(outputs))
    record = TrialRecord(_unsigned(own), False, public)
    yield from complaints(shown, record, plain=plain, beside=beside)
    alike = len(others) == len(further) and all(
        same(_unsigned(one), released + 0.0) for one, released in zip(others, further, strict=True)
    )
    if first is not None and not alike:
        yield OTHER_VALUE


def _unsigned(value: float | None) -> float | None:
    """A value without the sign of a zero, which some databases do not keep."""
    return None if value is None else value + 0.0


# A whole study ----------------------------------------------------------------------------------

Fixed = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
"""Descriptions of parameters that vary, and of those that do not; None where not fixed yet."""


class Audit:
    """Compares the trials of one study, each that has ended once, and further suggestions.

    Parameters keep their ranges. Those with a single value are the ones that the run has fixed, or
    that were declared, or that the first completed trial has.

    Args:
        unexplained: Yields why nothing may be claimed of what some trials hold.
        expose: Claims nothing for a study any more, for a reason.
        declared: The declared search space, if there is one.
        fixed: What the run has fixed, where the run does that.

    Attributes:
        seen: Numbers of trials that need not be looked at again.
        found: Reasons to claim nothing that were found so far.
    """

    def __init__(
        self,
        unexplained: Callable[[Sequence[FrozenTrial]], Iterable[str]],
        expose: Callable[[Study, str], None],
        declared: Mapping[str, BaseDistribution] | None = None,
        fixed: Callable[[], Fixed] | None = None,
    ) -> None:
        self.seen: set[int] = set()
        self.found: list[str] = []
        self._unexplained, self._expose, self._of_run = unexplained, expose, fixed
        self._declared = declared
        self._first_open = 0
        self._suggested: dict[str, BaseDistribution] = {}
        self._ranges: dict[str, dict[str, Any]] = {}
        self._of_first: dict[str, Any] | None = None
        self._alike: Mapping[str, BaseDistribution] | None = None

    def _fixed(self, study: Study) -> Fixed:
        """Returns what the run has fixed, or what was declared, or what the first trial has."""
        space, constants = (None, self._of_first) if self._of_run is None else self._of_run()
        if constants is None and self._declared is not None:
            constants = constants_of(self._declared)
        if constants is None and self._of_run is None:
            first = next(iter(_study.completed(study)), None)
            self._of_first = None if first is None else constants_of(first.distributions)
            constants = self._of_first
        return space, constants

    def look(self, study: Study) -> None:
        """Finds the reasons that trials not looked at before give to claim nothing.

        The study is read before the ledger: other workers may go on meanwhile, and what they show
        is committed to the ledger first.
        """
        trials = study.get_trials(deepcopy=False)
        first = self._first_open
        while first in self.seen:
            first += 1
        self._first_open = first  # once: threads that count here together would skip a trial
        new = [_study.still(t) for t in trials[first:] if t.number not in self.seen]
        reasons = list(self._unexplained(new))
        space, constants = self._fixed(study)
        for trial in new:
            if trial.distributions == self._alike:
                continue
            reasons += _space.differing(self._suggested, trial.distributions)
            if constants is not None and not _space.holds(
                constants, constants_of(trial.distributions)
            ):
                reasons.append(_space.CONSTANT_CHANGED)
            if space is not None and not _space.lies_in(space, trial.distributions):
                reasons.append(_space.SPACE_DIFFERS)
            numeric = not any(hasattr(d, "choices") for d in trial.distributions.values())
            if numeric and not (reasons or None in (space, constants)):  # 1 equals True, a choice
                self._alike = trial.distributions
        self.found += [reason for reason in dict.fromkeys(reasons) if reason not in self.found]
        if constants is not None:  # until then nothing can be compared with them
            self.seen |= {trial.number for trial in new if trial.state.is_finished()}

    def check(self, study: Study, name: str, distribution: BaseDistribution) -> None:
        """Refuses, before Optuna stores it, what differs from what the study's trials suggest.

        Raises:
            SpaceChangedError: If it does. Where its value is a single one nothing is claimed for
                the study any more, because it is not known which trial's is private.
        """
        single = distribution.single()
        known = self._known(study, name, single)
        if known is None or known == described(name, distribution):
            return
        if not single:
            raise SpaceChangedError(_space.ANOTHER_SPACE.format(_space.shown_name(name)))
        self._expose(study, _space.CONSTANT_CHANGED)
        raise SpaceChangedError(_space.ANOTHER_CONSTANT)

    def check_constants(self, study: Study, distributions: Mapping[str, BaseDistribution]) -> None:
        """As :meth:`check`, for all parameters of a trial that have a single value."""
        for name, distribution in distributions.items():
            if distribution.single():
                self.check(study, name, distribution)

    def _known(self, study: Study, name: str, single: bool) -> dict[str, Any] | None:
        """Returns what a parameter must be; None if nothing is known, {} if it must not be."""
        if name in self._ranges:
            return self._ranges[name]
        if self._of_run is None and self._declared is not None and name in self._declared:
            return described(name, self._declared[name])
        fixed = self._fixed(study)[single]
        if fixed is not None:
            return dict(fixed.get(name, {}))
        if single and self._of_run is not None:  # its first vector of losses fixes it
            return None
        having = [t for t in study.get_trials(deepcopy=False) if name in t.distributions]
        done = [trial for trial in having if trial.state == TrialState.COMPLETE]
        alike = [trial for trial in having if trial.distributions[name].single() == single]
        first = next(iter(done or alike), None)
        if first is None:
            return None
        known = described(name, first.distributions[name])
        if done:
            self._ranges[name] = known
        return known
