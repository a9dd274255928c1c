"""What is done with a run's policy: `seedbed evaluate` and `seedbed export`."""

import json
from pathlib import Path

import imageio.v3
import pytest

from tests.integration.commands import Done, read_json, seedbed
from tests.integration.processes import Launcher, options

DRAWN = """
import gymnasium
import numpy as np

class Drawn(gymnasium.Wrapper):
    render_mode = "rgb_array"
    steps = 0

    def reset(self, **keywords):
        self.steps = 0
        return self.env.reset(**keywords)

    def step(self, action):
        self.steps += 1
        return self.env.step(action)

    def render(self):
        # Bars, as many as steps: each frame differs from the one before.
        image = np.zeros((64, 128, 3), np.uint8)
        image[:, : self.steps * 4 + 4 : 2] = 255
        return image

def make_env(render_mode=None):
    return Drawn(gymnasium.make("CartPole-v1", max_episode_steps=20))
"""

CHATTY = """
import os
import gymnasium

class Chatty(gymnasium.Wrapper):
    def reset(self, **keywords):
        print("hello from reset", flush=True)
        return self.env.reset(**keywords)

    def step(self, action):
        os.system("echo hello from a child")
        return self.env.step(action)

def make_env():
    return Chatty(gymnasium.make("CartPole-v1", max_episode_steps=5))
"""

IMPATIENT = """
import os
import signal
import gymnasium

class Impatient(gymnasium.Wrapper):
    def reset(self, **keywords):
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()

def make_env():
    return Impatient(gymnasium.make("CartPole-v1"))
"""

STRANGER = """
import sys
for package in ("learner", "actor", "protos"):
    sys.modules[package] = None  # importing it fails
import gymnasium
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
state = model.signatures["initial_state"](batch_size=tf.constant(1))
env = gymnasium.make("CartPole-v1", max_episode_steps=20)
observation, _ = env.reset(seed=0)
first, over, actions = True, False, []
while not over:
    outputs = model.signatures["serving_default"](
        observation=tf.constant(observation[None]), reset=tf.constant([first]), **state
    )
    actions.append(int(outputs.pop("action")[0]))
    state = outputs
    observation, _, terminated, truncated, _ = env.step(actions[-1])
    first, over = False, terminated or truncated
print(actions)
"""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of CartPole, with an LSTM."""
    logdir = tmp_path_factory.mktemp("runs") / "run"
    chosen = options(
        env="CartPole-v1", logdir=logdir, num_actors=1, envs_per_actor=4, total_steps=600, lstm_size=8
    )
    assert seedbed("train", *chosen).status == 0
    return logdir


def evaluation(done: Done) -> dict[str, object]:
    """The one JSON object that is all of its standard output."""
    assert done.status == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert done.stdout.count("\n") == 1, done.stdout
    result: dict[str, object] = json.loads(done.stdout)
    return result


# imageio leaves the pipes of its ffmpeg processes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_evaluate_with_video(suffix: str, logdir: Path, tmp_path: Path) -> None:
    if suffix == "mp4":
        pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "drawn.py").write_text(DRAWN)
    env, video = f"{tmp_path}/drawn.py:make_env", tmp_path / "new" / f"out.{suffix}"
    done = seedbed("evaluate", *options(logdir=logdir, episodes=3, num_envs=1, video=video, env=env))
    result = evaluation(done)
    returns = result["returns"]
    assert isinstance(returns, list)
    assert (result["env"], result["agent"], result["episodes"]) == (env, "vtrace", 3)
    assert result["version"] == read_json(logdir / "summary.json")["policy_version"]
    assert result["mean_return"] == pytest.approx(sum(returns) / 3)
    assert (result["min_return"], result["max_return"]) == (min(returns), max(returns))
    assert result["mean_length"] == result["mean_return"], "CartPole gives 1 a step"

    frames = imageio.v3.imread(video)
    assert frames.shape == (returns[0] + 1, 64, 128, 3), "expected the first episode, first to last"
    # The bars grow from the second column's on, until the episode's end.
    lit = (frames[:, 32, ::2, 0] > 128).sum(axis=1)
    assert lit.tolist() == [2 * (step + 1) for step in range(len(frames))]
    assert [path.name for path in video.parent.iterdir()] == [video.name]


def test_evaluate_says_why_there_is_no_video(logdir: Path, tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(DRAWN)
    env, video = f"{tmp_path}/drawn.py:make_env", tmp_path / "drawn.py" / "out.gif"
    done = seedbed("evaluate", *options(logdir=logdir, episodes=3, num_envs=1, video=video, env=env))
    assert (done.status, done.stdout) == (1, "")
    assert f"--video {video} cannot be written: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_evaluate_prints_nothing_else(logdir: Path, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    env = f"{tmp_path}/chatty.py:make_env"
    done = seedbed("evaluate", *options(logdir=logdir, episodes=3, env=env))
    result = evaluation(done)
    assert result["returns"] == [5.0] * 3, "expected episodes that are cut after 5 steps"
    assert "hello from reset" in done.stderr
    assert "hello from a child" in done.stderr


def test_evaluate_says_which_signal_ended_it(logdir: Path, tmp_path: Path) -> None:
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    done = seedbed("evaluate", *options(logdir=logdir, env=f"{tmp_path}/impatient.py:make_env"))
    assert (done.status, done.stdout) == (0, "")
    said = "SIGTERM: ending without a result; a second signal ends the process at once"
    assert said in done.stderr


def test_evaluate_of_no_run(tmp_path: Path) -> None:
    done = seedbed("evaluate", *options(logdir=tmp_path / "nothing", episodes=3))
    assert done.status == 2
    assert done.stdout == ""
    assert f"--logdir {tmp_path}/nothing: expected a run, found no config.toml" in done.stderr


def test_exported_policy_acts_without_this_package(
    logdir: Path, tmp_path: Path, launch: Launcher
) -> None:
    done = seedbed("export", *options(logdir=logdir, out=tmp_path / "model"))
    assert (done.status, done.stdout) == (0, ""), done.stderr
    stranger = launch.python("-c", STRANGER, str(tmp_path / "model"), cwd=tmp_path)
    assert stranger.status() == 0, stranger.stderr
    actions = json.loads(stranger.stdout)
    assert 5 <= len(actions) <= 20
    assert set(actions) <= {0, 1}
