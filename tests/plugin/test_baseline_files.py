"""``pytest-specdec baselines``: what there is, and what no test looks at any more."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import TEST_B, Suite


@pytest.fixture
def recorded(suite: Suite) -> Suite:
    """A suite with a baseline that is used, and one that was used by a test that is gone."""
    suite.write(TEST_B)
    assert suite.run("--update-baselines", "--specdec-launches=1").ret == 0
    used = suite.baseline("b--smoke--c1--o31")
    document = json.loads(used.read_text())
    document["identity"]["output_tokens"] = 99
    used.with_name("b--smoke--c1--o99.json").write_text(json.dumps(document))
    return suite


def test_files_are_listed_with_their_figures_and_the_unused_one_is_marked(recorded: Suite) -> None:
    result = recorded.run("--specdec-baseline-files=list")

    assert result.ret == 0
    figures = r"decode_tok_s \S+ tok/s \(advisory\), accept_length 3\.000 tok/step"
    used = rf"cpu-test/b--smoke--c1--o31\.json +20\d\d-\d\d-\d\d +1 +{figures}$"
    result.stdout.re_match_lines([used, r"cpu-test/b--smoke--c1--o99\.json .* unused$"])
    assert recorded.launches == 1


def test_what_no_test_looks_at_is_deleted_and_nothing_else(recorded: Suite) -> None:
    result = recorded.run("--specdec-baseline-files=prune")

    assert result.ret == 0
    assert "deleted: " in result.stdout.str()
    assert [path.name for path in recorded.baseline("x").parent.iterdir()] == ["b--smoke--c1--o31.json"]


def test_a_gpu_spec_and_its_stand_in_are_used_where_neither_is_measured(suite: Suite) -> None:
    suite.write(
        "GPU = ServerSpec.from_command('gpu', 'python -m sglang.launch_server --model-path /m', cpu_standin=B)\n"
        + TEST_B.replace("[B]", "[GPU]")
    )
    for name in ("gpu--smoke--c1--o31", "gpu@cpu-standin--smoke--c1--o31", "gone--smoke--c1--o31"):
        suite.baseline(name).parent.mkdir(parents=True, exist_ok=True)
        suite.baseline(name).write_text("{}")

    suite.run("--specdec-baseline-files=prune", "--gpu-host")

    left = sorted(path.stem for path in suite.baseline("x").parent.iterdir())
    assert left == ["gpu--smoke--c1--o31", "gpu@cpu-standin--smoke--c1--o31"]


@pytest.mark.parametrize("args", [("-k", "nothing"), ("-m", "slow"), ("--deselect", "test_suite.py::test_b")])
def test_a_selection_is_refused(recorded: Suite, args: tuple[str, ...]) -> None:
    result = recorded.run("--specdec-baseline-files=prune", *args)

    assert result.ret != 0
    assert f"{args[0]} leaves tests out, and their baselines would look unused" in (
        result.stderr.str() + result.stdout.str()
    )
    assert len(list(recorded.baseline("x").parent.iterdir())) == 2


@pytest.mark.parametrize("body", ["def test_other():\n    pass\n", "import nothing_of_that_name\n"])
def test_without_a_test_of_ours_nothing_is_deleted(recorded: Suite, body: str) -> None:
    (recorded.root / "test_suite.py").write_text(body)

    recorded.run("--specdec-baseline-files=prune")

    assert len(list(recorded.baseline("x").parent.iterdir())) == 2
