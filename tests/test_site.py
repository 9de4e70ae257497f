"""The documentation site: it builds without a warning, and its numbers and tutorials hold."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import norm

import optuna_samplers
import privbo_plugins.federation
import raytune_searchers
import sklearn_search
from privbo_plugins.privacy.accountant import gdp_epsilon, gdp_mu
from tests.boards import browser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def build(builder, out):
    """Builds the site, which may warn of nothing."""
    for package in ("sphinx", "furo", "myst_nb", "sphinx_copybutton", "sphinx_design"):
        pytest.importorskip(package, reason=f"{package} is not installed (the docs extra)")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder]
    # Another process may have loaded Ray, which takes over what prints.
    made = subprocess.run(
        [*command, "-d", str(out / ".trees"), str(DOCS), str(out / "html")],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-4000:]
    return out / "html"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build("html", tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_every_page_is_read_and_every_reference_resolved(tmp_path):
    """Without writing the pages, which takes as long again."""
    build("dummy", tmp_path)


@pytest.mark.soak
def test_every_page_is_in_the_site(site):
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    pages |= {path.relative_to(DOCS).with_suffix(".html") for path in BOOKS}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert pages <= built
    assert len(BOOKS) == 7


@pytest.mark.soak
def test_links_within_the_site_lead_somewhere(site):
    anchors = {
        path: set(re.findall(r'\bid="([^"]+)"', path.read_text())) for path in site.rglob("*.html")
    }
    lost = []
    for page in anchors:
        for target in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text()):
            place, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target) or "_static" in place:
                continue
            found = page if not place else (page.parent / place).resolve()
            if found not in anchors and not found.exists():
                lost.append((page.name, target))
            elif page.name == "changelog.html":
                continue  # it names sections as they were
            elif anchor and found in anchors and anchor not in anchors[found]:
                lost.append((page.name, target))
    assert lost == []


@pytest.mark.soak
def test_no_page_is_wider_than_its_window(site, tmp_path):
    pages = "index", "dp-gibo", "optuna", "privacy", "how-to-run", "capabilities"
    with browser(tmp_path) as chromium:
        for page, width in itertools.product(pages, (390, 1280)):
            assert chromium.beyond((site / f"{page}.html").as_uri(), width) <= 0, (page, width)


@pytest.mark.soak
def test_no_page_is_too_large_to_load(site):
    sizes = {path.name: path.stat().st_size for path in site.rglob("*.html")}
    assert max(sizes.values()) < 300_000
    assert len(list((site / "reference").glob("*.html"))) > 40


@pytest.mark.soak
def test_every_public_name_has_its_place_in_the_reference(site):
    page = "".join(one.read_text() for one in (site / "reference").glob("*.html"))
    packages = [
        optuna_samplers, raytune_searchers, sklearn_search, privbo_plugins,
        privbo_plugins.federation,
    ]  # fmt: skip
    named = set(re.findall(r'\bid="([\w.]+)"', page))
    known = {name.rpartition(".")[2] for name in named}
    missing = {name for package in packages for name in package.__all__} - known
    assert missing == set()


def test_links_of_pages_lead_to_files():
    lost = []
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(((?![a-z]+:|#)[^)#\s]+)", text):
            if not (page.parent / target).exists():
                lost.append((page.name, target))
    assert lost == []


_WORDS = {"two": 2, "three": 3, "five": 5, "ten": 10, "twenty": 20, "forty": 40}


def test_a_tutorial_counts_as_many_clinics_as_its_code():
    cells = json.loads((DOCS / "tutorials" / "4-clinics.ipynb").read_text())["cells"]
    said, code = (
        "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
        for kind in ("markdown", "code")
    )
    told = re.findall(rf"(\d+|{'|'.join(_WORDS)})\s+clinics", said, flags=re.I)
    (n,) = re.findall(r"^N = (\d+)$", code, flags=re.M)
    assert len(told) >= 2
    assert {_WORDS.get(word.lower(), word) for word in told} == {n}


def test_the_table_of_mu_is_that_of_the_accountant():
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \| (\d+) % \| (.*) \|$",
                      (DOCS / "claims.md").read_text(), flags=re.M)  # fmt: skip
    assert len(rows) == 5
    for told, guess, found, epsilons in rows:
        mu = float(told)
        assert 0 <= float(guess) - 100 * norm.cdf(mu / 2) < 0.11
        assert 0 <= int(found) - 100 * (1 - norm.cdf(norm.ppf(0.95) - mu)) < 1
        for delta, epsilon in zip((1e-3, 1e-5, 1e-6), epsilons.split(" | "), strict=True):
            assert 0 <= float(epsilon) - gdp_epsilon(mu, delta) < 0.0101


def test_the_table_of_costs_is_that_of_the_map():
    summary = json.loads((ROOT / "benchmarks" / "results" / "map.json").read_text())["summary"]
    cells = {
        (cell["part"], round(cell["n"] * cell["mu"])): cell["excess"]
        for cell in summary
        if cell["arm"] == "dp-gibo"
    }
    row = r"^\| (\d[\d ]*) \| (\d[\d ]*) \| (\.\d{4}) \| (\.\d{4}) \|$"
    rows = re.findall(row, (ROOT / "README.md").read_text(), flags=re.M)
    levels = [int(level.replace(" ", "")) for level, *_ in rows]
    assert levels == [30, 300, 1000, 10_000]
    for level, (*_, svc, ridge) in zip(levels, rows, strict=True):
        for part, told in (("svc-2", svc), ("digits-15", ridge)):
            assert math.isclose(float(told), cells[part, level], abs_tol=6e-5)
    counts = [int(n.replace(" ", "")) for _, n, *_ in rows]
    assert counts == [math.ceil(level / gdp_mu(4, 1e-5)) for level in levels]


# Tutorials --------------------------------------------------------------------------------------


def code_of(book):
    cells = json.loads(book.read_text())["cells"]
    return "\n".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")


@pytest.mark.slow
@pytest.mark.parametrize("book", [
    pytest.param(book, marks=() if book == BOOKS[0] else pytest.mark.soak, id=book.stem)
    for book in BOOKS
])  # fmt: skip
def test_a_tutorial_runs_from_top_to_bottom(book, tmp_path):
    if "ray" in book.stem:
        pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    ran = subprocess.run(
        [sys.executable, "-c", code_of(book)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.stem)
def test_a_tutorial_keeps_what_it_printed_and_no_error(book):
    cells = [c for c in json.loads(book.read_text())["cells"] if c["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    kinds = {output["output_type"] for output in outputs}
    assert "error" not in kinds
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    text = json.dumps(outputs)
    assert "NOT PROTECTED" not in text
    assert "protected" in text or "-differentially private" in text
    assert book.stat().st_size < 120_000
    assert not [output for output in outputs if output.get("name") == "stderr"]
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    folder = re.search(r"(?<![\w.:</*-])/(?:[\w.-]+/)+[\w.-]*", json.dumps(outputs))
    assert folder is None, folder  # of the machine that has run it


@pytest.mark.parametrize("book", BOOKS, ids=lambda path: path.stem)
def test_a_tutorial_ends_with_what_to_try_next(book):
    last = json.loads(book.read_text())["cells"][-1]
    assert last["cell_type"] == "markdown"
    said = "".join(last["source"])
    assert "**Try next**" in said
    for target in re.findall(r"\]\(([^)#]+)", said):
        assert (book.parent / target).exists()
