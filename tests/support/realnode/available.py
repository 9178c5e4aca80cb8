"""Whether this machine can run real nodes; the one place that says why not."""

import os
import shutil
import sys
from pathlib import Path

CNI = Path("/usr/lib/cni")
"""Where Debian's package containernetworking-plugins puts the plugins."""

BUSYBOX = Path("/bin/busybox")
"""The one program in the pods' image; must be a static one (Debian: busybox-static)."""

_PROGRAMS = {
    "runc": "runc",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "ldd": "libc-bin",
}


def why_not() -> str:
    """Return why no real node can run here, in one line; empty when one can."""
    if sys.platform != "linux":
        return "real nodes need Linux"
    if os.geteuid() != 0:
        return "real nodes need root"
    missing = [package for name, package in _PROGRAMS.items() if shutil.which(name) is None]
    if not all((CNI / name).exists() for name in ("loopback", "ptp", "host-local")):
        missing.append("containernetworking-plugins")
    if not _is_static(BUSYBOX):
        missing.append("busybox-static")
    if missing:
        return f"real nodes need: apt-get install {' '.join(dict.fromkeys(missing))}"
    if not any(Path("/sys/fs/cgroup").glob("*")):
        return "real nodes need cgroups mounted at /sys/fs/cgroup"
    if not _may_connect():
        return "real nodes need the right to make network namespaces and veth (CAP_NET_ADMIN)"
    if not _may_mount():
        return "real nodes need the right to make mount namespaces (CAP_SYS_ADMIN)"
    return ""


def _is_static(program: Path) -> bool:
    """An ELF file that names no loader."""
    try:
        return b"/ld-linux" not in program.read_bytes()
    except OSError:
        return False


def _may_connect() -> bool:
    """A pod's network is a namespace and a cable to the machine's."""
    cable = "ip link add sr0 type veth peer name sr1"
    return os.system(f"unshare --net {cable} >/dev/null 2>&1") == 0


def _may_mount() -> bool:
    return os.system("unshare --mount true 2>/dev/null") == 0
