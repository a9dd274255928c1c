"""TF_CONFIG: who learns together, and what is refused."""

import json
import socket
import threading
from typing import Any

import pytest

from learner.cluster import Cluster, read_cluster, wait_for_others
from learner.config import LearnerOptions
from learner.run import run
from protos.errors import ConfigError
from tests.integration.test_separate import free_port

WORKERS = ["a:1", "b:2"]


def config(cluster: Any, kind: str = "worker", index: Any = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_workers_are_a_group() -> None:
    assert read_cluster(config({"worker": WORKERS}, index=1)) == Cluster(("a:1", "b:2"), 1)


def test_a_chief_is_the_first_of_them() -> None:
    cluster = {"chief": ["c:3"], "worker": WORKERS}
    assert read_cluster(config(cluster, "chief")) == Cluster(("c:3", "a:1", "b:2"), 0)
    assert read_cluster(config(cluster, index=1)) == Cluster(("c:3", "a:1", "b:2"), 2)


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": " "}, config({"worker": ["a:1"]})])
def test_one_alone_is_none(environ: dict[str, str]) -> None:
    assert read_cluster(environ) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}}'},
        config({"worker": WORKERS}, index=2),
        config({"worker": WORKERS}, index=-1),
        config({"worker": WORKERS}, index="first"),
        config({"worker": WORKERS, "ps": ["c:3"]}, "ps"),
        config({"worker": ["a:1", "b"]}),
        config({"worker": ["a:1", ":2"]}),
        config({"worker": ["a:1", "b:70000"]}),
        config({"worker": [1, 2]}),
        config({"worker": 2}),
    ],
)
def test_anything_else_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r'TF_CONFIG: expected {"cluster": .*, found '):
        read_cluster(environ)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": "sac"}, "--agent sac is for one learner: those of a group"),
        ({"reproducible": True}, "--reproducible is for one learner: which steps those of a group"),
    ],
)
def test_what_is_for_one_learner_is_refused(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", config({"worker": WORKERS})["TF_CONFIG"])
    with pytest.raises(ConfigError, match=message):
        run(LearnerOptions(env="CartPole-v1", **changes), None)  # type: ignore[arg-type]


def addresses(size: int) -> tuple[str, ...]:
    return tuple(f"127.0.0.1:{free_port()}" for _ in range(size))


def test_all_wait_for_each_other() -> None:
    everyone, came = addresses(3), []

    both = threading.Barrier(2)

    def listen(index: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", int(everyone[index].rpartition(":")[2])))

    def wait(index: int) -> None:
        came.append((index, wait_for_others(Cluster(everyone, index), lambda: False)))
        # In the place of TensorFlow's server, by which the other may find this one still.
        with listen(index):
            both.wait()

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    assert not came
    with listen(2):
        for thread in threads:
            thread.join()
    assert sorted(came) == [(0, True), (1, True)]


def test_the_wait_ends_when_the_learner_is_to_end() -> None:
    asked = iter([False, False, True, True])
    assert not wait_for_others(Cluster(addresses(2), 0), lambda: next(asked))


def test_an_address_that_is_taken_is_refused() -> None:
    taken, other = addresses(2)
    with (
        socket.create_server(("127.0.0.1", int(taken.rpartition(":")[2]))),
        pytest.raises(ConfigError, match=f"TF_CONFIG: {taken} cannot be listened on: .*in use"),
    ):
        wait_for_others(Cluster((taken, other), 0), lambda: False)
