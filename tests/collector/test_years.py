"""A collector that runs for years: what it holds is of the jobs that run, not of those that ran."""

import pytest

from bench.agent_years import held
from bench.collector_years import Service

#: Of 40 minutes each: those of the last hour may still be known.
WARM, MORE, MINUTES = 3, 5, 40


async def test_a_collector_holds_nothing_of_jobs_that_are_over(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly three times as many jobs leave no more objects and bytes: each was judged, written down and forgotten."""
    monkeypatch.setattr("hindmost_collector.store.parquet.store.MOST_DIRECTORIES", 8)

    service, states = Service(tmp_path), []
    await service.connect()
    for number in range(WARM + MORE):
        await service.job(number, MINUTES)
        if number in {WARM - 1, WARM + MORE - 1}:
            states.append(held(service.collector))
    await service.close()
    before, after = states
    assert after["objects"] - before["objects"] < MORE
    assert after["bytes"] - before["bytes"] < 4096


async def test_the_end_of_stdin_ends_its_own_job_alone(tmp_path):
    """A collector that serves until its stdin closes still forgets jobs that end before: those that run are kept."""
    service = Service(tmp_path, exit_when_stdin_closes=True)
    await service.connect()
    await service.job(0, MINUTES)
    assert not service.collector.jobs
    await service.close()
