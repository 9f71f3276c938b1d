"""A server that is already running: measured, compared, and left as it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import requests

from pytest_specdec.hosts import LocalHost
from tests.plugin.conftest import ENGINE, TEST_B, Suite
from tests.plugin.test_life_cycle import wait_for

GPU_TESTS = (
    "PLAIN = ServerSpec.from_command('plain', f'python -m sglang.launch_server --model-path {MODEL} --tp 1')\n"
    "DRAFTING = PLAIN.but('drafting', '--speculative-algorithm NGRAM')\n"
    "ELSEWHERE = DRAFTING.but('elsewhere', drop=[]).with_paths({MODEL: '/data/other'})\n"
    + TEST_B.replace("[B]", "[PLAIN, DRAFTING, ELSEWHERE]")
)


@pytest.fixture
def serve(suite: Suite) -> Iterator[Callable[..., str]]:
    """Start a fake engine that is none of the session's; it must be there still at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def serve(*flags: str) -> str:
        port = LocalHost().free_port()
        words = ["-m", "sglang.launch_server", "--model-path", str(suite.model), "--port", str(port), *flags]
        started.append(subprocess.Popen([sys.executable, str(ENGINE), *words], stdout=subprocess.DEVNULL))
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            try:
                return requests.get(f"{url}/health", timeout=5).status_code == 200
            except requests.ConnectionError:
                return False

        wait_for(answers)
        return url

    yield serve
    still_there = [process.poll() is None for process in started]
    for process in started:
        process.kill()
        process.wait()
    assert all(still_there)


def test_the_spec_that_runs_there_is_measured_and_others_are_skipped_with_what_differs(
    suite: Suite, serve: Callable[..., str]
) -> None:
    suite.write(GPU_TESTS)
    url = serve("--speculative-algorithm", "NGRAM")

    result = suite.run(f"--specdec-url={url}", "--update-baselines", "-rs")

    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=2)
    text = result.stdout.str()
    assert f"plain is not what runs at {url}: " in text
    assert "--speculative-algorithm" in text
    assert (
        f"elsewhere is not what runs at {url}: --model-path /data/other in the spec, {suite.model} at the server"
        in text
    )
    assert suite.launches == 0
    (entry,) = suite.results["measurements"]
    (launch,) = entry["launches"]
    assert (launch["attached_to"], launch["ready_s"], launch["log_path"]) == (url, None, None)
    assert any("its GPUs, driver, clocks, environment variables and log can't be known" in n for n in entry["notes"])
    assert suite.baseline("drafting--smoke--c1--o31").exists()
    assert suite.run(f"--specdec-url={url}", "-k", "drafting").ret == 0


def test_without_a_node_there_is_nothing_to_compare_with_and_the_option_is_named(
    suite: Suite, serve: Callable[..., str]
) -> None:
    suite.write(GPU_TESTS)
    url = serve("--speculative-algorithm", "NGRAM")

    result = suite.run(f"--specdec-url={url}", env={"PYTEST_SPECDEC_NODE": ""})

    assert result.ret == 11
    assert "name it with --specdec-node=NAME" in result.stdout.str()


@pytest.mark.parametrize("flush", [False, True])
def test_its_cache_is_flushed_only_when_asked(
    suite: Suite, serve: Callable[..., str], flush: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    suite.write(GPU_TESTS)
    log = tmp_path_factory.mktemp("server") / "requests.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_REQUESTS", str(log))
        url = serve("--speculative-algorithm", "NGRAM")

    result = suite.run(f"--specdec-url={url}", "-k", "drafting", *(["--specdec-url-flush"] if flush else []))

    assert result.ret == 11, "there is no baseline yet"
    assert log.read_text().count("POST /flush_cache") == (3 if flush else 0)
    assert ("its prefix cache was not flushed" in result.stdout.str()) is not flush


def test_nothing_that_answers_is_infrastructure(suite: Suite) -> None:
    suite.write(GPU_TESTS)
    port = LocalHost().free_port()

    result = suite.run(f"--specdec-url=http://127.0.0.1:{port}")

    assert result.ret == 12
    assert f"no SGLang server answers at http://127.0.0.1:{port} (--specdec-url)" in result.stdout.str()


def test_when_no_spec_runs_there_nothing_was_measured(suite: Suite, serve: Callable[..., str]) -> None:
    suite.write(GPU_TESTS)

    result = suite.run(f"--specdec-url={serve('--speculative-algorithm', 'EAGLE')}")

    assert result.ret == 13
    result.assert_outcomes(skipped=3)


def test_the_check_asks_the_server(suite: Suite, serve: Callable[..., str]) -> None:
    suite.write(GPU_TESTS)
    url = serve()

    result = suite.run("--specdec-check", f"--specdec-url={url}")

    assert result.ret == 12
    text = result.stdout.str()
    assert "plain: ok (SGLang 0.5.23)" in text
    assert f"drafting is not what runs at {url}" in text


def test_free_use_works_and_its_log_is_said_to_be_unknown(suite: Suite, serve: Callable[..., str]) -> None:
    suite.write(
        GPU_TESTS + "\n\n"
        "@pytest.mark.parametrize('sglang_server', [DRAFTING], indirect=True)\n"
        "def test_log(sglang_server):\n"
        "    assert sglang_server.generate('Hello', output_tokens=4).output_ids\n"
        "    sglang_server.log_path\n"
    )
    url = serve("--speculative-algorithm", "NGRAM")

    result = suite.run(f"--specdec-url={url}", "-k", "test_log")

    assert result.ret == 12
    assert f"the log of the server at {url} is not known here" in result.stdout.str()
