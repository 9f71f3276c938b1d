"""A script that behaves like a launch of SGLang: it starts a scheduler, prints the lines, then serves HTTP.

Called with SGLang's arguments (``-m sglang.launch_server --model-path M --host H --port P ...``). A spec's
environment drives it:

``FAKE_MODE``          ``serve`` (default); ``quiet``: serves, but prints neither Uvicorn's nor the ready line;
                       ``usage``: exit 2 as argparse does; ``raise``: exit 1 with a traceback after the weights;
                       ``half-dead``: loses a part at the second request, and answers nothing from then on;
                       ``hang``: nothing after the weights; ``bind``: the port is taken, and it hangs
``FAKE_MODEL``         another model's name for ``/server_info``
``FAKE_PIDS``          a file that gets the process ids: its own, then its children's
``FAKE_IGNORE_TERM``   set: it and its scheduler ignore SIGTERM
``FAKE_STRAY``         set: a further child leaves the session, as a daemon does
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

MODE = os.environ.get("FAKE_MODE", "serve")
ARGUMENTS = sys.argv[3:]
MODEL = ARGUMENTS[ARGUMENTS.index("--model-path") + 1]
PORT = int(ARGUMENTS[ARGUMENTS.index("--port") + 1])
SCHEDULER = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); print(flush=True); time.sleep(600)"


def log(line: str) -> None:
    print(time.strftime("[%Y-%m-%d %H:%M:%S] ") + line, flush=True)


def start_children() -> None:
    ignored = "FAKE_IGNORE_TERM" in os.environ
    if ignored:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = SCHEDULER.format("signal.SIG_IGN" if ignored else "signal.SIG_DFL")
    children = [subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)]
    if "FAKE_STRAY" in os.environ:
        code = SCHEDULER.format("signal.SIG_DFL")
        stray = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        children.append(stray)
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    if "FAKE_PIDS" in os.environ:
        path = Path(os.environ["FAKE_PIDS"])
        path.with_suffix(".new").write_text(" ".join(map(str, [os.getpid(), *(child.pid for child in children)])))
        path.with_suffix(".new").rename(path)


class Handler(BaseHTTPRequestHandler):
    posts = 0

    def log_message(self, *_: object) -> None:
        """Keep quiet: the log is SGLang's."""

    def answer(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        log(f'INFO:     127.0.0.1:5555 - "GET {self.path} HTTP/1.1" 200 OK')
        model = os.environ.get("FAKE_MODEL", MODEL)
        self.answer({"model_path": model, "port": PORT, "version": "0.5.23"} if self.path == "/server_info" else "")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).posts += 1
        if MODE == "half-dead" and self.posts > 1:
            log("Subprocess detokenizer (pid=1) crashed with exit code -9. Triggering SIGQUIT for cleanup...")
            time.sleep(600)
        self.answer({"text": "ok", "output_ids": [1, 2], "meta_info": {"completion_tokens": 2}})


def serve() -> None:
    server = HTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if MODE in ("serve", "half-dead"):
        log(f"INFO:     Uvicorn running on http://127.0.0.1:{PORT} (Press CTRL+C to quit)")
        log("The server is fired up and ready to roll!")
    time.sleep(600)


def main() -> None:
    if MODE == "usage":
        print("usage: sglang serve [-h] --model-path MODEL_PATH", file=sys.stderr)
        print("sglang serve: error: unrecognized arguments: --no-such-flag", file=sys.stderr)
        sys.exit(2)
    start_children()
    log("Load weight begin. avail mem=79.00 GB")
    if MODE == "raise":
        raise FileNotFoundError("/models/m/config.json is not there")
    if MODE == "hang":
        time.sleep(600)
    log("Load weight end. elapsed=0.05 s, type=LlamaForCausalLM, avail mem=63.8 GB, mem usage=15.1 GB.")
    log("KV Cache is allocated. #tokens: 16384, K size: 0.01 GB, V size: 0.01 GB")
    if MODE == "bind":
        taken = f"('127.0.0.1', {PORT}): address already in use"
        log(f"ERROR:    [Errno 98] error while attempting to bind on address {taken}")
        time.sleep(600)
    serve()


if __name__ == "__main__":
    main()
