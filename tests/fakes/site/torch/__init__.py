"""As much of torch as the all-reduce probe uses. ``FAKE_TORCH``: its import does ``hang``, ``die`` or ``raise``."""

import os
import signal
import time
from types import SimpleNamespace

__version__ = "2.14.1+fake"
bfloat16 = float64 = None


class Tensor:
    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __eq__(self, other: object) -> "Tensor":
        return Tensor([value == other for value in self.values])

    __hash__ = None

    def __getitem__(self, at: int) -> "Tensor":
        return Tensor([self.values[at]])

    def all(self) -> bool:
        return all(self.values)

    def item(self) -> float:
        return self.values[0]

    def tolist(self) -> list[float]:
        return self.values


def full(shape: tuple[int], value: float, **_: object) -> Tensor:
    return Tensor([value] * shape[0])


def zeros(count: int, **_: object) -> Tensor:
    return Tensor([0.0] * count)


def tensor(values: list[float], **_: object) -> Tensor:
    return Tensor(values)


def device(*_: object) -> None:
    """Any will do."""


def set_num_threads(_: int) -> None:
    """Nothing here is computed."""


class CUDAGraph:
    """Replays what the one in ``distributed`` noted while it was captured."""

    def replay(self) -> None:
        for call in captured:
            call()


class graph:  # noqa: N801  # torch's name
    def __init__(self, _: CUDAGraph) -> None:
        pass

    def __enter__(self) -> None:
        captured.clear()
        capturing.append(True)

    def __exit__(self, *_: object) -> None:
        capturing.clear()


captured: list = []
capturing: list[bool] = []
cuda = SimpleNamespace(
    set_device=device,
    synchronize=lambda: None,
    nccl=SimpleNamespace(version=lambda: (2, 27, 5)),
    CUDAGraph=CUDAGraph,
    graph=graph,
)
fault = os.environ.get("FAKE_TORCH")
if fault == "hang":
    time.sleep(600)
elif fault == "die":
    os.kill(os.getpid(), signal.SIGKILL)
elif fault == "raise":
    raise ImportError("libcudart.so.13: cannot open shared object file")
