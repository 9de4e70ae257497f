"""Sphinx: one site of the pages in this folder, the tutorials, and the reference of the code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import privbo_plugins

project = "privbo-plugins"
author = copyright = "The privbo maintainers"
version = release = privbo_plugins.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"privbo-plugins {version}"
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # outputs are stored, and a test runs the code
highlight_language = "none"

copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

shutil.rmtree(
    Path(__file__).parent / "reference", ignore_errors=True
)  # pages of names that are gone
autosummary_imported_members = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 88
autodoc_mock_imports: list[str] = []
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("For experts", "params_style")]

suppress_warnings = [
    "myst.xref_missing",  # links out of docs/ are of files on GitHub's side: a test follows them
    "misc.highlighting_failure",
]


def _out_of_docs(_app: Any, name: str, source: list[str]) -> None:
    """Links to files beside docs/ become their names: the site has no copy of them."""
    if not name.startswith("tutorials/"):
        source[0] = re.sub(r"\[([^\]]+)\]\(\.\./(?!docs/)[^)]*\)", r"`\1`", source[0])


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("source-read", _out_of_docs)
