"""What a server tells of itself, against what a spec asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec import ServerSpec
from pytest_specdec.agreement import disagreements, same_model
from pytest_specdec.client import ServerInfo, parse_server_info

DATA = Path(__file__).parents[1] / "data"
ANSWER: dict[str, Any] = json.loads((DATA / "server_info_0.5.23.json").read_text(encoding="utf-8"))
OPTIONS: list[dict[str, Any]] = json.loads((DATA / "args_0.5.23.json").read_text(encoding="utf-8"))


def told(**changes: object) -> ServerInfo:
    """The answer of a real server, with other arguments."""
    return parse_server_info({**ANSWER, **changes})


def eagle(**changes: object) -> ServerInfo:
    drafting = {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "/data/draft",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    return told(**{**drafting, **changes})


def spec(flags: str) -> ServerSpec:
    return ServerSpec("base", "/models/tiny", args=flags)


def test_the_server_that_was_started_with_the_same_line_agrees() -> None:
    line = f"python -m sglang.launch_server {ANSWER['launch_command']}"

    assert disagreements(ServerSpec.from_command("base", line), told()) == ()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--tp 8", "--tp is 8 in the spec, and 1 on the server"),
        ("--pipeline-parallel-size=2", "--pipeline-parallel-size is 2 in the spec, and 1 on the server"),
        ("--dp-size 4", "--dp-size is 4 in the spec, and 1 on the server"),
        ("--decode-log-interval 40", "--decode-log-interval is 40 in the spec, and 10 on the server"),
        ("--stream_interval 8", "--stream_interval is 8 in the spec, and 1 on the server"),
        ("--tbo-token-distribution-threshold 0.5", "--tbo-token-distribution-threshold is 0.5 in the spec, and 0.48 "),
        ("--enable-mscclpp", "--enable-mscclpp is given in the spec, and off on the server"),
        ("--no-dllm-fdfo", "--no-dllm-fdfo is given in the spec, and on on the server"),
        ("--log-level warning", "--log-level is warning in the spec, and info on the server"),
        ("--device cuda", "--device is cuda in the spec, and cpu on the server"),
        (
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path /d",
            "--speculative-algorithm is EAGLE3 in the spec, and the server does not draft",
        ),
    ],
)
def test_what_differs_is_named_with_both_values(flags: str, line: str) -> None:
    (said,) = disagreements(spec(flags), told())

    assert said.startswith(line)


def test_every_difference_has_a_line() -> None:
    lines = disagreements(spec("--tp 8 --log-level warning --stream-interval 1"), told())

    assert [line.split()[0] for line in lines] == ["--tp", "--log-level"]


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("--tp 1", {"tp_size": None}),
        ("--dp-size 2 --enable-dp-attention", {"dp_size": 1, "attn_dp_size": 2}),
        ("--tp 8 --ep-size 2", {"tp_size": 8, "ep_size": 8}),
        ("--device cpu:0", {}),
        ("--enable-mixed-chunk --mem-fraction-static 0.9 --page-size 64 --dtype bfloat16", {}),
        ("--sampling-backend flashinfer --attention-backend intel_amx", {}),
        ("--flag-of-another-version 7", {}),
        ("--mm-feature-transport auto --fp8-gemm-backend auto", {}),
        ("--api-key hidden", {}),
        ("--no-dllm-fdfo", {"dllm_fdfo": False}),
        ("--swa-full-tokens-ratio 0.80", {}),
        ("--uvicorn-access-log-exclude-prefixes /a /b", {"uvicorn_access_log_exclude_prefixes": ["/a", "/b"]}),
        ("--dllm-algorithm X --pp-size 2", {}),
    ],
)
def test_what_sglang_changes_by_itself_is_no_difference(flags: str, changes: dict[str, object]) -> None:
    assert disagreements(spec(flags), told(**changes)) == ()


EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path /data/draft"


@pytest.mark.parametrize(
    ("flags", "changes", "differing"),
    [
        (EAGLE3, {}, []),
        (EAGLE3.replace("EAGLE3", "eagle3"), {}, []),
        (EAGLE3.replace("EAGLE3", "EAGLE"), {}, ["--speculative-algorithm"]),
        (EAGLE3.replace("EAGLE3", "NEXTN"), {"speculative_algorithm": "EAGLE"}, []),
        (EAGLE3.replace("EAGLE3", "EAGLE"), {"speculative_algorithm": "FROZEN_KV_MTP"}, []),
        (EAGLE3.replace("/data/draft", "/data/other"), {}, ["--speculative-draft-model-path"]),
        (EAGLE3.replace("/data/draft", "~/draft"), {"speculative_draft_model_path": "/home/u/draft"}, []),
        (f"{EAGLE3} --speculative-num-steps 5", {}, ["--speculative-num-steps"]),
        (f"{EAGLE3} --speculative-eagle-topk 4", {}, ["--speculative-eagle-topk"]),
        (f"{EAGLE3} --speculative-num-draft-tokens 6", {}, []),
        (
            f"{EAGLE3} --speculative-num-draft-tokens 6",
            {"speculative_eagle_topk": 2},
            ["--speculative-num-draft-tokens"],
        ),
        (f"{EAGLE3} --speculative-num-steps 5 --speculative-adaptive", {"speculative_adaptive": True}, []),
        ("--speculative-algorithm NGRAM --speculative-eagle-topk 4", {"speculative_algorithm": "NGRAM"}, []),
    ],
)
def test_drafting_is_compared_as_sglang_resolves_it(
    flags: str, changes: dict[str, object], differing: list[str]
) -> None:
    assert [line.split()[0] for line in disagreements(spec(flags), eagle(**changes))] == differing


def test_a_server_that_drafts_is_not_the_one_that_does_not() -> None:
    assert disagreements(spec(""), eagle()) == (
        "the spec gives no --speculative-algorithm, and the server runs with EAGLE3",
    )


def told_as_flags() -> list[str]:
    """Each option of the parser as a flag with what the real server told of it."""
    flags = []
    for option in OPTIONS:
        said = ANSWER.get(option["dest"])
        if option["dest"] in ("model_path", "host", "port") or isinstance(said, (dict, list)) or said in (None, False):
            continue
        flag = next(name for name in option["opts"] if name.startswith("--"))
        flags.append(flag if option["nargs"] == "0" else f"{flag}={said}")
    return flags


@pytest.mark.parametrize("flag", told_as_flags())
def test_what_the_server_tells_of_an_option_agrees_with_it(flag: str) -> None:
    """No spelling and no type of value gives a false alarm."""
    assert disagreements(ServerSpec("base", "/models/tiny", args=(flag,)), told()) == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("/models/m/", "/models/m"),
        ("org/m", "org/m"),
        ("org/m", "/cache/hub/org/m"),
        ("org/m.5", "/cache/modelscope/org/m___5"),
        ("org/m", "/cache/hub/models--org--m/snapshots/0a1b"),
        ("org/m:Q4_K_M", "/cache/hub/models--org--m/snapshots/0a1b/m-Q4_K_M.gguf"),
        ("~/models/m", "/home/u/models/m"),
        ("./m", "./m"),
        ("s3://bucket/m", "/tmp/cache/0a1b"),
        ("tiny:target", "/cache/tiny-models-0a1b/target"),
    ],
)
def test_a_model_is_known_by_the_place_it_was_put_in(given: str, said: str) -> None:
    assert same_model(given, said)


@pytest.mark.parametrize(
    ("given", "said"),
    [("/models/m", "/models/n"), ("m", "/models/mm"), ("/a/m", "/b/m"), ("org/m", "/hub/models--org--n/snapshots/1")],
)
def test_another_model_is_another(given: str, said: str) -> None:
    assert not same_model(given, said)
