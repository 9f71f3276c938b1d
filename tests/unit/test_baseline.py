from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import jsonschema
import pytest

from pytest_specdec import jsonfile
from pytest_specdec.baseline import (
    SCHEMA_VERSION,
    Baseline,
    Identity,
    MetricBaseline,
    Provenance,
    check_identity,
    estimate,
    read_baseline,
    to_document,
    write_baseline,
)
from pytest_specdec.baseline_admin import SCHEMA_PATH
from pytest_specdec.errors import BaselineFileError
from pytest_specdec.metrics import METHOD_VERSION, METRICS
from pytest_specdec.model import RoundsByLaunch, Sampling

ROOT = Path(__file__).parent.parent.parent
VERSION_1 = ROOT / "tests" / "data" / "baselines" / "version-1.json"
VERSION_2 = ROOT / "tests" / "data" / "baselines" / "version-2.json"
SCHEMA = json.loads(SCHEMA_PATH.read_text("utf-8"))

IDENTITY = Identity(
    model="/data/models/kimi-k2.5-int4",
    model_revision="4ab1f0c",
    draft="/data/eagle3/synth_100k",
    draft_revision=None,
    workload_hash="5f" * 32,
    sampling=Sampling(temperature=0.7, seed=9007199254740993).identity(),
    output_tokens=512,
    concurrency=1,
)
PROVENANCE = Provenance(
    source="program",
    recorded_at="2026-11-29T12:00:00+00:00",
    git_commit="510c3fb",
    command="pytest --gpu-host --update-baselines",
)
UNKNOWN = Identity(
    model=None,
    model_revision=None,
    draft=None,
    draft_revision=None,
    workload_hash=None,
    sampling=None,
    output_tokens=None,
    concurrency=None,
    method_version=None,
)
DOCUMENT = Provenance(source="document", recorded_at=None, git_commit=None, command=None)


def metric(name: str, *launches: tuple[float, ...], **known: Any) -> MetricBaseline:
    plain: dict[str, Any] = {"gate": True, "tolerance": METRICS[name].default_tolerance, "floor": None}
    return MetricBaseline(
        direction=METRICS[name].direction, unit=METRICS[name].unit, launches=launches, **{**plain, **known}
    )


def baseline(identity: Identity = IDENTITY, provenance: Provenance = PROVENANCE, **metrics: MetricBaseline) -> Baseline:
    return Baseline(identity=identity, environment={}, provenance=provenance, metrics=metrics)


def test_a_file_of_version_1_is_read() -> None:
    stored = read_baseline(VERSION_1)

    assert stored.identity == IDENTITY
    assert stored.provenance == PROVENANCE
    assert stored.environment["args.mem_fraction_static"] == 0.85
    assert sorted(stored.metrics) == ["accept_length", "decode_tok_s", "ttft_ms", "verify_rate"]
    assert stored.metrics["decode_tok_s"] == MetricBaseline(
        direction="higher",
        unit="tok/s",
        gate=True,
        tolerance=0.02,
        floor=89.5,
        launches=((100.0, 102.0, 98.0), (100.0, 98.0, 102.0)),
        note="the contract",
    )


def test_a_file_of_version_2_knows_the_classes_of_task_as_well() -> None:
    stored = read_baseline(VERSION_2)

    assert stored.categories == {
        "code": {"accept_length": (3.1, 3.0), "verify_rate": (40.0, 39.5)},
        "prose": {"accept_length": (1.9, 2.0)},
    }
    assert dataclasses.replace(stored, categories={}) == read_baseline(VERSION_1)


def test_writing_what_was_read_gives_the_same_bytes(tmp_path: Path) -> None:
    write_baseline(tmp_path / "a.json", read_baseline(VERSION_2))

    assert (tmp_path / "a.json").read_bytes() == VERSION_2.read_bytes()


def test_what_a_file_derives_follows_from_its_rounds_as_it_holds_them(tmp_path: Path) -> None:
    random_ = random.Random(3)  # a seed makes this repeat
    path = tmp_path / "a.json"
    for _ in range(20):
        rounds = tuple(tuple(100 * math.exp(random_.gauss(0, 0.01)) for _ in range(5)) for _ in range(5))
        write_baseline(path, baseline(decode_tok_s=metric("decode_tok_s", *rounds)))
        before = path.read_bytes()

        write_baseline(path, read_baseline(path))

        assert path.read_bytes() == before


def test_a_file_of_version_1_is_written_as_version_2_with_a_mean_of_geometric_means(tmp_path: Path) -> None:
    write_baseline(tmp_path / "a.json", read_baseline(VERSION_1))

    written, expected = jsonfile.read(tmp_path / "a.json"), jsonfile.read(VERSION_2)
    del expected["categories"]
    assert written == expected
    # The median round is 100; the geometric mean of 100, 102 and 98 is not.
    assert jsonfile.read(VERSION_1)["metrics"]["decode_tok_s"]["mean"] == 100.0
    assert written["metrics"]["decode_tok_s"]["mean"] == pytest.approx((100.0 * 102 * 98) ** (1 / 3), rel=1e-5)


def test_a_broken_file_of_version_1_is_told_as_what_it_is(tmp_path: Path) -> None:
    document = {**jsonfile.read(VERSION_1), "metrics": {"decode_tok_s": 7}}
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")

    with pytest.raises(BaselineFileError, match=r"metrics\.decode_tok_s: expected an object, got 7"):
        read_baseline(tmp_path / "a.json")


def test_the_detectable_change_that_is_written_is_that_of_the_metrics_that_gate_in_the_file() -> None:
    """Greedy acceptance: the smallest sigma is all its noise, and the tolerance stands in front of the rest."""
    steady = metric("accept_length", *5 * ((2.5, 2.5),))
    noisy = metric("decode_tok_s", *(tuple(100 * math.exp(x / 100 + y) for y in (-0.01, 0.01)) for x in range(5)))

    def seen(name: str, recorded: Baseline) -> float:
        return float(to_document(recorded)["metrics"][name]["detectable_change"])

    # Five launches recorded, three judged: sd 0.002 sqrt(1/5 + 1/3), missed once in twenty.
    loss = -math.log(0.99) + NormalDist().inv_cdf(0.95) * 0.002 * math.sqrt(1 / 5 + 1 / 3)
    assert seen("accept_length", baseline(accept_length=steady)) == pytest.approx(1 - math.exp(-loss), abs=5e-5)
    alone = seen("decode_tok_s", baseline(decode_tok_s=noisy))
    assert seen("decode_tok_s", baseline(decode_tok_s=noisy, accept_length=steady)) > alone, "two share false alarms"
    advisory, floor_only = dataclasses.replace(steady, gate=False), metric("accept_length", floor=2.0)
    assert seen("decode_tok_s", baseline(decode_tok_s=noisy, accept_length=advisory)) == alone
    assert seen("decode_tok_s", baseline(decode_tok_s=noisy, accept_length=floor_only)) == alone


def test_without_samples_no_detectable_change_is_written() -> None:
    document = to_document(baseline(decode_tok_s=metric("decode_tok_s", floor=89.5)))

    assert "detectable_change" not in document["metrics"]["decode_tok_s"]


def test_a_written_file_holds_the_mean_and_the_noise_that_follow_from_its_rounds(tmp_path: Path) -> None:
    # On the log scale: launches at 0 and 2, rounds at -1 and 1 around each. MSW = 4/2, MSB = 2*1 + 2*1 = 4, n0 = 2.
    rounds = tuple(tuple(math.exp(center + x) for x in (-1.0, 1.0)) for center in (0.0, 2.0))
    write_baseline(tmp_path / "a.json", baseline(decode_tok_s=metric("decode_tok_s", *rounds)))

    stored = jsonfile.read(tmp_path / "a.json")["metrics"]["decode_tok_s"]

    assert stored["sd_within"] == pytest.approx(math.sqrt(2), rel=1e-5)
    assert stored["sd_between"] == pytest.approx(math.sqrt((4 - 2) / 2), rel=1e-5)
    assert stored["mean"] == pytest.approx(math.e, rel=1e-5)  # geometric means 1 and e^2


def test_the_estimate_is_the_geometric_mean_over_launches_of_their_geometric_means() -> None:
    assert estimate(((80.0, 125.0), (121.0,))) == pytest.approx(110.0)  # sqrt(80 * 125) is 100, sqrt(100 * 121)


@pytest.mark.parametrize(
    "launches",
    [(), ((),), ((100.0,), ()), ((100.0, math.nan, 100.0),), ((100.0, 100.0, math.inf),), ((0.0, 1.0, 1.0),)],
)
def test_there_is_no_estimate_when_a_launch_or_a_round_has_no_usable_value(launches: RoundsByLaunch) -> None:
    assert estimate(launches) is None


Spoil = Callable[[dict[str, Any]], object]


def spoiled(path: Path, spoil: Spoil) -> Path:
    document = json.loads(VERSION_2.read_text(encoding="utf-8"))
    spoil(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def assign(value: object, *keys: str) -> Spoil:
    def spoil(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return spoil


REMEDY = "correct it, or delete the file and record again with --update-baselines"


MALFORMED: Final[Sequence[tuple[Spoil, str]]] = [
    (
        assign(-0.1, "metrics", "decode_tok_s", "tolerance"),
        f"metrics.decode_tok_s.tolerance: expected a number of at least 0 and below 1, got -0.1; {REMEDY}",
    ),
    (
        assign(1, "metrics", "decode_tok_s", "tolerance"),
        f"metrics.decode_tok_s.tolerance: expected a number of at least 0 and below 1, got 1; {REMEDY}",
    ),
    (
        assign("2 %", "metrics", "decode_tok_s", "tolerance"),
        f"metrics.decode_tok_s.tolerance: expected a number of at least 0 and below 1, got '2 %'; {REMEDY}",
    ),
    (
        assign(True, "metrics", "decode_tok_s", "tolerance"),
        f"metrics.decode_tok_s.tolerance: expected a number of at least 0 and below 1, got True; {REMEDY}",
    ),
    (
        assign(math.nan, "metrics", "decode_tok_s", "tolerance"),
        "metrics.decode_tok_s.tolerance: NaN is not a number that can be judged by; write a finite one",
    ),
    (
        assign(0, "metrics", "decode_tok_s", "floor"),
        f"metrics.decode_tok_s.floor: expected a number above 0, got 0; {REMEDY}",
    ),
    (
        assign("yes", "metrics", "decode_tok_s", "gate"),
        f"metrics.decode_tok_s.gate: expected true or false, got 'yes'; {REMEDY}",
    ),
    (
        assign("lower", "metrics", "decode_tok_s", "direction"),
        f"metrics.decode_tok_s.direction: expected higher, got 'lower'; {REMEDY}",
    ),
    (
        assign("s", "metrics", "ttft_ms", "unit"),
        f"metrics.ttft_ms.unit: expected ms, got 's'; {REMEDY}",
    ),
    (
        assign([[100.0, 0.0]], "metrics", "decode_tok_s", "launches"),
        f"metrics.decode_tok_s.launches[0][1]: expected a number above 0, got 0.0; {REMEDY}",
    ),
    (
        assign([100.0], "metrics", "decode_tok_s", "launches"),
        (
            "metrics.decode_tok_s.launches: expected a list of launches, each a list of rounds that is not empty, "
            f"got [100.0]; {REMEDY}"
        ),
    ),
    (
        assign([[]], "metrics", "decode_tok_s", "launches"),
        (
            "metrics.decode_tok_s.launches: expected a list of launches, each a list of rounds that is not empty, "
            f"got [[]]; {REMEDY}"
        ),
    ),
    (
        assign(120.0, "metrics", "decode_tok_s", "mean"),
        f"metrics.decode_tok_s.mean: expected 99.9867, which follows from the launches, got 120.0; {REMEDY}",
    ),
    (
        assign([], "metrics", "decode_tok_s", "launches"),
        (
            "metrics.decode_tok_s.mean: expected no mean beside empty launches (set a floor to hold a metric to a "
            f"number), got 99.9867; {REMEDY}"
        ),
    ),
    (
        assign(-1.0, "metrics", "decode_tok_s", "sd_within"),
        f"metrics.decode_tok_s.sd_within: expected a number of at least 0, got -1.0; {REMEDY}",
    ),
    (
        assign(-0.1, "metrics", "decode_tok_s", "detectable_change"),
        f"metrics.decode_tok_s.detectable_change: expected a number of at least 0, got -0.1; {REMEDY}",
    ),
    (
        assign([3.1, 0], "categories", "code", "accept_length"),
        f"categories.code.accept_length[1]: expected a number above 0, got 0; {REMEDY}",
    ),
    (
        assign([], "categories", "code", "accept_length"),
        f"categories.code.accept_length: expected a list of values, one a launch, that is not empty, got []; {REMEDY}",
    ),
    (
        assign([3.1], "categories", "code", "accept_lenght"),
        "categories.code.accept_lenght: unknown key (did you mean 'accept_length'?); delete or correct it",
    ),
    (
        assign(89.5, "metrics", "decode_tok_s", "flor"),
        "metrics.decode_tok_s.flor: unknown key (did you mean 'floor'?); delete or correct it",
    ),
    (assign(1, "zzz"), "zzz: unknown key; delete or correct it"),
    (
        assign({}, "metrics", "decode_toks"),
        "metrics.decode_toks: unknown metric (did you mean 'decode_tok_s'?); there are " + ", ".join(METRICS),
    ),
    (
        assign({}, "metrics", "zzz"),
        "metrics.zzz: unknown metric; there are " + ", ".join(METRICS),
    ),
    (
        lambda document: document["metrics"]["decode_tok_s"].pop("gate"),
        "metrics.decode_tok_s.gate is missing; restore it from version control",
    ),
    (lambda document: document.pop("identity"), "identity is missing; restore it from version control"),
    (assign([], "metrics"), f"metrics: expected an object, got []; {REMEDY}"),
    (assign(None, "identity"), f"identity: expected an object, got None; {REMEDY}"),
    (
        assign(None, "identity", "workload_hash"),
        "identity.workload_hash: expected a value (null is for files with provenance.source document), got None; "
        + REMEDY,
    ),
    (assign(7, "identity", "model"), f"identity.model: expected a text, got 7; {REMEDY}"),
    (
        assign(0, "identity", "concurrency"),
        f"identity.concurrency: expected a whole number of at least 1, got 0; {REMEDY}",
    ),
    (
        assign(1, "identity", "output_tokens"),
        f"identity.output_tokens: expected a whole number of at least 2, got 1; {REMEDY}",
    ),
    (
        assign(True, "identity", "concurrency"),
        f"identity.concurrency: expected a whole number of at least 1, got True; {REMEDY}",
    ),
    (
        assign("hot", "identity", "sampling", "temperature"),
        f"identity.sampling.temperature: expected a number or null, got 'hot'; {REMEDY}",
    ),
    (
        assign("me", "provenance", "source"),
        f"provenance.source: expected one of program, document, got 'me'; {REMEDY}",
    ),
    (
        assign("yesterday", "provenance", "recorded_at"),
        f"provenance.recorded_at: expected a time as 2026-11-29T12:00:00+00:00, got 'yesterday'; {REMEDY}",
    ),
    (
        assign("2026-11-29T12:00:00+01:00", "provenance", "recorded_at"),
        (
            "provenance.recorded_at: expected a time in UTC, as 2026-11-29T12:00:00+00:00, got "
            f"'2026-11-29T12:00:00+01:00'; {REMEDY}"
        ),
    ),
    (
        assign(SCHEMA_VERSION + 1, "schema_version"),
        f"schema_version is {SCHEMA_VERSION + 1}, and this pytest-specdec reads up to {SCHEMA_VERSION}: upgrade it",
    ),
    (
        lambda document: document.pop("schema_version"),
        (
            "schema_version: expected a whole number of at least 1, got None; without it the file can't be "
            "understood: restore it or record it again"
        ),
    ),
]


@pytest.mark.parametrize(("spoil", "said"), MALFORMED)
def test_a_malformed_file_is_refused_with_path_key_and_remedy(tmp_path: Path, spoil: Spoil, said: str) -> None:
    path = spoiled(tmp_path / "a.json", spoil)

    with pytest.raises(BaselineFileError) as caught:
        read_baseline(path)

    assert str(caught.value) == f"{path}: {said}"


#: What no schema can hold: a value that follows from others, and a number that JSON does not have.
BEYOND_A_SCHEMA: Final = ("which follows from the launches", "NaN is not a number")


@pytest.mark.parametrize(("spoil", "said"), MALFORMED)
def test_the_schema_refuses_it_too(tmp_path: Path, spoil: Spoil, said: str) -> None:
    document = json.loads(spoiled(tmp_path / "a.json", spoil).read_text())

    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(document) == any(words in said for words in BEYOND_A_SCHEMA)


def test_a_mean_that_differs_in_the_last_digit_kept_is_accepted(tmp_path: Path) -> None:
    path = spoiled(tmp_path / "a.json", assign(99.9868, "metrics", "decode_tok_s", "mean"))

    assert read_baseline(path).metrics["decode_tok_s"].mean == pytest.approx(99.98667, rel=1e-7)


def test_a_time_in_utc_may_end_in_z(tmp_path: Path) -> None:
    path = spoiled(tmp_path / "a.json", assign("2026-11-29T12:00:00Z", "provenance", "recorded_at"))

    assert read_baseline(path).provenance.recorded_at == "2026-11-29T12:00:00Z"


def test_unknown_identity_is_allowed_in_a_document(tmp_path: Path) -> None:
    write_baseline(tmp_path / "a.json", baseline(UNKNOWN, DOCUMENT, decode_tok_s=metric("decode_tok_s", floor=89.5)))

    stored = read_baseline(tmp_path / "a.json")

    assert stored.identity == UNKNOWN
    assert stored.metrics["decode_tok_s"].mean is None


@pytest.mark.parametrize(
    ("field", "now"),
    [
        ("model", "/data/models/other"),
        ("model_revision", "0000000"),
        ("draft", "/data/eagle3/other"),
        ("draft", None),
        ("workload_hash", "00" * 32),
        ("sampling", Sampling().identity()),
        ("output_tokens", 256),
        ("concurrency", 16),
        ("method_version", METHOD_VERSION + 1),
    ],
)
def test_a_field_that_differs_is_named_with_both_values(field: str, now: Any) -> None:
    check = check_identity(baseline(), dataclasses.replace(IDENTITY, **{field: now}))

    assert check.differing == ((field, getattr(IDENTITY, field), now),)
    assert check.unknown == ()


def test_the_same_identity_has_no_difference() -> None:
    check = check_identity(read_baseline(VERSION_1), IDENTITY)

    assert (check.differing, check.unknown) == ((), ())


def test_sampling_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    third = dataclasses.replace(IDENTITY, sampling=Sampling(temperature=1 / 3).identity())
    write_baseline(tmp_path / "a.json", baseline(third, decode_tok_s=metric("decode_tok_s", (100.0,))))

    assert check_identity(read_baseline(tmp_path / "a.json"), third).differing == ()


def test_what_a_document_does_not_know_is_listed_and_not_compared() -> None:
    known = dataclasses.replace(UNKNOWN, output_tokens=512, concurrency=1)

    check = check_identity(baseline(known, DOCUMENT), dataclasses.replace(IDENTITY, concurrency=2, draft=None))

    assert check.differing == (("concurrency", 1, 2),)
    assert check.unknown == (
        "model",
        "model_revision",
        "draft",
        "draft_revision",
        "workload_hash",
        "sampling",
        "method_version",
    )


def test_a_file_that_does_not_say_was_recorded_without_a_chat_template_by_the_program() -> None:
    recorded = read_baseline(VERSION_1)
    templated = dataclasses.replace(recorded.identity, chat_template=True)

    assert check_identity(recorded, templated).differing == (("chat_template", False, True),)
    document = dataclasses.replace(
        recorded,
        identity=dataclasses.replace(recorded.identity, chat_template=None),
        provenance=dataclasses.replace(recorded.provenance, source="document"),
    )
    assert "chat_template" in check_identity(document, templated).unknown
    assert "chat_template" not in to_document(document)["identity"]


def test_that_a_chat_template_was_used_is_written_and_read(tmp_path: Path) -> None:
    recorded = read_baseline(VERSION_1)
    templated = dataclasses.replace(recorded, identity=dataclasses.replace(recorded.identity, chat_template=True))

    write_baseline(tmp_path / "a.json", templated)

    assert read_baseline(tmp_path / "a.json").identity == templated.identity
    jsonschema.validate(json.loads((tmp_path / "a.json").read_text()), SCHEMA)


def test_no_draft_in_a_file_of_the_program_means_that_there_was_none() -> None:
    recorded = baseline(dataclasses.replace(IDENTITY, draft=None))

    assert check_identity(recorded, IDENTITY).differing == (("draft", None, IDENTITY.draft),)


def test_a_revision_known_on_one_side_only_is_not_compared() -> None:
    check = check_identity(baseline(), dataclasses.replace(IDENTITY, model_revision=None))

    assert (check.differing, check.unknown) == ((), ("model_revision",))


def test_the_request_rate_is_part_of_the_identity(tmp_path: Path) -> None:
    at_four = dataclasses.replace(IDENTITY, request_rate=4.0)
    write_baseline(tmp_path / "a.json", baseline(at_four, decode_tok_s=metric("decode_tok_s", (100.0,))))
    jsonschema.validate(jsonfile.read(tmp_path / "a.json"), SCHEMA, cls=jsonschema.Draft202012Validator)

    stored = read_baseline(tmp_path / "a.json")

    assert stored.identity.request_rate == 4.0
    assert check_identity(stored, at_four).differing == ()
    assert check_identity(stored, IDENTITY).differing == (("request_rate", 4.0, None),)


@pytest.mark.parametrize(
    ("concurrency", "request_rate", "streams"), [(1, None, 1), (16, None, 16), (16, 4.0, 1), (None, None, 1)]
)
def test_what_decides_the_gates_is_the_concurrency_of_a_closed_loop(
    concurrency: int | None, request_rate: float | None, streams: int
) -> None:
    asked = dataclasses.replace(IDENTITY, concurrency=concurrency, request_rate=request_rate)

    assert asked.streams == streams


def test_a_file_that_names_no_request_rate_is_of_a_closed_loop() -> None:
    check = check_identity(read_baseline(VERSION_1), dataclasses.replace(IDENTITY, request_rate=4.0))

    assert check.differing == (("request_rate", None, 4.0),)


def test_limits_for_goodput_are_written_when_they_are_stated_and_read_back(tmp_path: Path) -> None:
    limited = dataclasses.replace(IDENTITY, goodput={"ttft_ms": 500.0, "tpot_ms": 25.0})
    write_baseline(tmp_path / "a.json", baseline(limited))

    document = json.loads((tmp_path / "a.json").read_text())
    jsonschema.validate(document, SCHEMA)
    assert document["identity"]["goodput"] == {"tpot_ms": 25, "ttft_ms": 500}
    assert read_baseline(tmp_path / "a.json").identity == limited
    assert "goodput" not in to_document(baseline())["identity"]


@pytest.mark.parametrize("limits", [{"ttft": 500}, {"ttft_ms": 0}, {"ttft_ms": "fast"}, None])
def test_limits_that_are_none_are_refused_in_a_file(tmp_path: Path, limits: object) -> None:
    document = {**to_document(baseline()), "identity": {**to_document(baseline())["identity"], "goodput": limits}}
    (tmp_path / "a.json").write_text(json.dumps(document), encoding="utf-8")

    with pytest.raises(BaselineFileError, match=r"identity\.goodput"):
        read_baseline(tmp_path / "a.json")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_other_limits_are_another_identity() -> None:
    limited = dataclasses.replace(IDENTITY, goodput={"ttft_ms": 500.0})
    other = dataclasses.replace(IDENTITY, goodput={"ttft_ms": 400.0})

    assert check_identity(baseline(limited), limited).differing == ()
    assert check_identity(baseline(limited), other).differing == (("goodput", {"ttft_ms": 500.0}, {"ttft_ms": 400.0}),)
    assert check_identity(baseline(), limited).differing == (("goodput", None, {"ttft_ms": 500.0}),)
    assert check_identity(baseline(IDENTITY, DOCUMENT), limited).differing == ()
    assert "goodput" in check_identity(baseline(IDENTITY, DOCUMENT), limited).unknown
    assert "goodput" not in check_identity(baseline(IDENTITY, DOCUMENT), IDENTITY).unknown
