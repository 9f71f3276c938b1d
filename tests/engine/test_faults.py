"""What a user is told when something breaks, on real SGLang, and how soon.

Each test is a row of the table in ``docs/faults.md``, under its own name; ``benchmarks/faults.py`` writes the rows.
Bounds on seconds are wide: they tell prompt from a time-out, on a machine that has other work.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from pytest_specdec import ServerSpec, validity
from pytest_specdec.hosts import Process
from pytest_specdec.model import Measurement, Prompt, Workload
from pytest_specdec.server import RunningServer
from tests.engine.faults import (
    DETOKENIZER,
    OUTPUT_TOKENS,
    SCHEDULER,
    Engine,
    FaultyHost,
    HurriedClock,
    Reported,
    signalled,
)

#: The wide bounds, seconds: an import of SGLang takes ten, a launch up to forty, its own diagnostics five.
CHECK_S, LAUNCH_S, SOON_S = 120.0, 180.0, 40.0
LOADING = "Load weight begin"
DRAFTING = "--speculative-algorithm STANDALONE --speculative-num-steps 3 --speculative-eagle-topk 1"
BAD_FLAGS = ServerSpec.tiny(
    "bad-flags",
    "--no-such-flag --cuda-graph-max 4 --tp x --speculative-algorithm EAGLE9 --speculative-num-steps 3"
    " --speculative-draft-model-path tiny:target",
)


class Row(Protocol):
    def __call__(self, *, failure: str, injected: str, reported: Reported, sees: list[str], within_s: float) -> None:
        """Assert what was reported, and hand it to the table."""


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Row:
    def check(*, failure: str, injected: str, reported: Reported, sees: list[str], within_s: float) -> None:
        for text in sees:
            assert text in reported.text, reported.text
        assert "Traceback" not in reported.text
        assert reported.seconds < within_s, reported.text
        told = {"failure": failure, "injected": injected, "sees": sees, "seconds": round(reported.seconds, 1)}
        record_property("fault", json.dumps(told))

    return check


@pytest.fixture(scope="module")
def engine(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(engine_python, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def healthy(engine: Engine) -> Iterator[RunningServer]:
    """A server for what does not end it."""
    with engine.running(ServerSpec.tiny("healthy")) as running:
        yield running


# ---- before a launch: the preflight ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad_flags(engine: Engine) -> Reported:
    """One answer to all of them: the preflight tells every problem at once."""
    return engine.refused(BAD_FLAGS)


@pytest.mark.parametrize(
    ("failure", "injected", "said"),
    [
        pytest.param(
            "a flag that this SGLang does not have",
            "`--no-such-flag`",
            "unknown-flag: there is no --no-such-flag",
            id="unknown-flag",
        ),
        pytest.param(
            "a flag that is short for several",
            "`--cuda-graph-max 4`",
            "ambiguous-flag: --cuda-graph-max begins --cuda-graph-max-bs-decode",
            id="ambiguous-flag",
        ),
        pytest.param(
            "a value that the parser refuses",
            "`--tp x`",
            "bad-value: --tp-size is 'x': invalid int value: 'x'",
            id="bad-value",
        ),
        pytest.param(
            "an unknown drafting algorithm, which SGLang's parser lets pass",
            "`--speculative-algorithm EAGLE9`",
            "draft-flags: --speculative-algorithm is EAGLE9, which this SGLang does not have",
            id="unknown-algorithm",
        ),
    ],
)
def test_bad_flags_are_refused_before_anything_starts(
    bad_flags: Reported, row: Row, failure: str, injected: str, said: str
) -> None:
    sees = ["nothing was started", said]
    row(failure=failure, injected=injected, reported=bad_flags, sees=sees, within_s=CHECK_S)


def test_draft_flags_incomplete(engine: Engine, row: Row) -> None:
    spec = ServerSpec.tiny(
        "incomplete",
        "--speculative-algorithm STANDALONE --speculative-draft-model-path tiny:target --speculative-num-steps 3",
    )

    row(
        failure="drafting flags that come alone",
        injected="`--speculative-num-steps 3` without top-k and draft tokens",
        reported=engine.refused(spec),
        sees=["nothing was started", "draft-flags: --speculative-num-steps"],
        within_s=CHECK_S,
    )


def test_model_missing(engine: Engine, row: Row) -> None:
    row(
        failure="a model that is not there",
        injected="`--model-path /nowhere/model`",
        reported=engine.refused(ServerSpec.tiny("gone", "--model-path /nowhere/model")),
        sees=["nothing was started", "model-path: --model-path /nowhere/model is not there"],
        within_s=CHECK_S,
    )


def test_model_without_config(engine: Engine, row: Row) -> None:
    path = engine.model("no-config", lambda model: (model / "config.json").unlink())

    row(
        failure="a model's directory that is not complete",
        injected="no `config.json`",
        reported=engine.refused(ServerSpec.tiny("no-config", f"--model-path {path}")),
        sees=["nothing was started", "model-path: --model-path", "is a directory without a config.json"],
        within_s=CHECK_S,
    )


def test_draft_missing(engine: Engine, row: Row) -> None:
    flags = f"{DRAFTING} --speculative-num-draft-tokens 4 --speculative-draft-model-path /nowhere/draft"

    row(
        failure="a draft model that is not there",
        injected="`--speculative-draft-model-path /nowhere/draft`",
        reported=engine.refused(ServerSpec.tiny("no-draft", flags)),
        sees=["nothing was started", "draft-path: --speculative-draft-model-path /nowhere/draft is not there"],
        within_s=CHECK_S,
    )


# ---- while it loads -------------------------------------------------------------------------------------------------


def test_unknown_flag_past_the_preflight(engine: Engine, row: Row) -> None:
    row(
        failure="a bad flag that no preflight saw",
        injected="`--no-such-flag`, launched without a preflight",
        reported=engine.fails(ServerSpec.tiny("flag", "--no-such-flag")),
        sees=[
            "exit code 2: SGLang's parser refused the arguments",
            "diagnosis: flag-unrecognized [bad_flag]",
            "This version has no option --no-such-flag.",
        ],
        within_s=LAUNCH_S,
    )


def test_tokenizer_missing(engine: Engine, row: Row) -> None:
    def spoil(model: Path) -> None:
        for path in model.glob("tokenizer*"):
            path.unlink()

    path = engine.model("no-tokenizer", spoil)

    row(
        failure="a model without a tokenizer",
        injected="`tokenizer*` deleted from its directory",
        reported=engine.fails(ServerSpec.tiny("no-tokenizer", f"--model-path {path}")),
        sees=["diagnosis: tokenizer-cannot-load [tokenizer]", "The model's tokenizer can't be loaded"],
        within_s=LAUNCH_S,
    )


def test_weights_cut_off(engine: Engine, row: Row) -> None:
    path = engine.model("cut", lambda model: os.truncate(model / "model.safetensors", 100_000))

    row(
        failure="a download that was cut off",
        injected="`model.safetensors` cut to 100 kB",
        reported=engine.fails(ServerSpec.tiny("cut", f"--model-path {path}")),
        sees=["diagnosis: checkpoint-incomplete [model_not_found], in phase weights", "a download that was cut off"],
        within_s=LAUNCH_S,
    )


def test_draft_of_another_vocabulary(engine: Engine, row: Row) -> None:
    path = engine.model("other-vocabulary", vocab_size=256)
    flags = f"{DRAFTING} --speculative-num-draft-tokens 4 --speculative-draft-model-path {path}"

    row(
        failure="a draft that does not belong to the target",
        injected="a draft whose `config.json` says 256 tokens, not 512",
        reported=engine.fails(ServerSpec.tiny("mismatch", flags)),
        sees=["diagnosis: draft-does-not-fit [draft_mismatch], in phase draft_weights", "AssertionError"],
        within_s=LAUNCH_S,
    )


def test_no_memory_for_the_kv_cache(engine: Engine, row: Row) -> None:
    row(
        failure="no memory is left for the KV cache",
        injected="`--mem-fraction-static 0.001`",
        reported=engine.fails(ServerSpec.tiny("fraction", "--mem-fraction-static 0.001")),
        sees=[
            "diagnosis: kv-pool-needs-larger-fraction [oom_kv_pool], in phase kv_cache",
            "The weights leave no memory for the KV cache at --mem-fraction-static 0.001.",
            "Raise --mem-fraction-static above 0.",
        ],
        within_s=LAUNCH_S,
    )


def test_scheduler_killed_while_loading(engine: Engine, row: Row) -> None:
    host = FaultyHost(at=LOADING, inject=signalled(signal.SIGKILL, SCHEDULER))

    row(
        failure="a scheduler is killed while it loads, as the out-of-memory killer does",
        injected="`kill -9` of the scheduler as the weights begin",
        reported=engine.fails(ServerSpec.tiny("killed"), host=host),
        sees=["the server did not start: it died after", "[scheduler_died]", "dmesg -T | grep -i oom"],
        within_s=SOON_S,
    )


def test_hang_while_loading(engine: Engine, row: Row) -> None:
    clock = HurriedClock()

    def stop(process: Process) -> None:
        process.signal(signal.SIGSTOP)
        clock.hurry(600.0)

    row(
        failure="the server hangs while it loads",
        injected="SIGSTOP for all of it as the weights begin; the 600 s without progress pass in two",
        reported=engine.fails(ServerSpec.tiny("hang"), host=FaultyHost(at=LOADING, inject=stop), clock=clock),
        sees=[
            "waited for the server to be ready until nothing showed progress for 6",
            "(--specdec-startup-timeout); last phase ",
            "last byte of its log",
            "diagnosis: no-progress [hang]",
        ],
        within_s=SOON_S,
    )


def test_port_taken_while_loading(engine: Engine, row: Row) -> None:
    port = FaultyHost().free_port()
    with socket.socket() as other:

        def take(_process: Process) -> None:
            other.bind(("127.0.0.1", port))
            other.listen()

        row(
            failure="somebody takes the port while it loads",
            injected="bind and listen as the weights begin",
            reported=engine.fails(ServerSpec.tiny("port"), host=FaultyHost(at=LOADING, inject=take, port=port)),
            sees=["was taken while it loaded: ", "address already in use", "diagnosis: port-in-use [port_in_use]"],
            within_s=SOON_S,
        )


def test_another_server_on_the_port(engine: Engine, healthy: RunningServer, row: Row) -> None:
    spec = ServerSpec.tiny("second", f"--model-path {engine.model('second')}")

    row(
        failure="another server answers on the port",
        injected="a port on which another model is served",
        reported=engine.fails(spec, host=FaultyHost(port=healthy.port)),
        sees=["another server answers on port ", ": it serves ", "End it, or wait for another port"],
        within_s=SOON_S,
    )


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 kB."""
    path = tmp_path / "disk"
    path.mkdir()
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    mount = [*sudo, "mount", "-t", "tmpfs", "-o", "size=16k,mode=1777", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system of a known size needs the right to mount one")
    yield path
    subprocess.run([*sudo, "umount", str(path)], check=True)


def test_disk_full_for_the_log(engine: Engine, full_disk: Path, row: Row) -> None:
    row(
        failure="the disk is full, and the server dies of it",
        injected="a log on a file system of 16 kB",
        reported=engine.fails(ServerSpec.tiny("full"), log_path=full_disk / "full.log"),
        sees=["the log can't be written (No space left on device)", "--specdec-report=DIR"],
        within_s=LAUNCH_S,
    )


# ---- while it serves ------------------------------------------------------------------------------------------------


def test_prompt_too_long(engine: Engine, healthy: RunningServer, row: Row) -> None:
    prompt = Prompt(id="long", category="text", text="word " * 20_000)
    workload = Workload(name="long", prompts=(prompt,), content_hash="0" * 64)
    measurement = Measurement(spec=healthy.spec, workload=workload, output_tokens=OUTPUT_TOKENS)

    (done,), told = engine.measured(healthy, measurement=measurement, rounds=1)

    assert told is None
    (found,) = validity.violations(validity.Run(measurement=measurement, rounds=[done], drafting=False))
    row(
        failure="a prompt longer than the model's context",
        injected="40,002 tokens for a context of 8,192",
        reported=Reported(text=f"INVALID: {found.rule}: {found.reason}", seconds=done.wall_s),
        sees=["INVALID: request-error: 1 of 1 requests failed", "The input (40002 tokens) is longer than"],
        within_s=SOON_S,
    )


def test_hang_while_measuring(engine: Engine, healthy: RunningServer, row: Row) -> None:
    try:
        _, reported = engine.measured(healthy, lambda: healthy.process.signal(signal.SIGSTOP))
    finally:
        healthy.process.signal(signal.SIGCONT)

    assert reported is not None
    row(
        failure="the server hangs while it is measured",
        injected="SIGSTOP for all of it in the middle of an answer; a patience of 2 s instead of 120 s",
        reported=reported,
        sees=[
            "POST",
            "/flush_cache: no answer within 5 s",
            "requests of the round before had failed, the first, ",
            "no whole answer within 18 s",
            "  log:       ",
        ],
        within_s=2 * SOON_S,
    )


def test_log_cannot_grow_while_measuring(engine: Engine, healthy: RunningServer, row: Row) -> None:
    limit = healthy.log_path.stat().st_size
    launcher = psutil.Process(healthy.process.pid)
    for process in [launcher, *launcher.children(recursive=True)]:
        # From here on a write to the log fails: "File too large" where a full disk says "No space left on device".
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))
    try:
        ended, told = engine.measured(healthy)
    finally:
        for process in [launcher, *launcher.children(recursive=True)]:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))

    assert healthy.log_path.stat().st_size == limit
    assert told is None
    healthy.check_alive()
    errors = [sample.error for done in ended for sample in done.requests]
    row(
        failure="the disk is full for the log of a server that serves",
        injected="a file size limit at what the log has",
        reported=Reported(
            text=f"{len(ended)} rounds measured, errors: {errors.count(None) - len(errors)}", seconds=0.0
        ),
        sees=["2 rounds measured, errors: 0"],
        within_s=SOON_S,
    )


@pytest.mark.parametrize(
    ("failure", "injected", "number", "name", "sees"),
    [
        pytest.param(
            "a scheduler is killed while it is measured",
            "`kill -9` of the scheduler in the middle of an answer",
            signal.SIGKILL,
            SCHEDULER,
            ["the server died while serving", "diagnosis: scheduler-killed [scheduler_died], in phase serving"],
            id="scheduler-killed-while-measuring",
        ),
        pytest.param(
            "a scheduler crashes while it is measured",
            "SIGSEGV for the scheduler in the middle of an answer",
            signal.SIGSEGV,
            SCHEDULER,
            [
                "the server died while serving",
                "diagnosis: scheduler-crashed [scheduler_died], in phase serving",
                "Fatal Python error: Segmentation fault",
                "crashed with exit code -11",
            ],
            id="scheduler-segmentation-fault",
        ),
        pytest.param(
            "the launcher is killed while it is measured",
            "`kill -9` of the launcher in the middle of an answer",
            signal.SIGKILL,
            None,
            ["the server died while serving", "exit code -9: killed", "ended-without-a-word [unknown]"],
            id="launcher-killed-while-measuring",
        ),
        pytest.param(
            "the detokenizer is killed while it is measured; SGLang then hangs",
            "`kill -9` of the detokenizer in the middle of an answer",
            signal.SIGKILL,
            DETOKENIZER,
            [
                "a part of the server died while serving, and the rest had to be killed",
                "diagnosis: process-killed [scheduler_died], in phase serving",
                "The detokenizer process was killed (SIGKILL)",
            ],
            id="detokenizer-killed-while-measuring",
        ),
    ],
)
def test_a_process_ends_while_it_is_measured(
    engine: Engine, row: Row, failure: str, injected: str, number: int, name: str | None, sees: list[str]
) -> None:
    with engine.running(ServerSpec.tiny("dies")) as running:
        _, reported = engine.measured(running, lambda: signalled(number, name)(running.process))

    assert reported is not None
    row(failure=failure, injected=injected, reported=reported, sees=sees, within_s=SOON_S)
