"""`seedbed tune`: trials of real runs, begun with what the capacity model expects most of."""

import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w

from learner.config import TrainOptions, available_cores
from learner.planning.costs import find_costs
from learner.planning.model import Costs, predict
from learner.planning.options import PlanOptions, TuneOptions
from learner.planning.plan import deployment_of
from learner.planning.search import Search
from learner.planning.tables import show_table
from learner.planning.trials import Setting, Trial, TrialProcess
from learner.presets import starting_values
from learner.telemetry.atomic import replace_file
from protos.errors import ConfigError, WorkerFailure

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
"""From the first update of a trial to where it counts."""

MEASURE_SECONDS = 0.3
"""CPU seconds for each cost that the model needs: they only rank the candidates."""

ENVS_PER_ACTOR = (1, 2, 4, 8, 16, 32, 64, 128, 256)

INTERRUPTED = 130


def tune(options: TuneOptions) -> int:
    """Search, print the trials, and write the best setting.

    Returns:
        Exit status: 0, or 130 after Ctrl-C, which writes the best so far.

    Raises:
        EnvironmentFailure: the environment cannot be made, or failed.
        WorkerFailure: no trial succeeded.
        ConfigError: the options do not fit the environment, or the file cannot be written.
    """
    began = time.monotonic()
    status = 0
    with ExitStack() as closing, _interrupting():
        trials = closing.enter_context(Trials(options))
        search = Search(
            trials.measure,
            seconds=options.seconds,
            clock=lambda: time.monotonic() - began,
            report=_log,
        )
        try:
            costs, _ = find_costs(plan_options(options))
            settings = candidates(options, costs, available_cores())
            search.run(settings, lambda best: variants(options, costs, best))
        except KeyboardInterrupt:
            status = INTERRUPTED
    best = search.best()
    if search.trials:
        _show(search.trials, best)
    if best is not None:
        write(options, best)
        sys.stdout.write(f"wrote {options.out}: seedbed train --config {options.out}\n")
    elif status == 0:
        words = "; ".join(sorted({trial.error for trial in search.trials}))
        raise WorkerFailure(f"no trial reached a steady state: {words or 'none was run'}")
    return status


class Trials:
    """Runs trials, in one process for each number of TensorFlow's threads. A context manager."""

    def __init__(self, options: TuneOptions, start: Callable[[], TrialProcess] = TrialProcess) -> None:
        self._options = options
        self._start = start
        self._processes: dict[int, TrialProcess] = {}

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.close()

    def measure(self, setting: Setting, seconds: float) -> Trial:
        """A trial of so many measured seconds."""
        options = setting.apply(self._options)
        assert options is not None, "candidates fit the options"
        if setting.tf_threads not in self._processes:
            self._processes[setting.tf_threads] = self._start()
        process = self._processes[setting.tf_threads]
        return process.run(options, SETTLE_SECONDS, seconds)


# What to try -------------------------------------------------------------------------------------


def candidates(options: TuneOptions, costs: Costs, cores: int) -> list[Setting]:
    """Settings to try: the user's own, then others, those first of which the model expects most.

    Environments are bounded by `--max-lag`: more of them act for longer by older weights.
    """
    own = Setting.of(options)
    ranked: dict[Setting, float] = {}
    for setting in _grid(options, own, cores):
        changed = setting.apply(options)
        if changed is not None and setting != own and acceptable(options, setting):
            plan = plan_options(dataclasses.replace(options, **asdict(setting)))
            ranked[setting] = predict(costs, deployment_of(plan, cores)).rate
    return [own, *_spread(sorted(ranked, key=lambda setting: -ranked[setting]))]


def acceptable(options: TuneOptions, setting: Setting) -> bool:
    """Whether the setting's environments stay within the lag, or are no more than the user's own."""
    environments = setting.num_actors * setting.envs_per_actor
    own = options.num_actors * options.envs_per_actor
    if options.replays:
        return environments <= 4 * own
    return environments <= max(own, 2 * options.max_lag * setting.batch_size)


def variants(options: TuneOptions, costs: Costs, best: Setting) -> list[Setting]:
    """Changes of one option of `best` that cannot be told from the model."""
    changes = [
        {"tf_threads": 0 if best.tf_threads else available_cores()},
        {"queue_capacity": 2 * best.batch_size},
    ]
    # TensorFlow trains in any case. Inference threads have nothing to do where the event loop acts.
    if not costs.on_event_loop:
        changes.insert(1, {"inference_threads": best.inference_threads + 1})
    changed = (dataclasses.replace(best, **change) for change in changes)
    return [setting for setting in changed if setting.apply(options) is not None]


def _grid(options: TuneOptions, own: Setting, cores: int) -> Iterator[Setting]:
    most = options.max_actors or 2 * cores
    batches = {own.batch_size, 2 * own.batch_size, 4 * own.batch_size}
    for batch_size in sorted(batches) if options.tune_batch else [own.batch_size]:
        for num_actors in sorted({n for n in (1, 2, 3, 4, 6, 8, 12, 16, cores, most) if n <= most}):
            for envs in sorted({*ENVS_PER_ACTOR, own.envs_per_actor}):
                yield dataclasses.replace(
                    own, num_actors=num_actors, envs_per_actor=envs, batch_size=batch_size
                )


def _spread(ranked: Sequence[Setting]) -> list[Setting]:
    """The same, but the best of each number of actors first: the model ranks within these best."""
    firsts: dict[tuple[int, int], Setting] = {}
    for setting in ranked:
        firsts.setdefault((setting.num_actors, setting.batch_size), setting)
    return [*firsts.values(), *(setting for setting in ranked if setting not in firsts.values())]


def plan_options(options: TuneOptions) -> PlanOptions:
    """What the capacity model needs of the options."""
    known = {entry.name: getattr(options, entry.name) for entry in fields(TrainOptions)}
    return PlanOptions(**{**known, "seconds": MEASURE_SECONDS, "calibrate": False})


# What comes of it --------------------------------------------------------------------------------


def write(options: TuneOptions, best: Trial) -> None:
    """Write what the user has asked for, and the best setting, as a file for `seedbed train`.

    Raises:
        ConfigError: it cannot be written.
    """
    start = {
        **{entry.name: entry.default for entry in fields(TrainOptions)},
        **starting_values(options.preset, options.env, options.agent),
    }
    asked = {
        name: list(value) if isinstance(value, tuple) else value
        for name in start
        if (value := getattr(options, name)) is not None and value != start[name]
    }
    values: dict[str, Any] = {**asked, "agent": options.agent, **asdict(best.setting)}
    text = (
        f"# seedbed tune: {best.rate:.0f} environment steps/s on {available_cores()} cores\n"
        + tomli_w.dumps(values)
    )
    try:
        with replace_file(Path(options.out).absolute()) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(f"--out {options.out} cannot be written: {error}") from error


def _show(trials: Sequence[Trial], best: Trial | None) -> None:
    rows = [
        [
            _name(trial.setting) + (" *" if trial is best else ""),
            trial.rate if not trial.error else trial.error,
            trial.seconds,
            trial.policy_lag,
            _percent(trial.actors_idle),
            _percent(trial.training_busy),
        ]
        for trial in trials
    ]
    headers = ("trial", "steps/s", "seconds", "policy lag", "actors idle", "training busy")
    show_table("Trials; * is the best", headers, rows)


def _log(trial: Trial) -> None:
    logger.info("%s: %s", _name(trial.setting), trial.error or f"{trial.rate:,.0f} steps/s")


def _name(setting: Setting) -> str:
    words = [f"{setting.num_actors} x {setting.envs_per_actor}", f"batch {setting.batch_size}"]
    if setting.inference_threads != 1:
        words.append(f"{setting.inference_threads} inference threads")
    if setting.tf_threads:
        words.append(f"tf threads {setting.tf_threads}")
    if setting.queue_capacity:
        words.append(f"queue {setting.queue_capacity}")
    return ", ".join(words)


def _percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{100 * fraction:.0f} %"


@contextmanager
def _interrupting() -> Iterator[None]:
    """SIGTERM and SIGHUP end the search as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
