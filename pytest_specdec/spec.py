"""`ServerSpec`: one set of SGLang launch arguments, environment and model paths, with a name."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pytest_specdec import commandline as cl
from pytest_specdec.errors import SpecError
from pytest_specdec.flags import (
    Option,
    canonical,
    masked,
    masked_option,
    masked_value,
    name_model,
    parse_options,
)

_NAME: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TINY_SCHEME: Final = "tiny:"
_TINY_MODEL: Final = "tiny:target"
#: Without a token limit the KV cache takes most of the memory; with float32 and a seed, output repeats.
_TINY_FLAGS: Final = "--device cpu --dtype float32 --max-total-tokens 16384 --random-seed 0"
_STANDIN_SUFFIX: Final = "@cpu-standin"
_CONTENT_SCHEMA: Final = "pytest-specdec/server-spec/1"
_ADDRESS_FLAGS: Final = ("host", "port")


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ServerSpec:
    """One set of SGLang launch arguments, environment and model paths, with a name. Frozen and hashable.

    Two specs are equal when name and content are: the content is everything a launch depends on, so neither
    the order of different flags, nor a flag's spelling (``--tp``, ``--tensor-parallel-size``), nor the
    stand-in counts. A spec keeps the spelling and the order it was given.

    Args:
        name: what baselines and test ids are called after; ``[a-z0-9]+([._-][a-z0-9]+)*``, so no ``--``.
        model: path or id of the model, SGLang's ``--model-path``.
        args: the server's other flags: a shell fragment, or words. Without ``--host`` and ``--port``:
            a spec has no address, the harness chooses one for each launch.
        env: variables set for the launch, in addition to the host's. A container sees none of them: there the
            launcher passes its own (``docker run -e NAME=value``).
        python: the Python that runs SGLang; a path, or a word to look up on the host; None: the host's.
        cwd: the directory to start in, on the host.
        launcher: what stands in front: ``numactl -N 0``, ``docker run ... image``; kept word for word.
        entry: ``python -m sglang.launch_server`` (interpreter flags allowed) or ``sglang serve``.
        cpu_standin: the spec to measure in this one's place where there is no GPU; it has ``--device cpu``.

    A word that begins with ``~/`` (model, flag value, launcher, python) means the home directory on the host;
    `argv` replaces it. In ``env`` it is plain text, and ``cwd`` refuses it.

    Raises:
        SpecError: anything of this is malformed; the message says what was given and what would do.

    """

    name: str
    model: str
    options: tuple[Option, ...]
    env_items: tuple[tuple[str, str], ...]
    python: str | None
    cwd: str | None
    launcher: tuple[str, ...]
    entry: tuple[str, ...]
    cpu_standin: ServerSpec | None
    #: The address of a pasted line, which is no part of the content.
    left_out: tuple[Option, ...]
    #: Hex SHA-256 of the content, the same in every process and version of Python.
    content_hash: str

    def __init__(
        self,
        name: str,
        model: str | os.PathLike[str],
        *,
        args: cl.Flags = (),
        env: Mapping[str, str] | None = None,
        python: str | os.PathLike[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        launcher: cl.Flags = (),
        entry: cl.Flags = cl.LAUNCH_SERVER,
        cpu_standin: ServerSpec | None = None,
    ) -> None:
        _check_name(name)
        text, tokens = cl.read_words(args, "args")
        options = parse_options(text, tokens)
        _refuse_address(text, options)
        for option, at in options:
            if option.name == "model-path":
                raise cl.refuse(text, at, "the model among the flags", f"it is {name}'s second argument: {model}")
        self._fill(
            name=name,
            model=os.fspath(model),
            options=tuple(option for option, _ in options),
            env=dict(env or {}),
            python=None if python is None else os.fspath(python),
            cwd=None if cwd is None else os.fspath(cwd),
            launcher=_texts(launcher, "launcher"),
            entry=_texts(entry, "entry"),
            cpu_standin=cpu_standin,
            left_out=(),
        )

    def _fill(
        self,
        *,
        name: str,
        model: str,
        options: tuple[Option, ...],
        env: Mapping[str, str],
        python: str | None,
        cwd: str | None,
        launcher: tuple[str, ...],
        entry: tuple[str, ...],
        cpu_standin: ServerSpec | None,
        left_out: tuple[Option, ...],
    ) -> None:
        """Check the parts, give them the form they are kept in, and hash them."""
        if not model or model.startswith("-"):
            raise SpecError(f"server spec {name}: the model is {model!r}; give its path or its id")
        _check_env(name, env)
        if cwd is not None and (not cwd or cwd.startswith(("~", "-"))):
            raise SpecError(f"server spec {name}: cwd is {cwd!r}; write the directory on the host out")
        if cpu_standin is not None and not isinstance(cpu_standin, ServerSpec):
            raise SpecError(f"server spec {name}: cpu_standin is {cpu_standin!r}; give a ServerSpec")
        if cpu_standin is not None and not cpu_standin.runs_on_cpu:
            raise SpecError(
                f"server spec {name}: its cpu_standin {cpu_standin} needs CUDA itself; "
                "give one with --device cpu, such as ServerSpec.tiny(...)"
            )
        python, entry = cl.settle_program(f"server spec {name}", launcher, python, entry)
        fields: dict[str, object] = {
            "name": name,
            "model": model,
            "options": options,
            "env_items": tuple(sorted(env.items())),
            "python": python,
            "cwd": cwd,
            "launcher": launcher,
            "entry": entry,
            "cpu_standin": cpu_standin,
            "left_out": left_out,
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)
        object.__setattr__(self, "content_hash", self._hash_content())
        if "\0" in self.command:
            raise SpecError(f"server spec {name}: a NUL stands in {self.masked_command!r}; no program takes one")

    def _hash_content(self) -> str:
        content = {
            "schema": _CONTENT_SCHEMA,
            "model": self.model,
            "options": sorted([option.name, list(option.values)] for option in self.options),
            "env": [list(item) for item in self.env_items],
            "python": self.python,
            "cwd": self.cwd,
            "launcher": list(self.launcher),
            "entry": list(self.entry),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_command(cls, name: str, line: str, *, cpu_standin: ServerSpec | None = None) -> ServerSpec:
        """Make a spec from a pasted shell line.

        ``[cd DIR &&] [NAME=value ...] [launcher ...] python -m sglang.launch_server --flag value ...`` or
        ``... sglang serve [MODEL] ...``, quoted as for a POSIX shell, over several lines if they end in a
        backslash or go on with a flag. ``--host`` and ``--port`` are left out: the harness chooses the
        address of each launch.

        Raises:
            SpecError: the line is malformed, names no model, or starts no SGLang server; with the position.

        """
        _check_name(name)
        parsed = cl.parse_command(line)
        arguments = name_model(parsed.arguments) if parsed.entry == cl.SERVE else parsed.arguments
        model, options = _split_model(parse_options(line, arguments))
        if model is None:
            raise cl.refuse(line, len(line.rstrip()), "the line names no model", "add `--model-path PATH_OR_ID`")
        spec = cls(
            name,
            model,
            args=_words(option for option in options if option.name not in _ADDRESS_FLAGS),
            env=parsed.env,
            python=parsed.python,
            cwd=parsed.cwd,
            launcher=parsed.launcher,
            entry=parsed.entry,
            cpu_standin=cpu_standin,
        )
        address = tuple(option for option in options if option.name in _ADDRESS_FLAGS)
        object.__setattr__(spec, "left_out", address)
        return spec

    @classmethod
    def tiny(cls, name: str, flags: cl.Flags = "", *, env: Mapping[str, str] | None = None) -> ServerSpec:
        """Make a spec of the CPU engine's tiny model, ``tiny:target``.

        ``flags`` come on top of ``--device cpu --dtype float32 --max-total-tokens 16384 --random-seed 0``;
        they name a draft as ``tiny:eagle3-draft`` or ``tiny:target``.
        """
        return cls(name, _TINY_MODEL, args=_TINY_FLAGS, env=env).but(name, flags)

    def but(
        self,
        name: str,
        flags: cl.Flags = "",
        *,
        drop: str | Iterable[str] = (),
        env: Mapping[str, str | None] | None = None,
        python: str | os.PathLike[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        cpu_standin: ServerSpec | None = None,
    ) -> ServerSpec:
        """Derive a variant. What is not given stays, except the stand-in, which stood for the other flags.

        Args:
            name: the variant's name.
            flags: flags to add, with assignments in front if need be; a flag that is there is replaced, and
                ``--model-path`` replaces the model.
            drop: flags to leave out, with or without dashes.
            env: variables to set; None removes one.
            python: another Python; ``"python"`` goes back to the host's.
            cwd: another directory.
            cpu_standin: the variant's own stand-in.

        Raises:
            SpecError: the flags are malformed, or what is to be left out is not there.

        """
        _check_name(name)
        text, tokens = cl.read_words(flags, "flags")
        assigned, rest = cl.split_env(text, tokens)
        parsed = parse_options(text, rest)
        _refuse_address(text, parsed)
        model, added = _split_model(parsed)
        spec = ServerSpec(
            name,
            self.model if model is None else model,
            args=_words(_merge(self._without(drop), added)),
            env=self._changed_env({**assigned, **(env or {})}),
            python=self.python if python is None else python,
            cwd=self.cwd if cwd is None else cwd,
            launcher=self.launcher,
            entry=self.entry,
            cpu_standin=cpu_standin,
        )
        object.__setattr__(spec, "left_out", self.left_out)
        return spec

    def _without(self, drop: str | Iterable[str]) -> tuple[Option, ...]:
        kept = self.options
        for flag in (drop,) if isinstance(drop, str) else drop:
            slot = Option(flag=flag, values=()).slot
            left = tuple(option for option in kept if option.slot != slot)
            if len(left) == len(kept):
                if slot == "model-path":
                    raise SpecError(f"server spec {self.name}: a spec needs its model; replace it instead")
                there = ", ".join(option.flag for option in self.options) or "none"
                raise SpecError(f"server spec {self.name} has no flag {flag} to drop; its flags: {there}")
            kept = left
        return kept

    def _changed_env(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        env = dict(self.env_items)
        for variable, value in changes.items():
            if value is not None:
                env[variable] = value
            elif env.pop(variable, None) is None:
                there = ", ".join(sorted(self.env)) or "none"
                raise SpecError(f"server spec {self.name} sets no {variable} to remove; its variables: {there}")
        return env

    def with_paths(self, paths: Mapping[str, str]) -> ServerSpec:
        """Replace the model and every flag value found in ``paths``, such as ``tiny:target``, by its path."""
        options = (
            Option(flag=option.flag, values=tuple(paths.get(value, value) for value in option.values))
            for option in self.options
        )
        return self._remade(model=paths.get(self.model, self.model), options=options)

    def with_options(self, options: Iterable[Option]) -> ServerSpec:
        """Replace the flags, keeping the name, which may be a stand-in's."""
        return self._remade(model=self.model, options=options)

    def _remade(self, *, model: str, options: Iterable[Option]) -> ServerSpec:
        spec = object.__new__(ServerSpec)  # the name may be a stand-in's, which the constructor refuses
        spec._fill(
            name=self.name,
            model=model,
            options=tuple(options),
            env=self.env,
            python=self.python,
            cwd=self.cwd,
            launcher=self.launcher,
            entry=self.entry,
            cpu_standin=self.cpu_standin,
            left_out=self.left_out,
        )
        return spec

    def standin(self) -> ServerSpec | None:
        """Give the spec to measure where there is no GPU, as ``<name>@cpu-standin``; None: there is none."""
        if self.cpu_standin is None:
            return None
        spec = copy.copy(self.cpu_standin)
        object.__setattr__(spec, "name", self.name + _STANDIN_SUFFIX)
        return spec

    @property
    def args(self) -> tuple[str, ...]:
        """The server's flags as words, without the model."""
        return _words(self.options)

    @property
    def env(self) -> Mapping[str, str]:
        """The variables set for the launch, read-only, sorted by name."""
        return MappingProxyType(dict(self.env_items))

    @property
    def short_hash(self) -> str:
        """The first twelve digits of ``content_hash``."""
        return self.content_hash[:12]

    def get(self, flag: str) -> tuple[str, ...] | None:
        """Give a flag's values, however it is spelled: empty for a bare flag, None where it is absent."""
        name = canonical(flag)
        return next((option.values for option in self.options if option.name == name), None)

    def has(self, flag: str) -> bool:
        """Whether the flag is given, however it is spelled."""
        return self.get(flag) is not None

    @property
    def drafting(self) -> bool:
        """Whether a speculative algorithm is given."""
        return self.has("--speculative-algorithm")

    @property
    def draft_model(self) -> str | None:
        """Path or id of the draft model, None where there is none."""
        return self.first("--speculative-draft-model-path")

    @property
    def device(self) -> str | None:
        """The value of ``--device``; None leaves the choice to SGLang."""
        return self.first("--device")

    @property
    def runs_on_cpu(self) -> bool:
        """Whether the spec asks for the CPU itself: ``--device cpu``."""
        return self.device == "cpu"

    def first(self, flag: str) -> str | None:
        """Return the first value of a flag, None for one that is not given or has no value."""
        values = self.get(flag)
        return values[0] if values else None

    @property
    def tiny_models(self) -> tuple[str, ...]:
        """The CPU engine's models that are named, as ``tiny:...``, each once, in order."""
        words = (self.model, *(value for option in self.options for value in option.values))
        return tuple(dict.fromkeys(word for word in words if word.startswith(_TINY_SCHEME)))

    @property
    def launcher_brings_python(self) -> bool:
        """Whether the launcher enters a container or environment, so that Python is the one inside."""
        return cl.brings_environment(self.launcher)

    def argv(self, python: str | None = None, extra: Sequence[str] = (), *, home: str | None = None) -> tuple[str, ...]:
        """Give the words to start: launcher, program, ``--model-path``, flags, then ``extra``.

        Args:
            python: the Python to run, instead of the spec's own. It is not used where the launcher brings its
                own (``docker run``, ``uv run``): there the program is the one that was written. For
                ``sglang serve`` the ``sglang`` beside it is run (a bare word: the one on the host's PATH).
            extra: further words, such as the address.
            home: the home directory on the host, for words that begin with ``~/``; None: this machine's.

        """
        if self.launcher_brings_python:
            python = self.python
        # SGLang's parser knows no underscores, people's habits do.
        flags = _words(Option(flag=option.flag.replace("_", "-"), values=option.values) for option in self.options)
        program = cl.program_words(python or self.python, self.entry)
        words = (*self.launcher, *program, "--model-path", self.model, *flags, *extra)
        home = str(Path.home()) if home is None else home
        return tuple(home + word[1:] if word == "~" or word.startswith("~/") else word for word in words)

    @property
    def command(self) -> str:
        """The line to paste back into a shell, secrets included; `from_command` makes an equal spec of it."""
        head = (*self.launcher, *cl.program_words(self.python, self.entry), "--model-path", self.model)
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env_items]
        return self._line(env, (*head, *self.args))

    @property
    def masked_command(self) -> str:
        """The command for reports and messages: values of secrets are ``***``."""
        env = [f"{name}={masked_value(name, shlex.quote(value))}" for name, value in self.env_items]
        launcher = tuple(masked(word) for word in self.launcher)
        flags = (word for option in self.options for word in masked_option(option))
        return self._line(
            env, (*launcher, *cl.program_words(self.python, self.entry), "--model-path", self.model, *flags)
        )

    def _line(self, assignments: Iterable[str], words: Iterable[str]) -> str:
        start = [] if self.cwd is None else ["cd", shlex.quote(self.cwd), "&&"]
        return " ".join([*start, *assignments, *(cl.quote(word) for word in words)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ServerSpec):
            return NotImplemented
        return (self.name, self.content_hash) == (other.name, other.content_hash)

    def __hash__(self) -> int:
        return hash((self.name, self.content_hash))

    def __repr__(self) -> str:
        return f"ServerSpec({self.name!r}, {self.short_hash})"

    def __str__(self) -> str:
        return self.name


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name):
        return
    fixed = re.sub(r"[^a-z0-9._-]+", "-", name.lower())
    fixed = re.sub(r"[._-]{2,}", "-", fixed).strip("._-") or "kimi-k2.5-int4"
    raise SpecError(
        f"{name!r} is no name for a server spec: baseline files are called after it, so it is made of "
        f"a-z and 0-9, joined by single `.`, `_` or `-`; such as {fixed!r}"
    )


def _check_env(name: str, env: Mapping[str, str]) -> None:
    for variable, value in env.items():
        if not _VARIABLE.fullmatch(variable):
            raise SpecError(f"server spec {name}: {variable!r} is no name for an environment variable")
        if not isinstance(value, str):
            raise SpecError(f"server spec {name}: env[{variable!r}] is of type {type(value).__name__}; give a string")


def _words(options: Iterable[Option]) -> tuple[str, ...]:
    return tuple(word for option in options for word in option.words)


def _texts(words: cl.Flags, what: str) -> tuple[str, ...]:
    return tuple(token.text for token in cl.read_words(words, what)[1])


def _split_model(parsed: Iterable[tuple[Option, int]]) -> tuple[str | None, tuple[Option, ...]]:
    """Take the model out of the flags."""
    options = tuple(option for option, _ in parsed)
    model = next((option.values[0] for option in options if option.name == "model-path"), None)
    return model, tuple(option for option in options if option.name != "model-path")


def _merge(options: Iterable[Option], added: Iterable[Option]) -> tuple[Option, ...]:
    """Put each added option in the place of the one it replaces, or at the end."""
    by_slot = {option.slot: option for option in options}
    by_slot.update({option.slot: option for option in added})
    return tuple(by_slot.values())


def _refuse_address(text: str, options: Iterable[tuple[Option, int]]) -> None:
    for option, at in options:
        if option.name in _ADDRESS_FLAGS:
            raise cl.refuse(
                text,
                at,
                f"{option.flag} has no place in a server spec",
                "leave it out: the harness chooses the address of each launch",
            )
