"""The nouns of acting and learning. T is the unroll length, B the batch, by the field's custom.

Time runs as on the wire (Gymnasium's NEXT_STEP autoreset). Row t holds the observation o_t, the
reward r_t of the transition that led *to* it, its flags, and the action a_t that was chosen *from*
it. So the transition t -> t+1 has the reward `reward[t+1]` and ends the episode if
`terminated[t+1]`. A row with `terminated` or `truncated` is the last of its episode: its action went
nowhere, row t+1 is the first of the next episode, and the pair is no transition at all.
"""

from typing import Any, NamedTuple

Tensor = Any
"""A TensorFlow tensor, or a NumPy array of the same shape and dtype."""

State = dict[str, Tensor]
"""What a policy remembers of one environment between steps (LSTM cells, past frames), by name."""


class ActInputs(NamedTuple):
    """What the policy sees of B environments at one step."""

    observation: tuple[Tensor, ...]
    """One array for each leaf of the observation spec: [B, *shape] of its dtype."""
    reward: Tensor
    """float32 [B]: reward of the transition that led here, unclipped; 0 at a first row."""
    reset: Tensor
    """bool [B]: the policy's memory starts afresh here (an episode's or a lease's first row)."""
    slot: Tensor
    """int32 [B]: the environment's slot in the learner (for exploration that differs by actor)."""


class ActOutputs(NamedTuple):
    """What the policy answers."""

    action: Tensor
    """[B, *shape] of the action spec's dtype and within its bounds: what the environment gets."""
    record: dict[str, Tensor]
    """[B, ...] each: what learning needs of this moment, such as the action as the policy sampled
    it ("action"), its log-probability under the behaviour policy, the value. Stored with the step."""


class Batch(NamedTuple):
    """B unrolls of T transitions, time-major. Consecutive unrolls of an environment share a row."""

    observation: tuple[Tensor, ...]
    """One array for each leaf: [T+1, B, *shape] of its dtype."""
    reward: Tensor
    """float32 [T+1, B], unclipped; reward[0] belongs to the unroll before."""
    first: Tensor
    """bool [T+1, B]: first row of an episode. The policy's memory is reset before it."""
    terminated: Tensor
    """bool [T+1, B]: last row of an episode, which ended by itself."""
    truncated: Tensor
    """bool [T+1, B]: last row of an episode, which was cut (time limit)."""
    record: dict[str, Tensor]
    """[T+1, B, ...] each: `ActOutputs.record` of each step."""
    version: Tensor
    """int64 [T+1, B]: training version of the policy that acted."""
    initial_state: State
    """[B, ...] each: the policy's memory before row 0, after any reset of that moment."""
    weight: Tensor
    """float32 [B]: importance weight of each unroll's loss; 1 unless it was replayed by priority."""
