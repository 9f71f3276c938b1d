"""A sweep is an ordinary parametrization: its points are the ids, and each is launched once."""

from __future__ import annotations

from tests.plugin.conftest import Suite


def test_each_point_of_a_sweep_is_a_test_and_a_launch(suite: Suite) -> None:
    suite.write(
        "from pytest_specdec import sweep\n"
        "pytestmark = pytest.mark.specdec(workload='smoke', output_tokens=16)\n"
        "@pytest.mark.parametrize('sglang_server', sweep(A, '--stream-interval', [1, 2, None]), indirect=True)\n"
        "def test_point(specdec_benchmark):\n"
        "    specdec_benchmark(check=False)\n"
    )

    result = suite.run("-v")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_point[[]a_stream-interval-1] PASSED*", "*test_point[[]a] PASSED*"])
    assert suite.launches == 3
