"""Launchers that start a container, read; and the life of client and container, on a fake host."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_specdec.containers import ContainerProcess, ContainerRun, find_run, notices, own_pids, refusal, start
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed
from pytest_specdec.stopping import stop_process
from tests.fakes.host import FakeClock, FakeHost, FakeProcess, told

ID = "f" * 64
LOG = Path("/logs/base.log")
ON_HOST = "--network=host"


def run_of(line: str) -> ContainerRun:
    run = find_run(shlex.split(line))
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("line", "control", "rest"),
    [
        ("docker run image", "docker", "image"),
        ("docker run --gpus all --shm-size 32g -e A=1 image numactl -N 0", "docker", "image numactl -N 0"),
        ("docker container run -it --rm image", "docker container", "image"),
        ("sudo -E docker --context gpu -H ssh://box run image", "sudo -E docker --context gpu -H ssh://box", "image"),
        ("docker --debug run image", "docker --debug", "image"),
        ("docker --host=tcp://box run image", "docker --host=tcp://box", "image"),
        ("/usr/bin/podman --remote run --replace --name x image", "/usr/bin/podman --remote", "image"),
        ("env A=1 nerdctl -n k8s run -v /a:/b image", "env A=1 nerdctl -n k8s", "image"),
        ("docker run --name run image run", "docker", "image run"),
        ("docker run -- image -d", "docker", "-- image -d"),
    ],
)
def test_a_run_is_found_and_read_back(line: str, control: str, rest: str) -> None:
    run = run_of(line)

    assert (run.control, run.rest) == (tuple(control.split()), tuple(rest.split()))
    assert run.words() == tuple(line.split())


@pytest.mark.parametrize(
    "line", ["", "numactl -N 0", "docker", "docker exec c", "docker compose run service", "uv run"]
)
def test_what_runs_no_container_by_itself_is_not_found(line: str) -> None:
    assert find_run(line.split()) is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("docker run --cidfile /a image", "/a"),
        ("docker run --cidfile=/a image", "/a"),
        ("docker run --cidfile /b --cidfile /a image", "/a"),
        ("docker run image --cidfile /a", None),
        ("docker run -e --cidfile image", None),
    ],
)
def test_an_option_s_value_is_found_before_the_image_only(line: str, value: str | None) -> None:
    assert run_of(line).value("cidfile") == value


def test_options_are_left_out_with_their_values_and_added() -> None:
    run = run_of("sudo docker run --name x -it --cidfile=/a --gpus all image sh")

    assert run.words(without=("name", "cidfile"), added=("--rm",)) == (
        *("sudo", "docker", "run", "--rm", "-it", "--gpus", "all", "image", "sh"),
    )


@pytest.mark.parametrize("words", ["-d", "--detach", "-itd", "-dit", "--detach=true", "-e A=1 -d"])
def test_a_client_that_would_not_wait_is_refused(words: str) -> None:
    message = refusal(f"docker run {ON_HOST} {words} image".split())

    assert message is not None
    assert message.startswith("`docker run` is told to detach (-d, --detach)")
    assert message.endswith("leave that out, the harness runs it in the background itself")


@pytest.mark.parametrize("words", ["-it", "--rm", "-e -d", "--detach=false", "-v /d:/d", "--name d", "-w/d", "--init"])
def test_other_options_are_not_taken_for_that(words: str) -> None:
    assert refusal(f"docker run {ON_HOST} {words} image".split()) is None
    assert refusal(f"docker run {ON_HOST} {words} image -d".split()) is None


@pytest.mark.parametrize("words", ["--network=host", "--network host", "--net=host", "--net bridge --net host"])
def test_a_container_on_the_host_s_network_is_accepted(words: str) -> None:
    assert refusal(f"docker run {words} image".split()) is None


@pytest.mark.parametrize("words", ["", "-p 30000:30000", "--network bridge", "image --network=host"])
def test_a_container_with_a_network_of_its_own_is_refused(words: str) -> None:
    message = refusal(f"podman run {words} image".split())

    assert message is not None
    assert "add --network=host to `podman run`" in message


@pytest.mark.parametrize("command", ["docker exec", "docker compose", "podman start"])
def test_what_can_t_be_ended_by_an_id_is_refused(command: str) -> None:
    message = refusal([*command.split(), "-it", "name"])

    assert message is not None
    assert message.startswith(f"`{command}` stands in front of the server")
    assert message.endswith(f"start the server with `{command.split(maxsplit=1)[0]} run`")


@pytest.mark.parametrize("line", ["", "numactl -N 0", "srun -n 1", "uv run --with x"])
def test_other_launchers_are_accepted(line: str) -> None:
    assert refusal(line.split()) is None


def test_an_id_file_of_the_user_s_is_replaced_with_a_notice() -> None:
    (notice,) = notices(["docker", "run", "--cidfile", "/a", "image"])

    assert notice.startswith("--cidfile /a of the launcher is not used")
    assert notices(["docker", "run", "image"]) == notices(["numactl"]) == []


class Engine:
    """A docker with one container, on a fake host."""

    def __init__(self, *, process: FakeProcess | None = None) -> None:
        self.host = FakeHost(process=process)
        self.host.answers["docker"] = self.answer
        self.host.answers["rm"] = told()
        self.running = True
        self.fatal: tuple[int, ...] = (signal.SIGTERM, signal.SIGKILL)
        self.refuses: str | None = None

    def answer(self, argv: Sequence[str]) -> Completed:
        if self.refuses is not None:
            return told(stderr=f"{self.refuses}\n", returncode=1)
        if argv[1] == "kill" and int(argv[3]) in self.fatal:
            self.running = False
        if argv[1] == "ps":
            return told(f"{ID}\n" if self.running else "")
        return told("PID\n71\n72\n" if argv[1] == "top" else "")

    def start(self, launcher: str = "docker run image", *, writes_id: bool = True) -> ContainerProcess:
        words = launcher.split()
        process = start(self.host, [*words, "python"], launcher=len(words), env={"A": "1"}, cwd="/d", log_path=LOG)
        assert isinstance(process, ContainerProcess)
        if writes_id:
            self.host.write(self.id_path, ID)
        return process

    @property
    def id_path(self) -> Path:
        ((argv, _, _),) = self.host.spawned
        return Path(argv[argv.index("--cidfile") + 1])


def test_a_launcher_without_a_container_is_started_as_it_is() -> None:
    host = FakeHost()

    process = start(host, ["numactl", "python"], launcher=1, env={"A": "1"}, cwd="/d", log_path=LOG)

    assert process is host.process
    assert host.spawned == [(("numactl", "python"), {"A": "1"}, "/d")]
    assert host.at_end == ()


def test_a_client_writes_the_id_to_a_new_file_beside_the_log() -> None:
    first, second = Engine(), Engine()
    first.start("docker run --cidfile /mine --gpus all image")
    second.start()

    ((argv, env, cwd),) = first.host.spawned
    assert argv == ("docker", "run", "--cidfile", str(first.id_path), "--gpus", "all", "image", "python")
    assert (env, cwd) == ({"A": "1"}, "/d")
    assert first.id_path.parent == LOG.parent
    assert first.id_path != second.id_path


def test_the_end_without_us_is_given_along() -> None:
    engine = Engine()
    engine.start("sudo docker run image")

    assert engine.host.at_end[:2] == ("sh", "-c")
    assert engine.host.at_end[3:] == ("sh", str(engine.id_path), "sudo", "docker")


def test_a_client_that_passes_the_signal_on_ends_both() -> None:
    engine = Engine()
    process = engine.start()
    engine.running = False

    report = stop_process(process, FakeClock(), what="base")

    assert report.how == "term"
    assert engine.host.process.signals == [signal.SIGTERM]
    assert engine.host.process.forgotten
    assert engine.host.commands[-2:] == [("docker", "rm", "--force", ID), ("rm", "-f", "--", str(engine.id_path))]
    assert not any(words[1] == "kill" for words in engine.host.commands)


def test_a_container_that_outlives_a_killed_client_is_killed_by_its_id() -> None:
    engine = Engine(process=FakeProcess(fatal=(signal.SIGKILL,)))
    process = engine.start()

    assert stop_process(process, FakeClock(), what="base").how == "kill"
    assert ("docker", "kill", "--signal", "9", ID) in engine.host.commands


def test_a_client_that_is_gone_leaves_its_container_to_be_ended() -> None:
    engine = Engine()
    process = engine.start()
    engine.host.process.exit_code = -9

    assert process.members() == (71, 72)
    assert stop_process(process, FakeClock(), what="base").how == "term"
    assert ("docker", "kill", "--signal", "15", ID) in engine.host.commands
    assert process.members() == ()


def test_a_container_that_survives_is_named_by_its_processes() -> None:
    engine = Engine()
    engine.fatal = ()
    process = engine.start()

    with pytest.raises(Exception, match="processes 71, 72 to end"):
        stop_process(process, FakeClock(), what="base")


def test_a_client_that_ended_before_there_was_a_container_has_none() -> None:
    engine = Engine()
    process = engine.start(writes_id=False)
    engine.host.process.exit_code = 125

    assert stop_process(process, FakeClock(), what="base").how == "already-dead"
    assert engine.host.commands == [("rm", "-f", "--", str(engine.id_path))]


def test_an_engine_that_does_not_answer_is_no_proof_of_an_end() -> None:
    engine = Engine()
    process = engine.start()
    engine.host.process.exit_code = -9
    engine.refuses = "Cannot connect to the Docker daemon"

    with pytest.raises(HostError) as caught:
        process.members()

    assert str(caught.value) == (
        "fakehost: whether container ffffffffffff still runs can't be told: `docker ps` ended with exit code 1 and "
        "said: Cannot connect to the Docker daemon"
    )


def test_podman_is_asked_for_ids_of_the_host() -> None:
    engine = Engine()
    engine.host.answers["podman"] = told("HPID\n81\n")
    process = engine.start("podman run image")

    assert process.container_pids() == (81,)
    assert engine.host.commands == [("podman", "top", ID, "hpid")]


def test_what_a_server_consists_of_includes_its_container() -> None:
    engine = Engine()

    assert own_pids(engine.start()) == {FakeProcess.pid, 71, 72}
    assert own_pids(FakeProcess(others=(7,))) == {FakeProcess.pid, 7}
