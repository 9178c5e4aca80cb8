"""Sections 3 and 13: what a cpuinfo file stands for, and when it stands for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sandbox_restore.agent.detect import Detection, Dimensions, Reason, detect
from sandbox_restore.fleet import cpu

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cpuinfo"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "expected.yaml").read_text())


def x86(number: int = 0, **changed: str | None) -> str:
    """One core; a field set to None is left out. Underscores in names stand for blanks."""
    fields: dict[str, str | None] = {
        "vendor_id": "GenuineIntel",
        "cpu family": "6",
        "model": "106",
        "model name": "Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz",
        "stepping": "6",
    }
    fields |= {
        name if name == "vendor_id" else name.replace("_", " "): v for name, v in changed.items()
    }
    return _core(number, fields)


def arm(number: int = 0, **changed: str | None) -> str:
    """As `x86`; the names without their `CPU `."""
    fields: dict[str, str | None] = {
        "implementer": "0x41",
        "architecture": "8",
        "variant": "0x1",
        "part": "0xd40",
        "revision": "1",
    }
    return _core(number, {f"CPU {name}": v for name, v in (fields | changed).items()})


def _core(number: int, fields: dict[str, str | None]) -> str:
    lines = [f"processor\t: {number}"]
    lines += [f"{name}\t: {value}" for name, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n\n"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_file_of_the_fixtures_gives_what_is_listed(name: str) -> None:
    found = detect((FIXTURES / name).read_text())
    assert found.value == EXPECTED[name]["value"]
    if found.value is None:
        assert found.text.startswith(EXPECTED[name]["reason"])


def test_every_fixture_is_listed() -> None:
    files = {path.name for path in FIXTURES.glob("*.txt")}
    assert files == set(EXPECTED)


@pytest.mark.parametrize(
    ("vendor", "word"),
    [
        ("GenuineIntel", "intel"),
        ("AuthenticAMD", "amd"),
        ("HygonGenuine", "hygon"),
        ("CentaurHauls", "centaur"),
        ("  Shanghai  ", "zhaoxin"),
    ],
)
def test_the_x86_vendors(vendor: str, word: str) -> None:
    assert detect(x86(vendor_id=vendor)).value == f"{word}-6-106-6"


def test_x86_numbers_may_be_zero_but_for_the_family() -> None:
    assert detect(x86(model="0", stepping="0")).value == "intel-6-0-0"
    assert detect(x86(cpu_family="0")).reason is Reason.PLACEHOLDER


def test_arm_keeps_the_zeros_that_the_kernel_prints() -> None:
    text = arm(implementer="0x43", part="0x0a1", variant="0xa", revision="10")
    assert detect(text).value == "arm-43-0a1-r10p10"


def test_a_core_ends_where_the_next_begins() -> None:
    text = x86(0).rstrip() + "\n" + x86(1)
    assert detect(text).value == "intel-6-106-6"


def test_what_stands_beside_the_cores_belongs_to_none() -> None:
    text = arm(0) + arm(1) + "Hardware\t: BCM2835\nRevision\t: a02082\n"
    assert detect(text).value == "arm-41-d40-r1p1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.NO_PROCESSOR),
        ("hello\n", Reason.NO_PROCESSOR),
        ("\n\n:\n", Reason.NO_PROCESSOR),
        ("\0\x7fELF\x02", Reason.NO_PROCESSOR),
        ("processor\n", Reason.NO_PROCESSOR),
        (x86(vendor_id=None), Reason.FIELD_MISSING),
        (x86(cpu_family=None), Reason.FIELD_MISSING),
        (x86(model=None), Reason.FIELD_MISSING),
        (x86(stepping=None), Reason.FIELD_MISSING),
        (x86(stepping=""), Reason.FIELD_MISSING),
        (arm(implementer=None), Reason.FIELD_MISSING),
        (arm(part=None), Reason.FIELD_MISSING),
        (arm(variant=None), Reason.FIELD_MISSING),
        (arm(revision=None), Reason.FIELD_MISSING),
        (x86(vendor_id="VirtualApple"), Reason.UNKNOWN_VENDOR),
        (x86(vendor_id="KVMKVMKVM"), Reason.UNKNOWN_VENDOR),
        (x86(vendor_id="unknown"), Reason.UNKNOWN_VENDOR),
        (x86(vendor_id="genuineintel"), Reason.UNKNOWN_VENDOR),
        (x86(stepping="unknown"), Reason.PLACEHOLDER),
        (x86(model_name="QEMU Virtual CPU version 2.5+"), Reason.PLACEHOLDER),
        (x86(model_name="Common KVM processor"), Reason.PLACEHOLDER),
        (arm(implementer="0x00"), Reason.PLACEHOLDER),
        (x86(model="-1"), Reason.FIELD_UNUSABLE),
        (x86(model="0x6a"), Reason.FIELD_UNUSABLE),
        (x86(model="१०६"), Reason.FIELD_UNUSABLE),
        (x86(model="006"), Reason.FIELD_UNUSABLE),
        (x86(model="256"), Reason.FIELD_UNUSABLE),
        (x86(cpu_family="271"), Reason.FIELD_UNUSABLE),
        (x86(stepping="16"), Reason.FIELD_UNUSABLE),
        (arm(part="0x1000"), Reason.FIELD_UNUSABLE),
        (arm(part="d40"), Reason.FIELD_UNUSABLE),
        (arm(revision="0x1"), Reason.FIELD_UNUSABLE),
        (x86(0) + x86(1, stepping="7"), Reason.CORES_DIFFER),
        (x86(0) + arm(1), Reason.CORES_DIFFER),
        (x86(0) + x86(1, stepping=None), Reason.FIELD_MISSING),
        (x86(0) + x86(0), Reason.NOT_CPUINFO),
        ("processor\t: many\n" + x86(1), Reason.NOT_CPUINFO),
        (x86(0).rstrip() + "\nstepping\t: 7\n", Reason.NOT_CPUINFO),
        (x86(0).rstrip() + "\nCPU part\t: 0xd40\n", Reason.UNKNOWN_LAYOUT),
    ],
)
def test_no_value_is_made_up(text: str, reason: Reason) -> None:
    found = detect(text)
    assert (found.value, found.reason) == (None, reason)
    assert found.text


S390X = """\
vendor_id       : IBM/S390
# processors    : 2
bogomips per cpu: 3033.00
features\t: esan3 zarch stfle msa
processor 0: version = FF,  identification = 0133E8,  machine = 2964
processor 1: version = FF,  identification = 0133E8,  machine = 2964

cpu number      : 0
version         : FF
"""

PPC64 = """\
processor\t: 0
cpu\t\t: POWER9 (architected), altivec supported
clock\t\t: 2300.000000MHz
revision\t: 2.2 (pvr 004e 1202)

timebase\t: 512000000
platform\t: pSeries
"""

RISCV = "processor\t: 0\nhart\t\t: 2\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\n"


@pytest.mark.parametrize("text", [S390X, PPC64, RISCV], ids=["s390x", "ppc64", "riscv"])
def test_another_architecture_has_no_value(text: str) -> None:
    found = detect(text)
    assert (found.value, found.reason) == (None, Reason.UNKNOWN_LAYOUT)


# Hybrid machines


def test_the_hybrid_setting_publishes_the_sorted_set() -> None:
    text = (FIXTURES / "arm-hybrid.txt").read_text()
    found = detect(text, dimensions=Dimensions(hybrid=True))
    assert found.value == "arm-41-d05-r2p0.arm-41-d0b-r4p0"
    turned = "\n\n".join(reversed(text.strip().split("\n\n")))
    assert detect(turned, dimensions=Dimensions(hybrid=True)).value == found.value


def test_the_hybrid_setting_changes_nothing_where_cores_are_equal() -> None:
    assert detect(x86(0) + x86(1), dimensions=Dimensions(hybrid=True)).value == "intel-6-106-6"


def test_the_hybrid_setting_excuses_no_core_that_cannot_be_told() -> None:
    text = x86(0) + x86(1, stepping="unknown")
    assert detect(text, dimensions=Dimensions(hybrid=True)).reason is Reason.PLACEHOLDER


def test_the_hybrid_setting_joins_no_cores_of_several_makers() -> None:
    text = x86(0) + x86(1, vendor_id="AuthenticAMD")
    assert detect(text, dimensions=Dimensions(hybrid=True)).reason is Reason.CORES_DIFFER


def test_a_set_too_long_for_a_label_is_refused() -> None:
    text = "".join(arm(i, part=f"0xd{i:02x}") for i in range(5))
    assert detect(text, dimensions=Dimensions(hybrid=True)).reason is Reason.TOO_LONG


# Further dimensions


@pytest.mark.parametrize(
    ("release", "value"),
    [
        ("6.1.0-13-amd64", "intel-6-106-6-k6.1"),
        ("5.10.234-225.910.amzn2.x86_64", "intel-6-106-6-k5.10"),
        ("6.12", "intel-6-106-6-k6.12"),
        ("6.8-rc1+", "intel-6-106-6-k6.8"),
    ],
)
def test_the_kernel_is_its_major_and_minor(release: str, value: str) -> None:
    found = detect(x86(), dimensions=Dimensions(kernel=True), kernel_release=release)
    assert found.value == value
    assert found.fields["kernel"] == release


@pytest.mark.parametrize("release", [None, "", "6", "six.one", "06.1", "-6.1", "6.123456"])
def test_a_kernel_that_cannot_be_told_means_no_value(release: str | None) -> None:
    found = detect(x86(), dimensions=Dimensions(kernel=True), kernel_release=release)
    assert (found.value, found.reason) == (None, Reason.KERNEL_UNKNOWN)


def test_the_kernel_is_left_out_unless_asked_for() -> None:
    assert detect(x86(), kernel_release="6.1.0").value == "intel-6-106-6"


def test_the_suffix_of_a_fleet_comes_last() -> None:
    dimensions = Dimensions(kernel=True, suffix="fw.2026-1")
    found = detect(x86(), dimensions=dimensions, kernel_release="6.1.0")
    assert found.value == "intel-6-106-6-k6.1-fw.2026-1"


def test_a_suffix_that_makes_the_value_too_long_means_no_value() -> None:
    room = 63 - len("intel-6-106-6-")
    assert detect(x86(), dimensions=Dimensions(suffix="s" * room)).value is not None
    found = detect(x86(), dimensions=Dimensions(suffix="s" * (room + 1)))
    assert (found.value, found.reason) == (None, Reason.TOO_LONG)


@pytest.mark.parametrize("suffix", ["unknown", "FW", "a--b", "none"])
def test_a_suffix_that_spoils_the_value_means_no_value(suffix: str) -> None:
    assert detect(x86(), dimensions=Dimensions(suffix=suffix)).value is None


# Any input


def sound(found: Detection) -> bool:
    """Either a value that the operator takes, or a reason in words; never both."""
    if found.value is None:
        return found.reason is not None and bool(found.text)
    return cpu.usable(found.value) == found.value and found.reason is None and not found.text


WORDS = st.sampled_from(
    [
        "processor",
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "CPU implementer",
        "CPU part",
        "CPU variant",
        "CPU revision",
        "GenuineIntel",
        "AuthenticAMD",
        "unknown",
        ":",
        "\t: ",
        "\n",
        "\n\n",
        "0",
        "6",
        "-1",
        "0x41",
        "0xd40",
        "99999999999999999999",
        "\0",
        "\ud800",
        "\u2028",
    ]
)


@given(st.one_of(st.text(), st.lists(WORDS).map("".join)))
def test_garbage_never_gives_a_bad_value_nor_an_error(text: str) -> None:
    assert sound(detect(text))
    assert sound(detect(text, dimensions=Dimensions(hybrid=True, kernel=True), kernel_release=text))


VALUES = st.one_of(st.none(), st.integers(-1, 300).map(str), st.text(max_size=8), WORDS)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([x86, arm]),
            st.integers(0, 3),
            st.dictionaries(
                st.sampled_from(["vendor_id", "cpu_family", "model", "stepping", "part"]), VALUES
            ),
        ),
        max_size=4,
    ),
    st.booleans(),
    st.text(max_size=60),
)
def test_nearly_right_files_never_give_a_bad_value(
    cores: list[tuple[Any, int, dict[str, str | None]]], hybrid: bool, suffix: str
) -> None:
    text = "".join(make(number, **changed) for make, number, changed in cores)
    assert sound(detect(text, dimensions=Dimensions(hybrid=hybrid, suffix=suffix)))


@given(st.binary())
def test_bytes_of_any_kind_are_read(content: bytes) -> None:
    assert sound(detect(content.decode(errors="replace")))
