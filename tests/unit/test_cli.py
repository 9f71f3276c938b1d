from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_specdec.cli import main

CASES = Path(__file__).parents[1] / "data" / "cases"
NO_ARCH = CASES / "26-flashinfer-no-arch-12.txt"


def test_json_holds_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["diagnose", str(NO_ARCH), "--json", "--exit-code", "137", "--sglang-version", "0.5.23"])

    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert list(told) == [
        "diagnosis", "category", "phase", "cause", "remedy", "evidence", "provisional", "versions", "exception",
        "exit_code", "exit_meaning", "notes",
    ]  # fmt: skip
    assert (told["diagnosis"], told["category"]) == ("flashinfer-no-arch-list", "unsupported_arch")
    assert (told["evidence"], told["exit_code"], told["provisional"]) == ([11, 13], 137, True)
    assert told["exception"] == "RuntimeError: No supported CUDA architectures found for major versions [12]."


def test_text_holds_cause_remedy_and_the_lines_of_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["diagnose", str(NO_ARCH)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[:3] == ["diagnosis: flashinfer-no-arch-list", "category:  unsupported_arch", "phase:     imports"]
    assert lines[3].startswith("cause:     FlashInfer compiles its kernels on the spot")
    assert lines[4].startswith("remedy:    Drop --enable-flashinfer-allreduce-fusion")
    assert lines[6].startswith(
        "sure:      provisional, no real log of it was seen in this version; it is known in SGLang >="
    )
    assert lines[-1] == "      13 | RuntimeError: No supported CUDA architectures found for major versions [12]."


def test_a_log_can_come_through_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NO_ARCH.read_bytes() + b"\xff\n")))

    assert main(["diagnose", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis"] == "flashinfer-no-arch-list"


def test_what_follows_a_signal_of_ours_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text("The server is fired up and ready to roll!\nRuntimeError: late\n", encoding="utf-8")

    main(["diagnose", str(log), "--json", "--exit-code", "-9", "--signalled-at-line", "1"])

    assert json.loads(capsys.readouterr().out)["category"] == "ok"


def test_a_log_that_is_not_there_is_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.log"

    assert main(["diagnose", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"pytest-specdec diagnose: {path}: can't be read: No such file or directory; give a log's path, or - for "
        "standard input\n"
    )


@pytest.mark.parametrize(("arguments", "told"), [([], "COMMAND"), (["diagnos"], "invalid choice: 'diagnos'")])
def test_a_command_has_to_be_named(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)

    assert exit_info.value.code == 2
    assert told in capsys.readouterr().err


def test_the_command_imports_neither_pytest_nor_anything_heavy() -> None:
    heavy = ["pytest", "_pytest", "torch", "requests", "jinja2", "psutil", "numpy"]
    code = (
        f"import sys; from pytest_specdec.cli import main; main(['diagnose', {str(NO_ARCH)!r}]); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
