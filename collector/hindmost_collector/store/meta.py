"""The facts of a run in ``meta.json``: only values that a job can have are believed, whatever program wrote them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hindmost.errors import HindmostError

NAME = "meta.json"
SCHEMA, VERSION = "hindmost.run/", 1
#: What is written is some kilobytes, with the names of all nodes of the largest job a few hundred.
_MOST_BYTES = 16 << 20
#: What each fact is; of numbers, the greatest.
_TEXT = ("job_id", "command", "launcher", "version", "interrupted_by", "no_ring", "page", "host")
_MOST = {"started_ns": 1 << 62, "ended_ns": 1 << 62, "world_size": 1 << 31, "exit_code": 1 << 31}
_OTHER = {"nodes": list, "left": list, "thresholds": dict, "environment": dict, "entered": bool}
#: Variables that tune a job, of which none names a secret; so many, with values of so many characters.
_TUNES = re.compile(
    r"(?!TF_CLI)(OMP|KMP|MKL|OPENBLAS|GOMP|GLOO|NCCL|UCX|FI|MPICH|MPIR_CVAR|I_MPI|OMPI_MCA|PRTE_MCA|HOROVOD|TORCH|PYTORCH"
    r"|CUDA|CUBLAS|CUDNN|TF|XLA|JAX|MALLOC|LD)_\w+"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CRED")
_VARIABLES, _VALUE = 200, 500
MISSING, _TORN = (f"{NAME} is {how}: command and exit code are unknown" for how in ("missing", "torn"))


def read(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What a run directory says of its job, and notes on what it does not. Raises OSError, and as ``parsed`` does."""
    try:
        return parsed(_content(folder), str(folder / NAME))
    except FileNotFoundError:
        return {}, [MISSING]


def facts(folder: Path) -> dict[str, Any]:
    """The same for callers that need no more: empty where it is gone, damaged or newer. Raises nothing."""
    try:
        return read(folder)[0]
    except (OSError, HindmostError):
        return {}


def parsed(content: bytes, name: str) -> tuple[dict[str, Any], list[str]]:
    """What is believed of the content of such a file, and notes on what is not.

    Raises HindmostError, with the file's ``name``, where a newer hindmost wrote it.
    """
    found = _loaded(content) if len(content) <= _MOST_BYTES else None
    if found is None:
        return {}, [_TORN]
    version = _version(found.get("schema", f"{SCHEMA}{VERSION}"))
    if version is None:
        return {}, [f"{NAME} is no hindmost run's, by its schema: command and exit code are unknown"]
    if version > VERSION:
        raise HindmostError(f"{name} was written by a newer hindmost (schema {version}): upgrade this one to read it")
    wrong = sorted(key for key, value in found.items() if value is not None and not _possible(key, value))
    note = f"{NAME} says of {', '.join(wrong)} what no job has: left out"
    return {key: value for key, value in found.items() if key not in wrong}, [note] if wrong else []


def tuning(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that set how a job computes and communicates."""
    names = sorted(name for name in environ if _TUNES.fullmatch(name) and not _SECRET.search(name))
    return {name: environ[name][:_VALUE] for name in names[:_VARIABLES]}


def settings(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the facts of a run say that it was started with; its environment may be unknown."""
    found = {"launcher": facts.get("launcher"), "hindmost": facts.get("version"), **(facts.get("environment") or {})}
    return tuple((str(name), value) for name, value in found.items() if isinstance(value, str))


def left(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that are known not to be lost: by their agents, and by the collector that wrote an end on its own."""
    ours = [facts.get("host") if facts.get("ended_ns") else None, *(facts.get("left") or ())]
    return tuple(one for one in ours if isinstance(one, str))


def merged(content: bytes | None, facts: Mapping[str, Any]) -> bytes:
    """What is written of a run: the known of these facts, and whatever others wrote there, believed or not.

    A line each. ``indent`` would leave closures behind that only the garbage collector finds: 5 KiB, several times a
    job.
    """
    found = _loaded(content or b"") or {}
    found |= {"schema": f"{SCHEMA}{VERSION}", **{key: value for key, value in facts.items() if value is not None}}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    return "\n".join(["{", ",\n".join(lines), "}", ""]).encode()


def is_ours(folder: Path) -> bool:
    """Whether this is a run's, and not another program's of the same name."""
    try:
        found = _loaded(_content(folder)) or {}
    except OSError:
        return False
    return str(found.get("schema", "")).startswith(SCHEMA)


def is_other(path: Path) -> bool:
    """Whether it is a pipe, a device or the like, which a reader would wait for."""
    return path.exists() and not path.is_file()


def _content(folder: Path) -> bytes:
    """What the file holds, to a byte too many; nothing of a pipe or a device, which would be read for ever."""
    path = folder / NAME
    if is_other(path):
        return b""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def _loaded(content: bytes) -> dict[str, Any] | None:
    """The object that JSON holds; ``None`` where it is damaged or something else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _version(schema: object) -> int | None:
    """Which version of ours it is; None for what is not ours."""
    if not isinstance(schema, str) or not schema.startswith(SCHEMA):
        return None
    number = schema.removeprefix(SCHEMA)
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def _possible(key: str, value: object) -> bool:
    if key in _TEXT:
        return isinstance(value, str)
    if key in _MOST:
        least = -_MOST[key] if key == "exit_code" else 0
        return isinstance(value, int) and not isinstance(value, bool) and least <= value < _MOST[key]
    return isinstance(value, _OTHER.get(key, object))
