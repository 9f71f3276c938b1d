"""Whether the drafting flags of a spec belong together: SGLang finds some of that out after minutes, some never."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from pytest_specdec.spec import ServerSpec

#: The flags that describe a tree of drafts.
SHAPE: Final = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
#: Algorithms whose tree of drafts those three flags describe.
_TREES: Final = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP"})
#: Algorithms that can't be without a model of their own. EAGLE and NEXTN can: some checkpoints hold their drafter.
_NEED_A_MODEL: Final = frozenset({"EAGLE3", "STANDALONE", "DFLASH"})
_ALGORITHM: Final = "--speculative-algorithm"
_DRAFT: Final = "--speculative-draft-model-path"


def names_unknown_algorithm(spec: ServerSpec, algorithms: Sequence[str] | None) -> bool:
    """Whether the spec drafts by an algorithm that is not among these (None: not known, so not unknown)."""
    algorithm = _algorithm(spec)
    return bool(algorithm) and algorithms is not None and algorithm not in algorithms


def _algorithm(spec: ServerSpec) -> str:
    # SGLang takes either case.
    return (spec.first(_ALGORITHM) or "").upper()


def drafting_problems(spec: ServerSpec, algorithms: Sequence[str] | None) -> list[str]:
    """Return what can't work, by ``algorithms`` (None: not known); empty where nothing is wrong."""
    given = [flag for flag in (_DRAFT, *SHAPE) if spec.has(flag)]
    algorithm = _algorithm(spec)
    if not algorithm:
        if not given:
            return []
        flags = f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} given"
        effect = "the server would run without drafting"
        return [f"{flags}, and no {_ALGORITHM}: {effect}; add the algorithm, or leave the rest out"]
    problems = []
    if algorithms is not None and names_unknown_algorithm(spec, algorithms):
        near = difflib.get_close_matches(algorithm, algorithms, n=1)
        problems.append(
            f"{_ALGORITHM} is {algorithm}, which this SGLang does not have; it has {', '.join(algorithms)}"
            + (f". Was {near[0]} meant?" if near else "")
        )
    if algorithm in _NEED_A_MODEL and not spec.has(_DRAFT):
        problems.append(f"{_ALGORITHM} {algorithm} needs a draft model: add {_DRAFT} PATH_OR_ID")
    shape = [flag for flag in SHAPE if spec.has(flag)]
    if algorithm in _TREES and 0 < len(shape) < len(SHAPE) and not spec.has("--speculative-adaptive"):
        missing = " and ".join(flag for flag in SHAPE if flag not in shape)
        problems.append(
            f"{' and '.join(shape)} without {missing}: SGLang ends with a TypeError, or takes a number of its own; "
            "give all three, or none"
        )
    return problems


def drafts_a_tree(spec: ServerSpec) -> bool:
    """Whether the spec's algorithm drafts a tree (or a chain, its simplest form) that :data:`SHAPE` describes."""
    return _algorithm(spec) in _TREES


def drafting_notices(spec: ServerSpec) -> list[str]:
    """Return what SGLang would change by itself, so that the numbers are read for what they are."""
    steps, topk, tokens = (_number(spec, flag) for flag in SHAPE)
    algorithm = _algorithm(spec)
    if algorithm not in _TREES or steps is None or topk != 1 or tokens in (None, steps + 1):
        return []
    return [
        f"with {SHAPE[1]} 1, SGLang makes {SHAPE[2]} one more than {SHAPE[0]}: it will be {steps + 1}, not {tokens}"
    ]


def _number(spec: ServerSpec, flag: str) -> int | None:
    text = spec.first(flag) or ""
    return int(text) if text.isdecimal() else None
