"""Every setting, declared once: its command line option, ini key, environment variable, default and help.

Also here: what pytest's own parser cannot express. An optional value is taken in the ``=`` form only, so
that ``pytest --gpu-host tests/`` runs ``tests/``; :func:`normalise_argv` makes the bare form explicit before
pytest parses the line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from pytest_specdec import settings as s
from pytest_specdec.errors import UserInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table. ``bare`` is what the option reads as when it is given without a value."""

    name: str
    flag: str
    parse: Callable[[object, str], Any]
    default: Any
    help: str
    metavar: str | None = None
    bare: str | None = None
    repeatable: bool = False
    switch: bool = False
    cli: bool = True
    path: bool = False

    @property
    def dest(self) -> str:
        """The attribute of ``config.option``, and the ini key."""
        return f"specdec_{self.name}"

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"PYTEST_SPECDEC_{self.name.upper()}"


TABLE: Final[tuple[Option, ...]] = (
    Option(
        name="gpu_host",
        flag="--gpu-host",
        parse=s.hosts,
        default=None,
        bare=s.HERE,
        repeatable=True,
        metavar="HOST",
        help="Run the GPU tests: on this machine, or with =[user@]host on that one by SSH.",
    ),
    Option(
        name="update_baselines",
        flag="--update-baselines",
        parse=s.one_of("new", "all"),
        default=None,
        bare="all",
        metavar="new|all",
        help="Write baselines from this run's valid results; =new only where none exists. Floors are never touched.",
    ),
    Option(
        name="device",
        flag="--specdec-device",
        parse=s.one_of("auto", "cpu", "cuda"),
        default="auto",
        metavar="auto|cpu|cuda",
        help="Where specs run: auto is cuda with --gpu-host, otherwise the CPU engine.",
    ),
    Option(
        name="url",
        flag="--specdec-url",
        parse=s.server_url,
        default=None,
        metavar="URL",
        help="Measure the server that is already running there: nothing is started or stopped, one launch is judged.",
    ),
    Option(
        name="url_flush",
        flag="--specdec-url-flush",
        parse=s.flag,
        default=False,
        switch=True,
        help="Flush the prefix cache of the --specdec-url server before each round.",
    ),
    Option(
        name="share_host",
        flag="--specdec-share-host",
        parse=s.flag,
        default=False,
        switch=True,
        help="Let several measured servers run on one host at a time, each on GPUs of its own.",
    ),
    Option(
        name="python",
        flag="--specdec-python",
        parse=s.pythons,
        default=MappingProxyType({}),
        metavar="PATH",
        help="The Python that runs SGLang on the host (as an ini value also lines of `host: path`); otherwise the "
        "spec's, then the one the shell finds.",
    ),
    Option(
        name="node",
        flag="--specdec-node",
        parse=s.slug,
        default=None,
        metavar="NAME",
        help="The node's name under the baselines directory; otherwise derived from the hardware.",
    ),
    Option(
        name="baselines",
        flag="--specdec-baselines",
        parse=s.text,
        default="baselines",
        path=True,
        metavar="DIR",
        help="Where the committed baselines are (default: baselines/ beside the ini file).",
    ),
    Option(
        name="report",
        flag="--specdec-report",
        parse=s.text,
        default=".specdec",
        path=True,
        metavar="DIR",
        help="Where the HTML report, the results JSON and the server logs go (default: .specdec/).",
    ),
    Option(
        name="launches",
        flag="--specdec-launches",
        parse=s.positive_int,
        default=None,
        metavar="N",
        help="Launches a measurement is spread over (default: 1 to judge, 5 to record a baseline).",
    ),
    Option(
        name="max_launches",
        flag="--specdec-max-launches",
        parse=s.positive_int,
        default=3,
        metavar="N",
        help="The most launches that a close answer may take (default: 3).",
    ),
    Option(
        name="study",
        flag="--specdec-study",
        parse=s.flag,
        default=False,
        switch=True,
        help="Take what this run tried into the ledger beside the baselines, at its end.",
    ),
    Option(
        name="rounds",
        flag="--specdec-rounds",
        parse=s.positive_int,
        default=5,
        metavar="N",
        help="Measured rounds a launch (default: 5).",
    ),
    Option(
        name="warmup",
        flag="--specdec-warmup",
        parse=s.count,
        default=1,
        metavar="N",
        help="Warm-up rounds a launch, kept apart (default: 1).",
    ),
    Option(
        name="startup_timeout",
        flag="--specdec-startup-timeout",
        parse=s.positive_seconds,
        default=600.0,
        metavar="SECONDS",
        help="Give up on a launch after this long without progress (default: 600).",
    ),
    Option(
        name="startup_limit",
        flag="--specdec-startup-limit",
        parse=s.positive_seconds,
        default=3600.0,
        metavar="SECONDS",
        help="Give up on a launch after this long in all (default: 3600).",
    ),
    Option(
        name="lease",
        flag="--specdec-lease",
        parse=s.positive_seconds,
        default=120.0,
        metavar="SECONDS",
        help="How long a lost connection may take to come back before a remote host ends its servers (default: 120).",
    ),
    Option(
        name="keep_servers",
        flag="--specdec-keep-servers",
        parse=s.kept_seconds,
        default=None,
        bare="on",
        metavar="SECONDS",
        help="Leave the last server on each host up for the next run, for so long (default: 3600); "
        "`pytest-specdec servers` lists and stops them.",
    ),
    Option(
        name="allow_loosening",
        flag="--specdec-allow-loosening",
        parse=s.flag,
        default=False,
        switch=True,
        help="Let --update-baselines write a value that is worse than the old limit.",
    ),
    Option(
        name="check",
        flag="--specdec-check",
        parse=s.flag,
        default=False,
        switch=True,
        help="Run the preflight of every collected spec and start nothing (pytest-specdec check).",
    ),
    Option(
        name="baseline_files",
        flag="--specdec-baseline-files",
        parse=s.one_of("list", "prune"),
        default=None,
        metavar="list|prune",
        help="List the committed baselines, or delete those that no collected test uses, and run nothing "
        "(pytest-specdec baselines).",
    ),
    Option(
        name="chat_template",
        flag="",
        parse=s.flag,
        default=False,
        cli=False,
        help="Put prompts into the model's chat template where the marker does not say (default: false, raw text).",
    ),
    Option(
        name="inconclusive",
        flag="",
        parse=s.one_of("fail", "warn"),
        default="fail",
        cli=False,
        help="What an inconclusive verdict is: fail (default), or warn: a pass with a warning.",
    ),
)

_OPTIONAL_VALUE: Final = {option.flag: option for option in TABLE if option.bare is not None}


def add_options(parser: pytest.Parser) -> None:
    """Declare the whole table to pytest: command line options and ini keys."""
    group = parser.getgroup("specdec", "speculative decoding on SGLang (pytest-specdec)")
    for option in TABLE:
        if option.cli:
            _add_flag(group, option)
        source = f"{option.flag} as an ini value. " if option.cli else ""
        parser.addini(option.dest, source + option.help, type="string", default=None)


def _add_flag(group: pytest.OptionGroup, option: Option) -> None:
    if option.switch:
        group.addoption(option.flag, dest=option.dest, action="store_true", default=None, help=option.help)
        return
    optional: dict[str, Any] = {} if option.bare is None else {"nargs": "?", "const": option.bare}
    group.addoption(
        option.flag,
        dest=option.dest,
        action="append" if option.repeatable else "store",
        metavar=option.metavar,
        default=None,
        help=option.help,
        **optional,
    )


def normalise_argv(args: list[str], *, invocation_dir: Path) -> None:
    """Rewrite, in place, each bare optional-value option into its ``=`` form.

    Raises :class:`pytest.UsageError` when the word after a bare ``--gpu-host`` reads as a host that was meant
    to be its value: no such file, and an ``@`` in it.
    """
    for position, word in enumerate(args):
        if word == "--":
            return
        option = _OPTIONAL_VALUE.get(word)
        if option is None:
            continue
        following = args[position + 1] if position + 1 < len(args) else ""
        meant_as_host = (
            option.name == "gpu_host"
            and "@" in following
            and not following.startswith("-")
            and not (invocation_dir / following.split("::")[0]).exists()
        )
        if meant_as_host:
            raise pytest.UsageError(
                f"--gpu-host {following}: the host is given in the = form, --gpu-host={following} "
                f"(the next word is always a test path, and there is no file {following!r})"
            )
        args[position] = f"{word}={option.bare}"


def load_settings(config: pytest.Config, environ: Mapping[str, str] | None = None) -> s.Settings:
    """Resolve the whole table for this run.

    Raises :class:`pytest.UsageError` naming the source of a bad value.
    """
    environ = os.environ if environ is None else environ
    try:
        resolved = {option.name: _resolve(config, option, environ) for option in TABLE}
    except UserInputError as error:
        raise pytest.UsageError(str(error)) from None
    values = {name: entry.value for name, entry in resolved.items()}
    gpu_hosts: tuple[str, ...] | None = values["gpu_host"]
    automatic: s.Device = "cpu" if gpu_hosts is None and values["url"] is None else "cuda"
    device: s.Device = automatic if values["device"] == "auto" else values["device"]
    _check_together(values, device, {name: entry.where for name, entry in resolved.items()})
    return s.Settings(
        gpu_hosts=gpu_hosts,
        device=device,
        url=values["url"],
        url_flush=values["url_flush"],
        share_host=values["share_host"],
        update=values["update_baselines"],
        python=values["python"],
        node=values["node"],
        baselines_dir=values["baselines"],
        report_dir=values["report"],
        launches=values["launches"],
        max_launches=values["max_launches"],
        study=values["study"],
        rounds=values["rounds"],
        warmup=values["warmup"],
        chat_template=values["chat_template"],
        startup_timeout_s=values["startup_timeout"],
        startup_limit_s=values["startup_limit"],
        lease_s=values["lease"],
        keep_servers_s=values["keep_servers"],
        allow_loosening=values["allow_loosening"],
        check=values["check"],
        baseline_files=values["baseline_files"],
        inconclusive=values["inconclusive"],
        where={name: entry.where for name, entry in resolved.items()},
    )


def _check_together(values: Mapping[str, Any], device: s.Device, where: Mapping[str, str]) -> None:
    """Refuse settings that say different things; raises :class:`pytest.UsageError` naming both sources."""

    def refuse(one: str, other: str, why: str) -> None:
        raise pytest.UsageError(f"{where[one]} and {where[other]}: {why}; leave one of them out")

    if values["url"] is not None:
        if values["gpu_host"] is not None:
            refuse("url", "gpu_host", "a server that is already running is measured where it is")
        if values["launches"] not in (None, 1):
            refuse("url", "launches", f"a server that is already running is one launch, not {values['launches']}")
        if values["update_baselines"] is not None and values["node"] is None:
            raise pytest.UsageError(
                f"{where['update_baselines']} and {where['url']}: a server does not tell its hardware over HTTP; say "
                "whose baselines are written with --specdec-node=NAME"
            )
    elif values["url_flush"]:
        raise pytest.UsageError(f"{where['url_flush']} is about the server of --specdec-url, and none is given")
    judging, launches = values["update_baselines"] is None, values["launches"] or 1
    if judging and launches > values["max_launches"] and where["max_launches"] != "default":
        refuse("launches", "max_launches", f"{launches} launches are more than {values['max_launches']}")
    if values["share_host"] and device == "cpu":
        raise pytest.UsageError(
            f"{where['share_host']}: servers that share a host are kept apart by GPUs, and the CPU engine has none"
        )


def _resolve(config: pytest.Config, option: Option, environ: Mapping[str, str]) -> s.Resolved[Any]:
    ini_dir = config.inipath.parent if config.inipath else config.rootpath
    given = getattr(config.option, option.dest, None) if option.cli else None
    if isinstance(given, list) and not given:
        given = None
    in_env = environ.get(option.env)
    in_ini = config.getini(option.dest)
    ini_name = config.inipath.name if config.inipath else "ini"
    found = s.first_given(
        [
            None if given is None else s.Candidate(given, option.flag),
            None if not in_env else s.Candidate(in_env, f"environment variable {option.env}"),
            None if in_ini in (None, "") else s.Candidate(in_ini, f"{ini_name}: {option.dest}"),
        ],
        option.parse,
        option.default,
    )
    if option.path:
        from_ini = found.where == "default" or found.where.startswith(ini_name)
        base = ini_dir if from_ini else config.invocation_params.dir
        return s.Resolved((base / Path(str(found.value)).expanduser()).absolute(), found.where)
    return found
