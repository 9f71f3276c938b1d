"""What can be known of a launch before any weight is loaded: nine minutes are a high price for a typing error.

SGLang's own parser is asked, under the launch's own launcher and environment, within a container too. That takes
ten seconds, so what it said is kept. What is kept only ever says yes: a flag that seems wrong is asked about afresh.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_specdec import containers, flag_probe, jsonfile
from pytest_specdec.clock import Clock
from pytest_specdec.commandline import SERVE, program_words
from pytest_specdec.drafting import drafting_notices, drafting_problems, names_unknown_algorithm
from pytest_specdec.errors import HostError
from pytest_specdec.flags import masked
from pytest_specdec.gpus import gpu_problems
from pytest_specdec.hosts import Host
from pytest_specdec.option_table import OptionTable, Row
from pytest_specdec.renames import translate
from pytest_specdec.spec import ServerSpec

#: Reading metadata takes a tenth of a second, importing SGLang ten; a cold disk or image, minutes.
_LOOK_TIMEOUT_S: Final = 120.0
_PARSE_TIMEOUT_S: Final = 300.0
_SCRIPT: Final = Path(flag_probe.__file__)
_CACHE_VERSION: Final = 1
#: How many values that only SGLang can read a cache file remembers as accepted.
_REMEMBERED: Final = 500
#: What else decides which options and choices a parser has.
_SHAPING: Final = re.compile(r"SGLANG_|PYTHONPATH$")
_MODEL: Final = "--model-path"
_DRAFT: Final = "--speculative-draft-model-path"
_WRONG: Final = {
    "missing": "is not there",
    "no-config": "is a directory without a config.json, so no model is in it",
}

Rule = Literal[
    "launcher",
    "python",
    "unknown-flag",
    "ambiguous-flag",
    "bad-value",
    "draft-flags",
    "model-path",
    "draft-path",
    "gpus",
]


RULES: Final[tuple[str, ...]] = get_args(Rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a launch would fail: the name of the rule, and a message for a terminal."""

    rule: Rule
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What a check found. ``spec`` is what to launch: flags are spelled for the SGLang that was found.

    ``notices`` say what was translated, or what SGLang will change; ``sglang_version`` is None when none was found.
    """

    spec: ServerSpec
    notices: tuple[str, ...]
    problems: tuple[Problem, ...]
    sglang_version: str | None

    def refusal(self) -> str | None:
        """Return all problems as one message, None where there are none."""
        if not self.problems:
            return None
        count = "a problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        version = "" if self.sglang_version is None else f", for SGLang {self.sglang_version}"
        lines = [f"{self.spec.name}: the preflight found {count}{version}; nothing was started"]
        lines += [f"  {problem.rule}: {problem.message}" for problem in self.problems]
        lines += [f"  {notice}" for notice in self.notices]
        return "\n".join([*lines, f"  command: {self.spec.masked_command}"])


def check_lines(results: Iterable[Preflight]) -> list[str]:
    """Return a report on several specs: a line each that says ok or how many problems, then what they are."""
    lines = []
    for result in results:
        version = "SGLang not found" if result.sglang_version is None else f"SGLang {result.sglang_version}"
        count = len(result.problems)
        verdict = "ok" if not count else "1 problem" if count == 1 else f"{count} problems"
        lines.append(f"{result.spec.name}: {verdict} ({version})")
        lines += [f"  {problem.rule}: {problem.message}" for problem in result.problems]
        lines += [f"  note: {notice}" for notice in result.notices]
    return lines


def check(
    host: Host,
    spec: ServerSpec,
    *,
    python: str | None,
    env: Mapping[str, str],
    cache_dir: Path,
    device: Literal["cpu", "cuda"],
    clock: Clock,
) -> Preflight:
    """Check a spec on the host it will be launched on; starts no server.

    Args:
        host: where it will be launched.
        spec: what will be launched, ``tiny:`` names already replaced by paths.
        python: the Python that runs SGLang; None where the launcher brings one.
        env: the launch's whole environment.
        cache_dir: where answers of SGLang's parser are kept, on this machine.
        device: ``cuda`` looks at the GPUs too, unless the spec asks for the CPU.
        clock: for the wait until a GPU is free.

    Raises:
        HostError: the host does not answer. All else is a problem in the result.

    """
    unfit = containers.refusal(spec.launcher)
    if unfit is not None:
        # What would be asked behind such a launcher may not answer, nor end.
        problem = Problem(rule="launcher", message=unfit)
        return Preflight(spec=spec, notices=(), problems=(problem,), sglang_version=None)
    probe = _Probe(host=host, spec=spec, python=python, env=env)
    paths = _local_paths(host, spec)
    seen = probe.ask(
        {"ask": "look", "paths": list(dict.fromkeys(path for _, _, path in paths))}, timeout_s=_LOOK_TIMEOUT_S
    )
    problems: list[Problem] = []
    notices = (*_address_notices(spec), *containers.notices(spec.launcher))
    version: str | None = None
    if isinstance(seen, str):
        problems.append(Problem(rule="python", message=seen))
    elif seen["sglang_version"] is None:
        problems.append(Problem(rule="python", message=f"{seen['python']} has no sglang; {probe.described}"))
    else:
        version = str(seen["sglang_version"])
        spec, translated = translate(spec, version)
        notices += translated
        answers = _Answers(probe, spec, stamp=str(seen["stamp"]), cache_dir=cache_dir)
        problems += answers.problems()
        problems += [Problem(rule="draft-flags", message=text) for text in drafting_problems(spec, answers.algorithms)]
        notices += tuple(drafting_notices(spec))
    if not isinstance(seen, str):
        where = "in the environment of its launcher" if spec.launcher_brings_python else f"on {host.name}"
        problems += [
            Problem(rule=rule, message=f"{flag} {path} {_WRONG[seen['paths'][path]]} {where}")
            for rule, flag, path in paths
            if seen["paths"].get(path) in _WRONG
        ]
    if device == "cuda" and not spec.runs_on_cpu:
        problems += [Problem(rule="gpus", message=text) for text in gpu_problems(host, spec, env=env, clock=clock)]
    return Preflight(spec=spec, notices=notices, problems=tuple(problems), sglang_version=version)


def ask_engine(
    host: Host,
    spec: ServerSpec,
    *,
    python: str | None,
    env: Mapping[str, str],
    request: Mapping[str, object],
    timeout_s: float,
) -> dict[str, Any] | str:
    """Ask the Python that runs SGLang, where and as the spec runs it; the answer, or why there is none.

    ``request`` is one of :mod:`pytest_specdec.flag_probe`. Raises :class:`HostError` when the host does not answer.
    """
    return _Probe(host=host, spec=spec, python=python, env=env).ask(request, timeout_s=timeout_s)


def _address_notices(spec: ServerSpec) -> tuple[str, ...]:
    """Say that an address of a pasted line is not used."""
    if not spec.left_out:
        return ()
    flags = " ".join(word for option in spec.left_out for word in option.words)
    return (f"{flags} of its command is not used: each launch gets a free port of its own on 127.0.0.1",)


def _local_paths(host: Host, spec: ServerSpec) -> list[tuple[Literal["model-path", "draft-path"], str, str]]:
    """The models that are named by path, as the server will see them; an id is fetched, and not looked for."""
    models: list[tuple[Literal["model-path", "draft-path"], str, str | None]] = [
        ("model-path", _MODEL, spec.model),
        ("draft-path", _DRAFT, spec.draft_model),
    ]
    return [
        (rule, flag, _expand(host, word))
        for rule, flag, word in models
        if word is not None and word.startswith(("/", "./", "../", "~/"))
    ]


def _expand(host: Host, word: str) -> str:
    return host.home() + word[1:] if word == "~" or word.startswith("~/") else word


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """Runs the script as the server would be run."""

    host: Host
    spec: ServerSpec
    python: str | None
    env: Mapping[str, str]

    @property
    def program(self) -> tuple[str, ...]:
        """What runs a script where the spec runs SGLang: launcher, Python, interpreter flags."""
        spec = self.spec
        python = spec.python if spec.launcher_brings_python else self.python or spec.python
        if spec.entry == SERVE:
            words: tuple[str, ...] = (python or "python3",)
        else:
            words = program_words(python, spec.entry)[: -len(("-m", "sglang.launch_server"))]
        words = tuple(_expand(self.host, word) for word in (*_beside(spec.launcher), *words))
        return words if spec.cwd is None else ("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", spec.cwd, *words)

    @property
    def described(self) -> str:
        """What was run, for messages."""
        words = [masked(word) for word in self.program]
        return f"asked with `{shlex.join(words)}` on {self.host.name}"

    def ask(self, request: Mapping[str, object], *, timeout_s: float) -> dict[str, Any] | str:
        """Return the script's answer, or why there is none. Raises :class:`HostError` when the host is away."""
        argv = [*self.program, "-c", _SCRIPT.read_text(encoding="utf-8"), json.dumps(request)]
        try:
            done = self.host.run(argv, env=self.env, timeout_s=timeout_s)
        except HostError as error:
            # Of the program or of the host? A host that is there can run this.
            self.host.run(["true"], timeout_s=_LOOK_TIMEOUT_S)
            return f"{error} ({self.described})"
        for line in reversed(done.stdout.splitlines()):
            if line.startswith(flag_probe.MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(flag_probe.MARK))
                return answer
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        return f"SGLang's Python ended with exit code {done.returncode} and said: {said} ({self.described})"


def _beside(launcher: Sequence[str]) -> tuple[str, ...]:
    """The launcher for a short run beside the real one: a container leaves neither itself nor its name behind."""
    run = containers.find_run(launcher)
    return tuple(launcher) if run is None else run.words(without=("name", "rm", "cidfile"), added=("--rm",))


class _Answers:
    """What SGLang's parser says to the spec's flags: from the cache if that says yes, else from SGLang."""

    def __init__(self, probe: _Probe, spec: ServerSpec, *, stamp: str, cache_dir: Path) -> None:
        self._probe = probe
        self._spec = spec
        argv = spec.argv(probe.python, ("--host", "127.0.0.1", "--port", "20000"), home=probe.host.home())
        self._words = argv[argv.index(_MODEL) :]
        shaping = sorted(item for item in probe.env.items() if _SHAPING.match(item[0]))
        identity = json.dumps([probe.host.name, probe.program, stamp, shaping, _SCRIPT.read_text(encoding="utf-8")])
        self._path = cache_dir / "preflight" / f"{_digest(identity)}.json"
        self.algorithms: list[str] | None = None

    def problems(self) -> list[Problem]:
        """Return what the parser refuses, all of it where the table can tell."""
        kept = self._read()
        if kept is not None and self._passes(*kept):
            return []
        answer = self._probe.ask({"ask": "parse", "words": self._words}, timeout_s=_PARSE_TIMEOUT_S)
        if isinstance(answer, str):
            return [Problem(rule="python", message=f"its argument parser can't be built: {answer}")]
        self.algorithms = answer["algorithms"]
        table = _table(answer)
        refused: str | None = answer["error"]
        accepted = [] if kept is None else list(kept[1]["accepted"])
        if refused is None:
            accepted += [_digest(*option.words) for option in table.unread(self._spec.options)]
        self._write({**answer, "accepted": list(dict.fromkeys(accepted))[-_REMEMBERED:]})
        if refused is None:
            return []
        found = table.objections(self._spec.options)
        if not found:
            return [Problem(rule="bad-value", message=f"SGLang's parser says: {refused}")]
        return [Problem(rule=each.rule, message=each.message) for each in found]

    def _passes(self, table: OptionTable, kept: Mapping[str, Any]) -> bool:
        """Whether what is kept is enough to say yes. A file of options is read where the server runs."""
        self.algorithms = kept["algorithms"]
        options = self._spec.options
        if self._spec.has("--config") or table.objections(options):
            return False
        if any(_digest(*option.words) not in kept["accepted"] for option in table.unread(options)):
            return False
        return not names_unknown_algorithm(self._spec, self.algorithms)

    def _read(self) -> tuple[OptionTable, dict[str, Any]] | None:
        """Return what is kept, None for nothing or what can't be read."""
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["cache_version"] != _CACHE_VERSION:
                return None
            return _table(kept), {"algorithms": kept["algorithms"], "accepted": kept["accepted"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _write(self, answer: Mapping[str, Any]) -> None:
        document = {key: answer[key] for key in ("options", "algorithms", "accepted")}
        # Where nothing can be kept, it is asked again next time.
        with contextlib.suppress(OSError):
            jsonfile.write(self._path, {"cache_version": _CACHE_VERSION, **document}, digits=17)


def _digest(*words: str) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:24]


def _table(answer: Mapping[str, Any]) -> OptionTable:
    return OptionTable(Row.from_json(entry) for entry in answer["options"])
