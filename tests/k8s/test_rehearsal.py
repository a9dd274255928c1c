"""The manifests, rehearsed without a cluster: their commands, environment, files, probes and signals."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.commands import read_json
from tests.integration.processes import Launcher, until
from tests.k8s.one_machine import OneMachine, Pod
from tests.k8s.rendering import SECURE, combination, needs_kubectl, overlay

pytestmark = [needs_kubectl, pytest.mark.timeout(300)]


def actors(machine: OneMachine) -> set[str]:
    """Names of those that the learner has as sessions."""
    sessions = machine.status().get("sessions", {"listed": []})
    return {each["client"] for each in sessions["listed"]}


def env_steps(machine: OneMachine) -> int:
    steps: int = machine.status().get("report", {"env_steps": 0})["env_steps"]
    return steps


def await_actors(machine: OneMachine, pods: Sequence[Pod]) -> None:
    wanted = {pod.name for pod in pods}

    def there() -> bool:
        for pod in pods:
            assert pod.process.running, pod.process.stderr
        return actors(machine) == wanted

    until(there, lambda: f"the sessions {wanted}; found {actors(machine)}")


def await_progress(machine: OneMachine, beyond: int) -> int:
    """Wait until there are more steps than these; how many."""
    until(lambda: env_steps(machine) > beyond, lambda: f"more than {beyond:,} steps")
    return env_steps(machine)


def test_a_service_scales_and_rolls(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "overlay").mkdir()
    rendered = combination([*SECURE, "monitoring"], tmp_path / "overlay")
    machine = OneMachine(rendered, tmp_path, launch)
    # An actor may come first: it waits in its stream, or for the address.
    pods = [machine.start("actor")]
    learner = machine.start("learner")
    learner.wait_until_ready()
    await_actors(machine, pods)
    steps = await_progress(machine, 0)

    pods += [machine.start("actor") for _ in range(7)]
    await_actors(machine, pods)
    steps = await_progress(machine, steps)
    exported = re.search(r"^seedbed_environment_steps_total (\S+)$", machine.metrics(), re.MULTILINE)
    assert exported is not None
    assert float(exported[1]) > 0

    gone, pods = pods[1:], pods[:1]
    assert [pod.delete() for pod in gone] == [0] * 7
    await_actors(machine, pods)
    steps = await_progress(machine, steps)
    assert learner.probe("livenessProbe")

    # A roll: the same volume, another pod.
    assert learner.delete() == 0, learner.process.stderr
    assert not learner.probe("readinessProbe")
    saved = read_json(tmp_path / "claims" / "run" / "run" / "summary.json")["env_steps"]
    assert saved >= steps
    learner = machine.start("learner")
    learner.wait_until_ready()
    await_actors(machine, pods)
    assert f"at environment step {saved:,} " in learner.process.stderr
    await_progress(machine, saved)
    # The seed was drawn, and pods have names.
    assert "drew --seed" in pods[0].process.stderr
    for pod in [*pods, *gone, learner]:
        assert "Traceback" not in pod.process.stderr


def test_a_job_ends_and_its_actors_with_it(launch: Launcher, tmp_path: Path) -> None:
    # No machine is fast enough to be done before it was looked at, nor any learner so good.
    total_steps = 10**12

    def shortened(name: str, text: str) -> str:
        text = re.sub(r"(?m)^stop_return = .*$", "", text)
        return re.sub(r"(?m)^total_steps = .*$", f"total_steps = {total_steps}", text)

    machine = OneMachine(overlay("job"), tmp_path, launch, shortened)
    learner = machine.start("learner")
    pods = [machine.start("actor") for _ in range(2)]
    learner.wait_until_ready()
    await_actors(machine, pods)
    # A node is drained: neither status is that of a run that is complete.
    await_progress(machine, 0)
    assert pods.pop().delete() == 143
    assert learner.delete() == 143
    # What is left is shorter than the run that the overlay means.
    total_steps = read_json(tmp_path / "claims" / "run" / "run" / "summary.json")["env_steps"] + 5_000
    learner = machine.start("learner")
    pods.append(machine.start("actor"))
    assert learner.process.status(120) == 0, learner.process.stderr
    for pod in pods:
        assert pod.process.status() == 0, pod.process.stderr
    # Started again, as after a node was lost at the very end: there is nothing left to do.
    assert machine.start("learner").process.status() == 0
