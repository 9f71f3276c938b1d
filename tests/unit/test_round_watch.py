"""What a round's watch reads of a log, and what it says when the host can't be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.errors import HostError
from pytest_specdec.gpu_watch import GpuWatch
from pytest_specdec.observed import LogSpan, Seen
from pytest_specdec.round_watch import LogTail, RoundWatch
from tests.fakes.host import FakeClock, FakeHost

LOG = Path("/logs/a.log")
LINE = "[2026-04-15 22:13:40] Decode batch, #running-req: {}, gen throughput (token/s): 9.00, #queue-req: 0\n"


class Cut(FakeHost):
    """A host that can't be reached from the moment when ``cut`` is set."""

    cut = False

    def read_from(self, path: Path, offset: int) -> bytes:
        if self.cut:
            raise HostError("fakehost: the connection was lost")
        return super().read_from(path, offset)


def test_a_round_has_the_lines_that_were_written_in_it() -> None:
    host = FakeHost()
    host.write(LOG, LINE.format(1))
    with RoundWatch(log=LogTail(host, LOG)) as watch:
        watch.begin()
        host.write(LOG, LINE.format(2) + LINE.format(3))
        first = watch.end().log
        host.write(LOG, LINE.format(4))  # after the round, before the next
        watch.begin()
        host.write(LOG, LINE.format(5))
        second = watch.end().log

    assert first is not None
    assert second is not None
    assert [line.running for line in first.decode] == [2, 3]
    assert [(line.running, line.steady) for line in second.decode] == [(5, False)]


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_a_log_that_can_not_be_read_is_not_known_and_costs_no_round(moment: str) -> None:
    host = Cut()
    with RoundWatch(log=LogTail(host, LOG)) as watch:
        host.cut = moment == "begin"
        watch.begin()
        host.cut = moment == "end"
        seen = watch.end()
        host.cut = False
        watch.begin()
        again = watch.end()

    assert seen == Seen()
    assert again.log == LogSpan(decode=(), retractions=(), restarts=0)


def test_nothing_to_look_at_is_nothing_seen() -> None:
    with RoundWatch() as watch:
        watch.begin()
        assert watch.end() == Seen()


def test_gpus_that_are_not_known_say_why_and_cost_no_round() -> None:
    host = FakeHost()
    with RoundWatch(gpus=GpuWatch(host, log_path=LOG, own=lambda: (), clock=FakeClock())) as watch:
        watch.begin()
        seen = watch.end()

    assert seen.gpu is not None
    assert seen.gpu.unknown == "fakehost: nvidia-smi can't be run: No such file or directory"
