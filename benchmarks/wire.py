"""What travels: bytes on the wire for one step of one environment, against those that mean something.

    python -m benchmarks.wire [--steps 300] [--json]

The real client and the real server, with a counting relay between them; in the policy's place, zeros.
Everything that HTTP/2 and gRPC add is counted, TCP's and IP's headers are not. The bytes do not depend
on how busy the machine is.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actor.client import InferenceClient
from benchmarks import machine, output
from benchmarks.counting_proxy import Carried, CountingProxy
from benchmarks.measure import Meter, Window
from benchmarks.worlds import FreeEnvironments, parse_observation, payload_bytes, spec_of
from learner.planning.ready import VERSION
from learner.serving.addresses import Addresses
from learner.serving.batcher import Request
from learner.serving.leases import Lane
from learner.serving.server import InferenceServer
from learner.serving.slots import Slots
from protos import inference_pb2 as pb
from protos.errors import ConfigError
from protos.options import check_ranges, option, parse
from protos.specs import EnvironmentSpec

WARM_UP_STEPS = 20
"""Connection, session and HTTP/2's header tables are settled by then."""


@dataclass(frozen=True)
class WireOptions:
    """What to send."""

    cases: tuple[str, ...] = option(
        ("32x84x84x1:uint8", "32x4:float32", "1x84x84x1:uint8", "1x4:float32"),
        "messages to measure, as ENVIRONMENTSxOBSERVATION",
    )
    num_actions: int = option(6, "discrete actions", at_least=2)
    steps: int = option(300, "counted steps of each", at_least=1)
    json: bool = option(False, "print one JSON object on the last line")

    def __post_init__(self) -> None:
        check_ranges(self)
        for case in self.cases:
            parse_case(case)


def parse_case(case: str) -> tuple[int, str]:
    """Environments and observation of `32x84x84x1:uint8`.

    Raises:
        ConfigError: it means none.
    """
    number, _, observation = case.partition("x")
    if not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"--cases {case}: expected as 32x84x84x1:uint8 or 1x4:float32")
    parse_observation(observation)
    return int(number), observation


def measure_case(case: str, num_actions: int, steps: int) -> dict[str, Any]:
    """Bytes of one environment's step, and of a message beyond its payload."""
    num_envs, observation = parse_case(case)
    spec = spec_of(observation, num_actions)
    carried = _exchange(
        spec, FreeEnvironments(parse_observation(observation), num_actions, num_envs), steps
    )
    env_steps = num_envs * steps
    payload = payload_bytes(spec)
    wire = (carried.up + carried.down) / env_steps
    return {
        "case": case,
        "environments": num_envs,
        "payload_bytes": payload,
        "wire_bytes": wire,
        "wire_bytes_up": carried.up / env_steps,
        "wire_bytes_down": carried.down / env_steps,
        "ratio": wire / payload,
        "overhead_bytes_per_message": (wire - payload) * num_envs,
    }


def _exchange(spec: EnvironmentSpec, environments: FreeEnvironments, steps: int) -> Carried:
    """What `steps` steps of all environments put on the connection."""
    num_envs = environments.num_envs
    server = InferenceServer(Addresses("127.0.0.1:0"), lease_seconds=0.0)
    server.start()
    try:
        server.open_lanes({pb.TRAIN: _lane(spec, num_envs)})
        with (
            CountingProxy(server.port) as proxy,
            InferenceClient(
                proxy.address,
                environments.observation_space,
                environments.action_space,
                num_environments=num_envs,
            ) as client,
        ):
            timestep = environments.reset()
            for _ in range(WARM_UP_STEPS):
                timestep = environments.step(client.act(timestep))
            before = proxy.carried
            for _ in range(steps):
                timestep = environments.step(client.act(timestep))
            after = proxy.carried
    finally:
        server.close()
    return Carried(after.up - before.up, after.down - before.down)


def _lane(spec: EnvironmentSpec, num_envs: int) -> Lane:
    """Answers at once."""

    def submit(request: Request) -> None:
        request.reply(spec.action.zeros(len(request.slots)), VERSION)

    return Lane(
        spec=spec,
        slots=Slots(num_envs),
        max_rows=num_envs,
        submit=submit,
        hand_over=lambda: None,
        version=lambda: VERSION,
        drop=lambda slots, reason: None,
    )


def measure(options: WireOptions) -> tuple[dict[str, Any], dict[str, Window]]:
    """The figures of all cases, and the window in which they were taken."""
    meter = Meter({})
    cases = [measure_case(case, options.num_actions, options.steps) for case in options.cases]
    return {"cases": cases}, {"all": meter.stop()}


def tables(result: dict[str, Any]) -> list[str]:
    """What to print."""
    headers = ("message", "payload", "wire", "up", "down", "wire / payload", "overhead of a message")
    names = ("case", "payload_bytes", "wire_bytes", "wire_bytes_up", "wire_bytes_down")
    rows = [
        [*(case[name] for name in names), case["ratio"], case["overhead_bytes_per_message"]]
        for case in result["cases"]
    ]
    return ["Bytes for one step of one environment", output.table(headers, rows)]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(WireOptions, arguments, prog="benchmarks.wire", description=__doc__)
    where = machine.describe()
    result, windows = measure(options)
    output.show(tables(result), output.whole("wire", where, options, result, windows), options.json)


if __name__ == "__main__":
    main()
