"""The maker of tiny models."""

# ruff: noqa: RUF001  # text of other scripts is what is tested
from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

SCRIPT = Path(tiny_models.__file__)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models")
    for name in tiny_models.MAKERS:
        tiny_models.make_directory(name, out=out, seed=0)
    return out


def content(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_a_model_is_made_whole_and_nothing_else_is_left(models: Path) -> None:
    assert sorted(path.name for path in models.iterdir()) == sorted(tiny_models.MAKERS)
    assert sorted(content(models / "target")) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize("name", tiny_models.MAKERS)
def test_a_seed_gives_the_same_bytes_again(models: Path, tmp_path: Path, name: str) -> None:
    again = tiny_models.make_directory(name, out=tmp_path, seed=0)

    assert content(again) == content(models / name)


def test_another_seed_gives_other_weights(models: Path, tmp_path: Path) -> None:
    other = content(tiny_models.make_directory("target", out=tmp_path, seed=1))

    assert other["model.safetensors"] != content(models / "target")["model.safetensors"]


def test_a_model_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()

    assert tiny_models.make_directory("target", out=tmp_path, seed=0) == tmp_path / "target"
    assert list((tmp_path / "target").iterdir()) == []


def test_two_processes_at_once_make_one_model(tmp_path: Path, models: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "eagle-draft"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert [json.loads(output) for output in outputs] == [{"eagle-draft": str(tmp_path / "eagle-draft")}] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["eagle-draft"]
    assert content(tmp_path / "eagle-draft") == content(models / "eagle-draft")


@pytest.mark.parametrize("text", ["Hello, world!", "Größe ñandú — émoji 🚀", "你好，世界！", "  two\n\tlines ", ""])
def test_text_of_any_language_survives_the_tokenizer(models: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(models / "target" / "tokenizer.json"))

    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_target_writes_printable_tokens_only(models: Path) -> None:
    head = load_file(models / "target" / "model.safetensors")["lm_head.weight"]
    written = set(head.abs().sum(1).nonzero().flatten().tolist())

    assert written == set(tiny_models.make_tokens().printable)
    assert not written & {0, 1, 2}


def test_the_eagle3_draft_proposes_what_the_target_never_writes(models: Path) -> None:
    weights = load_file(models / "eagle3-draft" / "model.safetensors")
    proposed = (weights["d2t"] + torch.arange(len(weights["d2t"]))).tolist()

    assert not set(proposed) & set(tiny_models.make_tokens().printable)
    assert proposed == weights["t2d"].nonzero().flatten().tolist()
    assert len(proposed) == json.loads((models / "eagle3-draft" / "config.json").read_text())["draft_vocab_size"]


def test_the_standalone_draft_differs_from_the_target_by_its_noise(models: Path) -> None:
    target = load_file(models / "target" / "model.safetensors")
    draft = load_file(models / "standalone-draft" / "model.safetensors")
    name = "model.layers.3.mlp.up_proj.weight"
    nonzero = target[name] != 0
    relative = draft[name][nonzero] / target[name][nonzero] - 1

    assert draft.keys() == target.keys()
    assert relative.std().item() == pytest.approx(tiny_models.DRAFT_NOISE, rel=0.05)
    assert torch.equal(draft[name] == 0, target[name] == 0)


def test_the_key_needs_no_torch_and_tells_seeds_apart() -> None:
    def key(*arguments: str) -> str:
        # -S: without site-packages, so that importing torch would fail
        command = [sys.executable, "-S", str(SCRIPT), "--print-key", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    assert key() == key("--seed", "0") == tiny_models.model_key(0)
    assert key("--seed", "1") != key()


def test_an_unknown_model_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        tiny_models.main(["--out", "unused", "eagle4-draft"])

    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert "no such model: eagle4-draft; there are target, standalone-draft, eagle3-draft, eagle-draft" in message
