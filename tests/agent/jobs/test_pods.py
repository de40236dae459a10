"""What an agent learns of a rank's pod from the rank's own environment."""

from pathlib import Path

from hindmost_agent.delivery.batch import Builder
from hindmost_agent.jobs.pods import LONGEST, pod_of
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_proto import telemetry_pb2 as wire

NAMED = {
    "HINDMOST_POD_NAMESPACE": "team-a",
    "HINDMOST_POD_NAME": "train-worker-3",
    "HINDMOST_POD_UID": "8d1c",
    "HINDMOST_WORKLOAD": "MPIJob/train",
    "HINDMOST_QUEUE": "gold",
}
POD = wire.Pod(namespace="team-a", name="train-worker-3", uid="8d1c", workload="MPIJob/train", queue="gold")


def a_process(proc: Path, **environ: str) -> Path:
    """A /proc with process 7 in it, which has this environment."""
    (proc / "7").mkdir()
    (proc / "7/environ").write_text("".join(f"{name}={value}\0" for name, value in environ.items()))
    return proc


def test_a_rank_says_its_pod_and_what_made_it(tmp_path: Path) -> None:
    """The variables that its pod's template sets by the downward API."""
    assert pod_of(a_process(tmp_path, PATH="/bin", **NAMED), 7) == POD


def test_most_ranks_are_in_no_pod(tmp_path: Path) -> None:
    """Without a namespace there is none; nor of a process that has ended, or is out of reach."""
    assert pod_of(a_process(tmp_path, HINDMOST_POD_NAME="train-worker-3"), 7) is None
    assert pod_of(tmp_path, 8) is None


def test_a_name_is_cut_where_kubernetes_would_refuse_it(tmp_path: Path) -> None:
    """The job may set these variables to anything."""
    found = pod_of(a_process(tmp_path, HINDMOST_POD_NAMESPACE="a" * 100_000), 7)
    assert found == wire.Pod(namespace="a" * LONGEST)


def test_it_is_sent_with_the_rank(tmp_path: Path) -> None:
    """In the definition of the rank, on the wire."""
    builder = Builder("n0", a_process(tmp_path, **NAMED))
    ref = builder.rank(RankProcess("train", 3, 8, 0, 7, 1))
    (rank,) = wire.AgentMessage.FromString(builder.pack().definitions[ref]).definitions.ranks
    assert rank.pod == POD
