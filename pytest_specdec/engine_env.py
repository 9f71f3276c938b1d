"""What a launch on the CPU engine is given: an environment, and the paths of its tiny models.

The engine itself lies in ``cpu_engine/`` and is not imported: it runs in SGLang's processes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host, LocalHost

ENGINE: Final = Path(__file__).parent / "cpu_engine"
_SCHEME: Final = "tiny:"
#: They take seconds, most of it the import of torch; on a busy disk, more.
_MAKING_TIMEOUT_S: Final = 300.0


def cache_root(environ: Mapping[str, str], *, home: str | None = None) -> Path:
    """Where things that can be made again are kept: ``PYTEST_SPECDEC_CACHE``, or below the user's cache."""
    own = environ.get("PYTEST_SPECDEC_CACHE")
    if own:
        return Path(own)
    base = environ.get("XDG_CACHE_HOME") or str(Path(home or Path.home()) / ".cache")
    return Path(base) / "pytest-specdec"


def host_cache(host: Host) -> Path:
    """Return the cache directory on a host: its user's, as a login shell there sees it."""
    # What a command on this machine inherits leaves out the variables of pytest, that of the cache among them.
    return cache_root(os.environ) if isinstance(host, LocalHost) else cache_root(host.environ(), home=host.home())


def cpu_engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables a launch on the CPU engine gets, ``PYTHONPATH`` included."""
    variables: dict[str, str] = json.loads((ENGINE / "environment.json").read_text(encoding="utf-8"))
    path = [str(ENGINE / "site"), *filter(None, [environ.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(path)}


def tiny_models_key() -> str:
    """Twelve hex digits of the maker's content: other models have another key."""
    return hashlib.sha256((ENGINE / "tiny_models.py").read_bytes()).hexdigest()[:12]


def tiny_model_paths(host: Host, python: str, names: Sequence[str], *, cache_dir: Path) -> dict[str, str]:
    """Make the models that are missing, in a folder named after the maker's content; ``tiny:x`` to path.

    Raises :class:`HostError` when the maker fails, with the end of what it said.
    """
    script = ENGINE / "tiny_models.py"
    key = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    folder = cache_dir / f"tiny-models-{key}"
    paths = {name: folder / name.removeprefix(_SCHEME) for name in names}
    # The maker renames a finished model into place, so a folder that is there is complete.
    missing = [path.name for path in paths.values() if not (path / "config.json").exists()]
    if missing:
        done = host.run([python, str(script), "--out", str(folder), *missing], timeout_s=_MAKING_TIMEOUT_S)
        if done.returncode != 0:
            last = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-5:])
            raise HostError(f"the tiny models {', '.join(missing)} can't be made in {folder} with {python}:\n{last}")
    return {name: str(path) for name, path in paths.items()}
