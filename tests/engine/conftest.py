"""Claims about SGLang, on real SGLang. The servers are this pytest session's own: one launch a spec."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_specdec import engine_env
from pytest_specdec.hosts import LocalHost
from pytest_specdec.workloads import load_workload

OUTPUT_TOKENS = 64
HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that launch engines themselves when the session's own are gone: an idle one keeps a core busy."""

    def launches_itself(item: pytest.Item) -> bool:
        return item.path.is_relative_to(HERE) and "sglang_server" not in getattr(item, "fixturenames", ())

    items.sort(key=launches_itself)


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The Python with SGLang that scripts/test installed."""
    path = os.environ.get("PYTEST_SPECDEC_PYTHON")
    assert path, "engine tests need SGLang: run scripts/test, or name its Python in PYTEST_SPECDEC_PYTHON"
    return path


@pytest.fixture(scope="session")
def reference_ids(engine_python: str) -> dict[str, list[int]]:
    """Greedy token ids of the smoke workload by an implementation that is not SGLang's: transformers."""
    models = engine_env.tiny_model_paths(
        LocalHost(), engine_python, ["tiny:target"], cache_dir=engine_env.cache_root(os.environ)
    )
    prompts = {prompt.id: prompt.text for prompt in load_workload("smoke").prompts}
    done = subprocess.run(
        [engine_python, str(Path(__file__).parent / "reference.py"), models["tiny:target"], str(OUTPUT_TOKENS)],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ids: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return ids
