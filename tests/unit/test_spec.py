from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle
import random
import shlex
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

from pytest_specdec import ServerSpec, SpecError

CONTROL_LINE = (
    "python -m sglang.launch_server --model-path /data/models/kimi-k2.5-int4 --tp 8"
    " --cuda-graph-max-bs 128 --disable-custom-all-reduce"
)
CONTROL = ServerSpec.from_command("kimi-k2.5-int4", CONTROL_LINE)
EAGLE3_FLAGS = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path /data/eagle3/synth_100k"
    " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
DOCKER_LINE = (
    "docker run --gpus all --shm-size 32g -p 30000:30000 -v ~/.cache/huggingface:/root/.cache/huggingface"
    ' --env "HF_TOKEN=x" --ipc=host lmsysorg/sglang:latest'
    " python3 -m sglang.launch_server --model-path m --host 0.0.0.0 --port 30000"
)
MULTI_LINE = r"""
NCCL_ALGO=Tree SGLANG_ENABLE_SPEC_V2='1' \
python3 -m sglang.launch_server \
    --model meta-llama/Llama-3.1-8B-Instruct \
    --json-model-override-args '{"a": 1, "b": "it'\''s"}' \
    --cuda-graph-bs 1 2 4 \
    --mem-fraction-static=0.8 \
    --trust-remote-code
"""


def refusal_of(name: str = "s", model: str = "m", **fields: object) -> str:
    with pytest.raises(SpecError) as caught:
        ServerSpec(name, model, **fields)  # type: ignore[arg-type]  # mistakes are what is tested
    return str(caught.value)


# A pasted line


def test_the_first_contracts_line_is_read() -> None:
    assert CONTROL.model == "/data/models/kimi-k2.5-int4"
    assert CONTROL.args == ("--tp", "8", "--cuda-graph-max-bs", "128", "--disable-custom-all-reduce")
    assert dict(CONTROL.env) == {}
    assert (CONTROL.python, CONTROL.cwd, CONTROL.launcher) == (None, None, ())
    assert CONTROL.entry == ("python", "-m", "sglang.launch_server")
    assert CONTROL.command == CONTROL_LINE


def test_a_line_and_the_constructor_give_the_same_object() -> None:
    line = "NCCL_ALGO=Tree numactl -N 0 /opt/venv/bin/python -m sglang.launch_server --model m --tp=8 --x 'a b'"

    written = ServerSpec(
        "s",
        PurePosixPath("m"),
        args=["--x", "a b", "--tp", "8"],
        env={"NCCL_ALGO": "Tree"},
        python=PurePosixPath("/opt/venv/bin/python"),
        launcher="numactl -N 0",
    )

    assert ServerSpec.from_command("s", line) == written


def test_a_docker_line_keeps_its_launcher_and_loses_its_address() -> None:
    spec = ServerSpec.from_command("s", DOCKER_LINE)

    assert spec.launcher == (
        "docker", "run", "--gpus", "all", "--shm-size", "32g", "-p", "30000:30000",
        "-v", "~/.cache/huggingface:/root/.cache/huggingface", "--env", "HF_TOKEN=x", "--ipc=host",
        "lmsysorg/sglang:latest",
    )  # fmt: skip
    assert spec.model == "m"
    assert spec.args == ()
    assert spec.launcher_brings_python
    assert spec.argv("/host/python", ["--port", "1"], home="/home/me") == (
        "docker", "run", "--gpus", "all", "--shm-size", "32g", "-p", "30000:30000",
        "-v", "/home/me/.cache/huggingface:/root/.cache/huggingface", "--env", "HF_TOKEN=x", "--ipc=host",
        "lmsysorg/sglang:latest", "python3", "-m", "sglang.launch_server", "--model-path", "m", "--port", "1",
    )  # fmt: skip


def test_a_line_over_several_lines_is_read() -> None:
    spec = ServerSpec.from_command("llama", MULTI_LINE)

    assert dict(spec.env) == {"NCCL_ALGO": "Tree", "SGLANG_ENABLE_SPEC_V2": "1"}
    assert spec.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert spec.get("--json-model-override-args") == ('{"a": 1, "b": "it\'s"}',)
    assert spec.get("--cuda-graph-bs") == ("1", "2", "4")
    assert spec.get("--mem-frac") == ("0.8",)
    assert spec.get("--trust-remote-code") == ()
    assert spec.get("--tp") is None


def test_sglang_serve_takes_the_model_as_its_first_word() -> None:
    spec = ServerSpec.from_command("s", "sglang serve meta/llama --tp 2")

    assert (spec.model, spec.args) == ("meta/llama", ("--tp", "2"))
    assert spec == ServerSpec("s", "meta/llama", args="--tp 2", entry="sglang serve")
    assert spec.command == "sglang serve --model-path meta/llama --tp 2"


def test_the_last_of_a_repeated_flag_counts() -> None:
    spec = ServerSpec.from_command(
        "s", "python -m sglang.launch_server --model a --tp 8 --x 1 --model-path b --tp-size 4"
    )

    assert spec.model == "b"
    assert spec.args == ("--x", "1", "--tp-size", "4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "python -m sglang.launch_server --tp 8",
            (
                "the line names no model, at offset 37 (line 1, column 38):\n"
                "  python -m sglang.launch_server --tp 8\n"
                "                                       ^\n"
                "add `--model-path PATH_OR_ID`"
            ),
        ),
        (
            "python -m sglang.launch_server --model-path --tp 8",
            (
                "--model-path has no value, at offset 31 (line 1, column 32):\n"
                "  python -m sglang.launch_server --model-path --tp 8\n"
                "                                 ^\n"
                "write `--model-path VALUE`"
            ),
        ),
        (
            "python -m sglang.launch_server m --tp 8",
            (
                "the word 'm' in front of the flags belongs to no flag, at offset 31 (line 1, column 32):\n"
                "  python -m sglang.launch_server m --tp 8\n"
                "                                 ^\n"
                "a flag begins with two dashes; a value with blanks needs quotes"
            ),
        ),
        (
            "python -m sglang.launch_server --model-path 'm --tp 8",
            (
                "this single quote is never closed, at offset 44 (line 1, column 45):\n"
                "  python -m sglang.launch_server --model-path 'm --tp 8\n"
                "                                              ^\n"
                "close it, or write \\' for itself"
            ),
        ),
    ],
)
def test_a_malformed_line_is_refused_with_its_position(line: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        ServerSpec.from_command("s", line)

    assert str(caught.value) == message


# Variants


def test_a_variant_adds_flags_behind_those_there_are() -> None:
    eagle3 = CONTROL.but("eagle3-s3", EAGLE3_FLAGS)

    assert eagle3.name == "eagle3-s3"
    assert eagle3.command == f"{CONTROL_LINE} {EAGLE3_FLAGS}"
    assert eagle3.drafting
    assert eagle3.draft_model == "/data/eagle3/synth_100k"
    assert not CONTROL.drafting
    assert CONTROL.draft_model is None


@pytest.mark.parametrize(
    ("there", "added", "args"),
    [
        ("--tp 8 --x", "--tp 4", ["--tp", "4", "--x"]),
        ("--tp 8 --x", "--tensor_parallel_size 4", ["--tensor_parallel_size", "4", "--x"]),
        ("--cuda-graph-bs 1 2 4 --x", "--cuda-graph-bs 8 16", ["--cuda-graph-bs", "8", "16", "--x"]),
        ("--cuda-graph-max-bs 8", "--cuda-graph-max-bs-decode 4", ["--cuda-graph-max-bs-decode", "4"]),
        ("--dllm-fdfo", "--no-dllm-fdfo", ["--no-dllm-fdfo"]),
        ("--max_running_requests 8", "--max-running-requests=4", ["--max-running-requests", "4"]),
        ("--x", ["--chat-template", "a b"], ["--x", "--chat-template", "a b"]),
        ("--x", "", ["--x"]),
    ],
)
def test_a_repeated_flag_replaces_in_its_place(there: str, added: str, args: list[str]) -> None:
    assert ServerSpec("s", "m", args=there).but("t", added).args == tuple(args)


def test_a_variant_may_change_everything_else() -> None:
    control = ServerSpec(
        "s", "m", env={"A": "1", "B": "2"}, launcher="nice -n 5", entry="python -u -m sglang.launch_server"
    )

    spec = control.but("t", "C=3 A=9 --model other", env={"B": None, "D": "4"}, python="/v/bin/python", cwd="/srv")

    assert spec.model == "other"
    assert dict(spec.env) == {"A": "9", "C": "3", "D": "4"}
    assert spec.command == (
        "cd /srv && A=9 C=3 D=4 nice -n 5 /v/bin/python -u -m sglang.launch_server --model-path other"
    )
    assert dict(control.env) == {"A": "1", "B": "2"}
    assert spec.but("u", python="python").python is None


@pytest.mark.parametrize("drop", ["--tp-size", ["tp"], ["--tensor_parallel_size"]])
def test_a_flag_is_dropped_however_it_is_spelled(drop: str | list[str]) -> None:
    assert ServerSpec("s", "m", args="--x 1 --tp 8").but("t", drop=drop).args == ("--x", "1")


def test_a_dropped_flag_may_be_given_anew() -> None:
    spec = ServerSpec("s", "m", args="--tp 8 --x").but("t", "--tp 4", drop=["--tp"])

    assert spec.args == ("--x", "--tp", "4")


def test_what_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(SpecError) as no_flag:
        CONTROL.but("t", drop=["--dp"])
    with pytest.raises(SpecError) as no_flags:
        ServerSpec("s", "m").but("t", drop=["--dp"])
    with pytest.raises(SpecError) as no_variable:
        ServerSpec("s", "m", env={"A": "1"}).but("t", env={"B": None})
    with pytest.raises(SpecError) as model:
        CONTROL.but("t", drop="--model")

    assert str(no_flag.value) == (
        "server spec kimi-k2.5-int4 has no flag --dp to drop; "
        "its flags: --tp, --cuda-graph-max-bs, --disable-custom-all-reduce"
    )
    assert str(no_flags.value) == "server spec s has no flag --dp to drop; its flags: none"
    assert str(no_variable.value) == "server spec s sets no B to remove; its variables: A"
    assert str(model.value) == "server spec kimi-k2.5-int4: a spec needs its model; replace it instead"


def test_an_address_is_refused_where_it_was_not_pasted() -> None:
    with pytest.raises(SpecError) as caught:
        CONTROL.but("t", "--x --port 1")

    assert str(caught.value) == (
        "--port has no place in a server spec, at offset 4 (line 1, column 5):\n"
        "  --x --port 1\n"
        "      ^\n"
        "leave it out: the harness chooses the address of each launch"
    )
    assert "--host has no place in a server spec" in refusal_of(args="--host ::1")


# What is refused


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("Kimi-K2.5 INT4", "kimi-k2.5-int4"),
        ("a--b", "a-b"),
        ("-a.", "a"),
        ("a_.b", "a-b"),
        ("x@cpu-standin", "x-cpu-standin"),
        ("", "kimi-k2.5-int4"),
        ("a\n", "a"),
    ],
)
def test_a_name_that_is_no_file_stem_is_refused_with_a_corrected_one(name: str, example: str) -> None:
    message = refusal_of(name)

    assert message == (
        f"{name!r} is no name for a server spec: baseline files are called after it, so it is made of "
        f"a-z and 0-9, joined by single `.`, `_` or `-`; such as {example!r}"
    )
    ServerSpec(example, "m")
    with pytest.raises(SpecError, match="is no name for a server spec"):
        ServerSpec.from_command(name, CONTROL_LINE)
    with pytest.raises(SpecError, match="is no name for a server spec"):
        CONTROL.but(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": ""}, "server spec s: the model is ''; give its path or its id"),
        ({"model": "--tp"}, "server spec s: the model is '--tp'; give its path or its id"),
        ({"args": "--model-path other"}, "it is s's second argument: m"),
        ({"args": ["--tp", 8]}, "args[1] is 8, of type int: give strings"),
        ({"env": {"A-B": "1"}}, "server spec s: 'A-B' is no name for an environment variable"),
        ({"env": {"A": 1}}, "server spec s: env['A'] is of type int; give a string"),
        ({"env": {"A": "\0"}}, "server spec s: a NUL stands in"),
        ({"cwd": "~/x"}, "server spec s: cwd is '~/x'; write the directory on the host out"),
        ({"cwd": ""}, "server spec s: cwd is ''; write the directory on the host out"),
        ({"python": "ruby"}, "server spec s: python is 'ruby'; give its path, or a name such as python3.11"),
        ({"python": "-/x"}, "server spec s: python is '-/x'; give its path, or a name such as python3.11"),
        (
            {"python": "python3.11", "entry": "sglang serve"},
            "python is 'python3.11', but `sglang serve` is found beside a Python: give its path",
        ),
        (
            {"entry": "vllm serve"},
            (
                "server spec s: entry is 'vllm serve'; "
                "understood are `python -m sglang.launch_server ...` and `sglang serve ...`"
            ),
        ),
        ({"entry": "nice python -m sglang.launch_server"}, "server spec s: entry is 'nice python"),
        ({"entry": "sglang serve m"}, "server spec s: entry is 'sglang serve m'"),
        (
            {"launcher": "A=1 nice"},
            (
                "server spec s: the launcher 'A=1 nice' cannot be told from the command behind it; "
                "give only what stands in front of Python, and assignments as env="
            ),
        ),
        ({"launcher": CONTROL_LINE}, "cannot be told from the command behind it"),
        ({"launcher": ["/x", "-X"]}, "cannot be told from the command behind it"),
        ({"cpu_standin": "tiny"}, "server spec s: cpu_standin is 'tiny'; give a ServerSpec"),
        (
            {"cpu_standin": CONTROL},
            (
                "server spec s: its cpu_standin kimi-k2.5-int4 needs CUDA itself; "
                "give one with --device cpu, such as ServerSpec.tiny(...)"
            ),
        ),
    ],
)
def test_a_field_that_cannot_be_used_is_refused(fields: dict[str, object], message: str) -> None:
    assert message in refusal_of(**fields)  # type: ignore[arg-type]  # mistakes are what is tested


# Identity


def test_the_content_hash_is_the_same_everywhere() -> None:
    content = (
        '{"cwd": null, "entry": ["python", "-m", "sglang.launch_server"], "env": [["A", "1"]],'
        ' "launcher": [], "model": "m", "options": [["tp-size", ["8"]], ["x", []]], "python": null,'
        ' "schema": "pytest-specdec/server-spec/1"}'
    )
    spec = ServerSpec("s", "m", args="--x --tp 8", env={"A": "1"})

    assert spec.content_hash == hashlib.sha256(content.encode()).hexdigest()
    assert spec.content_hash == "54aeb5f0cc6fb5f1292ca8730ba5949663e3c5d52b4e6aa988faa29d9e9fec11"
    assert spec.short_hash == spec.content_hash[:12]


def test_the_content_hash_does_not_depend_on_the_process() -> None:
    program = (
        "from pytest_specdec import ServerSpec; "
        "print(ServerSpec('s', 'm', args='--x --tp 8', env={'B': 'ß', 'A': '1'}).content_hash)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "7"},
    ).stdout.strip()

    assert printed == ServerSpec("s", "m", args="--x --tp 8", env={"A": "1", "B": "ß"}).content_hash


@pytest.mark.parametrize(
    "same",
    [
        ServerSpec("s", "m", args="--max-requests 4 --tensor-parallel-size=8", env={"B": "2", "A": "1"}),
        ServerSpec("s", "m", args="--max_requests 4 --tp 8", env={"A": "1", "B": "2"}, python="python3"),
        ServerSpec.from_command(
            "s",
            "B=2 A=1 python3 -m sglang.launch_server --tp=8 --max-requests 4 --model m --port 9",
            cpu_standin=ServerSpec.tiny("t"),
        ),
    ],
)
def test_spelling_order_address_and_stand_in_are_no_content(same: ServerSpec) -> None:
    spec = ServerSpec("s", "m", args="--tp 8 --max-requests 4", env={"A": "1", "B": "2"})

    assert same == spec
    assert hash(same) == hash(spec)
    assert same.content_hash == spec.content_hash


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "n"},
        {"args": "--tp 4"},
        {"args": "--tp 8 --x"},
        {"args": "--tp 8 --cuda-graph-bs 2 1"},
        {"env": {"A": "2"}},
        {"python": "/v/bin/python"},
        {"cwd": "/srv"},
        {"launcher": "nice"},
        {"entry": "sglang serve"},
        {"entry": "python -u -m sglang.launch_server"},
    ],
)
def test_whatever_a_launch_depends_on_is_content(fields: dict[str, str]) -> None:
    base = ServerSpec("s", "m", args="--tp 8", env={"A": "1"})
    other = ServerSpec("s", **{"model": "m", "args": "--tp 8", "env": {"A": "1"}, **fields})  # type: ignore[arg-type]  # a table of fields

    assert other.content_hash != base.content_hash
    assert other != base


def test_the_name_tells_specs_of_one_content_apart() -> None:
    other = CONTROL.but("other")

    assert other.content_hash == CONTROL.content_hash
    assert other != CONTROL
    assert {CONTROL: 1, other: 2}[ServerSpec.from_command("other", CONTROL_LINE)] == 2
    assert CONTROL.__eq__("kimi-k2.5-int4") is NotImplemented


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONTROL.model = "x"  # type: ignore[misc]  # the mistake under test
    with pytest.raises(TypeError):
        CONTROL.env["A"] = "1"  # type: ignore[index]  # the mistake under test


def test_a_spec_survives_copying_and_pickling() -> None:
    spec = CONTROL.but("t", "A=1 --x", cpu_standin=ServerSpec.tiny("tiny"))

    for twin in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert twin == spec
        assert twin.command == spec.command
        assert twin.standin() == spec.standin()


# The line to paste back

ROUND_TRIPS = [
    CONTROL_LINE,
    f"{CONTROL_LINE} {EAGLE3_FLAGS}",
    DOCKER_LINE,
    MULTI_LINE,
    "sglang serve m --tp 2",
    "/v/bin/sglang serve --model-path m",
    "~/v/bin/python3 ~/v/bin/sglang serve --model-path m",
    "cd '/my dir' && A='x y' B= taskset -c 0-3 env C=D python3.11 -m sglang.launch_server --model m",
    "python -X dev -W error -u -m sglang.launch_server --model ~/models/x --x=--y --z=-q --e '' --n -1 --m=",
    "sudo -E docker exec -it c /usr/bin/python3 -m sglang.launch_server --model m --j '{\"a\": [1, 2]}'",
    "podman run i python3.12 -m sglang.launch_server --model m",
    "uv run --with sglang sglang serve m --chat-template '--not a flag' --disable-x=true",
    "A='~/x' python -m sglang.launch_server --model '$HOME' --x 'a\nb' --cuda_graph_bs 1 2",
]


@pytest.mark.parametrize("line", ROUND_TRIPS)
def test_the_command_makes_the_same_spec_again(line: str) -> None:
    spec = ServerSpec.from_command("s", line)

    again = ServerSpec.from_command("s", spec.command)

    assert again == spec
    assert again.command == spec.command
    assert again.argv(home="/h") == spec.argv(home="/h")


def test_any_spec_can_be_pasted_back() -> None:
    source = random.Random(20261129)
    alphabet = "aZ09 -=_./:~'\"\\$`|&;<>(){}[]#*?!@%,+é\n\t"

    def text(least: int = 0) -> str:
        return "".join(source.choice(alphabet) for _ in range(source.randrange(least, 9)))

    def words(most: int) -> list[str]:
        return [text() for _ in range(source.randrange(most))]

    for _ in range(500):
        args = [f"--tied-{index}={text()}" for index in range(source.randrange(3))]
        args += [f"--bare_{index}" for index in range(source.randrange(3))]
        args += ["--numbers", *(str(source.randrange(-9, 99)) for _ in range(source.randrange(3)))]
        spec = ServerSpec(
            "s",
            "m" + text(),
            args=args,
            env={name: text() for name in source.sample(["A", "_b", "C3"], source.randrange(3))},
            python=source.choice([None, "python3.12", "/v/bin/python", "~/v/bin/python3", "/a b/wrap"]),
            cwd=source.choice([None, "/" + text()]),
            launcher=[source.choice(["nice", "docker", "uv"]), *words(4)] if source.random() < 0.5 else (),
            entry=source.choice(["python -m sglang.launch_server", "python3 -u -m sglang.launch_server"]),
        )

        again = ServerSpec.from_command("s", spec.command)

        assert again == spec, spec.command
        assert again.args == spec.args


def test_a_shell_reads_the_command_as_the_words_of_the_launch() -> None:
    spec = ServerSpec("s", "my model", args=["--j", '{"a": "$x `y` \'z\'"}', "--e", ""], launcher="printf '%s\\0'")

    printed = subprocess.run(["sh", "-c", spec.command], check=True, capture_output=True, text=True).stdout.split("\0")[
        :-1
    ]

    assert tuple(printed) == spec.argv()[2:]


# The words of a launch


@pytest.mark.parametrize(
    ("fields", "python", "start"),
    [
        ({}, None, "python -m sglang.launch_server"),
        ({}, "/h/bin/python3", "/h/bin/python3 -m sglang.launch_server"),
        ({"python": "/s/bin/python"}, None, "/s/bin/python -m sglang.launch_server"),
        ({"python": "/s/bin/python"}, "/h/bin/python", "/h/bin/python -m sglang.launch_server"),
        ({"python": "~/v/bin/python"}, None, "/home/me/v/bin/python -m sglang.launch_server"),
        ({"entry": "python -u -m sglang.launch_server"}, "/h/py", "/h/py -u -m sglang.launch_server"),
        ({"entry": "sglang serve"}, None, "sglang serve"),
        ({"entry": "sglang serve"}, "python3", "sglang serve"),
        ({"entry": "sglang serve"}, "/h/bin/python", "/h/bin/sglang serve"),
        ({"entry": "sglang serve"}, "/h/bin/python3", "/h/bin/python3 /h/bin/sglang serve"),
        ({"entry": "/s/bin/sglang serve"}, None, "/s/bin/sglang serve"),
        ({"launcher": "docker run i"}, "/h/bin/python", "docker run i python -m sglang.launch_server"),
        (
            {"launcher": "docker run i", "python": "/s/bin/python"},
            "/h/bin/python",
            "docker run i /s/bin/python -m sglang.launch_server",
        ),
        ({"launcher": "docker run i", "entry": "sglang serve"}, "/h/bin/python", "docker run i sglang serve"),
        ({"launcher": "taskset -c 0"}, "/h/bin/python", "taskset -c 0 /h/bin/python -m sglang.launch_server"),
    ],
)
def test_the_launch_runs_the_python_asked_for(fields: dict[str, str], python: str | None, start: str) -> None:
    spec = ServerSpec("s", "~/m", args="--tp 8", **fields)  # type: ignore[arg-type]  # a table of fields

    argv = spec.argv(python, ["--port", "1"], home="/home/me")

    assert shlex.join(argv) == f"{start} --model-path /home/me/m --tp 8 --port 1"


def test_a_home_directory_is_this_machines_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/here")

    assert ServerSpec("s", "~/m", args="--x ~ --y a~/b").argv()[3:] == (
        "--model-path", "/home/here/m", "--x", "/home/here", "--y", "a~/b",
    )  # fmt: skip


def test_a_launch_writes_dashes_where_the_user_wrote_underscores() -> None:
    spec = ServerSpec("s", "m", args="--max_running_requests 4")

    assert spec.argv()[-2:] == ("--max-running-requests", "4")
    assert spec.command.endswith("--max_running_requests 4")


# Secrets


def test_secrets_are_masked_in_reports_but_not_in_the_command() -> None:
    spec = ServerSpec(
        "s",
        "m",
        args="--api-key hush --tp 8",
        env={"HF_TOKEN": "tok en", "MY_api_key": "kkk", "NOTE": "a b"},
        launcher="docker run --env DB_PASSWORD=pass i",
    )

    assert spec.command == (
        "HF_TOKEN='tok en' MY_api_key=kkk NOTE='a b' docker run --env DB_PASSWORD=pass i"
        " python -m sglang.launch_server --model-path m --api-key hush --tp 8"
    )
    assert spec.masked_command == (
        "HF_TOKEN=*** MY_api_key=*** NOTE='a b' docker run --env 'DB_PASSWORD=***' i"
        " python -m sglang.launch_server --model-path m --api-key '***' --tp 8"
    )


def test_a_spec_is_shown_short() -> None:
    spec = ServerSpec("s", "m", env={"HF_TOKEN": "secret"})

    assert repr(spec) == f"ServerSpec('s', {spec.content_hash[:12]})"
    assert str(spec) == "s"


# The CPU engine


def test_a_tiny_spec_has_what_a_cpu_needs() -> None:
    spec = ServerSpec.tiny("t")

    assert spec.command == (
        "python -m sglang.launch_server --model-path tiny:target"
        " --device cpu --dtype float32 --max-total-tokens 16384 --random-seed 0"
    )
    assert spec.runs_on_cpu
    assert spec.device == "cpu"
    assert spec.tiny_models == ("tiny:target",)


def test_a_tiny_spec_takes_flags_in_place_of_its_own() -> None:
    spec = ServerSpec.tiny(
        "t",
        "B=2 --random-seed 7 --speculative-algorithm EAGLE3 --speculative-draft-model tiny:eagle3-draft"
        " --tokenizer-path tiny:target",
        env={"A": "1"},
    )

    assert dict(spec.env) == {"A": "1", "B": "2"}
    assert spec.get("--random-seed") == ("7",)
    assert spec.get("--dtype") == ("float32",)
    assert spec.draft_model == "tiny:eagle3-draft"
    assert spec.tiny_models == ("tiny:target", "tiny:eagle3-draft")


def test_tiny_models_are_replaced_by_their_paths() -> None:
    spec = ServerSpec.tiny("t", "--speculative-draft-model-path tiny:eagle3-draft")

    placed = spec.with_paths({"tiny:target": "/m/target", "tiny:eagle3-draft": "/m/draft"})

    assert placed.name == "t"
    assert placed.command == (
        "python -m sglang.launch_server --model-path /m/target"
        " --device cpu --dtype float32 --max-total-tokens 16384 --random-seed 0"
        " --speculative-draft-model-path /m/draft"
    )
    assert placed.tiny_models == ()
    assert placed.content_hash != spec.content_hash
    assert spec.with_paths({}) == spec


def test_a_spec_for_cuda_does_not_run_on_the_cpu() -> None:
    assert not CONTROL.runs_on_cpu
    assert CONTROL.device is None
    assert CONTROL.tiny_models == ()
    assert not CONTROL.but("t", "--device cuda").runs_on_cpu


def test_a_stand_in_takes_the_name_of_the_spec_it_stands_for() -> None:
    tiny = ServerSpec.tiny("tiny", "--x 1")
    spec = ServerSpec.from_command("big", CONTROL_LINE, cpu_standin=tiny)

    standin = spec.standin()

    assert standin is not None
    assert standin.name == "big@cpu-standin"
    assert standin.content_hash == tiny.content_hash
    assert standin.args == tiny.args
    assert standin == pickle.loads(pickle.dumps(standin))
    assert standin.with_paths({"tiny:target": "/m"}).name == "big@cpu-standin"
    assert tiny.name == "tiny"
    assert tiny.standin() is None


def test_a_variant_does_not_inherit_the_stand_in() -> None:
    control = ServerSpec("big", "m", cpu_standin=ServerSpec.tiny("tiny"))
    drafting = ServerSpec.tiny("tiny-ngram", "--speculative-algorithm NGRAM")

    assert control.but("t", "--x").standin() is None
    standin = control.but("t", "--x", cpu_standin=drafting).standin()
    assert standin is not None
    assert standin.drafting
