"""A server that is ready is known to be within half a second: what waits of nine minutes end with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.readiness import Launch, fake_launches, said_at
from pytest_specdec.stats import median


def test_the_median_lag_is_under_half_a_second(tmp_path: Path) -> None:
    launches = fake_launches(tmp_path, [0.2, 0.55, 0.85, 1.1, 1.35])

    assert all(launch.known_s > launch.ready_s > launch.began_s for launch in launches)
    assert median([launch.lag_s for launch in launches]) < 0.5


def test_other_ways_to_wait_are_late_by_the_pauses_between_their_questions() -> None:
    launch = Launch(began_s=1000.0, listens_s=1011.5, ready_s=1013.0, known_s=1013.4, generation_s=0.3)

    assert launch.lag_s == pytest.approx(0.1)
    assert launch.helper_lag_s == pytest.approx(7.0)
    assert launch.wait_for_server_lag_s == pytest.approx(4.0)


def test_a_moment_is_read_from_the_log_to_the_millisecond() -> None:
    log = "[2026-11-29 10:00:01.250] a\n[2026-11-29 10:00:02.750 TP0] b\n"

    assert said_at(log, "b") - said_at(log, "a") == pytest.approx(1.5)
