"""Reads a pasted shell line: words with their positions, and the command that starts SGLang.

POSIX quoting rules, without a shell: what a shell would expand or do besides running one command is refused
at its position rather than passed on as text. ``shlex`` gives no positions, hence a scanner of our own.
"""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.errors import SpecError

#: A shell fragment, or the words it would be split into.
Flags = str | Iterable[str]

LAUNCH_SERVER: Final = ("python", "-m", "sglang.launch_server")
SERVE: Final = ("sglang", "serve")
UNDERSTOOD: Final = "`python -m sglang.launch_server ...` and `sglang serve ...`"

#: Launchers that bring an environment of their own: a Python path of the host means nothing inside.
_ENVIRONMENT_LAUNCHERS: Final = frozenset(
    {"apptainer", "conda", "docker", "enroot", "kubectl", "mamba", "micromamba", "nerdctl", "pipenv", "pixi"}
    | {"podman", "poetry", "singularity", "uv"}
)

ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*t?)?")
_CONTINUATION: Final = re.compile(r"\\\r?\n")
_BROKEN_CONTINUATION: Final = re.compile(r"\\[ \t]+\r?\n")
_SECRET_IN_TEXT: Final = re.compile(
    r"(\w*(?:token|key|secret|password)=|--[\w-]*(?:key|token|secret|password)\s+)"
    r"('[^']*'|\"[^\"]*\"|\S+)",
    re.IGNORECASE,
)

_ONE_COMMAND: Final = (
    "give one command: variables go in front as assignments (NCCL_ALGO=Tree python ...), a directory as"
    " `cd DIR && ...` or cwd="
)
_OUTPUT: Final = "the harness keeps the server's output itself: leave the redirection out"
_NO_SHELL: Final = "no shell reads this line: write the value out, or put the text in single quotes"
_SPECIAL: Final = {
    "|": ("a pipe", "the harness keeps the server's output itself: leave the pipe out"),
    "&": ("`&`", "the harness runs the server in the background itself: leave it out"),
    ";": ("`;` ends the command", _ONE_COMMAND),
    ">": ("a redirection", _OUTPUT),
    "<": ("a redirection", f"{_OUTPUT}; a <placeholder> wants its value"),
    "(": ("a subshell", _NO_SHELL),
    ")": ("a subshell", _NO_SHELL),
    "`": ("a command substitution", _NO_SHELL),
    "{": ("an unquoted brace, which a shell may expand", "put a JSON value in single quotes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One word. ``text`` is what a program would be given, ``raw`` what was written from ``start`` on."""

    text: str
    raw: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """The parts of a command. ``arguments`` are the words behind the entry."""

    env: dict[str, str]
    cwd: str | None
    launcher: tuple[str, ...]
    python: str | None
    entry: tuple[str, ...]
    arguments: tuple[Token, ...]


def refuse(text: str, at: int, problem: str, remedy: str) -> SpecError:
    """Make the error for what stands at offset ``at`` (from 0) of ``text``, with a caret under it."""
    line_start = text.rfind("\n", 0, at) + 1
    line_end = text.find("\n", at)
    shown = _SECRET_IN_TEXT.sub(lambda m: m[1] + "*" * len(m[2]), text)[
        line_start : line_end if line_end >= 0 else len(text)
    ]
    column = at - line_start
    if len(shown) > 100:
        low, high = max(0, column - 60), column + 35
        head, tail = "..." if low else "", "..." if high < len(shown) else ""
        shown, caret = f"{head}{shown[low:high]}{tail}", len(head) + column - low
    else:
        caret = column
    where = f"offset {at} (line {text.count(chr(10), 0, at) + 1}, column {column + 1})"
    shown = re.sub(r"\s", " ", shown)
    return SpecError(f"{problem}, at {where}:\n  {shown}\n  {' ' * caret}^\n{remedy}")


class _Scanner:
    """Splits a line into words; ``cwd`` is the directory of a leading ``cd DIR &&``."""

    def __init__(self, text: str, *, takes_cd: bool) -> None:
        self.text = text
        self.cwd: Token | None = None
        self._at = 0
        self._takes_cd = takes_cd

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self._skip_blank(started=bool(found)):
            if self._takes_cd and self.cwd is None and self._is_cd(found):
                self.cwd = found[1]
                found = []
                self._at += 2
            else:
                found.append(self._word())
        return found

    def _is_cd(self, found: list[Token]) -> bool:
        return len(found) == 2 and found[0].raw == "cd" and self.text.startswith("&&", self._at)

    def _refuse(self, at: int, problem: str, remedy: str) -> SpecError:
        return refuse(self.text, at, problem, remedy)

    def _skip_blank(self, *, started: bool) -> bool:
        """Go to the next word; False at the end."""
        while self._at < len(self.text):
            char = self.text[self._at]
            continued = _CONTINUATION.match(self.text, self._at)
            if continued:
                self._at = continued.end()
            elif char == "\n":
                rest = self.text[self._at :].lstrip()
                # A line that begins with a flag can only go on with the command, backslash or not.
                if started and rest and not rest.startswith("-"):
                    raise self._refuse(
                        self._at,
                        "the line ends here, and another follows",
                        "give one command: end a line that goes on with a backslash",
                    )
                self._at += 1
            elif char in " \t\r":
                self._at += 1
            else:
                return True
        return False

    def _word(self) -> Token:
        start = self._at
        parts: list[str] = []
        while self._at < len(self.text) and self.text[self._at] not in " \t\r\n":
            char = self.text[self._at]
            if char == "'":
                parts.append(self._single_quoted())
            elif char == '"':
                parts.append(self._double_quoted())
            elif char == "\\":
                parts.append(self._escaped())
            else:
                self._check_plain(start)
                parts.append(char)
                self._at += 1
        return Token(text="".join(parts), raw=self.text[start : self._at], start=start)

    def _check_plain(self, word_start: int) -> None:
        char = self.text[self._at]
        if char == "#" and self._at == word_start:
            raise self._refuse(self._at, "a comment", "leave it out, or quote the word")
        if char == "$":
            self._check_dollar(quoted=False)
        elif self.text.startswith(("&&", "||"), self._at):
            raise self._refuse(self._at, f"`{char * 2}` joins a second command", _ONE_COMMAND)
        elif char in _SPECIAL:
            problem, remedy = _SPECIAL[char]
            raise self._refuse(self._at, problem, remedy)

    def _check_dollar(self, *, quoted: bool) -> None:
        following = self.text[self._at + 1 : self._at + 2]
        if following == "(":
            raise self._refuse(self._at, "a command substitution", _NO_SHELL)
        if re.match(r"[A-Za-z0-9_{@*#?$!-]", following):
            raise self._refuse(self._at, "a variable that a shell would expand", _NO_SHELL)
        if not quoted and following in {"'", '"'}:
            raise self._refuse(self._at, "a quotation that only bash reads", "use plain quotes")
        if not self.text[: self._at].strip() and following.isspace():
            raise self._refuse(self._at, "a shell prompt's `$`", "leave it out")

    def _single_quoted(self) -> str:
        opened = self._at
        closed = self.text.find("'", opened + 1)
        if closed < 0:
            raise self._refuse(opened, "this single quote is never closed", "close it, or write \\' for itself")
        self._at = closed + 1
        return self.text[opened + 1 : closed]

    def _double_quoted(self) -> str:
        opened = self._at
        parts: list[str] = []
        self._at += 1
        while self._at < len(self.text):
            char = self.text[self._at]
            if char == '"':
                self._at += 1
                return "".join(parts)
            if char == "\\" and self.text[self._at + 1 : self._at + 2] in {"$", "`", '"', "\\", "\n"}:
                parts.append(self._escaped())
                continue
            if char == "`":
                raise self._refuse(self._at, *_SPECIAL["`"])
            if char == "$":
                self._check_dollar(quoted=True)
            parts.append(char)
            self._at += 1
        raise self._refuse(opened, "this double quote is never closed", 'close it, or write \\" for itself')

    def _escaped(self) -> str:
        """Read a backslash and what it protects; nothing for a continued line."""
        backslash = self._at
        continued = _CONTINUATION.match(self.text, backslash)
        if continued:
            self._at = continued.end()
            return ""
        if _BROKEN_CONTINUATION.match(self.text, backslash):
            raise self._refuse(
                backslash,
                "blanks follow this backslash, so it does not continue the line",
                "remove the blanks at the line's end",
            )
        if backslash + 1 == len(self.text):
            raise self._refuse(backslash, "the line ends in a backslash", "complete the line, or remove it")
        self._at += 2
        return self.text[backslash + 1]


def tokenize(text: str) -> tuple[Token, ...]:
    """Split a fragment into words.

    Raises:
        SpecError: a quote is not closed, or a shell would do more than split; with the position.

    """
    return tuple(_Scanner(text, takes_cd=False).tokens())


def read_words(words: Flags, what: str) -> tuple[str, tuple[Token, ...]]:
    """Give text and words of a fragment, or of words already split; ``what`` names them in errors."""
    if isinstance(words, str):
        return words, tokenize(words)
    tokens: list[Token] = []
    at = 0
    for index, word in enumerate(words):
        if not isinstance(word, str):
            raise SpecError(f"{what}[{index}] is {word!r}, of type {type(word).__name__}: give strings")
        raw = quote(word)
        tokens.append(Token(text=word, raw=raw, start=at))
        at += len(raw) + 1
    return " ".join(token.raw for token in tokens), tuple(tokens)


def quote(word: str) -> str:
    """Quote a word for a shell. A leading ``~/`` stays bare: it stands for the home directory of the host."""
    if word == "~" or word.startswith("~/"):
        return f"~/{shlex.quote(word[2:])}" if word[2:] else word
    return shlex.quote(word)


def split_env(text: str, tokens: Sequence[Token]) -> tuple[dict[str, str], tuple[Token, ...]]:
    """Take the assignments in front off a line's words. The last one of a name wins, as in a shell."""
    env: dict[str, str] = {}
    for index, token in enumerate(tokens):
        if not ASSIGNMENT.match(token.raw):
            return env, tuple(tokens[index:])
        name, _, value = token.text.partition("=")
        if token.raw.partition("=")[2].startswith("~"):
            raise refuse(text, token.start, f"{name} begins with `~`, which a shell expands", _NO_SHELL)
        env[name] = value
    return env, ()


def parse_command(line: str) -> ParsedCommand:
    """Split a pasted line: ``[cd DIR &&] [NAME=value ...] [launcher ...]``, then what starts SGLang.

    Raises:
        SpecError: the line is malformed, or starts no SGLang server; with the position.

    """
    scanner = _Scanner(line, takes_cd=True)
    words = scanner.tokens()
    env, rest = split_env(line, words)
    found = find_entry([token.text for token in rest])
    if found is None:
        raise _no_entry(line, rest)
    if scanner.cwd is not None and scanner.cwd.raw.startswith("~"):
        raise refuse(line, scanner.cwd.start, "`~`, which a shell expands", "write the directory out")
    launcher = tuple(token.text for token in rest[: found.start])
    python, entry = settle_python(launcher, found.python, found.entry)
    return ParsedCommand(
        env=env,
        cwd=None if scanner.cwd is None else scanner.cwd.text,
        launcher=launcher,
        python=python,
        entry=entry,
        arguments=rest[found.stop :],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where words start SGLang: ``words[start:stop]``; ``entry`` begins with ``python`` or ``sglang``."""

    start: int
    stop: int
    python: str | None
    entry: tuple[str, ...]


def find_entry(words: Sequence[str]) -> Entry | None:
    """Find the first words that start SGLang; None when there are none."""
    words = list(words)
    for start, word in enumerate(words):
        directory, base = posixpath.split(word)
        if base == "sglang" and words[start + 1 : start + 2] == ["serve"]:
            python = posixpath.join(directory, "python") if directory else None
            return Entry(start=start, stop=start + 2, python=python, entry=SERVE)
        if not is_python(word) or word.startswith("-"):
            continue
        if directory and words[start + 1 : start + 3] == [posixpath.join(directory, "sglang"), "serve"]:
            return Entry(start=start, stop=start + 3, python=word, entry=SERVE)
        stop = _after_interpreter_flags(words, start + 1)
        if words[stop : stop + 2] == ["-m", "sglang.launch_server"]:
            entry = ("python", *words[start + 1 : stop + 2])
            return Entry(start=start, stop=stop + 2, python=word, entry=entry)
    return None


def is_python(word: str) -> bool:
    """Whether the word can name a Python: ``python3.11``, or any path (a wrapper script has its own name)."""
    return "/" in word or _PYTHON.fullmatch(word) is not None


def _after_interpreter_flags(words: Sequence[str], at: int) -> int:
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in {"-X", "-W", "--check-hash-based-pycs"} else 1
    return at


def settle_python(
    launcher: Sequence[str], python: str | None, entry: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """Give python and entry the one form they are kept in.

    A path is kept as it is. A bare word stays in the entry where the launcher brings its own environment;
    elsewhere ``python`` and ``python3`` mean the host's Python (None), and ``python3.11`` means itself.
    """
    if entry == SERVE:
        return (None if python in {"python", "python3"} else python), entry
    word = python or entry[0]
    if "/" in word:
        return word, ("python", *entry[1:])
    if brings_environment(launcher):
        return None, (word, *entry[1:])
    return (None if word in {"python", "python3"} else word), ("python", *entry[1:])


def brings_environment(launcher: Sequence[str]) -> bool:
    """Whether the launcher enters a container or an environment, so that Python is the one found inside."""
    return any(posixpath.basename(word) in _ENVIRONMENT_LAUNCHERS for word in launcher)


def _no_entry(line: str, words: Sequence[Token]) -> SpecError:
    at, what = (words[0].start, "this command") if words else (len(line), "this line")
    for token, following in itertools.pairwise(words):
        if token.text == "-m" and re.fullmatch(r"[A-Za-z_][\w.]*", following.text):
            at, what = following.start, f"the module {following.text}"
    return refuse(line, at, f"{what} starts no SGLang server", f"understood are {UNDERSTOOD}")


def program_words(python: str | None, entry: tuple[str, ...]) -> tuple[str, ...]:
    """The words that start SGLang under this Python."""
    if entry != SERVE:
        return (python or entry[0], *entry[1:])
    if python is None or "/" not in python:
        return SERVE
    directory, base = posixpath.split(python)
    script = posixpath.join(directory, "sglang")
    # The script's first line names the Python beside it, so that one need not be said.
    return (script, "serve") if base == "python" else (python, script, "serve")


def settle_program(
    what: str, launcher: tuple[str, ...], python: str | None, entry: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """Check the words that start SGLang, and give python and entry the one form they are kept in.

    ``what`` names their owner in errors.

    Raises:
        SpecError: they start no SGLang server, or could not be read back from the command.

    """
    if python is not None and (python.startswith("-") or not is_python(python)):
        raise SpecError(f"{what}: python is {python!r}; give its path, or a name such as python3.11")
    found = find_entry(entry)
    if found is None or (found.start, found.stop) != (0, len(entry)):
        raise SpecError(f"{what}: entry is {shlex.join(entry)!r}; understood are {UNDERSTOOD}")
    python, entry = settle_python(launcher, python or found.python, found.entry)
    if entry == SERVE and python is not None and "/" not in python:
        raise SpecError(f"{what}: python is {python!r}, but `sglang serve` is found beside a Python: give its path")
    # A launcher that starts SGLang itself, or begins with an assignment, would not be read back as it is.
    probe = " ".join(quote(word) for word in (*launcher, *program_words(python, entry)))
    try:
        faithful = parse_command(probe).launcher == launcher
    except SpecError:
        faithful = False
    if not faithful:
        raise SpecError(
            f"{what}: the launcher {shlex.join(launcher)!r} cannot be told from the command "
            "behind it; give only what stands in front of Python, and assignments as env="
        )
    return python, entry
