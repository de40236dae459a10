"""The word of a command line that a job is called after."""

import shlex

import pytest
from hindmost.identity import LAUNCHER_MODULES
from hindmost_collector.report.columns import title
from hindmost_judge.job_command import RUNNERS, script, split


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["python", "my job.py"], "my job.py"),
        (["/data/my runs/train.py", "--steps", "3"], "/data/my runs/train.py"),
        (["python", "-m", "pkg.train", "--config", "a.py"], "pkg.train"),
        (["-m", "pkg.train", "--config", "a.py"], "pkg.train"),
        (["python3.12", "-um", "pkg.train"], "pkg.train"),
        (["torchrun", "--nproc-per-node", "2", "-m", "pkg.train", "a.py"], "pkg.train"),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"], "train.py"),
        (["python", "-m", "mpi4py", "train.py"], "train.py"),
        (["python", "-m", "torch.distributed.run", "-m", "pkg.train", "a.py"], "pkg.train"),
        (["srun", "-m", "cyclic", "python", "train.py"], "train.py"),
        (["python", "train.py", "-m", "large"], "train.py"),
        (["python", "-c", "import a; open('b.py')"], "python"),
        (["sh", "-c", "RANK=0 exec python 'my job.py'"], "my job.py"),
        (["bash", "-lc", "for i in 0 1; do RANK=$i python a/train.py& done; wait"], "a/train.py"),
        (["ssh", "host", "python train.py"], "train.py"),
    ],
    ids=str,
)
def test_a_job_is_called_after_its_script_or_module(words: list[str], called: str) -> None:
    """Blanks in a path do not cut it, a module is a script, and what a module or a shell runs is looked for."""
    assert script(words) == called


@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("mpirun -np 3 --mca btl self,tcp ./solver in.dat", "./solver"),
        ("mpirun --allow-run-as-root --oversubscribe -np 3 -x A=1 /opt/bin/lmp -in a", "/opt/bin/lmp"),
        ("env A=1 mpiexec -n 2 --map-by=core nice ./solver", "./solver"),
        ("mpirun -np 1 ./first : -np 2 ./second", "./first"),
        ("mpirun -np 2 env A=1 ./solver", "./solver"),
        ("mpirun --some-option 3 ./solver", "mpirun"),
        ("mpirun -np 2 numactl -N 0 ./solver", "mpirun"),
        ("mpirun -np 2 timeout 10 ./solver", "mpirun"),
        ("mpirun", "mpirun"),
        ("mpirun -np 2 sh run.sh", "run.sh"),
    ],
)
def test_an_mpi_program_is_distinguished_from_its_launcher(command: str, called: str) -> None:
    """Where mpirun's own options are known its program is; where one may be a word of an option's, the launcher is."""
    assert script(shlex.split(command)) == called


def test_a_report_is_called_as_the_job_is() -> None:
    """The title reads a command as a shell does, also one that was cut within quotation marks."""
    job = {"id": "j", "command": "mpirun -np 2 python 'my job.py' --steps 3"}
    assert title({"job": job}) == "hindmost · my job.py"
    assert split("python 'my jo") == ["python", "'my", "jo"]


def test_the_judge_knows_every_launcher_that_the_probe_knows() -> None:
    """Modules that are no script of the user's are the same in both, though neither imports the other."""
    assert set(LAUNCHER_MODULES) <= set(RUNNERS)
