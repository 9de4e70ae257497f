"""One verb means one thing in every class, and docs/api.md says which class has it."""

import inspect

import pytest

from tests import verbs
from tests.contracts import pages

CLASSES = [cls for members in verbs.classes().values() for _, cls in members]
EVERYWHERE = ["guarantee", "report"]
STUDY_FIRST = ["guarantee", "recommend", "report", "history", "status", "finished", "purge"]


def test_the_page_shows_the_table_of_the_classes_as_they_are():
    pages.check(verbs.MODULE, verbs.PAGE, verbs.table())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_public_name_is_a_verb_of_the_table(cls):
    assert verbs.verbs_of(cls) <= set(verbs.VERBS)
    assert set(EVERYWHERE) <= verbs.verbs_of(cls)


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_every_verb_is_somewhere_and_is_documented_where_it_is(verb):
    having = [cls for cls in CLASSES if verb in verbs.verbs_of(cls)]
    assert having
    assert all(inspect.getdoc(getattr(cls, verb)) for cls in having)


@pytest.mark.parametrize("verb", STUDY_FIRST)
def test_samplers_take_the_study_first_and_searchers_know_their_run(verb):
    for cls in CLASSES:
        if verb not in verbs.verbs_of(cls) or isinstance(
            inspect.getattr_static(cls, verb), property
        ):
            continue
        names = list(inspect.signature(getattr(cls, verb)).parameters)[1:]
        if cls.__name__.endswith("Sampler"):
            assert names[0] == "study"
        else:
            assert "study" not in names
