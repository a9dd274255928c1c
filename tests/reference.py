"""Slow, obvious NumPy truth, straight from the papers' definitions. Nothing here is fast or clever."""

from typing import Any, NamedTuple

import numpy as np


class VTrace(NamedTuple):
    targets: np.ndarray
    advantages: np.ndarray


def vtrace(
    *,
    log_rhos: np.ndarray,
    discounts: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap_value: np.ndarray,
    valid: np.ndarray,
    rho_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lambda_: float = 1.0,
) -> VTrace:
    """Espeholt et al. 2018, equation 1 as a sum of products; shapes as in `learner.maths.vtrace`.

    v_s = V(x_s) + sum_{t=s}^{T-1} (prod_{i=s}^{t-1} gamma_i c_i) delta_t
    """
    length, batch = rewards.shape
    targets, advantages = np.zeros((length, batch)), np.zeros((length, batch))
    for b in range(batch):
        rho = [np.exp(log_rhos[t, b]) if valid[t, b] else 0.0 for t in range(length)]
        c = [lambda_ * min(c_clip, rho[t]) for t in range(length)]
        gamma, reward = discounts[:, b], rewards[:, b]
        value = [*values[:, b], bootstrap_value[b]]
        delta = [
            min(rho_clip, rho[t]) * (reward[t] + gamma[t] * value[t + 1] - value[t])
            for t in range(length)
        ]
        target = [
            value[s]
            + sum(np.prod([gamma[i] * c[i] for i in range(s, t)]) * delta[t] for t in range(s, length))
            for s in range(length)
        ]
        target.append(value[length])
        for s in range(length):
            bootstrap = lambda_ * target[s + 1] + (1 - lambda_) * value[s + 1]
            advantages[s, b] = min(pg_rho_clip, rho[s]) * (reward[s] + gamma[s] * bootstrap - value[s])
        targets[:, b] = target[:length]
    return VTrace(targets, advantages)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def categorical_log_prob(logits: np.ndarray, action: int) -> float:
    return float(np.log(softmax(logits)[action]))


def categorical_entropy(logits: np.ndarray) -> float:
    return float(-sum(p * np.log(p) for p in softmax(logits)))


def gaussian_log_prob(mean: np.ndarray, std: np.ndarray, x: np.ndarray) -> float:
    """Log density of independent normal variables."""
    density = np.exp(-((x - mean) ** 2) / (2 * std**2)) / np.sqrt(2 * np.pi * std**2)
    return float(np.log(density).sum())


def gaussian_entropy(std: np.ndarray) -> float:
    return float(sum(0.5 * np.log(2 * np.pi * np.e * s**2) for s in std.ravel()))


def numeric_gradient(f: Any, x: np.ndarray, step: float) -> np.ndarray:
    """Central differences of the scalar function f at x, one element at a time."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (f(up) - f(down)) / (up[index] - down[index])
    return gradient


def stack_frames(frames: np.ndarray, first: np.ndarray, past: np.ndarray) -> np.ndarray:
    """The newest k frames at every step, oldest first; black before an episode's first.

    Args:
        frames: [T, B, ...] single frames.
        first: bool [T, B], first row of an episode.
        past: [B, k - 1, ...] frames before row 0, newest last.

    Returns:
        [T, B, k, ...].
    """
    length, batch = first.shape
    stacks = np.zeros((length, batch, past.shape[1] + 1, *frames.shape[2:]), frames.dtype)
    for b in range(batch):
        stack = [np.zeros_like(frames[0, b]), *past[b]]
        for t in range(length):
            if first[t, b]:
                stack = [np.zeros_like(frame) for frame in stack]
            stack = [*stack[1:], frames[t, b]]
            stacks[t, b] = stack
    return stacks
