"""Host CPU identity: what counts as the name of a CPU, and what does not (domain.md section 3).

Whole values are compared and nothing else: no value is parsed, ordered or matched by prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from sandbox_restore.model.names import HOST_CPU_LABEL

MAX_LENGTH: Final = 63

_CANONICAL: Final = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
_SEPARATOR: Final = re.compile(r"[-.]")
_OTHER_DIGIT: Final = re.compile(r"[1-9]")

_NO_CPU_GROUPS: Final = frozenset(
    {
        "absent",
        "error",
        "invalid",
        "missing",
        "nan",
        "nil",
        "none",
        "null",
        "placeholder",
        "tbd",
        "todo",
        "unavailable",
        "undefined",
        "undetected",
        "unidentified",
        "unlabeled",
        "unlabelled",
        "unset",
        "unspecified",
        "unsupported",
    }
)
"""Words that say "no CPU is known here" wherever they stand in a value."""

_NO_CPU_VALUES: Final = frozenset(
    {
        "all",
        "any",
        "auto",
        "default",
        "empty",
        "false",
        "generic",
        "n-a",
        "n.a",
        "na",
        "no",
        "no-cpu",
        "no-value",
        "not-applicable",
        "not-available",
        "not-detected",
        "not-known",
        "not-set",
        "other",
        "to-be-determined",
        "true",
        "yes",
    }
)
"""Whole values that name no particular CPU; as one group of a longer value they may."""

_VENDOR_ARCHITECTURE: Final[Mapping[str, str]] = {
    "intel": "x86",
    "amd": "x86",
    "hygon": "x86",
    "centaur": "x86",
    "zhaoxin": "x86",
    "arm": "arm",
}
"""Vendor prefixes that the node agent makes (section 3), and the architecture each belongs to."""


def is_canonical(value: str) -> bool:
    """Section 3, canonical form: lower-case groups joined by single `-` or `.`, 63 characters.

    A newline at the end is not forgiven, nor a letter or digit outside ASCII.
    """
    return len(value) <= MAX_LENGTH and _CANONICAL.fullmatch(value) is not None


def is_placeholder(value: str) -> bool:
    """Section 3, placeholders: a canonical value that stands for "not known".

    Such are: a group that is, starts with or ends with `unknown`; a group that says the value is
    missing (`none`, `null`, ...); a whole value that names no particular CPU (`generic`, `n-a`);
    and a value that is zeros only, or has two groups of zeros and no other digit
    (`vendorunknown-0-0`, `intel-0-0-0`): what an agent writes that read nothing.
    """
    if value in _NO_CPU_VALUES:
        return True
    groups = _SEPARATOR.split(value)
    zeros = sum(1 for group in groups if not group.strip("0"))
    if zeros == len(groups) or (zeros > 1 and not _OTHER_DIGIT.search(value)):
        return True
    return any(
        group in _NO_CPU_GROUPS or group.startswith("unknown") or group.endswith("unknown")
        for group in groups
    )


@lru_cache(maxsize=4096)
def usable(value: str | None) -> str | None:
    """The value if it names a CPU: canonical and no placeholder. Never repaired, else None.

    Remembered, for a fleet has some tens of values and each decision asks about all of them.
    """
    if value is None or not is_canonical(value) or is_placeholder(value):
        return None
    return value


def label_cpu(labels: Mapping[str, str], *, key: str = HOST_CPU_LABEL) -> str | None:
    """Section 3, reading a label: a value that is not usable as it stands reads as no label.

    kube-scheduler compares label values byte for byte, so a `NotIn` on a repaired value could
    never exclude the node.
    """
    return usable(labels.get(key))


def recorded_cpu(value: str | None) -> str | None:
    """Section 3, reading a recorded capture CPU: one that is not usable counts as not recorded."""
    return usable(value)


def why_unusable(value: str) -> str:
    """In words why `value` is not usable; empty when it is."""
    if not value:
        return "it is empty"
    if len(value) > MAX_LENGTH:
        return f"it has {len(value)} characters, at most {MAX_LENGTH} are allowed"
    if not is_canonical(value):
        return (
            "it is not canonical: lower-case letters and digits in groups joined by single '-'"
            " or '.', such as intel-6-106-6"
        )
    if is_placeholder(value):
        return "it is a placeholder for an unknown CPU, which equals nothing"
    return ""


def vendor(value: str) -> str | None:
    """The known vendor prefix of a value, or None. Only for checking configuration (section 4)."""
    first = _SEPARATOR.split(value, maxsplit=1)[0]
    return first if first in _VENDOR_ARCHITECTURE else None


def architecture(value: str) -> str | None:
    """The architecture that a known vendor prefix belongs to, or None. As `vendor`."""
    return _VENDOR_ARCHITECTURE.get(_SEPARATOR.split(value, maxsplit=1)[0])


def recorded_ancestors(values: Iterable[str]) -> tuple[str, ...]:
    """The recorded ancestors that name a CPU; any other counts as not recorded (section 3)."""
    return tuple(value for value in values if recorded_cpu(value) is not None)
