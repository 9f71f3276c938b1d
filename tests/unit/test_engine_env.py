from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_specdec.engine_env import ENGINE, cache_root, cpu_engine_environment, tiny_model_paths
from pytest_specdec.errors import HostError
from pytest_specdec.hosts import Completed
from tests.fakes.host import FakeHost, told


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PYTEST_SPECDEC_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, Path("/own")),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/pytest-specdec")),
        ({"PYTEST_SPECDEC_CACHE": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "pytest-specdec"),
    ],
)
def test_the_cache_is_where_its_variable_says_or_below_the_user_s(environ: dict[str, str], expected: Path) -> None:
    assert cache_root(environ) == expected


def test_the_engine_comes_first_on_the_python_path() -> None:
    environment = cpu_engine_environment({"PYTHONPATH": "/mine"})

    assert environment["PYTHONPATH"] == f"{ENGINE / 'site'}{os.pathsep}/mine"
    assert (ENGINE / "site").is_dir()


def test_the_engine_s_variables_are_those_of_its_file() -> None:
    environment = cpu_engine_environment({"HOME": "/root"})

    assert environment.pop("PYTHONPATH") == str(ENGINE / "site")
    assert environment == json.loads((ENGINE / "environment.json").read_text())
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert all(isinstance(value, str) for value in environment.values())


class Maker:
    """Stands in for the script that makes the models: what it is asked to make, it makes empty."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> Completed:
        script, flag, folder, *names = argv[1:]
        assert (script, flag) == (str(ENGINE / "tiny_models.py"), "--out")
        self.asked.append(names)
        for name in names:
            (Path(folder) / name).mkdir(parents=True)
            (Path(folder) / name / "config.json").write_text("{}")
        return told(json.dumps({name: f"{folder}/{name}" for name in names}))


def test_missing_models_are_made_once_in_a_folder_named_after_the_maker(tmp_path: Path) -> None:
    host, maker = FakeHost(), Maker()
    host.answers["/venv/bin/python"] = maker

    def paths(*names: str) -> dict[str, str]:
        return tiny_model_paths(host, "/venv/bin/python", names, cache_dir=tmp_path)

    first = paths("tiny:target")
    second = paths("tiny:target", "tiny:eagle3-draft")

    folder = Path(first["tiny:target"]).parent
    assert folder.parent == tmp_path
    assert folder.name.startswith("tiny-models-")
    assert len(folder.name) == len("tiny-models-") + 12
    assert second == {"tiny:target": str(folder / "target"), "tiny:eagle3-draft": str(folder / "eagle3-draft")}
    assert paths("tiny:target") == first
    assert maker.asked == [["target"], ["eagle3-draft"]]


def test_a_maker_that_fails_is_quoted(tmp_path: Path) -> None:
    host = FakeHost()
    host.answers["python"] = told(stderr="usage\ntiny_models.py: error: no such model: tarmac", returncode=2)

    with pytest.raises(HostError) as caught:
        tiny_model_paths(host, "python", ["tiny:tarmac"], cache_dir=tmp_path)

    assert str(caught.value).startswith(f"the tiny models tarmac can't be made in {tmp_path}/tiny-models-")
    assert str(caught.value).endswith("with python:\nusage\ntiny_models.py: error: no such model: tarmac")
