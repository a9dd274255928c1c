"""Which numbers of the learner are exported to Prometheus, under which names, and what they mean."""

from dataclasses import dataclass
from enum import StrEnum

from learner.flags import LeaseEnd
from protos.errors import RequestError, to_status


class Kind(StrEnum):
    """How a number moves, in Prometheus's words."""

    COUNTER = "counter"
    """counts since the process began: never falls"""
    GAUGE = "gauge"
    """says what is now"""
    HISTOGRAM = "histogram"
    """counts values since the process began, by buckets"""


@dataclass(frozen=True)
class Exported:
    """One metric."""

    name: str
    kind: Kind
    source: str
    """"part/key" of `Registry.snapshot` (of `Registry.spreads`, for a histogram), with {} where the
    label's value stands; or the name of a field of the last interval's `Report`"""
    meaning: str
    label: str | None = None
    values: tuple[str, ...] = ()
    """all values of the label"""


_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# All of them, so that a first error is an increase from 0 and not a series that appears.
_CODES = tuple(to_status(kind("")).name.lower() for kind in RequestError.__subclasses__())

RUN = (
    Exported(
        "seedbed_environment_steps_total", _COUNTER, "episodes/steps_since_start",
        "Environment steps that were executed for training.",
    ),
    Exported(
        "seedbed_environment_frames_total", _COUNTER, "frames",
        "Frames of these steps, where the learner knows how many a step has.",
    ),
    Exported(
        "seedbed_episodes_total", _COUNTER, "episodes/finished_since_start",
        "Training episodes that ended.",
    ),
    Exported(
        "seedbed_episode_return", _HISTOGRAM, "episodes/returns",
        "Returns of training episodes, unclipped.",
    ),
    Exported(
        "seedbed_episode_length_steps", _HISTOGRAM, "episodes/lengths",
        "Environment steps of training episodes.",
    ),
    Exported(
        "seedbed_episode_return_mean", _GAUGE, "mean_return_100",
        "Mean return of the last 100 training episodes.",
    ),
    Exported(
        "seedbed_evaluation_return_mean", _GAUGE, "evaluation/mean_return",
        "Mean return of the last evaluation.",
    ),
    Exported(
        "seedbed_run_environment_steps", _GAUGE, "episodes/steps",
        "Environment steps of the whole run, those before a restart among them.",
    ),
    Exported(
        "seedbed_run_target_environment_steps", _GAUGE, "total_steps",
        "Environment steps after which the run ends.",
    ),
)  # fmt: skip

ACTORS = (
    Exported("seedbed_sessions", _GAUGE, "serving/sessions", "Sessions that hold a lease."),
    Exported(
        "seedbed_actors", _GAUGE, "serving/streams",
        "Training sessions with an open stream.",
    ),
    Exported(
        "seedbed_environments_connected", _GAUGE, "serving/environments_connected",
        "Environments of training sessions with an open stream.",
    ),
    Exported(
        "seedbed_environments_leased", _GAUGE, "serving/environments",
        "Environments of training sessions, those that wait to be resumed among them.",
    ),
    Exported(
        "seedbed_environment_slots", _GAUGE, "acting/capacity",
        "Training environments that there is room for.",
    ),
    Exported(
        "seedbed_sessions_begun_total", _COUNTER, "serving/count_sessions_begun",
        "Sessions that began.",
    ),
    Exported(
        "seedbed_leases_resumed_total", _COUNTER, "serving/count_sessions_resumed",
        "Leases whose client came back in time.",
    ),
    Exported(
        "seedbed_leases_lost_total", _COUNTER, "serving/count_leases_expired",
        "Leases whose client did not come back in time.",
    ),
    Exported(
        "seedbed_stream_errors_total", _COUNTER, "serving/count_errors_{}",
        "Streams that the learner ended with an error, by gRPC code.", "code", _CODES,
    ),
    Exported(
        "seedbed_actor_waiting_seconds_total", _COUNTER, "serving/actor_seconds_waiting",
        "Seconds that steps of all training sessions together waited for their actions.",
    ),
    Exported(
        "seedbed_actor_acting_seconds_total", _COUNTER, "serving/actor_seconds_acting",
        "Seconds between an answer and the session's next step, of all training sessions together.",
    ),
    Exported(
        "seedbed_actors_idle_ratio", _GAUGE, "actors_idle",
        "Part of the last interval that training sessions waited for actions, 0 to 1.",
    ),
    Exported(
        "seedbed_event_loop_cpu_seconds_total", _COUNTER, "serving/event_loop_cpu_seconds",
        "CPU seconds of the event loop, which carries all streams.",
    ),
    Exported(
        "seedbed_event_loop_busy_ratio", _GAUGE, "event_loop_busy",
        "Part of the last interval that the event loop computed, 0 to 1.",
    ),
    Exported(
        "seedbed_local_actor_restarts_total", _COUNTER, "actors/restarted",
        "Local actor processes that were started again.",
    ),
)  # fmt: skip

INFERENCE = (
    Exported(
        "seedbed_inference_batches_total", _COUNTER, "acting/batches", "Batches that were inferred.",
    ),
    Exported(
        "seedbed_inference_rows_total", _COUNTER, "acting/rows",
        "Environments' steps in these batches.",
    ),
    Exported(
        "seedbed_inference_batch_rows", _HISTOGRAM, "acting/batch_rows",
        "Environments' steps in a batch.",
    ),
    Exported(
        "seedbed_inference_batch_wait_seconds", _HISTOGRAM, "acting/batch_wait",
        "Seconds that a batch's first request waited to be inferred.",
    ),
    Exported(
        "seedbed_inference_duration_seconds", _HISTOGRAM, "acting/latency",
        "Seconds of a batch from the policy call to its answers.",
    ),
    Exported(
        "seedbed_inference_rows_waiting", _GAUGE, "acting/rows_waiting",
        "Environments' steps that wait to be inferred.",
    ),
    Exported(
        "seedbed_inference_busy_seconds_total", _COUNTER, "acting/busy_seconds",
        "Seconds of inference, of all threads that infer together.",
    ),
    Exported(
        "seedbed_inference_load_seconds_total", _COUNTER, "acting/load_seconds",
        "Seconds that a thread's rows so far would have taken in calls of the best size.",
    ),
    Exported(
        "seedbed_event_loop_policy_cpu_seconds_total", _COUNTER,
        "acting/event_loop_policy_cpu_seconds",
        "Of the event loop's CPU seconds, those of its own policy calls, as one of many says.",
    ),
    Exported(
        "seedbed_event_loop_policy_load_seconds_total", _COUNTER,
        "acting/event_loop_policy_load_seconds",
        "CPU seconds that the rows of these calls would have taken in calls of the best size.",
    ),
    Exported(
        "seedbed_inference_busy_ratio", _GAUGE, "inference_busy",
        "Part of the last interval that the busiest thread that infers did so, 0 to 1.",
    ),
)  # fmt: skip

EXPERIENCE = (
    Exported(
        "seedbed_unrolls_finished_total", _COUNTER, "unrolls/finished", "Unrolls that were finished.",
    ),
    Exported(
        "seedbed_unrolls_dropped_total", _COUNTER, "unrolls/dropped_{}",
        "Unfinished unrolls that were dropped, by how their lease ended.", "reason", tuple(LeaseEnd),
    ),
    Exported(
        "seedbed_unroll_steps_dropped_total", _COUNTER, "unrolls/dropped_steps",
        "Environment steps in these unrolls.",
    ),
    Exported(
        "seedbed_unrolls_unfinished", _GAUGE, "unrolls/unfinished", "Unrolls that are being written.",
    ),
    Exported(
        "seedbed_unroll_queue_depth", _GAUGE, "queue/depth",
        "Finished unrolls that wait for training.",
    ),
    Exported(
        "seedbed_unroll_queue_capacity", _GAUGE, "queue/capacity",
        "Finished unrolls that may wait before acting must.",
    ),
    Exported(
        "seedbed_unroll_queue_full_seconds_total", _COUNTER, "queue/full_seconds",
        "Seconds that the queue had no room, so that acting waited for training.",
    ),
    Exported(
        "seedbed_unroll_queue_full_ratio", _GAUGE, "queue_full",
        "Part of the last interval that the queue had no room, 0 to 1.",
    ),
    Exported(
        "seedbed_replay_unrolls", _GAUGE, "replay/unrolls", "Unrolls that the replay keeps.",
    ),
    Exported(
        "seedbed_replay_capacity_unrolls", _GAUGE, "replay/capacity",
        "Most unrolls that the replay keeps.",
    ),
    Exported("seedbed_replay_size_bytes", _GAUGE, "replay/bytes", "Bytes of the replay's unrolls."),
    Exported(
        "seedbed_replay_inserted_transitions_total", _COUNTER, "replay/inserted_since_start",
        "Transitions that went into the replay.",
    ),
    Exported(
        "seedbed_replay_sampled_transitions_total", _COUNTER, "replay/sampled_since_start",
        "Transitions that were drawn from the replay.",
    ),
    Exported(
        "seedbed_replay_evicted_unrolls_total", _COUNTER, "replay/evicted",
        "Unrolls that left the replay to make room.",
    ),
    Exported(
        "seedbed_replay_samples_per_insert", _GAUGE, "replay/samples_per_insert",
        "Transitions drawn for each one inserted, in the whole run.",
    ),
)  # fmt: skip

TRAINING = (
    Exported(
        "seedbed_updates_total", _COUNTER, "updates/updates",
        "Updates that were made, skipped ones among them.",
    ),
    Exported(
        "seedbed_updates_skipped_total", _COUNTER, "updates/skipped",
        "Updates that changed nothing, because their loss or gradient was not finite.",
    ),
    Exported(
        "seedbed_update_duration_seconds", _HISTOGRAM, "trainer/update",
        "Seconds of an update, publishing its weights included.",
    ),
    Exported(
        "seedbed_training_busy_seconds_total", _COUNTER, "trainer/busy_seconds",
        "Seconds of updates, publishing included.",
    ),
    Exported(
        "seedbed_training_busy_ratio", _GAUGE, "training_busy",
        "Part of the last interval that training worked, 0 to 1.",
    ),
    Exported(
        "seedbed_training_data_wait_seconds_total", _COUNTER, "trainer/data_wait_seconds",
        "Seconds that training waited for a batch.",
    ),
    Exported(
        "seedbed_training_data_wait_ratio", _GAUGE, "training_data_wait",
        "Part of the last interval that training waited for a batch, 0 to 1.",
    ),
    Exported(
        "seedbed_training_batches_ready", _GAUGE, "prefetch/ready",
        "Batches that wait on the training device.",
    ),
    Exported(
        "seedbed_policy_lag_versions", _HISTOGRAM, "trainer/policy_lag",
        "Versions between acting and training, mean of a batch.",
    ),
    Exported("seedbed_policy_version", _GAUGE, "trainer/version", "Training version of the weights."),
    Exported(
        "seedbed_checkpoint_age_seconds", _GAUGE, "checkpoints/age_seconds",
        "Seconds since this process saved a checkpoint, or else since it began.",
    ),
    Exported(
        "seedbed_checkpoint_size_bytes", _GAUGE, "checkpoints/bytes",
        "Bytes of the last checkpoint that this process saved.",
    ),
    Exported(
        "seedbed_checkpoints_saved_total", _COUNTER, "checkpoints/saved",
        "Checkpoints that were saved.",
    ),
    Exported(
        "seedbed_checkpoint_failures_total", _COUNTER, "checkpoints/failed",
        "Checkpoints that could not be saved.",
    ),
    Exported(
        "seedbed_recording_entries_total", _COUNTER, "recording/count_entries",
        "Entries of the recording.",
    ),
    Exported(
        "seedbed_recording_missing_total", _COUNTER, "recording/count_missing",
        "Messages that were left out of the recording, because the disk was too slow or full.",
    ),
)  # fmt: skip

METRICS = (*RUN, *ACTORS, *INFERENCE, *EXPERIENCE, *TRAINING)
"""All of them, in the order in which they are exported."""
