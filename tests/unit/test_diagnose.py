from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.catalogue import CATEGORIES, PHASES, RANKS, Rule, rule, rules
from pytest_specdec.diagnose import _known_in, diagnose, exit_meaning, explain

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests" / "data" / "cases").glob("*.txt"))
KINDS = sorted((ROOT / "tests" / "data" / "cases" / "kinds").glob("*.txt"))

SRT = "/venv/lib/python3.12/site-packages/sglang/srt"
SIGQUIT = "[2026-02-03 10:11:20] Received sigquit from a child process. It usually means the child failed.\n"


def scheduler(
    exception: str, *frames: str, ranks: str = " TP0", loop: bool = False, second: int = 19, quit_: bool = True
) -> str:
    """A scheduler's last words; frames are ``path.py:function`` below ``sglang/srt``, or absolute."""
    lines = [f"[2026-02-03 10:11:{second}{ranks}] Scheduler hit an exception: Traceback (most recent call last):"]
    outer = "scheduler.run_event_loop()" if loop else "scheduler = Scheduler(server_args, port_args, gpu_id)"
    lines += [f'  File "{SRT}/managers/scheduler.py", line 3086, in run_scheduler_process', f"    {outer}"]
    for frame in frames:
        path, _, function = frame.partition(":")
        lines += [f'  File "{path if path.startswith("/") else f"{SRT}/{path}"}", line 12, in {function or "f"}']
        lines += ["    call(something)"]
    return "\n".join(lines) + f"\n{exception}\n\n" + (SIGQUIT if quit_ else "")


def launcher(exception: str, *frames: str) -> str:
    """What the launcher itself raised, before any log line."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path, _, function = frame.partition(":")
        lines += [f'  File "{path if path.startswith("/") else f"{SRT}/{path}"}", line 12, in {function or "f"}']
        lines += ["    call(something)"]
    return "\n".join(lines) + f"\n{exception}\n"


BEGIN = "[2026-02-03 10:10:41{r}] Init torch distributed begin.\n"
WEIGHTS = BEGIN + "[2026-02-03 10:10:45{r}] Load weight begin. avail mem=94.10 GB\n"
LOADED = WEIGHTS + "[2026-02-03 10:10:55{r}] Load weight end. type=DeepseekV3ForCausalLM, avail mem=12.3 GB\n"
POOL = LOADED + "[2026-02-03 10:10:57{r}] Memory pool end. avail mem=8.38 GB\n"
DRAFT = POOL + "[2026-02-03 10:10:59{r}] Load weight begin. avail mem=8.38 GB\n"
GRAPHS = POOL + "[2026-02-03 10:11:02{r}] Capture cuda graph begin. This can take up to several minutes.\n"
HTTP = GRAPHS + "[2026-02-03 10:11:09] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)\n"
UP = HTTP + "[2026-02-03 10:11:12] The server is fired up and ready to roll!\n"
SERVED = UP + '[2026-02-03 10:11:14] INFO:     127.0.0.1:4242 - "POST /generate HTTP/1.1" 200 OK\n'


def at(phase: str, ranks: str = " TP0") -> str:
    return phase.replace("{r}", ranks)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 2 has 331.06 MiB free."
LOAD = ("model_executor/model_runner.py:load_model", "model_loader/loader.py:load_model")
PEER = "RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242"
OTHER_RANK = (
    "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is "
    "likely due to unexpected failures (e.g., OOM) or a slow node."
)
SIGTERM = (
    "[2026-02-03 10:12:17] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    "[2026-02-03 10:12:17] Subprocess detokenizer (pid=42) crashed with exit code -15. Triggering SIGQUIT...\n"
    "[2026-02-03 10:12:17] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
)
DECODE = (
    "[2026-02-03 10:20:2{n} TP0] Decode batch, #running-req: 1, #token: 353, token usage: 0.00, accept len: {length}, "
    "accept rate: 0.04, cuda graph: True, gen throughput (token/s): 41.20, #queue-req: 0\n"
)


def category_of(path: Path) -> str:
    found = re.search(r"^# category: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, path
    return found[1]


def test_the_cases_are_all_there() -> None:
    assert len(CASES) == 37
    assert {category_of(path) for path in CASES} <= set(CATEGORIES)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_gets_its_category(path: Path) -> None:
    found = diagnose(path.read_text(encoding="utf-8"))

    assert found.category == category_of(path)
    assert found.evidence
    assert not found.diagnosis.startswith("unknown")


@pytest.mark.parametrize("path", CASES + KINDS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "prefix",
    ["llm0-1  | ", "(SGLangEngine pid=4242) ", "\x1b[36m(SGLangEngine pid=4242, ip=10.0.0.1)\x1b[0m "],
)
def test_what_other_programs_put_before_every_line_changes_nothing(path: Path, prefix: str) -> None:
    text = path.read_text(encoding="utf-8")
    log = "".join(line if line.startswith("# ") else prefix + line for line in text.splitlines(keepends=True))

    bare, dressed = diagnose(text), diagnose(log)

    assert (dressed.diagnosis, dressed.category, dressed.evidence) == (bare.diagnosis, bare.category, bare.evidence)


@pytest.mark.parametrize("path", CASES + KINDS, ids=lambda path: path.stem)
def test_milliseconds_colours_windows_lines_and_longer_ranks_change_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    log = re.sub(r"(?m)^(\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", r"\1.123", text)
    log = re.sub(r"(?m)^(\[[^\]]*) TP(\d)\]", r"\1 DP0 PP0 ATTN_CP0 MOE_DP0 TP\2]", log)
    log = log.replace("Received sigquit", "\x1b[1;33mReceived sigquit\x1b[0m").replace("\n", "\r\n")

    bare, dressed = diagnose(text), diagnose(log)

    assert (dressed.diagnosis, dressed.category, dressed.evidence) == (bare.diagnosis, bare.category, bare.evidence)


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_kinds_of_which_there_is_no_case_get_theirs_too(path: Path) -> None:
    found = diagnose(path.read_text(encoding="utf-8"))

    assert found.category == category_of(path)
    assert found.diagnosis != "unknown-failure" or found.category == "unknown"


@pytest.mark.parametrize(
    ("case", "diagnosis"),
    [
        ("arch-not-registered", "model-architecture-unsupported"),
        ("draft-a-whole-model", "draft-class-is-no-head"),
        ("draft-path-not-there", "draft-not-found"),
        ("memory-pool-of-one-token", "kv-pool-too-small"),
        ("scheduler-killed-in-weights", "scheduler-died-during-init"),
        ("scheduler-segmentation-fault", "scheduler-crashed"),
        ("serving-detokenizer-killed", "process-killed"),
        ("serving-segmentation-fault-1", "scheduler-crashed"),
    ],
)
def test_what_a_real_engine_said_gets_its_name(case: str, diagnosis: str) -> None:
    text = (ROOT / "tests" / "data" / "cases" / "kinds" / f"{case}.txt").read_text(encoding="utf-8")

    assert diagnose(text).diagnosis == diagnosis


# ---- which of several exceptions is the cause ----------------------------------------------------------------------


def test_the_first_exception_by_time_is_the_cause_wherever_it_stands_in_the_file() -> None:
    lost = scheduler(PEER, "distributed/parallel_state.py:barrier", ranks=" TP1", second=20)
    log = at(WEIGHTS) + lost + scheduler("KeyError: 12", "x.py:f", ranks=" TP3", second=30)
    log += scheduler(OOM, *LOAD, ranks=" TP2", second=18)

    found = diagnose(log)

    assert (found.diagnosis, found.exception) == ("oom-weights", OOM)
    assert [log.split("\n")[number - 1] for number in found.evidence][-1] == OOM


@pytest.mark.parametrize("consequence", [PEER, OTHER_RANK, "EOFError"])
def test_a_consequence_is_not_the_cause_even_when_it_is_earlier(consequence: str) -> None:
    log = at(WEIGHTS) + scheduler(consequence, ranks=" TP1", second=10) + scheduler(OOM, *LOAD, ranks=" TP0")

    assert diagnose(log).diagnosis == "oom-weights"


def test_the_launchers_last_words_may_come_before_the_traceback() -> None:
    assert diagnose(at(WEIGHTS) + SIGQUIT + scheduler(OOM, *LOAD, quit_=False)).diagnosis == "oom-weights"


@pytest.mark.parametrize(
    ("consequence", "category"),
    [(PEER, "scheduler_died"), (OTHER_RANK, "unknown"), ("EOFError", "scheduler_died")],
)
def test_a_consequence_alone_is_said_to_be_one(consequence: str, category: str) -> None:
    found = diagnose(at(WEIGHTS) + scheduler(consequence))

    assert found.category == category
    assert "another" in found.cause or "left no exception" in found.cause


def test_ranks_that_write_into_each_others_tracebacks() -> None:
    head = "[2026-02-03 10:11:19{r}] Scheduler hit an exception: Traceback (most recent call last):\n"
    frame = f'  File "{SRT}/model_executor/model_runner.py", line 12, in load_model\n    self.model = get_model(\n'
    log = at(WEIGHTS) + head.format(r=" TP0") + frame + head.format(r=" TP1") + frame
    log += f"[2026-02-03 10:11:19 TP2] Load weight end. mem usage=1 GB\n{OOM}\n{OOM}\n" + SIGQUIT

    found = diagnose(log)

    assert (found.diagnosis, found.phase) == ("oom-weights", "weights")


def test_a_line_that_another_process_wrote_into() -> None:
    bar = "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]\r"
    log = at(WEIGHTS) + bar + bar + scheduler(OOM, *LOAD).replace(OOM + "\n\n", OOM)

    found = diagnose(log)

    line = log[: log.index(OOM)].count("\n") + 1
    assert (found.diagnosis, found.evidence) == ("oom-weights", (line - 2, line))


def test_every_line_may_carry_its_rank() -> None:
    trace = scheduler(OOM, *LOAD, quit_=False).split("hit an exception: ")[1].rstrip()
    log = at(WEIGHTS) + "".join(f"[rank2]: {line}\n" for line in trace.split("\n"))

    assert diagnose(log).diagnosis == "oom-weights"


def test_the_first_of_a_chain_is_named_and_all_of_it_is_read() -> None:
    chained = (
        "OSError: [Errno 5] broken\n\nThe above exception was the direct cause of the following exception:\n\n"
        f'Traceback (most recent call last):\n  File "{SRT}/x.py", line 1, in f\n'
        "OSError: Can't load tokenizer for 'x'."
    )

    found = diagnose(launcher(chained, "managers/tokenizer_manager.py:__init__"))

    assert (found.category, found.exception) == ("tokenizer", "OSError: [Errno 5] broken")


def test_one_log_of_two_launches_tells_of_the_last() -> None:
    launch = "[2026-02-03 10:30:00] server_args=ServerArgs(model_path='/models/x', tp_size=8)\n"

    assert diagnose(at(SERVED) + SIGTERM + launch + at(WEIGHTS) + scheduler(OOM, *LOAD)).diagnosis == "oom-weights"
    assert diagnose(launch + at(WEIGHTS) + scheduler(OOM, *LOAD) + launch + at(UP)).category == "ok"


# ---- what is healthy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", ["", SIGTERM, "KeyboardInterrupt\n", SIGTERM + scheduler("RuntimeError: late", loop=True)]
)
def test_a_server_that_came_up_is_ok_however_it_was_stopped(end: str) -> None:
    found = diagnose(at(SERVED) + end)

    assert (found.category, found.phase) == ("ok", "serving")
    assert found.evidence == (at(SERVED).count("\n") - 1,)


def test_a_healthy_log_is_never_a_failure_however_short_it_is_cut() -> None:
    lines = (ROOT / "tests" / "data" / "cases" / "14-healthy-startup-and-decode.txt").read_text("utf-8").splitlines()
    up = next(at for at, line in enumerate(lines) if '"POST /generate' in line)

    found = [diagnose("\n".join(lines[: length + 1])).category for length in range(len(lines))]

    assert found == ["hang"] * up + ["ok"] * (len(lines) - up)


@pytest.mark.parametrize("code", [-9, 137, 1])
def test_a_signal_of_ours_excuses_the_exit_and_what_follows(code: int) -> None:
    log = at(SERVED) + scheduler("RuntimeError: late", loop=True)
    line = at(SERVED).count("\n")

    assert diagnose(log, exit_code=code, signalled_at_line=line).category == "ok"
    assert diagnose(log, exit_code=code).category == "unknown"


@pytest.mark.parametrize(
    "noise",
    [
        "[2026-02-03 10:10:40] Ignore import error when loading sglang.srt.models.x: No module named 'y'\n",
        "[2026-02-03 10:10:40] post-warmup freeze_gc failed\n"
        + launcher("requests.exceptions.ConnectionError: refused", "entrypoints/http_server.py:_freeze_gc"),
        "[2026-02-03 10:10:40] Failed to get yes/no token IDs: 'NoneType' object has no attribute 'encode'\n",
        "[2026-02-03 10:10:40 TP0] Pyspy failed to dump PID 4242. Error: /bin/sh: 1: py-spy: not found\n",
        "[2026-02-03 10:10:40] Something was tried: " + launcher("ValueError: and did not work", "x.py:f"),
    ],
)
def test_what_healthy_servers_say_is_no_failure(noise: str) -> None:
    assert diagnose(at(GRAPHS) + noise + at(SERVED)[len(at(GRAPHS)) :]).category == "ok"
    assert diagnose(at(UP) + noise + at(SERVED)[len(at(UP)) :]).category == "ok"


def test_errors_of_requests_are_no_failure_of_the_server_unless_it_died() -> None:
    error = "[2026-02-03 10:12:00] ERROR:    Exception in ASGI application\n"
    gone = launcher("BrokenPipeError: [Errno 32] Broken pipe", "/usr/lib/python3.12/socketserver.py:write")

    assert diagnose(at(SERVED) + error + gone).category == "ok"
    assert diagnose(at(SERVED) + error, exit_code=1).diagnosis == "error-line"


def test_a_request_that_could_not_be_answered_is_no_failure_of_the_server() -> None:
    request = launcher(
        "ValueError: the request is too long", "/venv/lib/starlette/routing.py:app", "entrypoints/x.py:f"
    )
    refused = '[2026-02-03 10:11:20] INFO:     127.0.0.1:4 - "POST /generate HTTP/1.1" 400 Bad Request\n'

    assert diagnose(at(SERVED) + request + refused).category == "ok"


@pytest.mark.parametrize(
    ("lengths", "category"),
    [
        (("1.00", "1.02", "1.00"), "draft_mismatch_silent"),
        (("1.10", "1.00", "1.00", "1.00"), "draft_mismatch_silent"),
        (("1.00", "1.00"), "ok"),
        (("1.00", "2.17", "2.30"), "ok"),
        (("1.07", "1.06", "1.06"), "ok"),
    ],
)
def test_three_decode_lines_with_nothing_accepted_tell_of_a_draft_that_does_not_belong(
    lengths: tuple[str, ...], category: str
) -> None:
    log = at(SERVED) + "".join(DECODE.format(n=n, length=length) for n, length in enumerate(lengths))

    assert diagnose(log).category == category


#: As vLLM and older SGLang say it, and the two classes of 0.5.23.
@pytest.mark.parametrize("who", ["Custom allreduce", "CustomAllreduce", "CustomAllReduceV2"])
def test_a_warning_beside_is_noted(who: str) -> None:
    warning = (
        f"[2026-02-03 10:10:41 TP0] {who} is disabled because it's not supported on more than two PCIe-only GPUs.\n"
    )

    noted = diagnose(warning + at(UP))
    assert noted.notes[0].startswith("custom-all-reduce-unavailable, line 1: ")
    assert noted.warnings == ("custom-all-reduce-unavailable",)
    assert diagnose(warning + at(BEGIN)).category == "hang"
    assert diagnose(warning).category == "custom_all_reduce"


# ---- what is not known --------------------------------------------------------------------------------------------


def test_an_unknown_failure_is_said_to_be_unknown_with_all_there_is() -> None:
    log = at(WEIGHTS) + scheduler("flux.FluxError: the capacitor is empty", *LOAD)

    found = diagnose(log, exit_code=137)

    assert (found.diagnosis, found.category, found.phase) == ("unknown-failure", "unknown", "weights")
    assert found.exception == "flux.FluxError: the capacitor is empty"
    assert found.cause == (
        "It failed in phase weights, for a reason that is not known here; the first exception is: "
        "flux.FluxError: the capacitor is empty"
    )
    assert found.exit_meaning == (
        "exit code 137: killed; SGLang's launcher does that to itself after a child died, so it need not be the "
        "out-of-memory killer"
    )


def test_a_hang_tells_its_phase_and_its_last_line() -> None:
    found = diagnose(at(WEIGHTS))

    assert (found.category, found.phase, found.evidence) == ("hang", "weights", (2,))
    assert found.cause == (
        "The log ends without an error and before the server was ready: in phase weights, with its last line at "
        "2026-02-03 10:10:45."
    )


@pytest.mark.parametrize(("code", "category"), [(None, "hang"), (-15, "hang"), (-9, "unknown"), (1, "unknown")])
def test_a_process_that_ended_does_not_hang(code: int | None, category: str) -> None:
    assert diagnose(at(WEIGHTS), exit_code=code).category == category


def test_a_traceback_that_breaks_off_is_evidence_all_the_same() -> None:
    log = at(WEIGHTS) + scheduler("X", *LOAD, quit_=False).rpartition("X\n")[0]

    found = diagnose(log)

    assert (found.category, found.phase, found.exception) == ("unknown", "weights", None)
    assert "a traceback that breaks off" in found.cause


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (0, "exit code 0: it ended in order, or could not kill itself (process 1 of a container)"),
        (2, "exit code 2: SGLang's parser refused the arguments"),
        (-11, "exit code -11: ended by SIGSEGV"),
        (139, "exit code 139: ended by SIGSEGV"),
        (3, "exit code 3"),
    ],
)
def test_exit_codes_are_put_into_words(code: int, meaning: str) -> None:
    assert exit_meaning(code) == meaning


def test_a_childs_exit_code_is_told_from_the_launchers() -> None:
    log = at(SERVED) + "[2026-02-03 10:12:08] Subprocess scheduler_0 (pid=42) crashed with exit code -9. Triggering\n"

    alone, both = diagnose(log), diagnose(log, exit_code=137)

    assert (alone.exit_code, both.exit_code) == (-9, 137)
    assert alone.exit_meaning == "a child's exit code -9: killed (SIGKILL), as a rule by the out-of-memory killer"
    assert both.exit_meaning == f"{exit_meaning(137)}; {alone.exit_meaning}"


# ---- dead ends ----------------------------------------------------------------------------------------------------

EP = " TP0 EP0"


@pytest.mark.parametrize(
    ("log", "name", "category"),
    [
        (at(BEGIN) + scheduler("KeyError: 12", "distributed/device_communicators/torch_symm_mem.py:__init__"),
         "symm-mem-keyerror-12", "unsupported_arch"),
        (at(GRAPHS) + scheduler("RuntimeError: No supported CUDA architectures found for major versions [12].",
                                "/venv/flashinfer/compilation_context.py:get_nvcc_flags_list"),
         "flashinfer-no-arch-list", "unsupported_arch"),
        ("NCCL_ALGO set by environment to Tree\n" + at(GRAPHS)
         + scheduler("RuntimeError: NCCL error: invalid usage", "model_executor/cuda_graph_runner.py:capture"),
         "nccl-tree-cuda-graph", "nccl"),
        (launcher("AssertionError: Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend",
                  "server_args.py:_handle_a2a_moe"), "flashinfer-a2a-needs-cutlass", "moe_a2a"),
        (at(LOADED, EP) + scheduler("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
                                    ranks=EP), "oom-expert-parallel", "oom_kv_pool"),
        (at(WEIGHTS, EP) + scheduler(OOM, *LOAD, ranks=EP), "oom-expert-parallel", "oom_weight_load"),
        ("[2026-02-03 10:10:40] server_args=ServerArgs(tp_size=8, ep_size=8)\n" + at(GRAPHS) + scheduler(OOM),
         "oom-expert-parallel", "cuda_graph_capture"),
    ],
)  # fmt: skip
def test_dead_ends_of_the_first_node_have_names(log: str, name: str, category: str) -> None:
    found = diagnose(log)

    assert (found.diagnosis, found.category, found.provisional) == (name, category, True)
    assert found.versions
    assert name != "oom-expert-parallel" or "0.92" in found.remedy


def test_without_expert_parallelism_memory_has_other_names() -> None:
    args = "[2026-02-03 10:10:40] server_args=ServerArgs(tp_size=8, ep_size=1)\n"

    assert diagnose(args + at(WEIGHTS) + scheduler(OOM, *LOAD)).diagnosis == "oom-weights"


@pytest.mark.parametrize(
    ("version", "provisional"), [("0.5.12", False), ("0.5.23", True), (None, False), ("main-a1b2", False)]
)
def test_a_version_that_a_diagnosis_is_not_known_in_makes_it_provisional(
    version: str | None, provisional: bool
) -> None:
    entry = replace(rule("symm-mem-keyerror-12"), provisional=False)

    assert _known_in(entry.versions, version) is not provisional


def test_what_an_exception_tells_is_in_the_words() -> None:
    path = ROOT / "tests" / "data" / "cases" / "10-mem-fraction-too-low-0523.txt"

    assert diagnose(path.read_text(encoding="utf-8")).remedy.startswith("Raise --mem-fraction-static above 0.005; ")


def test_an_explanation_is_three_lines() -> None:
    entry = rule("symm-mem-keyerror-12")
    name = f"{entry.name} [{entry.category}]"

    assert explain(at(BEGIN) + scheduler("KeyError: 12", "torch_symm_mem.py:f"), 137) == [
        f"diagnosis: {name}, in phase distributed (provisional: no real log of it was seen yet)",
        f"cause:     {entry.cause}",
        f"remedy:    {entry.remedy}",
    ]
    assert explain(at(UP)) == []


def test_a_long_log_is_read_in_a_moment() -> None:
    requests = "[2026-02-03 10:55:31 TP4] self.cur_batch.reqs=[" + "Req(rid=a, input_ids=[1, 2]), " * 4000 + "]\n"
    decode = "".join(DECODE.format(n=n % 10, length="2.5") for n in range(20_000))
    began = time.process_time()

    assert diagnose(at(SERVED) + requests + decode).category == "ok"
    assert time.process_time() - began < 10


# ---- the catalogue ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", rules(), ids=lambda entry: entry.name)
def test_every_entry_of_the_catalogue_can_be_used(entry: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", entry.name)
    assert entry.category in CATEGORIES
    assert entry.rank in RANKS
    assert set(entry.phases) | ({entry.phase} - {None}) <= set(PHASES)
    assert entry.on in {"exception", "line", "state"}
    assert entry.on != "line" or entry.pattern is not None
    assert entry.on != "exception" or entry.pattern is not None or entry.frames is not None
    assert entry.cause.endswith((".", "{what}", "{exception}"))
    assert entry.remedy.endswith(".")
    assert not entry.provisional or entry.versions


def test_each_category_can_be_told() -> None:
    assert {entry.category for entry in rules()} == set(CATEGORIES)


def test_the_table_in_the_documentation_is_the_catalogue() -> None:
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| `([a-z0-9_]+)` \| ([^|]*) \|", page)
    shown = [(name, category, note.strip()) for name, category, note in rows]

    wanted = list(dict.fromkeys((e.name, e.category, note_of(e)) for e in rules()))

    assert shown == wanted


def note_of(entry: Rule) -> str:
    """What the documentation's table says beside an entry."""
    versions = f"SGLang {entry.versions}" if entry.versions else ""
    return ", ".join(part for part in ("provisional" if entry.provisional else "", versions) if part)


def test_a_prefix_that_nobody_knows_is_learned_from_three_dated_lines() -> None:
    log = at(POOL) + scheduler(OOM, "model_executor/model_runner.py:init_memory_pool")
    dressed = "".join(f"<node-3/x> {line}" for line in log.splitlines(keepends=True))

    assert diagnose(dressed) == diagnose(log)
    assert diagnose(dressed).diagnosis == "oom-kv-pool"
