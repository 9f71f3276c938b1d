"""Runs SGLang's send_one_prompt once, with the engine's Python; prints the figures it returns as JSON.

path/to/engine/bin/python benchmarks/send_one_runner.py http://127.0.0.1:31000 16 201
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    from sglang.test.send_one import BenchArgs, send_one_prompt  # noqa: PLC0415  # the engine's

    url, batch, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    args = BenchArgs(base_url=url, batch_size=batch, max_new_tokens=tokens)
    accept_length, speed = send_one_prompt(args, print_output=False)
    print(json.dumps({"accept_length": accept_length, "speed": speed}))


if __name__ == "__main__":
    main()
