from __future__ import annotations

import random
import shlex

import pytest

from pytest_specdec.commandline import parse_command, quote, read_words, refuse, tokenize
from pytest_specdec.errors import SpecError
from pytest_specdec.flags import Option, canonical, masked, parse_options


def texts(line: str) -> list[str]:
    return [token.text for token in tokenize(line)]


def refusal(line: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_command(line)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  \t ", []),
        ("a b", ["a", "b"]),
        ("a''b", ["ab"]),
        ("''", [""]),
        ("'a \"b' \"c 'd\"", ['a "b', "c 'd"]),
        (r"a\ b", ["a b"]),
        (r'"a\"b\\c\d"', [r'a"b\c\d']),
        (r"'a\b'", [r"a\b"]),
        ("a\\\nb c \\\r\n d", ["ab", "c", "d"]),
        ('"a\\\nb"', ["ab"]),
        ("a#b", ["a#b"]),
        ("cost$ '$HOME' \"5$\"", ["cost$", "$HOME", "5$"]),
        ("'{\"a\": 1}'", ['{"a": 1}']),
        ("\n --tp 8\n --dp 2\n", ["--tp", "8", "--dp", "2"]),
    ],
)
def test_words_are_split_by_posix_quoting(line: str, words: list[str]) -> None:
    assert texts(line) == words


def test_random_quoted_words_are_split_as_shlex_does() -> None:
    source = random.Random(20261129)
    alphabet = "ab1 '\"\\$`|&;<>(){}#~*?!=\n\t-éß"
    for _ in range(500):
        words = [
            "".join(source.choice(alphabet) for _ in range(source.randrange(8))) for _ in range(source.randrange(5))
        ]
        line = shlex.join(words)

        assert texts(line) == words == shlex.split(line)
        assert texts(" ".join(quote(word) for word in words)) == words


def test_a_word_knows_where_it_begins_and_how_it_was_written() -> None:
    first, second = tokenize("  ab 'c d'")

    assert (first.start, first.raw) == (2, "ab")
    assert (second.start, second.raw, second.text) == (5, "'c d'", "c d")


def test_a_home_directory_stays_unquoted() -> None:
    assert quote("~/my models/x") == "~/'my models/x'"
    assert quote("~") == "~"
    assert quote("a~b") == "'a~b'"


@pytest.mark.parametrize(
    ("line", "offset", "problem", "remedy"),
    [
        ("a 'b c", 2, "this single quote is never closed", "close it, or write \\' for itself"),
        ('ab"c', 2, "this double quote is never closed", 'close it, or write \\" for itself'),
        ("a | tee log", 2, "a pipe", "leave the pipe out"),
        ("a && b", 2, "`&&` joins a second command", "variables go in front as assignments"),
        ("a || b", 2, "`||` joins a second command", "give one command"),
        ("a; b", 1, "`;` ends the command", "`cd DIR && ...` or cwd="),
        ("a &", 2, "`&`", "runs the server in the background itself"),
        ("a > log", 2, "a redirection", "keeps the server's output itself"),
        ("a 2>&1", 3, "a redirection", "keeps the server's output itself"),
        ("a <model>", 2, "a redirection", "a <placeholder> wants its value"),
        ("a $(hostname)", 2, "a command substitution", "write the value out"),
        ('a "$(hostname)"', 3, "a command substitution", "write the value out"),
        ("a `hostname`", 2, "a command substitution", "write the value out"),
        ('a "`hostname`"', 3, "a command substitution", "write the value out"),
        ("a $HOME/x", 2, "a variable that a shell would expand", "write the value out"),
        ('a "x${HOME}"', 4, "a variable that a shell would expand", "write the value out"),
        ("a $'b'", 2, "a quotation that only bash reads", "use plain quotes"),
        ("a (b)", 2, "a subshell", "single quotes"),
        ('a {"b":1}', 2, "an unquoted brace", "put a JSON value in single quotes"),
        ("a # b", 2, "a comment", "leave it out"),
        ("$ a b", 0, "a shell prompt's `$`", "leave it out"),
        ("a \\ \n b", 2, "blanks follow this backslash", "remove the blanks at the line's end"),
        ("a \\", 2, "the line ends in a backslash", "complete the line, or remove it"),
        ("a\nb", 1, "the line ends here, and another follows", "end a line that goes on with a backslash"),
    ],
)
def test_what_only_a_shell_could_do_is_refused_at_its_position(
    line: str, offset: int, problem: str, remedy: str
) -> None:
    with pytest.raises(SpecError) as caught:
        tokenize(line)

    first, shown, caret, last = str(caught.value).split("\n")
    assert first.startswith(problem)
    assert f"at offset {offset} (line 1, column {offset + 1}):" in first
    assert shown == "  " + line.split("\n", maxsplit=1)[0]
    assert caret == " " * (2 + offset) + "^"
    assert remedy in last


def test_a_position_on_a_later_line_is_counted_in_that_line() -> None:
    message = refusal("python -m sglang.launch_server \\\n  --model-path m \\\n  --tp '8")

    assert message == (
        "this single quote is never closed, at offset 59 (line 3, column 8):\n"
        "    --tp '8\n"
        "         ^\n"
        "close it, or write \\' for itself"
    )


def test_a_long_line_is_shown_around_the_position() -> None:
    line = "x" * 200 + " | " + "y" * 200

    shown, caret = str(refuse(line, 201, "a pipe", "leave it out")).split("\n")[1:3]

    assert shown == "  ..." + "x" * 59 + " | " + "y" * 33 + "..."
    assert shown[len(caret) - 1] == "|"


def test_secrets_are_hidden_in_the_shown_line() -> None:
    message = refusal("HF_TOKEN='s3 cret' python -m sglang.launch_server --api-key hush --model-path m | tee x")

    shown, caret = message.split("\n")[1:3]
    assert "s3" not in message
    assert "hush" not in message
    assert shown.startswith("  HF_TOKEN=********* python")
    assert shown[len(caret) - 1] == "|"


def test_the_parts_of_a_command_are_told_apart() -> None:
    parsed = parse_command(
        "cd '/srv/my models' && A=1 B='x y' A=2 numactl -N 0 -m 0 env C=3"
        " /opt/venv/bin/python -u -X dev -m sglang.launch_server --model-path m"
    )

    assert parsed.cwd == "/srv/my models"
    assert parsed.env == {"A": "2", "B": "x y"}
    assert parsed.launcher == ("numactl", "-N", "0", "-m", "0", "env", "C=3")
    assert parsed.python == "/opt/venv/bin/python"
    assert parsed.entry == ("python", "-u", "-X", "dev", "-m", "sglang.launch_server")
    assert [token.text for token in parsed.arguments] == ["--model-path", "m"]


@pytest.mark.parametrize(
    ("line", "launcher", "python", "entry"),
    [
        ("python -m S", (), None, "python -m S"),
        ("python3 -m S", (), None, "python -m S"),
        ("python3.11 -m S", (), "python3.11", "python -m S"),
        ("venv/bin/python3 -m S", (), "venv/bin/python3", "python -m S"),
        ("/opt/run-python -m S", (), "/opt/run-python", "python -m S"),
        ("uv run python -m S", ("uv", "run"), None, "python -m S"),
        ("podman run i python3.12 -m S", ("podman", "run", "i"), None, "python3.12 -m S"),
        ("docker run i /v/bin/python3 -m S", ("docker", "run", "i"), "/v/bin/python3", "python -m S"),
        ("sglang serve", (), None, "sglang serve"),
        ("nice -n 5 /v/bin/sglang serve", ("nice", "-n", "5"), "/v/bin/python", "sglang serve"),
        ("/v/bin/python3 /v/bin/sglang serve", (), "/v/bin/python3", "sglang serve"),
    ],
)
def test_each_way_to_start_sglang_is_understood(
    line: str, launcher: tuple[str, ...], python: str | None, entry: str
) -> None:
    parsed = parse_command(line.replace(" S", " sglang.launch_server"))

    assert parsed.launcher == launcher
    assert parsed.python == python
    assert " ".join(parsed.entry) == entry.replace(" S", " sglang.launch_server")


@pytest.mark.parametrize(
    ("line", "offset", "problem"),
    [
        ("A=1 vllm serve m", 4, "this command starts no SGLang server"),
        ("python -m vllm.entrypoints --model m", 10, "the module vllm.entrypoints starts no SGLang server"),
        ("python -m sglang.cli.main serve m", 10, "the module sglang.cli.main starts no SGLang server"),
        ("accelerate launch -m sglang.launch_server", 21, "the module sglang.launch_server starts no SGLang"),
        ("python launch_server.py", 0, "this command starts no SGLang server"),
        ("A=1", 3, "this line starts no SGLang server"),
    ],
)
def test_another_command_is_refused_with_the_two_forms_understood(line: str, offset: int, problem: str) -> None:
    message = refusal(line)

    assert message.startswith(problem)
    assert f"at offset {offset} " in message
    assert message.endswith("understood are `python -m sglang.launch_server ...` and `sglang serve ...`")


@pytest.mark.parametrize(
    ("line", "offset", "problem"),
    [
        ("A=~/x python -m sglang.launch_server", 0, "A begins with `~`, which a shell expands"),
        ("cd ~/x && python -m sglang.launch_server", 3, "`~`, which a shell expands"),
        ("cd /a && cd b && python -m sglang.launch_server", 14, "`&&` joins a second command"),
    ],
)
def test_a_directory_or_variable_that_a_shell_would_expand_is_refused(line: str, offset: int, problem: str) -> None:
    message = refusal(line)

    assert message.startswith(problem)
    assert f"at offset {offset} " in message


def test_a_quoted_name_is_no_assignment() -> None:
    assert parse_command("'A=1' python -m sglang.launch_server").env == {}


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--tp 8", [("--tp", ["8"])]),
        ("--tp=8", [("--tp", ["8"])]),
        ("--a= --b ''", [("--a", [""]), ("--b", [""])]),
        ("--a=b=c", [("--a", ["b=c"])]),
        ("--cuda-graph-bs 1 2 4 --x", [("--cuda-graph-bs", ["1", "2", "4"]), ("--x", [])]),
        ("--priority -1 -.5", [("--priority", ["-1", "-.5"])]),
        ("--x=--y", [("--x", ["--y"])]),
        ("--x '--y z' -", [("--x", ["--y z", "-"])]),
        ("--lora-paths a=/x b=/y", [("--lora-paths", ["a=/x", "b=/y"])]),
        ("--tp 8 --x --tensor-parallel-size 4", [("--x", []), ("--tensor-parallel-size", ["4"])]),
        ("--dllm-fdfo --no-dllm-fdfo", [("--no-dllm-fdfo", [])]),
        ("--cuda-graph-max-bs 8 --cuda-graph-max-bs-decode 4", [("--cuda-graph-max-bs-decode", ["4"])]),
    ],
)
def test_flags_are_read_with_their_values(flags: str, options: list[tuple[str, list[str]]]) -> None:
    read = [option for option, _ in parse_options(flags, tokenize(flags))]

    assert [(option.flag, list(option.values)) for option in read] == options
    again = [word for option in read for word in option.words]
    assert [option for option, _ in parse_options(*read_words(again, "args"))] == read


def test_a_value_tied_to_a_flag_without_values_stays_tied() -> None:
    ((option, _),) = parse_options("--disable-x=true", tokenize("--disable-x=true"))

    assert option.words == ("--disable-x=true",)


@pytest.mark.parametrize(
    ("flags", "offset", "problem", "remedy"),
    [
        ("stray --tp 8", 0, "the word 'stray' in front of the flags", "a flag begins with two dashes"),
        (
            "--tp 8 stray",
            7,
            "the word 'stray' after 8 belongs to no flag",
            "a value with blanks needs quotes",
        ),
        ("--tp=8 stray", 7, "the word 'stray' after --tp=8 belongs to no flag", "two dashes"),
        ("--disable-cuda-graph true", 21, "the word 'true' after --disable-cuda-graph", "two dashes"),
        ("--trust-remote-code A=1", 20, "an assignment among the flags", "put it in front of them"),
        ("--tp 8 -x", 7, "'-x' is no flag of SGLang's", "two dashes and a letter"),
        ("--tp 8 -- y", 7, "'--' is no flag of SGLang's", "two dashes and a letter"),
        ("--x 1 --tp --dp 2", 6, "--tp has no value", "write `--tp VALUE`"),
    ],
)
def test_a_word_that_belongs_to_no_flag_is_refused_with_its_position(
    flags: str, offset: int, problem: str, remedy: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_options(flags, tokenize(flags))

    first, shown, caret, last = str(caught.value).split("\n")
    assert first.startswith(problem)
    assert f"at offset {offset} " in first
    assert shown == "  " + flags
    assert caret == " " * (2 + offset) + "^"
    assert remedy in last


def test_a_word_that_is_no_string_is_refused_with_its_index() -> None:
    with pytest.raises(SpecError, match=r"^args\[1\] is 8, of type int: give strings$"):
        read_words(["--tp", 8], "args")  # type: ignore[list-item]  # the mistake under test


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("--tp", "tp-size"),
        ("--tensor_parallel_size", "tp-size"),
        ("mem_frac", "mem-fraction-static"),
        ("--speculative-algo", "speculative-algorithm"),
        ("--model", "model-path"),
        ("--ep", "ep-size"),
        ("--max-running-requests", "max-running-requests"),
    ],
)
def test_every_spelling_gives_the_flags_own_name(spelling: str, name: str) -> None:
    assert canonical(spelling) == name


def test_a_negated_flag_sets_the_same_thing_but_is_not_the_same_flag() -> None:
    asked, refused = Option(flag="--dllm-fdfo", values=()), Option(flag="--no-dllm-fdfo", values=())

    assert asked.slot == refused.slot == "dllm-fdfo"
    assert asked.name != refused.name


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("--env=my_api_key=a=b", "--env=my_api_key=***"),
        ("-eDB_PASSWORD=x", "-eDB_PASSWORD=***"),
        ("HF_TOKEN", "HF_TOKEN"),
        ("TOKENIZER=x", "TOKENIZER=x"),
    ],
)
def test_a_secret_assignment_in_a_launcher_is_masked(word: str, shown: str) -> None:
    assert masked(word) == shown
