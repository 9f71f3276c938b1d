"""What can go wrong, as one tree.

::

    SpecdecError
    ├── UserInputError          something the user wrote cannot be used; says what, from where, what would do
    │   ├── SpecError           a server spec or the shell line it was made from
    │   ├── WorkloadError       a workload file or name
    │   └── BaselineFileError   a baseline file that cannot be read as one
    ├── InfrastructureError     no measurement could be made, through no fault of the code under test
    │   ├── HostError           a host does not answer, or lacks what a launch needs
    │   ├── LaunchError         a server did not start, or died
    │   ├── DisagreementError   a server that was already running is not the one that a spec describes
    │   └── ServerRequestError  a server answered a request of ours with an error, or not at all
    └── MeasurementError        requests were answered, but no metric follows from the answers

Every message is written for the person who reads it in a terminal: what failed, what was expected and what
was there, the path or the host, and what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass


class SpecdecError(Exception):
    """Base of every error this package raises on purpose."""


class UserInputError(SpecdecError):
    """Something the user wrote cannot be used."""


class SpecError(UserInputError):
    """A server spec, or the shell line it was made from, is malformed."""


class WorkloadError(UserInputError):
    """A workload is unknown, or its file is malformed."""


class BaselineFileError(UserInputError):
    """A baseline file cannot be read as one; the message names path, key and remedy."""


class InfrastructureError(SpecdecError):
    """No measurement could be made, and the code under test is not to blame."""


class HostError(InfrastructureError):
    """A host does not answer, or lacks what a launch needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """What a launch failed of, by name: one diagnosis of its log, or the problems that the preflight found.

    ``names`` is empty for a log that shows no failure, ``phase`` is ``preflight`` where nothing was started.
    ``exit_code`` is the launcher's or, where that is not known, a child's; None while it still ran.
    """

    names: tuple[str, ...]
    category: str
    phase: str
    exit_code: int | None = None


class LaunchError(InfrastructureError):
    """A server did not start, or died; the message holds the command, the exit and the telling log lines.

    ``log_path`` is where the whole log was kept, ``exit_code`` the launcher's exit code (negative: the
    signal that ended it), or None while it still ran. ``cause`` is None for what no log or preflight tells of.
    """

    def __init__(
        self,
        message: str,
        *,
        log_path: str | None = None,
        exit_code: int | None = None,
        cause: FailureCause | None = None,
    ) -> None:
        super().__init__(message)
        self.log_path = log_path
        self.exit_code = exit_code
        self.cause = cause


class DisagreementError(InfrastructureError):
    """A server that was already running is not the one that a spec describes; the message holds what differs."""


class ServerRequestError(InfrastructureError):
    """A server answered a request of ours with an error, or not at all."""


class ServerRefusedError(ServerRequestError):
    """A server answered a request of ours with an error."""


class MeasurementError(SpecdecError):
    """Requests were answered, but a metric does not follow from the answers."""
