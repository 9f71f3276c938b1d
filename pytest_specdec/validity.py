"""Whether a run may be judged at all: named rules, each with its reason.

Each rule answers that it is broken, fine, does not apply, or could not be checked, the last two with why. A test may
waive a rule by name; what was waived is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pytest_specdec import validity_machine, validity_requests, validity_server
from pytest_specdec.model import Finding, Violation
from pytest_specdec.validity_run import Answer, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: where it applies, what breaks it (both for people), and the function that looks.

    ``refuses``: a run that breaks it is invalid; one that doesn't refuse is shown as a note.
    """

    applies: str
    broken_when: str
    check: Callable[[Run], Answer]
    refuses: bool = True


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "request-error": Rule(
            applies="always",
            broken_when="a request failed, timed out, or its connection dropped",
            check=validity_requests.request_error,
        ),
        "output-length": Rule(
            applies="always",
            broken_when="an answer has not exactly the tokens asked for, or ended for another reason",
            check=validity_requests.output_length,
        ),
        "missing-spec-verify-ct": Rule(
            applies="drafting servers",
            broken_when="a request came without `spec_verify_ct`: the accept length is not known, and that is not 1.0",
            check=validity_requests.missing_spec_verify_ct,
        ),
        "not-drafting": Rule(
            applies="drafting servers",
            broken_when="the accept length is 1.000 (within 0.005): no draft token is ever right. Algorithm EAGLE with "
            "an EAGLE3 draft does this silently",
            check=validity_requests.not_drafting,
        ),
        "flush-failed": Rule(
            applies="unless the cache is left as it is (`--specdec-url` without `--specdec-url-flush`)",
            broken_when="the server refused to empty its prefix cache before a measured round",
            check=validity_server.flush_failed,
        ),
        "cached-tokens": Rule(
            applies="unless the cache is left as it is",
            broken_when="more prompt tokens were cached than the round's own prompts, their chat template and earlier "
            "turns share: something else uses the server",
            check=validity_requests.cached_tokens,
        ),
        "degenerate-output": Rule(
            applies="answers of 32 tokens and more",
            broken_when="the median answer has less than half of the distinct 4-grams that the baseline's had "
            "(`distinct_share`), or, where that is not known, fewer than 10 %: repetition is drafted for free",
            check=validity_requests.degenerate_output,
        ),
        "simulated-acceptance": Rule(
            applies="servers that this session started",
            broken_when="`SGLANG_SIMULATE_ACC_LEN` (or `SIMULATE_ACC_LEN`) is above zero in the server's environment",
            check=validity_server.simulated_acceptance,
        ),
        "cuda-graphs-off": Rule(
            applies="CUDA",
            broken_when="more than a tenth of the decode lines of the rounds say `cuda graph: False`, or the batch "
            "(requests a data-parallel rank) is above the largest that graphs were captured for",
            check=validity_server.cuda_graphs_off,
        ),
        "running-batch-below-concurrency": Rule(
            applies="concurrency above 1, closed loop",
            broken_when="the server's limit on running requests is below the concurrency, or the fullest decode line "
            "has less than 90 % of it",
            check=validity_server.running_batch_below_concurrency,
        ),
        "retraction": Rule(
            applies="servers whose log is known",
            broken_when="the log says during a round that requests were retracted for want of KV cache",
            check=validity_server.retraction,
        ),
        "server-restarted": Rule(
            applies="always",
            broken_when="the log of a round holds a start, or random seed or start-up times in `/server_info` are not "
            "those at readiness",
            check=validity_server.server_restarted,
        ),
        "client-cpu-saturated": Rule(
            applies="rounds of 0.5 s and more",
            broken_when="this process used more than 90 % of a core during a round",
            check=validity_machine.client_cpu_saturated,
        ),
        "foreign-gpu-process": Rule(
            applies="CUDA, servers that this session started",
            broken_when="a process that the server did not start was on one of its GPUs during a round",
            check=validity_machine.foreign_gpu_process,
        ),
        "gpu-slowdown": Rule(
            applies="CUDA, servers that this session started",
            broken_when="a hardware or thermal slowdown was active on one of its GPUs during a round; a power cap is "
            "recorded, not refused",
            check=validity_machine.gpu_slowdown,
        ),
        "server-times-disagree": Rule(
            applies="where the server tells its times",
            broken_when="the client's end-to-end times are more than 2 % from the server's `e2e_latency` (median), or "
            "its decode throughput from the server's `decode_throughput`: shown as a note, the run stays valid",
            check=validity_server.server_times_disagree,
            refuses=False,
        ),
    }
)
#: Of several launches, the first of these that any of them has is what the run has.
_WORST_FIRST: Final = ("broken", "not-checked", "fine", "not-applicable")


def findings(runs: Sequence[Run], *, waived: frozenset[str] = frozenset()) -> tuple[Finding, ...]:
    """Return what every rule says of a measurement: of all its launches, the worst answer.

    One launch that breaks a rule spoils the measurement; one that could not be checked leaves it unchecked.
    """
    return tuple(
        Finding(
            rule=name,
            status=answer.status,
            reason=answer.reason,
            refuses=rule.refuses,
            waived=name in waived and answer.status == "broken",
        )
        for name, rule in RULES.items()
        if (answer := _worst([rule.check(run) for run in runs])) is not None
    )


def _worst(answers: Sequence[Answer]) -> Answer | None:
    return min(answers, key=lambda answer: _WORST_FIRST.index(answer.status), default=None)


def violations(found: Sequence[Finding]) -> tuple[Violation, ...]:
    """Return what keeps a run from being judged."""
    return tuple(
        Violation(rule=finding.rule, reason=finding.reason)
        for finding in found
        if finding.status == "broken" and finding.refuses and not finding.waived
    )


def notes(found: Sequence[Finding]) -> list[str]:
    """Return what a reader has to know all the same: what was waived, and rules that do not refuse."""
    said = [f"waived {finding.rule}: {finding.reason}" for finding in found if finding.waived]
    return said + [
        f"{finding.rule}: {finding.reason}"
        for finding in found
        if finding.status == "broken" and not finding.refuses and not finding.waived
    ]
