"""Flags of SGLang that were renamed or dropped, by version.

Read from the sources of 0.4.6.post5, 0.5.2 to 0.5.6, 0.5.9 to 0.5.13, 0.5.15, 0.5.18 to 0.5.21 and 0.5.23. Where a
flag went in a version that was not read, the version behind the last that had it is given: by then the new name is
there, and writing it early changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pytest_specdec.flags import Option
from pytest_specdec.spec import ServerSpec

Version = tuple[int, int, int]
#: A value that is the spec's tensor-parallel size.
_TP: Final = "@tp"


def version_of(text: str) -> Version:
    """Read ``0.5.23``, ``0.4.6.post5`` or ``0.5.24.dev3+g1a2b``; a candidate counts as its release.

    A checkout without tags calls itself 0.0.0: it counts as newer than all, as does what can't be read.
    """
    matched = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    if matched is None:
        return (9999, 0, 0)
    major, minor, patch = (int(part or 0) for part in matched.groups())
    return (9999, 0, 0) if (major, minor) == (0, 0) else (major, minor, patch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """A flag that has another name, names without dashes.

    Args:
        old: the name until ``gone``, the first version without it.
        new: what says the same from ``since`` on; None: it did nothing any more, and is left out.
        value: the value that ``new`` takes for a bare ``old`` (`_TP`: the tensor-parallel size); None: the old
            flag's own values.
        why: for a flag that is left out, why nothing is lost.

    """

    old: str
    gone: Version
    new: str | None
    since: Version
    value: str | None = None
    why: str = ""


def _renamed(old: str, new: str, since: str, gone: str, value: str | None = None) -> Rename:
    return Rename(old=old, new=new, since=version_of(since), gone=version_of(gone), value=value)


def _dropped(old: str, gone: str, why: str) -> Rename:
    return Rename(old=old, new=None, since=version_of(gone), gone=version_of(gone), why=why)


#: Name, the name after it, the first version with the new one, the first without the old one, and the value for it.
RENAMES: Final = (
    _renamed("cuda-graph-max-bs", "cuda-graph-max-bs-decode", "0.5.15", "0.5.20"),
    _renamed("cuda-graph-bs", "cuda-graph-bs-decode", "0.5.15", "0.5.20"),
    _renamed("piecewise-cuda-graph-max-tokens", "cuda-graph-max-bs-prefill", "0.5.15", "0.5.20"),
    _renamed("piecewise-cuda-graph-tokens", "cuda-graph-bs-prefill", "0.5.15", "0.5.20"),
    _renamed("disable-piecewise-cuda-graph", "cuda-graph-backend-prefill", "0.5.15", "0.5.20", "disabled"),
    _renamed("enable-breakable-cuda-graph", "cuda-graph-backend-prefill", "0.5.15", "0.5.20", "breakable"),
    _renamed("nsa-prefill-backend", "dsa-prefill-backend", "0.5.13", "0.5.20"),
    _renamed("nsa-decode-backend", "dsa-decode-backend", "0.5.13", "0.5.20"),
    _renamed("mamba-scheduler-strategy", "mamba-radix-cache-strategy", "0.5.15", "0.5.20"),
    _renamed("speculative-dflash-draft-window-size", "speculative-draft-window-size", "0.5.12", "0.5.20"),
    _renamed("enable-gdn-replayssm-spec", "enable-linear-replayssm-spec", "0.5.18", "0.5.20"),
    _renamed("enable-prefill-context-parallel", "enable-prefill-cp", "0.5.15", "0.5.20"),
    _renamed("enable-dsa-prefill-context-parallel", "enable-prefill-cp", "0.5.15", "0.5.20"),
    _renamed("enable-nsa-prefill-context-parallel", "enable-prefill-cp", "0.5.15", "0.5.20"),
    _renamed("stream-output", "incremental-streaming-output", "0.5.10", "0.5.20"),
    _renamed("max-micro-batch-size", "pp-max-micro-batch-size", "0.5.4", "0.5.4"),
    _renamed("enable-deepep-moe", "moe-a2a-backend", "0.5.1", "0.5.5", "deepep"),
    _renamed("enable-ep-moe", "ep-size", "0.5.1", "0.5.5", _TP),
    _renamed("enable-flashinfer-cutlass-moe", "moe-runner-backend", "0.5.1", "0.5.5", "flashinfer_cutlass"),
    _renamed("enable-flashinfer-mxfp4-moe", "moe-runner-backend", "0.5.1", "0.5.5", "flashinfer_mxfp4"),
    _renamed("enable-flashinfer-trtllm-moe", "moe-runner-backend", "0.5.1", "0.5.5", "flashinfer_trtllm"),
    _renamed("enable-triton-kernel-moe", "moe-runner-backend", "0.5.1", "0.5.5", "triton_kernel"),
    _dropped("enable-piecewise-cuda-graph", "0.5.14", "these graphs are on by default since 0.5.10"),
    _dropped("collect-tokens-histogram", "0.5.20", "--enable-metrics collects them"),
    _dropped("prefill-round-robin-balance", "0.5.20", "it did nothing any more"),
)

#: Flags that are gone and have no successor that means the same: what the refusal says.
RETIRED: Final = {
    "enforce-piecewise-cuda-graph": "gone since 0.5.20; --cuda-graph-backend-prefill has no piecewise graphs any more",
    "speculative-ngram-min-match-window-size": "gone since 0.5.10: drafts are matched in a tree of suffixes",
    "speculative-ngram-max-match-window-size": "gone since 0.5.10; --speculative-ngram-max-trie-depth bounds matches",
    "speculative-ngram-branch-length": "gone since 0.5.10; --speculative-ngram-max-trie-depth bounds branches",
    "dsa-prefill-cp-mode": "gone since 0.5.20; --cp-strategy has other values",
    "nsa-prefill-cp-mode": "gone since 0.5.20; --cp-strategy has other values",
    "prefill-cp-mode": "gone since 0.5.20; --cp-strategy has other values",
    "hybrid-kvcache-ratio": "gone since 0.5.14; --swa-full-tokens-ratio is another ratio",
    "speculative-draft": "begins several flags; the draft model is --speculative-draft-model-path",
}


def translate(spec: ServerSpec, version: str) -> tuple[ServerSpec, tuple[str, ...]]:
    """Give a spec the flag names that a version of SGLang knows, and a notice for each that changed.

    Names that came later are translated back for an older version, where the old name says the same. The name and
    the stand-in stay; a spec without such flags is returned itself.
    """
    found = version_of(version)
    options: list[Option] = []
    notices: list[str] = []
    for option in spec.options:
        rename = _rename_of(option, found)
        if rename is None:
            options.append(option)
            continue
        became, how = _renamed_option(option, rename, spec, {other.name for other in (*spec.options, *options)})
        options += [] if became is None else [became]
        notices.append(f"for SGLang {version}, {' '.join(option.words)} {how}")
    return (spec.with_options(options) if notices else spec), tuple(notices)


def _rename_of(option: Option, version: Version) -> Rename | None:
    for rename in RENAMES:
        if option.name == rename.old and version >= rename.gone:
            return rename
        if option.name == rename.new and rename.value is None and version < rename.since:
            return rename
    return None


def _renamed_option(option: Option, rename: Rename, spec: ServerSpec, given: set[str]) -> tuple[Option | None, str]:
    """Return what takes the option's place, None for nothing, and how to say so."""
    if rename.new is None:
        return None, f"is left out: {rename.why}"
    name = rename.old if option.name == rename.new else rename.new
    if name in given:
        return None, f"is left out: --{name} is given already"
    values = option.values
    if rename.value is not None:
        values = (spec.get("--tp-size") or ("1",))[:1] if rename.value == _TP else (rename.value,)
    became = Option(flag=f"--{name}", values=values)
    return became, f"became {' '.join(became.words)}"
