"""What goes into the image: copies of this machine's Python, its libraries, and the package.

The tree is laid out as one that `make install` below /usr/local would leave. Programs that are
linked against glibc only; on another system the copy says so.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.support.testbed.errors import TestbedError

ROOT: Final = Path(__file__).parents[3]
LOCK: Final = ROOT / "requirements" / "runtime.lock"
PACKAGE: Final = ROOT / "operator" / "sandbox_restore"

VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES: Final = "usr/local/lib/shared"
"""Where the shared libraries are; LD_LIBRARY_PATH of the image names it."""
SITE: Final = f"usr/local/lib/{VERSION}/site-packages"
COMMAND: Final = "usr/local/bin/sandbox-restore"

_LEFT_OUT: Final = (
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "_tkinter*",
    "__phello__",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "*.a",
)
"""Of the standard library: what nothing here imports."""

_ACCOUNTS: Final = {
    "etc/passwd": "root:x:0:0:root:/:/bin/false\nnonroot:x:65532:65532:nonroot:/tmp:/bin/false\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}

_START: Final = f"""\
#!/usr/local/bin/{VERSION}
import sys
from sandbox_restore.cli.main import main
sys.exit(main())
"""


def dependencies() -> list[importlib.metadata.Distribution]:
    """The dependencies of requirements/runtime.lock, as installed. Raises TestbedError.

    One that the lock has for other systems alone is left out.
    """
    found, missing = [], []
    for line in LOCK.read_text().splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(;.*?)?\s*\\?$", line)
        if match is None or "sys_platform == 'win32'" in (match[3] or ""):
            continue
        try:
            found.append(importlib.metadata.distribution(match[1]))
        except importlib.metadata.PackageNotFoundError:
            missing.append(match[1])
    if missing or not found:
        raise TestbedError(f"not installed: {', '.join(missing) or LOCK}; run: make install")
    return found


def lay_python(root: Path) -> None:
    """The lower layer: interpreter, standard library, dependencies, shared libraries."""
    for folder in ("dev", "proc", "sys", "tmp", "var", "var/run", "etc", "usr/local/bin"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name, text in _ACCOUNTS.items():
        (root / name).write_text(text)
    standard = root / "usr/local/lib" / VERSION
    shutil.copytree(
        sysconfig.get_path("stdlib"), standard, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    for distribution in dependencies():
        _copy_distribution(distribution, root / SITE)
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    shutil.copy2(interpreter, root / "usr/local/bin" / VERSION)
    (root / "usr/local/bin/python3").symlink_to(VERSION)
    _copy_libraries(root, interpreter)
    compile_all(root)


def lay_package(root: Path) -> None:
    """The upper layer: the package of this checkout and its command."""
    shutil.copytree(
        PACKAGE, root / SITE / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    command = root / COMMAND
    command.parent.mkdir(parents=True)
    command.write_text(_START)
    command.chmod(0o755)
    compile_all(root)


def compile_all(root: Path) -> None:
    """Byte code that does not look at the dates of its sources: the image is read-only."""
    for compiled in root.rglob("__pycache__"):
        shutil.rmtree(compiled)
    command = [sys.executable, "-m", "compileall", "-qq", "-s", str(root), "-p", "/"]
    command += ["--invalidation-mode", "unchecked-hash", str(root / "usr/local/lib")]
    # A file that does not compile is one that nobody imports.
    subprocess.run(command, check=False)


def _copy_distribution(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Its files in site-packages; its programs, beside it, are not needed."""
    for file in distribution.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(str(file.locate())), target)


def _copy_libraries(root: Path, interpreter: Path) -> None:
    """Every library from outside of `root` that a program or library needs, and the loader."""
    folder = root / LIBRARIES
    folder.mkdir(parents=True)
    programs = [interpreter, *(path for path in root.rglob("*.so*") if path.is_file())]
    for name, path in _needed(programs):
        if path.is_relative_to(root):
            continue
        # The loader is asked for by its path, a library by its name.
        target = root / name.lstrip("/") if name.startswith("/") else folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(path.resolve(), target)


def _needed(programs: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Name and place of each library, as this machine's loader finds it. Raises TestbedError."""
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    if "libc.so.6" not in done.stdout:
        raise TestbedError(f"an image needs glibc and ldd here: {done.stderr.strip()[:200]}")
    for line in dict.fromkeys(done.stdout.splitlines()):
        match = re.match(r"\s+(\S+)(?: => (\S+))? \(0x[0-9a-f]+\)$", line)
        if match is None:
            if line.endswith("not found"):
                raise TestbedError(f"a library is missing here: {line.strip()}")
            continue
        place = match[2] or match[1]
        if place.startswith("/"):
            yield match[1], Path(place)
