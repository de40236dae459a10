"""What the collector asks of agents when a verdict opens, of whom, and that the question reaches them."""

import pytest
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.session import Outbox
from hindmost_collector.live.verdicts import event_trace_request
from hindmost_proto import telemetry_pb2 as wire


def opened(**verdict):
    """The event that a verdict opens."""
    return {"event": "opened", "verdict": {"kind": "straggler", "ranks": [3], "since_step": 40, **verdict}}


def test_raw_events_are_asked_for_around_the_step_since_which_it_holds():
    """Of whom it names, sixteen at most, and of no step before the first."""
    assert event_trace_request("j", opened()) == wire.EventTraceRequest(
        job_id="j", ranks=[3], first_step=35, last_step=45
    )
    assert event_trace_request("j", opened(since_step=2)) == wire.EventTraceRequest(
        job_id="j", ranks=[3], first_step=0, last_step=7
    )
    assert list(event_trace_request("j", opened(ranks=list(range(40)))).ranks) == list(range(16))


@pytest.mark.parametrize("kind", ["hang", "desync"])
def test_a_stopped_job_is_asked_for_the_stacks_of_all(kind):
    """The awaited rank may be one that is not named."""
    assert event_trace_request("j", opened(kind=kind, since_step=None)) == wire.EventTraceRequest(
        job_id="j", stacks=True
    )


@pytest.mark.parametrize(
    "event",
    [opened() | {"event": "closed"}, opened() | {"event": "updated"}, opened(since_step=None), opened(ranks=[])],
)
def test_nothing_is_requested_where_there_is_nothing_to_see(event):
    """A verdict that goes on or ends, one without a step, and one that names no rank."""
    assert event_trace_request("j", event) is None


async def test_a_question_reaches_the_agents_of_the_job_and_of_whole_nodes(collecting, fake_agent):
    """Those of another job are left in peace."""
    question = wire.EventTraceRequest(job_id="j", stacks=True)
    async with collecting() as collector:
        jobs = {"own": "j", "node": "", "other": "k"}
        agents = {name: fake_agent(collector.addresses["grpc"], name, job=job) for name, job in jobs.items()}
        for agent in agents.values():
            await agent.connect(define=False)
        collector.ingest.ask("j", wire.EventTraceRequest(job_id="j", stacks=True))
        asked = []
        for name, agent in agents.items():
            for _ in range(2):  # what waited is sent with the first answer or before the second
                await agent.round_trip()
            asked += [
                (name, message.event_trace_request)
                for message in agent.messages
                if message.HasField("event_trace_request")
            ]
            await agent.close()
        assert asked == [("own", question), ("node", question)]


async def test_of_too_many_questions_the_oldest_give_way():
    """An agent that reads slowly is asked what is asked last, in order."""
    sent = []

    async def write(message):
        sent.append(message.event_trace_request.first_step)

    outbox = Outbox(JobClock())
    for step in range(20):
        outbox.request(wire.EventTraceRequest(job_id="j", first_step=step))
    outbox.close()
    await outbox.pump(write)
    assert sent == list(range(4, 20))
