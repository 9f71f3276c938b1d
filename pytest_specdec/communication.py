"""What communication alone allows: the arithmetic of all-reduces within a decode step. Pure functions.

A tensor-parallel transformer sums partial results over its GPUs twice a layer, behind attention and behind the MLP
(Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3). The calls of a step wait for one another, so a step
takes at least calls x latency, whatever the GPUs compute. See docs/communication.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: All-reduces a layer: one behind attention, one behind the MLP or the experts.
CALLS_A_LAYER: Final = 2
#: Bytes of a bfloat16, in which SGLang sums hidden states.
BF16_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The all-reduces of one step: ``calls``, one behind the other, of ``message_bytes`` each."""

    calls: int
    message_bytes: int

    def __post_init__(self) -> None:
        for name in ("calls", "message_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")


def step_traffic(*, layers: int, hidden_size: int, batch_tokens: int, element_bytes: int = BF16_BYTES) -> Traffic:
    """Return the traffic of one step: 2 x layers calls of batch tokens x hidden size x bytes of an element.

    ``batch_tokens`` are the tokens that go through the target model in a step: one a stream without drafting, the
    draft tokens of every stream in a verify step. The drafter's own all-reduces and the one behind the embedding
    are left out, so that what follows stays a bound.
    """
    return Traffic(calls=CALLS_A_LAYER * layers, message_bytes=batch_tokens * hidden_size * element_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The most that communication alone allows. ``verify_rate`` in steps/s, ``communication_ms`` a step."""

    communication_ms: float
    verify_rate: float

    def decode_tok_s(self, accept_length: float) -> float:
        """Return tok/s of one stream: verify rate x accept length (tokens a step; 1 without drafting)."""
        return self.verify_rate * _positive("accept_length", accept_length)

    def share(self, verify_rate: float) -> float:
        """Return the part of a measured step that communication takes: measured over the highest verify rate.

        Above 1 the server's all-reduces are faster than the ones that were timed: a kernel of its own, or
        communication that is hidden behind computation.
        """
        return _positive("verify_rate", verify_rate) / self.verify_rate


def ceiling(calls: int, all_reduce_us: float) -> Ceiling:
    """Return the bound: a step takes at least calls x latency, so verify rate <= 1 / (calls x latency)."""
    step_s = _positive("calls", calls) * _positive("all_reduce_us", all_reduce_us) / 1e6
    return Ceiling(communication_ms=step_s * 1e3, verify_rate=1 / step_s)


def longest_all_reduce_us(calls: int, verify_rate: float) -> float:
    """Return the latency at which communication alone makes a step as long as it was measured."""
    return 1e6 / (_positive("calls", calls) * _positive("verify_rate", verify_rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """How much longer a step became (ms, below 0: shorter), and the two parts of that."""

    step_ms: float
    communication_ms: float
    rest_ms: float

    def line(self) -> str:
        """Say which part it was: the link and its library, or the engine."""
        parts = {"communication": self.communication_ms, "the rest of the step": self.rest_ms}
        larger = max(parts, key=lambda name: abs(parts[name]))
        return (
            f"a step takes {self.step_ms:+.2f} ms: communication {self.communication_ms:+.2f} ms, "
            f"the rest {self.rest_ms:+.2f} ms; most of it is {larger}"
        )


def step_change(calls: int, *, verify_rate: tuple[float, float], all_reduce_us: tuple[float, float]) -> StepChange:
    """Split the change of a step (before, after) into communication and rest: a slow link, or a slow engine.

    step = 1 / verify rate; communication = calls x latency; rest = step - communication, all in ms.
    """
    before, after = (1e3 / _positive("verify_rate", rate) for rate in verify_rate)
    talked_before, talked_after = (ceiling(calls, latency).communication_ms for latency in all_reduce_us)
    step, communication = after - before, talked_after - talked_before
    return StepChange(step_ms=step, communication_ms=communication, rest_ms=step - communication)


def _positive(name: str, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is a number above 0, got {value!r}")
    return value
