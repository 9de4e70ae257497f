"""Certificates: what they say, that others can check them, and that a change is found."""

import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from privbo_plugins.cli import main
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.groups import Groups, Unit
from privbo_plugins.privacy.accountant import GaussianEvent, PureEvent, compose_delta
from privbo_plugins.privacy.statement import guess, percent
from privbo_plugins.sessions import certificates
from privbo_plugins.sessions.certificates import (
    Certificate,
    give_label,
    issue,
    labelled,
    schema,
    verified,
)
from privbo_plugins.sessions.records import Session
from privbo_plugins.sessions.rows import NOT_PRIVATE, Curator
from privbo_plugins.sessions.stored import StoredRun, run_named, runs_of
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.log import SPLIT
from privbo_plugins.store.vault import open_vault
from tests.engine.test_cli import RANDOMISED, RUNS, SHORT, go_on, records, table

HOSTILE = "</td><script>alert(1)</script> [a](http://x.example) | `b` <b>"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/vault.db"


@pytest.fixture
def differing(capsys):
    """Verifies a certificate that differs from its vault, and returns what is said."""

    def run(path, url):
        capsys.readouterr()
        assert main(["verify", str(path), "--vault", url, "-v"]) == 3
        return capsys.readouterr().out

    return run


# The figures ------------------------------------------------------------------------------------


def chance(*releases):
    return guess(compose_delta(releases, 0.0))


@pytest.mark.parametrize(("name", "event"), [
    ("mu-GDP", GaussianEvent), ("eps-LDP", PureEvent),
])  # fmt: skip
def test_the_guesses_that_the_page_prints_are_these(name, event):
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    (line,) = [line for line in page.splitlines() if f"({name})" in line or f"({name}," in line]
    shown = [part.strip() for part in line.split("|")[3:-1]]
    assert shown == [percent(chance(event(e))) for e in (0.3, 1.0, 3.0)]


# Certificates of a vault ------------------------------------------------------------------------


@pytest.mark.parametrize("system", RUNS)
def test_a_certificate_of_every_system_has_the_form_of_the_schema_and_verifies(
    system, url, tmp_path, printed
):
    begin, name, _ = RUNS[system]
    host = begin(url)
    path, people = tmp_path / "c.json", tmp_path / "c.md"
    out = ["--out", str(path), str(people)]
    said = printed("certificate", "--vault", url, "--run", name, *out)
    told = json.loads(path.read_text())
    jsonschema.validate(told, schema(), format_checker=jsonschema.FormatChecker())
    assert told["statement"]["sentence"] == said.splitlines()[0]
    claimed = run_named(open_vault(url), name).guarantee.to_dict()
    assert told["guarantee"] == json.loads(json.dumps(claimed))
    said = printed("verify", str(path), "--vault", url)
    assert "lines agree" in said
    assert "DIFFERS" not in said
    for part in (told["ledger"]["head"], told["issued"], told["version"], told["runs"][0]["run"]):
        assert part.replace("_", "\\_") in people.read_text()
    assert Certificate.from_json(path.read_text()).to_json() == path.read_text()
    lines = json.loads(printed("verify", str(path), "--vault", url, "--json"))
    assert lines["agrees"] is True
    assert {"what": "protected", "agrees": True, "found": "true"} in lines["lines"]
    assert host is not None
    for text in (path.read_text(), people.read_text()):  # an officer has no folder of ours
        assert "docs/" not in text


def test_a_certificate_of_persons_names_unit_and_population(url, tmp_path, printed):
    mean = Unit.of_rows("patient", (0.0, 1.0), "mean", None)
    session = Session.open(open_vault(url), "optuna/s", SHORT, maximize=False, unit=mean)
    session.groups = Groups([i % 60 for i in range(200)])
    session.tell("0", {"x": 0.5}, Space({"x": Float(0.0, 1.0)}), np.full(200, 0.5))
    path, people = tmp_path / "c.json", tmp_path / "c.md"
    printed("certificate", "--vault", url, "--out", str(path), str(people))
    told = json.loads(path.read_text())
    jsonschema.validate(told, schema())
    claim = told["guarantee"]
    assert (claim["unit"], claim["population"]) == ("patient", "validation patients")
    assert claim["n_records"] == 60
    assert "all 60 validation patients but one" in told["statement"]["sentence"]
    assert "validation patients (n = 60)" in people.read_text()
    assert "lines agree" in printed("verify", str(path), "--vault", url)
    told["guarantee"]["unit"] = "record"
    path.write_text(json.dumps(told))
    assert main(["verify", str(path), "--vault", url]) == 3


@pytest.fixture(scope="module")
def labelled_runs(tmp_path_factory):
    """A vault, and its certificate of runs with trainings: every kind of figure is in it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('tampered')}/vault.db"
    records(url, config=evolve(SHORT, training_mu=0.25))
    vault = open_vault(url)
    for name, mu, n in [("one", 1.0, 1), ("two", 0.5, 3)]:
        config = evolve(SHORT, training_mu=mu)
        session = Session.open(vault, f"optuna/{name}", config, maximize=False)
        for i in range(n):
            session.charge_training(str(i))
    for run in runs_of(vault):
        give_label(run, "wards2026")
    return url, issue(labelled(vault, "wards2026"), "wards2026").to_json()


def leaves(part, way=()):
    """The way to everything that is no collection, or an empty one."""
    if isinstance(part, dict | list) and part:
        for name, below in part.items() if isinstance(part, dict) else enumerate(part):
            yield from leaves(below, (*way, name))
    else:
        yield way


def changed(part, way):
    """The same but for one leaf."""
    if way:
        several = dict(part) if isinstance(part, dict) else list(part)
        several[way[0]] = changed(part[way[0]], way[1:])
        return several
    if isinstance(part, bool):
        return not part
    if isinstance(part, int | float):
        return part + 1 if isinstance(part, int) else part * 1.001
    return f"{part}?" if isinstance(part, str) else ["x"]


OF_ISSUING = {"issued", "version", "format"}
"""Fields that no vault could tell: of these the digest of what it has issued speaks alone."""


def test_whatever_is_changed_in_a_certificate_is_found(labelled_runs, tmp_path, differing):
    url, text = labelled_runs
    vault, told = open_vault(url), json.loads(text)
    assert all(line.agrees for line in verified(Certificate.from_json(text), vault))
    ways = list(leaves(told))
    assert len(ways) > 100
    for way in ways:
        try:
            certificate = Certificate.from_json(json.dumps(changed(told, way)))
        except ValueError:
            assert way == ("format",)
            continue
        found = {line.what for line in verified(certificate, vault) if not line.agrees}
        assert found >= ({"issued"} if way[-1] != "run" else {"runs"}), way
        assert way[0] in OF_ISSUING or way[-1] == "run" or found > {"issued"}, way
    path = tmp_path / "c.json"
    path.write_text(json.dumps(changed(told, ("guarantee", "mu"))))
    said = differing(path, url)
    for text in ("\nDIFFERS  mu: 1.73", "never issued it as it stands", "do not rely on this"):
        assert text in said


def released_later(url):
    session = records(url, steps=2)
    return lambda: go_on(session, range(2, 20))


def answered_later(url):
    curator = table(url, **RANDOMISED)
    return lambda: curator.evaluate(5)


def put_back(url):
    records(url, steps=2)
    file = Path(url.removeprefix("sqlite:///"))
    backup = file.read_bytes()
    return lambda: file.write_bytes(backup)


LATER = {
    released_later: (
        "gone on since: SINCE more releases", "\nDIFFERS  mu_spent", "\nagrees   mu: 1.0"
    ),
    answered_later: ("gone on since: 1 more release;",),
    put_back: ("another vault or a copy has issued it",),
}  # fmt: skip
"""What happens to a vault after a certificate, and what is then said of it."""


@pytest.mark.parametrize("later", LATER, ids=lambda later: later.__name__)
def test_what_happened_since_is_found(later, url, tmp_path, printed, differing):
    act, path = later(url), str(tmp_path / "c.json")
    printed("certificate", "--vault", url, "--out", path)
    run = run_named(open_vault(url), None)
    before = run.n_releases
    act()
    since = str(run.n_releases - before)
    said = differing(path, url)
    assert all(text.replace("SINCE", since) in said for text in LATER[later])
    assert later is not released_later or int(since) > 1


def test_a_release_while_a_certificate_is_made_is_in_all_of_it_or_in_none(url, monkeypatch):
    session, vault = records(url, steps=2), open_vault(url)
    run, releases = run_named(vault, "digits"), vars(StoredRun)["n_releases"].fget
    looks = []

    def beside(own):
        """Another worker releases before the claim's releases are counted."""
        looks.append(len(looks))
        if len(looks) <= times:
            go_on(session, [f"late {times} {len(looks)}"])
        return int(releases(own))

    monkeypatch.setattr(StoredRun, "n_releases", property(beside))
    times = 1
    made = Certificate.of([run])
    assert made.facts["runs"][0]["releases"] == made.facts["guarantee"]["n_releases"] == 3
    looks.clear()
    times = 2
    monkeypatch.setattr(certificates, "_LOOKS", times)
    with pytest.raises(ValueError, match="release faster"):
        Certificate.of([run])


FORGED = '"guarantee": {"mu": 0.001, "protected": true}'
NONE = {
    "nothing": (lambda _: "", "ertificate"),
    "a list": (lambda _: "[]", "ertificate"),
    "no fields": (lambda _: "{}", "ertificate"),
    "a format alone": (lambda _: '{"format": "privbo-certificate-1"}', "ertificate"),
    "deep": (lambda _: "[" * 100_000, "ertificate"),
    "no text": (lambda _: b"\xff\xfe", "no UTF-8"),
    "one field more": (lambda text: text.replace("{", '{"more": 1,', 1), "fields that none has"),
    "other runs": (
        lambda text: json.dumps({**json.loads(text), "runs": [3]}), "fields that none has"
    ),
    # A person reads the first of two, and a check of the last would agree.
    "twice, first": (lambda text: text.replace("{", "{" + FORGED + ",", 1), "no certificate"),
    "twice, last": (
        lambda text: text.rstrip().removesuffix("}") + "," + FORGED + "}", "no certificate"
    ),
    "twice, inside": (
        lambda text: text.replace('"mu": 1.7', '"mu": 0.001, "mu": 1.7', 1), "no certificate"
    ),
}  # fmt: skip
"""What stands in a file that is no certificate, or a changed one, and why it is refused."""


@pytest.mark.parametrize("what", NONE)
def test_what_is_no_certificate_is_refused(what, labelled_runs, tmp_path, refused):
    (url, text), path = labelled_runs, tmp_path / "c.json"
    make, why = NONE[what]
    made = make(text)
    assert made != text
    path.write_bytes(made if isinstance(made, bytes) else made.encode())
    assert why in refused("verify", str(path), "--vault", url)
    assert "c.pdf" in refused("certificate", "--vault", url, "--out", str(tmp_path / "c.pdf"))


def test_a_name_of_a_run_neither_steers_a_terminal_nor_passes_for_a_line(url, tmp_path, printed):
    names = [f"optuna/{c}\x1b[2J\u202edetcetorp\nprotected: yes {HOSTILE}" for c in "ab"]
    for name in names:
        Session.open(open_vault(url), name, SHORT, maximize=False)
        printed("label", "--vault", url, "--run", name, "--data-label", "x")
    common = ["--vault", url]
    one, own = [*common, "--run", names[0]], ["--out", str(tmp_path / "c.md")]
    said = [
        printed("guarantee", *common),
        printed("guarantee", *one),
        printed("guarantee", *common, "--data-label", "x"),
        printed("label", *one, "--data-label", "x"),
        printed("certificate", *one, *own),
        (tmp_path / "c.md").read_text(),
        printed("certificate", *common, "--data-label", "x", *own),
        (tmp_path / "c.md").read_text(),
    ]
    vault = open_vault(url)
    made = Certificate.of(runs_of(vault)[:1])
    for text in (*said, made._repr_html_()):
        assert not {"\x1b", "\u202e"} & set(text)
    for text in (made._repr_html_(), made.to_markdown()):
        assert "<script" not in text
    assert "http://" not in made.to_markdown()
    for text in said:
        assert "\nprotected: yes" not in text


# Several studies on the same records ------------------------------------------------------------


def test_runs_on_the_same_records_add_up_as_squares(url, tmp_path, printed, differing):
    records(url)
    other = Session.open(open_vault(url), "optuna/second", SHORT, maximize=False, seed=1)
    label = ["--data-label", "wards2026"]
    printed("label", "--vault", url, "--run", "digits", "second", *label)
    told = json.loads(printed("guarantee", "--vault", url, *label, "--json"))
    assert told["runs"] == ["optuna/digits", "optuna/second"]
    assert told["guarantee"]["mu"] == pytest.approx(math.sqrt(2))
    gaussian = pld.from_gaussian_mechanism(1.0).self_compose(2)
    for entry in told["figures"]["epsilons"]:
        exact = gaussian.get_epsilon_for_delta(entry["delta"])
        assert entry["epsilon"] == pytest.approx(exact, abs=1e-3)
    path = str(tmp_path / "c.json")
    printed("certificate", "--vault", url, *label, "--out", path)
    printed("verify", path, "--vault", url)
    other.run.mark_unprotected("a reason")
    assert "DIFFERS  protected: true in the" in differing(path, url)
    told = json.loads(printed("guarantee", "--vault", url, *label, "--json"))
    assert told["guarantee"]["protected"] is False
    assert told["guarantee"]["reasons"] == ["optuna/second: a reason"]
    assert told["figures"]["best_guess"] == 1.0


def test_trainings_of_runs_on_the_same_records_compose(labelled_runs):
    """One that is 1-GDP, and three that are 1/2-GDP: squares add up."""
    made = Certificate.from_json(labelled_runs[1])
    assert f"compose to {math.ceil(1e3 * math.sqrt(1.75)) / 1e3}-GDP for" in made.to_markdown()
    trainings = made.facts["guarantee"]["trainings"]
    assert sorted(training[:2] for training in trainings) == [[0.25, 0], [0.5, 3], [1.0, 1]]


def test_a_certificate_of_a_label_with_one_run_notices_the_second(url):
    records(url)
    vault = open_vault(url)
    first = run_named(vault, "digits")
    give_label(first, "wards2026")
    alone = issue([first])
    together = issue(labelled(vault, "wards2026"), "wards2026")
    Session.open(vault, "optuna/second", SHORT, maximize=False)
    give_label(run_named(vault, "second"), "wards2026")
    assert all(line.agrees for line in verified(alone, vault))
    differing = {line.what for line in verified(together, vault) if not line.agrees}
    assert {"runs", "mu"} <= differing


@pytest.mark.parametrize(
    ("splits", "reasons"),
    [(("a", "b"), 1), (("a", "a"), 0), (("a", None), 0), ((None, None), 0), (("a", "b", "b"), 1)],
)
def test_runs_that_hold_out_other_records_have_no_figure_together(url, splits, reasons):
    vault = open_vault(url)
    for i, split in enumerate(splits):
        Session.open(vault, f"optuna/{i}", SHORT, maximize=False)
        run = run_named(vault, str(i))
        give_label(run, "wards2026")
        if split is not None:
            with vault.transaction(run.run_id) as tx:
                tx.mark(SPLIT, split)
    told = issue(labelled(vault, "wards2026"), "wards2026")
    claim = told.facts["guarantee"]
    assert claim["protected"] is (not reasons)
    assert len(claim["reasons"]) == reasons == ("held out different" in told.to_markdown())
    jsonschema.validate(told.facts, schema())
    assert all(run.guarantee.protected for run in runs_of(vault))


def test_a_label_is_kept_for_good_and_must_be_a_short_name(url, printed, refused):
    records(url)
    common = ["--vault", url, "--run", "digits", "--data-label"]
    printed("label", *common, "wards2026")
    printed("label", *common, "wards2026")
    assert "kept for good" in refused("label", *common, "others")
    for odd in ("", " ", "a\nb", "x" * 81):
        assert "printable text" in refused("label", *common, odd)
    for alike in (
        "wards2026 ",
        " wards2026",
        "\N{FULLWIDTH LATIN SMALL LETTER W}ards2026",
        "wards\N{SUPERSCRIPT TWO}026",
    ):
        assert "for 'wards2026'" in refused("label", *common, alike)
    none = ["guarantee", "--vault", url, "--data-label", "none"]
    assert "it knows 'wards2026'" in refused(*none)
    assert "leave --run out" in refused(*none, "--run", "digits")


def test_figures_of_several_kinds_are_not_added(url):
    records(url)
    table(url)
    vault = open_vault(url)
    for run in runs_of(vault):
        give_label(run, "wards2026")
    with pytest.raises(ValueError, match="several kinds"):
        Certificate.of(labelled(vault, "wards2026"), "wards2026")


# What cannot be claimed -------------------------------------------------------------------------


def test_the_published_projection_gets_a_certificate_that_claims_nothing_and_says_why(
    url, tmp_path, printed
):
    X = np.linspace(-1.0, 1.0, 40).reshape(20, 2)
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        curator = Curator(
            X, epsilon=1.0, delta=1e-6, norm_bound=5.0, mechanism="projection", vault=url
        )
    curator.release()
    path = tmp_path / "c.json"
    said = printed("certificate", "--vault", url, "--out", str(path))
    assert said.startswith("NOT PROTECTED. No differential privacy guarantee holds")
    told = json.loads(path.read_text())
    jsonschema.validate(told, schema())
    assert told["guarantee"]["protected"] is False
    assert told["guarantee"]["epsilon"] == "inf"
    assert told["figures"]["best_guess"] == 1.0
    assert NOT_PRIVATE in told["guarantee"]["reasons"]
    printed("verify", str(path), "--vault", url)
