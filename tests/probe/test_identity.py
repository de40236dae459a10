"""Which processes are ranks, and which place the launchers' variables give them."""

import pytest
from hindmost import identity
from hindmost_judge.job_command import START_PYTHON

SCRIPT = ["python", "train.py", "--epochs", "3"]


def find(argv: list[str] = SCRIPT, **environ: str) -> identity.Identity | None:
    return identity.find({"HINDMOST_JOB_ID": "j1", "HINDMOST_LAUNCHER": "mpirun", **environ}, argv)


LAUNCHERS = {
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    "MPICH": {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"},
    "srun with PMIx": {"PMIX_RANK": "3", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
    "horovodrun": {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1"},
    "torchrun": {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
    "by hand": {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
}


@pytest.mark.parametrize("environ", LAUNCHERS.values(), ids=LAUNCHERS)
def test_every_launcher_is_understood(environ: dict[str, str]) -> None:
    """Rank, world size and local rank are read from the variables of each launcher."""
    found = find(**environ)
    assert found is not None
    assert (found.job_id, found.rank, found.world_size, found.local_rank) == ("j1", 3, 8, 1)
    assert found.command == "train.py --epochs 3"
    assert found.node


def test_the_inner_launcher_names_the_rank() -> None:
    """A worker of a torchrun that srun started is torchrun's rank, not srun's."""
    found = find(**LAUNCHERS["torchrun"], SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_ID="0")
    assert found is not None
    assert (found.rank, found.world_size) == (3, 8)


def test_a_batch_script_is_no_slurm_step() -> None:
    """SLURM_PROCID outside a job step does not make a rank."""
    assert find(SLURM_PROCID="0", SLURM_NTASKS="8", HINDMOST_LAUNCHER="torchrun") is None


def test_what_the_launcher_does_not_say_is_unknown() -> None:
    """A missing world size or local rank is -1, not a guess."""
    found = find(PMIX_RANK="2")
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank) == (2, -1, -1)


@pytest.mark.parametrize("launcher", ["python", "accelerate"])
def test_plain_python_is_rank_0_of_1(launcher: str) -> None:
    """Without a launcher, or by one that names no rank of one, the process that was started is the only rank."""
    found = find(HINDMOST_LAUNCHER=launcher)
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank) == (0, 1, 0)


def test_without_a_job_there_is_no_rank() -> None:
    """A process outside `hindmost run` is no rank, whatever its launcher says."""
    assert identity.find(LAUNCHERS["Open MPI"], SCRIPT) is None


@pytest.mark.parametrize(
    "argv",
    [
        ["/v/bin/python", "/v/bin/torchrun", "--nproc-per-node", "2", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python", "-u", "-m", "torch.distributed.launch", "train.py"],
        ["/usr/bin/python3", "/usr/bin/horovodrun", "-np", "2", "python", "train.py"],
        ["python", "-m", "horovod.runner.launch"],
        ["python", "-m", "hindmost", "agent"],
        ["python", "-m", "accelerate.commands.launch", "train.py"],
        *(["python", f"/v/bin/{name}", "train.py"] for name in sorted(START_PYTHON)),
    ],
)
def test_launchers_are_no_ranks(argv: list[str]) -> None:
    """A launcher under srun or in plain-python mode sees a rank's variables, and is none."""
    assert find(argv, RANK="0", WORLD_SIZE="2", HINDMOST_LAUNCHER="python") is None


@pytest.mark.parametrize(
    "argv",
    [
        [
            "python",
            "-c",
            "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)",
            "--multiprocessing-fork",
        ],
        ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"],
        ["python", "-s", "-c", "from multiprocessing.forkserver import main; main(3, 4)"],
    ],
)
def test_workers_are_no_ranks(argv: list[str]) -> None:
    """Processes that multiprocessing starts inside a rank are not that rank."""
    assert find(argv, RANK="0", WORLD_SIZE="2") is None


def test_a_script_that_is_named_like_a_flag_value_is_a_rank() -> None:
    """Only the program itself makes a launcher, not an argument of the training script."""
    assert find(["python", "train.py", "-m", "torch.distributed.run"], RANK="0", WORLD_SIZE="2") is not None


def test_the_token_tells_ranks_apart() -> None:
    """Two ranks, or the same rank of a larger world, do not take each other for themselves."""
    tokens = {
        identity.token(found)
        for found in (find(RANK="0", WORLD_SIZE="2"), find(RANK="1", WORLD_SIZE="2"), find(RANK="0", WORLD_SIZE="1"))
        if found
    }
    assert len(tokens) == 3
