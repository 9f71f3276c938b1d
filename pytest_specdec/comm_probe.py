"""Times all-reduces on a host: a script for the Python that has torch, which is given its text with ``-c``.

The request is one JSON object: ``backend`` (``nccl`` or ``gloo``), ``world_size``, ``calls`` a round, ``message_bytes``
a call, ``warmup`` and ``rounds``, ``graph`` (all calls of a round as one CUDA graph, as SGLang runs a step) and
``timeout_s`` for all of it. One process a rank sums bfloat16 in place; each round begins behind a barrier, and its time
is that of the slowest rank. The answer is one line of JSON behind ``MARK``: ``rounds_us``, microseconds a call, one
entry a round, with what was measured by; or ``error``.

Ranks meet through a file and the loopback address. All end at the deadline, and each process with the one that
started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any, NoReturn

MARK = "SPECDEC-ALL-REDUCE "
_PR_SET_PDEATHSIG = 1
#: What fits into a pipe at once, so that the words of two ranks don't mix.
_LONGEST = 2000


class Late(Exception):  # noqa: N818  # an answer, not a fault
    """The deadline has passed."""


def rank_main(request: dict[str, Any], rank: int, meeting: str) -> dict[str, Any]:
    """Be one rank; returns what rank 0 has to tell."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    cuda = request["backend"] == "nccl"
    if cuda:
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
    else:
        torch.set_num_threads(1)
        device = torch.device("cpu")
    world = request["world_size"]
    dist.init_process_group(request["backend"], init_method=f"file://{meeting}", rank=rank, world_size=world)
    count = max(1, request["message_bytes"] // 2)
    # Ranks add up to a number that bfloat16 holds exactly: a sum that is wrong is no latency.
    sample = torch.full((count,), float(rank + 1), dtype=torch.bfloat16, device=device)
    dist.all_reduce(sample)
    wanted = world * (world + 1) // 2
    if wanted <= 256 and not bool((sample == wanted).all()):
        raise RuntimeError(f"the all-reduce of 1 to {world} gave {sample[0].item()}, not {wanted}")
    buffer = torch.zeros(count, dtype=torch.bfloat16, device=device)
    one_round = calls_of(torch, dist, buffer, request["calls"], graph=cuda and request["graph"])

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    times = []
    for _ in range(request["warmup"] + request["rounds"]):
        dist.barrier()
        wait()
        began = time.perf_counter()
        one_round()
        wait()
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(times[request["warmup"] :], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    told = {
        "rounds_us": [seconds / request["calls"] * 1e6 for seconds in slowest.tolist()],
        "torch_version": str(torch.__version__),
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
    }
    dist.destroy_process_group()
    return told


def calls_of(torch: Any, dist: Any, buffer: Any, calls: int, *, graph: bool) -> Any:  # noqa: ANN401  # torch's types
    """Return what runs all calls of a round."""

    def eager() -> None:
        for _ in range(calls):
            dist.all_reduce(buffer)

    if not graph:
        return eager
    eager()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        eager()
    return captured.replay


def end_with_parent(number: int) -> None:
    """Have this signal sent to us when the process that started us ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def be_rank(request: dict[str, Any], rank: int, meeting: str, out: int, parent: int) -> NoReturn:
    """Run one rank in a process of its own, and never return from it."""
    code = 1
    try:
        # A rank that waits for another in a library hears nothing but a signal.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.alarm(int(request["timeout_s"]) + 5)
        told: dict[str, Any] = rank_main(request, rank, meeting)
        code = 0
    except BaseException as error:  # noqa: BLE001  # told by the parent
        told = {"error": f"rank {rank}: {type(error).__name__}: {error}"[:_LONGEST]}
    with contextlib.suppress(OSError):
        if code or rank == 0:
            os.write(out, json.dumps(told).encode() + b"\n")
    sys.stderr.flush()
    os._exit(code)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks, wait for them, and return what they told."""
    # One machine: nothing of this is for the network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    pids: set[int] = set()
    incoming, out = os.pipe()

    def late(*_: object) -> None:
        raise Late

    def ended(*_: object) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGTERM, ended)
    end_with_parent(signal.SIGTERM)
    signal.alarm(int(request["timeout_s"]))
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="specdec-comm-") as directory:
        parent = os.getpid()
        failed = None
        try:
            for rank in range(request["world_size"]):
                pid = os.fork()
                if pid == 0:
                    os.close(incoming)
                    be_rank(request, rank, os.path.join(directory, "meeting"), out, parent)  # noqa: PTH118
                pids.add(pid)
            while pids and failed is None:
                pid, status = os.wait()
                pids.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                if code:
                    failed = f"a rank ended with exit code {code}"
        except Late:
            failed = f"not done after {request['timeout_s']:g} s"
        finally:
            signal.alarm(0)
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
    os.close(out)
    with open(incoming, encoding="utf-8") as pipe:  # noqa: PTH123
        told: list[dict[str, Any]] = [json.loads(line) for line in pipe]
    error = next((entry["error"] for entry in told if "error" in entry), failed)
    return {"error": error} if error is not None else told[0]


if __name__ == "__main__":
    answer = measure(json.loads(sys.argv[1]))
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")
