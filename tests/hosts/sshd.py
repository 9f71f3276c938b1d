"""A real sshd on 127.0.0.1, with keys of its own; nothing of the user's configuration is read or changed."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pytest_specdec.hosts import LocalHost

WAIT_S = 10.0
ALIAS = "gpu-box"
#: Not on everybody's PATH.
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
NEEDED = "these tests need sshd and ssh: install them with `apt-get install openssh-server openssh-client`"


@dataclass(slots=True, kw_only=True)
class Sshd:
    """One server, and what a client needs to get in: ``ssh -F config gpu-box``."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def options(self) -> tuple[str, ...]:
        """What ``ssh`` needs to find it."""
        return ("-F", str(self.directory / "config"))

    @property
    def log(self) -> str:
        """What the server said."""
        return (self.directory / "sshd.log").read_text(errors="replace")

    def start(self) -> None:
        """Listen."""
        assert SSHD is not None, NEEDED
        with (self.directory / "sshd.log").open("ab") as log:
            words = [SSHD, "-D", "-e", "-f", str(self.directory / "sshd_config")]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + WAIT_S
        while True:
            assert self.process.poll() is None, f"sshd did not start: {self.log}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, f"sshd does not listen: {self.log}"
            time.sleep(0.02)

    def drop_connections(self) -> None:
        """Cut every connection off, as a network that fails does."""
        assert self.process is not None
        # An sshd that lets go of its root rights has a second process for each connection.
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    process.kill()

    def stop(self) -> None:
        """End it with its connections."""
        if self.process is not None:
            # Its connections would go on without it; what they run belongs to the tests.
            self.drop_connections()
            self.process.terminate()
            self.process.wait(WAIT_S)
            self.process = None


def make_sshd(directory: Path, *settings: str) -> Sshd:
    """Make keys and configurations for a server that is not started yet; ``settings`` are lines of sshd_config."""
    assert SSHD is not None, NEEDED
    assert shutil.which("ssh-keygen") is not None, NEEDED
    directory.mkdir(parents=True)
    if os.getuid() == 0:
        # Debian's sshd makes it when it is started as a service.
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(directory / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=WAIT_S)
    port = LocalHost().free_port()
    (directory / "authorized_keys").write_text((directory / "user_key.pub").read_text())
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {(directory / 'host_key.pub').read_text()}")
    lines = [
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {directory / 'host_key'}",
        f"AuthorizedKeysFile {directory / 'authorized_keys'}",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        *settings,
    ]
    (directory / "sshd_config").write_text("\n".join(lines) + "\n")
    write_config(directory, port)
    return Sshd(directory=directory, port=port)


def write_config(directory: Path, port: int, **changed: str) -> None:
    """Write the client's configuration."""
    settings = {
        "HostName": "127.0.0.1",
        "Port": str(port),
        "User": getpass.getuser(),
        "IdentityFile": str(directory / "user_key"),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": str(directory / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        **changed,
    }
    lines = [f"Host {ALIAS}", *(f"    {key} {value}" for key, value in settings.items())]
    (directory / "config").write_text("\n".join(lines) + "\n")


def noisy_settings(directory: Path) -> tuple[str, ...]:
    """A banner before the login, and start-up files that print, without a line break at the end, on both outputs."""
    directory.mkdir(parents=True)
    (directory / "banner").write_text("*** Welcome to the cluster! ***\nexit 3 {\n")
    script = directory / "noisy"
    script.write_text(
        '#!/bin/sh\nprintf \'Last login: never\\n{"specdec": 1, "pid": 1}\\n{"a\'\nprintf "no X11 forwarding" >&2\n'
        'eval "$SSH_ORIGINAL_COMMAND"\n'
    )
    script.chmod(0o755)
    return (f"Banner {directory / 'banner'}", f"ForceCommand exec {shlex.quote(str(script))}")
