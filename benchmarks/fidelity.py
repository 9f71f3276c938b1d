"""How faithful the load client is: measured against a server that knows what it sent, beside other clients.

Runs our client and a raw reference client (the floor) in turns, with ``--engine-python`` SGLang's bench_serving and
send_one_prompt, and with ``--aiperf`` that, against one paced server in one session. Prints errors against the
server's own recorded times, CPU, the flat-out ceiling, and each bar with pass or fail. The exit code is 1 when a bar
is missed.

    python benchmarks/fidelity.py --engine-python ~/.cache/pytest-specdec/engine-*/bin/python --tokenizer DIR
    python benchmarks/fidelity.py --quick            # a minute, of ours and the reference only

On a machine that does other work, ``chrt -f 10`` in front (as root) lets the server and the clients run before all
of it: without, the server itself is milliseconds late, and its runs are taken again.

Other clients' figures from a run of the same kind (aiperf 0.13.0, guidellm 0.8.1) stand in docs/measuring.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paced import Figures, Paced, Truth, client_core, wait_for_quiet

_HERE: Final = Path(__file__).parent
_STEPS: Final = 200
_TIMEOUT_S: Final = 180.0
_IMPORT_TIMEOUT_S: Final = 180.0
#: A server later than this (99th percentile) was disturbed: the cores were not the benchmark's own.
_LATE_MS: Final = 2.0
_MOST_RETAKES: Final = 4
#: CPU per chunk at concurrency 64, one token a chunk, measured elsewhere on a machine of this kind (us).
_PUBLISHED_CPU_US: Final = {"aiperf": 162, "guidellm": 251}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: what the client told, and what was sent."""

    told: Figures
    sent: Truth

    def error(self, metric: str) -> float | None:
        """How far the client is off, in percent of what was sent."""
        told, sent = getattr(self.told, metric), getattr(self.sent.figures, metric)
        return None if told is None or sent is None else (told / sent - 1) * 100

    @property
    def ttft_excess_ms(self) -> float | None:
        """How much later the first token seems than it was sent."""
        if self.told.ttft_ms is None or self.sent.figures.ttft_ms is None:
            return None
        return self.told.ttft_ms - self.sent.figures.ttft_ms

    @property
    def cpu_us_per_token(self) -> float | None:
        """CPU time of the client per token."""
        return None if self.told.cpu_s is None else self.told.cpu_s / self.sent.tokens * 1e6

    @property
    def chunks_per_s(self) -> float | None:
        """Chunks taken in per second of wall time: less where the server, or others on the machine, are in the way."""
        return None if not self.told.wall_s else self.sent.chunks / self.told.wall_s

    @property
    def chunks_per_cpu_s(self) -> float | None:
        """Chunks taken in per second of the client's CPU time, up to the last chunk."""
        used_s = self.told.load_cpu_s or self.told.cpu_s
        return None if not used_s else self.sent.chunks / used_s

    @property
    def first_request_after_s(self) -> float | None:
        """From the call of the client to its first request at the server."""
        return None if self.told.called_s is None else self.sent.first_request_s - self.told.called_s


#: concurrency, requests, output tokens, flat out -> what the client tells.
Client = Callable[[int, int, int, bool], Figures]


def own_client(which: str, url: str) -> Client:
    """Our client or the reference, each run in a new process."""

    def run(concurrency: int, requests: int, output_tokens: int, flat_out: bool) -> Figures:
        command = [sys.executable, str(_HERE / "one_load.py"), which, url, "--concurrency", str(concurrency)]
        command += ["--requests", str(requests), "--output-tokens", str(output_tokens)]
        command += ["--flat-out"] if flat_out else []
        core = client_core()
        if core is not None:
            command += ["--core", str(core)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        return Figures(**json.loads(done.stdout))

    return run


@contextlib.contextmanager
def bench_serving(python: Path, tokenizer: Path, url: str) -> Iterator[Client]:
    """SGLang's bench_serving on the native route, with its own figures."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    command = [str(python), str(_HERE / "bench_serving_runner.py")]
    core = client_core()
    if core is not None:
        command += ["--core", str(core)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def line(timeout_s: float) -> str:
        if not select.select([stdout], [], [], timeout_s)[0]:
            raise SystemExit(f"bench_serving said nothing within {timeout_s:g} s")
        return stdout.readline()

    def run(concurrency: int, requests: int, output_tokens: int, flat_out: bool) -> Figures:  # noqa: ARG001
        arguments = ["--backend", "sglang", "--host", host, "--port", port, "--model", str(tokenizer)]
        arguments += ["--tokenizer", str(tokenizer), "--dataset-name", "random-ids", "--random-input-len", "16"]
        arguments += ["--random-output-len", str(output_tokens), "--random-range-ratio", "1.0"]
        arguments += ["--num-prompts", str(requests), "--max-concurrency", str(concurrency)]
        arguments += ["--warmup-requests", "1", "--disable-tqdm", "--seed", "1"]
        stdin.write(json.dumps(arguments) + "\n")
        stdin.flush()
        told: dict[str, Any] = json.loads(line(_TIMEOUT_S))
        if "error" in told:
            raise SystemExit(told["error"])
        return Figures(
            decode_tok_s=1000 / told["median_tpot_ms"],
            tpot_ms=told["median_tpot_ms"],
            ttft_ms=told["median_ttft_ms"],
            output_tok_s=told["output_throughput"],
            cpu_s=told["cpu_s"],
            wall_s=told["duration"],
        )

    try:
        if line(_IMPORT_TIMEOUT_S).strip() != "ready":
            raise SystemExit(f"bench_serving can't be imported by {python}")
        yield run
    finally:
        stdin.close()
        process.wait(_TIMEOUT_S)
        stdout.close()


def send_one(python: Path, url: str) -> Client:
    """SGLang's send_one_prompt: one request of ``concurrency`` prompts that is not streamed."""

    def run(concurrency: int, requests: int, output_tokens: int, flat_out: bool) -> Figures:  # noqa: ARG001  # it sends one
        command = [str(python), str(_HERE / "send_one_runner.py"), url, str(concurrency), str(output_tokens)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        return Figures(decode_tok_s=json.loads(done.stdout.splitlines()[-1])["speed"])

    return run


def aiperf(program: Path, tokenizer: Path, url: str) -> Client:
    """NVIDIA's aiperf on the chat route, with its own figures; how much CPU its processes use it does not tell."""

    def run(concurrency: int, requests: int, output_tokens: int, flat_out: bool) -> Figures:  # noqa: ARG001
        with tempfile.TemporaryDirectory() as folder:
            command = [str(program), "profile", "-m", "paced", "--tokenizer", str(tokenizer), "--url", url]
            command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--isl", "16"]
            command += ["--osl", str(output_tokens), "--extra-inputs", "ignore_eos:true", "--random-seed", "1"]
            command += ["--concurrency", str(concurrency), "--request-count", str(requests), "--ui", "none"]
            command += ["--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", folder]
            # With a hub that is offline it takes no tokenizer from a folder.
            env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {"HF_HOME": folder}
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=env)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            told = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        tpot_ms = told["inter_token_latency"]["p50"]
        return Figures(
            decode_tok_s=1000 / tpot_ms,
            tpot_ms=tpot_ms,
            ttft_ms=told["time_to_first_token"]["p50"],
            output_tok_s=told["output_token_throughput"]["avg"],
        )

    return run


def median_of(runs: Sequence[Run], value: Callable[[Run], float | None]) -> float | None:
    """The median over runs; None when the client does not tell it."""
    values = [told for run in runs if (told := value(run)) is not None]
    return statistics.median(values) if values else None


class Session:
    """Runs clients in turns and keeps what came of it."""

    def __init__(self, server: Paced, clients: dict[str, Client], runs: int, patience_s: float) -> None:
        self._server = server
        self._clients = clients
        self._runs = runs
        self._patience_s = patience_s
        self.retaken = 0

    def take(
        self, pace: dict[str, object], concurrency: int, requests: int, output_tokens: int, *, only: Sequence[str] = ()
    ) -> dict[str, list[Run]]:
        """Run each client under one pace, in turns: the order is turned round each time."""
        names = [name for name in self._clients if not only or name in only]
        runs: dict[str, list[Run]] = {name: [] for name in names}
        for index in range(self._runs):
            for name in names if index % 2 == 0 else reversed(names):
                runs[name].append(self._one(name, pace, concurrency, requests, output_tokens))
        return runs

    def _one(self, name: str, pace: dict[str, object], concurrency: int, requests: int, output_tokens: int) -> Run:
        """One run; again when the server itself was late, since something else had its core then."""
        for _ in range(_MOST_RETAKES + 1):
            wait_for_quiet(self._patience_s)
            self._server.configure(**pace)
            told = self._clients[name](concurrency, requests, output_tokens, bool(pace.get("flat_out")))
            run = Run(told=told, sent=self._server.truth(output_tokens))
            if run.sent.late_p99_ms is None or run.sent.late_p99_ms <= _LATE_MS:
                break
            self.retaken += 1
        return run


class Bars:
    """What the client is held to; printed as it is judged."""

    def __init__(self) -> None:
        self.missed = 0

    def judge(self, what: str, value: float | None, limit: float, *, at_least: bool = False, unit: str = "") -> None:
        """Print one bar with pass or fail."""
        met = value is not None and (value >= limit if at_least else value <= limit)
        self.missed += not met
        shown = "nothing" if value is None else f"{value:.3f}{unit}"
        side = "at least" if at_least else "at most"
        print(f"{'pass' if met else 'FAIL'}  {what}: {shown} ({side} {limit:.3f}{unit})")


def cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def paced_table(session: Session, bars: Bars, cases: Sequence[tuple[int, int]]) -> None:
    """Print the errors at each concurrency and chunk size, and judge them against the reference's."""
    titles = ("client", "C", "K", "decode tok/s err %", "TPOT err %", "TTFT + ms", "output tok/s err %")
    print(f"\n| {' | '.join((*titles, 'CPU us/token', 'server late p99 ms'))} |")
    print("|---|---|---|---|---|---|---|---|---|")
    judged = []
    for concurrency, per_chunk in cases:
        pace: dict[str, object] = {"tokens_per_chunk": per_chunk}
        runs = session.take(pace, concurrency, 2 * concurrency, 1 + _STEPS * per_chunk)
        for name, of in runs.items():
            row = [
                cell(median_of(of, lambda run: run.error("decode_tok_s")), "+.3f"),
                cell(median_of(of, lambda run: run.error("tpot_ms")), "+.3f"),
                cell(median_of(of, lambda run: run.ttft_excess_ms), "+.2f"),
                cell(median_of(of, lambda run: run.error("output_tok_s")), "+.2f"),
                cell(median_of(of, lambda run: run.cpu_us_per_token), ".1f"),
                cell(median_of(of, lambda run: run.sent.late_p99_ms), ".2f"),
            ]
            print(f"| {name} | {concurrency} | {per_chunk} | {' | '.join(row)} |", flush=True)
        judged.append((concurrency, per_chunk, runs["ours"], runs["reference"]))
    print()
    for concurrency, per_chunk, ours, reference in judged:
        where = f"C={concurrency} K={per_chunk}"
        for metric in ("decode_tok_s", "tpot_ms"):
            off, floor = (median_of(of, lambda run, m=metric: run.error(m)) for of in (ours, reference))  # type: ignore[misc]
            if off is not None and floor is not None:
                bars.judge(f"{metric} error beside the reference's, {where}", abs(off - floor), 0.1, unit=" points")
        if concurrency in (1, 64):
            off, floor = (median_of(of, lambda run: run.ttft_excess_ms) for of in (ours, reference))
            if off is not None and floor is not None:
                bars.judge(f"TTFT beside the reference's, {where}", abs(off - floor), 0.5, unit=" ms")
    started = max(run.first_request_after_s or 0.0 for _, _, ours, _ in judged for run in ours)
    bars.judge("call to first request, the slowest", started, 1.0, unit=" s")


def ceilings(session: Session, bars: Bars) -> None:
    """Print how many chunks a second each client takes in, flat out, with a core of its own: by its CPU time."""
    print("\n| client | route | chunks/s per core | chunks/s of wall time |")
    print("|---|---|---|---|")
    judged = []
    for route, incremental, output_tokens, requests in (
        ("cumulative", False, 1001, 192),
        ("incremental", True, 2001, 192),
    ):
        pace: dict[str, object] = {"flat_out": True, "incremental": incremental}
        runs = session.take(pace, 16, requests, output_tokens)
        for name, of in runs.items():
            wall = cell(median_of(of, lambda run: run.chunks_per_s), ".0f")
            per_cpu = cell(median_of(of, lambda run: run.chunks_per_cpu_s), ".0f")
            print(f"| {name} | {route} | {per_cpu} | {wall} |", flush=True)
        off, floor = (median_of(runs[name], lambda run: run.chunks_per_cpu_s) for name in ("ours", "reference"))
        judged.append((route, off, floor))
    print()
    for route, off, floor in judged:
        if off is not None and floor is not None:
            bars.judge(f"ceiling as a share of the reference's, {route}", off / floor, 0.75, at_least=True)


def cpu(session: Session, bars: Bars, *, steps: int) -> None:
    """Print the CPU time a token costs at concurrency 64, at a steady pace."""
    runs = session.take({"tokens_per_chunk": 1}, 64, 128, 1 + steps)
    used = {name: median_of(of, lambda run: run.cpu_us_per_token) for name, of in runs.items()}
    print(f"\nCPU per token at concurrency 64 over {steps * 2 / 100:.0f} s: ", end="")
    print(", ".join(f"{name} {cell(value, '.1f')} us" for name, value in used.items()))
    if (theirs := used.get("bench_serving")) is not None:
        bars.judge("CPU per token beside bench_serving's", used["ours"], theirs * 1.05, unit=" us")
    for name, published in _PUBLISHED_CPU_US.items():
        bars.judge(f"CPU per token beside {name}'s published figure", used["ours"], published, unit=" us")


def main() -> int:
    """Read the command line, measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="medians are of that many (default 5)")
    parser.add_argument("--quick", action="store_true", help="one run of few cases")
    parser.add_argument("--engine-python", type=Path, help="the Python that has SGLang, for its own clients")
    parser.add_argument("--aiperf", type=Path, help="the aiperf program, where it is installed")
    parser.add_argument("--tokenizer", type=Path, help="a folder with a tokenizer, for bench_serving and aiperf")
    parser.add_argument("--parts", default="paced,ceiling,cpu", help="which of paced, ceiling, cpu, by comma")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="wait up to that many seconds before each run until the cores idle"
    )
    args = parser.parse_args()
    if args.tokenizer is None and (args.engine_python is not None or args.aiperf is not None):
        parser.error("bench_serving and aiperf need a tokenizer: give --tokenizer a folder that has one")
    parts = args.parts.split(",")
    cases = [(1, 3), (64, 3)] if args.quick else [(c, k) for k in (1, 3) for c in (1, 16, 64)]
    bars = Bars()
    load = os.getloadavg()[0]
    runs = 1 if args.quick else args.runs
    print(f"{os.cpu_count()} cores (server on the first, client on the last), load average {load:.2f}, {runs} runs")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Paced())
        clients = {name: own_client(name, server.url) for name in ("ours", "reference")}
        if args.engine_python is not None:
            clients["bench_serving"] = stack.enter_context(
                bench_serving(args.engine_python, args.tokenizer, server.url)
            )
        session = Session(server, clients, runs, args.patience)
        if "paced" in parts:
            if args.aiperf is not None:
                clients["aiperf"] = aiperf(args.aiperf, args.tokenizer, server.url)
            paced_table(session, bars, cases)
            clients.pop("aiperf", None)  # the other parts need its CPU time
            if args.engine_python is not None:
                show_send_one(server, send_one(args.engine_python, server.url))
        if "ceiling" in parts:
            ceilings(session, bars)
        if "cpu" in parts:
            cpu(session, bars, steps=200 if args.quick else 1000)
    print(f"\n{session.retaken} runs were taken again, since the server itself was late")
    print(f"{bars.missed} bars missed" if bars.missed else "every bar met")
    return 1 if bars.missed else 0


def show_send_one(server: Paced, client: Client) -> None:
    """Print what send_one_prompt calls speed: tokens of one prompt / the server's own end-to-end time."""
    print()
    for per_chunk in (1, 3):
        server.configure(tokens_per_chunk=per_chunk)
        told = client(1, 1, 1 + _STEPS * per_chunk, False).decode_tok_s
        assert told is not None
        true = per_chunk * 100.0
        off = (told / true - 1) * 100
        print(f"send_one_prompt K={per_chunk}: speed {told:.2f} tok/s, decode {true:.0f}: {off:+.2f} %")


if __name__ == "__main__":
    sys.exit(main())
