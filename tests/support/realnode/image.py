"""The one image of real nodes, made without a registry: busybox that does nothing until told to."""

import tarfile
import tempfile
from pathlib import Path

from tests.support.image.archive import add_file, add_folder, write_archive

IMAGE = "sandbox-restore.test/idle:1"
"""For pause containers and for the pods of tests alike."""

_IDLE = "trap 'exit 0' TERM INT; while :; do /bin/busybox sleep 3600 & wait $!; done"
_FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp", "var", "var/run")


def write_image(path: Path, *, busybox: Path) -> None:
    """Write the image as `docker save` would."""
    config = {"Entrypoint": ["/bin/busybox", "sh", "-c", _IDLE], "Env": ["PATH=/bin"]}
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer.tar"
        with tarfile.open(layer, mode="w") as tree:
            for name in _FOLDERS:
                add_folder(tree, name)
            add_file(tree, "bin/busybox", busybox.read_bytes(), mode=0o755)
        write_archive(path, tag=IMAGE, layers=[layer], config=config)
