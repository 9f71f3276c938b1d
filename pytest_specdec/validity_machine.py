"""Validity rules that look at the machines of a run: the client's processor, the server's GPUs."""

from __future__ import annotations

from typing import Final

from pytest_specdec.validity_run import FINE, NOT_OURS, Answer, Run, broken, not_applicable, not_checked

#: Of one core. The client is one thread: at this share answers wait for it.
_MOST_CLIENT_CPU: Final = 0.9
#: A shorter round is mostly connecting and taking apart.
_SHORTEST_ROUND_S: Final = 0.5
_NO_GPU: Final = not_applicable("the server does not run on CUDA")


def client_cpu_saturated(run: Run) -> Answer:
    """A client without a processor to spare measures itself."""
    told = [
        (done.client_cpu_share, done.index + 1)
        for done in run.rounds
        if done.client_cpu_share is not None and done.wall_s >= _SHORTEST_ROUND_S
    ]
    if not told:
        return not_checked(f"no round took {_SHORTEST_ROUND_S:g} s, or the client's processor time is not known")
    share, number = max(told)
    if share <= _MOST_CLIENT_CPU:
        return FINE
    return broken(
        f"round {number}: this process used {share:.0%} of a core, so that answers waited for the client. Measure from "
        "a machine with a faster core, or at a lower concurrency"
    )


def foreign_gpu_process(run: Run) -> Answer:
    """Own are the descendants of the server's process group or of its container; anything else takes its share."""
    out_of_sight = _out_of_sight(run)
    if out_of_sight is not None:
        return out_of_sight
    checked = False
    for done in run.rounds:
        assert done.gpu is not None
        ours = done.gpu.own_uuids
        checked |= bool(ours)
        foreign = [process for process in done.gpu.processes if process.uuid in ours and not process.own]
        if foreign:
            names = ", ".join(dict.fromkeys(f"process {one.pid} ({one.name})" for one in foreign))
            return broken(f"round {done.index + 1}: {names} computed on the server's GPUs too")
    if checked:
        return FINE
    return not_checked("nvidia-smi lists no process of the server's: process ids here and there are not the same")


def gpu_slowdown(run: Run) -> Answer:
    """Hardware or heat held the clocks down: those are figures of the weather. A power limit is part of the node."""
    out_of_sight = _out_of_sight(run)
    if out_of_sight is not None:
        return out_of_sight
    for done in run.rounds:
        assert done.gpu is not None
        ours = done.gpu.own_uuids
        for gpu in done.gpu.gpus:
            if gpu.slowdowns and (not ours or gpu.uuid in ours):
                heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} degrees C"
                clock = "" if gpu.sm_mhz is None else f", SM clock {gpu.sm_mhz:.0f} MHz"
                return broken(
                    f"round {done.index + 1}: GPU {gpu.index} was slowed down ({', '.join(gpu.slowdowns)}){heat}{clock}"
                )
    return FINE


def _out_of_sight(run: Run) -> Answer | None:
    """Why nothing can be said of the GPUs; None when each round knows them."""
    if not run.on_cuda:
        return _NO_GPU
    if run.attached:
        return NOT_OURS
    if not run.rounds:
        return not_checked("there is no round")
    for done in run.rounds:
        if done.gpu is None or done.gpu.unknown is not None:
            why = "they were not looked at" if done.gpu is None else done.gpu.unknown
            return not_checked(f"the GPUs during round {done.index + 1} are not known: {why}")
    return None
