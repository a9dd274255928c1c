"""What a run trains on: the specs of its environment, from whoever says them first."""

from concurrent.futures import CancelledError, Future

from google.protobuf import json_format

from learner.local_actors import Description
from learner.threads import Threads
from protos import inference_pb2 as pb
from protos import specs
from protos.specs import EnvironmentSpec


class AwaitedSpec:
    """The specs of `env`, as a child process describes it; of None, those of the first session."""

    def __init__(self, env: str | None) -> None:
        self._description = None if env is None else Description(env)
        self._spec: Future[EnvironmentSpec] = Future()

    def start(self, threads: Threads) -> None:
        """Ask the child process, in a thread; without one there is nothing to do but wait."""
        if self._description is not None:
            threads.start("environment", self._describe)

    def offer(self, spec: EnvironmentSpec) -> None:
        """A session has come with `spec`. Any thread may say so; it does not wait."""
        if self._description is None:
            self._decide(spec)

    @property
    def source(self) -> str:
        """Who says them."""
        return "the first actor" if self._description is None else "the environment's specs"

    def known(self) -> bool:
        """Whether `wait` returns at once."""
        return self._spec.done()

    def wait(self) -> EnvironmentSpec | None:
        """The specs, once they are known; None after `cancel`."""
        try:
            return self._spec.result()
        except CancelledError:
            return None

    def cancel(self) -> None:
        """Wait no longer. Any thread may call it. Idempotent."""
        self._spec.cancel()

    def close(self) -> None:
        """End the child process, if it runs. Idempotent."""
        if self._description is not None:
            self._description.close()

    def _describe(self) -> None:
        assert self._description is not None
        text = self._description.text()
        self._decide(specs.from_proto(json_format.Parse(text, pb.EnvironmentSpec())))

    def _decide(self, spec: EnvironmentSpec) -> None:
        if not self._spec.done() and self._spec.set_running_or_notify_cancel():
            self._spec.set_result(spec)
