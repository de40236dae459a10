"""One build of the extension serves every CPython that has the GIL, and needs no header of Python's."""

import ctypes
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hindmost.native import build
from hindmost.ring import native

pytestmark = pytest.mark.needs("cc")

HEADER = build.SOURCES / "python_abi.h"
STRUCTS = (
    "PyObject PyDescrObject PyMethodDescrObject PyCFunctionObject "
    "PyMethodDef PyMemberDef PyGetSetDef PyType_Slot PyType_Spec PyModuleDef_Base PyModuleDef Py_buffer"
).split()

#: Run by another interpreter: a training loop's steps, seen by hooks in C and written by a ring in C.
LOOP = """
import json, sys, threading
from types import SimpleNamespace
from hindmost import ring
from hindmost.ring import native
identity = SimpleNamespace(job_id="j", rank=0, world_size=1, local_rank=0, framework="torch", command="c")
writer = ring.Writer.create(sys.argv[1], identity, "py", capacity=256)
class Rare:
    def first(self, trains): loop.thread = threading.get_ident()
    def tick(self, *args): pass
    closes = gpu = account = tick
    def way(self, batch): return (0,)
module = native.load()
loop = module.Loop(Rare(), lambda: True)
loop.bind(writer.native, tuple(map(writer.name, ("input", "forward", "backward", "optimizer", "train", "eval"))))
class Batches:
    def __next__(self): return (SimpleNamespace(shape=(4, 3)),)
class Loss:
    def backward(self): return "gradients"
fetch, backward = module.Hook(loop, "fetch", Batches.__next__), module.Hook(loop, "backward", Loss.backward)
entered = [hook.enter() for hook in (fetch, backward)]
if not all(entered):
    Batches.__next__, Loss.backward = lambda self: fetch(self), lambda self: backward(self)
begins, ends = module.Hook(loop, "step_begins"), module.Hook(loop, "step_ends")
batches, loss, optimizer = Batches(), Loss(), object()
for _ in range(4):
    next(batches)
    called_by_name = loss.backward
    assert called_by_name() == "gradients"
    begins(optimizer), ends(optimizer)
loop.finish()
try:
    writer.event(1)
except TypeError:
    writer.event(ring.MARK, writer.name("refused"), 1, 2)
events = ring.Reader(writer.path).poll()
print(json.dumps([[sys.version_info[1], entered], *((event.name, event.value) for event in events)]))
"""


def test_hooks_built_by_one_python_serve_another(tmp_path: Path, python_314: str) -> None:
    """Python 3.14 writes the same records through the very library that this interpreter loads."""
    said = [_recorded(python, tmp_path / name) for python, name in ((sys.executable, "own"), (python_314, "other"))]
    assert [one[0] for one in said] == [[sys.version_info[1], [sys.version_info >= (3, 12)] * 2], [14, [True, True]]]
    assert said[0][1:] == said[1][1:]
    names = [name for name, _ in said[1][1:]]
    assert [names.count(name) for name in ("input", "forward", "backward", "optimizer", "train")] == [4] * 5
    assert ["train", 4] in said[1]
    assert names[-1] == "refused"


def _recorded(python: str, rings: Path) -> list[list[object]]:
    agent = str(Path(build.__file__).parents[2])
    environ = {"PYTHONPATH": agent, "HINDMOST_RING_MODULE": str(build.library("ring"))}
    done = subprocess.run(
        [python, "-c", LOOP, str(rings)], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said: list[list[object]] = json.loads(done.stdout)
    return said


def test_no_header_of_python_is_needed(tmp_path: Path) -> None:
    """It is built where Python.h is not installed: here, where including one is an error."""
    (tmp_path / "Python.h").write_text("#error\n")
    built = build.library("ring", {"PATH": "/usr/bin:/bin", "CPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert native.load({"HINDMOST_RING_MODULE": str(built)}) is not None


def test_a_free_threaded_python_keeps_to_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are laid out otherwise, whether its GIL is on or not: nothing is loaded."""
    environ = {"HINDMOST_RING_MODULE": str(build.library("ring"))}
    assert native.load(environ) is not None
    monkeypatch.setattr(sys, "abiflags", "t")
    assert native.load(environ) is None


def test_numbers_and_layouts_are_pythons(tmp_path: Path) -> None:
    """What python_abi.h declares is what Python.h has."""
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        pytest.skip(f"needs Python.h: none in {include}")
    theirs = _told(tmp_path, "#include <Python.h>\n#include <structmember.h>\n", f"-I{include}")
    ours = _told(tmp_path, f'#include "{HEADER}"\n')
    assert len(ours) > 40
    assert ours == theirs


def _told(folder: Path, includes: str, *flags: str) -> dict[str, int]:
    """What a C program prints of every number and structure of ``python_abi.h``, after these headers."""
    text = HEADER.read_text()
    numbers = re.findall(r"^    (\w+) = ", text, re.MULTILINE)
    rows = [f'printf("%s %ld\\n", "{name}", (long)({name}));' for name in numbers]
    for name in STRUCTS:
        body = re.search(rf"typedef struct {{([^}}]*)}} {name};", text)
        assert body, name
        rows.append(f'printf("%s %zu\\n", "{name}", sizeof({name}));')
        for field in re.findall(r"(\w+)(?=[;,])|\(\*(\w+)\)\(", re.sub(r"\)\([^)]*\)", ")(", body[1])):
            member = next(filter(None, field))
            rows.append(f'printf("%s.%s %zu\\n", "{name}", "{member}", offsetof({name}, {member}));')
    source = folder / "told.c"
    main = "\n".join(["int main(void) {", *rows, "}\n"])
    source.write_text(f"{includes}#include <stddef.h>\n#include <stdio.h>\n{main}")
    subprocess.run([*build.compiler(), "-O1", *flags, "-o", folder / "told", source], check=True)
    said = subprocess.run([folder / "told"], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in map(str.split, said.splitlines())}


def test_every_name_is_there_when_all_are_bound_at_once() -> None:
    """Names that this Python lacks are weak: compilers that bind at load time (Ubuntu's, Zig) build what loads."""
    ctypes.PyDLL(str(build.library("ring")), mode=os.RTLD_NOW)
