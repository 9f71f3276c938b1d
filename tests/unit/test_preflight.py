"""What is found before a launch: SGLang's answers, models, GPUs; and what is asked of whom."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_specdec import flag_probe
from pytest_specdec.containers import refusal
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed
from pytest_specdec.preflight import Preflight, Problem, check, check_lines
from pytest_specdec.spec import ServerSpec
from tests.fakes.host import FakeClock, told
from tests.fakes.sglang_host import GIB80, SglangHost


@pytest.fixture
def host() -> SglangHost:
    return SglangHost()


@pytest.fixture
def preflight(host: SglangHost, tmp_path: Path) -> Any:
    def run(
        args: str = "--tp 8",
        *,
        model: str = "org/kimi",
        device: Literal["cpu", "cuda"] = "cpu",
        env: Mapping[str, str] | None = None,
        clock: FakeClock | None = None,
        **fields: Any,
    ) -> Preflight:
        spec = ServerSpec("kimi", model, args=args, **fields)
        return check(
            host,
            spec,
            python=None if spec.launcher_brings_python else "/py",
            env=env or {},
            cache_dir=tmp_path,
            device=device,
            clock=clock or FakeClock(),
        )

    return run


def found(result: Preflight) -> list[tuple[str, str]]:
    return [(problem.rule, problem.message) for problem in result.problems]


def test_a_good_spec_has_no_problem(preflight: Any) -> None:
    result = preflight("--tp 8 --mem-fraction-static 0.8")

    assert result.problems == ()
    assert result.notices == ()
    assert result.sglang_version == "0.5.23"
    assert result.refusal() is None


def test_the_spec_is_translated_before_it_is_checked(preflight: Any, host: SglangHost) -> None:
    result = preflight("--tp 8 --cuda-graph-max-bs 128")

    assert result.problems == ()
    assert result.notices == ("for SGLang 0.5.23, --cuda-graph-max-bs 128 became --cuda-graph-max-bs-decode 128",)
    assert result.spec.get("--cuda-graph-max-bs-decode") == ("128",)
    assert host.asked[-1]["words"][:6] == ["--model-path", "org/kimi", "--tp", "8", "--cuda-graph-max-bs-decode", "128"]


def test_an_address_of_a_pasted_line_is_said_to_be_unused(host: SglangHost, tmp_path: Path) -> None:
    line = "python -m sglang.launch_server --model-path org/kimi --host 0.0.0.0 --tp 8 --port 30000"
    pasted = ServerSpec.from_command("kimi", line)

    for spec in (pasted, pasted.but("kimi2", "--tp 4"), pasted.with_paths({"org/kimi": "org/other"})):
        result = check(host, spec, python="/py", env={}, cache_dir=tmp_path, device="cpu", clock=FakeClock())
        (notice,) = result.notices
        assert notice.startswith("--host 0.0.0.0 --port 30000 of its command is not used: each launch gets a free port")
        assert not result.spec.has("--port")


# What the parser says


@pytest.mark.parametrize(
    ("args", "rule", "message"),
    [
        (
            "--cuda-graph-maxbs-decode 8",
            "unknown-flag",
            "there is no --cuda-graph-maxbs-decode; nearest: --cuda-graph-max-bs-decode, ",
        ),
        ("--xyzzy-plugh 8", "unknown-flag", "there is no --xyzzy-plugh; nothing is spelled like it"),
        (
            "--speculative-ngram-branch-length 8",
            "unknown-flag",
            "there is no --speculative-ngram-branch-length; gone since 0.5.10; --speculative-ngram-max-trie-depth",
        ),
        (
            "--cuda-graph-max 8",
            "ambiguous-flag",
            (
                "--cuda-graph-max begins --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill, "
                "--cuda-graph-max-seq-len-prefill: write one out"
            ),
        ),
        ("--tp x", "bad-value", "--tp-size is 'x': invalid int value: 'x'"),
        ("--dtype float33", "bad-value", "--dtype is 'float33'; it takes auto, half, float16, "),
        ("--max-running-requests 3 4", "bad-value", "--max-running-requests is '3 4': it takes one value"),
        ("--max-running-requests", "bad-value", "--max-running-requests has no value: expected one argument"),
        ("--enable-metrics=1", "bad-value", "--enable-metrics is '1': it takes no value"),
        ("--api-key s3cret more", "bad-value", "--api-key is '***': it takes one value"),
    ],
)
def test_a_flag_that_the_parser_refuses(preflight: Any, host: SglangHost, args: str, rule: str, message: str) -> None:
    host.error = "refused"

    result = preflight(args)

    assert [problem.rule for problem in result.problems] == [rule]
    assert result.problems[0].message.startswith(message)


def test_every_flag_that_is_wrong_is_named(preflight: Any, host: SglangHost) -> None:
    host.error = "argument --tp-size: invalid int value: 'x'"

    rules = [problem.rule for problem in preflight("--tp x --nonsense --dtype no").problems]

    assert rules == ["bad-value", "unknown-flag", "bad-value"]


def test_a_long_list_of_choices_is_cut(preflight: Any, host: SglangHost) -> None:
    host.error = "refused"

    ((_, message),) = found(preflight("--moe-runner-backend no"))

    assert message.startswith("--moe-runner-backend is 'no'; it takes auto, ")
    assert message.endswith(" more")


def test_what_only_sglang_can_tell_is_passed_on(preflight: Any, host: SglangHost) -> None:
    host.error = "argument --max-total-tokens: Invalid integer value: '16x'."

    assert found(preflight("--max-total-tokens 16x")) == [
        ("bad-value", "SGLang's parser says: argument --max-total-tokens: Invalid integer value: '16x'.")
    ]


def test_the_parser_has_the_last_word(preflight: Any) -> None:
    # The table does not know the flag, the parser took it: a plug-in's, say.
    assert preflight("--flag-of-a-plugin 8").problems == ()


# What is kept of its answers


def test_the_parser_is_asked_once(preflight: Any, host: SglangHost) -> None:
    preflight("--tp 8")
    result = preflight("--tp 4 --mem-frac 0.8 --enable-metrics")

    assert host.questions == ["look", "parse", "look"]
    assert result.problems == ()


@pytest.mark.parametrize(
    "args",
    ["--nonsense 1", "--tp x", "--speculative-algorithm EAGLE9", "--config c.yaml", "--max-total-tokens 17k"],
)
def test_what_is_kept_never_says_no(preflight: Any, host: SglangHost, args: str) -> None:
    preflight("--max-total-tokens 16k")

    preflight(args)

    assert host.questions == ["look", "parse", "look", "parse"]


def test_a_value_that_sglang_has_read_is_remembered(preflight: Any, host: SglangHost) -> None:
    preflight("--max-total-tokens 16k")
    preflight("--max-total-tokens 16k --tp 2")

    assert host.questions == ["look", "parse", "look"]


def test_a_value_that_sglang_has_refused_is_not(preflight: Any, host: SglangHost) -> None:
    host.error = "no"
    preflight("--max-total-tokens 16x")
    preflight("--max-total-tokens 16x")

    assert host.questions == ["look", "parse"] * 2


def test_another_installation_is_asked_itself(preflight: Any, host: SglangHost) -> None:
    preflight()
    host.stamp = "s2"
    preflight()

    assert host.questions == ["look", "parse"] * 2


def test_variables_that_shape_the_parser_are_asked_about_themselves(preflight: Any, host: SglangHost) -> None:
    preflight(env={"HOME": "/a"})
    preflight(env={"HOME": "/b"})
    preflight(env={"SGLANG_PLUGINS": "mine"})

    assert host.questions == ["look", "parse", "look", "look", "parse"]


@pytest.mark.parametrize("content", ["", "{}", '{"cache_version": 0}', '{"cache_version": 1, "options": [{}]}', "[]"])
def test_a_file_that_can_not_be_read_counts_as_none(
    preflight: Any, host: SglangHost, tmp_path: Path, content: str
) -> None:
    preflight()
    (kept,) = tmp_path.glob("preflight/*.json")
    kept.write_text(content, encoding="utf-8")

    assert preflight().problems == ()
    assert host.questions == ["look", "parse"] * 2


def test_a_directory_that_can_not_be_written_costs_time_only(preflight: Any, host: SglangHost, tmp_path: Path) -> None:
    (tmp_path / "preflight").write_text("a file", encoding="utf-8")

    assert preflight().problems == ()
    assert preflight().problems == ()


# How it is asked


def test_the_question_is_asked_as_the_server_is_started(preflight: Any, host: SglangHost) -> None:
    preflight(launcher="numactl -N 0", env={"PYTHONPATH": "/engine"})

    assert [command[:5] for command in host.commands] == [("numactl", "-N", "0", "/py", "-c")] * 2
    assert host.envs == [{"PYTHONPATH": "/engine"}] * 2


def test_interpreter_flags_stay(preflight: Any, host: SglangHost) -> None:
    preflight(entry="python -X dev -m sglang.launch_server")

    assert host.commands[0][:4] == ("/py", "-X", "dev", "-c")


def test_sglang_serve_is_asked_by_the_python_beside_it(preflight: Any, host: SglangHost) -> None:
    preflight(entry="sglang serve")

    assert host.commands[0][:2] == ("/py", "-c")


def test_it_is_asked_in_the_directory_of_the_launch(preflight: Any, host: SglangHost) -> None:
    preflight(cwd="/data")

    assert host.commands[0][:6] == ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", "/data", "/py")


def test_a_container_leaves_neither_itself_nor_its_name_behind(preflight: Any, host: SglangHost) -> None:
    preflight(launcher="docker run --gpus all --name kimi --network=host --rm lmsys/sglang:v0.5.23")

    expected = ("docker", "run", "--rm", "--gpus", "all", "--network=host", "lmsys/sglang:v0.5.23", "python", "-c")
    assert host.commands[0][:9] == expected


@pytest.mark.parametrize("launcher", ["docker run -d --network=host image", "docker run image", "docker exec -it c"])
def test_a_container_that_can_t_be_watched_is_refused_and_not_asked(
    preflight: Any, host: SglangHost, launcher: str
) -> None:
    ((rule, message),) = found(preflight(launcher=launcher))

    assert (rule, message) == ("launcher", refusal(launcher.split()))
    assert host.commands == []


def test_an_id_file_of_the_launcher_s_is_neither_written_nor_used(preflight: Any, host: SglangHost) -> None:
    result = preflight(launcher="docker run --cidfile /mine --network=host image")

    assert host.commands[0][:5] == ("docker", "run", "--rm", "--network=host", "image")
    assert result.notices[0].startswith("--cidfile /mine of the launcher is not used")


def test_other_environments_are_entered_as_they_are(preflight: Any, host: SglangHost) -> None:
    preflight(launcher="uv run --name x")

    assert host.commands[0][:6] == ("uv", "run", "--name", "x", "python", "-c")


# Python


def test_a_python_without_sglang(preflight: Any, host: SglangHost) -> None:
    host.version = None

    result = preflight()

    assert found(result) == [("python", "/py has no sglang; asked with `/py` on fakehost")]
    assert result.sglang_version is None
    assert host.questions == ["look"]


def test_a_python_that_ends_says_its_last_line(preflight: Any, host: SglangHost) -> None:
    host.answers["/py"] = told(stderr="Traceback\nImportError: libcudart.so.13\n", returncode=1)

    assert found(preflight()) == [
        (
            "python",
            (
                "SGLang's Python ended with exit code 1 and said: ImportError: libcudart.so.13 (asked with `/py` on "
                "fakehost)"
            ),
        )
    ]


def test_a_parser_that_can_not_be_built(preflight: Any, host: SglangHost) -> None:
    def broken(argv: Sequence[str]) -> Completed:
        return host.probe(argv) if "look" in argv[-1] else told(stderr="ImportError: sgl_kernel", returncode=1)

    host.answers["/py"] = broken

    ((rule, message),) = found(preflight())

    assert rule == "python"
    assert message.startswith("its argument parser can't be built: SGLang's Python ended with exit code 1 and said: ")


def test_a_launcher_that_is_not_there(preflight: Any, host: SglangHost) -> None:
    del host.answers["numactl"]

    assert found(preflight(launcher="numactl -N 0")) == [
        (
            "python",
            "fakehost: numactl can't be run: No such file or directory (asked with `numactl -N 0 /py` on fakehost)",
        )
    ]


def test_secrets_of_a_launcher_are_masked(preflight: Any, host: SglangHost) -> None:
    host.answers["docker"] = told(stderr="no such image", returncode=125)

    ((_, message),) = found(preflight(launcher="docker run --network=host -e HF_TOKEN=s3cret image"))

    assert "s3cret" not in message
    assert "HF_TOKEN=***" in message


def test_a_host_that_is_away_raises(preflight: Any, host: SglangHost) -> None:
    del host.answers["/py"], host.answers["true"]

    with pytest.raises(HostError, match="fakehost: true can't be run"):
        preflight()


# Models


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "--model-path /models/kimi is not there on fakehost"),
        (
            "no-config",
            "--model-path /models/kimi is a directory without a config.json, so no model is in it on fakehost",
        ),
    ],
)
def test_a_model_that_is_not_there(preflight: Any, host: SglangHost, kind: str, message: str) -> None:
    host.paths["/models/kimi"] = kind

    assert found(preflight(model="/models/kimi")) == [("model-path", message)]


def test_a_model_in_one_file_is_one(preflight: Any, host: SglangHost) -> None:
    host.paths["/models/kimi.gguf"] = "file"

    assert preflight(model="/models/kimi.gguf").problems == ()


def test_a_draft_that_is_not_there_is_looked_for_in_the_home_directory_of_the_host(
    preflight: Any, host: SglangHost
) -> None:
    host.paths["/home/fake/draft"] = "missing"

    result = preflight("--speculative-algorithm EAGLE3 --speculative-draft-model-path ~/draft")

    assert found(result) == [("draft-path", "--speculative-draft-model-path /home/fake/draft is not there on fakehost")]


def test_an_id_is_not_looked_for(preflight: Any, host: SglangHost) -> None:
    preflight(model="org/kimi")

    assert host.asked[0]["paths"] == []


def test_a_path_in_a_container_is_looked_for_there(preflight: Any, host: SglangHost) -> None:
    host.paths["/models/kimi"] = "missing"

    ((_, message),) = found(preflight(model="/models/kimi", launcher="docker run --network=host image"))

    assert message == "--model-path /models/kimi is not there in the environment of its launcher"


# Drafting

EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path org/draft"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            f"{EAGLE3} --speculative-num-steps 3",
            (
                "--speculative-num-steps without --speculative-eagle-topk and --speculative-num-draft-tokens: SGLang "
                "ends with a TypeError, or takes a number of its own; give all three, or none"
            ),
        ),
        (
            "--speculative-algorithm STANDALONE",
            "--speculative-algorithm STANDALONE needs a draft model: add --speculative-draft-model-path PATH_OR_ID",
        ),
        (
            "--speculative-draft-model-path org/draft",
            (
                "--speculative-draft-model-path is given, and no --speculative-algorithm: the server would run without "
                "drafting; add the algorithm, or leave the rest out"
            ),
        ),
        (
            "--speculative-num-steps 3 --speculative-eagle-topk 1",
            (
                "--speculative-num-steps, --speculative-eagle-topk are given, and no --speculative-algorithm: the "
                "server would run without drafting; add the algorithm, or leave the rest out"
            ),
        ),
        (
            "--speculative-algorithm EAGLE9",
            (
                "--speculative-algorithm is EAGLE9, which this SGLang does not have; it has EAGLE, EAGLE3, NEXTN, "
                "NGRAM, STANDALONE. Was EAGLE meant?"
            ),
        ),
    ],
)
def test_drafting_flags_that_do_not_belong_together(preflight: Any, args: str, message: str) -> None:
    assert found(preflight(args)) == [("draft-flags", message)]


@pytest.mark.parametrize(
    "args",
    [
        EAGLE3,
        f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
        f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 6",
        f"{EAGLE3} --speculative-adaptive --speculative-num-steps 3",
        "--speculative-algorithm eagle",
        "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4",
    ],
)
def test_drafting_flags_that_do(preflight: Any, args: str) -> None:
    result = preflight(args)

    assert result.problems == ()
    assert result.notices == ()


def test_draft_tokens_that_sglang_will_change_are_mentioned(preflight: Any) -> None:
    result = preflight(
        f"{EAGLE3} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8"
    )

    assert result.problems == ()
    assert result.notices == (
        (
            "with --speculative-eagle-topk 1, SGLang makes --speculative-num-draft-tokens one more than "
            "--speculative-num-steps: it will be 4, not 8"
        ),
    )


# GPUs


def test_gpus_are_looked_at_for_cuda_only(preflight: Any, host: SglangHost) -> None:
    preflight(device="cpu")
    preflight("--device cpu", device="cuda")
    assert "nvidia-smi" not in [command[0] for command in host.commands]

    assert preflight(device="cuda").problems == ()
    assert "nvidia-smi" in [command[0] for command in host.commands]


@pytest.mark.parametrize(
    ("args", "needed"),
    [
        ("", 1),
        ("--tp 8", 8),
        ("--tp 4 --pp-size 2", 8),
        ("--tp 2 --dp 4", 8),
        ("--tp 8 --dp 8 --enable-dp-attention", 8),
        ("--tp 8 --attn-dp-size 8", 8),
        ("--tp 16 --nnodes 2", 8),
    ],
)
def test_as_many_gpus_as_the_spec_takes(preflight: Any, host: SglangHost, args: str, needed: int) -> None:
    host.gpus = host.gpus[:needed]
    assert preflight(args, device="cuda").problems == ()

    host.gpus = host.gpus[1:]
    ((rule, message),) = found(preflight(args, device="cuda"))
    assert rule == "gpus"
    assert message.startswith(f"the spec takes {needed} GPU")
    assert message.endswith(f", and fakehost has {needed - 1}; make it smaller, or take a larger host")


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"env": {"CUDA_VISIBLE_DEVICES": "0,GPU-3"}}, "CUDA_VISIBLE_DEVICES=0,GPU-3"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}}, "CUDA_VISIBLE_DEVICES=0,1,-1,2"),
        ({"launcher": "env CUDA_VISIBLE_DEVICES=4,5"}, "CUDA_VISIBLE_DEVICES=4,5"),
        ({"launcher": "docker run --network=host --gpus device=2,3 image"}, "--gpus device=2,3"),
        ({"launcher": ["docker", "run", "--network=host", "--gpus", '"device=2,3"', "image"]}, "--gpus device=2,3"),
        ({"launcher": "docker run --network=host -e CUDA_VISIBLE_DEVICES=1,2 image"}, "CUDA_VISIBLE_DEVICES=1,2"),
    ],
)
def test_gpus_that_the_launch_does_not_see_do_not_count(
    preflight: Any, host: SglangHost, fields: dict[str, Any], limit: str
) -> None:
    host.answers["env"] = host.probe

    assert found(preflight("--tp 4", device="cuda", **fields)) == [
        (
            "gpus",
            (
                f"the spec takes 4 GPUs (--tp 4), and fakehost has 8, of which {limit} leaves 2; make it smaller, or "
                "take a larger host"
            ),
        )
    ]
    assert preflight("--tp 2", device="cuda", **fields).problems == ()


def test_a_foreign_process_on_a_gpu_that_is_needed(preflight: Any, host: SglangHost) -> None:
    host.apps = ["GPU-1, 4711, 40960, /usr/bin/python3, x", "GPU-7, 4712, 100, other"]

    assert found(preflight("--tp 4", device="cuda")) == [
        (
            "gpus",
            (
                "GPU 1 is in use by process 4711 (/usr/bin/python3, x, 40960 MiB); end it, or choose other GPUs with "
                "CUDA_VISIBLE_DEVICES"
            ),
        )
    ]
    assert preflight("--tp 4 --base-gpu-id 2", device="cuda").problems == ()


def test_memory_that_nobody_is_seen_to_hold(preflight: Any, host: SglangHost) -> None:
    host.gpus[0] = f"0, GPU-0, {GIB80}, 60000"

    assert found(preflight("--tp 1", device="cuda")) == [
        (
            "gpus",
            (
                "GPU 0 has 60000 of 81559 MiB free (74%), a launch needs 90%; nvidia-smi names no process that holds "
                "the rest: look for one in a container, or that has just ended"
            ),
        )
    ]


def test_memory_that_is_shared_with_the_cpu_is_not_judged(preflight: Any, host: SglangHost) -> None:
    host.gpus = ["0, GPU-0, [N/A], [N/A]"]
    host.apps = []

    assert preflight("--tp 1", device="cuda").problems == ()


def test_memory_that_is_given_back_late_is_waited_for(preflight: Any, host: SglangHost) -> None:
    clock = FakeClock()
    free, host.gpus[0] = host.gpus[0], f"0, GPU-0, {GIB80}, 5000"
    clock.at(3.0, lambda: host.gpus.__setitem__(0, free))

    assert preflight("--tp 8", device="cuda", clock=clock).problems == ()
    assert clock.now == 3.0


def test_the_wait_for_a_gpu_has_an_end(preflight: Any, host: SglangHost) -> None:
    clock = FakeClock()
    host.apps = ["GPU-0, 4711, [N/A], python"]

    ((_, message),) = found(preflight("--tp 8", device="cuda", clock=clock))

    assert message.startswith("GPU 0 is in use by process 4711 (python); end it")
    assert clock.now == 10.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "fakehost: nvidia-smi can't be run: No such file or directory"),
        (told(stderr="NVML: Driver/library version mismatch", returncode=18), "exit code 18 and said: NVML: Driver"),
        (told("0, GPU-0"), "answered '0, GPU-0'"),
    ],
)
def test_a_driver_that_does_not_answer(
    preflight: Any, host: SglangHost, answer: Completed | None, message: str
) -> None:
    if answer is None:
        del host.answers["nvidia-smi"]
    else:
        host.answers["nvidia-smi"] = answer

    ((rule, said),) = found(preflight(device="cuda"))

    assert rule == "gpus"
    assert message in said
    assert said.endswith(". A spec for CUDA needs a host with an NVIDIA driver")


# The script that asks


def sglang_like() -> flag_probe.Parser:
    parser = flag_probe.Parser(prog="sglang")
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int)
    parser.add_argument("--backend", choices={"b", "a"})
    parser.add_argument("--max-total-tokens", type=lambda text: int(text.removesuffix("k")))
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--bs", type=int, nargs="+")
    return parser


def test_the_script_makes_a_table_that_json_can_hold() -> None:
    rows = flag_probe.table(sglang_like())

    assert json.loads(json.dumps(rows)) == [
        {"flags": ["--tp-size", "--tensor-parallel-size"], "nargs": None, "type": "int", "choices": None},
        {"flags": ["--backend"], "nargs": None, "type": "str", "choices": ["a", "b"]},
        {"flags": ["--max-total-tokens"], "nargs": None, "type": "", "choices": None},
        {"flags": ["--metrics"], "nargs": 0, "type": "str", "choices": None},
        {"flags": ["--bs"], "nargs": "+", "type": "int", "choices": None},
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--tp", "8", "--bs", "1", "2"], None),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--help"], "it printed its help and ended"),
    ],
)
def test_the_script_says_what_the_parser_says(words: list[str], error: str | None) -> None:
    assert flag_probe.error_of(sglang_like(), words) == error


def test_the_script_tells_models_from_other_places(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    places = {tmp_path: "model", tmp_path / "config.json": "file", tmp_path / "empty": "no-config"}
    places[tmp_path / "gone"] = "missing"

    looked = flag_probe.look([str(path) for path in places])

    assert looked["paths"] == {str(path): kind for path, kind in places.items()}


def test_the_script_runs_from_its_text_alone() -> None:
    script = Path(flag_probe.__file__).read_text(encoding="utf-8")
    request = json.dumps({"ask": "look", "paths": ["/"]})

    done = subprocess.run([sys.executable, "-I", "-c", script, request], capture_output=True, text=True, check=True)

    answer = json.loads(done.stdout.strip().removeprefix(flag_probe.MARK))
    assert answer["paths"] == {"/": "no-config"}
    assert answer["python"] == sys.executable


# Reports


def test_all_problems_are_told_at_once(preflight: Any, host: SglangHost) -> None:
    host.error = "refused"
    host.paths["/models/kimi"] = "missing"

    result = preflight("--tp x --cuda-graph-max-bs 8", model="/models/kimi")

    assert result.refusal() == (
        "kimi: the preflight found 2 problems, for SGLang 0.5.23; nothing was started\n"
        "  bad-value: --tp-size is 'x': invalid int value: 'x'\n"
        "  model-path: --model-path /models/kimi is not there on fakehost\n"
        "  for SGLang 0.5.23, --cuda-graph-max-bs 8 became --cuda-graph-max-bs-decode 8\n"
        "  command: python -m sglang.launch_server --model-path /models/kimi --tp x --cuda-graph-max-bs-decode 8"
    )


def test_the_lines_of_a_check_of_several_specs() -> None:
    spec = ServerSpec("kimi", "m")
    good = Preflight(spec=spec, notices=("a note",), problems=(), sglang_version="0.5.23")
    problem = Problem(rule="gpus", message="none is free")
    bad = Preflight(spec=spec, notices=(), problems=(problem, problem), sglang_version=None)

    assert check_lines([good, bad]) == [
        "kimi: ok (SGLang 0.5.23)",
        "  note: a note",
        "kimi: 2 problems (SGLang not found)",
        "  gpus: none is free",
        "  gpus: none is free",
    ]
