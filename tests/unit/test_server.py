"""The wait for a server, its death and its end, on a fake host with fake time."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_specdec import ServerSpec
from pytest_specdec.errors import LaunchError
from pytest_specdec.hosts import Completed
from pytest_specdec.progress import Progress
from pytest_specdec.server import RunningServer, launch
from pytest_specdec.stopping import stop_process
from tests.fakes.host import FakeClient, FakeClock, FakeHost, FakeProcess, told

LOG = Path("/logs/base.log")
SPEC = ServerSpec("base", "/models/m", args="--tp 2 --api-key hidden", env={"NCCL_ALGO": "Ring"})
READY = "[2026-11-29 12:00:00] The server is fired up and ready to roll!\n"


class Scene:
    """One launch on a fake host; what happens during it is put in the clock's diary."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.process = FakeProcess()
        self.host = FakeHost(process=self.process)
        self.client = FakeClient()
        self.progress: list[Progress] = []

    def says(self, moment_s: float, *lines: str) -> None:
        self.clock.at(moment_s, lambda: self.host.write(LOG, "".join(line.rstrip("\n") + "\n" for line in lines)))

    def dies(self, moment_s: float, code: int) -> None:
        def die() -> None:
            self.process.exit_code = code

        self.clock.at(moment_s, die)

    def answers(self, moment_s: float, status: int | None) -> None:
        def answer() -> None:
            self.client.status = status

        self.clock.at(moment_s, answer)

    def launch(
        self,
        spec: ServerSpec = SPEC,
        *,
        timeout_s: float = 600,
        limit_s: float = 3600,
        expected_s: float | None = None,
        **extra_env: str,
    ) -> RunningServer:
        return launch(
            self.host,
            spec,
            python="/venv/bin/python",
            clock=self.clock,
            log_path=LOG,
            client_factory=lambda _url: self.client,
            startup_timeout_s=timeout_s,
            startup_limit_s=limit_s,
            extra_env=extra_env,
            on_progress=self.progress.append,
            expected_s=expected_s,
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_server_is_ready_when_log_http_and_a_generation_agree(scene: Scene) -> None:
    scene.says(5.0, READY)

    server = scene.launch()

    assert (server.url, server.port, server.log_path) == ("http://fakehost:20001", 20_001, LOG)
    assert server.info.model_path == "/models/m"
    assert server.ready_s == pytest.approx(5.0)
    assert scene.client.asked[-2:] == ["server_info", "generate 2"]
    assert scene.process.signals == []


def test_the_command_gets_the_address_and_the_environment_in_order(scene: Scene) -> None:
    scene.host.env = {"PATH": "/usr/bin", "NCCL_ALGO": "Tree", "A": "host", "B": "host"}
    scene.says(0.1, READY)

    scene.launch(A="extra", PYTHONPATH="/engine")

    ((argv, env, cwd),) = scene.host.spawned
    assert argv == (
        *("/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/m", "--tp", "2"),
        *("--api-key", "hidden", "--host", "127.0.0.1", "--port", "20001"),
    )
    assert env == {
        "PATH": "/usr/bin",
        "PYTHONUNBUFFERED": "1",
        "NCCL_ALGO": "Ring",
        "A": "extra",
        "B": "host",
        "PYTHONPATH": "/engine",
    }
    assert cwd is None


def test_an_earlier_launch_in_the_same_log_is_not_read(scene: Scene) -> None:
    scene.host.write(LOG, f"address already in use\n{READY}crashed with exit code -9\n")
    scene.says(5.0, READY)

    assert scene.launch().ready_s == pytest.approx(5.0)


def test_a_spec_s_python_path_comes_after_the_engine_s(scene: Scene) -> None:
    scene.says(0.1, READY)

    scene.launch(SPEC.but("other", env={"PYTHONPATH": "/mine"}), PYTHONPATH="/engine")

    assert scene.host.spawned[0][1]["PYTHONPATH"] == "/engine:/mine"


def test_phases_are_told_as_they_come_and_again_after_a_minute(scene: Scene) -> None:
    scene.says(1.0, "Load weight begin. avail mem=79.00 GB")
    scene.says(70.0, "KV Cache is allocated. #tokens: 16384")
    scene.says(71.0, READY)

    scene.launch()

    assert [(told.phase, round(told.elapsed_s)) for told in scene.progress if told.mention] == [
        ("weights", 1),
        ("weights", 61),
        ("kv_cache", 70),
    ]


def test_a_dead_process_is_noticed_within_a_second_with_all_that_tells_why(scene: Scene) -> None:
    scene.says(2.0, "Load weight begin.", "sglang serve: error: unrecognized arguments: --tpp")
    scene.dies(3.0, 2)

    with pytest.raises(LaunchError) as caught:
        scene.launch()

    assert scene.clock.now < 4.0
    assert str(caught.value).splitlines() == [
        "base: the server did not start: it died after 3.0 s (exit code 2: SGLang's parser refused the arguments)",
        "  phase:     weights",
        "  command:   NCCL_ALGO=Ring python -m sglang.launch_server --model-path /models/m --tp 2 --api-key '***'",
        "  log:       /logs/base.log",
        "  diagnosis: flag-unrecognized [bad_flag], in phase arguments",
        "  cause:     This version has no option --tpp.",
        "  remedy:    Look for its name in this version's --help; options come and go between versions.",
        "  | sglang serve: error: unrecognized arguments: --tpp",
    ]
    assert (caught.value.exit_code, caught.value.log_path) == (2, "/logs/base.log")
    cause = caught.value.cause
    assert cause is not None
    assert (cause.names, cause.category, cause.phase) == (("flag-unrecognized",), "bad_flag", "arguments")
    assert scene.process.forgotten


@pytest.mark.parametrize(
    ("line", "explained"),
    [("Load weight begin.", False), ("sglang serve: error: unrecognized arguments: --tpp", True)],
    ids=["a log that breaks off", "a log that says why"],
)
def test_a_log_that_cannot_be_written_is_told_and_no_reason_is_made_up(
    scene: Scene, line: str, explained: bool
) -> None:
    scene.host.answers["sh"] = told(
        stderr="head: error writing 'standard output': No space left on device\n", returncode=1
    )
    scene.says(2.0, line)
    scene.dies(3.0, -9)

    with pytest.raises(LaunchError) as caught:
        scene.launch()

    text = str(caught.value)
    assert "  the log can't be written (No space left on device): it may end before the reason" in text
    assert "--specdec-report=DIR" in text
    assert ("diagnosis: " in text) == explained
    assert line in text


def test_what_a_dead_launcher_left_behind_is_ended(scene: Scene) -> None:
    scene.process.others = (77,)
    scene.dies(1.0, -9)

    with pytest.raises(LaunchError):
        scene.launch()

    assert scene.process.signals == [signal.SIGTERM]
    assert scene.process.members() == ()


def test_a_launcher_that_said_its_last_words_may_end_but_is_not_waited_for_forever(scene: Scene) -> None:
    scene.says(1.0, "Received sigquit from a child process. It usually means the child failed.")
    scene.says(2.0, "Traceback (most recent call last):", '  File "model.py", line 9, in load', "KeyError: 'a'")

    with pytest.raises(LaunchError, match="KeyError: 'a'") as caught:
        scene.launch()

    assert scene.clock.now == pytest.approx(11.0, abs=0.3)
    assert caught.value.exit_code is None


def test_a_port_that_was_taken_meanwhile_fails_at_once(scene: Scene) -> None:
    taken = (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 20001): address already in use"
    )
    scene.says(4.0, f"[2026-11-29 12:21:15] {taken}")

    with pytest.raises(LaunchError) as caught:
        scene.launch()

    assert str(caught.value).splitlines()[0] == f"base: port 20001 was taken while it loaded: {taken}"
    assert scene.clock.now < 5.0
    assert scene.process.signals == [signal.SIGTERM]


def test_another_server_on_the_port_is_refused_and_not_diagnosed_as_a_hang(scene: Scene) -> None:
    scene.client.model = "/models/other"
    scene.says(1.0, READY)

    with pytest.raises(
        LaunchError, match=r"another server answers on port 20001: it serves '/models/other' on port "
    ) as caught:
        scene.launch()

    assert "diagnosis" not in str(caught.value)

    assert scene.process.signals == [signal.SIGTERM]


def test_a_server_that_tells_another_port_is_another_server(scene: Scene) -> None:
    scene.client.port = 30_000
    scene.says(1.0, READY)

    with pytest.raises(LaunchError, match="it serves '/models/m' on port 30000, not '/models/m'"):
        scene.launch()


@pytest.mark.parametrize(
    ("model", "told"),
    [("/models/m/", "/models/m"), ("org/m", "/cache/hub/org/m"), ("~/models/m", "/home/fake/models/m"), ("m", None)],
)
def test_a_model_is_recognised_however_it_is_told(scene: Scene, model: str, told: str | None) -> None:
    scene.client.model = told
    scene.says(1.0, READY)

    assert scene.launch(ServerSpec("base", model)).info.model_path == told


def test_http_is_believed_when_the_log_never_says_ready(scene: Scene) -> None:
    scene.says(1.0, "some line that says nothing")
    scene.answers(5.0, 503)
    scene.answers(10.0, 200)

    server = scene.launch()

    assert 12.0 <= server.ready_s <= 14.0


def test_a_health_that_flickers_is_not_believed(scene: Scene) -> None:
    for moment_s, status in ((5.0, 200), (6.5, 503), (8.0, 200), (9.5, None), (20.0, 200)):
        scene.answers(moment_s, status)

    assert 22.0 <= scene.launch().ready_s <= 24.0


def test_health_is_asked_once_a_second_while_the_log_is_silent_and_never_after_readiness(scene: Scene) -> None:
    scene.says(10.0, READY)

    server = scene.launch()
    server.check_alive()

    # Once at the start, and from the third second on.
    assert 8 <= scene.client.asked.count("health") <= 9
    assert scene.client.asked[-1] == "generate 2"


def test_health_is_not_asked_while_the_log_goes_on(scene: Scene) -> None:
    for second in range(1, 20):
        scene.says(second, f"shards: {second}/20")
        scene.says(second + 0.5, '127.0.0.1:5555 - "GET /health HTTP/1.1" 503 Service Unavailable')
    scene.says(20.0, READY)

    scene.launch()

    assert scene.client.asked == ["health", "server_info", "generate 2"]


def test_a_server_that_runs_with_other_arguments_is_refused_naming_both_values(scene: Scene) -> None:
    scene.client.args = {"tp_size": 1}
    scene.says(1.0, READY)

    with pytest.raises(LaunchError, match="not what the spec asks for: --tp is 2 in the spec, and 1 on the server"):
        scene.launch()

    assert scene.process.signals == [signal.SIGTERM]


def test_a_failed_first_generation_is_a_failed_launch(scene: Scene) -> None:
    scene.client.generation_error = "POST http://fakehost:20001/generate: HTTP 500: boom"
    scene.says(1.0, READY)

    with pytest.raises(LaunchError, match=r"ready, but its first generation failed: POST .*: HTTP 500: boom"):
        scene.launch()

    assert scene.process.signals == [signal.SIGTERM]


def test_no_progress_ends_the_wait_saying_what_was_awaited(scene: Scene) -> None:
    scene.says(5.0, "[2026-01-02 12:22:57] Load weight begin. avail mem=79.00 GB")
    scene.answers(0.5, 503)

    with pytest.raises(LaunchError) as caught:
        scene.launch(timeout_s=60)

    assert scene.clock.now == pytest.approx(65.0, abs=1)
    assert str(caught.value) == (
        "base: waited for the server to be ready until nothing showed progress for 60 s "
        "(--specdec-startup-timeout); last phase weights, last byte of its log 60 s ago, last progress 60 s ago, seen "
        "0 s ago: its processes can't be seen: fakehost: sh can't be run: No such file or directory; over HTTP it "
        "said HTTP 503 to /health\n"
        f"  command:   {SPEC.masked_command}\n"
        "  log:       /logs/base.log\n"
        "  diagnosis: no-progress [hang], in phase weights\n"
        "  cause:     The log ends without an error and before the server was ready: in phase weights, with its last "
        "line at 2026-01-02 12:22:57.\n"
        "  remedy:    See what the processes do (py-spy dump); between GPUs that is often NCCL: NCCL_DEBUG=INFO, "
        "NCCL_P2P_DISABLE=1, --disable-custom-all-reduce.\n"
        "  | [2026-01-02 12:22:57] Load weight begin. avail mem=79.00 GB"
    )


READING = """\
/proc/4242/stat:4242 (python) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 77 0 0
/proc/4242/io:rchar: {read}
/proc/4242/status:RssAnon:\t 100 kB
"""


def reads(scene: Scene, *, bytes_per_s: float) -> None:
    """The server's process reads at this speed, and spins at full."""

    def proc(_argv: Sequence[str]) -> Completed:
        return told(READING.format(ticks=round(scene.clock.now * 100), read=round(scene.clock.now * bytes_per_s)))

    scene.host.answers["sh"] = proc


def test_a_silent_load_that_reads_is_not_ended_before_the_limit(scene: Scene) -> None:
    reads(scene, bytes_per_s=1e9)

    with pytest.raises(LaunchError, match=r"until 1000 s have passed \(--specdec-startup-limit\)"):
        scene.launch(timeout_s=60, limit_s=1000)


def test_a_hang_that_spins_and_trickles_is_ended_with_all_that_was_seen(scene: Scene) -> None:
    scene.says(5.0, "Loading safetensors checkpoint shards:  38% Completed | 9/24 [00:21<00:33,  2.25s/it]")
    scene.says(20.0, "Loading safetensors checkpoint shards:  38% Completed | 9/24 [00:21<00:33,  2.25s/it]")
    reads(scene, bytes_per_s=20_000)

    with pytest.raises(LaunchError) as caught:
        scene.launch(timeout_s=60)

    assert scene.clock.now == pytest.approx(65.0, abs=1)
    assert str(caught.value).splitlines()[0] == (
        "base: waited for the server to be ready until nothing showed progress for 60 s (--specdec-startup-timeout); "
        "last phase imports at step 9 of 24, last byte of its log 45 s ago, last progress 60 s ago, seen 0 s ago: "
        "no compiler, 0.2 MiB read, 0.0 MiB more resident; over HTTP it said nothing"
    )


def test_a_trickle_does_not_add_up_while_the_log_goes_on(scene: Scene) -> None:
    reads(scene, bytes_per_s=20_000)
    scene.says(11.0, "a line after the first look")
    scene.says(400.0, "a line long after it")
    for second in range(12, 400, 5):
        scene.says(second, f"shard {second}")

    with pytest.raises(LaunchError, match="nothing showed progress for 30 s"):
        scene.launch(timeout_s=30)

    assert scene.clock.now == pytest.approx(430.0, abs=1)


def test_nothing_is_asked_of_the_host_while_the_log_goes_on(scene: Scene) -> None:
    for second in range(5, 100, 5):
        scene.says(second, f"shard {second}")
    scene.says(100.0, READY)

    scene.launch()

    assert scene.host.commands == []


@pytest.mark.parametrize(("cost_s", "reads"), [(0.0, (98, 102)), (0.1, (30, 36)), (1.0, (7, 9))])
def test_a_log_that_is_dear_to_read_is_read_less_often(scene: Scene, cost_s: float, reads: tuple[int, int]) -> None:
    host, times = scene.host, []

    class SlowHost(FakeHost):
        def read_from(self, path: Path, offset: int) -> bytes:
            times.append(scene.clock.now)
            scene.clock.now += cost_s
            return host.read_from(path, offset)

    scene.host = SlowHost(process=scene.process)
    scene.clock.at(10.0 + cost_s, lambda: host.write(LOG, READY))

    scene.launch()

    assert reads[0] <= len([moment for moment in times if moment <= 10.0]) <= reads[1]


def test_a_launch_tells_how_far_it_is_and_where_its_time_went(scene: Scene) -> None:
    scene.says(2.0, "Load weight begin. avail mem=79.00 GB")
    scene.says(3.0, "Loading safetensors checkpoint shards:  38% Completed | 9/24 [00:21<00:33,  2.25s/it]")
    scene.says(5.0, "Load weight end.", "Load weight begin.")
    scene.says(6.0, "Capture target decode CUDA graph begin.", READY)

    server = scene.launch(expected_s=40.0)

    assert {phase: round(seconds, 1) for phase, seconds in server.phase_s.items()} == {
        "imports": 2.0,
        "weights": 4.0,
        "ready": 0.0,
    }
    assert sum(server.phase_s.values()) == pytest.approx(server.ready_s)
    assert any(
        line.startswith("base: weights 9/24 after 3.")
        and line.endswith("; expected 40 s, as its last launch here took")
        for line in (shown.line for shown in scene.progress)
    )
    assert len(scene.progress) <= 2 * 6 + 4


def test_progress_bars_keep_a_launch_alive_up_to_the_limit(scene: Scene) -> None:
    for step in range(1, 30):
        scene.says(step * 50.0, f"shards: {step}/30")

    with pytest.raises(LaunchError, match=r"until 1000 s have passed \(--specdec-startup-limit\); last phase imports"):
        scene.launch(timeout_s=60, limit_s=1000)


def test_a_server_info_that_fails_is_asked_again_and_told_at_the_end(scene: Scene) -> None:
    scene.client.info_error = "GET http://fakehost:20001/server_info: HTTP 500: no"
    scene.says(1.0, READY)

    with pytest.raises(LaunchError, match=r"over HTTP it said GET .*/server_info: HTTP 500: no"):
        scene.launch(timeout_s=20)

    assert scene.client.asked.count("server_info") > 10


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_between_start_and_readiness_ends_the_group(scene: Scene, error: type[BaseException]) -> None:
    def interrupt() -> None:
        raise error

    scene.clock.at(2.0, interrupt)

    with pytest.raises(error):
        scene.launch()

    assert scene.process.signals == [signal.SIGTERM]
    assert scene.process.forgotten


def test_a_container_with_a_network_of_its_own_is_refused_before_anything_starts(scene: Scene) -> None:
    spec = ServerSpec.from_command(
        "boxed", "docker run --gpus all image python -m sglang.launch_server --model-path /m"
    )

    with pytest.raises(LaunchError, match="add --network=host to `docker run`"):
        scene.launch(spec)

    assert scene.host.spawned == []


@pytest.mark.parametrize("words", ["--network=host", "--network host", "--net=host"])
def test_a_container_on_the_host_s_network_is_launched(scene: Scene, words: str) -> None:
    scene.client.model = "/m"
    scene.says(1.0, READY)
    line = f"docker run {words} image python -m sglang.launch_server --model-path /m"

    scene.launch(ServerSpec.from_command("boxed", line))

    assert scene.host.spawned[0][0][0] == "docker"


def ready(scene: Scene) -> RunningServer:
    scene.says(0.1, READY)
    return scene.launch()


def test_a_living_server_passes_the_check(scene: Scene) -> None:
    ready(scene).check_alive()


def test_a_server_that_died_while_serving_is_reported_with_its_last_words(scene: Scene) -> None:
    server = ready(scene)
    scene.host.write(
        LOG, "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
    )
    scene.dies(scene.clock.now + 5.0, -9)

    with pytest.raises(LaunchError) as caught:
        server.check_alive()

    assert str(caught.value).startswith("base: the server died while serving (exit code -9: killed; ")
    assert str(caught.value).endswith(
        "  | Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    )
    assert caught.value.exit_code == -9


def test_a_launcher_that_outlives_its_scheduler_counts_as_dead(scene: Scene) -> None:
    server = ready(scene)
    scene.host.write(LOG, "Rank 0 scheduler is dead. Please check if there are relevant logs.\n")

    with pytest.raises(LaunchError, match="the server died while serving") as caught:
        server.check_alive()

    assert caught.value.exit_code is None


def test_a_stopped_server_says_so(scene: Scene) -> None:
    server = ready(scene)
    server.stop()

    with pytest.raises(LaunchError, match="base: the server was stopped"):
        server.check_alive()


def test_stopping_twice_signals_once(scene: Scene) -> None:
    server = ready(scene)

    first, second = server.stop(), server.stop()

    assert first == second
    assert first.how == "term"
    assert scene.process.signals == [signal.SIGTERM]
    assert scene.process.forgotten


def test_a_group_that_ignores_sigterm_is_killed_after_fifteen_seconds() -> None:
    clock, process = FakeClock(), FakeProcess(fatal=[signal.SIGKILL], others=[77])

    report = stop_process(process, clock, what="base")

    assert process.signals == [signal.SIGTERM, signal.SIGKILL]
    assert report.how == "kill"
    assert report.seconds == pytest.approx(15.0, abs=0.2)


def test_a_scheduler_that_takes_its_time_is_waited_for() -> None:
    clock, process = FakeClock(), FakeProcess(fatal=[])

    def end() -> None:
        process.exit_code = 0

    clock.at(5.0, end)

    report = stop_process(process, clock, what="base")

    assert process.signals == [signal.SIGTERM]
    assert report.how == "term"
    assert report.seconds == pytest.approx(5.0, abs=0.2)


def test_survivors_of_sigkill_are_named() -> None:
    clock, process = FakeClock(), FakeProcess(fatal=[], others=[77])

    with pytest.raises(LaunchError, match="base: waited 10 s after SIGKILL for processes 4242, 77 to end"):
        stop_process(process, clock, what="base")

    assert clock.now == pytest.approx(25.0, abs=0.5)
    assert not process.forgotten


def test_a_group_that_is_gone_is_not_signalled() -> None:
    process = FakeProcess()
    process.exit_code = 1

    assert stop_process(process, FakeClock(), what="base").how == "already-dead"
    assert process.signals == []
    assert process.forgotten


def test_a_second_interrupt_while_stopping_kills_the_group() -> None:
    clock, process = FakeClock(), FakeProcess(fatal=[signal.SIGKILL])

    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.at(3.0, interrupt)

    with pytest.raises(KeyboardInterrupt):
        stop_process(process, clock, what="base")

    assert process.signals == [signal.SIGTERM, signal.SIGKILL]


def test_a_server_that_is_ready_and_out_of_reach_is_told_within_a_minute(scene: Scene) -> None:
    scene.client.info_error = "GET http://fakehost:20001/server_info: failed: connection closed"
    scene.says(5.0, READY)

    with pytest.raises(LaunchError) as caught:
        scene.launch()

    assert scene.clock.now < 70
    first = str(caught.value).splitlines()[0]
    assert first.startswith(
        "base: its log says that it is ready, and for 60 s nothing could be asked of it: GET http://"
    )
    assert "AllowTcpForwarding" in first


def test_a_launch_that_failed_and_cannot_be_ended_keeps_its_reason(scene: Scene) -> None:
    scene.process.fatal = ()
    scene.says(1.0, "Traceback (most recent call last):", "RuntimeError: no such kernel")

    with pytest.raises(LaunchError) as caught:
        scene.launch(timeout_s=20)

    told = str(caught.value)
    assert told.startswith("base: waited for the server to be ready until nothing showed progress for 20 s")
    assert "RuntimeError: no such kernel" in told
    assert "and it could not be ended: base: waited 10 s after SIGKILL for processes 4242 to end" in told
    assert scene.process.signals[:2] == [signal.SIGTERM, signal.SIGKILL]
