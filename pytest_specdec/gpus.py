"""Whether a host has the GPUs a spec needs, free: asked of ``nvidia-smi`` before any weight is loaded."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Host
from pytest_specdec.spec import ServerSpec

#: A driver and its display keep a little; a server that takes its share of a GPU wants the rest.
FREE_SHARE: Final = 0.9
#: A server that has just been ended gives its memory back within a few seconds.
PATIENCE_S: Final = 10.0
#: After an end of a server: how long its memory may take to come back, and what it may fall short by of the whole.
RELEASE_PATIENCE_S: Final = 30.0
_RELEASE_MARGIN: Final = 0.01
_POLL_S: Final = 1.0
_TIMEOUT_S: Final = 30.0
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as ``nvidia-smi`` shows it; memory in MiB, None where it shows none (memory shared with the CPU)."""

    index: str
    uuid: str
    total_mib: float | None
    free_mib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreign:
    """A process that computes on a GPU."""

    uuid: str
    text: str


def gpus_needed(spec: ServerSpec) -> int:
    """Return how many GPUs of one node the spec's server takes.

    Tensor times pipeline parallelism; a data-parallel size multiplies, unless attention alone is data-parallel.
    """
    sizes = [_size(spec, flag) for flag in ("--tp-size", "--pp-size")]
    if not (spec.has("--enable-dp-attention") or spec.has("--attn-dp-size")):
        sizes.append(_size(spec, "--dp-size"))
    needed = 1
    for size in sizes:
        needed *= size
    return -(-needed // _size(spec, "--nnodes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which GPUs a launch may take, by ``nvidia-smi``'s index, and how many of them it does."""

    gpus: tuple[str, ...]
    count: int


def placement(host: Host, spec: ServerSpec, *, env: Mapping[str, str]) -> Placement:
    """Return where a launch may be placed beside others; raises :class:`HostError` when no place can do."""
    visible, limit = _visible(_gpus(host), spec, env)
    if spec.launcher_brings_python and not limit:
        raise HostError(
            f"{spec.name} runs in a container and takes every GPU of {host.name}; a host is shared "
            "(--specdec-share-host) by those that name theirs: add --gpus device=..."
        )
    used = _taken(visible, spec)
    if len(used) < gpus_needed(spec):
        raise HostError(f"{spec.name} takes {gpus_needed(spec)} GPUs, and {host.name} lets it see {len(visible)}")
    candidates = used if chooses_gpus(spec) else visible
    return Placement(gpus=tuple(gpu.index for gpu in candidates), count=len(used))


def chooses_gpus(spec: ServerSpec) -> bool:
    """Whether a spec itself says which GPUs it takes."""
    flags = spec.has("--base-gpu-id") or spec.has("--gpu-id-step")
    return flags or spec.launcher_brings_python or bool(_selectors(spec, spec.env))


def gpu_problems(host: Host, spec: ServerSpec, *, env: Mapping[str, str], clock: Clock) -> list[str]:
    """Return what stands against a launch on the host's GPUs; empty where nothing does.

    GPUs that are busy are looked at again for ten seconds. Raises :class:`HostError` when the host can't be asked.
    """
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        missing, busy = _look(host, spec, env)
        if missing or not busy or clock.monotonic() >= deadline:
            return missing or busy
        clock.sleep(_POLL_S)


def gpus_taken(host: Host, spec: ServerSpec, *, env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that the spec's server takes, as they are now. Raises :class:`HostError`."""
    chosen, _ = _visible(_gpus(host), spec, env)
    return tuple(_taken(chosen, spec))


def memory_held(host: Host, before: Sequence[Gpu], *, clock: Clock) -> str | None:
    """Wait until GPUs have as much memory free as ``before``; returns None, or after 30 s what is held by whom.

    Raises :class:`HostError` when the host can't be asked.
    """
    deadline = clock.monotonic() + RELEASE_PATIENCE_S
    while True:
        now = {gpu.uuid: gpu for gpu in _gpus(host)} if before else {}
        held = [text for gpu in before if (text := _shortfall(gpu, now.get(gpu.uuid)))]
        if not held:
            return None
        if clock.monotonic() >= deadline:
            break
        clock.sleep(_POLL_S)
    uuids = {gpu.uuid for gpu in before}
    holders = [process.text for process in _processes(host) if process.uuid in uuids]
    whose = f"held by {', '.join(holders)}" if holders else "nvidia-smi names no process that holds it"
    return (
        f"waited {RELEASE_PATIENCE_S:g} s after the server's end for its GPU memory: {'; '.join(held)}; {whose}. "
        "The next launch on these GPUs is refused until it is free"
    )


def _shortfall(before: Gpu, now: Gpu | None) -> str | None:
    if now is None:
        return f"GPU {before.index} ({before.uuid}) is not there any more"
    if before.total_mib is None or before.free_mib is None or now.free_mib is None:
        return None
    short_mib = before.free_mib - now.free_mib
    if short_mib <= _RELEASE_MARGIN * before.total_mib:
        return None
    return f"GPU {now.index} has {now.free_mib:.0f} MiB free, {short_mib:.0f} less than before the launch"


def _taken(chosen: Sequence[Gpu], spec: ServerSpec) -> list[Gpu]:
    first, step = _size(spec, "--base-gpu-id", 0), _size(spec, "--gpu-id-step")
    return list(chosen[first::step][: gpus_needed(spec)])


def _look(host: Host, spec: ServerSpec, env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """What no wait can change, and what it may."""
    try:
        gpus = _gpus(host)
        foreign = _processes(host)
    except HostError as error:
        return [f"{error}. A spec for CUDA needs a host with an NVIDIA driver"], []
    chosen, limit = _visible(gpus, spec, env)
    needed, used = gpus_needed(spec), _taken(chosen, spec)
    if len(used) < needed:
        parallel = [f"{o.flag} {' '.join(o.values)}" for o in spec.options if o.name in _PARALLEL and o.values]
        wants = f"the spec takes {needed} GPU{'' if needed == 1 else 's'}"
        wants += f" ({' '.join(parallel)})" if parallel else ""
        left = f", of which {limit} leaves {len(chosen)}" if limit else ""
        return [f"{wants}, and {host.name} has {len(gpus)}{left}; make it smaller, or take a larger host"], []
    return [], [text for gpu in used for text in _busy(gpu, foreign)]


_PARALLEL: Final = frozenset({"tp-size", "pp-size", "dp-size", "nnodes", "base-gpu-id", "gpu-id-step"})


def _busy(gpu: Gpu, foreign: Sequence[_Foreign]) -> list[str]:
    others = [process.text for process in foreign if process.uuid == gpu.uuid]
    if others:
        return [f"GPU {gpu.index} is in use by {', '.join(others)}; end it, or choose other GPUs with {_VISIBLE}"]
    if gpu.total_mib is None or gpu.free_mib is None or gpu.free_mib >= FREE_SHARE * gpu.total_mib:
        return []
    share = gpu.free_mib / gpu.total_mib
    has = f"GPU {gpu.index} has {gpu.free_mib:.0f} of {gpu.total_mib:.0f} MiB free ({share:.0%})"
    where = "nvidia-smi names no process that holds the rest: look for one in a container, or that has just ended"
    return [f"{has}, a launch needs {FREE_SHARE:.0%}; {where}"]


def _size(spec: ServerSpec, flag: str, default: int = 1) -> int:
    text = spec.first(flag) or ""
    return int(text) if text.isdecimal() and int(text) >= default else default


def _gpus(host: Host) -> list[Gpu]:
    rows = _ask(host, "--query-gpu=index,uuid,memory.total,memory.free", columns=4)
    return [
        Gpu(index=index, uuid=uuid, total_mib=_mib(total), free_mib=_mib(free)) for index, uuid, total, free in rows
    ]


def _processes(host: Host) -> list[_Foreign]:
    rows = _ask(host, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", columns=4)
    return [
        _Foreign(uuid=uuid, text=f"process {pid} ({name}{'' if _mib(used) is None else f', {used} MiB'})")
        for uuid, pid, used, name in rows
    ]


def _ask(host: Host, query: str, *, columns: int) -> list[list[str]]:
    done = host.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], timeout_s=_TIMEOUT_S)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise HostError(f"{host.name}: nvidia-smi ended with exit code {done.returncode} and said: {said}")
    # A process's name comes last and may hold anything.
    rows = [
        [cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout), skipinitialspace=True) if row
    ]
    wrong = next((row for row in rows if len(row) < columns), None)
    if wrong is not None:
        raise HostError(f"{host.name}: nvidia-smi was asked for {query} and answered {', '.join(wrong)!r}")
    return [[*row[: columns - 1], ", ".join(row[columns - 1 :])] for row in rows]


def _mib(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _visible(gpus: Sequence[Gpu], spec: ServerSpec, env: Mapping[str, str]) -> tuple[list[Gpu], str]:
    """The GPUs a launch sees, in its order, and what limits them."""
    chosen, limit = list(gpus), ""
    for text, selector in _selectors(spec, env):
        chosen, limit = _select(chosen, selector), text
    return chosen, limit


def _selectors(spec: ServerSpec, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """What chooses among the GPUs, from the outside in."""
    found = []
    joined = "\n".join(spec.launcher)
    devices = re.search(r"""^--gpus[=\n]["']?device=([^"'\n]*)["']?$""", joined, re.MULTILINE)
    if devices:
        found.append((f"--gpus device={devices[1]}", devices[1]))
    if not spec.launcher_brings_python and _VISIBLE in env:
        found.append((f"{_VISIBLE}={env[_VISIBLE]}", env[_VISIBLE]))
    named = re.findall(rf"^(?:-e|--env=)?{_VISIBLE}=(.*)$", joined, re.MULTILINE)
    return found + [(f"{_VISIBLE}={value}", value) for value in named]


def _select(gpus: Sequence[Gpu], selector: str) -> list[Gpu]:
    """Choose as CUDA does: by position or by the beginning of a UUID, up to the first word that names none."""
    chosen: list[Gpu] = []
    for word in map(str.strip, selector.split(",")):
        if word.isdecimal() and int(word) < len(gpus):
            chosen.append(gpus[int(word)])
            continue
        named = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        if len(named) != 1:
            break
        chosen += named
    return chosen
