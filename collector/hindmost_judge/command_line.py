"""Reading command lines that are not ours: where the launcher stands, what its options say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
        " --pset --dvm-uri --preload-files -hostlist".split(),
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


def name(word: str) -> str:
    """The last part of a path."""
    return os.path.basename(word)  # noqa: PTH119 - a word, not a path


def position(argv: Sequence[str], names: frozenset[str]) -> int | None:
    """Where in ``argv`` the program with one of these names stands: first, or behind wrappers; ``None`` if nowhere."""
    for index, word in enumerate(argv):
        if name(word) in names:
            return index
        if index == 0 and name(word) not in WRAPPERS:
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
