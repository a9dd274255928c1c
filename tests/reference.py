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


def gae(
    *,
    discounts: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap_value: np.ndarray,
    valid: np.ndarray,
    lambda_: float,
) -> np.ndarray:
    """Advantages [T, B] by Schulman et al. 2016, equation 16 as a sum; shapes as in `learner.maths.gae`.

    A_t = sum_l (prod_{i=t}^{t+l-1} gamma_i lambda) delta_{t+l}, before the first t+l that is no
    transition
    """
    length, batch = rewards.shape
    advantages = np.zeros((length, batch))
    for b in range(batch):
        value = [*values[:, b], bootstrap_value[b]]
        for t in range(length):
            weight = 1.0
            for k in range(t, length):
                if not valid[k, b]:
                    break
                delta = rewards[k, b] + discounts[k, b] * value[k + 1] - value[k]
                advantages[t, b] += weight * delta
                weight *= discounts[k, b] * lambda_
    return advantages


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


def convolve(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """y[n, i, j, f] = sum over a, b, c of x[n, s i + a, s j + b, c] kernel[a, b, c, f], no padding.

    Args:
        x: [N, H, W, C].
        kernel: [height, width, C, F].
        stride: s.

    Returns:
        [N, (H - height) // s + 1, (W - width) // s + 1, F].
    """
    size = kernel.shape[:2]
    rows, columns = ((n - k) // stride + 1 for n, k in zip(x.shape[1:3], size, strict=True))
    y = np.zeros((len(x), rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            top, left = stride * i, stride * j
            patch = x[:, top : top + size[0], left : left + size[1]]
            y[:, i, j] = np.einsum("nabc,abcf->nf", patch, kernel)
    return y


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


def n_step_targets(
    rewards: np.ndarray, discounts: np.ndarray, values: np.ndarray, valid: np.ndarray, n: int
) -> np.ndarray:
    """Sutton and Barto 2018, equation 7.1, at every step; shapes as in `learner.maths.td_targets`.

    The sum ends after n rewards, at the last row of the sequence, and at that of an episode, where
    t -> t+1 is no transition.
    """
    length, batch = rewards.shape
    targets = np.zeros((length, batch))
    for t, b in np.ndindex(length, batch):
        row, discount = t, 1.0
        while row < min(t + n, length) and valid[row, b]:
            targets[t, b] += discount * rewards[row, b]
            discount *= discounts[row, b]
            row += 1
        targets[t, b] += discount * values[row, b]
    return targets


def rescale_value(x: np.ndarray, epsilon: float = 1e-3) -> np.ndarray:
    """h of Pohlen et al. 2018, proposition A.2, as it stands there."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x


def unscale_value(x: np.ndarray, epsilon: float = 1e-3) -> np.ndarray:
    """The inverse of h, as it stands there."""
    root = np.sqrt(1 + 4 * epsilon * (np.abs(x) + 1 + epsilon))
    return np.sign(x) * (((root - 1) / (2 * epsilon)) ** 2 - 1)


class NStepWindow(NamedTuple):
    returns: np.ndarray
    discounts: np.ndarray
    rows: np.ndarray
    valid: np.ndarray


def n_step_window(
    rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, discount: float
) -> NStepWindow:
    """The return from row 0 of each window, walked step by step; as in `learner.maths.n_step`."""
    length, batch = rewards.shape
    window = NStepWindow(np.zeros(batch), np.ones(batch), np.zeros(batch, int), np.zeros(batch, bool))
    for b in range(batch):
        window.valid[b] = not (terminated[0, b] or truncated[0, b])
        if not window.valid[b]:
            continue
        for t in range(1, length):
            window.returns[b] += discount ** (t - 1) * rewards[t, b]
            window.rows[b] = t
            window.discounts[b] = 0.0 if terminated[t, b] else discount**t
            if terminated[t, b] or truncated[t, b]:
                break
    return window


def batched_mlp(weights: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    """K MLPs with ReLU, one after the other: [K, N, outputs] from x [N, inputs].

    `weights`: for each layer, kernels [K, inputs, units] and biases [K, 1, units].
    """
    outputs = []
    for k in range(weights[0][0].shape[0]):
        y = x
        for i, (kernel, bias) in enumerate(weights):
            y = y @ kernel[k] + bias[k, 0]
            if i < len(weights) - 1:
                y = np.maximum(y, 0.0)
        outputs.append(y)
    return np.stack(outputs)


def squashed_sample(parameters: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions tanh(u) [N, A] and their log densities [N], u = mean + std noise.

    Haarnoja et al. 2018, equation 26; parameters [N, 2 A] are the means and what is softly limited to
    the log standard deviations, -20 to 2.
    """
    mean, raw = np.split(parameters, 2, -1)
    upper = 2 - np.log1p(np.exp(2 - raw))
    std = np.exp(-20 + np.log1p(np.exp(upper + 20)))
    u = mean + std * noise
    log_normal = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), (log_normal - np.log(1 - np.tanh(u) ** 2)).sum(-1)


def categorical_kl(p_logits: np.ndarray, q_logits: np.ndarray) -> float:
    p, q = softmax(p_logits), softmax(q_logits)
    return float(sum(p * np.log(p / q)))


def gaussian_kl(p_mean: np.ndarray, p_std: np.ndarray, q_mean: np.ndarray, q_std: np.ndarray) -> float:
    """Of independent normal variables."""
    each = np.log(q_std / p_std) + (p_std**2 + (p_mean - q_mean) ** 2) / (2 * q_std**2) - 0.5
    return float(each.sum())
