from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from pytest_specdec.baseline import Baseline, Identity, MetricBaseline, Provenance, read_baseline, write_baseline
from pytest_specdec.baseline_store import BaselineStore, Change, default_gate, loosens, updated
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.metrics import METRICS
from pytest_specdec.model import RoundsByLaunch, Sampling

COMMITTED = Path(__file__).parent.parent.parent / "baselines"
KEY = "eagle3-s3--chat--c1--o512"
NODE = "8x-rtx-pro-6000-blackwell-server-edition"
IDENTITY = Identity(
    model="/data/models/kimi-k2.5-int4",
    model_revision=None,
    draft="/data/eagle3/synth_100k",
    draft_revision=None,
    workload_hash="5f" * 32,
    sampling=Sampling().identity(),
    output_tokens=512,
    concurrency=1,
)
PROVENANCE = Provenance(
    source="program",
    recorded_at="2026-11-29T12:00:00+00:00",
    git_commit="510c3fb",
    command="pytest --gpu-host --update-baselines",
)


def metric(name: str, *launches: tuple[float, ...], **known: Any) -> MetricBaseline:
    plain: dict[str, Any] = {"gate": True, "tolerance": METRICS[name].default_tolerance, "floor": None}
    return MetricBaseline(
        direction=METRICS[name].direction, unit=METRICS[name].unit, launches=launches, **{**plain, **known}
    )


def put(root: Path, node: str, **metrics: MetricBaseline) -> Path:
    path = root / node / f"{KEY}.json"
    write_baseline(path, Baseline(identity=IDENTITY, environment={}, provenance=PROVENANCE, metrics=metrics))
    return path


def test_a_node_without_baselines_has_a_path_to_write_to(tmp_path: Path) -> None:
    lookup = BaselineStore(tmp_path, NODE).lookup(KEY)

    assert (lookup.metrics, lookup.files) == ({}, ())
    assert lookup.path == tmp_path / NODE / f"{KEY}.json"


def test_metrics_are_looked_up_one_by_one_own_directory_then_alias_then_any(tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text('[aliases]\n"8x-rtx-pro-6000-*" = "blackwell"\n', encoding="utf-8")
    own = put(tmp_path, NODE, decode_tok_s=metric("decode_tok_s", (100.0,)))
    alias = put(
        tmp_path, "blackwell", decode_tok_s=metric("decode_tok_s", (50.0,)), ttft_ms=metric("ttft_ms", (200.0,))
    )
    anywhere = put(tmp_path, "any", ttft_ms=metric("ttft_ms", (1.0,)), accept_length=metric("accept_length", (3.9375,)))

    lookup = BaselineStore(tmp_path, NODE).lookup(KEY)

    assert {name: found.path for name, found in lookup.metrics.items()} == {
        "decode_tok_s": own,
        "ttft_ms": alias,
        "accept_length": anywhere,
    }
    assert lookup.metrics["decode_tok_s"].metric.mean == 100.0
    assert lookup.files == (own, alias, anywhere)
    assert lookup.path == own


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [(NODE, True), ("8x-rtx-pro-6000-blackwell*", True), ("8x-rtx", False), ("4x-*", False)],
)
def test_an_alias_is_an_exact_name_or_a_pattern(tmp_path: Path, pattern: str, matches: bool) -> None:
    (tmp_path / "nodes.toml").write_text(f'[aliases]\n"{pattern}" = "short"\n', encoding="utf-8")

    directories = BaselineStore(tmp_path, NODE).directories()

    assert directories == tuple(tmp_path / name for name in ([NODE, "short", "any"] if matches else [NODE, "any"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[aliases\n", "can't be read: "),
        ('aliases = "x"\n', "aliases: expected a table of node patterns and directory names"),
        ('[aliases]\n"a*" = 1\n', "aliases: expected a table of node patterns and directory names"),
    ],
)
def test_a_malformed_nodes_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(BaselineFileError) as caught:
        BaselineStore(tmp_path, NODE).lookup(KEY)

    assert str(caught.value).startswith(f"{path}: {said}")


def test_the_nodes_that_have_a_baseline_are_named(tmp_path: Path) -> None:
    for node in ("8x-h200", "8x-b200"):
        put(tmp_path, node, decode_tok_s=metric("decode_tok_s", (100.0,)))

    store = BaselineStore(tmp_path, NODE)

    assert store.nearest_nodes(KEY) == ("8x-b200", "8x-h200")
    assert store.nearest_nodes("other--chat--c1--o512") == ()


def test_files_that_nobody_looked_at_are_listed_for_this_node_only(tmp_path: Path) -> None:
    used = put(tmp_path, NODE, decode_tok_s=metric("decode_tok_s", (100.0,)))
    put(tmp_path, "8x-h200", decode_tok_s=metric("decode_tok_s", (100.0,)))
    left = used.with_name("gone--chat--c1--o512.json")
    left.write_bytes(used.read_bytes())

    assert BaselineStore(tmp_path, NODE).unused([used]) == (left,)


@pytest.mark.parametrize(
    ("name", "streams", "node", "gates"),
    [
        ("decode_tok_s", 1, NODE, True),
        ("decode_tok_s", 16, NODE, False),
        ("system_tok_s", 1, NODE, False),
        ("system_tok_s", 16, NODE, True),
        ("accept_length", 1, NODE, True),
        ("accept_length", 16, NODE, True),
        ("accept_length_sglang", 1, NODE, False),
        ("ttft_ms", 1, NODE, False),
        ("decode_tok_s", 1, "cpu-epyc-16c", False),
        ("system_tok_s", 16, "cpu-epyc-16c", False),
        ("accept_length", 1, "cpu-epyc-16c", True),
        ("accept_length_sglang", 1, "cpu-epyc-16c", False),
    ],
)
def test_what_gates_by_default(name: str, streams: int, node: str, gates: bool) -> None:
    assert default_gate(name, streams=streams, node=node) is gates


def update(
    root: Path,
    measured: dict[str, RoundsByLaunch],
    *,
    recorded_at: str = "2026-12-01T12:00:00+00:00",
    identity: Identity = IDENTITY,
) -> tuple[Change, ...]:
    """Write what was measured over what there is."""
    files, changes = updated(
        BaselineStore(root, NODE).lookup(KEY),
        measured,
        identity=identity,
        environment={"sglang_version": "0.5.23"},
        provenance=dataclasses.replace(PROVENANCE, recorded_at=recorded_at),
        node=NODE,
    )
    for path, recorded in files.items():
        write_baseline(path, recorded)
    return changes


def test_the_first_recording_takes_gates_and_tolerances_by_default(tmp_path: Path) -> None:
    changes = update(tmp_path, {"decode_tok_s": ((100.0, 121.0),), "ttft_ms": ((200.0,),)})

    path = tmp_path / NODE / f"{KEY}.json"
    stored = read_baseline(path)
    assert stored.metrics["decode_tok_s"] == metric("decode_tok_s", (100.0, 121.0), gate=True, tolerance=0.02)
    assert stored.metrics["ttft_ms"] == metric("ttft_ms", (200.0,), gate=False, tolerance=0.05)
    assert stored.identity == IDENTITY
    assert stored.environment == {"sglang_version": "0.5.23"}
    assert [change.line() for change in changes] == [
        f"{KEY}.json: decode_tok_s 110 tok/s (new)",
        f"{KEY}.json: ttft_ms 200 ms (new)",
    ]
    assert not any(change.loosened for change in changes)


@pytest.mark.parametrize(("request_rate", "gated"), [(None, "system_tok_s"), (4.0, "decode_tok_s")])
def test_which_throughput_is_recorded_as_a_gate_depends_on_the_loop(
    tmp_path: Path, request_rate: float | None, gated: str
) -> None:
    asked = dataclasses.replace(IDENTITY, concurrency=16, request_rate=request_rate)

    update(tmp_path, {"decode_tok_s": ((100.0,),), "system_tok_s": ((400.0,),)}, identity=asked)

    stored = read_baseline(tmp_path / NODE / f"{KEY}.json")
    assert [name for name, entry in stored.metrics.items() if entry.gate] == [gated]


def test_recording_the_same_twice_changes_nothing_but_the_time(tmp_path: Path) -> None:
    measured: dict[str, RoundsByLaunch] = {"decode_tok_s": ((100.0 / 3, 34.0), (33.5, 35.0))}
    path = tmp_path / NODE / f"{KEY}.json"
    update(tmp_path, measured)
    first = path.read_text()

    (change,) = update(tmp_path, measured)
    assert path.read_text() == first
    assert not change.loosened

    update(tmp_path, measured, recorded_at="2026-12-02T12:00:00+00:00")
    assert path.read_text() == first.replace("2026-12-01", "2026-12-02")


def test_an_update_replaces_rounds_and_keeps_what_people_set(tmp_path: Path) -> None:
    set_by_people: dict[str, Any] = {"gate": False, "tolerance": 0.1, "floor": 89.5, "note": "the contract"}
    path = put(tmp_path, NODE, decode_tok_s=metric("decode_tok_s", (100.0,), **set_by_people))

    (change,) = update(tmp_path, {"decode_tok_s": ((110.0,),)})

    assert read_baseline(path).metrics["decode_tok_s"] == metric("decode_tok_s", (110.0,), **set_by_people)
    assert change.line() == f"{KEY}.json: decode_tok_s 100 -> 110 tok/s (+10.0%)"


@pytest.mark.parametrize(
    ("name", "old", "new", "loosened"),
    [
        ("decode_tok_s", 100.0, 98.01, False),
        ("decode_tok_s", 100.0, 97.99, True),
        ("decode_tok_s", 100.0, 150.0, False),
        ("ttft_ms", 200.0, 209.0, False),
        ("ttft_ms", 200.0, 211.0, True),
        ("ttft_ms", 200.0, 100.0, False),
    ],
)
def test_a_value_beyond_the_old_limit_of_a_gated_metric_is_a_loosening(
    tmp_path: Path, name: str, old: float, new: float, loosened: bool
) -> None:
    put(tmp_path, NODE, **{name: metric(name, (old,))})

    (change,) = update(tmp_path, {name: ((new,),)})

    assert change.loosened is loosened
    assert change.line().endswith("  LOOSENED") is loosened


def test_an_advisory_metric_has_no_limit_to_loosen(tmp_path: Path) -> None:
    put(tmp_path, NODE, decode_tok_s=metric("decode_tok_s", (100.0,), gate=False))

    (change,) = update(tmp_path, {"decode_tok_s": ((10.0,),)})

    assert not change.loosened


def test_a_metric_is_updated_where_its_baseline_stands(tmp_path: Path) -> None:
    anywhere = put(tmp_path, "any", accept_length=metric("accept_length", (3.9,)))

    changes = update(tmp_path, {"accept_length": ((3.9375,),), "decode_tok_s": ((100.0,),)})

    own = tmp_path / NODE / f"{KEY}.json"
    assert {change.metric: change.path for change in changes} == {"accept_length": anywhere, "decode_tok_s": own}
    assert read_baseline(anywhere).metrics == {"accept_length": metric("accept_length", (3.9375,))}
    assert set(read_baseline(own).metrics) == {"decode_tok_s"}


def test_a_metric_that_was_not_measured_again_is_kept(tmp_path: Path) -> None:
    path = put(
        tmp_path, NODE, decode_tok_s=metric("decode_tok_s", (100.0,)), system_tok_s=metric("system_tok_s", floor=900.0)
    )

    update(tmp_path, {"decode_tok_s": ((101.0,),)})

    assert read_baseline(path).metrics["system_tok_s"] == metric("system_tok_s", floor=900.0)


@pytest.mark.parametrize("launches", [((math.nan,),), ((100.0,), ()), ((0.0, 100.0, 100.0),)])
def test_a_metric_without_a_usable_value_is_not_written(tmp_path: Path, launches: RoundsByLaunch) -> None:
    update(tmp_path, {"decode_tok_s": ((100.0,),), "ttft_ms": launches})

    assert set(read_baseline(tmp_path / NODE / f"{KEY}.json").metrics) == {"decode_tok_s"}


@pytest.mark.parametrize(
    ("name", "entry", "value", "expected"),
    [
        ("decode_tok_s", metric("decode_tok_s", (100.0,), tolerance=0.02), 97.9, True),
        ("decode_tok_s", metric("decode_tok_s", (100.0,), tolerance=0.02), 98.0 * (1 - 5e-7), False),
        ("decode_tok_s", metric("decode_tok_s", (100.0,), tolerance=0.02), 1e9, False),
        ("ttft_ms", metric("ttft_ms", (200.0,), tolerance=0.05), 210.1, True),
        ("ttft_ms", metric("ttft_ms", (200.0,), tolerance=0.05), 1.0, False),
        ("decode_tok_s", metric("decode_tok_s", floor=89.5), 1.0, False),
        ("accept_length", metric("accept_length", (3.0,), tolerance=0.01), 2.971, False),
        ("accept_length", metric("accept_length", (3.0,), tolerance=0.01), 2.969, True),
        # Half of the 0.01 beyond 1.0 may be lost, though 1 % of 1.01 is more than all of it.
        ("accept_length", metric("accept_length", (1.01,), tolerance=0.01), 1.0051, False),
        ("accept_length", metric("accept_length", (1.01,), tolerance=0.01), 1.0049, True),
        ("accept_length", metric("accept_length", (1.0,), tolerance=0.01), 1.0, False),
    ],
)
def test_a_loosening_is_worse_by_more_than_the_gate_allows_and_beyond_rounding(
    name: str, entry: MetricBaseline, value: float, expected: bool
) -> None:
    assert loosens(name, entry, value) is expected


def test_the_first_contract_is_a_floor_without_samples_for_every_edition_of_the_card() -> None:
    for node in ("8x-rtx-pro-6000-blackwell-server-edition", "8x-rtx-pro-6000-blackwell-max-q-workstation-edition"):
        lookup = BaselineStore(COMMITTED, node).lookup("kimi-k2.5-int4--chat--c1--o512")

        found = lookup.metrics["decode_tok_s"]
        assert found.path.parent.name == "8x-rtx-pro-6000-blackwell"
        assert (found.metric.floor, found.metric.gate, found.metric.launches) == (89.5, True, ())
        assert found.metric.note is not None
        assert "metric assumed" in found.metric.note
        assert found.baseline.provenance.source == "document"
        identity = found.baseline.identity
        assert (identity.output_tokens, identity.concurrency) == (512, 1)
        assert (identity.model, identity.workload_hash, identity.sampling, identity.method_version) == (None,) * 4

    assert not BaselineStore(COMMITTED, "8x-h200").lookup("kimi-k2.5-int4--chat--c1--o512").files


def test_a_metric_that_can_mean_nothing_is_recorded_as_advisory(tmp_path: Path) -> None:
    update(tmp_path, {"accept_length": ((2.0,),)})
    old = read_baseline(tmp_path / NODE / f"{KEY}.json")
    assert old.metrics["accept_length"].gate

    files, _ = updated(
        BaselineStore(tmp_path, NODE).lookup(KEY),
        {"accept_length": ((2.0,),)},
        identity=IDENTITY,
        environment={},
        provenance=PROVENANCE,
        node=NODE,
        never_gated=frozenset({"accept_length"}),
    )

    (recorded,) = files.values()
    assert not recorded.metrics["accept_length"].gate


def test_classes_of_task_are_those_of_the_first_file_that_knows(tmp_path: Path) -> None:
    def with_classes(node: str, name: str, value: float, categories: dict[str, dict[str, tuple[float, ...]]]) -> None:
        path = put(tmp_path, node, **{name: metric(name, (value,))})
        write_baseline(path, dataclasses.replace(read_baseline(path), categories=categories))

    with_classes(NODE, "verify_rate", 40.0, {"code": {"verify_rate": (20.0, 80.0)}})
    with_classes("any", "accept_length", 2.5, {"code": {"accept_length": (3.0,), "verify_rate": (1.0,)}, "prose": {}})

    lookup = BaselineStore(tmp_path, NODE).lookup(KEY)

    assert lookup.categories == {"code": {"verify_rate": pytest.approx(40.0), "accept_length": 3.0}}


def test_classes_of_task_go_where_their_metric_goes(tmp_path: Path) -> None:
    anywhere = put(tmp_path, "any", accept_length=metric("accept_length", (2.5,)))

    files, _ = updated(
        BaselineStore(tmp_path, NODE).lookup(KEY),
        {"accept_length": ((2.5,),), "verify_rate": ((40.0,),)},
        identity=IDENTITY,
        environment={},
        provenance=PROVENANCE,
        node=NODE,
        categories={
            "code": {"accept_length": (3.0,), "verify_rate": (39.0,)},
            "prose": {"accept_length": (2.0,)},
        },
    )

    own = tmp_path / NODE / f"{KEY}.json"
    assert files[anywhere].categories == {"code": {"accept_length": (3.0,)}, "prose": {"accept_length": (2.0,)}}
    assert files[own].categories == {"code": {"verify_rate": (39.0,)}}


def test_classes_of_task_of_a_metric_that_is_kept_stay_and_those_of_one_measured_again_are_replaced(
    tmp_path: Path,
) -> None:
    own = put(tmp_path, NODE, accept_length=metric("accept_length", (2.5,)), verify_rate=metric("verify_rate", (40.0,)))
    old = {
        "code": {"accept_length": (3.0,), "verify_rate": (39.0,)},
        "poems": {"accept_length": (1.5,)},
        "prose": {"verify_rate": (41.0,)},
    }
    write_baseline(own, dataclasses.replace(read_baseline(own), categories=old))

    files, _ = updated(
        BaselineStore(tmp_path, NODE).lookup(KEY),
        {"accept_length": ((2.6,),)},
        identity=IDENTITY,
        environment={},
        provenance=PROVENANCE,
        node=NODE,
        categories={"code": {"accept_length": (3.1,)}, "maths": {"accept_length": (3.4,)}},
    )

    # There are no poems in the workload any more.
    assert files[own].categories == {
        "code": {"accept_length": (3.1,), "verify_rate": (39.0,)},
        "maths": {"accept_length": (3.4,)},
        "prose": {"verify_rate": (41.0,)},
    }
