"""The proof, from ledgers alone, that a run has lost nothing but what may be lost.

An environment's rows come to the learner in *chains*: one a lease, of consecutive rows. Unroll k of a
chain has its rows kT to (k+1)T, T being the unroll length, so that two unrolls share a row and no
transition. Every transition that an environment ever made is in exactly one of these places:

- *trained*: in an unroll that an update was made with;
- *dropped*: in the unfinished unroll of a lease that ended, which the learner counts;
- *held*: in a finished unroll that the learner still held when it ended or was killed;
- *open*: in an unfinished unroll of a lease that was there when the learner ended or was killed;
- *between*: the one that led to a lease's first row, where that was not in the lease before.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.faults import world
from benchmarks.faults.ledger import DROP, ROW, STEPS, UPDATE, Event
from learner.flags import ALL_WIRE_FLAGS, LEASE_START
from protos import inference_pb2 as pb

MAX_FAULTS = 20
"""Faults of one kind that are told one by one."""


@dataclass
class Proof:
    """What was found."""

    faults: list[str] = field(default_factory=list)
    """what may not be, in words; empty if nothing was lost"""
    figures: dict[str, int] = field(default_factory=dict)
    """transitions in all, and by the place where they are; and what else was counted"""
    leases: Counter[int] = field(default_factory=Counter)
    """leases by environment"""

    def tell(self, wrong: np.ndarray, what: str, rows: np.ndarray) -> None:
        """Note the fault `what` for each of `rows`, ROW [n], that is `wrong`, bool [n]."""
        found = np.flatnonzero(wrong)
        for row in rows[found[:MAX_FAULTS]]:
            self.faults.append(f"environment {row['environment']}, row {row['row']}: {what}")
        if len(found) > MAX_FAULTS:
            self.faults.append(f"{len(found) - MAX_FAULTS} more times: {what}")


def prove(ledgers: Sequence[Sequence[Event]], length: int) -> Proof:
    """Check all that the incarnations of one learner have recorded, in their order; T is `length`."""
    proof = Proof()
    incarnations = [_Incarnation(events, length, proof) for events in ledgers]
    for incarnation in incarnations:
        incarnation.check_rows()
        incarnation.check_drops()
        incarnation.check_unrolls()
    between = _check_continuity(incarnations, proof)
    _check_each_once(incarnations, proof)
    places = Counter[str]()
    for incarnation in incarnations:
        places.update(incarnation.places())
    places["between"] = between
    total = sum(_last_rows(incarnations).values())
    if sum(places.values()) != total:
        proof.faults.append(f"expected {total} transitions in all places together, found {dict(places)}")
    for incarnation in incarnations:
        proof.leases.update(incarnation.first_rows["environment"].tolist())
    proof.figures = {
        "transitions": total,
        **{name: places[name] for name in ("trained", "dropped", "held", "open", "between")},
        "unrolls_trained": sum(len(incarnation.unrolls) for incarnation in incarnations),
        "leases": proof.leases.total(),
        "leases_dropped": sum(incarnation.dropped_leases for incarnation in incarnations),
        "environments": len(proof.leases),
        "learners": len(incarnations),
    }
    return proof


def check_metrics(events: Sequence[Event], lines: Sequence[Mapping[str, Any]], proof: Proof) -> None:
    """Check that the losses in one incarnation's metrics.jsonl are those that its ledger has."""
    known = {(0, 0)} | {(event.dropped, event.dropped_steps) for event in events if event.kind == DROP}
    for line in lines:
        told = int(line["unrolls/dropped"]), int(line["unrolls/dropped_steps"])
        if told not in known:
            proof.faults.append(
                f"metrics.jsonl tells of {told[0]} unrolls dropped with {told[1]} steps, which the "
                "ledger has at no moment"
            )


class _Incarnation:
    """One learner process's part: its rows in chains, and what was trained on.

    `rows` are sorted by slot, and by time within each; `starts` and `ends` delimit the chains in them.
    """

    def __init__(self, events: Sequence[Event], length: int, proof: Proof) -> None:
        self._events = events
        self._length = length
        self._proof = proof
        self.dropped_leases = 0
        self._dropped_steps = 0
        steps = [(i, event.payload) for i, event in enumerate(events) if event.kind == STEPS]
        rows = np.concatenate([np.empty(0, ROW), *(payload for _, payload in steps)])
        when = np.repeat([i for i, _ in steps], [len(payload) for _, payload in steps]).astype(np.int64)
        order = np.argsort(rows["slot"], kind="stable")
        self.rows, self._when = rows[order], when[order]
        begins = (self.rows["flags"] & LEASE_START) != 0
        moved = np.diff(self.rows["slot"], prepend=-1) != 0
        proof.tell(moved & ~begins, "expected a lease's first row in a slot that had none", self.rows)
        self.starts = np.flatnonzero(begins | moved)
        self.ends = np.append(self.starts[1:], len(self.rows))[: len(self.starts)]
        self._chain = np.cumsum(begins | moved) - 1
        self._position = np.arange(len(self.rows)) - self.starts[self._chain]
        batches = [event.payload.T for event in events if event.kind == UPDATE]
        self.unrolls = np.concatenate([np.empty((0, length + 1), ROW), *batches])
        """ROW [n, T+1], in the order in which they were trained on"""

    @property
    def first_rows(self) -> np.ndarray:
        """ROW [chains]"""
        return self.rows[self.starts]

    @property
    def last_rows(self) -> np.ndarray:
        """ROW [chains]"""
        return self.rows[self.ends - 1]

    def chains_in_order(self) -> np.ndarray:
        """Indices of the chains, by the moment at which they began."""
        return np.argsort(self._when[self.starts], kind="stable")

    def places(self) -> dict[str, int]:
        """Transitions by where they are, but for those between leases."""
        transitions = self.ends - self.starts - 1
        finished = int((transitions // self._length).sum()) * self._length
        trained = len(self.unrolls) * self._length
        unfinished = int((transitions % self._length).sum())
        return {
            "trained": trained,
            "held": finished - trained,
            "dropped": self._dropped_steps,
            "open": unfinished - self._dropped_steps,
        }

    def check_rows(self) -> None:
        """Each row is what the world shows there, and the next one of its lease's environment."""
        rows, tell = self.rows, self._proof.tell
        _check_truth(rows, self._proof)
        follows = self._position[1:] > 0
        before, after = rows[:-1], rows[1:]
        same = before["environment"] == after["environment"]
        tell(follows & ~same, "expected rows of one environment in a lease", after)
        consecutive = after["row"] == before["row"].astype(np.int64) + 1
        tell(follows & same & ~consecutive, "expected the row after the one before", after)
        moved = follows & same & consecutive & (after["time"] > 0)
        tell(
            moved & (after["came_by"] != before["action"]), "expected the action it was answered", after
        )

    def check_drops(self) -> None:
        """Leases that end drop their unfinished unrolls, once, and the learner's counts say so."""
        chains_of: dict[int, list[int]] = defaultdict(list)
        for chain, slot in enumerate(self.first_rows["slot"].tolist()):
            chains_of[slot].append(chain)
        transitions = self.ends - self.starts - 1
        finishing = np.sort(self._when[(self._position > 0) & (self._position % self._length == 0)])
        dropped_at: dict[int, int] = {}
        for moment, event in enumerate(self._events):
            if event.kind != DROP:
                continue
            for slot in event.payload.tolist():
                begun = [c for c in chains_of[slot] if self._when[self.starts[c]] < moment]
                if begun and begun[-1] not in dropped_at:
                    dropped_at[begun[-1]] = moment
                    self.dropped_leases += 1
                    self._dropped_steps += int(transitions[begun[-1]] % self._length)
            counted = int(np.searchsorted(finishing, moment)), self.dropped_leases, self._dropped_steps
            if counted != (told := (event.finished, event.dropped, event.dropped_steps)):
                self._proof.faults.append(
                    f"expected (unrolls finished, dropped, steps dropped) of {counted}, found that the "
                    f"learner counts {told}"
                )
        for slot, chains in chains_of.items():
            for chain, following in pairwise(chains):
                end = dropped_at.get(chain)
                last, begin = self._when[self.ends[chain] - 1], self._when[self.starts[following]]
                if end is None or not last < end < begin:
                    self._proof.faults.append(f"slot {slot}: expected a lease's end before the next one")

    def check_unrolls(self) -> None:
        """Each unroll is a piece of a chain, whole, in its place, and in order."""
        unrolls, tell, length = self.unrolls, self._proof.tell, self._length
        if not len(unrolls):
            return
        firsts = unrolls[:, 0]
        mixed = (unrolls["environment"] != firsts["environment"][:, None]).any(1)
        tell(mixed, "expected an unroll of one environment, found several", firsts)
        holes = (np.diff(unrolls["row"].astype(np.int64), axis=1) != 1).any(1)
        tell(~mixed & holes, "expected an unroll of consecutive rows, found a hole", firsts)
        _check_truth(unrolls.reshape(-1), self._proof)

        # The transition into row 1 is in one lease alone; its row 0 may be in two.
        candidates = np.flatnonzero(self._position > 0)
        keys = _key(self.rows[candidates])
        order = np.argsort(keys, kind="stable")
        tell(np.diff(keys[order]) == 0, "recorded twice", self.rows[candidates[order[1:]]])
        wanted = _key(firsts) + 1
        at = np.searchsorted(keys[order], wanted)
        known = (at < len(keys)) & (keys[order][np.minimum(at, len(keys) - 1)] == wanted)
        tell(~known, "expected a row that was answered, found a stranger", firsts)
        begin = candidates[order[at[known]]] - 1
        whole = begin + length < self.ends[self._chain[begin]]
        tell(~whole, "expected an unroll within a lease", firsts[known])
        begin, found = begin[whole], unrolls[known][whole]
        happened = self.rows[begin[:, None] + np.arange(length + 1)]
        differs = np.zeros(found.shape, bool)
        for name in set(ROW.names or ()) - {"slot", "flags"}:
            differs |= found[name] != happened[name]
        differs |= found["flags"] != happened["flags"] & ALL_WIRE_FLAGS
        tell(differs.any(1), "expected an unroll as it was recorded", found[:, 0])

        position, chain = self._position[begin], self._chain[begin]
        misplaced = position % length != 0
        tell(misplaced, "expected an unroll to begin where the one before ended", found[:, 0])
        by_chain = np.argsort(chain, kind="stable")
        number = (position // length)[by_chain]
        new = np.diff(chain[by_chain], prepend=-1) != 0
        rank = np.arange(len(number)) - np.maximum.accumulate(np.where(new, np.arange(len(number)), 0))
        tell(number != rank, "expected the unrolls of a lease one after the other", found[by_chain, 0])


def _check_truth(rows: np.ndarray, proof: Proof) -> None:
    """ROW [n] are as the world shows them."""
    proof.tell(rows["reward"] != world.rewards(rows), "expected the world's reward", rows)
    expected = (
        pb.FIRST * (rows["time"] == 0)
        | pb.TERMINATED * world.terminated(rows)
        | pb.TRUNCATED * world.truncated(rows)
    )
    proof.tell(rows["flags"] & ALL_WIRE_FLAGS != expected, "expected the world's flags", rows)


def _check_continuity(incarnations: Sequence[_Incarnation], proof: Proof) -> int:
    """An environment's leases follow one another without a row between; the transitions between them."""
    last: dict[int, int] = {}
    between = 0
    for incarnation in incarnations:
        first_rows, last_rows = incarnation.first_rows, incarnation.last_rows
        for chain in incarnation.chains_in_order():
            environment, row = int(first_rows["environment"][chain]), int(first_rows["row"][chain])
            # A step whose answer did not arrive is sent again, and one that was answered followed.
            expected = {last[environment], last[environment] + 1} if environment in last else {0}
            if row not in expected:
                proof.faults.append(
                    f"environment {environment}: expected a lease to begin at row "
                    f"{' or '.join(map(str, sorted(expected)))}, found row {row}"
                )
            between += environment in last and row == last[environment] + 1
            last[environment] = int(last_rows["row"][chain])
    return between


def _check_each_once(incarnations: Sequence[_Incarnation], proof: Proof) -> None:
    """Over all incarnations no transition is trained on twice, and none before an earlier one. By the
    batches alone: this needs nothing of what was recorded of the acting."""
    firsts = np.concatenate([incarnation.unrolls[:, 0] for incarnation in incarnations])
    lengths = np.concatenate(
        [np.full(len(one.unrolls), one.unrolls.shape[1] - 1, np.int64) for one in incarnations]
    )

    def steps_along(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From each unroll to the next in `order`: whether it is the same environment's, and how many
        rows later it begins."""
        along = firsts[order]
        same = np.diff(along["environment"].astype(np.int64)) == 0
        return same, np.diff(along["row"].astype(np.int64))

    order = np.argsort(firsts["environment"], kind="stable")
    same, rows = steps_along(order)
    proof.tell(same & (rows < 0), "trained on after a later one", firsts[order][1:])
    order = np.lexsort((firsts["row"], firsts["environment"]))
    same, rows = steps_along(order)
    proof.tell(same & (rows < lengths[order][:-1]), "trained on twice", firsts[order][1:])


def _last_rows(incarnations: Sequence[_Incarnation]) -> dict[int, int]:
    """Each environment's last row that any learner has recorded: as many transitions has it made."""
    last: dict[int, int] = {}
    for incarnation in incarnations:
        for row in incarnation.last_rows[incarnation.chains_in_order()]:
            last[int(row["environment"])] = int(row["row"])
    return last


def _key(rows: np.ndarray) -> np.ndarray:
    """int64 [n]: one number for each row of each environment."""
    return (rows["environment"].astype(np.int64) << 32) | rows["row"].astype(np.int64)
