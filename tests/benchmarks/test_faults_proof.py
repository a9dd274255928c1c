"""The proof of `benchmarks.chaos` finds each kind of loss."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults import world
from benchmarks.faults.ledger import DROP, ROW, UPDATE, Event, LedgerReader, LedgerWriter
from benchmarks.faults.proof import Proof, check_metrics, prove
from learner.flags import LEASE_START
from protos import inference_pb2 as pb

LENGTH = 4
Ledger = list[Event]


def walk(environment: int, count: int) -> np.ndarray:
    """ROW [count] of one environment from its beginning; the action of row r is r mod 4."""
    rows = np.zeros(count, ROW)
    rows["environment"], rows["row"] = environment, np.arange(count)
    rows["action"] = rows["row"] % world.NUM_ACTIONS
    for r in range(1, count):
        before = rows[r - 1 : r]
        over = bool(world.ended(before)[0])
        rows["episode"][r] = before["episode"][0] + over
        rows["time"][r] = 0 if over else before["time"][0] + 1
        rows["came_by"][r] = before["action"][0]
    rows["came_by"][rows["time"] == 0] = world.NO_ACTION
    rows["reward"] = world.rewards(rows)
    rows["flags"] = (
        pb.FIRST * (rows["time"] == 0)
        | pb.TERMINATED * world.terminated(rows)
        | pb.TRUNCATED * world.truncated(rows)
    )
    return rows


class Learner:
    """What one incarnation records; a slot's lease begins with the first row that it is given."""

    def __init__(self) -> None:
        self.ledger: Ledger = []
        self._open: dict[int, list[np.ndarray]] = {}
        self._counts = [0, 0, 0]

    def answer(self, slot: int, rows: np.ndarray) -> list[np.ndarray]:
        """Answer rows one after the other; the unrolls that they finish, ROW [T+1] each."""
        finished = []
        for row in rows.copy():
            row["slot"] = slot
            unfinished = self._open.setdefault(slot, [])
            recorded = row.reshape(1).copy()
            if not unfinished:
                recorded["flags"] |= LEASE_START
            self.ledger.append(Event(1, 0.0, recorded))
            unfinished.append(row.reshape(1))
            if len(unfinished) == LENGTH + 1:
                unroll = np.concatenate(unfinished)
                unroll["slot"] = -1
                finished.append(unroll)
                self._open[slot] = unfinished[-1:]
                self._counts[0] += 1
        return finished

    def train(self, *unrolls: np.ndarray) -> None:
        """One update."""
        self.ledger.append(Event(UPDATE, 0.0, np.stack(unrolls, axis=1)))

    def end(self, slot: int) -> None:
        """End the slot's lease."""
        self._counts[1] += 1
        self._counts[2] += len(self._open.pop(slot)) - 1
        self.ledger.append(Event(DROP, 0.0, np.array([slot], np.int32), *self._counts))


def run() -> list[Learner]:
    """Two learners, of which the first is killed; environment 7's lease expires once, and environment
    8's step is in flight at the kill."""
    seven, eight = walk(7, 60), walk(8, 60)
    first, second = Learner(), Learner()
    unrolls = [*first.answer(0, seven[:11]), *first.answer(1, eight[:9])]
    first.train(*unrolls[:2])
    first.end(0)
    unrolls += first.answer(0, seven[10:24])
    first.train(unrolls[2], unrolls[4])
    first.train(unrolls[3], unrolls[5])
    unrolls = [*second.answer(3, seven[23:40]), *second.answer(2, eight[9:30])]
    second.train(*unrolls[:2])
    second.train(*unrolls[4:6])
    return [first, second]


def proved(learners: list[Learner]) -> Proof:
    return prove([learner.ledger for learner in learners], LENGTH)


def updates(learner: Learner) -> list[int]:
    return [i for i, event in enumerate(learner.ledger) if event.kind == UPDATE]


def test_a_run_that_lost_nothing() -> None:
    proof = proved(run())
    assert proof.faults == []
    assert proof.figures == {
        "transitions": 39 + 29,
        "trained": 40,
        "dropped": 2,
        "held": 24,
        "open": 1,
        "between": 1,
        "unrolls_trained": 10,
        "leases": 5,
        "leases_dropped": 1,
        "environments": 2,
        "learners": 2,
    }
    assert proof.leases == {7: 3, 8: 2}


def test_nothing_at_all_is_no_loss() -> None:
    assert prove([[], []], LENGTH).faults == []


def _twice(learners: list[Learner]) -> None:
    first = learners[0].ledger
    first.append(first[updates(learners[0])[0]])


def _twice_by_two(learners: list[Learner]) -> None:
    learners[1].ledger.append(learners[0].ledger[updates(learners[0])[0]])


def _out_of_order(learners: list[Learner]) -> None:
    ledger, one = learners[1].ledger, updates(learners[1])[0]
    swapped = ledger[one].payload.copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    ledger[one] = ledger[one]._replace(payload=swapped)


def _left_out(learners: list[Learner]) -> None:
    del learners[1].ledger[updates(learners[1])[0]]
    learners[1].train(*learners[1].answer(3, walk(7, 60)[40:48]))


def _change_update(change: Callable[[np.ndarray], None]) -> Callable[[list[Learner]], None]:
    def damage(learners: list[Learner]) -> None:
        ledger, index = learners[0].ledger, updates(learners[0])[1]
        payload = ledger[index].payload.copy()
        change(payload)
        ledger[index] = ledger[index]._replace(payload=payload)

    return damage


def _mix(rows: np.ndarray) -> None:
    rows[2, [0, 1]] = rows[2, [1, 0]]


def _hole(rows: np.ndarray) -> None:
    rows[2:, 0] = walk(8, 60)[7 : 7 + LENGTH - 1]


def _other_action(rows: np.ndarray) -> None:
    rows["action"][1, 0] += 1


def _lost_end(rows: np.ndarray) -> None:
    rows["flags"] &= ~np.uint8(pb.TERMINATED | pb.TRUNCATED)


def _other_reward(rows: np.ndarray) -> None:
    rows["reward"][3, 1] += 1


def _shifted(rows: np.ndarray) -> None:
    rows[:, 0] = walk(8, 60)[1 : LENGTH + 2]
    rows["slot"] = -1


def _stranger(rows: np.ndarray) -> None:
    rows[:, 0] = walk(9, LENGTH + 1)


def _lost_row(learners: list[Learner]) -> None:
    del learners[1].ledger[5]


def _row_twice(learners: list[Learner]) -> None:
    learners[1].ledger.insert(5, learners[1].ledger[5])


def _wrong_count(learners: list[Learner]) -> None:
    (index,) = (i for i, event in enumerate(learners[0].ledger) if event.kind == DROP)
    event = learners[0].ledger[index]
    learners[0].ledger[index] = event._replace(dropped_steps=event.dropped_steps + 1)


def _never_dropped(learners: list[Learner]) -> None:
    learners[0].ledger = [event for event in learners[0].ledger if event.kind != DROP]


def _leases_apart(learners: list[Learner]) -> None:
    learners[1].answer(5, walk(7, 60)[42:44])


def _other_came_by(learners: list[Learner]) -> None:
    ledger = learners[1].ledger
    index = next(i for i, event in enumerate(ledger) if event.payload["time"][0] > 0 and i > 0)
    payload = ledger[index].payload.copy()
    payload["came_by"] += 1
    ledger[index] = ledger[index]._replace(payload=payload)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (_twice, "trained on twice"),
        (_twice_by_two, "trained on twice"),
        (_out_of_order, "trained on after a later one"),
        (_out_of_order, "expected the unrolls of a lease one after the other"),
        (_left_out, "expected the unrolls of a lease one after the other"),
        (_change_update(_mix), "expected an unroll of one environment, found several"),
        (_change_update(_hole), "expected an unroll of consecutive rows, found a hole"),
        (_change_update(_other_action), "expected an unroll as it was recorded"),
        (_change_update(_lost_end), "expected the world's flags"),
        (_change_update(_other_reward), "expected the world's reward"),
        (_change_update(_shifted), "expected an unroll to begin where the one before ended"),
        (_change_update(_stranger), "expected a row that was answered, found a stranger"),
        (_lost_row, "expected the row after the one before"),
        (_row_twice, "expected the row after the one before"),
        (_wrong_count, "expected (unrolls finished, dropped, steps dropped) of (4, 1, 2)"),
        (_never_dropped, "slot 0: expected a lease's end before the next one"),
        (_leases_apart, "environment 7: expected a lease to begin at row 39 or 40, found row 42"),
        (_other_came_by, "expected the action it was answered"),
    ],
)
def test_each_loss_is_found(damage: Callable[[list[Learner]], None], found: str) -> None:
    learners = run()
    damage(learners)
    faults = proved(learners).faults
    assert any(found in fault for fault in faults), faults


def test_metrics_tell_what_the_ledger_has() -> None:
    ledger = run()[0].ledger
    told = [(0, 0), (1, 2), (1, 3)]
    lines = [{"unrolls/dropped": count, "unrolls/dropped_steps": steps} for count, steps in told]
    proof = Proof()
    check_metrics(ledger, lines[:2], proof)
    assert proof.faults == []
    check_metrics(ledger, lines, proof)
    (fault,) = proof.faults
    assert fault.startswith("metrics.jsonl tells of 1 unrolls dropped with 3 steps")


def test_a_ledger_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    reader = LedgerReader(path)
    assert list(reader.read()) == []
    writer = LedgerWriter(path)
    rows = walk(3, 10)
    writer.steps(rows)
    writer.update(rows.reshape(5, 2))
    steps, update = reader.read()
    assert steps.payload.tolist() == rows.tolist()
    assert update.payload.tolist() == rows.reshape(5, 2).tolist()
    writer.drop(
        np.array([4, 5]), {"finished": 1.0, "dropped": 2.0, "dropped_steps": 3.0, "unfinished": 0}
    )
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert list(reader.read()) == []
    path.write_bytes(whole)
    (drop,) = reader.read()
    assert (drop.kind, drop.payload.tolist(), drop[3:]) == (DROP, [4, 5], (1, 2, 3))
    assert list(reader.read()) == []


def test_an_observation_is_its_identity() -> None:
    rows = walk(1_234_567, 40)
    identity = np.zeros(len(rows), world.IDENTITY)
    for name in world.IDENTITY.names:
        identity[name] = rows[name]
    assert world.decode(world.encode(identity)).tolist() == identity.tolist()


def test_the_world_shows_what_the_numbers_say() -> None:
    environment = world.NumberedWorld()
    expected = walk(int(environment._identity["environment"]), 60)
    observation, _ = environment.reset()
    for index, row in enumerate(expected):
        if index:
            before = expected[index - 1]
            over = bool(before["flags"] & (pb.TERMINATED | pb.TRUNCATED))
            if over:
                observation, _ = environment.reset()
            else:
                observation, reward, *_ = environment.step(before["action"])
                assert reward == row["reward"]
        identity = world.decode(observation)
        assert identity.item() == tuple(row[name] for name in world.IDENTITY.names)


def test_a_world_that_is_reset_twice_or_stepped_too_far_says_so() -> None:
    environment = world.NumberedWorld()
    with pytest.raises(RuntimeError, match="found a step"):
        environment.step(0)
    environment.reset()
    with pytest.raises(RuntimeError, match="found one in the middle or two"):
        environment.reset()
