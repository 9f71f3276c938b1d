"""Parsers of settings, and precedence among their sources."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_specdec import settings as s
from pytest_specdec.errors import UserInputError


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
