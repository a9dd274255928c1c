"""`seedbed replay`: what the clients of a recorded learner said, said to a learner again.

Entries are followed in the order in which the recorded learner met them: what it received is sent, and
what it sent is awaited. So each step waits for those answers that its client had, one gRPC stream stands
for each recorded one, and streams meet the learner in the order in which they did.

- A stream that begins in the middle (older segments are gone, or entries are missing) begins a lease of
  its own. Its rows are legal as they are: the first of a lease need not be FIRST.
- Sessions are resumed where they were, by the token that the new learner gave.
- A lease that nobody resumes is closed when its stream ends: time runs differently here, so that
  waiting for it to expire would leave no slots.
- Where the recorded learner itself ended a stream, because its run was over or another stream took the
  session, the stream is only left.
"""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from learner.config import ReplayOptions
from learner.replay_stream import Feed, Result, Sessions
from learner.serving.recorded import Recorded
from learner.serving.recording import Entry, Kind, Opening, Recording, decode_end
from protos.credentials import Credentials
from protos.errors import NotServing

logger = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A connection for each stream, as actors have.
    ("grpc.use_local_subchannel_pool", 1),
)


def replay(options: ReplayOptions, credentials: Credentials) -> int:
    """Feed the recording to the learner, and print what came of it as one JSON object.

    Returns:
        Exit status: 0, or 1 if the learner answered, accepted or refused anything else than the
        recorded one, or 130 after Ctrl-C.

    Raises:
        ConfigError: the file is no recording, or has entries that are none; or the credentials cannot be
            used.
        NotServing: there is no learner.
    """
    credentials.check(options.server)
    recording = Recording(Path(options.file))
    result = asyncio.run(_Replay(recording, options, credentials).run())
    for damage in recording.damage:
        logger.warning("%s", damage)
    if recording.gaps:
        logger.warning(
            "entries are missing in %d places of the recording, %d or more: what follows each is fed "
            "as streams that begin in the middle",
            recording.gaps,
            recording.missing,
        )
    sys.stdout.write(json.dumps(result.summary(recording)) + "\n")
    return 1 if result.differences else 0


class _Replay:
    """One run through a recording."""

    def __init__(self, recording: Recording, options: ReplayOptions, credentials: Credentials) -> None:
        self._recorded = Recorded(recording)
        self._options = options
        self._credentials = credentials
        # All of it is looked at before anything is sent.
        self._sessions = Sessions(self._recorded)
        self._feeds: dict[int, Feed] = {}
        self._result = Result()

    async def run(self) -> Result:
        await self._wait_for_learner()
        began = time.monotonic()
        first: float | None = None
        try:
            for entry in self._recorded:
                first = entry.seconds if first is None else first
                if self._options.speed == "real":
                    await asyncio.sleep(began + entry.seconds - first - time.monotonic())
                await self._follow(entry)
            await self._leave_all()
        finally:
            for feed in self._feeds.values():
                await feed.cancel()
        self._result.seconds = time.monotonic() - began
        return self._result

    async def _wait_for_learner(self) -> None:
        """Wait for the learner to listen; until it serves, streams wait by themselves."""
        server, seconds = self._options.server, self._options.answer_timeout_seconds
        async with self._credentials.channel(server, _OPTIONS) as channel:
            try:
                async with asyncio.timeout(seconds):
                    await channel.channel_ready()
            except TimeoutError:
                raise NotServing(f"no learner at {server} within {seconds:g} s") from None

    async def _follow(self, entry: Entry) -> None:
        stream = entry.stream
        if entry.kind is Kind.GAP:
            await self._leave_all()
            self._sessions.forget()
        elif entry.kind is Kind.BEGIN:
            self._begin(stream)
        elif entry.kind is Kind.CONTINUED:
            self._result.in_the_middle += 1
            feed = self._begin(stream)
            opening = Opening.decode(entry.body)
            if opening.received:
                await feed.send(opening.received)
            if opening.sent:
                await feed.expect(opening.sent, in_the_middle=True)
        elif entry.kind is Kind.RECEIVED:
            await self._feeds[stream].send(entry.body)
        elif entry.kind is Kind.UNREADABLE:
            await self._feeds[stream].send_no_message()
        elif entry.kind is Kind.SENT:
            await self._feeds[stream].expect(entry.body)
        elif entry.kind is Kind.END:
            await self._feeds.pop(stream).end(*decode_end(entry.body))

    def _begin(self, stream: int) -> Feed:
        self._result.streams += 1
        dialled = self._credentials.channel(self._options.server, _OPTIONS)
        seconds = self._options.answer_timeout_seconds
        feed = Feed(stream, dialled, self._credentials.metadata(), seconds, self._sessions, self._result)
        self._feeds[stream] = feed
        return feed

    async def _leave_all(self) -> None:
        """Nothing more is known of these streams."""
        while self._feeds:
            _, feed = self._feeds.popitem()
            await feed.leave(for_good=True)
