"""Mutants fit the code as it is, and the tests that must notice them are there."""

from pathlib import Path

import pytest

from tests.mutants.mutant import MUTANTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_and_its_tests_are_there(mutant):
    before, after = mutant.patched(ROOT)
    assert before != after
    for file, _, name in (test.partition("::") for test in mutant.tests if "::" in test):
        assert f"def {name.partition('[')[0].rpartition('::')[2]}(" in (ROOT / file).read_text()
