"""The class of a failed load (domain.md section 11): real answers, other shapes, precedence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.restore import failure
from sandbox_restore.restore.failure import (
    COMPONENTS,
    MAX_TEXT,
    Classification,
    Component,
    Errno,
    FailureClass,
    Meaning,
    Rank,
    classify,
    classify_end,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
ANSWERS: list[dict[str, Any]] = json.loads(
    (FIXTURES / "firecracker-load-failures.json").read_text(encoding="utf-8")
)
REPORTS: list[dict[str, str]] = yaml.safe_load(
    (FIXTURES / "load-failures.yaml").read_text(encoding="utf-8")
)

UNDECIDABLE = {
    # A directory given as the memory file is answered with the words of an empty memory file.
    ("mem-isdir", "1.16.1"): ("unreadable", "mem-empty"),
    # A memory file given as the snapshot file is answered with those of a damaged snapshot.
    ("snap-mem-swapped", "1.13.2"): ("unreadable", "snap-trunc-half"),
}
"""Real answers whose text is another cause's: what is said instead, and the other case."""

CPU = FailureClass.CPU_INCOMPATIBLE
UNREADABLE = FailureClass.UNREADABLE
MISSING = FailureClass.MISSING
PERMISSION = FailureClass.PERMISSION
TRANSPORT = FailureClass.TRANSPORT
HOST = FailureClass.HOST
USAGE = FailureClass.USAGE
DISRUPTED = FailureClass.DISRUPTED
UNKNOWN = FailureClass.UNKNOWN
NONE = FailureClass.NONE

LOAD = "Load snapshot error: Failed to restore from snapshot: "
STATE = LOAD + "Failed to get snapshot state from file: "
READ = STATE + "Failed to load snapshot state from file: "
MEMORY = LOAD + "Failed to load guest memory: "
FROM_FILE = MEMORY + "Error creating guest memory from file: "
FROM_UFFD = MEMORY + "Error creating guest memory from uffd: "
BUILD = LOAD + "Failed to build microVM from snapshot: "
VCPU = BUILD + "Failed to restore vCPUs: Failed to run action on vcpu: "
ARM = VCPU + "Failed to restore the state of the vcpu: "
DEVICES = BUILD + "Failed to restore devices: Error restoring MMIO devices: "
PCI = BUILD + "Failed to restore devices: Error restoring PCI devices: "
TAP = DEVICES + "Net: Failed to create a network device: Open tap device failed: "
DRIVE = DEVICES + "Block: Virtio backend error: Error manipulating the backing file: "
VSOCK = PCI + "VsockUnixBackend: Error binding to the host-side Unix socket: "
KVM = BUILD + "Failed to create microVM and vCPUs: Kvm error: "
OLD = "Load microVM snapshot error: Cannot build a microVM from snapshot: "
OLD_STATE = OLD + "Cannot restore microvm state. Error: "
EINVAL = "Invalid argument (os error 22)"
ENOENT = "No such file or directory (os error 2)"
EACCES = "Permission denied (os error 13)"

CASES: list[tuple[str, FailureClass, str]] = [
    # --- cpu-incompatible
    (VCPU + "Failed to set all KVM MSRs for this vCPU.", CPU, "vcpu msrs"),
    (VCPU + f"Failed to set KVM vcpu msrs: {EINVAL}", CPU, "vcpu msrs"),
    (VCPU + f"Failed to set KVM vcpu xcrs: {EINVAL}", CPU, "vcpu xcrs"),
    (VCPU + f"Failed to set KVM vcpu xsave: {EINVAL}", CPU, "vcpu xsave"),
    (VCPU + f"Failed to set KVM vcpu cpuid: {EINVAL}", CPU, "vcpu cpuid"),
    (
        BUILD + "The CPUID specification from the snapshot contains features unsupported by "
        "and/or fields outside the supported range, of the KVM",
        CPU,
        "vcpu cpuid",
    ),
    (VCPU + f"Failed to set KVM vcpu sregs: {EINVAL}", CPU, "vcpu sregs"),
    (VCPU + f"Failed to set KVM vcpu regs: {EINVAL}", CPU, "vcpu regs"),
    (VCPU + f"Failed to set KVM vcpu fpu: {EINVAL}", CPU, "vcpu fpu"),
    (VCPU + f"Failed to set KVM vcpu lapic: {EINVAL}", CPU, "vcpu lapic"),
    (VCPU + f"Failed to set KVM vcpu mp state: {EINVAL}", CPU, "vcpu mp state"),
    (ARM + f"Failed to set multiprocessor state: {EINVAL}", CPU, "vcpu mp state"),
    (VCPU + f"Failed to set KVM vcpu event: {EINVAL}", CPU, "vcpu events"),
    (VCPU + f"Failed to set KVM vcpu debug regs: {EINVAL}", CPU, "vcpu debug regs"),
    (VCPU + f"Failed to set KVM vcpu nested state: {EINVAL}", CPU, "vcpu state"),
    (BUILD + f"Could not set TSC scaling within the snapshot: {EINVAL}", CPU, "tsc"),
    (BUILD + "Error configuring the TSC, frequency not present in the given snapshot.", CPU, "tsc"),
    (VCPU + "Failed to set the TSC frequency.", CPU, "tsc"),
    (ARM + f"Failed to set register 6931044924843393027: {EINVAL}", CPU, "arm register"),
    (VCPU + f"Error initializing the vcpu: {EINVAL}", CPU, "arm vcpu init"),
    (
        "Load microVM snapshot error: CPU vendor check failed: Host CPU vendor id: [71, 101] "
        "differs from the snapshotted one: [65, 117]",
        CPU,
        "cpu vendor check",
    ),
    # The line was cut off in front or behind, or its end is new.
    (BUILD + "Failed to restore vCPUs: Failed to run act", CPU, "vcpus"),
    (BUILD + "Failed to restore vCPUs: something new", CPU, "vcpus"),
    ("Rs for this vCPU. Only a partial write was done.", CPU, "vcpus"),
    # Debug shapes of the error types.
    (OLD_STATE + "Cannot restore Vcpu state: VcpuSetMsrs(Error(22))", CPU, "vcpu msrs"),
    ("Build(RestoreVcpus(VcpuResponse(VcpuSetMsrsIncomplete)))", CPU, "vcpu msrs"),
    ("VcpuResponse(\n    VcpuSetXcrs(\n        Error(\n            22,\n", CPU, "vcpu xcrs"),
    ("SetTsc(SetTscError(Error(22)))", CPU, "tsc"),
    ("RestoreState(SetOneReg(6931044924843393027, Error(22)))", CPU, "arm register"),
    # The innermost component alone.
    (f"Error creating KVM object: {ENOENT}", HOST, "kvm"),
    (f"Set clock error: {EINVAL}", HOST, "kvm vm state"),
    (f"Couldn't open /dev/net/tun: {ENOENT}", HOST, "tap device"),
    ("Error while creating ifreq structure: Resource busy (os error 16)", HOST, "tap device"),
    ("UnixBind(Os { code: 98, kind: AddrInUse })", HOST, "vsock path"),
    ("Failed to UFFD object: System error", HOST, "userfaultfd"),
    # Chains over several lines.
    (
        "Error: restore failed\n\nCaused by:\n    0: Failed to restore vCPUs\n"
        "    1: Failed to set KVM vcpu msrs\n    2: Invalid argument (os error 22)",
        CPU,
        "vcpu msrs",
    ),
    # Threads and shortage inside the vCPU stage say nothing about a CPU.
    (BUILD + "Failed to restore vCPUs: Unexpected vCPU response.", HOST, "vcpu threads"),
    (VCPU + "Failed to set KVM vcpu xsave: Out of memory (os error 12)", HOST, "vcpu xsave"),
    # --- unreadable
    (READ + "CRC64 validation failed: 7933333195283759761", UNREADABLE, "snapshot checksum"),
    (READ + "Snapshot file is smaller than CRC length.", UNREADABLE, "snapshot checksum"),
    ("Cannot deserialize the microVM state: Crc64(12)", UNREADABLE, "snapshot checksum"),
    (READ + "Invalid data version: 10.1.0", UNREADABLE, "snapshot format"),
    (READ + "Magic value does not match arch: 508469273", UNREADABLE, "snapshot format"),
    ("Load(InvalidFormatVersion(Version { major: 8, minor: 0 }))", UNREADABLE, "snapshot format"),
    (
        LOAD + "Cannot deserialize the microVM state: Snapshot file was created by a different "
        "version",
        UNREADABLE,
        "snapshot format",
    ),
    (
        READ + "An error occured during bincode decoding: UnexpectedEnd { additional: 8 }",
        UNREADABLE,
        "snapshot decoder",
    ),
    (READ + "An IO error occurred: 22", UNREADABLE, "snapshot file"),
    (READ + "IO Error: failed to fill whole buffer", UNREADABLE, "snapshot file"),
    (READ + "something new", UNREADABLE, "snapshot file"),
    (LOAD + "Invalid snapshot state: No memory region defined.", UNREADABLE, "snapshot state"),
    (LOAD + "Invalid snapshot state: something new", UNREADABLE, "snapshot state"),
    (
        OLD_STATE + "Cannot restore devices: Block(Persist(InvalidInput))",
        UNREADABLE,
        "snapshot state",
    ),
    (
        DEVICES + "Net: Failed to restore virtio: Could not restore queue: Virtio queue number of "
        "available descriptors 57386 is greater than queue size 256.",
        UNREADABLE,
        "snapshot state",
    ),
    (
        FROM_FILE + "Failed to restore guest memory: Cannot create mmap region: The specified file "
        "offset and length is greater then file length",
        UNREADABLE,
        "memory file",
    ),
    ("Cannot create memory region: MappingPastEof", UNREADABLE, "memory file"),
    ("the snapshot file is corrupted", UNREADABLE, "snapshot file"),
    # --- missing, permission
    (STATE + f"Failed to open snapshot file: {ENOENT}", MISSING, "snapshot file"),
    (STATE + f"Failed to open snapshot file: {EACCES}", PERMISSION, "snapshot file"),
    (f"Cannot perform open on the snapshot backing file: {ENOENT}", MISSING, "snapshot file"),
    ('File(Open(Os { code: 2, kind: NotFound, message: "gone" }))', MISSING, "snapshot file"),
    (READ + f"IO Error: {EACCES}", PERMISSION, "snapshot file"),
    ("ERROR: snapshot files not found", MISSING, "snapshot file"),
    (FROM_FILE + f"Failed to load guest memory: {ENOENT}", MISSING, "memory file"),
    (FROM_FILE + f"Failed to load guest memory: {EACCES}", PERMISSION, "memory file"),
    (LOAD + f"Failed to open memory backing file: {ENOENT}", MISSING, "memory file"),
    (
        FROM_FILE + f"Failed to restore guest memory: Cannot create mmap region: {EACCES}",
        PERMISSION,
        "memory mapping",
    ),
    (DRIVE + f"{ENOENT} /run/disk.img", MISSING, "drive"),
    (DRIVE + f"{EACCES} /run/disk.img", PERMISSION, "drive"),
    (PCI + f"Pmem: Error accessing backing file: {ENOENT}", MISSING, "drive"),
    ("open /run/x/snapshot/vmstate: no such file or directory", MISSING, "file"),
    ("open /run/x/snapshot/vmstate: permission denied", PERMISSION, "file"),
    ("[Errno 2] No such file or directory: '/x/memfile.zst'", MISSING, "file"),
    ("[Errno 13] Permission denied: '/x/rootfs.ext4'", PERMISSION, "file"),
    ("operation error S3: GetObject, api error NoSuchKey", MISSING, "object store"),
    ("operation error S3: GetObject, api error AccessDenied", PERMISSION, "object store"),
    (KVM + f"Error creating KVM object: {EACCES}", PERMISSION, "kvm"),
    ("cannot start: open /dev/kvm: permission denied", PERMISSION, "kvm"),
    (TAP + f"Couldn't open /dev/net/tun: {EACCES}", PERMISSION, "tap device"),
    (VSOCK + EACCES, PERMISSION, "vsock path"),
    (
        FROM_UFFD + f"Failed to UFFD object: Error accessing /dev/userfaultfd: {EACCES}",
        PERMISSION,
        "userfaultfd",
    ),
    (
        FROM_UFFD + f"Failed to connect to UDS Unix stream: {EACCES}",
        PERMISSION,
        "uffd handler",
    ),
    ("dial unix /run/fc.sock: connect: permission denied", PERMISSION, "api socket"),
    # --- host
    (
        STATE + "Failed to open snapshot file: Too many open files (os error 24)",
        HOST,
        "snapshot file",
    ),
    (
        STATE + "Failed to open snapshot file: No file descriptors available (os error 24)",
        HOST,
        "snapshot file",
    ),
    (STATE + "Failed to open snapshot file: I/O error (os error 5)", HOST, "snapshot file"),
    (READ + "IO Error: Input/output error (os error 5)", HOST, "snapshot file"),
    (
        FROM_FILE + "Failed to load guest memory: Stale file handle (os error 116)",
        HOST,
        "memory file",
    ),
    (
        FROM_FILE + f"Failed to restore guest memory: Cannot create mmap region: {EINVAL}",
        HOST,
        "memory mapping",
    ),
    (FROM_UFFD + "Failed to restore guest memory: Cannot create memfd: x", HOST, "guest memory"),
    (DRIVE + "Input/output error (os error 5) /run/disk.img", HOST, "drive"),
    (DEVICES + "Block: Virtio backend error: Error coming from the IO engine: x", HOST, "drive"),
    (
        OLD_STATE
        + "Cannot restore devices: Block(BackingFile(Os { code: 28, kind: Other, message: "
        '"No space left on device" }))',
        HOST,
        "drive",
    ),
    (KVM + f"Error creating KVM object: {ENOENT}", HOST, "kvm"),
    (KVM + "Missing KVM capabilities: 0x7e", HOST, "kvm"),
    ("cannot start: open /dev/kvm: no such file or directory", HOST, "kvm"),
    (BUILD + "Failed to create microVM and vCPUs: something new", HOST, "kvm"),
    (BUILD + f"Failed to restore microVM state: Set clock error: {EINVAL}", HOST, "kvm vm state"),
    (BUILD + "Failed to restore microVM state: something new", HOST, "kvm vm state"),
    (DEVICES + "Net: EventFd error: something new", HOST, "descriptors"),
    (DEVICES + "something new", HOST, "devices"),
    (TAP + f"Couldn't open /dev/net/tun: {ENOENT}", HOST, "tap device"),
    (
        TAP + "Error while creating ifreq structure: Resource busy (os error 16).",
        HOST,
        "tap device",
    ),
    (
        TAP + "Error while creating ifreq structure: Operation not permitted (os error 1).",
        HOST,
        "tap device",
    ),
    (TAP + "something new", HOST, "tap device"),
    (
        OLD_STATE
        + "Cannot restore devices. Error: Net(CreateNet(TapOpen(IoctlError(Os { code: 16, "
        'kind: Other, message: "Resource busy" }))))',
        HOST,
        "tap device",
    ),
    (f"failed to enter network namespace /run/netns/a: {ENOENT}", HOST, "network namespace"),
    (VSOCK + "Address in use (os error 98)", HOST, "vsock path"),
    (VSOCK + ENOENT, HOST, "vsock path"),
    (PCI + "VsockUnixBackend: something new", HOST, "vsock path"),
    (FROM_UFFD + "Failed to UFFD object: System error", HOST, "userfaultfd"),
    (FROM_UFFD + "something new", HOST, "userfaultfd"),
    ("Shutting down VM after intercepting a bad syscall (257).", HOST, "seccomp"),
    ("fork/exec /usr/bin/firecracker: resource temporarily unavailable", HOST, "runner"),
    ("write /var/lib/x/mem: no space left on device", HOST, "node disk"),
    ("memory allocation of 1048576 bytes failed", HOST, "memory"),
    # --- usage
    (READ + "Snapshot size exceeds limit of 10000000 bytes", USAGE, "snapshot size"),
    (READ + "IO Error: Is a directory (os error 21)", USAGE, "snapshot file"),
    (READ + "An IO error occurred: 21", USAGE, "snapshot file"),
    (
        STATE + "Failed to open snapshot file: File name too long (os error 36)",
        USAGE,
        "snapshot file",
    ),
    (
        FROM_FILE + "Failed to load guest memory: Too many levels of symbolic links (os error 40)",
        USAGE,
        "memory file",
    ),
    (
        FROM_FILE + "Failed to restore guest memory: Cannot create mmap region: No such device "
        "(os error 19)",
        USAGE,
        "memory mapping",
    ),
    (DRIVE + "Is a directory (os error 21) /run", USAGE, "drive"),
    (TAP + "Invalid interface name", USAGE, "tap device"),
    (VSOCK + "path must be shorter than SUN_LEN", USAGE, "vsock path"),
    (
        FROM_UFFD + "Failed to connect to UDS Unix stream: path must be shorter than SUN_LEN",
        USAGE,
        "uffd handler",
    ),
    (BUILD + "Failed to start vCPUs as no vCPU seccomp filter found.", USAGE, "seccomp"),
    (
        '{ "error": "Invalid header.\nAll previous unanswered requests will be dropped." }',
        USAGE,
        "request",
    ),
    (
        "The requested operation is not supported before starting the microVM.",
        USAGE,
        "request order",
    ),
    (STATE + "Unknown Network Device.", USAGE, "request content"),
    ("MMDS error: The MMDS data store is not initialized.", USAGE, "mmds request"),
    # --- disrupted, in the words of the pod's status
    ("Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match", DISRUPTED, "kubelet"),
    # --- transport
    (
        FROM_UFFD + "Failed to sends file descriptor: Broken pipe (os error 32)",
        TRANSPORT,
        "uffd handler",
    ),
    ("dial unix /run/fc.sock: connect: no such file or directory", TRANSPORT, "api socket"),
    ("curl: (7) Couldn't connect to server", TRANSPORT, "connection"),
    ('Put "http://localhost/snapshot/load": EOF', TRANSPORT, "connection"),
    ("read unix @->/run/fc.sock: read: connection reset by peer", TRANSPORT, "connection"),
    ("write unix @->/run/fc.sock: write: broken pipe", TRANSPORT, "connection"),
    ("curl: (52) Empty reply from server", TRANSPORT, "connection"),
    ("('Connection aborted.', RemoteDisconnected('Remote end closed'))", TRANSPORT, "connection"),
    ("context deadline exceeded (Client.Timeout exceeded while awaiting)", TRANSPORT, "deadline"),
    ("read unix @->/run/fc.sock: i/o timeout", TRANSPORT, "deadline"),
    ("load snapshot: context canceled", TRANSPORT, "cancel"),
    ("502 Bad Gateway", TRANSPORT, "gateway"),
    # The client's side has no components whose numbers mean something.
    ("context canceled; Too many open files (os error 24)", TRANSPORT, "cancel"),
    # --- none
    ("Host CPU manufacturer ID: 65 differs from snapshotted one: 192", NONE, "cpu vendor warning"),
]
"""Text, class and component. Not answers of the fixture file, but of the same kinds: wordings of
Firecracker's error types old and new, of musl and glibc, and of clients."""

NOT_KNOWN = [
    "",
    " \n\t ",
    "exit status 1",
    "firecracker exited: exit status 148",
    "signal: killed",
    "panic: runtime error: index out of range [0] with length 0",
    # An error number without the component before it.
    EINVAL,
    ENOENT,
    EACCES,
    "Too many open files (os error 24)",
    "snapshot load: Cannot allocate memory (os error 12)",
    # The outer words alone, or with an end that nobody knows.
    "Load snapshot error: something new",
    "[PUT /snapshot/load][400] loadSnapshotBadRequest  <nil>",
    # A capture that failed is no load.
    f"Create snapshot error: Failed to get KVM vcpu msrs: {EINVAL}",
    "Failed to get KVM TSC frequency: x",
    # The number belongs to something that came much later.
    "loaded snapshot file" + " x" * 200 + f" {ENOENT}",
    # No whole words.
    f"failed to reset registers: {EINVAL}",
    f"kmemfiles: {ENOENT}",
    # A file of the kernel is none of the snapshot.
    "open /sys/fs/cgroup/memory.max: no such file or directory",
    "sandbox daemon did not become healthy",
    # A warning, but the process died of something else.
    "Host CPU vendor ID differs from the snapshotted one\nfirecracker: exit status 1",
    # A class's name is a code only where a code stands.
    "cpu-incompatible",
]


def read(text: str) -> tuple[FailureClass, str]:
    found = classify(text)
    return found.failure_class, found.component


def as_report(answer: dict[str, Any]) -> str:
    """The answer as a runner hands it over; a 204 has no body."""
    if answer["http_status"] == 204:
        return json.dumps({"http_status": 204, "body": ""})
    return str(answer["body"])


# ------------------------------------------------------------------------------------- fixtures


@pytest.mark.parametrize(
    "answer", ANSWERS, ids=[f"{answer['case']}-{answer['firecracker']}" for answer in ANSWERS]
)
def test_real_answers_have_their_class(answer: dict[str, Any]) -> None:
    expected = answer["class"]
    undecidable = UNDECIDABLE.get((answer["case"], answer["firecracker"]))
    if undecidable is not None:
        expected = undecidable[0]
    assert classify(as_report(answer)).failure_class == expected


@pytest.mark.parametrize(("key", "instead"), UNDECIDABLE.items())
def test_undecidable_answers_have_the_text_of_another_cause(
    key: tuple[str, str], instead: tuple[str, str]
) -> None:
    def words(answer: dict[str, Any]) -> str:
        return "".join(letter for letter in answer["body"] if not letter.isdigit())

    said = {(answer["case"], answer["firecracker"]): words(answer) for answer in ANSWERS}
    other_class, other_case = instead
    others = [answer for answer in ANSWERS if answer["case"] == other_case]
    assert said[key] in [words(other) for other in others if other["class"] == other_class]


def test_all_answers_are_there() -> None:
    assert len(ANSWERS) == 102
    assert len({answer["firecracker"] for answer in ANSWERS}) == 4


@pytest.mark.parametrize("report", REPORTS, ids=[report["text"][:60] for report in REPORTS])
def test_reports_have_their_class(report: dict[str, str]) -> None:
    assert classify(report["text"]).failure_class == report["class"]


def test_log_lines_behind_an_answer_do_not_change_its_class() -> None:
    """kubelet's FallbackToLogsOnError hands over the end of the log."""
    for answer in ANSWERS:
        if answer["http_status"] == 400:
            logs = "\n".join(answer["log_lines"])
            alone = classify(answer["body"]).failure_class
            assert classify(f"{answer['body']}\n{logs}").failure_class is alone, answer["case"]
            assert classify(f"{logs}\n{answer['body']}").failure_class is alone, answer["case"]


def test_log_lines_beside_a_load_that_went_on_are_no_failure() -> None:
    beside = [a for a in ANSWERS if a["http_status"] == 204 and a["alive_after"] and a["log_lines"]]
    assert beside
    for answer in beside:
        assert classify("\n".join(answer["log_lines"])).failure_class is NONE


# ------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize(
    ("text", "failure_class", "component"), CASES, ids=[case[0][-70:] for case in CASES]
)
def test_cause(text: str, failure_class: FailureClass, component: str) -> None:
    found = classify(text)
    assert (found.failure_class, found.component) == (failure_class, component)
    assert found.evidence
    assert found.evidence in found.why


@pytest.mark.parametrize("text", NOT_KNOWN)
def test_unknown_stays_unknown(text: str) -> None:
    found = classify(text)
    assert (found.failure_class, found.component, found.evidence) == (UNKNOWN, "", "")
    assert found.why


ROWS = [(place, row) for place, entry in enumerate(COMPONENTS) for row in range(len(entry.means))]


def row_id(row: tuple[int, int]) -> str:
    entry = COMPONENTS[row[0]]
    meaning = entry.means[row[1]]
    numbers = "" if meaning.errno is None else "-" + "-".join(sorted(meaning.errno))
    return f"{entry.name}-{meaning.failure_class}{numbers[:40]}"


def without(place: int, row: int) -> tuple[Component, ...]:
    """The table without one meaning; a component without any meaning says nothing."""
    entry = COMPONENTS[place]
    means = entry.means[:row] + entry.means[row + 1 :]
    left = replace(entry, means=means, pattern=entry.pattern if means else None)
    return (*COMPONENTS[:place], left, *COMPONENTS[place + 1 :])


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_every_line_of_the_table_is_needed(
    row: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some case above comes out otherwise when this line is taken away."""
    monkeypatch.setattr(failure, "COMPONENTS", without(*row))
    own = [case for case in CASES if case[2] == COMPONENTS[row[0]].name]
    changed = [text for text, *expected in own if list(read(text)) != expected]
    assert changed, f"no case needs {row_id(row)}"


def test_shortage_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "SHORTAGE", Meaning(HOST, "never", frozenset()))
    assert [text for text, *expected in CASES if list(read(text)) != expected]


ERRNO_TEXTS = {
    Errno.ABSENT: ENOENT,
    Errno.DENIED: EACCES,
    Errno.DIRECTORY: "Is a directory (os error 21)",
    Errno.SHORTAGE: "Cannot allocate memory (os error 12)",
    Errno.BUSY: "Device or resource busy (os error 16)",
    Errno.NO_DEVICE: "No such device or address (os error 6)",
    Errno.IO: "Input/output error (os error 5)",
    Errno.NAME: "File name too long (os error 36)",
    Errno.INVALID: EINVAL,
}


@pytest.mark.parametrize("kind", Errno)
def test_every_kind_of_error_number_is_read_in_all_its_forms(kind: Errno) -> None:
    words, numbers = failure._ERRNO_FORMS[kind]
    number = numbers.split("|")[0]
    forms = [
        ERRNO_TEXTS[kind],
        f"Os {{ code: {number}, kind: Other }}",
        f"Error({number})",
        f"[Errno {number}] x",
        f"x (os error {number})",
    ]
    forms += [word for word in words.split("|") if word.isalpha() and word[0] == "e"]
    for form in forms:
        match = failure._ERRNO.search(f": {form}".lower())
        assert match is not None, form
        assert match.lastgroup == kind


PHRASES = [
    pytest.param(entry, phrase, id=f"{entry.name}: {phrase}")
    for entry in COMPONENTS
    for phrase in entry.says
]


@pytest.mark.parametrize(("entry", "phrase"), PHRASES)
def test_every_phrase_speaks_for_its_component(entry: Component, phrase: str) -> None:
    """In a sentence of its own, with each kind of number that it has a meaning for."""
    for meaning in entry.means:
        kinds = [""] if meaning.errno is None else [ERRNO_TEXTS[kind] for kind in meaning.errno]
        earlier = entry.means[: entry.means.index(meaning)]
        taken = {ERRNO_TEXTS[k] for other in earlier for k in other.errno or ()}
        if entry.rank <= Rank.STAGE:
            taken.add(ERRNO_TEXTS[Errno.SHORTAGE])
        for number in kinds:
            if number not in taken:
                found = classify(f"Zzz {phrase}: {number}")
                assert found.failure_class is meaning.failure_class, (number, found)


def test_an_error_number_belongs_to_the_innermost_component() -> None:
    for text, expected in [
        (FROM_UFFD + f"Failed to connect to UDS Unix stream: {ENOENT}", TRANSPORT),
        (FROM_FILE + f"Failed to load guest memory: {ENOENT}", MISSING),
        (KVM + f"Error creating KVM object: {ENOENT}", HOST),
        (TAP + f"Couldn't open /dev/net/tun: {ENOENT}", HOST),
        (VSOCK + ENOENT, HOST),
        (DRIVE + ENOENT, MISSING),
        (f"dial unix /run/fc.sock: connect: {ENOENT}", TRANSPORT),
        (VCPU + f"Failed to set KVM vcpu xcrs: {ENOENT}", CPU),
    ]:
        assert classify(text).failure_class is expected, text


# ----------------------------------------------------------------------------- several causes


ANSWER_CASES = [
    case for case in CASES if case[1] not in (TRANSPORT, NONE, DISRUPTED) and "dial" not in case[0]
]


@pytest.mark.parametrize("text", [case[0] for case in ANSWER_CASES])
def test_an_answer_outranks_the_clients_side(text: str) -> None:
    alone = read(text)
    refused = "dial unix firecracker.sock: connect: connection refused"
    assert read(f"context canceled; {text}") == alone
    assert read(f"{text}; {refused}") == alone
    assert read(f"{text}\nattempt 2: {refused}\nattempt 3: {refused}") == alone
    assert read(f"context deadline exceeded\n{text}\nEOF") == alone


def test_a_stage_outranks_the_clients_side() -> None:
    assert read(f"{BUILD}Failed to restore vCPUs; context canceled") == (CPU, "vcpus")


def test_a_warning_gives_way_to_every_cause() -> None:
    warning = "Host CPU vendor ID differs from the snapshotted one"
    for text, failure_class, component in CASES:
        assert read(f"{warning}\n{text}") == (failure_class, component), text


def test_between_answers_the_cpu_counts_whichever_came_first() -> None:
    first = STATE + f"Failed to open snapshot file: {ENOENT}"
    second = VCPU + "Failed to set all KVM MSRs for this vCPU."
    assert classify(f"{first}\n{second}").failure_class is CPU
    assert classify(f"{second}\n{first}").failure_class is CPU


def test_precedence_names_every_class_once() -> None:
    assert sorted(failure._PRECEDENCE) == sorted(FailureClass)


# ----------------------------------------------------------------------------------- JSON


MSR = VCPU + "Failed to set all KVM MSRs for this vCPU. Only a partial write was done."


@pytest.mark.parametrize("failure_class", [c for c in FailureClass if c not in (UNKNOWN, NONE)])
@pytest.mark.parametrize(
    "spelling",
    [str.lower, str.upper, lambda name: name.replace("-", "_"), lambda name: f" {name} "],
)
def test_a_known_code_decides(failure_class: FailureClass, spelling: Callable[[str], str]) -> None:
    report = json.dumps({"code": spelling(failure_class.value), "message": "load refused"})
    found = classify(report)
    assert found.failure_class is failure_class
    assert "load refused" in found.why


def test_a_known_code_decides_against_the_message() -> None:
    found = classify(json.dumps({"code": "host", "message": MSR}))
    assert (found.failure_class, found.component) == (HOST, "")


def test_the_component_of_a_known_code_comes_from_a_message_of_its_class() -> None:
    found = classify(json.dumps({"code": "cpu-incompatible", "message": MSR}))
    assert (found.failure_class, found.component) == (CPU, "vcpu msrs")


@pytest.mark.parametrize(
    "code",
    [
        "unknown",
        "none",
        "SNAPSHOT_LOAD_FAILED",
        "",
        400,
        0,
        None,
        True,
        [],
        {},
        1e999,
        "host" + "-" * 99,
    ],
)
def test_any_other_code_leaves_the_word_to_the_message(code: object) -> None:
    assert read(json.dumps({"code": code, "message": MSR})) == (CPU, "vcpu msrs")
    assert classify(json.dumps({"code": code, "message": "boom"})).failure_class in (UNKNOWN, NONE)


def test_a_code_may_stand_in_an_object_inside() -> None:
    assert classify('{"error": {"code": "host", "message": "load refused"}}').failure_class is HOST


def test_the_code_none_stands_if_the_message_says_nothing() -> None:
    assert classify('{"code": "none", "message": "resumed"}').failure_class is NONE
    assert classify('{"code": "unknown", "message": "resumed"}').failure_class is UNKNOWN


@pytest.mark.parametrize(
    "message", [None, 7, True, [], {}, [None, [1, {}]], {"a": {"b": []}}, "", "\ud800"]
)
def test_a_message_of_any_type_is_no_error(message: object) -> None:
    assert classify(json.dumps({"message": message})).failure_class is UNKNOWN
    assert classify(json.dumps({"code": "usage", "message": message})).failure_class is USAGE
    assert classify(json.dumps(message)).failure_class is UNKNOWN


@pytest.mark.parametrize(
    "report",
    [
        json.dumps({"fault_message": MSR}),
        json.dumps({"message": json.dumps({"fault_message": MSR})}),
        json.dumps(json.dumps({"message": json.dumps({"fault_message": MSR})})),
        json.dumps({"message": {"text": ["x", MSR]}}),
        json.dumps([{"message": "x"}, {"message": MSR}]),
        json.dumps({"error": {"code": "cpu-incompatible", "message": "vcpu msrs"}}),
        json.dumps({"message": json.dumps({"code": "cpu-incompatible", "message": "vcpu msrs"})}),
        f"snapshot load: 400 Bad Request: {json.dumps({'fault_message': MSR})}",
        f"[PUT /snapshot/load][400] loadSnapshotBadRequest  &{{FaultMessage:{MSR}}}",
        'ts=1 level=error {"code": "cpu-incompatible", "message": "vcpu msrs"}',
        '{"level": "info"}\n{"code": "cpu-incompatible", "message": "vcpu msrs"}\n',
        '\x1b[31m{"code": \x1b[0m"cpu-incompatible", "message": "vcpu msrs"}',
        # kubelet cut the message off.
        '{"code": "cpu-incompatible", "message": "Failed to set KVM vcpu msrs: Inval',
        json.dumps({"message": MSR})[:-20],
        "\ufeff" + json.dumps({"fault_message": MSR}),
    ],
)
def test_reports_in_other_dress(report: str) -> None:
    assert read(report) == (CPU, "vcpu msrs")


@pytest.mark.parametrize(
    "text",
    [
        "Failed to set all \x1b[1mKVM\x1b[0m MSRs",
        "Failed to set all \\u001b[1mKVM\\x1b[0m MSRs",
        json.dumps({"message": "Failed to set all \x1b[1;31mKVM\x1b[0m MSRs"}),
        "Failed to set\\nall\\\\r\\\\n\\\\tKVM MSRs",
        "Failed to set\x00all\u200bKVM\u2028MSRs",
        "FAILED TO SET ALL KVM MSRS",
        "FAILED TO SET ALL\\U001B[1M KVM MSRS",
        '"Failed to set all KVM MSRs"',
        '\\"Failed to set all KVM MSRs\\"',
    ],
)
def test_what_stands_between_the_words_does_not_matter(text: str) -> None:
    assert read(text) == (CPU, "vcpu msrs")


def test_rusts_debug_shape_over_several_lines() -> None:
    text = "File(\n    Open(\n        Os {\n            code: 2,\n            kind: NotFound,\n"
    assert read(text) == (MISSING, "snapshot file")


def test_a_cause_spread_over_the_fields_of_a_log_line() -> None:
    line = {"err": "no such file or directory", "level": "error", "msg": "open snapshot file"}
    assert read(json.dumps(line)) == (MISSING, "snapshot file")
    assert read(f"runner | {json.dumps(line)}") == (MISSING, "snapshot file")


def test_a_bare_line_break_in_firecrackers_own_json() -> None:
    body = '{ "error": "Request payload with size 60139 is larger than the limit of 51200 allowed '
    body += 'by server.\nAll previous unanswered requests will be dropped." }'
    assert read(body) == (USAGE, "request")


@pytest.mark.parametrize("status", [200, 204, 299])
def test_a_load_that_was_answered_with_success_is_no_failure(status: int) -> None:
    assert classify(json.dumps({"http_status": status, "body": ""})).failure_class is NONE
    assert classify(json.dumps({"http_status": status, "body": MSR})).failure_class is CPU


@pytest.mark.parametrize("status", [True, "204", 199, 300, 400, None, 204.5])
def test_other_statuses_say_nothing(status: object) -> None:
    assert classify(json.dumps({"http_status": status, "body": ""})).failure_class is UNKNOWN


# ------------------------------------------------------------------------------- properties


WORDS = [
    "resume 7f3a",
    "snapshot load",
    "status 400",
    "error",
    "runner",
    "sandbox 0b1c-22",
    "failed to start",
    "restore",
    "rpc error: code = Internal desc = task failed",
    "2026-01-02T03:04:05.678Z [anonymous-instance:main:ERROR:src/x.rs:12]",
    "[PUT /snapshot/load][400] loadSnapshotBadRequest",
    "Caused by:",
]


def in_go(text: str, words: list[str]) -> str:
    return ": ".join([*words, text])


def in_message(text: str, words: list[str]) -> str:
    return json.dumps({"code": "E42", "attempt": 2, "message": text, "where": words})


def in_fault_message(text: str, words: list[str]) -> str:
    return in_go(json.dumps({"fault_message": text}), words)


def in_string(text: str, words: list[str]) -> str:
    return json.dumps(text)


def in_quotes(text: str, words: list[str]) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return in_go(f'"{escaped}"', words)


def over_lines(text: str, words: list[str]) -> str:
    return "\r\n\t".join([*words, text.replace(": ", ":\n    ")])


def in_colour(text: str, words: list[str]) -> str:
    return "\x1b[1;31m" + text.replace(" ", " \x1b[0m\x1b[33m", 3) + "\x1b[0m"


def in_capitals(text: str, words: list[str]) -> str:
    return text.upper()


def before_refusal(text: str, words: list[str]) -> str:
    return f"{text}; {in_go('dial unix firecracker.sock: connect: connection refused', words)}"


DRESSES = [
    in_go,
    in_message,
    in_fault_message,
    in_string,
    in_quotes,
    over_lines,
    in_colour,
    in_capitals,
]
KNOWN = [(text, failure_class) for text, failure_class, _ in CASES] + [
    (report["text"], FailureClass(report["class"])) for report in REPORTS
]
KNOWN_ANSWERS = [
    (str(answer["body"]), FailureClass(answer["class"]))
    for answer in ANSWERS
    if answer["http_status"] != 204 and (answer["case"], answer["firecracker"]) not in UNDECIDABLE
]
dressing = st.lists(
    st.tuples(st.sampled_from(DRESSES), st.lists(st.sampled_from(WORDS), max_size=3)), max_size=5
)


@given(known=st.sampled_from(KNOWN + KNOWN_ANSWERS), dresses=dressing)
@settings(max_examples=400, deadline=None)
def test_dress_does_not_change_the_class(
    known: tuple[str, FailureClass],
    dresses: list[tuple[Callable[[str, list[str]], str], list[str]]],
) -> None:
    text, expected = known
    for dress, words in dresses:
        text = dress(text, words)
    assert classify(text).failure_class is expected


@given(
    known=st.sampled_from([case for case in KNOWN if case[1] not in (TRANSPORT, UNKNOWN, NONE)]),
    dresses=dressing,
    words=st.lists(st.sampled_from(WORDS), max_size=2),
)
@settings(max_examples=300, deadline=None)
def test_a_dressed_answer_outranks_a_refusal(
    known: tuple[str, FailureClass],
    dresses: list[tuple[Callable[[str, list[str]], str], list[str]]],
    words: list[str],
) -> None:
    text, expected = known
    for dress, dress_words in dresses:
        text = dress(text, dress_words)
    assert classify(before_refusal(text, words)).failure_class is expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("message"), inner),
    max_leaves=8,
)


@given(text=st.text() | json_values.map(json.dumps) | json_values.map(json.dumps).map(json.dumps))
@settings(max_examples=200, deadline=None)
def test_nothing_raises(text: str) -> None:
    found = classify(text)
    assert found.why
    assert "\n" not in found.why
    found.why.encode("utf-8")
    for cut in (1, len(text) // 2):
        assert isinstance(classify(text[cut:]), Classification)


def test_half_of_a_letter_can_be_printed() -> None:
    for text in ["\ud83d boom", json.dumps({"message": "\ud83d boom"}), '{"code": "host\ud83d"}']:
        assert "\ufffd" in classify(text).why
        classify(text).why.encode("utf-8")


@given(code=st.text(), target=st.none() | st.text(), message=st.none() | st.text())
@settings(max_examples=200, deadline=None)
def test_no_end_raises(code: str, target: str | None, message: str | None) -> None:
    found = classify_end(pod_reason=code, disruption_target=target, termination_message=message)
    assert "\n" not in found.why
    assert found.failure_class is not NONE


GARBAGE = [
    *WORDS,
    EINVAL,
    ENOENT,
    "exit status 1",
    "os error 2",
    "0x7e",
    "{",
    "}",
    '{"',
    '\\"',
    "\\",
    "\\u00",
    "\x00",
    "\x1b[",
    "é\u202e",
    "null",
    "[[[",
    "::",
]


@given(st.lists(st.sampled_from(GARBAGE), max_size=12).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_garbage_stays_unknown(text: str) -> None:
    assert classify(text).failure_class is UNKNOWN


# -------------------------------------------------------------------------------- bounds


def test_of_a_long_text_both_ends_are_read() -> None:
    filler = "x " * MAX_TEXT
    assert classify(MSR + filler).failure_class is CPU
    assert classify(filler + MSR).failure_class is CPU
    assert classify(filler + MSR + filler).failure_class is UNKNOWN


HOSTILE = {
    "one word": "a" * MAX_TEXT,
    "braces": "{" * MAX_TEXT,
    "brackets": "[" * MAX_TEXT,
    "quotes": '"' * MAX_TEXT,
    "backslashes": "\\" * MAX_TEXT,
    "nested objects": '{"a":' * (MAX_TEXT // 5),
    "digits": "1" * MAX_TEXT,
    "components": "snapshot file " * (MAX_TEXT // 14),
    "files": "open snap " * (MAX_TEXT // 10),
    "absent": "no such file or directory: " * (MAX_TEXT // 27),
    "writes": "write " * (MAX_TEXT // 6),
    "vendors": "host cpu vendor id " * (MAX_TEXT // 19),
    "objects in text": '{"a":"{"} ' * (MAX_TEXT // 10),
    "packed": json.dumps({"a": {"a": {"a": {"a": ["snapshot file {"] * 3000}}}}),
    "escapes": "\\u001b[" * (MAX_TEXT // 7),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_texts_take_no_longer_than_their_length_allows(text: str) -> None:
    """Some 0.1 s each here; a pattern that backtracks would take minutes."""
    begun = time.perf_counter()
    classify(text)
    assert time.perf_counter() - begun < 5


# ---------------------------------------------------------------------- the end of a pod


@pytest.mark.parametrize(
    "reason",
    [
        "NodeAffinity",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfephemeral-storage",
        "OutOfspace.pplx.net/network-slots",
        "UnexpectedAdmissionError",
        "TopologyAffinityError",
        "Evicted",
        "Preempting",
        "Preempted",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "NodeLost",
    ],
)
@pytest.mark.parametrize(
    "message", [None, "", "exit status 1", "load snapshot: context canceled", "connection refused"]
)
def test_what_kubernetes_did_outranks_a_runner_that_was_cut_off(
    reason: str, message: str | None
) -> None:
    found = classify_end(pod_reason=reason, disruption_target=None, termination_message=message)
    assert found.failure_class is DISRUPTED
    assert reason in found.why


@pytest.mark.parametrize(
    "target",
    [
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "EvictionByEvictionAPI",
        "DeletionByPodGC",
        "TerminationByKubelet",
        "",
    ],
)
def test_a_disruption_target_is_enough(target: str) -> None:
    found = classify_end(
        pod_reason="", disruption_target=target, termination_message="context canceled"
    )
    assert found.failure_class is DISRUPTED
    assert target in found.evidence


@pytest.mark.parametrize(
    ("text", "expected"), [(case[0], case[1]) for case in CASES if case[1] not in (TRANSPORT, NONE)]
)
def test_the_runners_own_word_outranks_what_kubernetes_did(
    text: str, expected: FailureClass
) -> None:
    for reason, target in [("Evicted", None), ("", "TerminationByKubelet"), ("OutOfcpu", "x")]:
        found = classify_end(pod_reason=reason, disruption_target=target, termination_message=text)
        assert found.failure_class is expected


@pytest.mark.parametrize(
    "reason", ["", "Error", "DeadlineExceeded", "OutOf", "Completed", "OOMKilled"]
)
def test_without_a_disruption_the_runners_word_is_left(reason: str) -> None:
    for message, expected in [
        ("context canceled", TRANSPORT),
        ("exit status 1", UNKNOWN),
        (None, UNKNOWN),
        (MSR, CPU),
        # A warning ends no pod.
        ("Host CPU vendor ID differs from the snapshotted one", UNKNOWN),
    ]:
        found = classify_end(pod_reason=reason, disruption_target=None, termination_message=message)
        assert found.failure_class is expected, message


def test_a_runner_may_name_the_disruption_itself() -> None:
    found = classify_end(
        pod_reason="",
        disruption_target=None,
        termination_message='{"code": "disrupted", "message": "SIGTERM during the load"}',
    )
    assert found.failure_class is DISRUPTED
