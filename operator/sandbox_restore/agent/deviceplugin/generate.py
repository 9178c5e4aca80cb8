"""Writes the Python side of v1beta1.proto: `python -m sandbox_restore.agent.deviceplugin.generate`.

`--check` only tells whether the files are what would be written. Needs grpcio-tools, which is a
dependency of development only.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
_MADE: Final = ("v1beta1_pb2.py", "v1beta1_pb2.pyi")


def generated(folder: Path) -> dict[str, str]:
    """The text of each file that protoc makes; `folder` is written to."""
    from grpc_tools import protoc

    arguments = ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}"]
    if protoc.main([*arguments, "v1beta1.proto"]) != 0:
        raise SystemExit("protoc failed")
    return {name: (folder / name).read_text(encoding="utf-8") for name in _MADE}


def main(arguments: list[str]) -> int:
    """Writes the files, or with `--check` compares them: 1 when one is missing or differs."""
    with tempfile.TemporaryDirectory() as folder:
        made = generated(Path(folder))
    if "--check" not in arguments:
        for name, text in made.items():
            (HERE / name).write_text(text, encoding="utf-8")
        return 0
    stale = [
        name
        for name, text in made.items()
        if not (HERE / name).is_file() or (HERE / name).read_text(encoding="utf-8") != text
    ]
    for name in stale:
        command = "python -m sandbox_restore.agent.deviceplugin.generate"
        sys.stderr.write(f"{HERE / name}: not what v1beta1.proto says; run {command}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
