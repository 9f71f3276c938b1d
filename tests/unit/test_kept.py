"""Records of kept servers, and what makes a kept server another one than a launch would give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import find_kept, kept
from pytest_specdec.kept import Identity, KeptServer

ENVIRONMENT = {"PATH": "/bin", "HF_TOKEN": "hf_secret", "TERM": "xterm", "SSH_TTY": "/dev/pts/1", "NCCL_ALGO": "Ring"}


def identity(**changed: Any) -> Identity:
    known: dict[str, Any] = {
        "spec_name": "kimi",
        "spec_hash": "a" * 64,
        "sglang_version": "0.5.23",
        "python": "/opt/python",
        "environment": ENVIRONMENT,
    }
    return Identity(**{**known, **changed})


def server() -> KeptServer:
    """What a supervisor makes of the record of a launch."""
    record = kept.record_of(identity(), port=20_001, log_path="/logs/k.log", started_unix_s=1000.0)
    own = {"token": "0123456789abcdef", "directory": "/tmp/x", "state": "kept", "pid": 7, "until_unix_s": 4000.0}
    return KeptServer.from_record(json.loads(json.dumps({**record, **own})), now=3000.0)


def test_a_record_tells_its_age_and_what_is_left_of_its_lease() -> None:
    found = server()

    assert (found.id, found.up_s, found.left_s) == ("01234567", 2000.0, 1000.0)


def test_the_same_launch_has_no_differences() -> None:
    assert server().differences(identity()) == []


@pytest.mark.parametrize("name", ["TERM", "SSH_TTY", "PWD", "COLUMNS", "GITHUB_RUN_ID", "XDG_SESSION_ID"])
def test_the_terminal_and_the_job_make_no_difference(name: str) -> None:
    assert server().differences(identity(environment={**ENVIRONMENT, name: "another"})) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"spec_name": "other", "spec_hash": "b" * 64}, "it serves kimi"),
        ({"spec_hash": "b" * 64}, "its spec had another content"),
        ({"sglang_version": "0.5.24"}, "it runs SGLang 0.5.23, a launch would have 0.5.24"),
        ({"python": "/usr/bin/python"}, "it runs the Python /opt/python, a launch would have /usr/bin/python"),
        ({"environment": {**ENVIRONMENT, "NCCL_ALGO": "Tree"}}, "in the environment NCCL_ALGO has another value"),
        ({"environment": {**ENVIRONMENT, "FOO": ""}}, "in the environment FOO is new"),
        (
            {"environment": {"PATH": "/bin", "HF_TOKEN": "hf_new"}},
            "in the environment HF_TOKEN has another value, NCCL_ALGO is gone",
        ),
    ],
)
def test_what_differs_is_named(changed: dict[str, Any], told: str) -> None:
    assert server().differences(identity(**changed)) == [told]


def test_values_of_the_environment_are_kept_nowhere() -> None:
    first, second = (kept.record_of(identity()) for _ in range(2))

    assert not any(value in json.dumps(first) for value in ("hf_secret", "Ring", "/bin"))
    assert "TERM" not in first["environment"]
    assert first["environment"] != second["environment"], "salted: equal values of two records can't be told"


def test_records_of_what_is_gone_are_removed_and_strange_files_left(tmp_path: Path) -> None:
    gone = {"boot_id": "b", "pid": 2**22 + 1, "pid_started": 1, "supervisor": 2**22 + 2, "supervisor_started": 1}
    (tmp_path / "gone.json").write_text(json.dumps(gone))
    (tmp_path / "half.json").write_text('{"boot')
    (tmp_path / "other.json").write_text("{}")

    assert find_kept.look(str(tmp_path), "b") == []

    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.json", "other.json"]


def test_a_number_that_another_process_has_by_now_is_not_believed(tmp_path: Path) -> None:
    own = {"pid": 1, "pid_started": -1, "supervisor": 1, "supervisor_started": -1, "boot_id": "b"}
    (tmp_path / "t.json").write_text(json.dumps(own))

    assert find_kept.look(str(tmp_path), "b") == []
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_directory_nothing_is_kept(tmp_path: Path) -> None:
    assert find_kept.look(str(tmp_path / "none"), "b") == []
