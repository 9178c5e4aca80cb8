"""This machine as the agent sees it: its cpuinfo file and its kernel release."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

from sandbox_restore.agent.detect import Detection, Dimensions, detect, not_linux, unreadable

PROC: Final = Path("/proc/cpuinfo")
_LARGEST: Final = 64 * 2**20
"""Bytes: ten times what the kernel writes for 4,096 cores. A device file given by mistake ends."""


def detect_here(
    *, dimensions: Dimensions, path: Path = PROC, kernel_release: str | None = None
) -> Detection:
    """Section 13: what this machine publishes. A saved file may be read on any system.

    The kernel release of this machine goes with its own cpuinfo alone: a saved one may come from
    elsewhere.
    """
    if path == PROC:
        if platform.system() != "Linux":
            return not_linux(platform.system() or "another system")
        kernel_release = kernel_release or platform.release()
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return unreadable(str(path), reason or type(error).__name__)
    if len(content) > _LARGEST:
        return unreadable(str(path), f"it is larger than {_LARGEST} bytes")
    return detect(
        content.decode(errors="replace"), dimensions=dimensions, kernel_release=kernel_release
    )
