"""docs/capabilities.md lists every capability, and each names a test that is there."""

import importlib
import itertools
import re

import optuna_samplers
import privbo_plugins.federation
import raytune_searchers
import sklearn_search
from privbo_plugins.algorithms.registry import entries
from privbo_plugins.cli import main
from tests import capabilities, verbs
from tests.contracts import pages

PACKAGES = {
    package.__name__: package
    for package in (optuna_samplers, raytune_searchers, sklearn_search, privbo_plugins.federation)
}
BUILT_IN = "privbo_plugins."


def test_the_page_is_what_the_program_writes():
    pages.check(capabilities.MODULE, capabilities.PAGE, capabilities.table())


def test_each_named_test_is_there():
    for proof in set(capabilities.proofs()):
        file, _, word = proof.partition(": ")
        text = (capabilities.ROOT / "tests" / file).read_text()
        assert re.search(r"^def test_", text, re.MULTILINE), proof
        assert word in text, proof


def test_every_row_has_a_proof():
    assert all(one.on_optuna and one.on_ray for one in capabilities.SYSTEMS)
    assert all(row.proofs for row in capabilities.rows())


def test_every_algorithm_of_the_registry_is_listed_on_both_hosts():
    known = {one.name for one in entries() if one.algorithm.startswith(BUILT_IN)}
    listed = {one.what for one in capabilities.SYSTEMS}
    assert known <= listed
    assert len(listed) == len(capabilities.SYSTEMS) == len(known) + 3


def test_every_public_name_is_listed_and_every_listed_class_is_there():
    public = {(name, one) for name, package in PACKAGES.items() for one in package.__all__}
    found = {("optuna_samplers", one.optuna) for one in capabilities.SYSTEMS}
    found |= {("raytune_searchers", one.ray) for one in capabilities.SYSTEMS}
    hosted = {
        tuple(name.rsplit(".", 1)) if "." in name else (package, name) for package, name in found
    }
    assert hosted <= public
    named = {name for row in capabilities.rows() for name in row.names}
    missing = {name for _, name in public - hosted} - named
    assert missing == set()


def test_every_other_name_is_public_a_verb_a_keyword_a_module_or_a_command():
    public = {name for package in PACKAGES.values() for name in package.__all__}
    for name in itertools.chain.from_iterable(row.names for row in capabilities.rows()):
        if name.startswith("privbo_plugins."):
            importlib.import_module(name)
        elif name.startswith("privbo "):
            assert main([*name.split()[1:], "--help"]) == 0
        elif "=" in name or name in ("client_ca", "env:NAME"):
            pages = [*capabilities.PAGE.parent.glob("*.md")]
            others = [page.read_text() for page in pages if page != capabilities.PAGE]
            assert any(name in text for text in others), f"no page shows {name}"
        else:
            assert name in public | set(verbs.VERBS), name


def test_every_verb_is_listed():
    assert set(verbs.VERBS) <= {name for row in capabilities.rows() for name in row.names}


def test_every_example_is_listed():
    programs = {
        path.stem
        for path in (capabilities.ROOT / "examples").glob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert programs == set(capabilities.EXAMPLES)
