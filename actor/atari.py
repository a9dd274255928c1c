"""Atari games, emulated and preprocessed in C++ by ale-py's `AtariVectorEnv`.

The field's standard preprocessing (Machado et al. 2018, and Mnih et al. 2015 for the observation):
frames of 84x84 gray, each the maximum of the last two of 4 skipped ones; up to 30 no-ops and, where
the game has it, FIRE at a reset; the game's minimal set of actions; no sticky actions; episodes of
at most 108,000 emulator frames, which end with the game and not with a life. Frames are not stacked
and rewards are not clipped here: both are the learner's work, so that each frame travels once and
returns are the game's own.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorWrapper

from actor.vector import environment_seeds
from protos.errors import EnvironmentFailure

FRAME = 84
FRAMES_PER_SECOND = 15
"""60 of the console, every fourth of which is seen."""
UPSCALE = 4


def make_atari(env_id: str, num_envs: int) -> Any:
    """A Gymnasium vector environment of the game; observations uint8 [N, 84, 84, 1].

    One thread: a machine's cores are shared by starting one actor process for each.

    Raises:
        EnvironmentFailure: ale-py is not installed.
        gymnasium.error.Error: no such game.
    """
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise EnvironmentFailure(
            f"environment {env_id} needs ale-py ({error}): pip install 'seedbed[atari]'"
        ) from None
    game = gymnasium.spec(env_id).kwargs["game"]
    return AtariFrames(
        AtariVectorEnv(
            game,
            num_envs,
            num_threads=1,
            img_height=FRAME,
            img_width=FRAME,
            grayscale=True,
            frameskip=4,
            maxpool=True,
            stack_num=1,
            noop_max=30,
            use_fire_reset=True,
            repeat_action_probability=0.0,
            full_action_space=False,
            episodic_life=False,
            reward_clipping=False,
            max_num_frames_per_episode=108_000,
        )
    )


class AtariFrames(VectorWrapper):  # type: ignore[misc]  # Gymnasium is untyped here
    """Observations as images, [N, 84, 84, 1] instead of [N, 1, 84, 84]; they are also what is shown."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        shape = (FRAME, FRAME, 1)
        self.single_observation_space = Box(0, 255, shape, np.uint8)
        self.observation_space = Box(0, 255, (self.num_envs, *shape), np.uint8)
        self.metadata = {**env.metadata, "render_fps": FRAMES_PER_SECOND}
        self._shown: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seeds = None if seed is None else np.array(environment_seeds(seed, self.num_envs))
        observation, info = self.env.reset(seed=seeds, options=options)
        return self._as_images(observation), info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        return self._as_images(observation), reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """What the policy sees of environment 0, enlarged: uint8 [336, 336, 3]."""
        if self._shown is None:
            return None
        large = self._shown.repeat(UPSCALE, axis=0).repeat(UPSCALE, axis=1)
        return (large.repeat(3, axis=2),)

    def _as_images(self, observation: np.ndarray) -> np.ndarray:
        images = observation.reshape(self.num_envs, FRAME, FRAME, 1)  # one channel: nothing moves
        self._shown = images[0]
        return images
