"""A host whose SGLang 0.5.23 has the options of a recorded dump, for what is found before a launch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_specdec import flag_probe
from pytest_specdec.hosts import Completed
from tests.fakes.host import FakeHost, told

DUMP = Path(__file__).parents[1] / "data" / "args_0.5.23.json"
ALGORITHMS = ["EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"]
INTEGERS = ("--tp-size", "--cuda-graph-max-bs-decode", "--max-running-requests", "--speculative-num-steps")
GIB80 = "81559"


def options() -> list[dict[str, Any]]:
    """The table the probe gives of 0.5.23, as far as the dump of it tells."""
    rows: list[dict[str, Any]] = []
    for entry in json.loads(DUMP.read_text(encoding="utf-8")):
        if entry["dest"] == "help":
            continue
        nargs = {"0": 0, "None": None}.get(entry["nargs"], entry["nargs"])
        read_by = "" if entry["opts"] == ["--max-total-tokens"] else "int" if entry["opts"][0] in INTEGERS else "str"
        rows.append({"flags": entry["opts"], "nargs": nargs, "choices": entry["choices"], "type": read_by})
    return rows


class SglangHost(FakeHost):
    """A host with an SGLang whose parser says ``error``; what it was asked and with which environment is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.version: str | None = "0.5.23"
        self.stamp = "s1"
        self.error: str | None = None
        self.paths: dict[str, str] = {}
        self.asked: list[dict[str, Any]] = []
        self.envs: list[Mapping[str, str]] = []
        self.gpus = [f"{i}, GPU-{i}, {GIB80}, 81000" for i in range(8)]
        self.apps: list[str] = []
        self.answers = dict.fromkeys(("/py", "sh", "numactl", "docker", "uv"), self.probe)
        self.answers |= {"nvidia-smi": self.nvidia_smi, "true": told()}

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Completed:
        self.envs.append(dict(env or {}))
        return super().run(argv, env=env, timeout_s=timeout_s)

    def probe(self, argv: Sequence[str]) -> Completed:
        assert argv[-3:-1] == ["-c", Path(flag_probe.__file__).read_text(encoding="utf-8")]
        request = json.loads(argv[-1])
        self.asked.append(request)
        answer: dict[str, Any]
        if request["ask"] == "look":
            answer = {"python": "/py", "sglang_version": self.version, "stamp": self.stamp}
            answer["paths"] = {path: self.paths.get(path, "model") for path in request["paths"]}
        else:
            answer = {"options": options(), "algorithms": ALGORITHMS, "error": self.error}
        return told(f"a warning of SGLang's\n{flag_probe.MARK}{json.dumps(answer)}\n")

    def nvidia_smi(self, argv: Sequence[str]) -> Completed:
        return told("\n".join(self.gpus if "--query-gpu" in argv[1] else self.apps))

    @property
    def questions(self) -> list[str]:
        return [request["ask"] for request in self.asked]
