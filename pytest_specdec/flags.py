"""The server's flags: reading them from words, and which spellings mean the same one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_specdec.commandline import ASSIGNMENT, Token, refuse
from pytest_specdec.errors import SpecError

#: Spellings of one flag, to its own name (SGLang 0.5.23's parser). Those marked are no names of their own:
#: argparse takes them because they begin one name only.
_ALIASES: Final = {
    "attention-context-parallel-size": "attn-cp-size",
    "attention-data-parallel-size": "attn-dp-size",
    "context-bucket": "cuda-graph-prefill-max-context",
    "data-parallel-size": "dp-size",
    "decode-context-parallel-size": "dcp-size",
    "dp": "dp-size",  # begins it
    "enable-hicache": "enable-hierarchical-cache",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "grpc-http-sidecar-port": "smg-http-sidecar-port",
    "hierarchical-sparse-attention-extra-config": "hisparse-config",
    "mem-frac": "mem-fraction-static",  # begins it
    "mem-fraction": "mem-fraction-static",  # begins it
    "model": "model-path",
    "moe-data-parallel-size": "moe-dp-size",
    "nccl-init-addr": "dist-init-addr",
    "pipeline-parallel-size": "pp-size",
    "speculative-algo": "speculative-algorithm",  # begins it
    "speculative-draft-model": "speculative-draft-model-path",
    "speculative-num-draft": "speculative-num-draft-tokens",  # begins it
    "tensor-parallel-size": "tp-size",
    "tp": "tp-size",  # begins it
}

#: Old names of a flag, to the name that took their place. Each sets the other's value, but not every version
#: takes both: they replace one another, and are not the same content.
_RENAMED: Final = {"cuda-graph-bs": "cuda-graph-bs-decode", "cuda-graph-max-bs": "cuda-graph-max-bs-decode"}

#: Flags known to take exactly one value: a second word behind them is a mistake we can point at.
_ONE_VALUE: Final = {*_ALIASES.values(), "device", "dtype", "host", "port", "random-seed"} - {
    "enable-hierarchical-cache"
}

#: Every flag of SGLang 0.5.23 that begins so takes no value.
_BARE_PREFIXES: Final = ("disable-", "enable-", "no-", "skip-")

_FLAG: Final = re.compile(r"(--[A-Za-z0-9][A-Za-z0-9._-]*)(=(.*))?", re.DOTALL)
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own rule
_SECRET_NAME: Final = re.compile(r"(token|key|secret|password)$", re.IGNORECASE)
_SECRET_ASSIGNMENT: Final = re.compile(r"(\w*(?:token|key|secret|password)=).+", re.IGNORECASE | re.DOTALL)
_MASK: Final = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A flag of the server as it was written (``--tp``), and its values; none for a bare flag."""

    flag: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The flag's own name, whatever its spelling: ``tp-size``."""
        return canonical(self.flag)

    @property
    def slot(self) -> str:
        """What the flag sets: two flags of one slot replace one another (``--x``, ``--no-x``, a rename)."""
        bare = self.name.removeprefix("no-")
        return _RENAMED.get(bare, bare)

    @property
    def words(self) -> tuple[str, ...]:
        """The option as words, which are read back as the same: with ``=`` where it takes that."""
        if len(self.values) == 1 and (_takes_none(self.name) or not is_value(self.values[0])):
            return (f"{self.flag}={self.values[0]}",)
        return (self.flag, *self.values)


def canonical(flag: str) -> str:
    """Give a flag's own name, without dashes: ``--tensor_parallel_size`` and ``tp`` are ``tp-size``."""
    name = flag.lstrip("-").replace("_", "-")
    return _ALIASES.get(name, name)


def name_model(arguments: Sequence[Token]) -> Sequence[Token]:
    """Put ``--model-path`` in front of the model that ``sglang serve MODEL`` takes as its first word."""
    if not arguments or not is_value(arguments[0].text):
        return arguments
    return (Token(text="--model-path", raw="", start=arguments[0].start), *arguments)


def parse_options(text: str, tokens: Sequence[Token]) -> list[tuple[Option, int]]:
    """Read the server's flags with the offset of each. Of a flag given twice the last counts, as in argparse.

    Raises:
        SpecError: a word belongs to no flag, a flag is malformed or lacks its value; with the position.

    """
    by_slot: dict[str, tuple[Option, int]] = {}
    at = 0
    while at < len(tokens):
        first = tokens[at]
        option = _read_option(text, tokens, at)
        at += 1 if "=" in first.text else 1 + len(option.values)
        if option.name in _ONE_VALUE and not option.values:
            raise refuse(text, first.start, f"{option.flag} has no value", f"write `{option.flag} VALUE`")
        by_slot.pop(option.slot, None)
        by_slot[option.slot] = (option, first.start)
    return list(by_slot.values())


def _read_option(text: str, tokens: Sequence[Token], at: int) -> Option:
    token = tokens[at]
    matched = _FLAG.fullmatch(token.text)
    if matched is None:
        raise _stray(text, tokens, at)
    flag, tied, value = matched.groups()
    if tied:
        return Option(flag=flag, values=(value,))
    name = canonical(flag)
    most = 0 if _takes_none(name) else 1 if name in _ONE_VALUE else len(tokens)
    values: list[str] = []
    for follower in tokens[at + 1 : at + 1 + most]:
        if not is_value(follower.text):
            break
        values.append(follower.text)
    return Option(flag=flag, values=tuple(values))


def _takes_none(name: str) -> bool:
    return name.startswith(_BARE_PREFIXES) or name == "trust-remote-code"


def _stray(text: str, tokens: Sequence[Token], at: int) -> SpecError:
    token = tokens[at]
    if not is_value(token.text):
        problem = f"{token.text!r} is no flag of SGLang's"
        remedy = "its flags begin with two dashes and a letter"
    elif ASSIGNMENT.match(token.raw):
        problem = "an assignment among the flags"
        remedy = "put it in front of them, or give env="
    else:
        after = f"after {tokens[at - 1].text}" if at else "in front of the flags"
        problem = f"the word {token.text!r} {after} belongs to no flag"
        remedy = "a flag begins with two dashes; a value with blanks needs quotes"
    return refuse(text, token.start, problem, remedy)


def is_value(word: str) -> bool:
    """Whether argparse takes the word as a value: a negative number, a lone dash or a text is one."""
    if _FLAG.fullmatch(word):
        return False
    return not word.startswith("-") or word == "-" or " " in word or bool(_NEGATIVE_NUMBER.fullmatch(word))


def is_secret(name: str) -> bool:
    """Whether a variable or flag of this name holds a secret: it ends in token, key, secret or password."""
    return _SECRET_NAME.search(name) is not None


def masked(word: str) -> str:
    """Hide the value of a secret assignment within a launcher's word: ``--env=HF_TOKEN=***``."""
    return re.sub(_SECRET_ASSIGNMENT, rf"\1{_MASK}", word)


def masked_option(option: Option) -> tuple[str, ...]:
    """Give the option's words with a secret value hidden."""
    if option.values and is_secret(option.name):
        return (option.flag, _MASK)
    return option.words


def masked_value(name: str, value: str) -> str:
    """Give a variable's value, hidden if it is a secret."""
    return _MASK if is_secret(name) else value
