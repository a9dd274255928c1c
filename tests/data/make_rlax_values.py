"""Make rlax_values.npz: V-trace and GAE by DeepMind's rlax, for the tests to compare with.

rlax needs JAX, which nothing else here does, so its values are stored instead. To make them again,
in an environment of its own: `pip install rlax`, then `python tests/data/make_rlax_values.py`.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import rlax

OUT = Path(__file__).with_name("rlax_values.npz")
T, B = 11, 6

CASES = {
    "on_policy": {"spread": 0.0},
    "off_policy": {"spread": 1.0},
    "lambda": {"spread": 1.0, "lambda_": 0.9},
    "clips": {"spread": 1.0, "rho_clip": 2.0, "pg_rho_clip": 1.5},
}
"""`spread`: standard deviation of the log importance weights; the rest are options of V-trace."""


GAE_LAMBDAS = {"gae": 0.9, "gae_td": 0.0, "gae_returns": 1.0}


def main() -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for name, options in CASES.items():
        options = {"lambda_": 1.0, "rho_clip": 1.0, "pg_rho_clip": 1.0, **options}
        inputs = draw_inputs(rng, options.pop("spread"))
        arrays |= {f"{name}/{key}": value for key, value in inputs.items()}
        arrays |= {f"{name}/{key}": np.float32(value) for key, value in options.items()}
        arrays |= {f"{name}/{key}": value for key, value in evaluate(inputs, **options).items()}
    for seed, (name, lambda_) in enumerate(GAE_LAMBDAS.items()):
        inputs = draw_inputs(np.random.default_rng([1, seed]), 0.0)
        del inputs["log_rhos"]
        arrays |= {f"{name}/{key}": value for key, value in inputs.items()}
        arrays[f"{name}/lambda_"] = np.float32(lambda_)
        arrays[f"{name}/advantages"] = evaluate_gae(**inputs, lambda_=lambda_)
    np.savez_compressed(OUT, **arrays)


def draw_inputs(rng: np.random.Generator, spread: float) -> dict[str, np.ndarray]:
    valid = rng.random((T, B)) > 0.15
    inputs = {
        "log_rhos": rng.normal(0, 1, (T, B)) * spread,
        "discounts": 0.97 * (rng.random((T, B)) > 0.2),
        "rewards": rng.normal(0, 1, (T, B)),
        "values": rng.normal(0, 2, (T, B)),
        "bootstrap_value": rng.normal(0, 2, B),
    }
    return {"valid": valid, **{key: value.astype(np.float32) for key, value in inputs.items()}}


def evaluate(
    inputs: dict[str, np.ndarray], lambda_: float, rho_clip: float, pg_rho_clip: float
) -> dict[str, np.ndarray]:
    # What is no transition has the importance weight 0.
    rhos = np.where(inputs["valid"], np.exp(inputs["log_rhos"]), 0).astype(np.float32)
    next_values = np.concatenate([inputs["values"][1:], inputs["bootstrap_value"][None]])

    def one(*row: jax.Array) -> Any:
        return rlax.vtrace_td_error_and_advantage(*row, lambda_, rho_clip, pg_rho_clip)

    out = jax.vmap(one, in_axes=1, out_axes=1)(
        inputs["values"], next_values, inputs["rewards"], inputs["discounts"], rhos
    )
    return {"targets": inputs["values"] + out.errors, "advantages": np.asarray(out.pg_advantage)}


def evaluate_gae(
    valid: np.ndarray,
    discounts: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap_value: np.ndarray,
    lambda_: float,
) -> np.ndarray:
    all_values = np.concatenate([values, bootstrap_value[None]])
    # What is no transition has a temporal difference of 0, and passes none on.
    rewards = np.where(valid, rewards, values - discounts * all_values[1:]).astype(np.float32)
    lambdas = np.where(valid, lambda_, 0).astype(np.float32)
    estimate = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=1, out_axes=1)
    return np.asarray(estimate(rewards, discounts, lambdas, all_values))


if __name__ == "__main__":
    main()
