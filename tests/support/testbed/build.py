"""Builds the programs once per user and finds them again at once."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.support.testbed.errors import BuildError
from tests.support.testbed.gomodules import (
    BUILD_ENVIRONMENT,
    BUILD_FLAGS,
    CONTROLPLANE,
    HELM,
    KWOK,
    GoModule,
    GoProgram,
)
from tests.support.testbed.gotool import find_go
from tests.support.testbed.programs import Programs

HEARTBEAT_SECONDS = 25.0
"""How often a build that goes on says so."""

_ERROR_LINES = 15

Log = Callable[[str], None]


def cache_folder() -> Path:
    """Return the folder that holds the built programs of this user, whatever the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sandbox-restore" / "testbed"


def ensure_built(*, log: Log = print) -> Programs:
    """Return the programs of a control plane, which are built when they are not there yet.

    `log` gets a line at a time of what is built and how far it is; nothing when nothing is to do.
    Raises BuildError when a program cannot be built.
    """
    control_plane = ensure_module(CONTROLPLANE, log=log)
    kwok = ensure_module(KWOK, log=log)
    return Programs(
        etcd=control_plane / "etcd",
        kubectl=control_plane / "kubectl",
        kube_apiserver=control_plane / "kube-apiserver",
        kube_scheduler=control_plane / "kube-scheduler",
        kube_controller_manager=control_plane / "kube-controller-manager",
        kwok=kwok / "kwok",
    )


def ensure_helm(*, log: Log = print) -> Path:
    """Return the program helm, which is built when it is not there yet; errors as above."""
    return ensure_module(HELM, log=log) / "helm"


def ensure_module(module: GoModule, *, log: Log = print) -> Path:
    """Return the folder with the programs of `module`, which are built when they are not there.

    Two builders at a time do not meet: the second waits and finds what the first has built.
    Raises BuildError when the disk is too full, there is no Go, or the compiler fails.
    """
    cache = cache_folder()
    built = cache / module.key()
    if built.exists():
        return built / "bin"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{module.name}.lock", log=log):
        if not built.exists():
            _build(module, cache=cache, log=log)
    return built / "bin"


@contextlib.contextmanager
def locked(path: Path, *, log: Log) -> Iterator[None]:
    """Hold the lock file `path`, which the system lets go when this process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"another process builds here ({path}); waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(module: GoModule, *, cache: Path, log: Log) -> None:
    """Build all programs of `module` beside their place, then move them there in one step."""
    go = find_go(cache=cache, log=log)
    environment = {**os.environ, **BUILD_ENVIRONMENT}
    _check_disk(module, cache=cache, go_cache=_go_cache(go, environment))
    names = ", ".join(program.name for program in module.programs)
    log(
        f"building {names} from source, once for this user: about {module.minutes} min on 2 cores, "
        f"{module.cache_gb:g} GB of Go build cache, {module.programs_mb} MB of programs in {cache}"
    )
    full_log = cache / f"{module.key()}.log"
    partial = cache / f"{module.key()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with full_log.open("w") as output:
        for number, program in enumerate(module.programs, start=1):
            label = f"{number}/{len(module.programs)} {program.name}"
            command = [
                str(go),
                "build",
                *BUILD_FLAGS,
                f"-tags={module.tags}",
                f"-ldflags={module.ldflags}",
                f"-o={partial / 'bin' / program.name}",
                program.package,
            ]
            began = time.monotonic()
            process = subprocess.Popen(
                command, cwd=module.source, env=environment, stdout=output, stderr=output
            )
            code = _wait(process, label=label, log=log)
            if code:
                raise _failure(program, code=code, full_log=full_log)
            log(f"{label}: {time.monotonic() - began:.0f} s")
    partial.rename(cache / module.key())


def _wait(process: subprocess.Popen[bytes], *, label: str, log: Log) -> int:
    """Wait for the compiler and say now and then that it works; end it when interrupted."""
    began = time.monotonic()
    try:
        while True:
            try:
                return process.wait(timeout=HEARTBEAT_SECONDS)
            except subprocess.TimeoutExpired:
                log(f"{label}: still building after {time.monotonic() - began:.0f} s")
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _failure(program: GoProgram, *, code: int, full_log: Path) -> BuildError:
    """Return the error for a compiler that failed: its last lines, and what to do."""
    lines = full_log.read_text(errors="replace").splitlines()
    tail = "\n  ".join(lines[-_ERROR_LINES:])
    return BuildError(
        f"go build of {program.package} failed (exit code {code}):\n  {tail}\n"
        f"The whole output is in {full_log}; mend what it says (memory, disk, module proxy) and "
        "run the same again: what is compiled already is kept."
    )


def _go_cache(go: Path, environment: Mapping[str, str]) -> Path:
    """Return the folder of Go's build cache."""
    told = subprocess.run(
        [str(go), "env", "GOCACHE"], capture_output=True, text=True, env=environment, check=False
    ).stdout.strip()
    return Path(told) if told else Path.home()


def _check_disk(module: GoModule, *, cache: Path, go_cache: Path) -> None:
    """Raise BuildError when there is not enough room for a cold build.

    What Go's build cache holds already is counted as room, up to what this module fills.
    """
    held = _size_gb(go_cache)
    needed = module.free_gb - min(held, module.cache_gb)
    for folder in (cache, go_cache):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free / 1e9
        if free < needed:
            raise BuildError(
                f"building {module.name} needs {needed:.1f} GB free for {folder}, there are "
                f"{free:.1f} GB; free some, or point XDG_CACHE_HOME and GOCACHE to another disk"
            )


def _size_gb(folder: Path) -> float:
    """Return the size of all files below `folder`, which others may change meanwhile."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += file.lstat().st_size
    return size / 1e9
