"""One look tells who is slow."""

from learner.telemetry.report import Report

BUSY = 0.7
"""A thread that works for this part of its time sets the pace."""

QUIET = 0.5
"""Where all threads work for less than this part of their time, nobody is short of anything."""

IDLE = 0.3
"""Environments that wait for less than this part of their time set the pace themselves."""


def verdict(report: Report) -> str:
    """Who holds back the others, and the numbers that say so.

    The queue between acting and learning decides where both threads are busy: if it is full, acting
    waits for learning, however busy it is in between.
    """
    if report.actors == 0:
        return "waiting for actors: none connected"
    return f"{_bottleneck(report)}: {_evidence(report)}"


def _bottleneck(report: Report) -> str:
    training, inference = report.training_busy, report.inference_busy
    full = report.queue_capacity > 0 and report.queue_depth >= report.queue_capacity
    if training >= BUSY and (full or training >= inference):
        return "learner-bound"
    if inference >= BUSY:
        return "inference-bound"
    idle = report.actors_idle
    # Where it is not known how long actors wait, they are what is left.
    if not full and (idle is None or idle < IDLE):
        return "actor-bound"
    # Actors wait, and for no thread: what takes the time is the way to the learner and back.
    quiet = max(training, inference, report.event_loop_busy) < QUIET
    return "round trips" if quiet and not full else "balanced"


def _evidence(report: Report) -> str:
    facts = [f"training busy {_percent(report.training_busy)}"]
    # Left out where training is the answer, to keep the line as short as the question.
    if report.inference_busy >= BUSY or report.training_busy < BUSY:
        facts.append(f"inference busy {_percent(report.inference_busy)}")
    facts.append(f"inference batch {report.batch_mean:.0f} of {report.batch_max}")
    if report.actors_idle is not None:
        facts.append(f"actors idle {_percent(report.actors_idle)}")
    return ", ".join(facts)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"
