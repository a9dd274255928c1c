"""Slots: leased once each, given back, and refused in words."""

import numpy as np
import pytest

from learner.serving.slots import Slots
from protos.errors import NoCapacity


def test_leases_never_share_a_slot_and_use_every_one() -> None:
    slots = Slots(5)
    leases = [slots.lease(2), slots.lease(3)]
    assert sorted(np.concatenate(leases).tolist()) == [0, 1, 2, 3, 4]
    assert all(lease.dtype == np.int32 for lease in leases)
    assert slots.statistics() == {"leased": 5, "capacity": 5}


def test_released_slots_are_leased_again_lowest_first() -> None:
    slots = Slots(4)
    slots.lease(1)
    middle = slots.lease(2)
    assert middle.tolist() == [1, 2]
    slots.release(middle)
    assert slots.statistics()["leased"] == 1
    assert slots.lease(2).tolist() == [1, 2]


def test_a_lease_that_does_not_fit_takes_nothing() -> None:
    slots = Slots(3)
    slots.lease(2)
    with pytest.raises(NoCapacity) as refusal:
        slots.lease(2)
    assert str(refusal.value) == (
        "expected at most 1 environments (that many of 3 slots are free), found 2: wait for leases to "
        "end, or raise --max-environments"
    )
    assert slots.lease(1).tolist() == [2]
