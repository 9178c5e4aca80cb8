"""Section 3: what is the name of a CPU and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.fleet import cpu
from sandbox_restore.model.names import HOST_CPU_LABEL

CANONICAL = [
    "intel-6-106-6",
    "amd-25-17-1",
    "arm-41-d40-r1p1",
    "arm-41-d0c-r0p0",
    "hygon-24-0-1",
    "intel-6-85-0",
    "zhaoxin-7-11-1",
    "a",
    "cpu-0",
    "a.b-c",
    "x" * 63,
    "genericvendor-6-1",
    "nonesuch-6-1",
]

NOT_CANONICAL = [
    "",
    "Intel-6-106-6",
    "INTEL",
    "intel_6_106_6",
    "intel--6",
    "intel-.6",
    "intel..6",
    "-intel",
    "intel-",
    ".intel",
    "intel.",
    "intel 6",
    " intel-6-106-6",
    "intel-6-106-6 ",
    "intel-6-106-6\n",
    "intel/6",
    "intél-6",
    "intel-६-106",
    "x" * 64,
]

PLACEHOLDERS = [
    "unknown",
    "none",
    "vendorunknown-0-0",
    "vendorunknown-6-106-6",
    "unknown-6-106-6",
    "intel-unknown-6",
    "unknowncpu",
    "intel-6-unknown",
    "null",
    "nil",
    "n-a",
    "n.a",
    "na",
    "generic",
    "default",
    "undefined",
    "intel-none-none-none",
    "0",
    "0-0",
    "0.0.0",
    "000-00",
    "intel-0-0-0",
    "arm-0-0-r0p0",
]


@pytest.mark.parametrize("value", CANONICAL)
def test_a_canonical_value_is_read_as_it_stands(value: str) -> None:
    assert cpu.is_canonical(value)
    assert cpu.usable(value) == value
    assert cpu.recorded_cpu(value) == value
    assert cpu.label_cpu({HOST_CPU_LABEL: value}) == value
    assert cpu.why_unusable(value) == ""


@pytest.mark.parametrize("value", NOT_CANONICAL)
def test_a_non_canonical_value_is_never_repaired(value: str) -> None:
    assert not cpu.is_canonical(value)
    assert cpu.recorded_cpu(value) is None
    assert cpu.label_cpu({HOST_CPU_LABEL: value}) is None
    assert cpu.why_unusable(value)


@pytest.mark.parametrize("value", PLACEHOLDERS)
def test_a_placeholder_counts_as_no_value(value: str) -> None:
    assert cpu.is_canonical(value)
    assert cpu.is_placeholder(value)
    assert cpu.label_cpu({HOST_CPU_LABEL: value}) is None
    assert cpu.recorded_cpu(value) is None
    assert "placeholder" in cpu.why_unusable(value)


def test_no_label_is_no_cpu() -> None:
    assert cpu.label_cpu({}) is None
    assert cpu.recorded_cpu(None) is None


def test_the_label_key_is_a_setting() -> None:
    labels = {HOST_CPU_LABEL: "intel-6-106-6", "example.com/cpu": "amd-25-17-1"}
    assert cpu.label_cpu(labels, key="example.com/cpu") == "amd-25-17-1"


@pytest.mark.parametrize(
    ("value", "vendor", "architecture"),
    [
        ("intel-6-106-6", "intel", "x86"),
        ("amd.25", "amd", "x86"),
        ("arm-41-d40-r1p1", "arm", "arm"),
        ("intel", "intel", "x86"),
        ("intelligent-6-1-1", None, None),
        ("a", None, None),
    ],
)
def test_vendor_is_the_whole_first_group(
    value: str, vendor: str | None, architecture: str | None
) -> None:
    assert cpu.vendor(value) == vendor
    assert cpu.architecture(value) == architecture


@settings(deadline=None)
@given(st.text(alphabet="abz019-._ A\n", max_size=70))
def test_usable_gives_back_its_argument_or_nothing(value: str) -> None:
    assert cpu.usable(value) in (None, value)
    assert (cpu.usable(value) is None) == bool(cpu.why_unusable(value))
