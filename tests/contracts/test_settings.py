"""Settings are declared once: both hosts take them, show them and document them alike."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
import sys
from fractions import Fraction

import attrs
import numpy as np
import pytest

import optuna_samplers
import raytune_searchers
import sklearn_search
from optuna_samplers import FederatedServer
from privbo_plugins import scores
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.duets import DUETSConfig
from privbo_plugins.algorithms.po_gp_ucb.modeler import RowsConfig
from privbo_plugins.algorithms.registry import entries
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.local import DEFAULT_MECHANISM
from privbo_plugins.sessions import rows as curators
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.sessions.settings import CuratorSettings
from privbo_plugins.settings import evolve, fields_of
from tests import verbs
from tests.inside import settings_of

OF_TUNE = {
    "metric", "mode", "points_to_evaluate", "max_concurrent", "run_name", "tags",
}  # fmt: skip
"""What only Ray Tune has."""

BOTH = ["DPGIBO", "LDPGPUCB", "LDPTGPUCB", "LDPATAGPUCB", "LDPMoMAGPUCB", "POGPUCB", "DUETS"]
CLASSES = [
    *(cls for members in verbs.classes().values() for _, cls in members),
    optuna_samplers.PrivateSampler,
    raytune_searchers.PrivateSearch,
]
HOLDERS = [Curator, FederatedServer]
"""Who holds secrets, declared in the engine: both hosts use them."""

DECLARED = [*CLASSES, *HOLDERS]

CONSTRUCTORS = [
    *DECLARED, GIBOConfig, optuna_samplers.FederationConfig, sklearn_search.PrivateSearch,
    optuna_samplers.ldp_objective, optuna_samplers.private_objective,
    raytune_searchers.ldp_trainable, raytune_searchers.private_trainable,
]  # fmt: skip
"""Everything public that takes settings."""

GROUPS = [
    ["mu"],
    ["epsilon"],
    ["delta"],
    ["n_trials", "n_steps", "n_rounds"],
    ["loss"],
    ["loss_bound"],
    ["training_mu"],
    ["metric", "mode"],
    ["search_space", "space"],
    ["record_ids"],
    ["user_budget", "user_delta"],
    ["seed"],
    ["vault"],
    ["run_name"],
    ["batch_size", "value_share", "variant", "beta", "correction", "B", "R", "constants", "q", "z",
     "kernel", "kernel_matrix", "lengthscale", "noise_ratio", "beta_scale", "second_moment",
     "step_rule", "memory", "as_published", "log_to", "noise"],
]  # fmt: skip
"""In the order in which somebody who begins needs them; the last are for experts."""

FIRST = {
    "DPGIBO": "mu", "POGPUCB": "Z", "DUETS": "n_agents", "Private": "config",
    "DPFTSDESampler": "link", "DPFTSDESearch": "config",
    "Curator": "X", "FederatedServer": "config",
}  # fmt: skip
"""The only argument that may be given without its name; of the others it is ``epsilon``."""

OF_A_RUN = {"low", "high", "noise"}
"""What an algorithm is told of the rewards and of its length, in the engine's own words."""


def defaults(cls):
    """Default by name of every setting."""
    return {n: p.default for n, p in inspect.signature(cls).parameters.items()}


# Both hosts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_sampler_and_searcher_take_the_same_settings(name):
    sampler = defaults(getattr(optuna_samplers, f"{name}Sampler"))
    search = defaults(getattr(raytune_searchers, f"{name}Search"))
    assert set(search) - set(sampler) <= OF_TUNE
    assert set(sampler) <= set(search)
    assert {n: search[n] for n in sampler} == sampler


@pytest.mark.parametrize("cls", DECLARED, ids=lambda cls: cls.__name__)
def test_everything_is_keyword_only_but_the_first(cls):
    first, *others = inspect.signature(cls).parameters.values()
    family = cls.__name__.removesuffix("Sampler").removesuffix("Search")
    assert first.name == FIRST.get(cls.__name__, FIRST.get(family, "epsilon"))
    assert {p.kind for p in others} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("made", CONSTRUCTORS, ids=lambda made: made.__name__)
def test_arguments_stand_in_the_order_of_their_use(made):
    names = list(defaults(made))
    groups = [sorted(names.index(n) for n in group if n in names) for group in GROUPS]
    first = sum(p.kind != p.KEYWORD_ONLY for p in inspect.signature(made).parameters.values())
    places = [place for group in groups for place in group if place >= first]
    assert places == sorted(places)
    text = inspect.getdoc(made) or ""
    usual, _, experts = text.partition("\nFor experts:\n")
    explained = re.findall(r"^    (\w+): ", usual.partition("Args:\n")[2].split("\n\n")[0], re.M)
    explained += re.findall(r"^    (\w+): ", experts.split("\n\n")[0], re.M)
    assert explained == names
    assert {n for n in GROUPS[-1] if n in names} <= set(re.findall(r"^    (\w+): ", experts, re.M))


@pytest.mark.parametrize(
    ("family", "config"), [("DPGIBO", GIBOConfig), ("DUETS", DUETSConfig), ("POGPUCB", RowsConfig)]
)
def test_all_of_an_algorithms_settings_are_offered_with_their_defaults(family, config):
    engine = {n: f.default for n, f in fields_of(config).items() if n not in OF_A_RUN}
    for name in ("Z", "noise_sd", "answer_variance"):  # a table's manifest knows the last two
        engine.pop(name, None)
    for cls in CLASSES:
        if cls.__name__.startswith(family):
            offered = defaults(cls)
            if "mu" in engine:
                offered["mu"] = engine["mu"]  # has no default
            assert {name: offered.get(name, "missing") for name in engine} == engine


@pytest.mark.parametrize(
    ("name", "mechanism", "epsilon"),
    [
        ("LDPGPUCB", DEFAULT_MECHANISM, inspect.Parameter.empty),
        ("LDPTGPUCB", "laplace", inspect.Parameter.empty),
        ("LDPATAGPUCB", "laplace", inspect.Parameter.empty),
        ("LDPMoMAGPUCB", "laplace", inspect.Parameter.empty),
        ("DUETS", DEFAULT_MECHANISM, math.inf),
    ],
)
def test_what_privatises_a_reward_by_default(name, mechanism, epsilon):
    for cls in (f"{name}Sampler", f"{name}Search"):
        package = optuna_samplers if cls.endswith("Sampler") else raytune_searchers
        offered = defaults(getattr(package, cls))
        assert (offered["mechanism"], offered["epsilon"]) == (mechanism, epsilon)
        assert (offered["delta"], offered["bound"], offered["value_range"]) == (None,) * 3


# Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", DECLARED, ids=lambda cls: cls.__name__)
def test_a_setting_that_is_none_is_refused_and_the_nearest_is_named(cls):
    nearest = "vault" if cls in HOLDERS else "seed"
    wrong = nearest[:3] + nearest[2:]
    said = rf"{cls.__name__} has no setting '{wrong}'.* mean '{nearest}'\?"
    with pytest.raises(TypeError, match=said):
        cls(1, **{wrong: 3})


def test_what_is_missing_or_too_much_is_refused():
    with pytest.raises(TypeError, match="POGPUCBSampler: missing a required argument"):
        optuna_samplers.POGPUCBSampler()
    with pytest.raises(TypeError, match="too many positional arguments"):
        optuna_samplers.DPGIBOSampler(1, 2)


# Who holds secrets ----------------------------------------------------------------------------


def test_settings_of_a_curator_show_neither_rows_nor_outcomes():
    shown = repr(CuratorSettings([[123.25]], epsilon=1.0, delta=1e-6, outcomes=[678.5]))
    assert "epsilon=1.0" in shown
    assert "123.25" not in shown
    assert "678.5" not in shown


def test_warnings_of_who_holds_secrets_point_at_whoever_made_them():
    rows = {"epsilon": 1.0, "delta": 1e-6, "bounds": [(0, 1)]}
    with pytest.warns(PrivacyWarning, match="Nothing is protected") as unprotected:
        Curator([[0.5], [0.75]], **rows, mechanism="projection", r=1)
    assert [one.filename for one in unprotected] == [__file__]


# What the declarations rest on --------------------------------------------------------------


def test_every_rule_that_a_type_names_is_checked():
    """Also where the name stands inside another type, in which nothing would look for it."""
    checked = [0]
    for cls in _settings_classes():
        names = vars(sys.modules[cls.__module__])
        for name, annotation in vars(cls).get("__annotations__", {}).items():
            words = re.findall(r"\w+", str(annotation))
            rules = [word for word in words if hasattr(names.get(word), "__metadata__")]
            assert "Annotated" not in words, f"{cls.__name__}.{name}: give the type a name"
            field = fields_of(cls).get(name)
            if rules and field is not None and "help" in field.metadata:
                assert field.validator is not None or cls.__name__ in UNCHECKED, (cls, name)
                checked[0] += 1
    assert checked[0] > 60


UNCHECKED = set()
"""Settings whose host checks them when the algorithm's are made."""


def _settings_classes():
    """Every attrs class of the product, also those that no class takes."""
    packages = ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search")
    for package in packages:
        found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        for module in found:
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    modules = [module for name, module in sys.modules.items() if name.startswith(packages)]
    known = (thing for module in modules for thing in vars(module).values())
    return {thing for thing in known if isinstance(thing, type) and attrs.has(thing)}


# What a paper publishes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("DPGIBO", (1.0,), {"n_steps": 25, "clipping_norm": 3.0, "as_published": True}),
        ("LDPTGPUCB", (1.0,), {"constants": "theorem"}),
        ("LDPATAGPUCB", (1.0,), {"constants": "theorem", "dictionary": "paper"}),
        ("LDPMoMAGPUCB", (1.0,), {"constants": "theorem", "dictionary": "paper"}),
        ("DUETS", (4,), {"variant": "paper"}),
        ("POGPUCB", ([[0.0], [1.0]],), {"correction": "none", "beta_scale": 1.0}),
    ],
)
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
def test_paper_makes_both_hosts_classes_as_published(name, args, expected):
    needed = {"bound": 1.0} if name.startswith("LDP") else {}
    needed = {"n_trials": 40} if name == "DUETS" else needed
    for cls in (
        getattr(optuna_samplers, f"{name}Sampler"),
        getattr(raytune_searchers, f"{name}Search"),
    ):
        made = cls.paper(*args, **needed)
        settled = vars(settings_of(made))
        assert {key: settled[key] for key in expected} == expected
        first, value = next(iter(expected.items()))
        changed = {"n_steps": 7, "constants": "order", "variant": "default",
                   "correction": "kernel"}[first]  # fmt: skip
        other = cls.paper(*args, **needed, **{first: changed})
        assert vars(settings_of(other))[first] == changed
        assert changed != value


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("optuna_samplers.DPGIBOSampler(1, clip", ["clipping_norm="]),
        ("raytune_searchers.DUETSSearch(4, first_", ["first_epoch="]),
        ("optuna_samplers.ldp_objective(abs, user_b", ["user_budget="]),
        ("optuna_samplers.FederatedServer(config, dead", ["deadline="]),
        ("curators.Curator(X, outcome_m", ["outcome_mechanism="]),
    ],
)
def test_a_notebook_completes_present_settings(written, expected):
    jedi = pytest.importorskip("jedi", reason="jedi is not installed (the dev extra)")
    names = {
        "optuna_samplers": optuna_samplers, "raytune_searchers": raytune_searchers,
        "curators": curators,
    }  # fmt: skip
    assert [c.name for c in jedi.Interpreter(written, [names]).complete()] == expected


class OwnFloat(float):
    """A number whose code would see what is computed with it."""


class OwnInt(int):
    """Likewise."""


class OwnText(str):
    """Likewise, where it is compared."""


OWN = {
    "a float": (OwnFloat(0.5), 0.5), "an integer": (OwnInt(3), 3), "a truth": (True, True),
    "a text": (OwnText("f1"), "f1"), "NumPy's float": (np.float64(0.5), 0.5),
    "NumPy's integer": (np.int8(3), 3), "a fraction": (Fraction(1, 2), 0.5),
    "records": ([1.0, math.nan, "x"], [1.0, math.nan, "x"]), "nothing": (None, None),
}  # fmt: skip


MAPPED = "constraints", "incumbent"


def kinds(value):
    return (type(value), *map(kinds, value)) if isinstance(value, tuple | list) else type(value)


OURS = [entry for entry in entries() if entry.config.startswith("privbo_plugins.")]


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_settings_keep_no_number_or_text_of_another_class(entry):
    for name, field in fields_of(entry.load_config()).items():
        if name in ("kernel_matrix", "features", "scores"):  # arrays, and objects of ours
            continue
        for given, kept in OWN.values():
            made = field.converter({"f1": given} if name in MAPPED else given)
            own = made["f1"] if name in MAPPED else made
            assert (own, kinds(own)) == (kept, kinds(kept)), name


def test_a_score_and_a_constraint_keep_no_number_or_text_of_another_class():
    """A user's number saw a draw that was not committed."""
    own = scores.Score(OwnText("own"), scores.Cells(), lambda m, s: m[0], OwnFloat(0.0))
    limits = {OwnText("own"): OwnFloat(0.5)}
    config = MeansConfig(mu=1, n_trials=1, scores=[own], constraints=limits)
    ((name, limit),) = config.constraints.items()
    assert [type(name), type(own.name)] == [str, str]
    ends = evolve(config, scores=None, constraints=None, loss_bound=(OwnFloat(0), OwnInt(1)))
    assert {float} == {*map(type, (limit, own.low, *ends.value_range))}
