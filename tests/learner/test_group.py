"""A learner that does not come into its group says so."""

from typing import Any

import pytest
import tensorflow as tf

from learner.cluster import Cluster
from learner.group import join
from protos.errors import WorkerFailure


def test_a_group_that_cannot_be_joined_ends_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(resolver: Any) -> None:
        raise tf.errors.AlreadyExistsError(None, None, "another process of this name is connected")

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", refuse)
    # Which devices TensorFlow sees is settled in this process.
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: None)
    expected = "learner 1 of the group cannot join the others at b:2: another process of this name"
    with pytest.raises(WorkerFailure, match=expected):
        join(Cluster(("a:1", "b:2"), 1))
