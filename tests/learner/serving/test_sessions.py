"""What a session accepts, what it refuses and in which words, and that it accepts nothing twice."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from learner.flags import LEASE_START
from learner.serving.sessions import Session
from protos import inference_pb2 as pb
from protos import tensors
from protos.errors import InvalidRequest
from protos.specs import from_spaces

SPEC = from_spaces(
    spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (3,), np.uint8),
            "gear": spaces.Discrete(4, start=1),
            "speed": spaces.Box(-1, 1, (2,), np.float32),
        }
    ),
    spaces.Discrete(5),
)
FIRST, TERMINATED, TRUNCATED = pb.FIRST, pb.TERMINATED, pb.TRUNCATED


class Drive:
    """A session of 3 environments (slots 10, 11, 12), and what it sends."""

    def __init__(self) -> None:
        self.sent: list[pb.ServerMessage] = []
        self.replies: list[tuple[int, np.ndarray, int]] = []
        self.session = Session(
            token=b"t" * 16,
            client="a test",
            slots=np.array([10, 11, 12], np.int32),
            spec=SPEC,
            reply=lambda *reply: self.replies.append(reply),
        )
        self.session.attach(self.sent.append)

    def go(self, sequence: int, environments: list[int], *flags: int) -> None:
        """Accept a good step and answer it."""
        assert self.session.accept(step(sequence, environments, *flags)) is not None
        self.session.answer(sequence, np.zeros(len(environments), np.int64), 1)


def step(sequence: int, environments: list[int], *flags: int, **changes: Any) -> pb.Step:
    """A good step, but for `changes`; flags are of the rows, or one of all."""
    rows = len(environments)
    fields: dict[str, Any] = {
        "sequence": sequence,
        "environment": np.array(environments, tensors.INDEX).tobytes(),
        "reward": np.zeros(rows, tensors.REWARD).tobytes(),
        "flags": np.broadcast_to(np.array(flags or (0,), tensors.FLAGS), rows).tobytes(),
        "observation": leaves(rows),
        **changes,
    }
    return pb.Step(**fields)


def leaves(rows: int, camera: bytes | None = None, gear: int = 1, speed: float = 0.5) -> list[bytes]:
    return [
        bytes(range(rows * 3)) if camera is None else camera,
        np.full(rows, gear, np.int64).tobytes(),
        np.full((rows, 2), speed, np.float32).tobytes(),
    ]


def reward(*values: float) -> bytes:
    return np.array(values, tensors.REWARD).tobytes()


def refusal(session: Session, message: pb.Step) -> str:
    with pytest.raises(InvalidRequest) as refused:
        session.accept(message)
    return str(refused.value)


def test_a_step_becomes_a_request_of_the_sessions_slots() -> None:
    drive = Drive()
    request = drive.session.accept(step(1, [2, 0], FIRST, 0, reward=reward(0, 1.5)))
    assert request is not None
    assert request.slots.tolist() == [12, 10]
    assert request.reward.tolist() == [0, 1.5]
    assert request.flags.tolist() == [FIRST | LEASE_START, LEASE_START]
    assert request.flags.dtype == np.uint8
    assert [leaf.shape for leaf in request.observation] == [(2, 3), (2,), (2, 2)]
    assert request.observation[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    request.reply(np.array([3, 4]), 9)
    assert [(n, actions.tolist(), v) for n, actions, v in drive.replies] == [(1, [3, 4], 9)]


def test_a_session_that_clips_takes_what_is_not_finite() -> None:
    session = Session(
        token=b"t" * 16,
        client="a test",
        slots=np.array([10], np.int32),
        spec=SPEC,
        reply=lambda *reply: None,
        clip_observations=3.0,
    )
    request = session.accept(step(1, [0], FIRST, observation=leaves(1, speed=np.inf)))
    assert request is not None
    assert request.observation[2].tolist() == [[3.0, 3.0]]


def test_an_answer_carries_sequence_actions_and_version() -> None:
    drive = Drive()
    drive.session.accept(step(5, [0, 1], FIRST))
    assert not drive.session.idle
    drive.session.answer(5, np.array([3, 4]), 9)
    assert drive.session.idle
    (message,) = drive.sent
    assert message.actions.sequence == 5
    assert np.frombuffer(message.actions.action, np.int64).tolist() == [3, 4]
    assert message.actions.policy_version == 9


WRONG_CONTENTS = {
    "no rows": (
        {"environment": b""},
        "environment: expected 1 to 3 rows of int32, found 0 bytes",
    ),
    "a piece of a row": (
        {"environment": b"\0" * 9},
        "environment: expected 1 to 3 rows of int32, found 9 bytes",
    ),
    "more rows than environments": (
        {"environment": b"\0" * 16},
        "environment: expected 1 to 3 rows of int32, found 16 bytes",
    ),
    "a leaf missing": ({"observation": leaves(2)[:2]}, "observation: expected 3 leaves, found 2"),
    "a leaf too many": (
        {"observation": [*leaves(2), b""]},
        "observation: expected 3 leaves, found 4",
    ),
    "short pixels": (
        {"observation": leaves(2, camera=b"12345")},
        "observation 'camera': expected 6 bytes (2 rows of camera: uint8[3] in [0, 255]), found 5",
    ),
    "long categories": (
        {"observation": [*leaves(2)[:1], b"\0" * 24, *leaves(2)[2:]]},
        "observation 'gear': expected 16 bytes (2 rows of gear: categorical int64[] in [1, 4]), "
        "found 24",
    ),
    "short floats": (
        {"observation": [*leaves(2)[:2], b""]},
        "observation 'speed': expected 16 bytes (2 rows of speed: float32[2] in [-1.0, 1.0]), found 0",
    ),
    "rewards": (
        {"reward": reward(0)},
        "reward: expected 8 bytes (2 rows of float32), found 4",
    ),
    "flags": ({"flags": b"\0\0\0"}, "flags: expected 2 bytes (2 rows of uint8), found 3"),
    "NaN observation": (
        {"observation": leaves(2, speed=np.nan)},
        "observation 'speed': expected finite numbers, found NaN or infinity in row 0",
    ),
    "infinite observation": (
        {"observation": leaves(2, speed=-np.inf)},
        "observation 'speed': expected finite numbers, found NaN or infinity in row 0",
    ),
    "category too high": (
        {"observation": leaves(2, gear=5)},
        "observation 'gear': expected categories of gear: categorical int64[] in [1, 4], found 5 to 5",
    ),
    "category too low": (
        {"observation": leaves(2, gear=0)},
        "observation 'gear': expected categories of gear: categorical int64[] in [1, 4], found 0 to 0",
    ),
    "NaN reward": (
        {"reward": reward(0, np.nan)},
        "environment 1: expected a finite reward, found NaN or infinity",
    ),
    "infinite reward": (
        {"reward": reward(np.inf, 0)},
        "environment 0: expected a finite reward, found NaN or infinity",
    ),
    "unknown flags": ({"flags": b"\0\x08"}, "environment 1: expected flags of at most 7, found others"),
    "first and terminated": (
        {"flags": bytes([FIRST | TERMINATED, 0])},
        "environment 0: expected FIRST or the end of an episode, found both in one row",
    ),
    "first and truncated": (
        {"flags": bytes([0, FIRST | TRUNCATED])},
        "environment 1: expected FIRST or the end of an episode, found both in one row",
    ),
    "first with reward": (
        {"flags": bytes([FIRST, FIRST]), "reward": reward(0, -1)},
        "environment 1: expected reward 0 in a FIRST row, found another",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_CONTENTS.values(), ids=WRONG_CONTENTS.keys())
def test_wrong_contents_are_refused(changes: dict[str, Any], message: str) -> None:
    drive = Drive()
    assert refusal(drive.session, step(1, [0, 1], **changes)) == message
    assert drive.session.idle, "a refused step is not in flight"
    assert drive.session.accept(step(1, [0, 1], FIRST)) is not None, "nor has it used its sequence"


@pytest.mark.parametrize(
    ("environments", "found"), [([0, 3], "0 to 3"), ([-1, 0], "-1 to 0"), ([-(2**31)], f"{-(2**31)} to")]
)
def test_unknown_environments_are_refused(environments: list[int], found: str) -> None:
    message = refusal(Drive().session, step(1, environments))
    assert message.startswith(f"environment: expected indices of 0 to 2, found {found}")


def test_an_environment_twice_in_a_step_is_refused() -> None:
    message = refusal(Drive().session, step(1, [1, 0, 1]))
    assert message == "environment 1: expected one row in a step, found several"


def test_an_environment_steps_again_only_after_its_answer() -> None:
    drive = Drive()
    drive.session.accept(step(1, [0, 1], FIRST))
    assert refusal(drive.session, step(2, [2, 1], 0)) == (
        "environment 1: expected to wait for the answer to its last step, found another step"
    )
    assert drive.session.accept(step(2, [2], FIRST)) is not None, "others need not wait"


def test_first_in_the_middle_of_an_episode_is_refused() -> None:
    drive = Drive()
    drive.go(1, [0, 1], FIRST)
    assert refusal(drive.session, step(2, [0, 1], 0, FIRST)) == (
        "environment 1: expected TERMINATED or TRUNCATED before the next FIRST, "
        "found FIRST in the middle of an episode"
    )


@pytest.mark.parametrize("last", [TERMINATED, TRUNCATED, TERMINATED | TRUNCATED])
def test_after_an_episodes_end_only_first_will_do(last: int) -> None:
    drive = Drive()
    drive.go(1, [0, 1], FIRST)
    drive.go(2, [0, 1], 0, last)
    for flags in (0, TERMINATED):
        assert refusal(drive.session, step(3, [0, 1], 0, flags)) == (
            "environment 1: expected FIRST after the end of an episode, found a row without it"
        )
    drive.go(3, [0, 1], 0, FIRST)
    drive.go(4, [0, 1], last, 0)


def test_sequences_only_grow() -> None:
    drive = Drive()
    assert refusal(drive.session, step(0, [0])) == "sequence: expected more than 0, found 0"
    drive.go(7, [0], FIRST)
    drive.go(9, [0])
    assert refusal(drive.session, step(8, [1])) == "sequence: expected more than 9, found 8"
    drive.go(2**64 - 1, [0])


def test_only_each_environments_first_row_starts_its_lease() -> None:
    drive = Drive()
    flags = [
        drive.session.accept(step(1, [0])),
        drive.session.accept(step(2, [2, 1], FIRST, TERMINATED)),
    ]
    assert [request and request.flags.tolist() for request in flags] == [
        [LEASE_START],
        [FIRST | LEASE_START, TERMINATED | LEASE_START],
    ]
    drive.session.answer(1, np.zeros(1, np.int64), 1)
    drive.session.answer(2, np.zeros(2, np.int64), 1)
    request = drive.session.accept(step(3, [1, 0, 2], FIRST, 0, 0))
    assert request is not None
    assert request.flags.tolist() == [FIRST, 0, 0]


def test_a_step_sent_again_in_flight_is_answered_once() -> None:
    drive = Drive()
    assert drive.session.accept(step(1, [0], FIRST)) is not None
    assert drive.session.accept(step(1, [0], FIRST)) is None
    drive.session.answer(1, np.array([2]), 1)
    assert [message.actions.sequence for message in drive.sent] == [1]


def test_a_step_sent_again_after_its_answer_gets_the_same_answer() -> None:
    drive = Drive()
    drive.session.accept(step(1, [0, 1], FIRST))
    drive.session.answer(1, np.array([2, 3]), 4)
    assert drive.session.accept(step(1, [0, 1], FIRST)) is None
    first, again = drive.sent
    assert first == again
    drive.go(2, [0, 1])


def test_an_answer_is_kept_until_the_client_shows_that_it_has_it() -> None:
    drive = Drive()
    drive.go(1, [0], FIRST)
    drive.go(2, [1], FIRST)
    drive.go(3, [0])
    assert refusal(drive.session, step(1, [0], FIRST)) == "sequence: expected more than 3, found 1"
    assert drive.session.accept(step(2, [1], FIRST)) is None
    assert [message.actions.sequence for message in drive.sent] == [1, 2, 3, 2]


def test_without_a_stream_answers_are_kept_for_the_next() -> None:
    drive = Drive()
    drive.session.accept(step(1, [0], FIRST))
    drive.session.detach()
    drive.session.answer(1, np.array([2]), 1)
    assert drive.sent == []
    drive.session.attach(drive.sent.append)
    assert drive.session.accept(step(1, [0], FIRST)) is None
    assert [message.actions.sequence for message in drive.sent] == [1]


@pytest.mark.parametrize("answered", ["before the step is sent again", "after it"])
def test_a_resumed_stream_gets_one_answer_for_each_step_it_carries(answered: str) -> None:
    drive = Drive()
    drive.session.accept(step(1, [0], FIRST))
    drive.session.accept(step(2, [1], FIRST))
    drive.session.detach()
    drive.session.attach(drive.sent.append)
    if answered == "before the step is sent again":
        drive.session.answer(1, np.array([2]), 1)
        assert drive.sent == [], "the client has not sent it on this stream"
        drive.session.accept(step(1, [0], FIRST))
    else:
        drive.session.accept(step(1, [0], FIRST))
        drive.session.answer(1, np.array([2]), 1)
    drive.session.answer(2, np.array([3]), 1)
    assert [message.actions.sequence for message in drive.sent] == [1]
    drive.session.accept(step(2, [1], FIRST))
    assert [message.actions.sequence for message in drive.sent] == [1, 2]
