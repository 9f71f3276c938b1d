"""What two specs differ by: as they were written, and as their servers resolved it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pytest_specdec.environment import environment_changes
from pytest_specdec.flags import is_secret, masked, masked_value
from pytest_specdec.model import EnvironmentChange
from pytest_specdec.spec import ServerSpec

#: Flags that say one thing together.
_DRAFTING: Final = "--speculative-"
_MASK: Final = "***"
#: What is no difference of the servers: the spec's own words, which ``intended`` tells, and what each launch has anew.
_TOLD: Final = frozenset({"command", "spec_hash", "gpu_measured_sm_mhz", "gpu_power_capped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """From control to treatment: ``intended`` as the specs say it, ``effective`` as the servers told it."""

    control: str
    intended: tuple[str, ...]
    effective: tuple[EnvironmentChange, ...]

    @property
    def intentions(self) -> int:
        """How many things were changed; flags that configure drafting are one."""
        drafting = sum(line.startswith(_DRAFTING) for line in self.intended)
        return len(self.intended) - max(0, drafting - 1)

    def lines(self) -> list[str]:
        """Say both in a few lines."""
        said = [f"changed against {self.control}: {'; '.join(self.intended) or 'nothing'}"]
        if self.intentions > 1:
            said.append(f"that is {self.intentions} changes at once: the ratio is of all of them together")
        if self.effective:
            said.append("the servers differ by: " + "; ".join(map(str, self.effective)))
        return said


def difference(
    control: ServerSpec,
    treatment: ServerSpec,
    *,
    control_environment: Mapping[str, object],
    treatment_environment: Mapping[str, object],
) -> Difference:
    """Compare two specs, and what was found of their launches (flat: facts, ``args.<name>``, ``env.<name>``)."""
    found = environment_changes([control_environment], treatment_environment)
    return Difference(
        control=control.name,
        intended=intended(control, treatment),
        effective=tuple(change for change in found if change.key not in _TOLD),
    )


def intended(control: ServerSpec, treatment: ServerSpec) -> tuple[str, ...]:
    """Return a line for each flag, variable and other part that the specs themselves have otherwise; no secrets."""
    before, after = _parts(control), _parts(treatment)
    return tuple(
        f"{key}: {before.get(key, '(not set)')} -> {after.get(key, '(not set)')}"
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    )


def _parts(spec: ServerSpec) -> dict[str, str]:
    parts = {
        "--model-path": spec.model,
        "python": spec.python,
        "cwd": spec.cwd,
        "launcher": " ".join(map(masked, spec.launcher)),
        "entry": " ".join(spec.entry),
    }
    for option in spec.options:
        # What a flag sets: its older name and its negation are no things of their own.
        bare = "off" if option.name.startswith("no-") else "on"
        parts[f"--{option.slot}"] = _MASK if is_secret(option.name) else " ".join(option.values) or bare
    parts |= {name: masked_value(name, value) for name, value in spec.env.items()}
    return {key: value for key, value in parts.items() if value}
