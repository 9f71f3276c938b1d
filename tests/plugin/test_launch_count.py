"""N tests over K specs make K launches, whatever the order and the selection."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Suite

TESTS = """
SPECS = [A, B]
ANOTHER_A = ServerSpec.tiny('a', env=ENV).with_paths({'tiny:target': MODEL})

@pytest.mark.specdec(workload="smoke", output_tokens=16, rounds=1, warmup=0)
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("sglang_server", SPECS, indirect=True)
def test_one(specdec_benchmark):
    specdec_benchmark(check=False)

@pytest.mark.specdec(workload="smoke", output_tokens=24, rounds=1, warmup=0)
@pytest.mark.parametrize("sglang_server", [ANOTHER_A, B], indirect=True)
def test_two(specdec_benchmark):
    specdec_benchmark(check=False)

@pytest.mark.parametrize("sglang_server", SPECS, indirect=True)
def test_free(sglang_server):
    assert sglang_server.info.version == "0.5.23"

def test_other():
    pass
"""


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("-p", "no:cacheprovider"),
        ("test_suite.py::test_two", "test_suite.py::test_free", "test_suite.py::test_one"),
    ],
    ids=["collection order", "no cache", "another order"],
)
def test_each_spec_is_launched_once(suite: Suite, args: tuple[str, ...]) -> None:
    suite.write(TESTS)

    result = suite.run(*args)

    assert result.ret == 0
    assert suite.launches == 2


def test_a_selection_launches_only_what_it_needs(suite: Suite) -> None:
    suite.write(TESTS)

    result = suite.run("-k", "test_two and b")

    assert result.ret == 0
    assert suite.launches == 1


def test_last_failed_launches_only_what_failed(suite: Suite) -> None:
    suite.write(TESTS.replace('== "0.5.23"', '== "0.5.23" and sglang_server.spec.name == "a"'))
    assert suite.run().ret == 1
    before = suite.launches

    suite.run("--lf")

    assert suite.launches == before + 1


def test_other_tests_keep_their_places(suite: Suite) -> None:
    suite.write(
        "def test_first(): pass\n"
        "def make(name, spec):\n"
        "    @pytest.mark.parametrize('sglang_server', [spec], indirect=True)\n"
        "    def test(sglang_server): pass\n"
        "    return test\n"
        "test_1 = make('x', A)\n"
        "def test_middle(): pass\n"
        "test_2 = make('y', B)\n"
        "test_3 = make('z', ServerSpec.tiny('a', env=ENV).with_paths({'tiny:target': MODEL}))\n"
    )

    result = suite.run("--collect-only", "-q")

    names = [line.split("::")[1] for line in result.stdout.lines if "::" in line]
    assert names == ["test_first", "test_1[a]", "test_middle", "test_3[a]", "test_2[b]"]
    assert suite.launches == 0
