"""What all guarantees have in common, and that no printed figure promises more than it is."""

import copy
import json
import math
import pickle
import re
from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import example, given
from hypothesis import strategies as st

from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy.claim import SoFar
from privbo_plugins.privacy.guarantee import (
    FederationGuarantee,
    Guarantee,
    LocalGuarantee,
    OutsourcedGuarantee,
    PrivacyGuarantee,
    of_all,
)
from privbo_plugins.privacy.ledger import Charge, check_budget
from privbo_plugins.privacy.statement import percent
from privbo_plugins.privacy.subsampling import rounds_of
from privbo_plugins.privacy.words import LIMITS, limit_of, of_unit
from privbo_plugins.privacy.words import WORDS as TEXTS
from privbo_plugins.sessions.certificates import schema

WORDS = {"mechanism": "m", "neighbours": "n", "population": "p"}


def central(mu=1.0, spent=0.5, **how):
    given = {**WORDS, "protected": True, "n_records": 100, "n_releases": 3, **how}
    return Guarantee(mu=mu, mu_spent=spent, **given)


def local(epsilon=1.0, delta=0.0, most=2.0, **how):
    at = how.pop("at", delta)
    given = {
        "protected": True, "mechanism": "m", "n_evaluations": 3, "most_evaluations": 2,
        "epsilon_evaluation": epsilon, "delta_evaluation": delta, "epsilon_most": most,
        "delta_most": at, "users_named": True,
    }  # fmt: skip
    return LocalGuarantee(**{**given, **how})


def federated(epsilon=2.0, delta=0.003, spent=1.0, **how):
    return FederationGuarantee(how.pop("protected", True), 29, epsilon, delta, spent, 3, 1, **how)


def outsourced(epsilon=2.0, delta=1e-5, distance=0.5, **how):
    protected = how.pop("protected", True)
    return OutsourcedGuarantee(protected, "gaussian", epsilon, delta, distance, 1000, **how)


MAKERS = [central, local, federated, outsourced]
KINDS = dict(zip(("records", "rewards", "federation", "rows"), MAKERS, strict=True))
"""By the names that the schema of certificates has for them."""
HOSTILE = "</td><script>alert(1)</script> [a](http://x.example) | `b` <b>"
POSITIVE = st.floats(1e-6, 1e6)
DELTA = st.floats(1e-12, 0.999)


def numbers(pattern, guarantee):
    told = " ".join(guarantee.details().split())
    found = re.findall(pattern.replace("#", r"([0-9][0-9.e+-]*[0-9]|[0-9])"), told)
    assert found
    return [float(number) for number in found]


# Figures ----------------------------------------------------------------------------------------


@given(POSITIVE, POSITIVE)
@example(1.00049, 0.70004)
def test_no_figure_of_a_run_is_printed_smaller(mu, spent):
    mu, spent = max(mu, spent), min(mu, spent)
    guarantee = central(mu, spent)
    assert min(numbers("(?:at most|Privacy) mu = #", guarantee)) >= mu
    assert min(numbers("and left mu = #", guarantee)) >= spent
    assert max(numbers("; # left", guarantee)) <= math.sqrt(mu**2 - spent**2)
    assert min(numbers(r"rho \(zero-concentrated\): #", guarantee)) >= guarantee.rho
    delta = numbers("at delta = #", guarantee)[0]
    assert numbers("epsilon = #", guarantee)[0] >= guarantee.epsilon_at(delta)


def test_a_run_that_spends_all_prints_what_was_declared():
    told = str(central(1.0, math.nextafter(1.0, 2)))
    assert "mu = 1 in 3 releases, and at most mu = 1 in all; 0 left" in told


@pytest.mark.parametrize("spent", [0.70710678, 0.1234564, 0.5, 0.9999994])
def test_a_refusal_says_no_less_than_what_was_spent_and_asked_for(spent):
    with pytest.raises(BudgetExceededError) as raised:
        check_budget(1.0, spent**2, Charge("value", "1", 1.1234564, 1.0, 1.0))
    needed, told = re.findall(r"mu=([\d.]+), but ([\d.]+) of", str(raised.value))[0]
    assert (float(needed), float(told)) >= (1.1234564, spent)
    assert float(told) >= math.sqrt(spent**2)


ROOT = Path(__file__).parents[2]
TWO_STUDIES = re.compile(
    r"two (?:studies|fits|times)[^.;]{0,40}?mu = 1[^0-9]{0,40}?(1\.4\d*)|= (1\.4\d*) for two", re.I
)


def test_no_page_says_less_than_two_studies_cost():
    """The root of two is 1.41421...: each page that gives it rounds it up."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")),
             *sorted((ROOT / "docs").rglob("*.ipynb"))]  # fmt: skip
    told = {
        (page.name, float(figure))
        for page in pages
        for found in TWO_STUDIES.finditer(page.read_text(encoding="utf8"))
        for figure in found.groups()
        if figure
    }
    assert {name for name, _ in told} >= {"README.md", "1-sklearn.ipynb", "claims.md"}
    assert {figure for _, figure in told} == {1.42}


@given(POSITIVE, DELTA, POSITIVE, DELTA)
def test_no_figure_of_an_epsilon_is_printed_smaller(epsilon, delta, other, at):
    reward = local(epsilon, delta, other, at=at)
    pair = re.search(r"epsilon = (\S*) at delta = (\S*) in each evaluation", str(reward))
    assert (float(pair[1]) >= epsilon, float(pair[2]) >= delta) == (True, True)
    assert numbers("evaluations: epsilon = #", reward)[0] >= other
    assert numbers(r"evaluations: epsilon = \S+ at delta = #", reward)[0] >= at
    rounds = federated(epsilon, delta, other)
    first, spent, most = numbers("epsilon = #", rounds)
    assert (first >= epsilon, spent >= other, most >= epsilon) == (True, True, True)
    assert min(numbers("delta = #", rounds)) >= delta
    table = outsourced(epsilon, delta, distance=other)
    assert numbers("epsilon = #", table)[0] >= epsilon
    assert numbers("delta = #", table)[0] >= delta
    assert numbers("by at most #", table)[0] <= other


@pytest.mark.parametrize("make", MAKERS)
@given(value=st.floats(1e-9, 1e9))
@example(value=0.123449)
@example(value=0.0)
def test_settings_are_printed_as_they_are(make, value):
    """Noise must not be printed larger and clipping not smaller: no digit is lost."""
    assert numbers("scale=#,", make(parameters={"scale": value, "n": 3})) == [value]


# One kind of thing ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_an_epsilon_is_a_number_and_a_function_of_delta(make):
    guarantee = make()
    assert isinstance(guarantee, PrivacyGuarantee)
    assert type(guarantee.epsilon) is float
    assert 0 < guarantee.epsilon_at(0.05) <= guarantee.epsilon
    assert guarantee.epsilon_at(guarantee.deltas[0]) == guarantee.epsilon
    for delta in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta must lie in"):
            guarantee.epsilon_at(delta)


@pytest.mark.parametrize("make", MAKERS)
def test_what_cannot_be_claimed_is_said_and_has_no_figure(make):
    """Also where a claim is withdrawn, by code that need not know which figures it had."""
    guarantee = replace(make(), protected=False, reasons=("the theorem is false", "b"))
    assert guarantee.epsilon == guarantee.epsilon_at(0.5) == math.inf
    assert re.match(
        "NOT PROTECTED. No .*holds for this .*: the theorem is false; b. Treat ",
        str(guarantee).replace("\n", " "),
    )
    shown = guarantee.to_dict()
    names = {"mu", "epsilon", "epsilon_evaluation", "epsilon_most", "epsilon_spent"} & set(shown)
    assert {shown[name] for name in names} == {"inf"}
    told = guarantee.to_markdown()
    assert told.startswith("**NOT PROTECTED. ")
    assert "Why nothing is claimed:\n\n- the theorem is false" in told
    assert "| " not in told
    assert "[ ]" not in told, "there is nothing to confirm where nothing is claimed"
    assert repr(guarantee).endswith(": NOT PROTECTED>")
    assert guarantee.best_guess == 1.0
    assert {entry["epsilon"] for entry in guarantee.figures()["epsilons"]} == {"inf"}
    assert 'class="claim not-protected' in guarantee._repr_html_()


@pytest.mark.parametrize("make", [local, federated, outsourced])
def test_a_claim_holds_at_larger_deltas_and_is_refused_at_smaller_ones(make):
    guarantee = make(delta=0.01)
    assert guarantee.epsilon_at(0.02) == guarantee.epsilon_at(0.01) == guarantee.epsilon == 2.0
    with pytest.raises(ValueError, match=r"at delta=0\.001 is not known"):
        guarantee.epsilon_at(0.001)


@pytest.mark.parametrize("delta", [1e-4, 0.01, 0.1])
def test_a_federation_s_epsilon_is_composed_anew_at_another_delta(delta):
    exact = pld.from_gaussian_mechanism(2.0, sampling_prob=0.35, use_connect_dots=False)
    exact = exact.self_compose(3).get_epsilon_for_delta(delta)
    guarantee = federated(delta=0.02, composed=(frozenset(rounds_of(0.35, 2.0, 3).items()),))
    assert guarantee.epsilon_at(delta) == pytest.approx(exact, abs=2e-3)
    assert guarantee.epsilon_at(0.02) == 2.0  # what was claimed


@pytest.mark.parametrize("make", MAKERS)
def test_no_guarantee_covers_a_generator_that_was_copied(make):
    copies = TEXTS["any"]["conditions"]["copies"]
    assert copies in make().not_covered
    assert f"[ ] {TEXTS['any']['confirm']['copies']}" in make().details()
    assert "resumed twice" in copies
    assert "restored from backups of the same moment or copied together" in copies


@pytest.mark.parametrize("kind", KINDS)
def test_a_guarantee_goes_through_json_in_the_form_of_the_schema(kind):
    make, whole = KINDS[kind], schema()
    form = {"$defs": whole["$defs"], "$ref": f"#/$defs/{kind}"}
    figures = {"$defs": whole["$defs"], "$ref": "#/$defs/figures"}
    for protected in (True, False):
        claim = make(protected=protected, notes=("a",))
        told = json.loads(claim.to_json())
        jsonschema.validate(told, form)
        jsonschema.validate(claim.figures(), figures)
        assert told["protected"] is protected
        assert set(told) == ({f.name for f in fields(claim)} | set(WORDS)) - {"composed", "where"}
        assert "inf" in make(math.inf, protected=protected).to_dict().values()
    assert "inf" not in make().to_dict().values()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(told | {"more": 1}, form)
    endless = make(parameters={"range": (0.0, math.inf), "low": {"x": -math.inf}})
    said = json.loads(endless.to_json())["parameters"]
    assert (said["range"], said["low"]) == ([0.0, "inf"], {"x": "-inf"})


# Layers -----------------------------------------------------------------------------------------

GAPS = {
    "records": "Not protected: training records.",
    "rewards": "Not protected: that a user took part, what the user was shown, and what else",
    "federation": "Not protected: anything from the server, which sees what every agent sends",
    "aggregate": "Not protected: anything from a server that breaks the protocol or pools",
    "rows": "Not protected: differences of a row beyond 0.5, such as a sex or a diagnosis;",
    "answers": "Not protected: anything from the curator, who holds the rows",
}
AGGREGATE = {"trust": "aggregate", "T": 100, "c": 33}
SHOWN = {
    "records": ("records", central()),
    "records, unknown": ("records", central(n_records=None)),
    "records, asked": ("records", central(0.93, parameters={"epsilon": 4.0, "delta": 1e-5})),
    "rewards": ("rewards", local()),
    "rewards, series": ("rewards", local(1.2345, 1e-6, 7.2345, at=1.5e-5)),
    "rewards, unnamed": ("rewards", local(users_named=False)),
    "rewards, elsewhere": ("rewards", local(most_evaluations=math.inf, most=math.inf)),
    "federation": ("federation", federated()),
    "federation, held": ("federation", federated(held=True)),
    "aggregate": ("aggregate", federated(parameters=AGGREGATE)),
    "aggregate, held": ("aggregate", federated(held=True, parameters=AGGREGATE)),
    "rows": ("rows", outsourced()),
    "answers": ("answers", replace(outsourced(), neighbor_distance=None, outcomes="clipping to "
                "[0, 1], unbiased rounding to its ends, randomised response, epsilon = 1")),
}  # fmt: skip
"""Guarantees of every kind and case, by the gap that each of them has to name."""


@pytest.mark.parametrize("case", SHOWN)
def test_a_guarantee_prints_in_few_lines_who_is_protected_and_who_is_not(case):
    """Nothing of it is cut off, and how to see the rest is said last."""
    gap, nameless = SHOWN[case]
    for claim in (nameless, replace(nameless, where=f"{'a long name ' * 5} (Optuna)")):
        lines = str(claim).splitlines()
        assert len(lines) <= 14
        assert max(map(len, lines)) <= 110
        assert "..." not in str(claim)
        told = " ".join(str(claim).split())
        assert re.match(r"(Strongly|Moderately|Weakly|Hardly) protected: each ", told)
        assert told.index(GAPS[gap]) < told.index(f"at most {percent(claim.best_guess)}")
        assert lines[-1].endswith("print(guarantee.details())")
        assert claim.details().startswith("\n".join(lines[:-1]))
        assert ("Run and host" in told) == bool(claim.where)
    assert len(repr(claim)) <= 110
    assert "\n" not in repr(claim)
    assert "NOT PROTECTED" not in claim.details()


@pytest.mark.parametrize("case", SHOWN)
def test_notes_stand_in_the_box_counted_and_cut_in_what_is_printed_alone(case):
    """And a fact that is too long for its lines is whole wherever all is shown."""
    notes, where = ("first", "long " * 99), f"{'zebra ' * 99}(Optuna)"
    claim = replace(SHOWN[case][1], where=where, notes=notes)
    printed = str(claim)
    assert len(printed.splitlines()) <= 14
    assert re.search(r"^  To know +2: first; (long\s+)+\.\.\.$", printed, re.M)
    assert printed.count(" ...") == 2  # of the name as well
    for told in (claim.details(), claim.to_markdown(), claim._repr_html_(), claim.lasting):
        assert "first" in told
        assert "..." not in re.sub(r"\.{5,}", "", told)  # but for the form's lines
        assert told.count("long") == 99
    assert claim.details().count("zebra") == claim.to_markdown().count("zebra") == 99
    assert len(claim.statement(lasting=True).brief) == len(claim.statement(lasting=True).rows) + 1


@given(st.lists(st.text(max_size=3000), max_size=5), st.text(max_size=300))
@example(["word " * 600], "x" * 300)
def test_no_text_from_outside_makes_it_longer_or_steers_a_terminal(reasons, where):
    for protected in (True, False):
        told = {"reasons": tuple(reasons), "where": where, "notes": tuple(reasons)}
        shown = str(central(protected=protected, **told))
        assert len(shown.split("\n")) <= 14
        assert max(map(len, shown.split("\n"))) <= 110
        assert all(c.isprintable() or c == "\n" or ord(c) > 127 for c in shown)


def test_declared_trainings_stand_in_the_headline_and_only_if_all_runs_declare_them():
    """Three of 2-GDP, of which seven may be: 2 sqrt(7) = 5.2915, rounded up."""
    trained = central(trainings=((2.0, 3, 7.0),))
    for told in (" ".join(str(trained).split()), trained.lasting):
        assert "Training records: 5.292-GDP at most, if each training is as private" in told
        assert "Not protected" not in told
    both = of_all([("a", trained), ("b", trained)])
    assert "Training records: 7.484-GDP at most" in both.lasting
    mixed = of_all([("a", trained), ("b", central())])
    assert GAPS["records"] in str(mixed).replace("\n", " ")
    assert any("not all runs declared a cost of training" in note for note in mixed.notes)


@pytest.mark.parametrize(("chance", "word"), [
    (0.1, "Strongly"), (1.0, "Moderately"), (2.0, "Weakly"), (3.0, "Hardly"),
])  # fmt: skip
def test_how_strongly_is_said_by_the_best_guess(chance, word):
    """As docs/claims.md has it; a claim that hardly protects is no green one."""
    claim = central(chance)
    assert str(claim).startswith(f"{word} protected: ")
    assert (' weak"' in claim._repr_html_()) == (word == "Hardly")
    bounds = [f"{100 * most:.0f}" for most in TEXTS["strengths"].values()]
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf8")
    assert f"{bounds[0]}, {bounds[1]} and {bounds[2]} %" in page
    assert list(TEXTS["strengths"]) == ["Strongly", "Moderately", "Weakly", "Hardly"]


def texts_of_limits(unit="record"):
    """(kind, name, text) of every limit of every system."""
    return [
        (kind, name, of_unit(text, unit))
        for own in TEXTS.values() if isinstance(own, dict)
        for kind in LIMITS if isinstance(own.get(kind), dict)
        for name, text in own[kind].items()
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["record", "patient"])
def test_every_limit_has_one_kind_a_page_and_what_the_team_confirms(unit):
    found = texts_of_limits(unit)
    assert len(found) > 40
    assert len({text for _, _, text in found}) == len({(text, kind) for kind, _, text in found})
    anchors = {}
    for kind, _name, text in found:
        limit = limit_of(text, unit)
        assert limit.kind == kind
        assert (limit.said == text) == (kind != "conditions")
        page, _, anchor = limit.page.partition("#")
        if page not in anchors:
            heads = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf8"), re.M)
            anchors[page] = {re.sub(r"[^a-z0-9 ]", "", h.lower()).replace(" ", "-") for h in heads}
        assert anchor in anchors[page], limit.page
    confirmed = [own.keys() for own in (o.get("confirm") for o in TEXTS.values()
                 if isinstance(o, dict)) if own]  # fmt: skip
    assert sum(map(len, confirmed)) == sum(kind == "conditions" for kind, _, _ in found)
    assert limit_of("what an algorithm of another package says").kind == "scope"


@pytest.mark.parametrize("case", SHOWN)
def test_every_limit_is_shown_once_under_its_kind_and_in_what_is_stored(case):
    _, claim = SHOWN[case]
    lists = dict(claim.statement().lists)
    shown = {kind: lists.get(TEXTS["headings"][kind], []) for kind in LIMITS}
    assert sum(map(len, shown.values())) == len(claim.not_covered) == len({*claim.not_covered})
    for text in claim.not_covered:
        limit = limit_of(text)
        line = f"{limit.said} ({limit.page})"
        assert shown[limit.kind].count(line) == 1
        assert f"\n{'[ ]' if limit.kind == 'conditions' else '-'} {line}\n" in claim.details()
        assert line in claim.lasting
    assert json.loads(claim.to_json())["not_covered"] == list(claim.not_covered)


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_stored_is_one_line_and_says_the_cap_alone(make):
    """So that further releases change nothing of it."""
    claim = make(notes=("a note", SoFar("a count")))
    assert "\n" not in claim.lasting
    assert claim.lasting.startswith(claim.statement(lasting=True).sentence)
    assert "To know: a note; " in claim.lasting
    assert "a count" not in claim.lasting
    further = {"n_releases": 9, "mu_spent": 0.9, "n_evaluations": 9, "epsilon_spent": 1.9,
               "n_released": 2, "n_answers": 9}  # fmt: skip
    names = {f.name for f in fields(claim)}
    later = replace(claim, **{name: n for name, n in further.items() if name in names})
    assert str(later) != str(claim)
    assert later.lasting == claim.lasting


@pytest.mark.parametrize("make", MAKERS)
def test_a_headline_comes_first_then_a_box_then_limits_notes_and_details(make):
    claim = make(notes=("a note",))
    told, chance = claim.to_markdown(), percent(claim.best_guess)
    assert told.startswith("**")
    assert chance in told.splitlines()[0]
    parts = ("| Population", "Out of scope:", "- [ ] ", "Confirmed by: ", "What adds up:",
             "To know:", "Details:")  # fmt: skip
    order = [told.index(part) for part in parts]
    assert order == sorted(order)
    assert told.count("\n- ") == len(claim.not_covered) + 1
    page = claim._repr_html_()
    assert page.index(chance) < page.index("<table>") < page.index("Out of scope")
    kinds = [limit_of(text).kind for text in claim.not_covered]
    assert page.count('type="checkbox"') == kinds.count("conditions")


@pytest.mark.parametrize("make", MAKERS)
def test_no_text_from_outside_becomes_markup_or_a_link(make):
    claim = make(notes=(HOSTILE,), parameters={HOSTILE: HOSTILE})
    tags = set(re.findall(r"<([a-z0-9]+)", claim._repr_html_()))
    form = {"label", "input", "details", "summary"}
    assert tags == {"p", "table", "tbody", "tr", "th", "td", "h3", "ul", "li"} | form
    told = claim.to_markdown()
    assert "<script" not in told
    assert "](" not in told.replace("\\](", "")
    assert "http://" not in told
    rows = [line for line in told.splitlines() if line.startswith("| ") and line != "| | |"]
    assert all(line.replace("\\|", "").count("|") == 3 for line in rows)


@pytest.mark.parametrize("make", MAKERS)
def test_guarantees_survive_pickles_copies_and_replacement(make):
    guarantee = make(notes=("a",))
    for again in (
        pickle.loads(pickle.dumps(guarantee)),
        copy.deepcopy(guarantee),
        replace(guarantee),
    ):
        assert again == guarantee
        assert str(again) == str(guarantee)
        assert again.epsilon_at(0.5) == guarantee.epsilon_at(0.5)


def test_what_rounding_leaves_of_a_budget_that_is_spent_is_nothing():
    """Squares of mu that add up to the whole do so but for their last digits."""
    for spent in (1 - 1e-15, 1.0, 1 + 1e-15):
        assert "; 0 left (squares add up)" in " ".join(str(central(spent=spent)).split())
    assert "; 0 left" not in str(central(spent=0.999))
