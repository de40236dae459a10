"""Public programs that know nothing of hindmost, each as a job of two ranks that takes 15 to 40 s on two cores.

Debian's and PyPI's are used where they are installed. Others lie in the folder of programs: ``miniFE.x`` (Mantevo's
miniFE, reference version), ``mingpt`` (minGPT-ddp of PyTorch's examples: its Python files and ``data``) and
``pytorch_synthetic_benchmark.py`` (Horovod's examples). A program that is not there is listed as missing, with why.
"""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HPCC_INPUT = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
#: Debian's programs are linked with Debian's MPI, whatever a virtual environment has.
MPIRUN = "/usr/bin/mpirun"
MPI = [MPIRUN, "--bind-to", "none", "-np", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
#: PyPI's torchvision has operators for CUDA only, of which no model needs one, and does not load without them.
WITHOUT_CUDA = """
import runpy, sys, torch
try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(name + "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: The Lennard-Jones melt of LAMMPS' benchmarks, with neighbour lists rebuilt when atoms have moved far enough.
MELT = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 16 0 16 0 16
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 1 check yes
fix 1 all nve
thermo 100
run 2500
"""


@dataclass(frozen=True)
class Program:
    """How a program is started and what it needs.

    ``command`` gets the folder of programs and the job's own; ``lacks`` says what is missing. Its ranks work ``after``
    s after they began and once they wrote ``begins``, and ``settle`` s later are killed or stopped. ``python``: an
    interrupt raises an exception in a rank; ``reads``: its ranks read files all along. ``trains`` is false where no
    steps repeat for long enough to show that a rank is slow.
    """

    name: str
    command: Callable[[Path, Path], list[str]]
    lacks: Callable[[Path], str | None]
    after: float
    python: bool = False
    reads: bool = False
    trains: bool = True
    begins: str = ""
    settle: float = 4.0


def _debian(package: str, program: str) -> Callable[[Path], str | None]:
    def lacks(_: Path) -> str | None:
        if not Path(MPIRUN).exists():
            return "no mpirun: apt-get install openmpi-bin"
        return None if shutil.which(program) else f"no {program}: apt-get install {package}"

    return lacks


def _modules(*names: str, file: str | None = None) -> Callable[[Path], str | None]:
    def lacks(programs: Path) -> str | None:
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            return f"not installed: pip install {' '.join(missing)}"
        return f"no {file} in {programs}" if file and not (programs / file).exists() else None

    return lacks


def _mini_fe(programs: Path) -> str | None:
    return _debian("openmpi-bin", MPIRUN)(programs) or (
        None if (programs / "miniFE.x").exists() else f"no miniFE.x in {programs}"
    )


def _hpcc(_: Path, folder: Path) -> list[str]:
    text = HPCC_INPUT.read_text()
    for old, new in (("1000  ", "2000  "), ("2            Ps", "1            Ps")):
        text = text.replace(old, new, 1)
    (folder / "hpccinf.txt").write_text(text)
    return [*MPI, "hpcc"]


def _lammps(_: Path, folder: Path) -> list[str]:
    (folder / "in.melt").write_text(MELT)
    return [*MPI, "lmp", "-in", "in.melt", "-log", "none"]


def _accelerate(_: Path, __: Path) -> list[str]:
    spec = importlib.util.find_spec("accelerate")
    assert spec is not None
    script = Path(str(spec.origin)).parent / "test_utils/scripts/test_script.py"
    return ["env", "ACCELERATE_USE_CPU=1", *TORCHRUN, str(script)]


def _horovod(programs: Path, _: Path) -> list[str]:
    script = str(programs / "pytorch_synthetic_benchmark.py")
    sizes = ["--model", "squeezenet1_1", "--batch-size", "1", "--num-warmup-batches", "2", "--num-iters", "20"]
    run = [sys.executable, str(Path(sys.executable).with_name("horovodrun")), "-np", "2", "--gloo"]
    return [*run, sys.executable, "-c", WITHOUT_CUDA, script, "--no-cuda", "--num-batches-per-iter", "5", *sizes]


PROGRAMS = {
    one.name: one
    for one in (
        Program("hpcc", _hpcc, _debian("hpcc", "hpcc"), 1.0, trains=False, settle=1.0),
        Program("lammps", _lammps, _debian("lammps", "lmp"), 1.0),
        Program(
            "miniFE",
            lambda programs, _: [*MPI, str(programs / "miniFE.x"), "nx=150", "ny=150", "nz=150"],
            _mini_fe,
            0.0,
            begins="Starting CG solver",
        ),
        Program(
            "minGPT",
            lambda programs, _: [*TORCHRUN, str(HERE / "mingpt_loop.py"), str(programs / "mingpt")],
            _modules("torch", file="mingpt"),
            0.0,
            python=True,
            reads=True,
            begins="number of parameters",
        ),
        Program(
            "accelerate",
            _accelerate,
            _modules("torch", "accelerate"),
            0.0,
            python=True,
            trains=False,
            begins="**Training integration test**",
            settle=0.3,
        ),
        Program(
            "DeepSpeed",
            lambda _, __: [*TORCHRUN, str(HERE / "deepspeed_loop.py")],
            _modules("torch", "deepspeed"),
            0.0,
            python=True,
            begins="training",
        ),
        Program(
            "Horovod",
            _horovod,
            _modules("torch", "horovod", "torchvision", file="pytorch_synthetic_benchmark.py"),
            0.0,
            python=True,
            begins="Running benchmark",
        ),
    )
}
