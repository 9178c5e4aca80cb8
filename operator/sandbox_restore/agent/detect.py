"""From /proc/cpuinfo to the value of the host-CPU label, or the reason why there is none.

Section 3: an unknown CPU is never given a made-up value. Section 13: all cores are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sandbox_restore.agent.cpuinfo import Core, parse
from sandbox_restore.fleet import cpu

VENDORS: Final[Mapping[str, str]] = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "HygonGenuine": "hygon",
    "CentaurHauls": "centaur",
    "Shanghai": "zhaoxin",
}
"""Section 3: x86 vendors, blanks around them removed, and how the label names them."""

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,4}")
_HEX: Final = re.compile(r"0x[0-9a-f]{1,4}", re.IGNORECASE)
_KERNEL: Final = re.compile(r"(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})(?![0-9])")

_GENERIC_MODELS: Final = re.compile(r"QEMU (Virtual|TCG) CPU|Common (KVM|32-bit KVM) processor")
"""Model names of hypervisors' stand-in CPUs: their family and model say nothing of the host's."""

_X86_LIMITS: Final = {"cpu family": 0x0F + 0xFF, "model": 0xFF, "stepping": 0x0F}
"""Largest values that CPUID can tell: extended family added, extended model in front."""

_ARM_LIMITS: Final = {
    "CPU implementer": 0xFF,
    "CPU part": 0xFFF,
    "CPU variant": 0xF,
    "CPU revision": 0xF,
}
"""Widths of the fields of the register MIDR_EL1."""


class Reason(StrEnum):
    """Why there is no value."""

    NO_PROCESSOR = "NoProcessor"
    """No processor in it: empty, or no cpuinfo."""
    NOT_CPUINFO = "NotCpuinfo"
    """Processors in it that contradict each other: no kernel wrote it."""
    UNKNOWN_LAYOUT = "UnknownLayout"
    """Neither x86 nor ARM: s390x, ppc64, RISC-V and others."""
    FIELD_MISSING = "FieldMissing"
    FIELD_UNUSABLE = "FieldUnusable"
    """A field that is no number, or one that no CPU has."""
    UNKNOWN_VENDOR = "UnknownVendor"
    PLACEHOLDER = "Placeholder"
    """A hypervisor's stand-in, or a field that a kernel fills in when it knows nothing."""
    CORES_DIFFER = "CoresDiffer"
    """Hybrid machine, refused unless the setting allows it."""
    TOO_LONG = "TooLong"
    """The value with all that was asked for does not fit into a label."""
    KERNEL_UNKNOWN = "KernelUnknown"
    """The kernel version is asked for and cannot be told."""
    UNREADABLE = "Unreadable"
    """The file could not be read."""
    NOT_LINUX = "NotLinux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """What else goes into the value, all off by default (settings AGENT_…)."""

    hybrid: bool = False
    """Cores that differ are published as their sorted set, joined by dots."""
    kernel: bool = False
    """The host kernel's major.minor follows as `-kMAJOR.MINOR`."""
    suffix: str = ""
    """A fleet's own ending, canonical in itself, follows after a `-`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The value, or the reason why there is none."""

    value: str | None = None
    reason: Reason | None = None
    text: str = ""
    """The reason in words; empty with a value."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What the answer was made from, as the file has it."""


class _RefusedError(Exception):
    def __init__(
        self, reason: Reason, text: str, *, fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.detection = Detection(reason=reason, text=text, fields=fields or {})


def detect(
    text: str, *, dimensions: Dimensions = Dimensions(), kernel_release: str | None = None
) -> Detection:
    """Sections 3 and 13: the value that this cpuinfo stands for, or why it stands for none.

    `kernel_release` is what `uname -r` says on the same host; looked at only when it is asked for.
    """
    try:
        base, fields = _of_cores(text, hybrid=dimensions.hybrid)
        parts = [base]
        if dimensions.kernel:
            parts.append(_kernel(kernel_release, fields))
            fields = {**fields, "kernel": kernel_release or ""}
        if dimensions.suffix:
            parts.append(dimensions.suffix)
            fields = {**fields, "suffix": dimensions.suffix}
        return _checked("-".join(parts), fields)
    except _RefusedError as refused:
        return refused.detection


def unreadable(path: str, problem: str) -> Detection:
    """The file cannot be read: said, and nothing published (section 13)."""
    return Detection(reason=Reason.UNREADABLE, text=f"{path} cannot be read: {problem}")


def not_linux(system: str) -> Detection:
    """Section 13: it needs Linux; elsewhere it says so and publishes nothing."""
    return Detection(
        reason=Reason.NOT_LINUX,
        text=f"the CPU can be told on Linux only, this is {system}; --cpuinfo reads a saved file",
    )


def _of_cores(text: str, *, hybrid: bool) -> tuple[str, dict[str, str]]:
    """The value of all cores together, and the fields it was made from."""
    found = parse(text)
    if found.problem:
        raise _RefusedError(Reason.NOT_CPUINFO, f"not what a kernel writes: {found.problem}")
    if found.other_layout:
        raise _RefusedError(
            Reason.UNKNOWN_LAYOUT, "layout not known: it is neither that of x86 nor that of ARM"
        )
    if not found.cores:
        raise _RefusedError(Reason.NO_PROCESSOR, "no processor found")
    kinds: dict[str, dict[str, str]] = {}
    for core in found.cores:
        value, fields = _of_core(core)
        kinds.setdefault(value, fields)
    values = sorted(kinds)
    if len(values) == 1:
        return values[0], kinds[values[0]]
    fields = {"cores": ", ".join(values)}
    if not hybrid:
        raise _RefusedError(
            Reason.CORES_DIFFER,
            "cores of more than one kind; refused unless the hybrid setting allows the sorted set:"
            f" {fields['cores']}",
            fields=fields,
        )
    if len({cpu.vendor(value) for value in values}) > 1:
        raise _RefusedError(
            Reason.CORES_DIFFER, f"cores of several makers: {fields['cores']}", fields=fields
        )
    return ".".join(values), fields


def _of_core(core: Core) -> tuple[str, dict[str, str]]:
    """The value of one core, by the layout of its fields."""
    x86 = "vendor_id" in core.fields or "cpu family" in core.fields
    arm = "CPU implementer" in core.fields or "CPU part" in core.fields
    if x86 == arm:
        names = ", ".join(sorted(core.fields)[:8]) or "none"
        raise _RefusedError(
            Reason.UNKNOWN_LAYOUT,
            f"layout not known: processor {core.number} has fields of"
            f" {'both x86 and ARM' if x86 else 'neither x86 nor ARM'} (fields: {names})",
        )
    return _x86(core) if x86 else _arm(core)


def _x86(core: Core) -> tuple[str, dict[str, str]]:
    """Section 3: VENDOR-FAMILY-MODEL-STEPPING in decimal."""
    fields = _fields(core, ("vendor_id", *_X86_LIMITS))
    vendor = VENDORS.get(fields["vendor_id"])
    if vendor is None:
        raise _RefusedError(
            Reason.UNKNOWN_VENDOR,
            f"vendor {fields['vendor_id']!r} is not known (processor {core.number})",
            fields=fields,
        )
    family, model, stepping = (
        _number(core, name, fields, form=_DECIMAL, base=10, largest=largest)
        for name, largest in _X86_LIMITS.items()
    )
    if family == 0:
        raise _placeholder(core, "cpu family is 0", fields)
    name = core.fields.get("model name", "")
    if _GENERIC_MODELS.match(name):
        raise _placeholder(
            core, f"{name!r} is a hypervisor's stand-in for any CPU", {**fields, "model name": name}
        )
    return f"{vendor}-{family}-{model}-{stepping}", fields


def _arm(core: Core) -> tuple[str, dict[str, str]]:
    """Section 3: arm-IMPLEMENTER-PART-rVARIANTpREVISION; hex as long as the kernel prints it."""
    fields = _fields(core, tuple(_ARM_LIMITS))
    implementer, part, variant, revision = (
        _number(
            core,
            name,
            fields,
            form=_DECIMAL if name == "CPU revision" else _HEX,
            base=10 if name == "CPU revision" else 16,
            largest=largest,
        )
        for name, largest in _ARM_LIMITS.items()
    )
    if implementer == 0:
        raise _placeholder(core, "CPU implementer is 0, which no maker has", fields)
    return f"arm-{implementer:02x}-{part:03x}-r{variant}p{revision}", fields


def _fields(core: Core, names: tuple[str, ...]) -> dict[str, str]:
    """The fields of these names; refused when one is missing or empty."""
    found = {name: core.fields[name] for name in names if core.fields.get(name)}
    for name in names:
        if name not in found:
            raise _RefusedError(
                Reason.FIELD_MISSING, f"{name} missing (processor {core.number})", fields=found
            )
    return found


def _number(
    core: Core,
    name: str,
    fields: Mapping[str, str],
    *,
    form: re.Pattern[str],
    base: int,
    largest: int,
) -> int:
    text = fields[name]
    if text.lower() == "unknown":
        raise _placeholder(core, f"{name} is {text!r}", fields)
    if not form.fullmatch(text) or int(text, base) > largest:
        raise _RefusedError(
            Reason.FIELD_UNUSABLE,
            f"{name} is {text[:40]!r}, expected a number from 0 to {largest} in base {base}"
            f" (processor {core.number})",
            fields=fields,
        )
    return int(text, base)


def _placeholder(core: Core, what: str, fields: Mapping[str, str]) -> _RefusedError:
    return _RefusedError(Reason.PLACEHOLDER, f"{what} (processor {core.number})", fields=fields)


def _kernel(release: str | None, fields: Mapping[str, str]) -> str:
    """`kMAJOR.MINOR` of a kernel release such as 6.1.0-13-amd64."""
    found = _KERNEL.match(release or "")
    if found is None:
        raise _RefusedError(
            Reason.KERNEL_UNKNOWN,
            f"kernel release {release!r} does not begin with MAJOR.MINOR"
            if release
            else "the kernel version is asked for and not known; give --kernel-release",
            fields=fields,
        )
    return f"k{found[1]}.{found[2]}"


def _checked(value: str, fields: Mapping[str, str]) -> Detection:
    """The value if it may stand on a label; a last guard, whatever it was made from."""
    if len(value) > cpu.MAX_LENGTH:
        raise _RefusedError(
            Reason.TOO_LONG,
            f"{value} has {len(value)} characters, a label holds {cpu.MAX_LENGTH}",
            fields=fields,
        )
    if why := cpu.why_unusable(value):
        raise _RefusedError(
            Reason.PLACEHOLDER, f"{value} cannot be published: {why}", fields=fields
        )
    return Detection(value=value, fields=fields)
