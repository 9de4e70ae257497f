"""README.md and docs/*.md: every block runs or is read as what it is, and says what it prints."""

import itertools
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import pages
from tests.worker import printed

NAMES = {str(page.relative_to(pages.ROOT)): page for page in pages.PAGES}
RUN = [
    name
    for name, page in NAMES.items()
    if page not in pages.ELSEWHERE and any(block.runs for block in pages.blocks(page))
]

NEEDS = {
    "import optuna": "optuna", "ray": "ray", "from sklearn": "sklearn",
    "import pandas": "pandas", "import torch": "torch", "report(": "matplotlib",
}  # fmt: skip
"""What a page's code needs beside the engine, by what stands in it."""

PATHS = {
    "PYTHONPATH": str(pages.ROOT),
    "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
}
"""Where a page finds the packages, the examples and `privbo`."""

HOLD_RAY = """
import sys
import ray
from tests.raytune_searchers.conftest import INIT
settings = INIT | {"num_cpus": 1}  # one trial at a time: fewer processes to start
print(ray.init(_temp_dir=sys.argv[1], **settings).address_info["gcs_address"], flush=True)
sys.stdin.read()
"""

AFTER = {
    "docs/losses.md": """
        assert 58 <= len(study.trials) <= 60
        assert sampler.guarantee(study).protected
        assert 1e-4 < sampler.recommend(study)["C"] < 1e4
    """,
    "docs/torch.md": """
        assert 20 < len(study.trials) <= 40
        assert sampler.guarantee(study).protected
        middle = losses.per_record(bounded_log, fitted(1e-2, 3e-2), valid).mean()
        found = losses.per_record(bounded_log, fitted(**sampler.recommend(study)), valid).mean()
        assert found < middle + 0.02
    """,
}
"""What holds of a page's names at its end, beside what it prints."""


@pytest.fixture(scope="module")
def one_ray():
    """The environment of drivers of one Ray, which a process of its own holds."""
    pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
    folder = tempfile.mkdtemp(prefix="ry", dir="/tmp")  # short: sockets lie in it
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    given = token | {"RAY_USAGE_STATS_ENABLED": "0"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_RAY, folder], cwd=pages.ROOT,
        env=os.environ | PATHS | given, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with holder:  # it ends with its input
        assert holder.stdout is not None
        yield given | {"RAY_ADDRESS": holder.stdout.readline().strip()}
        assert holder.stdin is not None
        holder.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


def ran(name, folder, environment):
    """What each block of a page has printed, by its line."""
    page = NAMES[name], textwrap.dedent(AFTER.get(name, ""))
    known = PATHS | {"HOME": str(folder)} | environment
    said = printed(pages.run, *page, folder=folder, environment=known, patience=300)
    parts = [part.partition("\n") for part in said.split(pages.MARK)[1:]]
    return {int(line): said for line, _, said in parts}


def code_of(name):
    return "".join(block.code for block in pages.blocks(NAMES[name]) if block.runs)


ON_RAY = [name for name in RUN if re.search(r"^from ray import|backend=", code_of(name), re.M)]
"""Pages that run an experiment on Ray Tune: every system's, and a search for scikit-learn."""


def check_page(name, folder, environment):
    """A page runs from top to bottom and prints what it shows."""
    for sign, package in NEEDS.items():
        if re.search(rf"\b{re.escape(sign)}", code_of(name)) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    said = ran(name, folder, environment)
    for before, shown in pages.outputs(NAMES[name]):
        assert pages.agrees(shown, said[before.line]), f"line {shown.line}: {said[before.line]}"
    for file in folder.glob("*private*.db"):
        assert file.stat().st_mode & 0o077 == 0, file


AGAIN = "docs/ray-tune.md", "docs/how-to-run.md", "docs/any-sampler.md"
"""Their experiments are README.md's, told at length, and one of test_private_trainable's."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak) if name in AGAIN else name for name in ON_RAY],
)
def test_a_page_with_ray_does_what_it_shows(name, tmp_path, one_ray):
    check_page(name, tmp_path, one_ray)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUN if name not in ON_RAY])
def test_a_page_does_what_it_shows(name, tmp_path):
    check_page(name, tmp_path, {})


def test_every_system_has_a_page_with_an_experiment_on_ray():
    """These are each system's ordinary job on a real Ray."""
    systems = {"ray-tune", "local-rewards", "federated-server", "outsourced", "duets",
               "any-sampler"}  # fmt: skip
    assert {f"docs/{system}.md" for system in systems} | {"README.md"} <= set(ON_RAY)


# The checks themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "note", "said", "same"),
    [
        ("a = 1", "", "a = 1\nb\n", False),
        ("... = 1 ...", "", "a\nb = 1\nc", True),
        ("{'C': 1.78} at 3.81", "varies: 1.78", "{'C': 2.5e-05} at 3.81", True),
        ("{'C': 1.78} at 3.81", "varies: 1.78", "{'C': 2.5} at 3.82", False),
    ],
)
def test_an_output_is_compared_but_for_what_varies(shown, note, said, same):
    assert pages.agrees(pages.Block("text", 1, shown, note), said) is same


WRONG = {
    "python": ["print("],
    "json": ["{"],
    "toml": ["a ="],
    "yaml": ["a: [1"],
    "sql": ["SELECT 1"],
    "console": ["$ privbo plans", "$ privbo plan dp-gibo --records few", "$ make demo-nothing",
                "$ python -m examples.nothing", "$ python -m examples.demo --nothing"],
    "pyhton": ["print()"],
}  # fmt: skip


@pytest.mark.parametrize("language", WRONG)
def test_a_block_that_is_not_what_it_says_is_found(language):
    for code in WRONG[language]:
        with pytest.raises((Exception, SystemExit)):
            pages.parse(pages.Block(language, 1, code, ""))


def test_every_page_with_code_is_run():
    assert {"README.md", "docs/sklearn.md", "docs/ray-tune.md"} <= set(RUN)
    assert len(RUN) >= 13


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_what_it_says_that_it_is(name):
    page = NAMES[name]
    if page in pages.ELSEWHERE:
        pytest.skip("tests/test_extending.py compares its blocks with their files")
    assert page.read_text().count("\n```") == 2 * len(pages.blocks(page)), "a fence is not closed"
    for block in pages.blocks(page):
        try:
            pages.parse(block)
        except Exception as failed:
            raise AssertionError(f"{name}, line {block.line}: {failed}") from failed


def test_few_blocks_are_not_run_and_each_says_why():
    idle = [
        (name, block)
        for name, page in NAMES.items()
        for block in pages.blocks(page)
        if block.note.startswith("not run")
    ]
    assert len(idle) <= 9  # four of them install packages
    assert all(len(block.note) > len("not run: it ends") for _, block in idle)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_in_a_sentence_exists(name):
    text = pages.FENCE.sub("", NAMES[name].read_text())
    for command in re.findall(r"`((?:make|privbo|python -m) [^`]*)`", text):
        words = shlex.split(command.replace("...", ""))
        if words[0] != "privbo":
            pages.check_command(words)
            continue
        named = itertools.takewhile(lambda word: word[0].islower() and "." not in word, words)
        pages.check_command([*named, "--help"])  # a sentence leaves out what it needs


SYSTEMS = "dp-gibo local-rewards federated outsourced duets any-sampler sklearn"


@pytest.mark.parametrize("system", SYSTEMS.split())
def test_every_system_s_page_says_when_it_does_not_help(system):
    text = NAMES[f"docs/{system}.md"].read_text()
    (section,) = re.findall(r"^## When this does not help\n\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert len(re.findall(r"^- \*\*", section, re.M)) >= 7


def test_the_readme_is_short_and_its_first_screen_has_a_command_and_a_picture():
    lines = NAMES["README.md"].read_text().splitlines()
    assert len(lines) <= 160
    screen = "\n".join(lines[:20])
    assert "$ make demo" in screen
    assert re.search(r"^!\[.+\]\(docs/pictures/demo.png\)$", screen, re.M)
    command, start, output, *_ = pages.blocks(NAMES["README.md"])
    assert [command.language, start.language, output.language] == ["console", "python", "text"]
    assert start.code.count("\n") <= 20


def slugs(page):
    """Anchors of a page's headings, as GitHub and the site make them."""
    told = (heading.lstrip("# ").lower() for _, heading in pages.headings(page))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in told}


@pytest.mark.parametrize("name", [*NAMES, "CHANGELOG.md"])
def test_every_anchor_that_a_page_links_to_is_a_heading(name):
    page = NAMES.get(name, pages.ROOT / name)
    links = re.findall(
        r"\]\(((?![a-z]+:)[^)#\s]*)#([^)\s]+)\)", pages.FENCE.sub("", page.read_text())
    )
    named = [(page.parent / place if place else page, anchor) for place, anchor in links]
    lost = [anchor for file, anchor in named if file.suffix == ".md" and anchor not in slugs(file)]
    assert lost == []


def test_there_are_recipes_and_each_runs():
    recipes = [recipe for page in pages.RECIPES for recipe in pages.sections(page)[1:]]
    assert len(recipes) >= 20
    assert all(any(block.runs for block in recipe) for recipe in recipes)


WRITTEN = [name for name in NAMES if name.startswith("docs/")]
GENERATED = "docs/capabilities.md", "docs/changelog.md"


@pytest.mark.parametrize("name", sorted(set(WRITTEN) - {*GENERATED}))
def test_a_page_is_short_enough_to_be_read(name):
    assert len(NAMES[name].read_text().split()) <= 1500


@pytest.mark.parametrize("system", SYSTEMS.split())
def test_a_system_s_page_has_code_on_its_first_screen(system):
    first = next(block for block in pages.blocks(NAMES[f"docs/{system}.md"]) if block.runs)
    assert first.language == "python"
    assert first.line <= 20
