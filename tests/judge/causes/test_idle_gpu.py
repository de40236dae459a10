"""A rank whose GPU idles while its peers' work: late by its host, whatever its GPU's phases took."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.causes.table import with_gpu_idle
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

BUSY = "hindmost_gpu_utilization_ratio"
WRITTEN = "hindmost_process_written_bytes_total"
FAULTS = "hindmost_process_major_page_faults_total"
WAITED = "hindmost_node_pressure_waiting_seconds_total"


def late_in_forward(busy: float, written: float = 0.0, faults: float = 0.0, waited: float = 0.0) -> Run:
    """A job in which rank 1's forward on the GPU is 40 % of a step longer, that GPU being ``busy`` of the time.

    ``written`` (bytes a second) and ``faults`` (a second) are that rank's alone; ``waited`` (s/s) is its node's.
    """
    run = simulate(Scenario(ranks=4, steps=100, seed=3, faults=(Fault("compute", (1,), 0.4),))).run
    table = run.metrics
    seconds = (table["time_ns"] - table["time_ns"].min()) / 1e9
    labels = table["labels"].astype(str)
    its = (np.char.find(labels, '"GPU-00000001"') >= 0) | (np.char.find(labels, '"rank": "1"') >= 0)
    value = np.array(table["value"])
    for name, level in ((WRITTEN, its * written), (FAULTS, its * faults), (WAITED, waited)):
        held = table["name"] == name
        value[held] = (seconds * level)[held]
    held = table["name"] == BUSY
    value[held] = np.where(its, busy, 1.0)[held]
    return replace(run, metrics=table | {"value": value})


@pytest.mark.parametrize(
    ("levels", "cause"),
    [
        ({"busy": 1.0}, "compute"),
        ({"busy": 0.65}, "unknown"),
        ({"busy": 0.65, "written": 1e9, "waited": 0.05}, "io"),
        ({"busy": 0.65, "written": 1e9, "waited": 0.05, "faults": 90.0}, "memory"),
        ({"busy": 0.65, "written": 5e6, "waited": 0.05}, "unknown"),
        ({"busy": 0.65, "written": 1e9}, "unknown"),
        ({"busy": 1.0, "written": 1e9, "waited": 0.05}, "compute"),
    ],
)
def test_what_an_idle_gpu_waits_for_is_its_host_s(levels: dict[str, float], cause: str) -> None:
    """Idle, it computes nothing longer; a phase that moved the matching bytes without CPU time is the cause."""
    (verdict,) = judge(late_in_forward(**levels)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), cause)


def test_a_host_that_is_late_for_an_unknown_reason_is_said_to_be() -> None:
    """The evidence says that the GPU had nothing to do, and that the reason was not measured."""
    (verdict,) = judge(late_in_forward(0.65)).verdicts
    assert any("its CPU launched work late" in sentence for sentence in verdict.evidence)


def test_what_the_host_is_known_to_have_done_is_not_idling_too() -> None:
    """Of 20 ms in which a GPU idles 15 of input leave 5, and computing what is left of the delay."""
    shares = with_gpu_idle({"input": 15.0, "compute": 12.0}, 20.0, 30.0)
    assert shares == {"input": 15.0, "compute": 10.0, "idle": 5.0}


def test_a_gpu_that_idles_for_nearly_all_that_is_left_computes_nothing_longer() -> None:
    """Of the 10 ms that input leaves it idles 9: what a driver samples does not tell the tenth."""
    shares = with_gpu_idle({"input": 15.0, "compute": 12.0}, 24.0, 25.0)
    assert shares == {"input": 15.0, "compute": 0.0, "idle": 10.0}


def test_computing_beyond_the_visible_delay_stays_so_next_to_an_idle_moment() -> None:
    """Backward hides half of it: a tenth of the delay was idling, and so nine tenths of all is computing."""
    assert with_gpu_idle({"compute": 8e6}, 0.4e6, 4e6) == {"idle": 0.4e6, "compute": pytest.approx(7.2e6)}
    assert with_gpu_idle({"compute": 3e6}, 0.4e6, 4e6) == {"idle": 0.4e6, "compute": pytest.approx(3e6)}
