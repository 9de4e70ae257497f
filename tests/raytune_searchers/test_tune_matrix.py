"""Every cell of docs/ray-matrix.md on a real Ray, and that the page says what the table does."""

import warnings

import pytest

from tests.contracts import pages
from tests.contracts import tune_matrix as matrix
from tests.contracts.tune_matrix import ROWS
from tests.contracts.tune_systems import SYSTEMS

THIRD = {
    "MLflow": ("mlflow", "MLflow is not installed (the dev extra)"),
    "Weights & Biases": ("wandb", "wandb is not installed (the dev extra)"),
    "Ray Job": ("aiohttp_cors", "Ray's dashboard is not installed (ray[default], dev extra)"),
}
"""What a row needs that Ray Tune does without, and why it is skipped there."""

CELLS = [
    pytest.param(
        one,
        system,
        id=f"{one.name}-{system}",
        marks=pytest.mark.slow if system in one.ordinary else pytest.mark.soak,
    )
    for one in ROWS
    for system in SYSTEMS
    if not one.expected(system).startswith("not applicable")
]


@pytest.mark.usefixtures("the_ray")
@pytest.mark.parametrize(("row", "system"), CELLS)
def test_a_cell_is_as_documented(row, system, tmp_path):
    if row.name in THIRD:
        package, reason = THIRD[row.name]
        pytest.importorskip(package, reason=reason)
    with warnings.catch_warnings(record=True, action="always") as said:
        warnings.filterwarnings("ignore", "The noise of a broadcast is")  # of two agents
        found = row.run(SYSTEMS[system], tmp_path)
    assert found == row.expected(system)
    kinds = {one.category for one in said if one.category.__module__.startswith("privbo")}
    assert kinds <= set(row.warns)


def test_the_page_shows_the_table():
    pages.check(matrix.MODULE, matrix.PAGE, matrix.table())
