"""The one image of real nodes, made without a registry: busybox that does nothing until told to."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "sandbox-restore.test/idle:1"
"""For pause containers and for the pods of tests alike."""

_IDLE = "trap 'exit 0' TERM INT; while :; do /bin/busybox sleep 3600 & wait $!; done"
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(path: Path, *, busybox: Path) -> None:
    """Write the image as `docker save` would: a configuration, one layer, a manifest."""
    layer = _layer(busybox)
    config = {
        "architecture": _ARCH.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sh", "-c", _IDLE], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as image:
        _add(image, name, text)
        _add(image, "layer.tar", layer)
        _add(image, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp", "var", "var/run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
