"""Archives as `docker save` writes them, and the layers in them; the same input, the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(
    path: Path, *, tag: str, layers: Sequence[Path], config: Mapping[str, Any]
) -> None:
    """Write an image of these layers, the lowest first: a configuration, layers, a manifest.

    `config` is what containers of the image run: `Entrypoint`, `Env`, `User` and so on.
    """
    names = [f"{_digest(layer)}.tar" for layer in layers]
    about = {
        "architecture": _ARCH.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": dict(config),
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{name.removesuffix('.tar')}" for name in names],
        },
    }
    text = json.dumps(about).encode()
    about_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": about_name, "RepoTags": [tag], "Layers": names}]
    with tarfile.open(path, "w") as archive:
        add_file(archive, about_name, text)
        for name, layer in zip(names, layers, strict=True):
            with layer.open("rb") as content:
                archive.addfile(_entry(name, size=layer.stat().st_size), content)
        add_file(archive, "manifest.json", json.dumps(manifest).encode())


def write_layer(path: Path, root: Path) -> None:
    """Write the tree below `root` as a layer, everything owned by root and of no date."""
    with tarfile.open(path, "w") as layer:
        for entry in sorted(root.rglob("*")):
            layer.add(entry, str(entry.relative_to(root)), recursive=False, filter=_plain)


def add_file(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    """Add a file with this content."""
    archive.addfile(_entry(name, size=len(content), mode=mode), io.BytesIO(content))


def add_folder(archive: tarfile.TarFile, name: str) -> None:
    """Add an empty folder."""
    entry = _entry(name, mode=0o755)
    entry.type = tarfile.DIRTYPE
    archive.addfile(entry)


def _entry(name: str, *, size: int = 0, mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    # Whoever the container runs as may read it, whatever the umask was here.
    entry.mode |= 0o555 if entry.isdir() or entry.mode & 0o100 else 0o444
    return entry


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
