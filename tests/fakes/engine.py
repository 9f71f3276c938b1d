"""A stand-in for ``python``, for plug-in tests: it tells SGLang's version, and it serves like SGLang.

Run as ``engine.py -m sglang.launch_server --model-path M --port P ...`` it prints a launch's log lines and
serves SGLang-shaped HTTP; run as ``engine.py -c CODE`` it runs CODE with a fake ``sglang`` distribution.
A spec's environment drives it:

``FAKE_ACCEPT``        tokens a verify step (with ``--speculative-algorithm``), default 3; several, with commas
                       between them, for the first launch that ``FAKE_COUNTER`` counts, the second, and round again
``FAKE_STEP_MS``       milliseconds a step, default 2; ``FAKE_STEP_MS_BY_LAUNCH`` goes before it: several, with commas
                       between them, as for ``FAKE_ACCEPT``
``FAKE_NO_VERIFY_CT``  set: the server drafts but does not say how often it verified
``FAKE_STOP_AT``       stop each answer after this many tokens
``FAKE_DIE``           ``start``: exit 1 with a traceback; ``flag``: exit 2 as argparse does;
                       ``generate``: die on the first streamed request; ``hang``: never get ready;
                       ``stubborn``: ignore SIGTERM
``FAKE_LOG``           a file: print it in the place of loading, then exit with ``FAKE_EXIT``, default 1
``FAKE_LOAD_S``        seconds between the weights and the ready line, default 0
``FAKE_READY``         a file that gets the time, in seconds since the epoch, at which the ready line was printed
``FAKE_SAY``           a line that its log gets with each streamed request
``FAKE_NO_FLUSH``      set: it refuses to flush its cache (404)
``FAKE_GPU``           a directory whose ``processes.csv`` gets a row for this process, as ``nvidia-smi`` shows it
``FAKE_COUNTER``       a file that gets a line for each launch
``FAKE_VERSION``       ``0.5.12``: it is that version, for the probe too (so set it for the whole session)
``FAKE_REQUESTS``      a file that gets a line for each POST
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = os.environ.get("FAKE_VERSION", "0.5.23")


def log(line: str) -> None:
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + line, flush=True)


def option(name: str, default: str | None = None) -> str | None:
    words = sys.argv
    return words[words.index(name) + 1] if name in words else default


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep quiet: the log file is SGLang's."""

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refused(self) -> bool:
        """Ask for the key that the server was started with, as SGLang does everywhere but for /health."""
        key = option("--api-key")
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self.answer(401, b'{"error":"Unauthorized"}')
        return True

    def do_GET(self) -> None:  # the base class's name
        if not self.path.startswith("/health") and self.refused():
            return
        if self.path.split("?")[0] in ("/server_info", "/get_server_info"):
            self.answer(200, json.dumps(server_info()).encode())
        elif self.path.startswith("/health"):
            self.answer(200, b"")
        else:
            self.answer(404, b"{}")

    def do_POST(self) -> None:  # the base class's name
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "FAKE_REQUESTS" in os.environ:
            with Path(os.environ["FAKE_REQUESTS"]).open("a") as file:
                file.write(f"POST {self.path}\n")
        if self.refused():
            return
        if self.path.startswith("/flush_cache"):
            if "FAKE_NO_FLUSH" in os.environ:
                self.answer(404, b"no such path", "text/plain")
                return
            self.answer(200, b"Cache flushed.\n", "text/plain")
            return
        request = json.loads(body)
        if not request.get("stream"):
            self.answer(200, json.dumps(list(steps(request))[-1]).encode())
            return
        if os.environ.get("FAKE_DIE") == "generate":
            log("Scheduler hit an exception: Traceback (most recent call last):")
            print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(1)
        if "FAKE_SAY" in os.environ:
            log(os.environ["FAKE_SAY"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for step in steps(request):
            self.chunk(b"data: " + json.dumps(step).encode() + b"\n\n")
            time.sleep(by_launch("FAKE_STEP_MS_BY_LAUNCH", os.environ.get("FAKE_STEP_MS", "2")) / 1000)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def steps(request: dict[str, object]):  # type: ignore[no-untyped-def]  # noqa: ANN201  # an iterator of JSON objects
    """The answer as it grows: one token from the prefill, then what each verify step commits."""
    params = request["sampling_params"]
    assert isinstance(params, dict)
    wanted = int(params["max_new_tokens"])
    total = min(wanted, int(os.environ.get("FAKE_STOP_AT", wanted)))
    drafting = option("--speculative-algorithm") is not None
    accept = by_launch("FAKE_ACCEPT", "3") if drafting else 1.0
    seed = sum(map(ord, str(request.get("text", ""))))
    ids = [(seed * 31 + i * 17 + i * i) % 500 for i in range(total)]
    done, verified, owed = 1, 0, 0.0
    while True:
        finished = done >= total
        meta: dict[str, object] = {
            "id": "r",
            "finish_reason": {"type": "length" if total == wanted else "stop"} if finished else None,
            "prompt_tokens": 7,
            "completion_tokens": done,
            "cached_tokens": 0,
        }
        if finished:
            meta["e2e_latency"] = 0.01
            if drafting and "FAKE_NO_VERIFY_CT" not in os.environ:
                meta["spec_verify_ct"] = verified
                meta["spec_correct_drafts_histogram"] = [0] * (int(accept) - 1) + [verified]
        yield {"text": "w " * done, "output_ids": ids[:done], "meta_info": meta}
        if finished:
            return
        owed += accept
        step = min(int(owed), total - done)
        owed -= int(owed)
        done += step
        verified += 1


def server_info() -> dict[str, object]:
    algorithm = option("--speculative-algorithm")
    args = {
        "model_path": option("--model-path"),
        "host": "127.0.0.1",
        "port": int(option("--port") or 0),
        "tp_size": int(option("--tp-size") or option("--tp") or 1),
        "speculative_algorithm": algorithm,
        "disable_cuda_graph": False,
        "max_total_num_tokens": 16384,
        "mem_fraction_static": 0.8,
        "version": VERSION,
    }
    return {**args, "internal_states": [{**args, "memory_usage": {"token_capacity": 16384}}]}


#: Which of the counted launches this is.
LAUNCH = [1]


def by_launch(variable: str, default: str) -> float:
    choices = os.environ.get(variable, default).split(",")
    return float(choices[(LAUNCH[0] - 1) % len(choices)])


def serve() -> None:
    counter = os.environ.get("FAKE_COUNTER")
    if counter:
        with Path(counter).open("a") as file:
            file.write(" ".join(sys.argv[1:]) + "\n")
        LAUNCH[0] = len(Path(counter).read_text().splitlines())
    if "FAKE_GPU" in os.environ:
        with (Path(os.environ["FAKE_GPU"]) / "processes.csv").open("a") as file:
            file.write(f"GPU-0, {os.getpid()}, sglang::scheduler\n")
    death = os.environ.get("FAKE_DIE")
    if death == "flag":
        print("usage: sglang serve [-h] --model-path MODEL_PATH")
        print("sglang serve: error: unrecognized arguments: --no-such-flag", flush=True)
        sys.exit(2)
    if "FAKE_LOG" in os.environ:
        print(Path(os.environ["FAKE_LOG"]).read_text(encoding="utf-8"), flush=True)
        sys.exit(int(os.environ.get("FAKE_EXIT", "1")))
    log("Load weight begin. avail mem=79.00 GB")
    if death == "start":
        print("Traceback (most recent call last):", flush=True)
        print('  File "model_config.py", line 353, in load', flush=True)
        print("OSError: no such model: /nowhere", flush=True)
        sys.exit(1)
    if death == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if death == "hang":
        threading.Event().wait()
    time.sleep(float(os.environ.get("FAKE_LOAD_S", "0")))
    log("Load weight end. elapsed=0.05 s, type=Fake, avail mem=63.8 GB, mem usage=15.1 GB.")
    log("KV Cache is allocated. #tokens: 16384, K size: 5.23 GB, V size: 5.23 GB")
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port") or 0)), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    log(f"INFO:     Uvicorn running on http://127.0.0.1:{option('--port')} (Press CTRL+C to quit)")
    log("The server is fired up and ready to roll!")
    if "FAKE_READY" in os.environ:
        Path(os.environ["FAKE_READY"]).write_text(str(time.time()))
    threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "-c":
        sys.path[:0] = [str(Path(__file__).parent / "site" / name) for name in (VERSION, "")]
        code, sys.argv = sys.argv[2], ["-c", *sys.argv[3:]]
        exec(code, {"__name__": "__main__"})  # what python -c does
    elif sys.argv[1] == "-m":
        sys.argv[1:] = sys.argv[3:]
        serve()
    else:
        runpy.run_path(sys.argv[1], run_name="__main__")
