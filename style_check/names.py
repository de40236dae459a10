"""Names in the code: which say nothing by themselves, of functions, classes, parameters, variables and attributes."""

import ast
from collections.abc import Iterator

#: Folders whose names are read.
FOLDERS = (
    "agent/",
    "collector/hindmost_collector/",
    "collector/hindmost_judge/",
    "style_check/",
)
#: Those of which only :data:`FORBIDDEN` is read, and what below them is not.
SUPPORTING = ("bench/", "dashboards/", "docs/", "examples/", "tests/")
UNREAD = (
    "bench/gpu/",
    "tests/kubernetes/",
    "tests/native/",
    "tests/probe/test_python_abi.py",
    "tests/wheel/",
)
#: What readers of reports know by that name.
IN_REPORTS = frozenset({"given"})
#: What is no name: the field has a noun for what it stands for.
FORBIDDEN = frozenset({"told", "untold", "few", "some", "even", "given"})
#: What says too little of a function or class; a variable that lives for a few lines may have it.
OF_DEFINITIONS = FORBIDDEN | {"known", "held", "found", "one", "seen", "unseen", "before", "kept", "fed", "asked"}


def findings(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and message of each name in a file, given relative to the repository, that is no name."""
    whole = path.startswith(FOLDERS)
    if path.endswith(".py") and (whole or (path.startswith(SUPPORTING) and not path.startswith(UNREAD))):
        for node in ast.walk(ast.parse(source)):
            name = _defined(node)
            forbidden = OF_DEFINITIONS if whole and isinstance(node, ast.FunctionDef | ast.ClassDef) else FORBIDDEN
            if path.endswith("/verdict/schema.py"):
                forbidden -= IN_REPORTS
            if name.strip("_").lower() in forbidden:
                yield node.lineno, f"{name!r}: name it by the field's noun (names)"  # type: ignore[attr-defined]


def _defined(node: ast.AST) -> str:
    """The name that a node defines; empty where it defines none."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return ""
