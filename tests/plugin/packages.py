"""Other releases of a package, installed once into the cache directory, for tests that run pytest beside them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def installed(*requirements: str) -> Path:
    """Return a directory with these packages, without what they require, to be put first in ``PYTHONPATH``.

    Its name is made of the requirements and the Python. It appears whole or not at all: tests of several processes may
    make it at the same time, and one of them wins.
    """
    key = hashlib.sha256(repr((requirements, sys.version_info[:2], sys.executable)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-specdec"
    target = cache / f"beside-{key}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=cache, prefix=f".{target.name}."))
        try:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            done = subprocess.run(
                [*pip, "--target", str(making), *requirements], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"can't install {requirements}: {done.stderr}"
            if not target.exists():
                making.rename(target)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return target
