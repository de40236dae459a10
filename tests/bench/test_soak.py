"""What a soak calls growth: memory beyond a rate, and more of what there are at most a few of."""

from typing import Any

import pytest

from bench import soak

LEVEL = {"half": 150.0, "last": 151.0, "second_half": {"an_hour": 2.0, "error": 3.0}}


@pytest.mark.parametrize(
    ("name", "seen", "said"),
    [
        ("collector_mib", {}, []),
        (
            "collector_mib",
            {"second_half": {"an_hour": 60.0, "error": 10.0}},
            ["collector_mib grows by 50 MiB an hour or more"],
        ),
        ("collector_mib", {"second_half": {"an_hour": 60.0, "error": 30.0}}, []),
        (
            "agent_files",
            {"half": 20.0, "last": 40.0, "second_half": {"an_hour": 80.0, "error": 5.0}},
            ["agent_files: 20 at half time, 40 at the end"],
        ),
        ("agent_files", {"half": 20.0, "last": 23.0, "second_half": {"an_hour": 12.0, "error": 5.0}}, []),
    ],
)
def test_a_soak_fails_where_a_service_surely_grows(name: str, seen: dict[str, Any], said: list[str]) -> None:
    """Noise does not fail it, nor what an allocator keeps for some minutes."""
    growth = {one: dict(LEVEL) for one in (*soak.MEMORY, *soak.COUNTED)}
    growth[name] |= seen
    assert soak.growing(growth, 40.0) == said


@pytest.mark.parametrize("leaked", [0.0, 30.0])
def test_memory_of_jobs_that_run_is_no_growth(leaked: float) -> None:
    """Where five more jobs run at the end, what each takes does not count as lost."""
    at_s = [float(at) for at in range(0, 900, 5)]
    jobs = [12.0 + (at > 300) + (at > 500) * 4 for at in at_s]
    memory = [150.0 + one + leaked * at / 3600 for at, one in zip(at_s, jobs, strict=True)]
    assert soak.slope(at_s, memory, jobs)["an_hour"] == pytest.approx(leaked)
