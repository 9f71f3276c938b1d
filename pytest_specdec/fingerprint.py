"""What something was measured on: the node, and the environment that is recorded and compared, not refused."""

from __future__ import annotations

import csv
import io
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host
from pytest_specdec.validity_run import SIMULATED_ACCEPTANCE

#: What ``nvidia-smi`` is asked, with the name of the fact; all but the first two are numbers, one a GPU.
_GPU_QUERY: Final = {
    "name": "gpu_names",
    "driver_version": "driver_version",
    "memory.total": "gpu_memory_mib",
    "power.limit": "gpu_power_limit_w",
    "clocks.max.sm": "gpu_max_sm_mhz",
    "clocks.max.memory": "gpu_max_memory_mhz",
}
#: Variables that change how a server runs.
_RELEVANT: Final = re.compile(
    r"(SGLANG|NCCL|CUDA|TORCH\w*|OMP|FLASHINFER|TRITON|SPECDEC_CPU|KMP|MKL)_|(LD_PRELOAD|SIMULATE_ACC_LEN)$"
)
_SECRET: Final = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)", re.IGNORECASE)
_TELL_ENGINE: Final = """
import importlib.metadata as m, platform
print("os", platform.platform())
print("python_version", platform.python_version())
for name in (
    "sglang", "torch", "flashinfer-python", "sglang-kernel", "sgl-kernel", "transformers", "triton",
    "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12",
):
    try:
        version = m.version(name)
    except m.PackageNotFoundError:
        continue
    print("cuda_version" if "cuda" in name else name.replace("-", "_") + "_version", version)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The hardware: its slug, which names its directory of baselines, and what else is known of it."""

    slug: str
    kind: Literal["cpu", "cuda"]
    facts: Mapping[str, object]


def slug(text: str) -> str:
    """Lower case, with everything but letters, digits and dots turned into single dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")


def node_facts(host: Host, *, device: Literal["cpu", "cuda"]) -> NodeFacts:
    """Identify the node; raises :class:`HostError` when a GPU node has no working ``nvidia-smi``."""
    return _gpu_node(host) if device == "cuda" else _cpu_node(host)


def _gpu_node(host: Host) -> NodeFacts:
    query = f"--query-gpu={','.join(_GPU_QUERY)}"
    try:
        done = host.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], timeout_s=30)
    except HostError as error:
        raise HostError(
            f"{error}. GPU tests need a host with an NVIDIA driver; without one, specs that have a CPU form "
            "run with --specdec-device=cpu"
        ) from None
    if done.returncode != 0 or not done.stdout.strip():
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise HostError(f"{host.name}: nvidia-smi ended with exit code {done.returncode} and said: {said}")
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if row]
    wrong = next((row for row in rows if len(row) != len(_GPU_QUERY)), None)
    if wrong is not None:
        raise HostError(f"{host.name}: nvidia-smi was asked for {query} and answered {', '.join(wrong)!r}")
    names, drivers, *numbers = zip(*rows, strict=True)
    # Of unlike cards, each kind with its count: such a node has baselines of its own.
    kinds = [f"{names.count(name)}x-{slug(re.sub(r'(?i)nvidia', '', name))}" for name in dict.fromkeys(names)]
    facts: dict[str, object] = {"gpu_count": len(rows), "gpu_names": list(names), "driver_version": drivers[0]}
    facts |= dict(zip(list(_GPU_QUERY.values())[2:], (list(map(_number, column)) for column in numbers), strict=True))
    return NodeFacts(slug="-".join(kinds), kind="cuda", facts=facts)


def _number(cell: str) -> float | None:
    """A number of ``nvidia-smi``; None for ``[N/A]`` and its like."""
    try:
        return float(cell)
    except ValueError:
        return None


def _cpu_node(host: Host) -> NodeFacts:
    info = host.read_from(Path("/proc/cpuinfo"), 0).decode(errors="replace")
    models = re.findall(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    cores = len(re.findall(r"^processor\s*:", info, re.MULTILINE)) or 1
    model = re.sub(r"\((?:r|tm)\)|processor|cpu|@.*$", " ", models[0], flags=re.IGNORECASE) if models else ""
    model = model.strip() or platform.machine()
    return NodeFacts(
        slug=f"cpu-{slug(model)}-{cores}c",
        kind="cpu",
        facts={"cpu_model": (models[0].strip() if models else model), "cpu_count": cores},
    )


def engine_facts(host: Host, python: str) -> dict[str, str]:
    """Return the system and the versions of what serves, from package metadata: nothing of it is imported."""
    done = host.run([python, "-c", _TELL_ENGINE])
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise HostError(f"{host.name}: {python} was asked for versions, ended with {done.returncode} and said: {last}")
    pairs = (line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return dict(pairs)


def environment_variables(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the variables that change how a server runs, secrets masked."""
    return {
        f"env.{name}": "***" if _SECRET.search(name) else value
        for name, value in sorted(environ.items())
        if _RELEVANT.match(name)
    }


def simulated_acceptance(host: Host, pids: Iterable[int]) -> dict[str, object]:
    """Return the variables that fake acceptance, from the environment that a server's processes really have.

    A launcher may set what neither the host nor the spec says. Processes that can't be read tell nothing.
    """
    found: dict[str, object] = {}
    for pid in pids:
        try:
            listing = host.read_from(Path(f"/proc/{pid}/environ"), 0)
        except (HostError, OSError):  # it has ended, or belongs to another user
            continue
        pairs = (entry.partition("=") for entry in listing.decode(errors="replace").split("\0"))
        found |= {f"env.{name}": value for name, _, value in pairs if name in SIMULATED_ACCEPTANCE}
    return found


def git_commit(host: Host, directory: Path) -> str | None:
    """Return the commit checked out in a directory, with ``+`` when files differ from it; None outside of git."""
    try:
        head = host.run(["git", "-C", str(directory), "rev-parse", "HEAD"], timeout_s=10)
        if head.returncode != 0:
            return None
        changed = host.run(["git", "-C", str(directory), "status", "--porcelain", "-uno"], timeout_s=30)
    except HostError:
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
