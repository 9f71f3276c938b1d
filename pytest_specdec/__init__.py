"""A pytest plug-in: performance regression tests for speculative decoding on SGLang."""

from __future__ import annotations

from pytest_specdec.communication import Ceiling, StepChange, Traffic, ceiling, step_change, step_traffic
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
from pytest_specdec.sweeps import sweep
from pytest_specdec.workloads import load_workload, synthetic_workload

__all__ = [
    "BaselineFileError",
    "Ceiling",
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
    "StepChange",
    "Traffic",
    "UserInputError",
    "Verdict",
    "Violation",
    "Workload",
    "WorkloadError",
    "ceiling",
    "load_workload",
    "step_change",
    "step_traffic",
    "sweep",
    "synthetic_workload",
]
