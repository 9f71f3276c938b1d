"""Prompts of token ids that mean nothing: for the speed of an engine at a prompt length, never for a drafter."""

from __future__ import annotations

import hashlib
from typing import Final

from pytest_specdec.errors import WorkloadError
from pytest_specdec.model import Prompt

CATEGORY: Final = "synthetic"
#: Ids below are special tokens and single bytes in most vocabularies; ids above are not in every one.
FIRST_ID: Final = 100
END_ID: Final = 8000


def numbers(seed: str, count: int, *, below: int) -> list[int]:
    """Return ``count`` numbers of at least 0 and less than ``below``, the same for a seed on every machine.

    Python's own generator promises that for its floats only, so they are made of a hash. Numbers below
    ``2**64 % below`` are more likely than others, by less than one in a billion.
    """
    stream = hashlib.shake_256(seed.encode()).digest(8 * count)
    return [int.from_bytes(stream[at : at + 8], "big") % below for at in range(0, 8 * count, 8)]


def prompts(
    prompt_tokens: int, *, count: int, seed: int, first_id: int = FIRST_ID, end_id: int = END_ID
) -> tuple[Prompt, ...]:
    """Make ``count`` prompts of exactly ``prompt_tokens`` ids of at least ``first_id`` and less than ``end_id``.

    Raises:
        WorkloadError: a number can't be meant.
    """
    if prompt_tokens < 1 or count < 1 or not 0 <= first_id < end_id:
        raise WorkloadError(
            f"synthetic prompts: {count} prompts of {prompt_tokens} ids from {first_id} to below {end_id} can't be "
            "made; take at least one prompt of at least one token, and a range that is not empty"
        )
    return tuple(
        Prompt(
            id=f"synthetic-{index:03}",
            category=CATEGORY,
            input_ids=tuple(
                first_id + number for number in numbers(f"{seed}/{index}", prompt_tokens, below=end_id - first_id)
            ),
        )
        for index in range(1, count + 1)
    )
