"""How long a stream is left unread."""

from learner.serving.pace import Pace


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_waits_for_the_rest_of_its_second() -> None:
    time = Time()
    pace = Pace(3, time)
    time.now += 0.25
    assert [pace.too_early() for _ in range(3)] == [0.0, 0.0, 0.75]
    time.now += 0.75
    assert [pace.too_early() for _ in range(3)] == [0.0, 0.0, 1.0]


def test_who_keeps_to_the_rate_never_waits() -> None:
    time = Time()
    pace = Pace(3, time)
    for _ in range(30):
        time.now += 0.4
        assert pace.too_early() == 0.0


def test_a_pause_earns_no_more_than_a_second() -> None:
    time = Time()
    pace = Pace(3, time)
    time.now += 100
    assert [pace.too_early() for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_no_rate_is_no_limit() -> None:
    pace = Pace(0, Time())
    assert not any(pace.too_early() for _ in range(1000))
