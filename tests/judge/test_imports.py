"""The judge stands alone: numpy and the standard library, and nothing of the collector."""

import ast
import sys
from pathlib import Path

import hindmost_judge

ALLOWED = {"hindmost_judge", "numpy", *sys.stdlib_module_names}
#: Arrow hashes columns, where a run is large enough for it.
LATER = {("encoding.py", "pyarrow")}


def test_the_judge_imports_numpy_only() -> None:
    """No module of it imports the collector, the agent, the probe or another library."""
    found = set()
    for path in Path(hindmost_judge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {(path.name, name) for name in names if name.partition(".")[0] not in ALLOWED} - LATER
    assert not found
