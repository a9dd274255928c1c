"""Act with an exported policy. It needs TensorFlow and Gymnasium, and nothing of seedbed.

    seedbed export --logdir runs/cartpole --out exported/cartpole
    python examples/load_exported_policy.py exported/cartpole CartPole-v1

The signature is the same for every policy whose observation is one array; a policy with memory (an
LSTM, stacked frames) has entries "state_..." in it, which are handed from step to step.
"""

import sys

import gymnasium
import tensorflow as tf


def play(folder: str, env: gymnasium.Env) -> float:
    """The return of one greedy episode."""
    model = tf.saved_model.load(folder)
    act = model.signatures["serving_default"]
    state = {}
    if "initial_state" in model.signatures:
        state = model.signatures["initial_state"](batch_size=tf.constant(1))

    observation, _ = env.reset(seed=0)
    episode_return, reset, ended = 0.0, True, False
    while not ended:
        batch = tf.constant([observation], env.observation_space.dtype)
        outputs = act(observation=batch, reset=tf.constant([reset]), **state)
        state = {name: value for name, value in outputs.items() if name.startswith("state_")}
        action = outputs["action"].numpy()[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        episode_return += float(reward)
        reset, ended = False, terminated or truncated
    return episode_return


if __name__ == "__main__":
    folder, env_id = sys.argv[1:]
    print(f"return {play(folder, gymnasium.make(env_id)):g}")
