"""Runs SGLang's bench_serving as often as asked, with the engine's Python, importing it once.

Each line of standard input is a JSON list of its arguments; each run is a fork, and answers with one JSON line: what
the tool reports of itself, and the CPU seconds (rusage) between its first measured request and its last token.
Importing takes 15 s, which is the only reason for this file; the code that runs is the tool's own.

    path/to/engine/bin/python benchmarks/bench_serving_runner.py --core 1
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
from typing import Any

_WARM_UP = 1


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(serving: Any, arguments: list[str]) -> dict[str, Any]:  # noqa: ANN401  # a module of the engine's
    """Run it once in this process."""
    marks: list[float] = []
    ends: list[float] = []
    ask = serving.ASYNC_REQUEST_FUNCS["sglang"]

    async def noted(*given: Any, **more: Any) -> Any:  # noqa: ANN401  # passed on as they are
        marks.append(cpu_s())
        answer = await ask(*given, **more)
        ends.append(cpu_s())
        return answer

    serving.ASYNC_REQUEST_FUNCS["sglang"] = noted
    with tempfile.TemporaryDirectory() as folder:
        told = os.path.join(folder, "told.jsonl")  # noqa: PTH118  # the engine's Python, no pathlib needed
        sys.argv = ["bench_serving", *arguments, "--output-file", told]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
            serving.cli_main()
        with open(told) as file:  # noqa: PTH123
            reported = json.loads(file.readlines()[-1])
    names = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "completed", "duration")
    return {**{name: reported[name] for name in names}, "cpu_s": ends[-1] - marks[_WARM_UP]}


def main() -> None:
    if "--core" in sys.argv:
        os.sched_setaffinity(0, {int(sys.argv[sys.argv.index("--core") + 1])})
    from sglang.benchmark import serving  # noqa: PLC0415  # takes 15 s

    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                print(json.dumps(run(serving, json.loads(line))), flush=True)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status != 0:
            ended = os.waitstatus_to_exitcode(status)
            print(json.dumps({"error": f"bench_serving ended with status {ended}"}), flush=True)


if __name__ == "__main__":
    main()
