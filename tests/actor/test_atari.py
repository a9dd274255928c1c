"""Atari: the standard preprocessing, with the game's own rewards."""

import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from actor.environments import make_environment
from tests.actor.contract import EnvironmentContract, walk

pytest.importorskip("ale_py")


class TestBreakout(EnvironmentContract):
    env_id = "ALE/Breakout-v5"
    num_envs = 2
    steps = 250

    def test_observations_are_single_gray_images(self) -> None:
        environment = self.make()
        assert environment.observation_space == spaces.Box(0, 255, (84, 84, 1), np.uint8)
        assert environment.reset().observation.shape == (2, 84, 84, 1)

    def test_actions_are_the_games_minimal_set(self) -> None:
        assert self.make().action_space == spaces.Discrete(4)

    def test_an_episode_has_all_its_lives(self) -> None:
        """Losing a life ends nothing: five are lost before the first row ends."""
        environment = self.make()
        lives = []
        vector = environment._vector  # type: ignore[attr-defined]
        step = vector.env.step
        vector.env.step = lambda actions: lives.append(step(actions)) or lives[-1]  # type: ignore[func-returns-value]
        timesteps = walk(environment, self.steps)[1:]
        end = next(index for index, timestep in enumerate(timesteps) if timestep.terminated[0])
        assert {info["lives"][0] for *_, info in lives[:end]} == {5, 4, 3, 2, 1}


def test_the_preprocessing_is_the_fields_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import ale_py.vector_env

    asked: dict[str, object] = {}
    original = ale_py.vector_env.AtariVectorEnv

    def spy(game: str, num_envs: int, **options: object) -> object:
        asked.update(options, game=game, num_envs=num_envs)
        return original(game, num_envs, **options)

    monkeypatch.setattr(ale_py.vector_env, "AtariVectorEnv", spy)
    make_environment("ALE/MsPacman-v5", 2, seed=1)
    assert asked == {
        "game": "ms_pacman",
        "num_envs": 2,
        "num_threads": 1,
        "img_height": 84,
        "img_width": 84,
        "grayscale": True,
        "frameskip": 4,
        "maxpool": True,
        "stack_num": 1,
        "noop_max": 30,
        "use_fire_reset": True,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "episodic_life": False,
        "reward_clipping": False,
        "max_num_frames_per_episode": 108_000,
    }


def test_rewards_are_the_games_own() -> None:
    timesteps = walk(make_environment("ALE/SpaceInvaders-v5", 2, seed=1), 250)
    assert max(timestep.reward.max() for timestep in timesteps) >= 5


def test_the_image_that_the_policy_sees_is_shown() -> None:
    environment = make_environment("ALE/Pong-v5", 2, seed=1, render=True)
    assert environment.render() is None
    environment.reset()
    observation = environment.step(np.zeros(2, np.int64)).observation
    frame = environment.render()
    assert frame is not None
    assert frame.shape == (336, 336, 3)
    assert frame.dtype == np.uint8
    np.testing.assert_array_equal(frame[::4, ::4, 0], observation[0, :, :, 0])
    np.testing.assert_array_equal(frame[3::4, 3::4, 2], observation[0, :, :, 0])
    assert environment.frames_per_second == 15


def test_no_tensorflow_and_one_thread() -> None:
    script = (
        "import sys, os\n"
        "from actor.environments import make_environment\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "environment = make_environment('ALE/Pong-v5', 4, seed=1)\n"
        "environment.reset()\n"
        "assert not {'tensorflow', 'torch', 'jax'} & set(sys.modules)\n"
        "sys.stdout.write(str(len(os.listdir('/proc/self/task')) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1"
