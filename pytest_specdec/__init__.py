"""A pytest plug-in: performance regression tests for speculative decoding on SGLang."""

from __future__ import annotations

from pytest_specdec.errors import (
    BaselineFileError,
    DisagreementError,
    HostError,
    InfrastructureError,
    LaunchError,
    MeasurementError,
    ServerRequestError,
    SpecdecError,
    SpecError,
    UserInputError,
    WorkloadError,
)
from pytest_specdec.model import (
    ChatTemplate,
    Comparison,
    Direction,
    LaunchRecord,
    LaunchRounds,
    Measurement,
    MetricVerdict,
    Prompt,
    RequestSample,
    Round,
    RoundsByLaunch,
    Sampling,
    Verdict,
    Violation,
    Workload,
)
from pytest_specdec.spec import ServerSpec
from pytest_specdec.workloads import load_workload, synthetic_workload

__all__ = [
    "BaselineFileError",
    "ChatTemplate",
    "Comparison",
    "Direction",
    "DisagreementError",
    "HostError",
    "InfrastructureError",
    "LaunchError",
    "LaunchRecord",
    "LaunchRounds",
    "Measurement",
    "MeasurementError",
    "MetricVerdict",
    "Prompt",
    "RequestSample",
    "Round",
    "RoundsByLaunch",
    "Sampling",
    "ServerRequestError",
    "ServerSpec",
    "SpecError",
    "SpecdecError",
    "UserInputError",
    "Verdict",
    "Violation",
    "Workload",
    "WorkloadError",
    "load_workload",
    "synthetic_workload",
]
