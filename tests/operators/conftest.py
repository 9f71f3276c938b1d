"""The operators' tests: run with the engine's Python, which has torch; skipped as a whole in any other."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    cpu_engine = Path(__file__).resolve().parents[2] / "pytest_specdec" / "cpu_engine"
    # First, so that it goes before the CUDA build of sgl_kernel, as on a server's PYTHONPATH.
    sys.path[:0] = [str(cpu_engine / "site"), str(cpu_engine)]
