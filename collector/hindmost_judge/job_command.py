"""Command lines of jobs: where the launcher stands, which word is the script, what keeps the probe out.

The script is what a person would call the job after. Options of Python that keep the probe out: ``-S`` runs no start-up
file, ``-I`` and ``-E`` ignore PYTHONPATH. By the shim (``native/python_entry.c``), and where hindmost is installed, the
probe gets into the latter two.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

#: Commands that run the command in their arguments.
WRAPPERS = frozenset(
    "env nice nohup time timeout stdbuf setsid numactl taskset ionice chrt unbuffer strace catchsegv exec".split()
)

#: Programs of each launcher.
ACCELERATE = frozenset({"accelerate"})
HOROVODRUN = frozenset({"horovodrun"})
SRUN = frozenset({"srun"})
TORCHRUN = frozenset({"torchrun", "deepspeed"})
MPIRUN = frozenset(
    {"orterun", "prterun"}
    | {f"{program}{kind}" for program in ("mpirun", "mpiexec") for kind in ("", ".openmpi", ".mpich", ".hydra")}
)
#: Options that take words of their own; any other is taken for a flag.
MPIRUN_ARITY = {
    **dict.fromkeys(
        "-n -np --n --np -c -N -x -H -host --host -hosts -f -hostfile --hostfile -machinefile --machinefile"
        " --default-hostfile --map-by -map-by --bind-to -bind-to --rank-by -rank-by -wdir --wdir -wd --prefix"
        " --output-filename --output --timeout --npernode -npernode -ppn -ppr --rankfile -rf --display --stdin --path"
        " --tune -am --runtime-options --personality --app -genvlist -envlist -launcher -bootstrap -iface -rmk"
        " --pset --dvm-uri --preload-files -hostlist -launcher-exec -bootstrap-exec -demux -configfile".split(),
        1,
    ),
    **dict.fromkeys(
        "--mca -mca --gmca -gmca --prtemca --gprtemca --pmixmca --gpmixmca -genv -env".split(),
        2,
    ),
}
#: Options that take none, of those in use; an option that is in neither table may be either.
MPIRUN_FLAGS = frozenset(
    "--allow-run-as-root --oversubscribe -oversubscribe --use-hwthread-cpus --report-bindings -report-bindings"
    " --tag-output -tag-output --timestamp-output --display-map -display-map --display-allocation"
    " --nooversubscribe --bynode --bycore --byslot -bynode -byslot --bind-to-core --bind-to-none"
    " --do-not-resolve -v --verbose -q --quiet -l -prepend-rank -genvall -envall -genvnone -envnone"
    " -print-rank-map".split()
)


def program_name(word: str) -> str:
    """The last part of a path."""
    return os.path.basename(word)  # noqa: PTH119 - a word, not a path


def position(argv: Sequence[str], names: frozenset[str]) -> int | None:
    """Where in ``argv`` the program with one of these names stands: first, or behind wrappers; ``None`` if nowhere."""
    for index, word in enumerate(argv):
        if program_name(word) in names:
            return index
        if index == 0 and program_name(word) not in WRAPPERS:
            return None
    return None


def options(words: Sequence[str], arity: Mapping[str, int]) -> Iterator[tuple[int, str, str]]:
    """``(index of the option, option, first value)`` of each option in front of the program that ``words`` run.

    ``arity`` says how many words each option takes that takes any; ``--option=value`` is understood too.
    """
    index = 0
    while index < len(words) and words[index].startswith("-"):
        option, equals, value = words[index].partition("=")
        taken = 0 if equals else arity.get(option, 0)
        yield index, option, value if equals else " ".join(words[index + 1 : index + 1 + min(taken, 1)])
        index += 1 + taken


def module(argv: Sequence[str], modules: tuple[str, ...]) -> int | None:
    """Where ``-m MODULE`` with one of these modules (or one inside them) stands in a ``python`` command line."""
    for index, word in enumerate(argv[:-1]):
        if word == "-m":
            return index if argv[index + 1].startswith(modules) else None
    return None


def starts(argv: Sequence[str], programs: frozenset[str], modules: tuple[str, ...] = ()) -> bool:
    """Whether a command line runs one of these programs, or Python with one of these modules."""
    return position(argv, programs) is not None or module(argv, modules) is not None


INTERPRETER = re.compile(r"python(3(\.\d+)?)?t?")


def isolating_option(argv: Sequence[str]) -> tuple[str, str] | None:
    """The interpreter of a command line and which of ``-S``, ``-I`` and ``-E`` it is given; ``None``: none of them."""
    for at, word in enumerate(argv):
        if INTERPRETER.fullmatch(Path(word).name):
            letters = _letters(argv[at + 1 :])
            found = next((letter for letter in "SIE" if letter in letters), None)
            if found:
                return word, f"-{found}"
    return None


def _letters(words: Sequence[str]) -> str:
    """The one-letter options before the script, ``-c`` or ``-m``; several may share a word (``-Iu``)."""
    found, value = "", False
    for word in words:
        if value:
            value = False
            continue
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        for at, letter in enumerate(word[1:], 1):
            if letter in "cm":
                return found
            if letter in "WX":  # what follows is their value, here or in the next word
                value = at == len(word) - 1
                break
            found += letter
    return found


def isolation_remedy(python: str, option: str) -> str:
    """Why the probe does not start in an interpreter with this option, and the remedy."""
    if option == "-S":
        return f"`{python} -S` skips start-up files, so the probe does not start: drop -S"
    return (
        f"`{python} {option}` ignores PYTHONPATH, so the probe does not start: drop {option},"
        f" or install hindmost into that Python (`{python} -m pip install .` in a clone of it), or install a C compiler"
    )


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
#: What a shell's text has besides programs and their arguments.
_NO_PROGRAM = re.compile(rf"-.*|{_ASSIGNMENT.pattern}|exec|[\W_]*", re.DOTALL)
_SHELL = re.compile(r"(ba|da|z|k|c|tc)?sh")
#: Programs that take a module for a script, as Python does.
_TAKE_MODULES = TORCHRUN | ACCELERATE
#: Programs that start Python without naming it.
START_PYTHON = _TAKE_MODULES | HOROVODRUN
_MODULE = re.compile(r"-[A-Za-z]*m|--module")
#: Programs a shell's text begins with, besides Python, a shell and an assignment.
_RUN_OTHERS = WRAPPERS | START_PYTHON | MPIRUN | SRUN | {"cd"}
#: Modules that run the script, or the module, in their arguments.
RUNNERS = tuple(
    f"{name}."
    for name in (
        "torch.distributed.run torch.distributed.launch torch.distributed.launcher horovod.runner accelerate.commands"
        " deepspeed.launcher hindmost mpi4py cProfile profile trace pdb debugpy coverage"
    ).split()
)


def script(words: Sequence[str]) -> str | None:
    """The first Python script or module of a command line, else its first shell script, else the program.

    ``None``: no word of it. Python first: launchers' own options name shell scripts, as ``--host-discovery-script``
    does. The program is the one that mpirun starts, where mpirun's own options show it.
    """
    each = list(_each(words))
    programs = [(at, word) for at, word in enumerate(each) if not _NO_PROGRAM.fullmatch(word)]
    python = [word for at, word in programs if word.endswith(".py") or _is_module(each, at)]
    shell = [word for _, word in programs if word.endswith(".sh")]
    started = [] if python or shell else _started(each)
    return next(iter(python or shell or started or [word for _, word in programs]), None)


def split(line: str) -> list[str]:
    """The words of a command line as a shell reads them; by blanks where a quotation mark stands alone."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _is_module(words: Sequence[str], at: int) -> bool:
    """Whether this is the module that Python, or a launcher of Python, runs; not one that runs another.

    What a rank says of itself has no interpreter in front.
    """
    if at == 0 or not _MODULE.fullmatch(words[at - 1]) or f"{words[at]}.".startswith(RUNNERS):
        return False
    before = [program_name(word) for word in words[: at - 1]]
    return all(word.startswith("-") for word in before) or any(
        INTERPRETER.fullmatch(word) or word in _TAKE_MODULES for word in before
    )


def _started(words: Sequence[str]) -> list[str]:
    """The program that mpirun starts; empty where there is none, or an option may be any of its words."""
    at = position(words, MPIRUN)
    if at is None:
        return []
    rest = list(words[at + 1 :])
    while rest and rest[0].startswith("-"):
        option, equals, _ = rest[0].partition("=")
        if not equals and option not in MPIRUN_ARITY and option not in MPIRUN_FLAGS:
            return []
        rest = rest[1 + (0 if equals else MPIRUN_ARITY.get(option, 0)) :]
    while rest and (program_name(rest[0]) in WRAPPERS or _ASSIGNMENT.fullmatch(rest[0])):
        rest = rest[1:]
    return rest[:1] if rest and not _NO_PROGRAM.fullmatch(rest[0]) and not rest[0].isdigit() else []


def _each(words: Sequence[str]) -> Iterator[str]:
    """The words, and those of a shell's text among them, as in ``sh -c 'RANK=$SLURM_PROCID exec python train.py'``."""
    for at, word in enumerate(words):
        inner = split(word)
        runs = _reads_code(words[:at])
        if runs and INTERPRETER.fullmatch(runs):
            yield ""  # Python's code
        elif len(inner) > 1 and (runs or _is_text(inner)):
            yield from (one.strip("'\";&|(){}") for one in inner)
        else:
            yield word.strip("'\";&|(){}")


def _reads_code(before: Sequence[str]) -> str | None:
    """The shell, or the Python, whose ``-c`` ends these words; ``None`` where none does."""
    if not before or not re.fullmatch(r"-\w*c", before[-1]):
        return None
    names = [program_name(word) for word in reversed(before)]
    return next((name for name in names if INTERPRETER.fullmatch(name) or _SHELL.fullmatch(name)), None)


def _is_text(inner: Sequence[str]) -> bool:
    """Whether a word with blanks is a shell's text, as ssh takes it, rather than a path that has some."""
    first = program_name(inner[0])
    runs = INTERPRETER.fullmatch(first) or _SHELL.fullmatch(first) or _ASSIGNMENT.fullmatch(first)
    return bool(runs) or first.startswith("-") or first in _RUN_OTHERS
