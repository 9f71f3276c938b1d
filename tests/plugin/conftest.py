"""Plug-in tests run real pytest sessions against a fake server process: real launches, real HTTP, no SGLang."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ENGINE = Path(__file__).parent.parent / "fakes" / "engine.py"


class Suite:
    """A scratch suite with its own baselines, run with the fake engine."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.python = self.root / "bin" / "python"
        self.python.parent.mkdir()
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {ENGINE} "$@"\n', encoding="utf-8")
        self.python.chmod(0o755)
        self.counter = self.root / "launches.txt"
        self.model = self.root / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}", encoding="utf-8")
        (self.root / "pytest.ini").write_text("[pytest]\nspecdec_rounds = 2\n", encoding="utf-8")

    def write(self, body: str, *, name: str = "test_suite.py") -> Path:
        """Write a test file; ``A`` (not drafting) and ``B`` (drafting) are specs it can use."""
        head = (
            "import pytest\n"
            "from pytest_specdec import ServerSpec\n"
            f"ENV = {{'FAKE_COUNTER': {str(self.counter)!r}}}\n"
            f"MODEL = {str(self.model)!r}\n"
            "A = ServerSpec.tiny('a', env=ENV).with_paths({'tiny:target': MODEL})\n"
            "B = A.but('b', '--speculative-algorithm NGRAM')\n"
        )
        path = self.root / name
        path.write_text(head + body, encoding="utf-8")
        return path

    def run(self, *args: str, env: Mapping[str, str] | None = None) -> pytest.RunResult:
        """Run pytest in a process of its own on the fake engine."""
        with pytest.MonkeyPatch.context() as patch:
            # Neither settings of this run's, nor that it has workers: the inner session is one of its own.
            for name in [name for name in os.environ if name.startswith(("PYTEST_SPECDEC_", "PYTEST_XDIST_"))]:
                patch.delenv(name)
            patch.setenv("PYTEST_SPECDEC_PYTHON", str(self.python))
            patch.setenv("PYTEST_SPECDEC_CACHE", str(self.root / "cache"))
            patch.setenv("PYTEST_SPECDEC_NODE", "cpu-test")
            patch.delenv("PYTEST_ADDOPTS", raising=False)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            return self.pytester.runpytest_subprocess("-p", "no:randomly", *args, timeout=120)

    @property
    def launches(self) -> int:
        """How many servers were started so far."""
        return len(self.counter.read_text().splitlines()) if self.counter.exists() else 0

    @property
    def results(self) -> dict[str, Any]:
        """The results document of the last run."""
        document: dict[str, Any] = json.loads((self.root / ".specdec" / "results.json").read_text())
        return document

    def baseline(self, key: str) -> Path:
        """Where the baseline of a measurement lies."""
        return self.root / "baselines" / "cpu-test" / f"{key}.json"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    return Suite(pytester)


TEST_B = """
@pytest.mark.specdec(workload="smoke", output_tokens=31)
@pytest.mark.parametrize("sglang_server", [B], indirect=True)
def test_b(specdec_benchmark):
    specdec_benchmark()
"""
