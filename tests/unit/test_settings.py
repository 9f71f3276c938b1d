"""Parsers of settings, precedence among their sources, and what they say together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pytest_specdec import options
from pytest_specdec import settings as s
from pytest_specdec.errors import UserInputError
from tests.unit.test_declare import settings


def test_the_first_given_source_wins_and_is_named() -> None:
    found = s.first_given(
        [None, s.Candidate("7", "PYTEST_SPECDEC_ROUNDS"), s.Candidate("9", "pytest.ini: specdec_rounds")],
        s.positive_int,
        5,
    )

    assert found == s.Resolved(7, "PYTEST_SPECDEC_ROUNDS")


def test_without_a_source_the_default_stands() -> None:
    assert s.first_given([None, None], s.positive_int, 5) == s.Resolved(5, "default")


def test_a_losing_source_is_not_even_parsed() -> None:
    found = s.first_given([s.Candidate("7", "--x"), s.Candidate("rubbish", "ini")], s.positive_int, 5)

    assert found.value == 7


@pytest.mark.parametrize(
    ("parse", "given", "message"),
    [
        (s.positive_int, "0", "--o: expected a whole number of at least 1, got '0'"),
        (s.positive_int, "2.5", "--o: expected a whole number of at least 1, got '2.5'"),
        (s.positive_int, True, "--o: expected a whole number of at least 1, got True"),
        (s.count, "-1", "--o: expected a whole number of at least 0, got '-1'"),
        (s.positive_seconds, "nan", "--o: expected a number of seconds above 0, got 'nan'"),
        (s.positive_seconds, "0", "--o: expected a number of seconds above 0, got '0'"),
        (s.positive_seconds, "soon", "--o: expected a number of seconds above 0, got 'soon'"),
        (s.kept_seconds, "maybe", "--o: expected a number of seconds above 0, got 'maybe'"),
        (s.kept_seconds, "-1", "--o: expected a number of seconds above 0, got '-1'"),
        (s.one_of("cpu", "cuda"), "gpu", "--o: expected one of cpu, cuda, got 'gpu'"),
        (s.flag, "maybe", "--o: expected true or false, got 'maybe'"),
        (s.text, "  ", "--o: expected a value that is not empty, got '  '"),
        (s.hosts, ["-oProxyCommand=x"], "expected [user@]host, or nothing for this machine"),
        (s.slug, "../x", "--o: expected a node name of lower-case letters"),
        (s.slug, "A100", "--o: expected a node name of lower-case letters"),
    ],
)
def test_a_bad_value_is_refused_with_its_source(
    parse: Callable[[object, str], object], given: object, message: str
) -> None:
    with pytest.raises(UserInputError) as caught:
        parse(given, "--o")

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ([""], ("",)),
        ("", ("",)),
        ("here", ("",)),
        (["root@blackwell", ""], ("root@blackwell", "")),
        ("root@a root@b", ("root@a", "root@b")),
    ],
)
def test_hosts_are_this_machine_or_ssh_destinations(given: object, hosts: tuple[str, ...]) -> None:
    assert s.hosts(given, "--gpu-host") == hosts


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("1", True), ("off", False), ("", False)])
def test_flags_read_as_ini_files_write_them(word: str, value: bool) -> None:  # a parameter
    assert s.flag(word, "ini") is value


@pytest.mark.parametrize(
    ("given", "seconds"), [("on", 3600.0), ("true", 3600.0), ("90", 90.0), ("0", None), ("no", None), ("off", None)]
)
def test_servers_are_kept_for_a_time_or_not_at_all(given: str, seconds: float | None) -> None:
    assert s.kept_seconds(given, "--o") == seconds


@pytest.mark.parametrize(
    ("given", "recording", "planned", "most"),
    [
        ({}, False, 1, 3),
        ({}, True, 5, 5),
        ({"max_launches": 6}, False, 1, 6),
        ({"max_launches": 6}, True, 5, 5),
        ({"launches": 2}, False, 2, 3),
        ({"launches": 4}, False, 4, 4),
        ({"launches": 2}, True, 2, 2),
        ({"url": "http://127.0.0.1:30000"}, False, 1, 1),
        ({"url": "http://127.0.0.1:30000"}, True, 1, 1),
    ],
)
def test_a_close_answer_takes_more_launches_and_a_recording_those_it_was_planned_for(
    given: dict[str, object], recording: bool, planned: int, most: int
) -> None:
    asked = settings(**given)

    assert (asked.launches_for(recording=recording), asked.most_launches(recording=recording)) == (planned, most)


def load(given: dict[str, str], ini: dict[str, str] | None = None) -> s.Settings:
    """Resolve settings from these options, given on the command line, and ini values."""
    config = SimpleNamespace(
        option=SimpleNamespace(**{f"specdec_{name}": value for name, value in given.items()}),
        getini=lambda name: (ini or {}).get(name.removeprefix("specdec_")),
        inipath=None,
        rootpath=Path("/project"),
        invocation_params=SimpleNamespace(dir=Path("/project")),
    )
    return options.load_settings(cast(pytest.Config, config), environ={})


def test_more_launches_than_the_most_are_refused_where_both_are_given() -> None:
    with pytest.raises(pytest.UsageError) as caught:
        load({"launches": "4"}, {"max_launches": "2"})

    assert str(caught.value) == (
        "--specdec-launches and ini: specdec_max_launches: 4 launches are more than 2; leave one of them out"
    )


@pytest.mark.parametrize(
    ("given", "launches", "most"),
    [
        ({"launches": "4"}, 4, 4),
        ({"launches": "3", "max_launches": "3"}, 3, 3),
        ({"max_launches": "1"}, 1, 1),
        ({"launches": "4", "max_launches": "2", "update_baselines": "all"}, 4, 4),
        ({"max_launches": "2", "update_baselines": "all"}, 5, 5),
    ],
)
def test_launches_that_agree_or_that_record_are_taken(given: dict[str, str], launches: int, most: int) -> None:
    loaded = load(given)
    recording = loaded.update == "all"

    assert loaded.launches_for(recording=recording) == launches
    assert loaded.most_launches(recording=recording) == most


def test_the_most_launches_are_at_least_one() -> None:
    with pytest.raises(
        pytest.UsageError, match="--specdec-max-launches: expected a whole number of at least 1, got '0'"
    ):
        load({"max_launches": "0"})
