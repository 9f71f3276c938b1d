"""The hosts of a session: which of them this process measures on, and taking that one for each launch.

One process stays with one host, so that all launches of a spec are on one machine. Of a pool it takes the first one
that is free; workers of pytest-xdist begin at different ends, and so come to have a host each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_specdec import engine_env
from pytest_specdec.clock import Clock
from pytest_specdec.errors import HostError
from pytest_specdec.gpus import chooses_gpus, placement
from pytest_specdec.hosts import Host, LocalHost
from pytest_specdec.leased_host import LeasedLocalHost
from pytest_specdec.occupancy import Claim, Wanted, claim
from pytest_specdec.settings import HERE, Settings
from pytest_specdec.spec import ServerSpec
from pytest_specdec.ssh import SshHost

_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A host that is had for one launch. ``env`` keeps the launch to its GPUs when the host is shared."""

    host: Host
    env: Mapping[str, str]
    claim: Claim

    def release(self) -> None:
        """Let the next one have the place."""
        self.claim.release()


class HostPool:
    """The hosts that ``--gpu-host`` names, or this machine. ``first`` is where the search begins; ``make`` a test's."""

    def __init__(
        self,
        settings: Settings,
        *,
        first: int,
        clock: Clock,
        notify: Callable[[str], None],
        make: Callable[[str], Host] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._notify = notify
        self._new = self._host_at if make is None else make
        names = settings.gpu_hosts or (HERE,)
        first %= len(names)
        self._names = list(dict.fromkeys((*names[first:], *names[:first])))
        self._made: dict[str, Host] = {}
        self._bound: Host | None = None

    @property
    def host(self) -> Host:
        """The host of this process; the first one that answers, when no launch has chosen one yet.

        Raises :class:`HostError` when none can be used.
        """
        if self._bound is None:
            reasons: list[str] = []
            for name in list(self._names):
                host = self._usable(name, reasons)
                if host is not None:
                    self._bound = host
                    break
            else:
                raise HostError(_none_usable(reasons))
        return self._bound

    @property
    def is_chosen(self) -> bool:
        """Whether this process has settled on a host."""
        return self._bound is not None

    @property
    def likely_name(self) -> str | None:
        """The name of the host that the next launch will be on, where that is known before one is asked."""
        if self._bound is not None:
            return self._bound.name
        try:
            return self._make(self._names[0]).name if len(self._names) == 1 else None
        except HostError:
            return None

    @property
    def given_name(self) -> str:
        """What the user calls the host of this process; ``""`` is this machine."""
        host = self.host
        return next(name for name, made in self._made.items() if made is host)

    def _usable(self, name: str, reasons: list[str]) -> Host | None:
        """Return a host that answers; one that does not is left out from here on, which is said."""
        try:
            host = self._make(name)
            if len(self._names) > 1:
                host.environ()
        except HostError as error:
            reasons.append(str(error))
            self._names.remove(name)
            if self._names:
                self._notify(f"left out: {error}")
            return None
        return host

    def _make(self, name: str) -> Host:
        if name not in self._made:
            self._made[name] = self._new(name)
        return self._made[name]

    def _host_at(self, name: str) -> Host:
        if name == HERE:
            keeps = self._settings.keep_servers_s is not None
            return LeasedLocalHost(lease_s=self._settings.lease_s, clock=self._clock) if keeps else LocalHost()
        if self._settings.device == "cpu":
            raise HostError(
                f"--gpu-host={name}: the CPU engine runs on this machine only; leave out --specdec-device=cpu"
            )
        return SshHost(
            name,
            runtime_dir=engine_env.cache_root(os.environ) / "run",
            lease_s=self._settings.lease_s,
            clock=self._clock,
        )

    def take(self, spec: ServerSpec) -> Seat:
        """Have a host for a launch of this spec: one measured server at a time, whoever else measures there.

        Waits for ``--specdec-startup-limit`` seconds; raises :class:`HostError` after that, and when no host answers.
        """
        return self._take(spec, what=spec.name)

    def take_whole(self, what: str) -> Seat:
        """Have a host, all of it, for something that is no server; ``what`` is told to those who wait for it."""
        return self._take(None, what=what)

    def _take(self, spec: ServerSpec | None, *, what: str) -> Seat:
        limit_s = self._settings.startup_limit_s
        deadline = self._clock.monotonic() + limit_s
        claims: dict[str, Claim] = {}
        reasons: list[str] = []
        refused: set[str] = set()
        told = ""
        try:
            while True:
                waiting: dict[str, str] = {}
                for host in self._candidates(reasons):
                    if host.name in refused:
                        continue
                    try:
                        mine = claims.get(host.name) or self._claim(host, spec, what)
                        claims[host.name] = mine
                        busy = mine.poll()
                    except HostError as error:
                        # Too small for this spec, perhaps; another one may do.
                        refused.add(host.name)
                        reasons.append(str(error))
                        continue
                    if busy is None:
                        del claims[host.name]
                        self._bound = host
                        return Seat(host=host, env=_kept_to(mine.gpus, spec), claim=mine)
                    waiting[host.name] = busy
                if not waiting:
                    raise HostError(_none_usable(reasons))
                said = "; ".join(f"{name}: {busy} measures there" for name, busy in waiting.items())
                if said != told:
                    self._notify(f"waiting for {said}")
                    told = said
                if self._clock.monotonic() >= deadline:
                    raise HostError(
                        f"waited {limit_s:.0f} s for {said}; end that one, or wait longer with --specdec-startup-limit"
                    )
                self._clock.sleep(_POLL_S)
        finally:
            for left in claims.values():
                left.release()

    def _candidates(self, reasons: list[str]) -> list[Host]:
        if self._bound is not None:
            return [self._bound]
        return [host for name in list(self._names) if (host := self._usable(name, reasons)) is not None]

    def _claim(self, host: Host, spec: ServerSpec | None, what: str) -> Claim:
        wanted = None
        if spec is not None and self._settings.share_host:
            places = placement(host, spec, env={**host.environ(), **spec.env})
            wanted = Wanted(gpus=places.gpus, count=places.count)
        return claim(host, wanted, what=what, clock=self._clock)

    def close(self) -> None:
        """Let go of every host."""
        for host in self._made.values():
            if isinstance(host, (SshHost, LeasedLocalHost)):
                host.close()


def _kept_to(gpus: tuple[str, ...] | None, spec: ServerSpec | None) -> dict[str, str]:
    # By number, which SGLang itself parses; in the order in which nvidia-smi counts.
    if gpus is None or spec is None or chooses_gpus(spec):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _none_usable(reasons: list[str]) -> str:
    return reasons[0] if len(reasons) == 1 else "no host of the pool can be used:\n" + "\n".join(reasons)
