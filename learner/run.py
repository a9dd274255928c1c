"""`seedbed train` and `seedbed learner`: the story of a run, from its first line to its summary.

TensorFlow is imported late, while the actors are already starting.
"""

import logging
import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from learner.awaited_spec import AwaitedSpec
from learner.cluster import Cluster, read_cluster, wait_for_others
from learner.config import LearnerOptions, TrainOptions
from learner.local_actors import LocalActors, child_environment, children_of_run
from learner.operation_threads import set_operation_threads
from learner.run_options import check_alike, derived_seed, located, of_group
from learner.scratch import scratch_folder
from learner.serving.addresses import Addresses
from learner.serving.recorder import FileRecorder
from learner.serving.security import ServerSecurity
from learner.serving.server import InferenceServer
from learner.signals import CutOff, Received, ending_signals
from learner.telemetry.drain import Drain
from learner.telemetry.ending import Ending, reached, stored_goal
from learner.telemetry.logs import import_tensorflow
from learner.telemetry.progress import make_display
from learner.telemetry.reporter import Reporter
from learner.telemetry.results import leave_results
from learner.telemetry.run_directory import OFFENDING_BATCH, RunDirectory
from learner.telemetry.statistics import Registry
from learner.telemetry.status_server import StatusServer
from learner.telemetry.watchdog import Watchdog
from learner.threads import Threads
from learner.training.checkpoint import Checkpoint, Checkpoints
from protos.errors import CheckpointError, NotServing, RunEnded, WorkerFailure
from protos.specs import EnvironmentSpec

if TYPE_CHECKING:
    from learner.app import Learner
    from learner.group import Group

logger = logging.getLogger(__name__)

DEFAULT_LISTEN = "127.0.0.1:7777"

COMES_BACK = "the learner ends, and may come back: connect again later"


def run(options: LearnerOptions, console: Console) -> int:
    """Train until the run's end or a signal.

    Returns:
        Exit status: 0, or 130 after Ctrl-C, or `interrupted_status` after another signal that came
        before the run's end.

    Raises:
        ConfigError: the options do not fit the run directory, the address or the environment.
        WorkerFailure: a thread or an actor failed, or another learner of the group is gone; the run is
            saved as it was.
        CheckpointError: the run cannot be resumed.
    """
    options, cluster = located(options), read_cluster(os.environ)
    if cluster is not None:
        options = of_group(options, cluster)
    assert options.logdir is not None
    with ExitStack() as closing:
        directory = RunDirectory(Path(options.logdir), options)
        closing.callback(directory.close)
        closing.callback(directory.discard_unused)
        keep, check = options.keep_checkpoints, directory.check
        checkpoints = Checkpoints(directory.checkpoints, keep, check=check)
        restored = checkpoints.load_latest()
        if cluster is None and restored is not None and (goal := _reached(restored, options)):
            _say_finished(directory, goal)
            return 0
        return _Run(options, directory, checkpoints, restored, cluster, console, closing).execute()


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        options: LearnerOptions,
        directory: RunDirectory,
        checkpoints: Checkpoints,
        restored: Checkpoint | None,
        cluster: Cluster | None,
        console: Console,
        closing: ExitStack,
    ) -> None:
        self._options = options
        self._directory = directory
        self._checkpoints = checkpoints
        self._restored = restored
        self._cluster = cluster
        self._group: Group | None = None
        self._drain = Drain(options.drain_seconds, self._give_up)
        # Before all others, so that it comes after them.
        closing.callback(self._drain.close)
        self._display = make_display(options.progress, console)
        closing.callback(self._display.close)
        self._closing = closing
        self._registry = Registry()
        self._threads = Threads(on_failure=self._wake)
        # Of local actors, the first one's session says what it steps.
        self._spec = AwaitedSpec(None if isinstance(options, TrainOptions) else options.env)
        self._learner: Learner | None = None
        self._woken = False
        self._importing = CutOff()
        self._local_token = secrets.token_urlsafe()
        self._status: StatusServer

    def execute(self) -> int:
        with ending_signals(self._hear) as received:
            server = self._start_server()
            self._start_status(server)
            actors = self._start_actors()
            ready = self._importing.run(self._import_tensorflow) and self._joined()
            spec = self._wait_for_spec() if ready else None
            if spec is not None:
                self._train(spec, server, actors, received)
            self._threads.raise_failure()
            if received and self._learner is None:
                self._end_early(received, server, actors)
            complete = self._learner is not None and self._learner.finished()
            interrupted = bool(received) and not complete
            return received.status or (self._options.interrupted_status if interrupted else 0)

    # Starting -----------------------------------------------------------------------------------

    def _start_server(self) -> InferenceServer:
        options = self._options
        local = isinstance(options, TrainOptions)
        if local:
            folder = self._closing.enter_context(scratch_folder())
            self._actors_address = f"unix:{folder}/learner.sock"
        listen = options.listen or (self._actors_address if local else DEFAULT_LISTEN)
        recorder = self._make_recorder()
        own = self._actors_address if local and options.listen else None
        server = InferenceServer(
            Addresses(listen, local=own, health=options.health_listen),
            security=ServerSecurity(options, local_token=self._local_token, environ=os.environ),
            lease_seconds=options.lease_seconds,
            offer_spec=self._spec.offer,
            max_message_rate=options.max_message_rate,
            recorder=recorder,
            on_failure=lambda error: self._threads.fail("event loop", error),
        )
        server.start()
        self._closing.callback(server.close)
        if recorder is not None:
            # Not before the address is this learner's: a start that is refused removes no old file.
            recorder.start()
        self._registry.register("serving", server.statistics)
        self._spec.start(self._threads)
        self._closing.callback(self._spec.close)
        return server

    def _start_status(self, server: InferenceServer) -> None:
        self._status = StatusServer(
            self._options,
            self._registry,
            server.sessions,
            on_failure=lambda error: self._threads.fail("http server", error),
        )
        self._closing.callback(self._status.close)
        self._status.start()

    def _make_recorder(self) -> FileRecorder | None:
        if self._options.record is None:
            return None
        recorder = FileRecorder(
            Path(self._options.record),
            self._options.record_max_bytes,
            on_failure=lambda error: self._threads.fail("recorder", error),
        )
        self._registry.register("recording", recorder.statistics)
        # Registered before the server's, so that it comes after: streams are recorded to their ends.
        self._closing.callback(recorder.close)
        return recorder

    def _start_actors(self) -> LocalActors | None:
        options = self._options
        if not isinstance(options, TrainOptions):
            return None
        actors = LocalActors(
            children_of_run(options, self._actors_address, self._environment_seed),
            start_thread=self._threads.start,
            environ=child_environment(os.environ, self._local_token),
        )
        self._closing.callback(actors.close)
        actors.start()
        self._registry.register("actors", actors.statistics)
        return actors

    def _environment_seed(self, index: int) -> int:
        """Of one actor's environments; another one after a resumption, which would see the same
        episodes again."""
        version = self._restored.version if self._restored else 0
        return derived_seed(self._options.seed, index, version)

    def _wait_for_spec(self) -> EnvironmentSpec | None:
        """What to train on; None if the run is to end before it has begun."""
        if not self._spec.known():
            self._enter("waiting for " + self._spec.source)
        spec = self._spec.wait()
        return None if self._woken else spec

    def _import_tensorflow(self) -> None:
        self._enter("starting TensorFlow")
        import_tensorflow()
        import tensorflow as tf

        if self._options.reproducible:
            tf.config.experimental.enable_op_determinism()
        set_operation_threads(self._options.tf_threads)

    def _enter(self, phase: str) -> None:
        """Say what is waited for from now on, in the log and on the status page."""
        logger.info("%s", phase)
        self._status.enter(phase)

    def _joined(self) -> bool:
        """Wait for the other learners, if this one is of a group. False if there is nothing to do."""
        if self._cluster is None:
            return True
        # Imported here: it needs TensorFlow.
        from learner.group import join

        index, size = self._cluster.index, len(self._cluster.addresses)
        logger.info("learner %d of a group of %d waits for the others", index, size)
        if not wait_for_others(self._cluster, stopped=lambda: self._woken):
            return False
        group = self._group = join(self._cluster)
        check_alike(self._options, group)
        goal = _reached(self._restored, self._options) if self._restored else None
        if group.sum(np.array([goal is not None], np.int64))[0]:
            _say_finished(self._directory, goal)
            return False
        return True

    def _hear(self, signal: str) -> None:
        """A signal has come. By a thread of its own."""
        # Before the log, which may hang.
        self._drain.begin()
        logger.info("%s: saving and ending; a second signal ends the process at once", signal)
        self._wake()

    def _wake(self) -> None:
        """Make the main thread come to its end. Any thread may call it."""
        self._drain.begin()
        self._woken = True
        self._spec.cancel()
        self._importing.cut()
        if self._learner is not None:
            self._learner.stop_training()

    def _end_early(
        self, received: Received, server: InferenceServer, actors: LocalActors | None
    ) -> None:
        """End what has been started before there was a learner."""
        self._spec.close()
        if actors is not None:
            actors.close()
        server.end_streams(NotServing(COMES_BACK))
        self._threads.join(timeout_seconds=10.0)
        logger.info("ended by %s before the first step: there is nothing to save", received.name)

    def _give_up(self) -> None:
        """End the process, whatever hangs in it. By the drain's thread."""
        try:
            self._threads.raise_failure()
        except WorkerFailure as error:
            logger.error("%s", error)
        finally:
            os._exit(1)

    # Training -----------------------------------------------------------------------------------

    def _train(
        self,
        spec: EnvironmentSpec,
        server: InferenceServer,
        actors: LocalActors | None,
        received: Received,
    ) -> None:
        learner = self._learner = self._make_learner(spec)
        if self._woken:
            learner.stop_training()
        reporter = self._make_reporter(learner, server)
        watchdog = Watchdog(
            self._options.watchdog_seconds,
            learner.clocks(),
            server.set_healthy,
            on_failure=lambda error: self._threads.fail("watchdog", error),
        )
        self._say_where(learner)
        learner.start(self._threads)
        server.open_lanes(learner.lanes())
        reporter.start()
        watchdog.start()
        trained = self._learn(learner)
        self._status.enter("ending")
        watchdog.close()
        reporter.close()
        self._display.close()
        self._end_acting(learner, server, actors)
        # After a failure in the middle of an update the weights may be half of two versions.
        saved = trained and learner.save()
        evaluations, version = learner.evaluations(), learner.trainer.version
        leave_results(self._directory, learner.episodes, evaluations, version)
        self._say_how_it_ended(learner, received, saved)
        self._check_end(learner, saved)

    def _make_learner(self, spec: EnvironmentSpec) -> "Learner":
        # Imported here: everything below needs TensorFlow.
        from learner.app import Learner, RunFiles

        options, directory = self._options, self._directory
        local = options.num_actors * options.envs_per_actor if isinstance(options, TrainOptions) else 0
        logger.info("building the agent for %s", spec)
        self._status.enter("building the agent")
        best = Checkpoints(directory.best_checkpoint, keep=1, check=directory.check)
        return Learner(
            options,
            spec,
            RunFiles(self._checkpoints, best, directory.path / OFFENDING_BATCH),
            restored=self._restored,
            registry=self._registry,
            local_environments=local,
            group=self._group,
        )

    def _make_reporter(self, learner: "Learner", server: InferenceServer) -> Reporter:
        self._status.follow(learner.episodes.curve, learner.evaluations)
        return Reporter(
            self._options.log_interval_seconds,
            lambda: learner.report(server.statistics()),
            self._registry,
            [self._directory.write_metrics, self._display.show, *self._status.sinks()],
            on_failure=lambda error: self._threads.fail("reporter", error),
        )

    def _learn(self, learner: "Learner") -> bool:
        """Train to the run's end, and evaluate what came of it. False after a failure."""
        self._status.enter("training")
        trained = False
        try:
            learner.train()
            trained = True
            self._status.enter("evaluating the final policy")
            learner.evaluate_last(stopped=lambda: self._woken)
        except Exception as error:  # noqa: BLE001 - whatever it is, `_check_end` raises it
            self._threads.fail("training thread", error)
        return trained

    def _end_acting(
        self, learner: "Learner", server: InferenceServer, actors: LocalActors | None
    ) -> None:
        if actors is not None:
            actors.close()
        server.end_streams(
            RunEnded("the run has reached its end") if learner.finished() else NotServing(COMES_BACK)
        )
        learner.stop()
        for name in self._threads.join(timeout_seconds=10.0):
            logger.warning("%s did not end", name)

    def _check_end(self, learner: "Learner", saved: bool) -> None:
        """Raise what made the run end before its end, or keeps it from going on where it ended."""
        self._threads.raise_failure()
        if learner.ended_by is not None and not self._woken:
            raise WorkerFailure(
                f"learner {learner.ended_by} of the group was to end before the run's end, and all end "
                "with it: start them all again, and they go on"
            )
        if not saved:
            raise CheckpointError(
                f"the run's last state could not be saved in {self._directory.checkpoints}: a restart "
                "goes back to the checkpoint before"
            )

    def _say_how_it_ended(self, learner: "Learner", received: Received, saved: bool) -> None:
        options, episodes = self._options, learner.episodes
        # Those of a group are told apart by what they are started with, and by nothing here.
        where = f" with --logdir {self._directory.path}" if self._cluster is None else ""
        ending = Ending(
            env_steps=episodes.env_steps,
            total_steps=options.total_steps,
            finished=learner.finished(),
            goal=reached(options, episodes, learner.evaluations()),
            signal=received.name,
            failed=self._threads.failed,
            saved=saved,
        )
        logger.info("%s", ending.words(again=f"the same command{where} goes on"))

    def _say_where(self, learner: "Learner") -> None:
        path = self._directory.path
        if self._group and self._group.index:
            logger.info("learner %d of a group, in %s", self._group.index, path)
        elif self._restored is None and self._directory.resumed:
            logger.warning(
                "an earlier process of the run in %s left no checkpoint: it begins at step 0 again", path
            )
        elif self._restored is None:
            logger.info("new run in %s", path)
        else:
            logger.info(
                "resuming %s at environment step %s (version %s)",
                path,
                f"{learner.episodes.env_steps:,}",
                f"{learner.trainer.version:,}",
            )


def _reached(checkpoint: Checkpoint, options: LearnerOptions) -> str | None:
    """What a stored run has reached, if it is over."""
    evaluations = checkpoint.metadata.get("evaluations", [])
    return stored_goal(options, checkpoint.require("episodes"), evaluations)


def _say_finished(directory: RunDirectory, goal: str | None) -> None:
    # Of a group, only the first learner knows what was reached.
    hint = f", {goal}: raise that to go on" if goal else ""
    logger.info("%s: this run has reached its end already%s", directory.path, hint)
