"""A server in a container: ``docker run`` in its launcher, and the container that this starts.

The client is a process like any other, the container is not: it is the child of a daemon. A client passes SIGTERM
on, and SIGKILL of it ends nothing. So the client writes the container's id to a file, and the container is ended by
that id: never by a name, which may be another's.
"""

from __future__ import annotations

import itertools
import posixpath
import secrets
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed, Host, Process

ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
_TIMEOUT_S: Final = 60.0
#: Options of ``run`` that take no value, by letter and by name; every other one takes the next word.
_LETTERS: Final = {"d": "detach", "i": "interactive", "t": "tty", "P": "publish-all", "q": "quiet"}
_SWITCHES: Final = frozenset(
    {*_LETTERS.values(), "disable-content-trust", "env-host", "help", "http-proxy", "init", "no-healthcheck"}
    | {"no-hostname", "no-hosts", "oom-kill-disable", "passwd", "privileged", "read-only", "read-only-tmpfs"}
    | {"replace", "rm", "rmi", "rootfs", "sig-proxy", "tls-verify", "unsetenv-all", "use-api-socket"}
)
#: Options of the engine itself that take no value.
_ENGINE_SWITCHES: Final = frozenset(
    {"-D", "--debug", "--debug-full", "--help", "--insecure-registry", "--noout", "-r", "--remote", "--syslog"}
    | {"--tls", "--tlsverify", "--trace"}
)
#: Ends a container whose id is in a file, and leaves neither: $1 the file, the rest the engine's command.
_END: Final = """
file=$1; shift
id=$(cat "$file" 2>/dev/null)
if [ -n "$id" ]; then "$@" kill "$id"; "$@" rm -f "$id"; fi >/dev/null 2>&1
rm -f -- "$file"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOption:
    """An option of ``run``; ``names`` are several for letters behind one dash, ``value`` None for a switch."""

    names: frozenset[str]
    value: str | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """A launcher that starts a container: ``control`` (``sudo docker``), ``run``, options, image and what follows."""

    control: tuple[str, ...]
    options: tuple[RunOption, ...]
    rest: tuple[str, ...]

    def value(self, *names: str) -> str | None:
        """Return the value of the last option of these names; None without one, or for a switch."""
        return next((o.value for o in reversed(self.options) if o.names & set(names)), None)

    @property
    def is_detached(self) -> bool:
        """Whether the client returns at once, and the container goes on without it."""
        return any("detach" in o.names and o.value not in ("false", "0") for o in self.options)

    @property
    def shares_network(self) -> bool:
        """Whether a port of the container is a port of the host."""
        return self.value("network", "net") == "host"

    def words(self, *, without: Sequence[str] = (), added: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the launcher with some options left out, and others in their place."""
        kept = (word for o in self.options if not o.names & set(without) for word in o.words)
        return (*self.control, "run", *added, *kept, *self.rest)


def find_run(launcher: Sequence[str]) -> ContainerRun | None:
    """Find ``docker run`` (or podman's, or nerdctl's; ``docker container run`` too) among a launcher's words."""
    engine = _engine_at(launcher)
    if engine is None:
        return None
    at = _command_at(launcher, engine)
    if at is None or launcher[at] != "run":
        return None
    options = tuple(_options(launcher[at + 1 :]))
    start = at + 1 + sum(len(option.words) for option in options)
    return ContainerRun(control=tuple(launcher[:at]), options=options, rest=tuple(launcher[start:]))


def refusal(launcher: Sequence[str]) -> str | None:
    """Return why a server behind this launcher could not be watched, reached or ended; None for one that could."""
    engine = _engine_at(launcher)
    if engine is None:
        return None
    name = posixpath.basename(launcher[engine])
    run = find_run(launcher)
    if run is None:
        at = _command_at(launcher, engine)
        command = name if at is None else f"{name} {launcher[at]}"
        return (
            f"`{command}` stands in front of the server: what that starts could not be found by its id, nor ended "
            f"with certainty; start the server with `{name} run`"
        )
    if run.is_detached:
        return (
            f"`{name} run` is told to detach (-d, --detach): it would return at once, and neither the server's "
            "output nor its end would be seen; leave that out, the harness runs it in the background itself"
        )
    if not run.shares_network:
        return (
            "its container has a network of its own, where the port that is chosen for each launch can't "
            f"be reached; add --network=host to `{name} run`"
        )
    return None


def notices(launcher: Sequence[str]) -> list[str]:
    """Return what the harness does otherwise than the launcher says."""
    run = find_run(launcher)
    given = None if run is None else run.value("cidfile")
    if given is None:
        return []
    return [
        f"--cidfile {given} of the launcher is not used: each launch writes its container's id to a file of its own"
    ]


def _engine_at(launcher: Sequence[str]) -> int | None:
    return next((at for at, word in enumerate(launcher) if posixpath.basename(word) in ENGINES), None)


def _command_at(launcher: Sequence[str], engine: int) -> int | None:
    """Where the engine's command is, behind its own options and their values."""
    at = engine + 1
    while at < len(launcher):
        word = launcher[at]
        if word.startswith("-"):
            at += 1 if "=" in word or word in _ENGINE_SWITCHES else 2
        elif word == "container":
            at += 1
        else:
            return at
    return None


def _options(words: Sequence[str]) -> Iterator[RunOption]:
    """Read the options of ``run``, up to the image."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        option = _option(words[at], words[at + 1 : at + 2])
        yield option
        at += len(option.words)


def _option(word: str, following: Sequence[str]) -> RunOption:
    if word.startswith("--"):
        name, sign, rest = word[2:].partition("=")
        names, takes, value = {name}, name not in _SWITCHES, rest if sign else None
    else:
        switches = "".join(itertools.takewhile(_LETTERS.__contains__, word[1:]))
        rest = word[1 + len(switches) :]
        names, takes, value = {*map(_LETTERS.__getitem__, switches), *rest[:1]}, bool(rest), rest[1:] or None
    if takes and value is None and following:
        return RunOption(names=frozenset(names), value=following[0], words=(word, following[0]))
    return RunOption(names=frozenset(names), value=value, words=(word,))


def start(
    host: Host,
    argv: Sequence[str],
    *,
    launcher: int,
    env: Mapping[str, str],
    cwd: str | None,
    log_path: Path,
) -> Process:
    """Start a server on a host; the first ``launcher`` words of ``argv`` are what stands in front of its program.

    A server in a container ends with its container: by :func:`~pytest_specdec.stopping.stop_process`, or without
    this process. Raises :class:`HostError`.
    """
    run = find_run(argv[:launcher])
    if run is None:
        return host.spawn(argv, env=env, cwd=cwd, log_path=log_path)
    # Beside the log, on the host; the engine refuses a file that is there already.
    id_path = log_path.absolute().with_name(f"{log_path.stem}-{secrets.token_hex(4)}.cid")
    words = run.words(without=("cidfile",), added=("--cidfile", str(id_path)))
    inner = host.spawn(
        [*words, *argv[launcher:]],
        env=env,
        cwd=cwd,
        log_path=log_path,
        at_end=end_command(run.control, id_path),
    )
    return ContainerProcess(inner, host, run.control, env=env, id_path=id_path)


def end_command(control: Sequence[str], id_path: Path) -> list[str]:
    """Return the command that ends the container whose id is in a file, and leaves neither."""
    return ["sh", "-c", _END, "sh", str(id_path), *control]


class ContainerProcess:
    """A client with its container: a process group that is gone when both are."""

    def __init__(
        self, client: Process, host: Host, control: Sequence[str], *, env: Mapping[str, str], id_path: Path
    ) -> None:
        self._client = client
        self._host = host
        self._control = tuple(control)
        self._env = env
        self._id_path = id_path
        self._id: str | None = None
        self._gone = False

    @property
    def pid(self) -> int:
        """The client's process id."""
        return self._client.pid

    @property
    def client(self) -> Process:
        """The client by itself."""
        return self._client

    def as_json(self) -> dict[str, Any]:
        """Return what :func:`taken_over` needs to find the container again."""
        return {"control": list(self._control), "id_path": str(self._id_path)}

    @property
    def container_id(self) -> str | None:
        """The container's id; None while, or if, there is none."""
        if self._id is None:
            self._id = self._host.read_from(self._id_path, 0).decode(errors="replace").strip() or None
        return self._id

    def poll(self) -> int | None:
        """Return the client's exit code, which is the container's if that ended by itself; None while it runs."""
        return self._client.poll()

    def members(self) -> tuple[int, ...]:
        """Return the ids of what is left: the client's processes, and those of a container that outlives it.

        Raises :class:`HostError` when the engine can't be asked.
        """
        left = self._client.members()
        if left or self._gone:
            return left
        # A client that runs is seen as such a moment later.
        if self.poll() is not None and not self._runs():
            self._gone = True
        return () if self._gone else self.container_pids() or (self.pid,)

    def container_pids(self) -> tuple[int, ...]:
        """Return the ids, on the host, of the processes in the container; none when they can't be told."""
        if self.container_id is None:
            return ()
        # Podman would look from the inside, where ids are others.
        columns = ("hpid",) if posixpath.basename(self._control[-1]) == "podman" else ("-eo", "pid")
        done = self._ask("top", self.container_id, *columns)
        return tuple(int(line) for line in done.stdout.split() if line.isdecimal())

    def _runs(self) -> bool:
        if self.container_id is None:
            return False
        done = self._ask("ps", "--quiet", "--no-trunc", "--filter", f"id={self.container_id}")
        if done.returncode != 0:
            said = (done.stderr.strip() or "nothing").splitlines()[-1]
            raise HostError(
                f"{self._host.name}: whether container {self.container_id[:12]} still runs can't be told: "
                f"`{shlex.join(self._control)} ps` ended with exit code {done.returncode} and said: {said}"
            )
        return bool(done.stdout.strip())

    def _ask(self, *words: str) -> Completed:
        return self._host.run([*self._control, *words], env=self._env, timeout_s=_TIMEOUT_S)

    def signal(self, number: int) -> None:
        """Send a signal to what is left; the client passes it on to its container, unless it can't."""
        left = self._client.members()
        self._client.signal(number)
        if (not left or number == signal.SIGKILL) and not self._gone and self.container_id is not None:
            # In vain if the container has ended: whether it runs is asked, not concluded.
            self._ask("kill", "--signal", str(int(number)), self.container_id)

    def forget(self) -> None:
        """Remove the container, also one that keeps what it wrote, and the file with its id."""
        if self.container_id is not None:
            self._ask("rm", "--force", self.container_id)
        self._host.run(["rm", "-f", "--", str(self._id_path)], timeout_s=_TIMEOUT_S)
        self._client.forget()


def taken_over(client: Process, host: Host, described: Mapping[str, Any], *, env: Mapping[str, str]) -> Process:
    """Return a client that another session started with its container, as that session described it."""
    id_path = Path(described["id_path"])
    return ContainerProcess(client, host, described["control"], env=env, id_path=id_path)


def own_pids(process: Process) -> frozenset[int]:
    """Return the ids, on its host, of all that a server consists of: what it started, and its container's processes."""
    inside = process.container_pids() if isinstance(process, ContainerProcess) else ()
    return frozenset((*process.members(), *inside))
