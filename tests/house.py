"""Lint of the house's own rules: how much there is to read, in what pieces and in what words.

``[tool.privbo.house]`` in pyproject.toml holds the most that each count may be. A count may rise
only together with its line under "Size" in CHANGELOG.md, which says why; one that fell far below
its limit asks for a lower limit. ``python -m tests.house`` prints the counts, ``--write`` lowers
the limits to them.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

PRODUCT = ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search")
SLACK = 0.02
"""A limit is out of date where its count is lower by more than this share."""
MOST = {"file": 500, "function": 45, "class": 25}
"""The most lines of code of a file and of a function, and the most methods of a class."""

RIDDLES = re.compile(r"\b(nobody|whoever|whatever)\b|\b(is|are|was|were) (told|said)\b", re.I)
"""Words that hide the actor: name the sampler, host, curator or agent instead."""
NO_VERBS = {"What", "Who", "Whose", "Whom", "Whoever", "How", "Why", "Whether", "Where", "That"}
"""First words of a function's docstring in place of a verb."""

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_DOCUMENTED = ast.Module | ast.ClassDef | _FUNCTION


def counts(root):
    """Everything that has a limit, by name, for the project in a folder, and what is too large."""
    found, large = Counter(), []
    for path in _sources(root, PRODUCT):
        source = path.read_text(encoding="utf8")
        tree = ast.parse(source)
        nodes = list(ast.walk(tree))
        functions = [node for node in nodes if isinstance(node, _FUNCTION)]
        code = code_of(source, tree)
        large += too_large(path.relative_to(root), nodes, code)
        found["product lines"] += len(code)
        found["files"] += 1
        found["classes"] += sum(isinstance(node, ast.ClassDef) for node in nodes)
        found["functions"] += len(functions)
        found["riddles"] += sum(map(bool, map(RIDDLES.search, source.splitlines())))
        begun = ((ast.get_docstring(node) or "-").split()[0] for node in functions)
        found["docstrings without a verb"] += sum(word in NO_VERBS for word in begun)
    for path in _sources(root, ("tests",)):
        source = path.read_text(encoding="utf8")
        found["test lines"] += len(code_of(source, ast.parse(source)))
    pages = (root / "docs").rglob("*.md")
    found["words of docs"] = sum(len(page.read_text(encoding="utf8").split()) for page in pages)
    return dict(found), large


def too_large(path, nodes, code):
    """Yields what of a file is more than a reader keeps in mind."""
    sizes = [("file", path.name, len(code))]
    for node in nodes:
        if isinstance(node, _FUNCTION):
            own = code.intersection(range(node.lineno, node.end_lineno + 1))
            sizes.append(("function", node.name, len(own)))
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(one, _FUNCTION) for one in node.body)
            sizes.append(("class", node.name, methods))
    for kind, name, size in sizes:
        if size > MOST[kind]:
            what = "methods" if kind == "class" else "lines of code"
            yield f"{path}: the {kind} {name} has {size} {what}, more than {MOST[kind]}."


def code_of(source, tree):
    """Lines that hold code: no comments, docstrings or blanks."""
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in {*_NO_CODE, tokenize.ENDMARKER}:
            code.update(range(token.start[0], token.end[0] + 1))
    return code.difference(*map(_docstring_lines, ast.walk(tree)))


def _docstring_lines(node):
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)


def _sources(root, packages):
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))


def complaints(found, limits, changelog):
    """What is wrong with counts, their limits, and what the changelog says of these."""
    said = changelog.partition("\n### Size\n")[2].partition("\n##")[0]
    for name in found.keys() | limits.keys():
        count, limit = found.get(name), limits.get(name)
        if count is None or limit is None:
            yield f"{name}: has a count or a limit, not both."
        elif count > limit:
            yield f"{name}: {count:,}, more than {limit:,}. Take something out again."
        elif count < limit * (1 - SLACK):
            yield f"{name}: {count:,} now. Lower its limit: python -m tests.house --write"
        if limit is not None and not re.search(rf"^- {name}: {limit:,}\b.", said, re.M):
            yield f'{name}: CHANGELOG.md has no line "- {name}: {limit:,} ..." under "Size".'


def main():
    """Compares, prints, and fails where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower limits to the counts")
    writes = parser.parse_args().write
    root = Path(__file__).parent.parent
    project, changes = root / "pyproject.toml", root / "CHANGELOG.md"
    limits = tomllib.loads(project.read_text())["tool"]["privbo"]["house"]
    found, large = counts(root)
    for name, count in found.items() if writes else ():
        if count < limits[name]:
            _replace(project, f'"{name}" = {limits[name]}', f'"{name}" = {count}')
            _replace(changes, f"- {name}: {limits[name]:,}", f"- {name}: {count:,}")
            limits[name] = count
    wrong = [*complaints(found, limits, changes.read_text(encoding="utf8")), *large]
    print("; ".join(f"{name} {count:,}" for name, count in found.items()))
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


def _replace(path, old, new):
    path.write_text(path.read_text(encoding="utf8").replace(old, new, 1), encoding="utf8")


if __name__ == "__main__":
    sys.exit(main())
