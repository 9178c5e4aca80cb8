"""What a failed snapshot load is evidence of (domain.md section 11).

PURE: the standard library only; no I/O, no clock.

A report is read in three steps: `_flatten` takes away what wraps a cause without changing it
(escapes, colours, line breaks); `COMPONENTS`, the one table, says who can speak and what each
one's word means; `_Match.strength` decides between several causes in one text.

Sources in the table: "run" and a case is an answer of a real process, kept in
tests/fixtures/firecracker-load-failures.json; `Type::Variant` is an error type in the source of
Firecracker, old or new; other words name the program whose text it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class FailureClass(StrEnum):
    """The class of a failed load; it decides what happens next (domain.md section 11)."""

    CPU_INCOMPATIBLE = "cpu-incompatible"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    PERMISSION = "permission"
    TRANSPORT = "transport"
    HOST = "host"
    USAGE = "usage"
    DISRUPTED = "disrupted"
    UNKNOWN = "unknown"
    NONE = "none"
    """A warning beside a load that went on, or a load that was answered with 204: no failure."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of one report, and the words it was read from."""

    failure_class: FailureClass
    component: str
    """The innermost component that spoke, such as "vcpu msrs"; empty when unknown."""
    why: str
    """One sentence for a person, with the matched text."""
    evidence: str
    """The matched part of the report; empty when nothing matched."""


MAX_TEXT: Final = 65536
"""Characters of a report that are read; of a longer one, its first and its last half of this.

kubelet caps a termination message at 4,096 bytes; other callers may pass anything."""

_MAX_SHOWN: Final = 200
"""Characters of a report that a sentence quotes."""
_ERRNO_REACH: Final = 320
"""How far behind a component its error number may stand: a path fits in between."""
_MAX_HITS: Final = 100
"""Occurrences of one phrase that are looked at; a report that repeats itself says nothing new."""
_MAX_DEPTH: Final = 5
"""JSON inside JSON inside ... that is still unpacked."""
_MAX_NESTED: Final = 8
"""Pieces of JSON that are unpacked at one level."""


# ------------------------------------------------------------------------------ error numbers


class Errno(StrEnum):
    """Kinds of error numbers. They mean nothing without the component before them."""

    ABSENT = "absent"
    DENIED = "denied"
    DIRECTORY = "directory"
    SHORTAGE = "shortage"
    BUSY = "busy"
    NO_DEVICE = "no_device"
    IO = "io"
    NAME = "name"
    INVALID = "invalid"


# The texts of glibc, of musl (release builds of Firecracker: "Address in use", "No file descriptors
# available") and of Go; the name of the constant; Rust's ErrorKind; last the numbers.
_ERRNO_FORMS: Final[Mapping[Errno, tuple[str, str]]] = {
    Errno.ABSENT: (
        "no such file or directory|not a directory|enoent|enotdir|kind: notfound"
        "|(?:does not|doesn't|do not|no longer) exist|not found|(?:is|are|files?) missing",
        "2|20",
    ),
    Errno.DENIED: (
        "permission denied|operation not permitted|access denied|read-only file system"
        "|eacces|eperm|erofs|kind: permissiondenied",
        "1|13|30",
    ),
    Errno.DIRECTORY: ("is a directory|eisdir|kind: isadirectory", "21"),
    Errno.SHORTAGE: (
        "too many open files|no file descriptors available|cannot allocate memory|out of memory"
        "|no space left on device|(?:disk )?quota exceeded"
        "|emfile|enfile|enomem|enospc|edquot|kind: outofmemory",
        "12|23|24|28|122",
    ),
    Errno.BUSY: (
        "address (?:already )?in use|(?:device or )?resource busy|text file busy|file exists"
        "|eaddrinuse|ebusy|etxtbsy|kind: addrinuse|kind: resourcebusy",
        "16|17|26|98",
    ),
    Errno.NO_DEVICE: ("no such device(?: or address)?|enodev|enxio", "6|19"),
    Errno.IO: ("input/output error|i/o error|stale file handle|eio|estale", "5|116"),
    Errno.NAME: (
        "file ?name too long|too many levels of symbolic links|shorter than sun_len"
        "|enametoolong|eloop",
        "36|40",
    ),
    Errno.INVALID: ("invalid argument|einval|kind: invalidinput", "22"),
}
# "(os error 2)", Rust's `Os { code: 2, ..` and `Error(2)`, Python's "[Errno 2]", and the bare
# number right behind the component ("An IO error occurred: 21").
_NUMBER: Final = r"(?:\bos error |\berrno[ :=]{0,3}|\berror\(|\bos \{ code: |\A: )"
_ERRNO: Final = re.compile(
    "|".join(
        rf"(?P<{kind.value}>(?:\b(?:{words})|{_NUMBER}(?:{numbers})(?!\d))"
        r"(?: \(os error \d{1,4}\))?)"
        for kind, (words, numbers) in _ERRNO_FORMS.items()
    )
)

_ANY: Final = frozenset(Errno)
_ABSENT: Final = frozenset({Errno.ABSENT})
_DENIED: Final = frozenset({Errno.DENIED})
_NO_FILE: Final = frozenset({Errno.DIRECTORY, Errno.NAME})
_BAD_NAME: Final = frozenset({Errno.NAME})
_NO_DEVICE: Final = frozenset({Errno.NO_DEVICE})
_NODE_TROUBLE: Final = frozenset({Errno.IO, Errno.BUSY, Errno.NO_DEVICE})


# ------------------------------------------------------------------------------ the table's form


class Rank(IntEnum):
    """How much a match says. A lower rank outranks every match of a higher one."""

    ANSWER = 0
    """A component named its cause: the first failing check, which hides the others."""
    STAGE = 1
    """Only the stage is known, not which component in it; or the line was cut off."""
    KUBERNETES = 2
    """A sentence of kubelet or kube-scheduler about the pod."""
    CLIENT = 3
    """The client's side of the wire: refused, reset, given up, timed out. A failed restore ends
    the process, so a second try gets this; it never replaces an answer."""
    WARNING = 4
    """Stands beside a load that went on."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a component's word means if one of these error numbers follows it."""

    failure_class: FailureClass
    why: str
    errno: frozenset[Errno] | None = None
    """Numbers that may follow, before the next component; None: any, or none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One entry of the table: who speaks, how to know it, and what its word means."""

    name: str
    means: tuple[Meaning, ...]
    """In order; the first whose number fits decides. None fits: the component said nothing."""
    source: str
    says: tuple[str, ...] = ()
    """Lower-case phrases, matched as whole words."""
    pattern: re.Pattern[str] | None = None
    """A self-contained shape instead of phrases."""
    about: tuple[str, ...] = ()
    """With `pattern`: words of which the match must hold one."""
    not_after: str = ""
    """Text that, right before a phrase, makes it another component's."""
    rank: Rank = Rank.ANSWER


_CPU: Final = FailureClass.CPU_INCOMPATIBLE
_UNREADABLE: Final = FailureClass.UNREADABLE
_MISSING: Final = FailureClass.MISSING
_PERMISSION: Final = FailureClass.PERMISSION
_TRANSPORT: Final = FailureClass.TRANSPORT
_HOST: Final = FailureClass.HOST
_USAGE: Final = FailureClass.USAGE
_DISRUPTED: Final = FailureClass.DISRUPTED


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | "))


def _one(failure_class: FailureClass, why: str) -> tuple[Meaning, ...]:
    return (Meaning(failure_class, why),)


def _vcpu(name: str, words: str, debug: str, what: str) -> Component:
    """A part of the vCPU's state, by its words in a sentence and by the names of its error type."""
    says = [f"{verb} {word}" for word in _phrases(words) for verb in ("vcpu", "set")]
    return Component(
        name=name,
        says=(*says, *_phrases(debug)),
        # After "get" the same words are those of a capture that failed (KvmVcpuError::VcpuGet...).
        not_after="get kvm ",
        means=_one(_CPU, f"KVM on this host refused the snapshot's {what}"),
        source="run msr-xss, xcr0-amx, cpuid-vaddr-50, sregs-cr4-lam; KvmVcpuError::VcpuSet...",
    )


def _file(what: str) -> tuple[Meaning, ...]:
    """What opening a file can come to. Other numbers leave its component without a word."""
    return (
        Meaning(_MISSING, f"{what} is not there", _ABSENT),
        Meaning(_PERMISSION, f"{what} may not be opened", _DENIED),
        Meaning(_USAGE, f"the path given for {what} is not one of a file", _NO_FILE),
        Meaning(_HOST, f"the node could not open {what}", _NODE_TROUBLE),
    )


_ABSENT_TEXT: Final = "(?:no such file or directory|file does not exist|not a directory)"
_DENIED_TEXT: Final = "(?:permission denied|operation not permitted)"
# Files of the kernel are no files of a snapshot: /sys/fs/cgroup/memory.max.
_OPENING: Final = (
    r"\b(?:open|openat|stat|lstat|read|mmap|access|readlink|link) (?!/(?:sys|proc|dev)/)"
)
_FILE_WORDS: Final = _phrases(
    "snap | vmstate | vm_state | memfile | mem_file | memory | /mem | .mem"
)


# ------------------------------------------------------------------------------------- the table

SHORTAGE: Final = Meaning(
    _HOST,
    "the host ran out of memory, file descriptors or disk space",
    frozenset({Errno.SHORTAGE}),
)
"""Comes before the meanings of every component of Firecracker: whatever it was about to do, the
host had nothing left for it. Source: run nofile-18, nofile-24, as-200M-uffd."""

COMPONENTS: Final[tuple[Component, ...]] = (
    # --- cpu-incompatible: inside `Failed to restore vCPUs`, and TSC scaling.
    _vcpu(
        "vcpu msrs",
        "msrs | msr | all kvm msrs | kvm msrs",
        "vcpusetmsrs | vcpusetmsrsincomplete | kvm_set_msrs",
        "model-specific registers",
    ),
    _vcpu("vcpu xcrs", "xcrs", "vcpusetxcrs | kvm_set_xcrs", "extended control registers"),
    _vcpu(
        "vcpu xsave",
        "xsave | xsave2",
        "vcpusetxsave | vcpusetxsave2 | kvm_set_xsave | kvm_set_xsave2",
        "extended (XSAVE) state",
    ),
    _vcpu(
        "vcpu cpuid",
        "cpuid",
        # The second: BuildMicrovmFromSnapshotError::UnsupportedCPUID of older versions.
        "vcpusetcpuid | contains features unsupported | unsupportedcpuid | kvm_set_cpuid2",
        "CPUID",
    ),
    _vcpu("vcpu sregs", "sregs", "vcpusetsregs | kvm_set_sregs", "special registers"),
    _vcpu("vcpu regs", "regs", "vcpusetregs | kvm_set_regs", "general registers"),
    _vcpu("vcpu fpu", "fpu", "vcpusetfpu | kvm_set_fpu", "floating-point state"),
    _vcpu("vcpu lapic", "lapic", "vcpusetlapic | kvm_set_lapic", "local APIC state"),
    _vcpu(
        "vcpu mp state",
        "mp state | multiprocessor state",
        "vcpusetmpstate | kvm_set_mp_state | setmp",
        "multiprocessing state",
    ),
    _vcpu(
        "vcpu events",
        "vcpu event | vcpu events",
        "vcpu event | vcpu events | vcpusetvcpuevents | kvm_set_vcpu_events",
        "pending events",
    ),
    _vcpu(
        "vcpu debug regs",
        "debug regs | debugregs",
        "vcpusetdebugregs | kvm_set_debugregs",
        "debug registers",
    ),
    Component(
        name="vcpu state",
        says=_phrases("failed to set kvm vcpu"),
        means=_one(_CPU, "KVM on this host refused part of the snapshot's vCPU state"),
        source="KvmVcpuError: how its lines begin, for parts that are not listed above",
    ),
    Component(
        name="tsc",
        says=_phrases(
            "tsc scaling | tsc frequency | set tsc | set the tsc | set kvm tsc | settscerror"
            " | gettscerror | vcpusettsc | kvm_set_tsc_khz | tscfrequencynotpresent"
            " | frequency not present in the given snapshot"
        ),
        not_after="get kvm ",
        means=_one(_CPU, "this host cannot run the vCPU at the snapshot's TSC frequency"),
        source="run tsc-33pct; BuildMicrovmFromSnapshotError::SetTsc, TscFrequencyNotPresent",
    ),
    Component(
        name="arm register",
        says=_phrases("set register | set registers | setonereg | set_one_reg | kvm_set_one_reg"),
        means=_one(_CPU, "KVM on this host refused a register of the snapshot's vCPU"),
        source="aarch64 VcpuError::SetOneReg",
    ),
    Component(
        name="arm vcpu init",
        says=_phrases("error initializing the vcpu | kvm_arm_vcpu_init"),
        means=_one(_CPU, "this host cannot make a vCPU with the snapshot's features"),
        source="aarch64 KvmVcpuError::Init; the features come from the snapshot",
    ),
    Component(
        name="cpu vendor check",
        says=_phrases("cpu vendor check failed | cpuvendorcheck"),
        means=_one(_CPU, "Firecracker refused a snapshot of another CPU vendor"),
        source="LoadSnapshotError::CpuVendorCheck of older versions; a warning since",
    ),
    # --- threads and channels inside the vCPU stage: no evidence about a CPU.
    Component(
        name="vcpu threads",
        says=_phrases(
            "restore vcpus: failed to send event | unexpected vcpu response | cannot signal vcpu"
            " | spawn vcpu thread | spawn a new vcpu thread | clone kvm vcpu fd"
            " | failed to start vcpus: failed | failed to start vcpus: vcpu handle error"
        ),
        means=_one(_HOST, "a vCPU thread of Firecracker did not start or did not answer"),
        source="RestoreVcpusError::SendEvent, UnexpectedVcpuResponse; StartThreadedError",
    ),
    # --- unreadable: another format, or damage; the text often cannot tell which.
    Component(
        name="snapshot size",
        says=_phrases("snapshot size exceeds limit | sizelimitexceeded"),
        means=_one(_USAGE, "the file given as the snapshot is far too large to be one"),
        source="run snap-mem-swapped; SnapshotError::SizeLimitExceeded",
    ),
    Component(
        name="snapshot checksum",
        says=_phrases(
            "crc64 validation failed | crc64 | smaller than crc length | invalidsnapshotsize"
            " | checksum mismatch"
        ),
        means=_one(_UNREADABLE, "the snapshot file's checksum does not match its content"),
        source="run snap-crc-flip, snap-trunc-half; SnapshotError::Crc64",
    ),
    Component(
        name="snapshot format",
        says=_phrases(
            "invalid data version | invalid format version | invaliddataversion"
            " | invalidformatversion | magic value does not match | invalid magic | invalidmagic"
            " | created by a different version | unsupported snapshot version"
            " | snapshot version mismatch | incompatible snapshot version"
        ),
        means=_one(_UNREADABLE, "this Firecracker does not read the snapshot file's format"),
        source="run snap-version-minor+1; SnapshotError::InvalidFormatVersion, InvalidMagic",
    ),
    Component(
        name="snapshot decoder",
        says=_phrases(
            "bitcode serialization | bitcode error | bitcode | bincode decoding | bincode"
            " | serialization/deserialization | deserialize the microvm state"
            ' | deserializemicrovmstate | versioned serialization | versionize | serde("'
            " | unexpectedend"
        ),
        means=_one(
            _UNREADABLE,
            "this Firecracker cannot decode the snapshot file: another format, or damage",
        ),
        source="run snap-zeros, snapshot-of-1.13.2-in-1.10.1; SnapshotError::Serde, Bitcode",
    ),
    Component(
        name="snapshot state",
        says=_phrases(
            "no memory region defined | no dram memory region defined | dram memory has more than"
            " | dram memory is unplugged | invalid vcpu count | snapshot sanity check failed"
            " | failed to validate vcpu | could not restore queue | contains invalid queue info"
            " | persistence error | persist( | queueconstruction | memory region has zero slots"
            " | evenly divisible into | memory region is not aligned"
        ),
        means=_one(_UNREADABLE, "what the snapshot file says of the machine cannot be"),
        source="run mem-no-regions; SnapShotStateSanityCheckError, PersistError",
    ),
    Component(
        name="memory file",
        says=_phrases(
            "exceeds largest possible file offset | offsettoolarge | greater then file length"
            " | greater than file length | mappingpasteof | offset and length cause overflow"
            " | invalidoffsetlength"
        ),
        means=_one(_UNREADABLE, "the memory file is shorter than the snapshot says"),
        source="run mem-empty, mem-state-larger; MemoryError::OffsetTooLarge, MmapRegionError",
    ),
    Component(
        name="snapshot file",
        pattern=re.compile(
            r"\b(?:corrupt(?:ed)?|truncated|damaged) (?:snapshot|memory)(?: state)?(?: files?)?\b"
            r"|\b(?:snapshot|memory)(?: state)?(?: files?)? (?:is|are|was|seems|looks) "
            r"(?:corrupt(?:ed)?|truncated|damaged)\b"
        ),
        means=_one(_UNREADABLE, "the runner found the snapshot damaged"),
        source="runners that check a snapshot before they load it",
    ),
    # --- files, by the component that opens them.
    Component(
        name="snapshot file",
        says=_phrases(
            "load snapshot state from file: io error"
            " | load snapshot state from file: an io error occurred | load(io"
        ),
        means=_file("the snapshot file")[1:],
        source="run snap-isdir; SnapshotError::Io. Other numbers: a short read, see the stages",
    ),
    Component(
        name="snapshot file",
        says=_phrases(
            "snapshot file | snapshot files | snapshot state file | snapshot backing file"
            " | snapshot file metadata | snapshotbackingfile | file(open | vmstate file"
            " | vm state file | state file | snapfile | snapshot path"
        ),
        means=_file("the snapshot file"),
        source="run snap-missing-dir, snap-dir-perm; SnapshotStateFromFileError::Open",
    ),
    Component(
        name="memory file",
        says=_phrases(
            "load guest memory | memory file | memory backing file | memory snapshot file"
            " | memorybackingfile | file(file | mem file | memfile | mem_file | mem file path"
            " | memory file path | deserialize memory: cannot access file"
        ),
        means=_file("the memory file"),
        source="run mem-perm; GuestMemoryFromFileError::File",
    ),
    Component(
        name="memory mapping",
        says=_phrases("create mmap region | create memory region | mmapregionerror | createregion"),
        means=(
            Meaning(_USAGE, "the memory path is nothing that can be mapped", _NO_DEVICE),
            Meaning(_PERMISSION, "Firecracker may not map the memory file", _DENIED),
            Meaning(_HOST, "the host could not map the guest's memory", _ANY),
        ),
        source="run mem-isdir of 1.13.2, as-200M-uffd; MemoryError::MmapRegionError",
    ),
    Component(
        name="guest memory",
        says=_phrases(
            "cannot create memfd | cannot resize memfd | cannot create guest memory"
            " | fetch system's page size | error protecting memory slot"
        ),
        means=_one(_HOST, "the host could not provide the guest's memory"),
        source="MemoryError",
    ),
    Component(
        name="drive",
        says=_phrases(
            "manipulating the backing file | accessing backing file | backingfile | backingfileio"
            " | coming from the io engine | fileengine | getting a block's metadata"
        ),
        means=(
            *_file("the file behind a drive")[:3],
            Meaning(_HOST, "the node could not open the file behind a drive"),
        ),
        source="run drive-missing; VirtioBlockError::BackingFile, PmemError::BackingFileIo",
    ),
    Component(
        name="file",
        pattern=re.compile(
            rf"{_OPENING}[^:]{{1,300}}: {_ABSENT_TEXT}"
            rf"|{_ABSENT_TEXT}: ['\"][^'\":]{{1,300}}['\"]"
        ),
        about=(*_FILE_WORDS, "rootfs"),
        means=_one(_MISSING, "a file of the snapshot is not there"),
        source="Go os.PathError, Python OSError; the path says whose file it is",
    ),
    Component(
        name="file",
        pattern=re.compile(
            rf"{_OPENING}[^:]{{1,300}}: {_DENIED_TEXT}|{_DENIED_TEXT}: ['\"][^'\":]{{1,300}}['\"]"
        ),
        about=(*_FILE_WORDS, "rootfs"),
        means=_one(_PERMISSION, "a file of the snapshot may not be opened"),
        source="Go os.PathError, Python OSError; the path says whose file it is",
    ),
    Component(
        name="object store",
        says=_phrases("nosuchkey | nosuchbucket | blobnotfound | object doesn't exist"),
        means=_one(_MISSING, "the object store does not hold the snapshot"),
        source="error codes of S3, Azure Blob and Cloud Storage",
    ),
    Component(
        name="object store",
        says=_phrases("accessdenied | authorizationfailure"),
        means=_one(_PERMISSION, "the object store does not give the snapshot out"),
        source="error codes of S3 and Azure Blob",
    ),
    # --- host: KVM and the VM it makes.
    Component(
        name="kvm",
        says=_phrases(
            "creating kvm object | could not access kvm | kvmaccess | kvmcontext | kvm(kvm"
            " | missing kvm capabilities | missing kvm capability | kvm api version"
            " | get supported cpuid | msr index list | failed to create vm | failed to create vcpu"
            " | error creating vcpu | error creating the vcpu | vcpu file descriptor"
            " | set the memory regions | maximum reported by kvm | kvm is not available"
            " | kvm not available | irq with kvm | gsi with kvm"
        ),
        means=(
            Meaning(_PERMISSION, "Firecracker may not use KVM on this node", _DENIED),
            Meaning(_HOST, "KVM on this node does not give what a microVM needs"),
        ),
        source="run kvm-perm, kvm-absent, kvmcap-9999; KvmError, VmError",
    ),
    Component(
        name="kvm",
        says=_phrases("/dev/kvm"),
        means=(
            Meaning(_PERMISSION, "/dev/kvm may not be opened on this node", _DENIED),
            Meaning(_HOST, "/dev/kvm cannot be used on this node", _ANY),
        ),
        source="runners and the jailer; needs a number: KvmError's advice ends with this name",
    ),
    Component(
        name="kvm vm state",
        says=_phrases(
            "set pit2 error | set clock error | set irqchippicmaster error"
            " | set irqchippicslave error | set irqchipioapic error | setpit2 | setclock"
            " | setirqchippicmaster | setirqchippicslave | setirqchipioapic | kvm vm pit state"
            " | kvm vm clock | kvm vm irqchip | gic state | restoregic"
            " | global interrupt controller | attributes for the gic | kvm_set_tss_address"
        ),
        means=_one(_HOST, "KVM on this host refused the interrupt controller, timer or clock"),
        source="ArchVmError::SetPit2, SetClock, SetIrqChip...; aarch64 KvmVmError::RestoreGic",
    ),
    # --- host: descriptors and devices of the node.
    Component(
        name="descriptors",
        says=_phrases(
            "error with eventfd | opening eventfd | eventfd error | creating eventfd | eventfd("
            " | during eventfd operations | event file descriptor | creating an interrupt"
            " | coming from the rate limiter | creating an epoll fd | epoll-listening fd"
            " | mmap kvm_run"
        ),
        means=_one(_HOST, "the host gave Firecracker no descriptor"),
        source="NetError::EventFd, VirtioBlockError::EventFd, DeviceManagerCreateError",
    ),
    Component(
        name="tap device",
        says=_phrases("invalid interface name | invalidifname"),
        means=_one(_USAGE, "the name given for the tap device is none of an interface"),
        source="run net-name-too-long; TapError::InvalidIfname",
    ),
    Component(
        name="tap device",
        says=_phrases("open /dev/net/tun | opentun"),
        means=(
            Meaning(_PERMISSION, "/dev/net/tun may not be opened on this node", _DENIED),
            Meaning(_HOST, "/dev/net/tun cannot be used on this node", _ANY),
        ),
        source="run net-no-tun, and kvm-perm for its like; TapError::OpenTun",
    ),
    Component(
        name="tap device",
        says=_phrases(
            "creating ifreq structure | ifreqexecuteerror | invalid tun/tap backend"
            " | tapopen(ioctlerror | setting the offload flags | setting vnet header size"
            " | size of the vnet header | setoffloadflags | setsizeofvnethdr"
        ),
        # Also if refused: without CAP_NET_ADMIN that is how a tap device that is absent shows.
        means=_one(_HOST, "the tap device on this node is absent, taken, or none"),
        source="run net-override-nontap; TapError::IfreqExecuteError",
    ),
    Component(
        name="network namespace",
        says=_phrases("network namespace | netns"),
        means=(Meaning(_HOST, "the node could not enter a network namespace", _ANY),),
        source="the jailer, CNI",
    ),
    Component(
        name="vsock path",
        says=_phrases("binding to the host-side unix socket | unixbind"),
        means=(
            Meaning(_PERMISSION, "Firecracker may not make its vsock socket", _DENIED),
            Meaning(_USAGE, "the path given for vsock is none that a socket can have", _BAD_NAME),
            Meaning(_HOST, "the vsock socket's path on this node is taken or cannot be made"),
        ),
        source="run vsock-stale-socket, and kvm-perm for its like; VsockUnixBackendError::UnixBind",
    ),
    Component(
        name="userfaultfd",
        says=_phrases(
            "failed to uffd object | create uffd | create uffd builder | create userfaultfd"
            " | /dev/userfaultfd | register memory address range | register memory regions to uffd"
            " | uffd(create | uffd(register"
        ),
        means=(
            Meaning(_PERMISSION, "Firecracker may not use userfaultfd on this node", _DENIED),
            Meaning(_HOST, "userfaultfd cannot be used on this node"),
        ),
        source="GuestMemoryFromUffdError::Create, Register; kvm-perm for its like",
    ),
    Component(
        name="uffd handler",
        says=_phrases(
            "connect to uds | uds unix stream | udsconnection | sends file descriptor"
            " | send file descriptor | send fd and memory layout | uffdsend | uffd(connect"
            " | uffd(send"
        ),
        means=(
            Meaning(_PERMISSION, "Firecracker may not connect to the page-fault handler", _DENIED),
            Meaning(_USAGE, "the page-fault handler's path is none of a socket", _BAD_NAME),
            Meaning(_TRANSPORT, "the page-fault handler was not there or went away"),
        ),
        source="run uffd-socket-absent, uffd-refused; GuestMemoryFromUffdError::Connect, Send",
    ),
    Component(
        name="seccomp",
        says=_phrases(
            "vcpu seccomp filter found | filter as none found | missingvcpuseccompfilters"
            " | missingvmmseccompfilters"
        ),
        means=_one(_USAGE, "the seccomp filters given to Firecracker are incomplete"),
        source="BuildMicrovmFromSnapshotError::MissingVcpuSeccompFilters",
    ),
    Component(
        name="seccomp",
        says=_phrases(
            "intercepting a bad syscall | install seccomp filters | apply vmm seccomp filter:"
            " | apply vmm secccomp filter: | requested seccomp filters"
        ),
        means=_one(_HOST, "the host's kernel and Firecracker's system call filter do not fit"),
        source="FcExitCode::BadSyscall; VmmError::SeccompFilters",
    ),
    # --- host: what the runner's own calls ran into.
    Component(
        name="runner",
        pattern=re.compile(
            r"\b(?:fork/exec|fork|exec|clone|spawn|pipe2?|socket|accept4?|eventfd2?|epoll_create1?"
            r"|open|mmap)\b[^:]{0,120}: (?:too many open files|no file descriptors available"
            r"|cannot allocate memory|out of memory|resource temporarily unavailable)"
        ),
        means=_one(_HOST, "the host ran out of memory, processes or file descriptors"),
        source="Go os, os/exec and net",
    ),
    Component(
        name="node disk",
        pattern=re.compile(
            r"\b(?:write|copy|create|mkdir|rename|truncate|fallocate|download|fetch|save)\b"
            r"[^:]{0,200}: (?:no space left on device|disk quota exceeded|read-only file system)"
        ),
        means=_one(_HOST, "the node's disk took no more"),
        source="Go os; a runner that brings the snapshot to the node",
    ),
    Component(
        name="memory",
        pattern=re.compile(r"memory allocation of \d{1,20} bytes failed"),
        means=_one(_HOST, "the host had no memory for Firecracker"),
        source="Rust's allocator, before it aborts the process",
    ),
    # --- usage: the runner asked wrongly; the process stays alive and a retry asks the same.
    Component(
        name="request",
        says=_phrases(
            "deserializing the json body | serdejson | empty put request | empty patch request"
            " | get request cannot have a body | invalid request method and/or path"
            " | invalidpathmethod | too many fields: either | missing field: either"
            " | request payload with size | all previous unanswered requests will be dropped"
            " | resource ids can only contain | the id cannot be empty"
        ),
        means=_one(_USAGE, "Firecracker could not make sense of the request"),
        source="run both-mem, unknown-field, too-large; RequestError, micro_http",
    ),
    Component(
        name="request order",
        says=_phrases(
            "not allowed after configuring boot-specific resources | loadsnapshotnotallowed"
            " | not supported after starting the microvm | operationnotsupportedpostboot"
            " | not supported before starting the microvm | operationnotsupportedpreboot"
        ),
        means=_one(_USAGE, "the request came when Firecracker does not take it"),
        source="run load-twice, load-after-machine-config; VmmActionError, LoadSnapshotError",
    ),
    Component(
        name="request content",
        says=_phrases(
            "unknown network device | unknownnetworkdevice | unknown vsock device"
            " | unknownvsockdevice | cannot restore hugetlbfs backed snapshot | hugetlbfssnapshot"
            " | clock_realtime is not supported | the requested operation is not supported:"
        ),
        means=_one(_USAGE, "the request asks for what this snapshot or Firecracker does not have"),
        source="SnapshotStateFromFileError, GuestMemoryFromFileError, VmmActionError",
    ),
    Component(
        name="mmds request",
        says=_phrases("mmds error | mmds config error | mmmds config error | mmds limit exceeded"),
        means=_one(_USAGE, "Firecracker did not take the metadata it was given"),
        source="VmmActionError::Mmds, MmdsConfig, MmdsLimitExceeded",
    ),
    # --- stages.
    Component(
        name="vcpus",
        says=_phrases(
            "restore vcpus | restorevcpus | restore vcpu state | restorevcpustate"
            " | restore the state of the vcpu | run action on vcpu"
            " | only a partial write was done"
        ),
        means=_one(_CPU, "Firecracker could not restore the vCPUs"),
        source="BuildMicrovmFromSnapshotError::RestoreVcpus",
        rank=Rank.STAGE,
    ),
    Component(
        name="snapshot file",
        says=_phrases("load snapshot state from file"),
        means=_one(
            _UNREADABLE,
            "this Firecracker cannot read the snapshot file: another format, or damage",
        ),
        source="SnapshotStateFromFileError::Load",
        rank=Rank.STAGE,
    ),
    Component(
        name="snapshot state",
        says=_phrases("invalid snapshot state | update microvm configuration | mmdsconfig"),
        means=_one(_UNREADABLE, "what the snapshot file says of the machine cannot be"),
        source="RestoreFromSnapshotError::Invalid, DevicePersistError::MmdsConfig",
        rank=Rank.STAGE,
    ),
    Component(
        name="tap device",
        says=_phrases("open tap device failed | tapopen | create a network device"),
        means=_one(_HOST, "the node does not give the tap device"),
        source="NetError::TapOpen",
        rank=Rank.STAGE,
    ),
    Component(
        name="vsock path",
        says=_phrases("vsockunixbackend"),
        means=_one(_HOST, "the node does not give the vsock device its socket"),
        source="DevicePersistError::VsockUnixBackend",
        rank=Rank.STAGE,
    ),
    Component(
        name="devices",
        says=_phrases(
            "failed to restore devices | cannot restore devices | restoredevices"
            " | failed to restore mmio device | restoring mmio devices | restoring pci devices"
            " | restoring acpi devices | restore acpi device manager | emulate mmio serial"
        ),
        means=_one(_HOST, "the node does not have what one of the snapshot's devices needs"),
        source="DeviceManagerPersistError; MMIO or PCI, by version",
        rank=Rank.STAGE,
    ),
    Component(
        name="kvm vm state",
        says=_phrases("failed to restore microvm state | cannot restore vm state | restorevmstate"),
        means=_one(_HOST, "KVM on this host refused the VM's state"),
        source="BuildMicrovmFromSnapshotError::RestoreState",
        rank=Rank.STAGE,
    ),
    Component(
        name="kvm",
        says=_phrases("create microvm and vcpus | createmicrovmandvcpus | kvm error | kvmvm error"),
        means=_one(_HOST, "the node could not make the microVM"),
        source="BuildMicrovmFromSnapshotError::CreateMicrovmAndVcpus",
        rank=Rank.STAGE,
    ),
    Component(
        name="userfaultfd",
        says=_phrases("guest memory from uffd"),
        means=_one(_HOST, "the node could not serve the guest's memory through userfaultfd"),
        source="RestoreFromSnapshotGuestMemoryError::Uffd",
        rank=Rank.STAGE,
    ),
    # --- disrupted: when what was handed over is the pod's message, not the runner's.
    Component(
        name="kubelet",
        says=_phrases(
            "predicate nodeaffinity failed | pod was rejected | node didn't have enough resource"
            " | node was low on resource | imminent node shutdown | node is shutting down"
            " | unexpectedadmissionerror | preempted in order to admit critical pod"
            " | preempting to accommodate a higher priority pod"
        ),
        means=_one(_DISRUPTED, "Kubernetes ended the pod"),
        source="messages of kubelet and kube-scheduler in a pod's status",
        rank=Rank.KUBERNETES,
    ),
    # --- transport: the client's side.
    Component(
        name="api socket",
        says=_phrases("dial unix | unix socket | api socket | firecracker socket"),
        means=(
            Meaning(_PERMISSION, "the runner may not connect to Firecracker's socket", _DENIED),
            Meaning(_TRANSPORT, "Firecracker's socket is not there", _ABSENT),
        ),
        source="Go net.OpError",
        rank=Rank.CLIENT,
    ),
    Component(
        name="connection",
        says=_phrases(
            "connection refused | connectionrefused | connectionrefusederror | econnrefused"
            " | couldn't connect to server | failed to connect to | error trying to connect"
            " | no route to host | network is unreachable"
        ),
        means=_one(_TRANSPORT, "nothing answered at the other end"),
        source="Go net, Python, Node, curl (7), hyper",
        rank=Rank.CLIENT,
    ),
    Component(
        name="connection",
        says=_phrases(
            "connection reset | connectionreset | connectionreseterror | econnreset | broken pipe"
            " | brokenpipe | brokenpipeerror | epipe | eof | unexpectedeof"
            " | empty reply from server | server closed idle connection"
            " | use of closed network connection | connection closed | connection was closed"
            " | connection aborted | connectionaborted | remote end closed connection"
            " | remotedisconnected | transport is closing | transport endpoint is not connected"
            " | socket not connected | socket hang up"
        ),
        means=_one(_TRANSPORT, "the other end went away before it answered"),
        source="Go net/http, Python, Node, curl (52, 56), hyper, gRPC",
        rank=Rank.CLIENT,
    ),
    Component(
        name="deadline",
        says=_phrases(
            "context deadline exceeded | deadline exceeded | deadlineexceeded"
            " | deadline has elapsed | timed out | timedout | timeouterror | etimedout"
            " | i/o timeout | timeout exceeded | client.timeout | timeout awaiting"
            " | timeout waiting | timeout while | request timeout | read timeout"
            " | connect timeout | gateway timeout | gateway time-out"
        ),
        means=_one(_TRANSPORT, "no answer came in time"),
        source="run uffd-handler-silent; Go context, Python, tokio, curl (28), HTTP 504",
        rank=Rank.CLIENT,
    ),
    Component(
        name="cancel",
        says=_phrases(
            "context canceled | context cancelled | request canceled | request cancelled"
            " | operation was canceled | operation was cancelled | cancellederror"
            " | code = canceled"
        ),
        means=_one(_TRANSPORT, "the request was given up before an answer came"),
        source="Go context, Python asyncio, gRPC",
        rank=Rank.CLIENT,
    ),
    Component(
        name="gateway",
        says=_phrases("bad gateway | service unavailable | code = unavailable"),
        means=_one(_TRANSPORT, "something between the runner and Firecracker did not answer"),
        source="HTTP 502 and 503, gRPC",
        rank=Rank.CLIENT,
    ),
    # --- none: lines of a load that goes on.
    Component(
        name="cpu vendor warning",
        pattern=re.compile(
            r"host cpu (?:vendor|manufacturer) id\b.{0,120}?\bdiffers from (?:the )?snapshotted one"
            r"|(?:host|snapshot) cpu (?:vendor|manufacturer) id: couldn't get from"
        ),
        means=_one(FailureClass.NONE, "a warning about the CPU vendor, beside a load that goes on"),
        source="run cpuid-vendor-amd; validate_cpu_vendor, validate_cpu_manufacturer_id",
        rank=Rank.WARNING,
    ),
)
"""All that is known, in order. A new cause is a new line here and a test that fails without it."""

_PRECEDENCE: Final[tuple[FailureClass, ...]] = (
    FailureClass.CPU_INCOMPATIBLE,
    FailureClass.UNREADABLE,
    FailureClass.MISSING,
    FailureClass.PERMISSION,
    FailureClass.HOST,
    FailureClass.USAGE,
    FailureClass.DISRUPTED,
    FailureClass.TRANSPORT,
    FailureClass.NONE,
    FailureClass.UNKNOWN,
)
"""Between causes of one rank. A text holds two answers only if the runner tried twice; then the
one that keeps the next attempt from failing the same way counts, whichever it wrote first."""

_DEATH: Final = re.compile(
    r"\bexit(?:ed)?(?: with)?(?: status| code)?[ :=]{1,3}[1-9]|\bsignal: |\bpanic|\bfatal\b"
)
"""Beside a warning: a process died, so the warning is not the whole story."""


# ---------------------------------------------------------------------------------- reading text

_ESCAPE: Final = re.compile(r"\\+(?:u([0-9a-f]{4})|x([0-9a-f]{2})|([nrt])|)", re.IGNORECASE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028\u2029\ufeff]")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def _unescape(match: re.Match[str]) -> str:
    unicode_digits, byte_digits, blank = match.groups()
    if blank is not None:
        return " "
    digits = unicode_digits or byte_digits
    return chr(int(digits, 16)) if digits else ""


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} {text[-half:]}"


def _flatten(text: str) -> str:
    """One line without escapes, colours and control characters; its words are unchanged."""
    text = _ESCAPE.sub(_unescape, text)
    text = _COLOUR.sub("", text)
    text = _UNPRINTABLE.sub(" ", text)
    text = _SURROGATE.sub("\ufffd", text).replace("\u2019", "'")
    # Rust's {:#?} breaks the line after every bracket: `Open( Os { code: 2`.
    return " ".join(text.split()).replace("( ", "(")


@dataclass(frozen=True, slots=True)
class _Hit:
    """A component's phrase in the text."""

    start: int
    end: int
    place: int
    """Of the component in the table."""


@dataclass(frozen=True, slots=True)
class _Match:
    """A component's word with its meaning."""

    start: int
    end: int
    place: int
    meaning: Meaning

    @property
    def component(self) -> Component:
        return COMPONENTS[self.place]

    @property
    def strength(self) -> tuple[int, int, int, int, int]:
        """Smaller is stronger: rank, class, then the rightmost, which is the innermost."""
        return (
            self.component.rank,
            _PRECEDENCE.index(self.meaning.failure_class),
            -self.start,
            self.start - self.end,
            self.place,
        )


def _in_word(text: str, place: int) -> bool:
    return 0 <= place < len(text) and (text[place].isalnum() or text[place] == "_")


def _find_phrase(text: str, phrase: str, not_after: str) -> Iterator[tuple[int, int]]:
    """Where the phrase stands as whole words."""
    start = text.find(phrase)
    for _ in range(_MAX_HITS):
        if start < 0:
            return
        end = start + len(phrase)
        cut = (phrase[0].isalnum() and _in_word(text, start - 1)) or (
            phrase[-1].isalnum() and _in_word(text, end)
        )
        if not cut and not (not_after and text.endswith(not_after, 0, start)):
            yield start, end
        start = text.find(phrase, end)


def _find_phrases(text: str) -> list[_Hit]:
    found = [
        _Hit(start, end, place)
        for place, component in enumerate(COMPONENTS)
        for phrase in component.says
        if phrase in text
        for start, end in _find_phrase(text, phrase, component.not_after)
    ]
    found.sort(key=lambda hit: (hit.start, hit.end))
    return found


def _phrase_matches(text: str) -> Iterator[_Match]:
    """Every component that speaks in the text, with the meaning its error number chooses.

    A number belongs to the last component before it: that is the innermost one.
    """
    hits = _find_phrases(text)
    following = 0
    for place, hit in enumerate(hits):
        following = max(following, place + 1)
        while following < len(hits) and hits[following].start < hit.end:
            following += 1
        limit = hits[following].start if following < len(hits) else len(text)
        number = _ERRNO.search(text[hit.end : min(limit, hit.end + _ERRNO_REACH)])
        kind = Errno(str(number.lastgroup)) if number else None
        component = COMPONENTS[hit.place]
        shortage = (SHORTAGE,) if component.rank <= Rank.STAGE else ()
        for meaning in (*shortage, *component.means):
            if meaning.errno is None or kind in meaning.errno:
                end = hit.end + number.end() if number else hit.end
                yield _Match(hit.start, end, hit.place, meaning)
                break


def _shape_matches(text: str) -> Iterator[_Match]:
    for place, component in enumerate(COMPONENTS):
        if component.pattern is None:
            continue
        for count, match in enumerate(component.pattern.finditer(text)):
            if count >= _MAX_HITS:
                break
            if not component.about or any(word in match.group() for word in component.about):
                yield _Match(match.start(), match.end(), place, component.means[0])


@dataclass(frozen=True, slots=True)
class _Finding:
    """A classification and how much it says."""

    classification: Classification
    rank: int

    @property
    def strength(self) -> tuple[int, int]:
        return self.rank, _PRECEDENCE.index(self.classification.failure_class)


_DECLARED: Final = -1
"""The rank of a class that the runner named itself."""
_NOTHING: Final = len(Rank)


def _strongest(findings: list[_Finding]) -> _Finding:
    return min(findings, key=lambda finding: finding.strength)


def _unknown(flat: str) -> _Finding:
    said = f'"{flat[:_MAX_SHOWN]}"' if flat else "nothing"
    why = f"no known cause in the report, which says {said}"
    return _Finding(Classification(FailureClass.UNKNOWN, "", why, ""), rank=_NOTHING)


def _read_text(text: str) -> _Finding:
    """The strongest cause in a text; JSON in it is only more text here."""
    flat = _flatten(text)
    lowered = flat.lower()
    matches = [*_phrase_matches(lowered), *_shape_matches(lowered)]
    if not matches:
        return _unknown(flat)
    best = min(matches, key=lambda match: match.strength)
    component, meaning = best.component, best.meaning
    if component.rank is Rank.WARNING and _DEATH.search(lowered):
        return _unknown(flat)
    # A few letters change their length with their case; places are then those of the lowered text.
    shown = flat if len(flat) == len(lowered) else lowered
    evidence = shown[best.start : best.end][:_MAX_SHOWN]
    why = f'{meaning.why}: "{evidence}"'
    return _Finding(
        Classification(meaning.failure_class, component.name, why, evidence), rank=component.rank
    )


# ---------------------------------------------------------------------------------- reading JSON

_CODES: Final[Mapping[str, FailureClass]] = {
    name.value.replace("-", ""): name for name in FailureClass
}
_NO_CLAIM: Final = frozenset({FailureClass.UNKNOWN, FailureClass.NONE})
"""Codes that leave the word to the message."""
_CUT_CODE: Final = re.compile(r'"code" ?: ?"([a-z _-]{1,40})"', re.IGNORECASE)
_TEXT_KEYS: Final = _phrases(
    "message | msg | fault_message | error | err | cause | reason | detail | details"
)
"""Read first, in this order: a structured log line holds the component in one field and the error
number in another, and its fields may be sorted by name."""


def _parse(text: str) -> object:
    """The JSON value that the text is, or None.

    Not strict: Firecracker's answer to a request that is too large has a bare line break inside a
    string."""
    stripped = text.strip().lstrip("\ufeff").strip()
    if not stripped or stripped[0] not in '{["':
        return None
    try:
        value: object = json.loads(stripped, strict=False)
    except (ValueError, RecursionError):
        return None
    return value


def _embedded(text: str) -> Iterator[dict[str, object]]:
    """JSON objects inside a text, such as a report behind the prefix of a log line."""
    decoder = json.JSONDecoder(strict=False)
    place = text.find("{")
    for _ in range(_MAX_NESTED):
        if place < 0:
            return
        end = place + 1
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            pass
        else:
            yield value
        place = text.find("{", end)


def _text_first(field: tuple[str, object]) -> int:
    key = field[0].casefold()
    return _TEXT_KEYS.index(key) if key in _TEXT_KEYS else len(_TEXT_KEYS)


def _strings(value: object) -> list[str]:
    """All texts in a JSON value, those of a message first; its other values say nothing."""
    found: list[str] = []
    waiting: list[object] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, list):
            waiting.extend(reversed(item))
        elif isinstance(item, dict):
            fields = sorted(item.items(), key=_text_first)
            waiting.extend(entry for _, entry in reversed(fields))
    return found


def _claim(code: object) -> FailureClass | None:
    """The class that a code names, however it is spelled: `CPU_INCOMPATIBLE`, `cpuIncompatible`."""
    if not isinstance(code, str) or len(code) > 64:
        return None
    return _CODES.get(re.sub(r"[^a-z]", "", code.lower()))


def _declared(failure_class: FailureClass, code: str, message: str) -> _Finding:
    code = _flatten(code)
    said = _flatten(message)[:_MAX_SHOWN]
    why = f'the runner reported the code "{code}"' + (f': "{said}"' if said else "")
    inner = _read_text(message).classification
    if inner.failure_class is failure_class:
        found = Classification(failure_class, inner.component, why, inner.evidence)
    else:
        found = Classification(failure_class, "", why, code)
    return _Finding(found, rank=_DECLARED)


def _read_object(report: dict[str, object], depth: int) -> _Finding:
    """A JSON object: its code decides if it is a class of ours, else its texts do."""
    fields = {key.casefold(): entry for key, entry in report.items()}
    code = fields.pop("code", None)
    claim = _claim(code)
    if claim is not None and claim not in _NO_CLAIM:
        return _declared(claim, str(code), ": ".join(_strings(fields)))

    findings = [_read_texts(_strings(fields), depth)]
    if depth < _MAX_DEPTH:
        nested = [entry for entry in fields.values() if isinstance(entry, dict)]
        findings += [_read_object(entry, depth + 1) for entry in nested[:_MAX_NESTED]]
    best = _strongest(findings)
    if best.classification.failure_class is not FailureClass.UNKNOWN:
        return best
    status = fields.get("http_status")
    if isinstance(status, int) and 200 <= status < 300:
        why, evidence = f"the load was answered with {status}", str(status)
    elif claim is FailureClass.NONE:
        evidence = _flatten(str(code))
        why = f'the runner reported the code "{evidence}"'
    else:
        return best
    return _Finding(Classification(FailureClass.NONE, "", why, evidence), rank=Rank.WARNING)


def _read_texts(texts: list[str], depth: int) -> _Finding:
    """Texts of one JSON value: together, as a cause may be spread over them, and unpacked."""
    findings = [_read_text(": ".join(texts))]
    packed = [text for text in texts if text.lstrip()[:1] in ("[", '"') or "{" in text]
    findings += [_read(text, depth + 1) for text in packed[:_MAX_NESTED]]
    return _strongest(findings)


def _read(text: str, depth: int) -> _Finding:
    if depth >= _MAX_DEPTH:
        return _read_text(text)
    value = _parse(text)
    if isinstance(value, dict):
        return _read_object(value, depth)
    if isinstance(value, str):
        return _read(value, depth + 1)
    if isinstance(value, list):
        return _read_texts(_strings(value), depth)
    findings = [_read_text(text)]
    findings += [_read_object(report, depth + 1) for report in _embedded(text)]
    # kubelet cuts a long message, and what is left is no JSON; the code stands at its front.
    flat = _flatten(text)
    cut = _CUT_CODE.search(flat)
    claim = _claim(cut.group(1)) if cut else None
    if cut and claim is not None and claim not in _NO_CLAIM:
        findings.append(_declared(claim, cut.group(1), flat[cut.end() :]))
    return _strongest(findings)


# --------------------------------------------------------------------------------- the interface


def classify(text: str) -> Classification:
    """The class of what a runner left as its termination message (domain.md section 11).

    JSON with a `code` that is one of our classes is believed; else the message decides. Never
    raises, and its time grows with the length of the text, up to `MAX_TEXT`.
    """
    return _read(_bounded(text), 0).classification


_NOT_ADMITTED: Final = frozenset(
    _phrases(
        "nodeaffinity | unexpectedadmissionerror | topologyaffinityerror | smtalignmenterror"
        " | nodename | nodeports | nodeunschedulable | tainttoleration | apparmor"
        " | node(s) had taints that the pod didn't tolerate | sysctlforbidden | podosnotsupported"
        " | podosselectornodelabeldoesnotmatch | initcontainerrestartpolicyforbidden"
        " | supplementalgroupspolicynotsupported | podlevelresourcesnotsupported"
        " | podfeatureunsupported | invalidnodeinfo | unknownreason"
        " | unexpectedpredicatefailuretype | volumeattachmentlimitexceeded"
    )
)
"""Reasons with which kubelet refuses a pod that was bound to its node. Source: its admit handlers.
`OutOf<resource>` goes by its prefix, for the resource may be any extended one."""

_TAKEN_AWAY: Final[Mapping[str, str]] = {
    "evicted": "eviction",
    "preempting": "preemption",
    "preempted": "preemption",
    "nodeshutdown": "node shutdown",
    "shutdown": "node shutdown",
    "terminated": "node shutdown",
    "nodelost": "node loss",
}
"""Reasons of a pod that Kubernetes ended. Source: kubelet's eviction, preemption and node shutdown
managers, the node controller. Not `DeadlineExceeded`: the pod's own spec says that."""


def _disruption(pod_reason: str, disruption_target: str | None) -> Classification | None:
    """What Kubernetes did to the pod, if it did anything."""
    reason = _flatten(pod_reason)
    folded = reason.casefold()
    if folded in _NOT_ADMITTED or (folded.startswith("outof") and folded != "outof"):
        component, what = "kubelet admission", "kubelet did not admit the pod"
    elif folded in _TAKEN_AWAY:
        component, what = _TAKEN_AWAY[folded], "Kubernetes took the pod away"
    elif disruption_target is not None:
        component, what = "disruption", "Kubernetes took the pod away"
        reason = _flatten(f"DisruptionTarget {disruption_target}")
    else:
        return None
    reason = reason[:_MAX_SHOWN]
    why = f'{what}: "{reason}"'
    return Classification(FailureClass.DISRUPTED, component, why, reason)


def classify_end(
    *, pod_reason: str, disruption_target: str | None, termination_message: str | None
) -> Classification:
    """The class of a restore pod's end (domain.md section 11).

    `pod_reason` is status.reason of the pod ("" if it has none), `disruption_target` the reason of
    a DisruptionTarget condition that is True (None if there is no such condition).

    1. The runner's own word, if it names a cause: Firecracker refused the load before the pod was
       taken away, and that it was taken away does not make the snapshot fit.
    2. What Kubernetes did. It explains a request that was given up or refused, a runner that was
       silent and a text that was cut, so it outranks `transport`, `unknown` and `none`.
    3. What is left of the runner's word. A warning ends no pod, so `none` becomes `unknown`.
    """
    said = classify(termination_message or "")
    if said.failure_class not in (*_NO_CLAIM, FailureClass.TRANSPORT):
        return said
    disrupted = _disruption(pod_reason, disruption_target)
    if disrupted is not None:
        return disrupted
    if said.failure_class is FailureClass.NONE:
        why = f"the pod ended, and its report names no failure: {said.why}"
        return Classification(FailureClass.UNKNOWN, "", why, "")
    return said
