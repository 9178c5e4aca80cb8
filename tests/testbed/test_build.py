"""Building: once, in one step, with messages that a person can act on."""

import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.testbed import BuildError, build, ensure_module, gotool
from tests.support.testbed.gomodules import GoModule, GoProgram

DONE = re.compile(r"1/1 nothing: \d+ s")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    if shutil.which("go") is None:
        pytest.skip("no Go on PATH")
    told = subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True, check=True)
    monkeypatch.setenv("GOCACHE", told.stdout.strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return build.cache_folder()


def module(folder: Path, *, body: str = "", free_gb: float = 0.0) -> GoModule:
    """A module whose one program does nothing; `body` is what its `main` does."""
    source = folder / "small"
    source.mkdir(parents=True, exist_ok=True)
    (source / "go.mod").write_text("module small\n\ngo 1.26\n")
    (source / "go.sum").write_text("")
    (source / "main.go").write_text(f"package main\n\nfunc main() {{ {body} }}\n")
    return GoModule(
        name="small",
        programs=(GoProgram("nothing", "."),),
        ldflags="-s -w",
        minutes=1,
        cache_gb=0,
        programs_mb=1,
        free_gb=free_gb,
        folder=folder,
    )


def test_a_program_is_built_once(tmp_path: Path, cache: Path) -> None:
    said: list[str] = []
    small = module(tmp_path)

    folder = ensure_module(small, log=said.append)

    assert (folder / "nothing").stat().st_mode & 0o111
    assert folder.parent.parent == cache
    assert any(DONE.fullmatch(line) for line in said)
    said.clear()
    assert ensure_module(small, log=said.append) == folder
    assert said == []


def test_the_folder_changes_with_what_changes_the_programs(tmp_path: Path) -> None:
    small = module(tmp_path)
    before = small.key()
    assert small.key() == before

    (small.source / "go.sum").write_text("other\n")

    assert small.key() != before


def test_two_builders_do_not_meet(tmp_path: Path) -> None:
    small = module(tmp_path)
    said: list[str] = []
    threads = [
        threading.Thread(target=ensure_module, args=(small,), kwargs={"log": said.append})
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len([line for line in said if DONE.fullmatch(line)]) == 1


def test_a_compiler_error_is_shown_and_nothing_is_left_half_built(
    tmp_path: Path, cache: Path
) -> None:
    broken = module(tmp_path, body="missing()")

    with pytest.raises(BuildError, match=r"(?s)exit code 1.*undefined: missing.*whole output is"):
        ensure_module(broken, log=lambda line: None)

    assert not (cache / broken.key()).exists()


def test_a_full_disk_is_told_before_the_build(tmp_path: Path) -> None:
    greedy = module(tmp_path, free_gb=1e6)

    with pytest.raises(BuildError, match=r"needs 1000000\.0 GB free"):
        ensure_module(greedy, log=lambda line: None)


def test_an_old_go_is_not_taken(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bin" / "go"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho go1.22.3\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    installed = Path("installed")
    monkeypatch.setattr(gotool, "install_go", lambda **_: installed)
    said: list[str] = []

    assert gotool.find_go(cache=cache, log=said.append) == installed
    assert "Go 1.22.3" in said[0]
