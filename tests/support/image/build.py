"""Makes layers once per user and writes images of them."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.support.image import archive, rootfs
from tests.support.testbed.build import cache_folder, locked

_KEPT: Final = 8
"""Layers of the package that are kept, newest first: each change of the code makes one."""

_CONFIG: Final = {
    "Env": [
        f"PATH=/{Path(rootfs.COMMAND).parent}:/usr/bin:/bin",
        f"LD_LIBRARY_PATH=/{rootfs.LIBRARIES}",
        f"PYTHONPATH=/{rootfs.SITE}",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
    ],
    "User": "65532:65532",
    "WorkingDir": "/tmp",
    "Cmd": ["sandbox-restore", "--help"],
}


def build_image(tag: str, path: Path) -> None:
    """Write an image of this checkout to `path` under the name `tag`.

    Containers of it run as nobody in particular unless told otherwise, and start with their
    arguments: `sandbox-restore run`, `sandbox-restore node-agent`.

    Raises TestbedError when this machine's Python cannot be copied.
    """
    layers = [
        _layer("python", _python_parts(), rootfs.lay_python),
        _layer("package", _package_parts(), rootfs.lay_package),
    ]
    archive.write_archive(path, tag=tag, layers=layers, config=_CONFIG)


def _layer(name: str, parts: Iterable[bytes], lay: Callable[[Path], None]) -> Path:
    """The layer that is made from these parts, which is kept: another input, another file."""
    digest = hashlib.sha256()
    for part in (*parts, *_makers()):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    folder = cache_folder().parent / "images"
    made = folder / f"{name}-{digest.hexdigest()[:16]}.tar"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock", log=print):
        if made.exists():
            made.touch()
            return made
        with tempfile.TemporaryDirectory(dir=folder) as work:
            root, partial = Path(work) / "root", Path(work) / "layer.tar"
            root.mkdir()
            lay(root)
            archive.write_layer(partial, root)
            shutil.move(partial, made)
        kept = sorted(folder.glob(f"{name}-*.tar"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_KEPT]:
            old.unlink()
    return made


def _makers() -> Iterable[bytes]:
    """What decides how a layer is made."""
    yield Path(rootfs.__file__).read_bytes()
    yield Path(archive.__file__).read_bytes()
    yield f"{sys.version} {sys.base_prefix} {platform.machine()}".encode()


def _python_parts() -> Iterable[bytes]:
    for found in rootfs.dependencies():
        yield f"{found.name}=={found.version}".encode()
        yield (found.read_text("RECORD") or "").encode()


def _package_parts() -> Iterable[bytes]:
    for path in sorted(rootfs.PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(rootfs.PACKAGE)).encode()
            yield path.read_bytes()
