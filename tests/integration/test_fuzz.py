"""Whatever a client sends, the learner lives, answers in time, and harms nobody else.

Each attempt is a stream that says something wrong, made from what is right; a bystander's steps must be
answered, each of them, meanwhile.
"""

import gc
import logging
import os
import queue
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from learner.serving.batcher import Request
from protos import inference_pb2 as pb
from protos import tensors
from protos.inference_pb2_grpc import InferenceStub
from tests.fakes import PATIENCE_SECONDS, FakeLearner, LogLines, answer
from tests.learner.serving.wire import Stream, opening, step

ENVIRONMENTS = 3

QUICK = 400
"""Attempts of each kind in the quick form."""

LONG_MESSAGES = 100_000

Words = list[bytes]
"""Messages of one stream, in bytes."""


# Servers and bystanders -------------------------------------------------------------------------


class Bystander:
    """An actor that does everything right in one stream, and checks each of its answers.

    Its own thread reads, so that each answer has a deadline and the stream has none.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._outgoing: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[pb.ServerMessage | None] = queue.SimpleQueue()
        self._call: Any = InferenceStub(self._channel).Act(iter(self._outgoing.get, None))
        self._thread = threading.Thread(target=self._read, name="bystander")
        self._sequence = 0

    def __enter__(self) -> "Bystander":
        self._thread.start()
        self._outgoing.put(pb.ClientMessage(open=opening(2, client="bystander")))
        assert self._answer().WhichOneof("kind") == "opened"
        return self

    def __exit__(self, *error: Any) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def step(self) -> None:
        """Act once."""
        self._sequence += 1
        number = self._sequence % 900
        flags = pb.FIRST if self._sequence == 1 else 0
        self._outgoing.put(pb.ClientMessage(step=step(self._sequence, number, number + 1, flags=flags)))
        actions = self._answer().actions
        assert actions.sequence == self._sequence
        assert np.frombuffer(actions.action, np.int64).tolist() == [number, number + 1]

    def _answer(self) -> pb.ServerMessage:
        try:
            answer = self._answers.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise AssertionError("expected an answer to the bystander, found nothing") from None
        assert answer is not None, f"the bystander's stream has ended: {self._call.details()}"
        return answer

    def _read(self) -> None:
        with suppress(grpc.RpcError):
            for message in self._call:
                self._answers.put(message)
        self._answers.put(None)


class Fuzzed:
    """A learner under attack, and who must not be harmed."""

    def __init__(self, address: str) -> None:
        # Room for the sessions that the attempts leave behind until their leases expire.
        self.learner = FakeLearner(address, capacity=4096, lease_seconds=0.05)
        self.address = address
        self.learner.on_step = _answer
        self.refused = 0
        self.answered = 0
        self._channel: grpc.Channel
        self._act: Any
        self._closing = ExitStack()

    def __enter__(self) -> "Fuzzed":
        self._closing.enter_context(self.learner)
        self.log = self._closing.enter_context(LogLines("learner.serving"))
        # Refusals are warnings. pytest would keep every line: its memory would not be flat.
        logging.getLogger("learner.serving").setLevel(logging.ERROR)
        self._channel = self._closing.enter_context(grpc.insecure_channel(self.learner.address))
        self._act = self._channel.stream_stream("/seedbed.v1.Inference/Act")
        self.bystander = self._closing.enter_context(Bystander(self.learner.address))
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)

    def attempt(self, words: Words) -> list[bytes]:
        """Say `words` in a stream, and read to its end, which must come in time.

        Returns:
            The learner's messages.
        """
        answers: list[bytes] = []
        call = self._act(iter(words), timeout=PATIENCE_SECONDS)
        try:
            for answer in call:
                answers.append(answer)
        except grpc.RpcError:
            assert call.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.UNAVAILABLE,  # Another stream of the same token took the session.
            ), (call.code(), call.details(), words)
            assert call.details(), "a refusal says why"
            self.refused += 1
        self.answered += len(answers)
        self.bystander.step()
        return answers

    def check(self) -> None:
        """Nothing has happened that no client may cause: such are the errors in the log."""
        assert self.log.lines(logging.ERROR) == []


def _answer(request: Request) -> None:
    # Any bytes are a float, which need not fit into an action.
    with np.errstate(invalid="ignore"):
        answer(request)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    with Fuzzed(f"unix:{tmp_path_factory.mktemp('fuzz')}/s") as made:
        yield made


# What is right ----------------------------------------------------------------------------------


def legal(steps: int, token: bytes = b"") -> list[pb.ClientMessage]:
    """A session that every learner takes: an episode, and the next one's beginning."""
    messages = [pb.ClientMessage(open=opening(ENVIRONMENTS, resume_token=token))]
    for sequence in range(1, steps + 1):
        flags = (pb.FIRST, 0, pb.TERMINATED)[(sequence - 1) % 3]
        numbers = [sequence * 10 + row for row in range(ENVIRONMENTS)]
        messages.append(pb.ClientMessage(step=step(sequence, *numbers, flags=flags)))
    messages.append(pb.ClientMessage(close=pb.Close()))
    return messages


def written(messages: Sequence[pb.ClientMessage]) -> Words:
    return [message.SerializeToString() for message in messages]


# What is wrong ----------------------------------------------------------------------------------


def _flip(data: bytes, at: int, value: int) -> bytes:
    place = at % max(len(data), 1)
    return data[:place] + bytes([data[place] ^ value]) + data[place + 1 :] if data else b"\xff"


def _cut(data: bytes, at: int, value: int) -> bytes:
    return data[: at % (len(data) + 1)]


def _insert(data: bytes, at: int, value: int) -> bytes:
    place = at % (len(data) + 1)
    return data[:place] + bytes([value]) * (1 + at % 7) + data[place:]


def _repeat(data: bytes, at: int, value: int) -> bytes:
    return data * (1 + value % 5)


def _length(data: bytes, at: int, value: int) -> bytes:
    """A field that says it is huge."""
    return data + bytes([0x0A | (value & 0x70)]) + b"\xff\xff\xff\xff\x0f"


MUTATORS: tuple[Callable[[bytes, int, int], bytes], ...] = (_flip, _cut, _insert, _repeat, _length)

Edit = tuple[int, int, int, int]
"""Which message, by which mutator, where, with what."""

EDITS = st.tuples(
    st.integers(0, 6), st.integers(0, len(MUTATORS) - 1), st.integers(0, 400), st.integers(1, 255)
)


def mutate(words: Words, edits: Sequence[Edit]) -> Words:
    words = list(words)
    for message, mutator, at, value in edits:
        place = message % len(words)
        words[place] = MUTATORS[mutator](words[place], at, value)
    return words


ROWS = {"environment": tensors.INDEX, "reward": tensors.REWARD, "flags": tensors.FLAGS}


@st.composite
def wrong_steps(draw: st.DrawFn) -> pb.Step:
    """Steps whose fields are of any value and size, and so wrong by their meaning, not their bytes."""
    rows = draw(st.integers(0, 5))
    message = pb.Step(sequence=draw(st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1])))
    for name, dtype in ROWS.items():
        size = dtype.itemsize * rows + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        setattr(message, name, _bytes(draw, max(size, 0)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 0, 2]))):
        message.observation.append(_bytes(draw, 8 * rows))
    if draw(st.booleans()):
        message.environment = np.arange(rows, dtype=tensors.INDEX).tobytes()
        message.reward = np.zeros(rows, tensors.REWARD).tobytes()
    return message


def _bytes(draw: st.DrawFn, size: int) -> bytes:
    return draw(st.one_of(st.binary(min_size=size, max_size=size), st.just(bytes(size))))


PROTOCOL_FIELDS = ("protocol_version", "protocol_minor")


@st.composite
def wrong_openings(draw: st.DrawFn) -> pb.Open:
    message = opening(ENVIRONMENTS)
    field = draw(
        st.sampled_from(["num_environments", *PROTOCOL_FIELDS, "mode", "resume_token", "client", "spec"])
    )
    if field in ("num_environments", *PROTOCOL_FIELDS):
        setattr(message, field, draw(st.integers(0, 2**32 - 1)))
    elif field == "mode":
        message.mode = draw(st.integers(-(2**31), 2**31 - 1))
    elif field == "resume_token":
        message.resume_token = draw(st.binary(max_size=100_000))
    elif field == "client":
        message.client = draw(st.text(max_size=300))
    else:
        leaf = message.spec.observation[0]
        leaf.name = draw(st.text(max_size=20))
        leaf.dtype = draw(
            st.sampled_from(["float32", "object", "O", "V8", "datetime64", "int64", "x" * 99])
        )
        leaf.shape[:] = draw(st.lists(st.integers(0, 2**32 - 1), max_size=40))
        leaf.minimum = draw(st.binary(max_size=40))
    return message


@st.composite
def sessions(draw: st.DrawFn) -> list[pb.ClientMessage]:
    """Messages that are all right by themselves, in any order and number; or wrong in their meaning."""
    right = legal(6)
    messages = [right[index] for index in draw(st.lists(st.integers(0, 7), max_size=12))]
    if draw(st.booleans()):
        messages.insert(0, right[0])
    for wrong in draw(st.lists(wrong_steps(), max_size=3)):
        messages.insert(draw(st.integers(0, len(messages))), pb.ClientMessage(step=wrong))
    if draw(st.integers(0, 3)) == 0:
        messages.insert(0, pb.ClientMessage(open=draw(wrong_openings())))
    return messages


def fuzzing(examples: int) -> Any:
    """The same attempts each time, so that a failure can be met again; the first one is told as it is,
    because shrinking a hang would wait for many."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


# The quick form ---------------------------------------------------------------------------------


def test_what_is_right_is_answered(fuzzed: Fuzzed) -> None:
    """Otherwise the rest would prove little."""
    refused = fuzzed.refused
    assert len(fuzzed.attempt(written(legal(1)))) == 2
    assert fuzzed.refused == refused


@fuzzing(QUICK)
@given(st.lists(EDITS, min_size=1, max_size=4))
def test_mutated_bytes(fuzzed: Fuzzed, edits: list[Edit]) -> None:
    fuzzed.attempt(mutate(written(legal(3)), edits))
    fuzzed.check()


@fuzzing(QUICK)
@given(sessions())
def test_mutated_sequences(fuzzed: Fuzzed, messages: list[pb.ClientMessage]) -> None:
    fuzzed.attempt(written(messages))
    fuzzed.check()


@fuzzing(QUICK)
@given(st.binary(max_size=3000))
def test_any_bytes(fuzzed: Fuzzed, data: bytes) -> None:
    fuzzed.attempt([data])
    fuzzed.attempt([written(legal(0))[0], data])
    fuzzed.check()


@fuzzing(QUICK // 4)
@given(st.data())
def test_tokens_of_others(fuzzed: Fuzzed, data: st.DataObject) -> None:
    """Near misses of a session's token open fresh sessions; and whoever has it can break that session
    alone."""
    with Stream(fuzzed.learner.address) as owner:
        token = owner.open(ENVIRONMENTS).session_token
        place, value = data.draw(st.integers(0, 15)), data.draw(st.integers(1, 255))
        near = data.draw(st.sampled_from([_flip(token, place, value), token[:place], token + b"\0"]))
        (opened, *_) = fuzzed.attempt(written(legal(0, near)))
        assert not pb.ServerMessage.FromString(opened).opened.resumed
        assert owner.act(step(1, 1, 2, 3)) == [1, 2, 3]
        fuzzed.attempt(mutate(written(legal(3, token)), [data.draw(EDITS)]))
    fuzzed.check()


def test_huge_messages(fuzzed: Fuzzed) -> None:
    first = written(legal(0))[0]
    for size in (1 << 20, 200 << 20, (256 << 20) + 1):
        wrong = pb.ClientMessage(step=pb.Step(sequence=1, observation=[bytes(size)]))
        fuzzed.attempt([first, wrong.SerializeToString()])
    fuzzed.attempt([pb.ClientMessage(open=pb.Open(client="x" * (1 << 20))).SerializeToString()])
    many = pb.ClientMessage(step=pb.Step(sequence=1, observation=[b""] * 1_000_000))
    fuzzed.attempt([first, many.SerializeToString()])
    fuzzed.check()


# Not gRPC at all --------------------------------------------------------------------------------

PROBES = {
    "nothing": b"",
    "zeros": bytes(4096),
    "noise": bytes(range(256)) * 16,
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: learner\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "SMB": b"\x00\x00\x00\x54\xffSMB\x72" + bytes(80),
    "RDP": b"\x03\x00\x00\x13\x0e\xe0" + bytes(13),
    "redis": b"*1\r\n$4\r\nINFO\r\n",
    "HTTP/2 preface alone": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 frame that is huge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "HTTP/2 settings in a loop": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) * 500,
}


@pytest.fixture(scope="module")
def on_tcp() -> Iterator[Fuzzed]:
    with Fuzzed("127.0.0.1:0") as made:
        yield made


def dial(fuzzed: Fuzzed) -> socket.socket:
    host, _, port = fuzzed.learner.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("probe", PROBES)
def test_bytes_of_a_port_scan(on_tcp: Fuzzed, probe: str) -> None:
    with dial(on_tcp) as connection:
        connection.sendall(PROBES[probe])
        on_tcp.bystander.step()
        connection.shutdown(socket.SHUT_WR)
        _read_all(connection)
    on_tcp.bystander.step()
    on_tcp.check()


def _read_all(connection: socket.socket) -> None:
    """Read until the learner hangs up, which it does in time."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return


def test_a_tls_handshake_on_the_plain_port(on_tcp: Fuzzed) -> None:
    context = ssl.create_default_context()
    with dial(on_tcp) as connection, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(connection, server_hostname="learner")
    on_tcp.bystander.step()
    on_tcp.check()


def test_connections_that_send_nothing(on_tcp: Fuzzed) -> None:
    """Each end of 2,000 connections is a file of this process; as many as there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * 2000 + 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
    try:
        connections = min(2000, (min(max(soft, wanted), hard) - 500) // 2)
        with ExitStack() as closing:
            for index in range(connections):
                closing.enter_context(dial(on_tcp))
                if index % 100 == 0:
                    on_tcp.bystander.step()
            with Stream(on_tcp.learner.address) as stream:
                stream.open()
                assert stream.act(step(1, 10)) == [10], "there is room for a newcomer"
            on_tcp.bystander.step()
        on_tcp.bystander.step()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    on_tcp.check()


# The long form ----------------------------------------------------------------------------------


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1])
def test_a_hundred_thousand_messages(fuzzed: Fuzzed, seed: int) -> None:
    """Without hypothesis, which would keep all that it has tried: its own memory would not be flat."""
    rng = np.random.default_rng(seed)
    right = written(legal(6))
    sent, memory = 0, []
    while sent < LONG_MESSAGES:
        words = [right[index] for index in rng.integers(0, len(right), rng.integers(0, 12))]
        words = [right[0], *words] if rng.random() < 0.8 else words
        if words and rng.random() < 0.8:
            edits = [
                (int(rng.integers(0, 12)), int(rng.integers(0, len(MUTATORS))), int(at), int(value))
                for at, value in zip(rng.integers(0, 400, 3), rng.integers(1, 256, 3), strict=True)
            ]
            words = mutate(words, edits[: rng.integers(1, 4)])
        fuzzed.attempt(words)
        sent += len(words)
        if sent // (LONG_MESSAGES // 10) > len(memory):
            fuzzed.check()
            gc.collect()
            memory.append(resident_megabytes())
    fuzzed.check()
    assert fuzzed.refused > 1000
    assert fuzzed.answered > 1000
    # The first parts fill caches and pools.
    assert memory[-1] - memory[2] < 5, memory
