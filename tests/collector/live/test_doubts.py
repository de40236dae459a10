"""Claims that full evaluations do not confirm are checked less and less often, until they are no longer made."""

from hindmost_collector.live.evaluation_schedule import UnconfirmedClaims

KEY, OTHER = ("straggler", (3,)), ("straggler", (4,))


def asked_in_vain(times: int) -> tuple[UnconfirmedClaims, float]:
    """Doubts of what was asked so many times, each as soon as it was worth it, and when the last time was."""
    doubts, now = UnconfirmedClaims(), 0.0
    for _ in range(times):
        while not doubts.worth({KEY}, now):
            now += 0.5
        doubts.asked({KEY}, (), {KEY}, now)
    return doubts, now


def test_each_time_it_waits_for_twice_as_long_and_for_a_minute_at_most() -> None:
    """One second, two, four, … after it was first asked."""
    assert [asked_in_vain(times)[1] for times in (1, 2, 3, 4, 5)] == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert asked_in_vain(20)[1] - asked_in_vain(19)[1] == 60.0


def test_what_is_said_no_more_for_as_long_as_it_waited_is_asked_at_once_when_it_comes_again() -> None:
    """Sooner it is what looks say now and then."""
    doubts, now = asked_in_vain(4)
    assert doubts.worth((), now + 15.0) == set()
    assert KEY in doubts
    assert doubts.worth((), now + 17.0) == set()
    assert KEY not in doubts
    assert doubts.worth({KEY}, now + 18.0) == {KEY}


def test_a_claim_never_checked_before_does_not_wait() -> None:
    """And has others asked about soon again: what is new may be about them."""
    doubts, now = asked_in_vain(6)
    assert doubts.worth({KEY, OTHER}, now + 1.0) == {OTHER}
    assert doubts.worth({KEY, OTHER}, now + 99.0, again=False) == {OTHER}
    doubts.asked({OTHER}, {OTHER}, {KEY}, now + 1.0)
    assert doubts.worth({KEY}, now + 2.0) == {KEY}
