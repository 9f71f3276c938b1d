from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.logwatch import Bar, LogWatch, clean, last_lines, message, telling_lines
from tests.fakes.host import FakeHost

LOGS = Path(__file__).parent.parent / "data" / "logs"
PACKAGES = ("/venv/lib/python3.11/site-packages/", "/venv/lib/python3.12/site-packages/")
LOG = Path("/logs/server.log")


def recorded(name: str) -> str:
    """A recorded log without the comment lines that say where it is from."""
    text = (LOGS / f"{name}.txt").read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# "))


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def watch(host: FakeHost) -> LogWatch:
    return LogWatch(host, LOG)


def test_a_log_that_is_not_there_yet_shows_no_progress(watch: LogWatch) -> None:
    assert not watch.poll()
    assert (watch.phase, watch.size, watch.text) == ("imports", 0, "")


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[2026-11-29 12:22:57] Load weight begin. avail mem=18.79 GB", "weights"),
        ("[2024-12-20 10:00:00 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=63.8 GB", "kv_cache"),
        ("[2024-12-20 10:00:00 TP0] Memory pool end. avail mem=8.38 GB", "kv_cache"),
        ("[2025-12-20 10:00:00 DP3 TP3 EP3] KV Cache is allocated. #tokens: 22095, K size: 5.23 GB", "kv_cache"),
        ("[2024-12-20 10:00:00 TP0] Capture cuda graph begin. This can take up to several minutes.", "graphs"),
        ("[2025-05-20 10:00:00] Capture draft extend cuda graph begin.", "graphs"),
        ("[2026-11-29 10:00:00.123] Capture target decode CUDA graph begin. backend=full, bs=[1, 2]", "graphs"),
        ("INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)", "http"),
        ("llm0-1  | [2026-11-29 12:22:57] The server is fired up and ready to roll!", "ready"),
    ],
)
def test_each_version_s_lines_tell_the_phase(host: FakeHost, watch: LogWatch, line: str, phase: str) -> None:
    host.write(LOG, line + "\n")

    assert watch.poll()
    assert watch.phase == phase
    assert watch.ready == (phase == "ready")


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (
            "Loading safetensors checkpoint shards:  38% Completed | 9/24 [00:21<00:33,  2.25s/it]",
            Bar(done=9, total=24),
        ),
        ("Loading pt checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  3.2it/s]", Bar(done=1, total=1)),
        ("Multi-thread loading shards:  50% Completed | 12/24 [00:05<00:05,  2.3it/s]", Bar(done=12, total=24)),
        ("Loading:   4%|4         | 1/24 [00:02<00:55,  2.42s/it]", Bar(done=1, total=24)),
        (
            "Capturing batches (bs=128 avail_mem=12.31 GB):   9%|▊         | 3/35 [00:01<00:12,  2.5it/s]",
            Bar(done=3, total=35),
        ),
        (
            "Capturing num tokens (num_tokens=64 avail_mem=5.2 GB): 100%|██████████| 58/58 [00:02<?, ?it/s]",
            Bar(done=58, total=58),
        ),
        ("  0%|          | 0/35 [00:00<?, ?it/s]", Bar(done=0, total=35)),
        ("token usage: 38% | #queue-req: 0, 9/24", None),
        ("http://host/9/24 [x", None),
    ],
)
def test_a_step_of_a_progress_bar_is_read(host: FakeHost, watch: LogWatch, line: str, bar: Bar | None) -> None:
    host.write(LOG, f"\r{line}")
    watch.poll()

    assert watch.bar == bar


def test_a_bar_ends_with_its_phase(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, "Load weight begin.\n 50%|#####     | 1/2 [00:00<?, ?it/s]\nLoad weight end.\n")
    watch.poll()

    assert watch.bar is None


def test_a_recorded_healthy_launch_ends_ready_and_not_dying(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, recorded("healthy-startup-and-decode"))
    watch.poll()

    assert watch.ready
    assert watch.dying is None
    assert watch.bind_error is None


def test_a_launch_that_hangs_is_left_in_the_phase_it_reached(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, recorded("hang-before-ready"))
    watch.poll()

    assert watch.phase == "imports"


def test_a_draft_model_takes_the_phase_back_to_weights(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, "Load weight begin.\nLoad weight end.\nKV Cache is allocated.\nLoad weight begin.\n")
    watch.poll()

    assert watch.phase == "weights"


def test_a_pattern_that_was_cut_in_two_by_reading_is_found(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, "[2026-11-29 12:22:57] The server is fired up and ")
    watch.poll()
    assert not watch.ready

    host.write(LOG, "ready to roll!")
    watch.poll()
    assert watch.ready


def test_a_character_and_a_colour_that_were_cut_in_two_are_whole_again(host: FakeHost, watch: LogWatch) -> None:
    data = "naïve \x1b[1;33mwarning\x1b[0m\n".encode()
    for at in range(len(data)):
        host.files[LOG] = data[: at + 1]
        watch.poll()

    assert watch.text == "naïve warning\n"


def test_bytes_that_are_no_text_are_replaced(host: FakeHost, watch: LogWatch) -> None:
    host.files[LOG] = b"before \xff after\n"
    watch.poll()

    assert watch.text == "before � after\n"


def test_a_progress_bar_shows_progress_without_a_line_s_end(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, "shards:  10% | 1/10\r")
    assert watch.poll()
    host.write(LOG, "shards:  20% | 2/10\r")
    assert watch.poll()


def test_a_line_that_only_repeats_itself_is_no_progress(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, "[2026-11-29 12:00:01 TP0] waiting for peers\n")
    assert watch.poll()
    host.write(LOG, "[2026-11-29 12:00:31 TP0] waiting for peers\n")
    assert not watch.poll()


def test_answers_to_our_own_requests_are_no_progress(host: FakeHost, watch: LogWatch) -> None:
    for port in (40001, 40002):
        host.write(
            LOG, f'[2026-11-29 12:00:01] INFO:     127.0.0.1:{port} - "GET /health HTTP/1.1" 503 Service Unavailable\n'
        )
        assert not watch.poll()


def test_a_taken_port_and_last_words_are_noticed_in_a_recorded_log(host: FakeHost, watch: LogWatch) -> None:
    host.write(LOG, recorded("port-in-use"))
    watch.poll()

    assert watch.bind_error == (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31996): address already in use"
    )
    assert (
        watch.dying == "Subprocess scheduler_0 (pid=4242) crashed with exit code -15. Triggering SIGQUIT for cleanup..."
    )


def test_a_prefix_holds_time_and_ranks_and_may_follow_another() -> None:
    assert message("[2026-04-15 22:13:40 DP3 TP3 EP3] hello") == "hello"
    assert message("[2026-04-15 22:13:40.123] hello [2]") == "hello [2]"
    assert message("(SGLangEngine pid=7) [2026-04-15 22:13:40 ATTN_CP0 TP3] hello") == "hello"
    assert message("[rank1]: hello") == "[rank1]: hello"


def test_cleaning_removes_colours_and_carriage_returns() -> None:
    assert clean("\x1b[1;33mold flag\x1b[0m\r\n10%\r20%\r\n") == "old flag\n10%\n20%\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "bad-flag-ambiguous",
            [
                (
                    "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match "
                    "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"
                ),
            ],
        ),
        ("bad-flag-unrecognized", ["sglang serve: error: unrecognized arguments: --enable-deepep-moe"]),
        (
            "bad-flag-unknown-algorithm",
            [
                'File "sglang/srt/speculative/spec_info.py", line 65, in from_string',
                'raise ValueError(f"Unknown speculative algorithm name: {name}")',
                "ValueError: Unknown speculative algorithm name: EAGLE9",
            ],
        ),
        (
            "spec-steps-without-topk",
            [
                'File "sglang/srt/arg_groups/speculative_hook.py", line 1274, in _handle_eagle_family',
                "cfg.speculative_eagle_topk > 1",
                "TypeError: '>' not supported between instances of 'NoneType' and 'int'",
            ],
        ),
        (
            "port-in-use",
            [
                (
                    "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31996): "
                    "address already in use"
                ),
            ],
        ),
        (
            "scheduler-killed-9",
            ["Subprocess scheduler_0 (pid=4242) crashed with exit code -9. Triggering SIGQUIT for cleanup..."],
        ),
        (
            "draft-missing-module",
            [
                'File "sglang/srt/layers/rotary_embedding/base.py", line 138, in __init__',
                "from vllm._custom_ops import rotary_embedding",
                "ModuleNotFoundError: No module named 'vllm'",
            ],
        ),
        (
            "flashinfer-no-arch-12",
            [
                'File "flashinfer/compilation_context.py", line 61, in get_nvcc_flags_list',
                "raise RuntimeError(",
                "RuntimeError: No supported CUDA architectures found for major versions [12].",
            ],
        ),
        (
            "draft-keyerror-eagle3",
            [
                'File "sglang/srt/models/qwen3.py", line 493, in load_weights',
                "param = params_dict[name]",
                "KeyError: 'midlayer.self_attn.qkv_proj.weight'",
            ],
        ),
        (
            "harness-shutdown-not-a-crash",
            ["Subprocess detokenizer (pid=4242) crashed with exit code -15. Triggering SIGQUIT for cleanup..."],
        ),
    ],
)
def test_the_telling_lines_of_a_recorded_log_are_the_cause_and_nothing_else(name: str, expected: list[str]) -> None:
    told = [line.replace(PACKAGES[0], "").replace(PACKAGES[1], "") for line in telling_lines(recorded(name))]

    assert told == expected


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("model-not-found", ["OSError: Repo id must be in the form 'repo_name'"]),
        ("sgl-kernel-not-loadable", ["ImportError:", "[sgl_kernel] CRITICAL: Could not load", "libcuda.so.1"]),
        ("mem-fraction-too-low-0523", ["ValueError: Loaded weights leave no GPU memory for the KV cache"]),
        ("oom-weight-load", ["self.load_model()", "torch.OutOfMemoryError: CUDA out of memory."]),
        ("cuda-graph-capture-oom", ["Exception: Capture cuda graph failed: CUDA out of memory.", "Possible solutions"]),
        ("nccl-watchdog-timeout", ["Watchdog caught collective operation timeout", "terminate called", "code -6"]),
        ("scheduler-is-dead-exit-9", ["Rank 0 scheduler is dead.", "Exit code: -9"]),
        ("scheduler-died-during-init", ["RuntimeError: Rank 3 scheduler died during initialization (exit code: -9)"]),
    ],
)
def test_the_telling_lines_hold_the_cause_in_order(name: str, parts: list[str]) -> None:
    told = "\n".join(telling_lines(recorded(name)))

    positions = [told.find(part) for part in parts]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert "Received sigquit" not in told
    assert "kill_process_tree" not in told


KINDS = Path(__file__).parents[1] / "data" / "cases" / "kinds"


def test_the_stacks_of_a_crash_in_machine_code_are_left_out() -> None:
    told = telling_lines((KINDS / "serving-segmentation-fault-1.txt").read_text(encoding="utf-8"))

    assert told == [
        "Fatal Python error: Segmentation fault",
        "Subprocess scheduler_0 (pid=32690) crashed with exit code -11. Triggering SIGQUIT for cleanup...",
    ]


def test_a_harmless_line_before_it_does_not_hide_a_traceback_that_says_whose_it_is() -> None:
    text = (
        "[2026-02-03 10:11:19] Ignore import error when loading sglang.srt.models.x: no module y\n"
        "[2026-02-03 10:11:19] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "model.py", line 9, in load\n'
        "KeyError: 'a'\n"
    )

    assert telling_lines(text) == ['File "model.py", line 9, in load', "KeyError: 'a'"]


def test_the_first_cause_wins_over_consequences_in_other_ranks() -> None:
    text = (
        "[2026-02-03 10:11:19 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "gloo.py", line 3, in send\n'
        "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:1\n\n"
        "[2026-02-03 10:11:19] Received sigquit from a child process. It usually means the child failed.\n"
        "[2026-02-03 10:11:20 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "model.py", line 9, in load\n'
        "    weights[name]\n"
        "KeyError: 'a'\n\n"
        "[2026-02-03 10:11:21 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "model.py", line 9, in load\n'
        "KeyError: 'b'\n"
    )

    assert telling_lines(text) == ['File "model.py", line 9, in load', "weights[name]", "KeyError: 'a'"]


def test_a_chain_shows_the_first_frame_and_every_message() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "hub.py", line 1, in get\n'
        "requests.exceptions.HTTPError: 401 Client Error\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "config.py", line 2, in load\n'
        "OSError: org/model is not a local folder\n"
    )

    assert telling_lines(text) == [
        'File "hub.py", line 1, in get',
        "requests.exceptions.HTTPError: 401 Client Error",
        "OSError: org/model is not a local folder",
    ]


def test_tracebacks_of_healthy_logs_are_passed_over() -> None:
    text = (
        "[2026-02-03 10:11:19] Ignore import error when loading sglang.srt.models.foo: No module named 'bar'\n"
        "[2026-02-03 10:11:19] post-warmup freeze_gc failed\n"
        "Traceback (most recent call last):\n"
        '  File "gc.py", line 1, in freeze\n'
        "TimeoutError: late\n"
        "the last line\n"
    )

    assert telling_lines(text) == last_lines(text)


def test_without_a_telling_line_the_last_ones_are_given() -> None:
    text = "".join(f"line {number}\n\n" for number in range(20))

    assert telling_lines(text) == [f"line {number}" for number in range(12, 20)]


def test_a_very_long_line_is_cut_and_the_number_of_lines_is_limited() -> None:
    assert last_lines("x" * 600) == ["x" * 500 + " ..."]
    text = "".join(f"Subprocess scheduler_{n} crashed with exit code -9\n" for n in range(30))
    assert len(telling_lines(text)) == 20
