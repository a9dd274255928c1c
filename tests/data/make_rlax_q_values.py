"""Make rlax_q_values.npz: Q-learning's parts by DeepMind's rlax, for the tests to compare with.

rlax needs JAX, which nothing else here does, so its values are stored instead. To make them again,
in an environment of its own: `pip install rlax`, then `python tests/data/make_rlax_q_values.py`.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rlax

OUT = Path(__file__).with_name("rlax_q_values.npz")
T, B, A = 11, 6, 4
STEPS = (1, 3, 5, 20)
"""n of n-step returns; the last is longer than the sequence."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    arrays = rescaling(rng)
    for n in STEPS:
        inputs = draw_inputs(rng)
        values = {**inputs, "returns": returns(inputs, n), "td_errors": td_errors(inputs, n)}
        arrays |= {f"n_{n}/{name}": np.asarray(value) for name, value in values.items()}
    np.savez_compressed(OUT, **arrays)


def rescaling(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The pair of transformations of Pohlen et al. 2018, in double precision."""
    x = np.concatenate([[0.0], rng.normal(0, 1, 20), rng.normal(0, 1000, 20)])
    pair = rlax.SIGNED_HYPERBOLIC_PAIR
    return {
        "rescaling/x": x,
        "rescaling/rescaled": np.asarray(pair.apply(jnp.asarray(x))),
        "rescaling/unscaled_of_a_20th": np.asarray(pair.apply_inv(jnp.asarray(x / 20))),
    }


def draw_inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    inputs = {
        "rewards": rng.normal(0, 1, (T, B)),
        "discounts": 0.97 * (rng.random((T, B)) > 0.2),
        "q": rng.normal(0, 3, (T + 1, B, A)),
        "target_q": rng.normal(0, 3, (T + 1, B, A)),
    }
    actions = rng.integers(0, A, (T, B), dtype=np.int32)
    return {"actions": actions, **{key: value.astype(np.float32) for key, value in inputs.items()}}


def returns(inputs: dict[str, np.ndarray], n: int) -> Any:
    """n-step returns that bootstrap from the first action's value."""

    def one(rewards: jax.Array, discounts: jax.Array, values: jax.Array) -> Any:
        return rlax.n_step_bootstrapped_returns(rewards, discounts, values[1:], n)

    values = inputs["target_q"][..., 0]
    return jax.vmap(one, 1, 1)(inputs["rewards"], inputs["discounts"], values)


def td_errors(inputs: dict[str, np.ndarray], n: int) -> Any:
    """Double Q-learning, in rescaled values."""

    def one(
        q: jax.Array, target_q: jax.Array, actions: jax.Array, rewards: jax.Array, discounts: jax.Array
    ) -> Any:
        return rlax.transformed_n_step_q_learning(
            q[:-1],
            actions,
            target_q[1:],
            jnp.argmax(q[1:], -1),
            rewards,
            discounts,
            n,
            tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR,
        )

    names = ("q", "target_q", "actions", "rewards", "discounts")
    return jax.vmap(one, 1, 1)(*(inputs[name] for name in names))


if __name__ == "__main__":
    main()
