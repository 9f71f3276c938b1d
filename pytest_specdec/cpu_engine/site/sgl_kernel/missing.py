"""How an operator that this package lacks says so."""

from __future__ import annotations

from typing import NoReturn


class OperatorNotImplementedError(NotImplementedError, AttributeError):
    """An operator of ``sgl_kernel`` that the CPU engine does not have.

    An AttributeError as well, so that ``hasattr(torch.ops.sgl_kernel, name)`` answers no.
    """

    def __init__(self, name: str) -> None:
        # One line and short: SGLang logs it for every model class that it can't import.
        super().__init__(f"{name} is not implemented by the CPU engine of pytest-specdec")


class MissingOperator:
    """Stands for an operator that was imported; calling it raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise OperatorNotImplementedError."""
        raise OperatorNotImplementedError(self._name)

    def __repr__(self) -> str:
        return f"<{self._name}: not implemented by the CPU engine>"
