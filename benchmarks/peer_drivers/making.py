"""Workloads to worlds that keep a record; and Pong, which ale-py steps in C++."""

import time
from collections.abc import Callable

import numpy as np

from benchmarks.peer_drivers.records import Record, folder
from benchmarks.peer_drivers.worlds import (
    FRAME,
    Autoreset,
    CartPole,
    FreeImages,
    FreeWorld,
    Recall,
    Step,
    Straggler,
    World,
)


class Pong(World):
    """W4: ALE/Pong-v5, frame skip 4, gray 84x84, `frames` stacked, no sticky actions, clipped rewards.

    ale-py's own vector environment, without its Gymnasium class, which old Gymnasiums cannot load.
    """

    dtype = np.uint8
    num_actions = 6

    def __init__(self, num_envs: int, autoreset: Autoreset, seed: int, frames: int) -> None:
        import ale_py._ale_py as ale
        from ale_py import roms

        super().__init__(num_envs, autoreset, seed)
        self.shape = (frames, *FRAME)
        self._seeds = self.rng.integers(0, 2**31 - 1, num_envs)
        self._over = np.zeros(num_envs, bool)
        self._ale = ale.ALEVectorInterface(
            rom_path=roms.get_rom_path("pong"),
            num_envs=num_envs,
            frame_skip=4,
            stack_num=frames,
            img_height=FRAME[0],
            img_width=FRAME[1],
            grayscale=True,
            maxpool=True,
            noop_max=30,
            use_fire_reset=True,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=True,
            max_episode_steps=108_000,
            repeat_action_probability=0.0,
            full_action_space=False,
            batch_size=0,
            num_threads=1,
            thread_affinity_offset=-1,
            autoreset_mode="SameStep" if autoreset == "same" else "NextStep",
        )

    def reset(self) -> np.ndarray:
        observation, _ = self._ale.reset(np.arange(self.num_envs), self._seeds)
        self._over = np.zeros(self.num_envs, bool)
        return np.asarray(observation)

    def step(self, actions: np.ndarray) -> Step:
        following = self.autoreset == "next" and bool(self._over.any())
        reset = self._over if following else None
        self._ale.send(np.asarray(actions, np.int64), np.ones(self.num_envs, np.float32))
        observation, reward, terminated, truncated, info = self._ale.recv()
        self._over = terminated | truncated
        return Step(
            observation,
            reward.astype(np.float32),
            terminated,
            truncated,
            info.get("final_obs") if self._over.any() else None,
            reset,
        )


class RecordedWorld:
    """A world that notes its steps, the returns, and how long it waited for actions."""

    def __init__(
        self, world: World, record: Record, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._world, self._record, self._clock = world, record, clock
        self.num_envs, self.num_actions = world.num_envs, world.num_actions
        self.shape, self.dtype = world.shape, world.dtype
        self._returns = np.zeros(world.num_envs)
        self._shown: float | None = None

    def reset(self) -> np.ndarray:
        observation = self._world.reset()
        self._returns[:] = 0
        self._shown = self._clock()
        return observation

    def step(self, actions: np.ndarray) -> Step:
        now = self._clock()
        step = self._world.step(actions)
        live = self.num_envs if step.reset is None else self.num_envs - int(step.reset.sum())
        self._record.stepped(live, now - self._shown if self._shown is not None else 0.0)
        self._returns += step.reward
        over = step.terminated | step.truncated
        shown = self._clock()
        if over.any():
            for value in self._returns[over]:
                self._record.finished(shown, float(value))
            self._returns[over] = 0
        self._shown = shown
        return step


def make_world(
    workload: str, num_envs: int, autoreset: Autoreset, *, seed: int, frames: int = 4
) -> RecordedWorld:
    """The world of a workload, with its record in the run's folder.

    Args:
        workload: W1 to W6.
        num_envs: environments that step together.
        autoreset: when finished episodes are begun anew.
        seed: of all of them together.
        frames: images in one observation, where it is one.

    Raises:
        KeyError: no such workload, or this process is not one of the benchmark's.
    """
    plain: dict[str, type[World]] = {"W1": FreeWorld, "W3": CartPole, "W5": Straggler, "W6": Recall}
    images = {"W2": FreeImages, "W4": Pong}
    if workload in images:
        world: World = images[workload](num_envs, autoreset, seed, frames)
    else:
        world = plain[workload](num_envs, autoreset, seed)
    return RecordedWorld(world, Record(folder()))
