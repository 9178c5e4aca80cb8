"""`node-agent detect`: the value or the reason, for people and for programs."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest
import yaml

from sandbox_restore.cli.main import main

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cpuinfo"
EXPECTED = yaml.safe_load((FIXTURES / "expected.yaml").read_text())


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SPACE_SANDBOX_RESTORE_"):
            monkeypatch.delenv(name)


def detect(*arguments: str) -> int:
    return main(["node-agent", "detect", *arguments])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_json_has_value_reason_and_fields(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = detect("--cpuinfo", str(FIXTURES / name), "-o", "json")
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"value", "reason", "fields"}
    assert document["value"] == EXPECTED[name]["value"]
    assert (document["reason"] is None) == (document["value"] is not None)
    assert code == (0 if document["value"] else 1)


def test_text_is_the_value_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert detect("--cpuinfo", str(FIXTURES / "amd-milan.txt")) == 0
    told = capsys.readouterr()
    assert told.out == "amd-25-1-1\n"
    assert "cpu family: 25" in told.err


def test_another_system_is_told_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert detect() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Linux" in told.err
    assert "Darwin" in told.err


def test_a_saved_file_can_be_read_on_another_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert detect("--cpuinfo", str(FIXTURES / "intel-ice-lake.txt")) == 0
    assert capsys.readouterr().out == "intel-6-106-6\n"


@pytest.mark.parametrize("path", ["/nowhere/cpuinfo", "/", "/dev/zero"])
def test_a_file_that_cannot_be_read_is_exit_code_2(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert detect("--cpuinfo", path, "-o", "json") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["value"] is None
    assert path in document["reason"]


def test_the_kernel_of_a_saved_file_must_be_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPACE_SANDBOX_RESTORE_AGENT_KERNEL_IN_VALUE", "true")
    saved = ["--cpuinfo", str(FIXTURES / "intel-ice-lake.txt")]
    assert detect(*saved) == 1
    assert detect(*saved, "--kernel-release", "6.1.0-13-amd64") == 0
    assert capsys.readouterr().out == "intel-6-106-6-k6.1\n"


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc/cpuinfo is Linux's")
def test_this_machine_has_a_value_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert detect("-o", "json") in (0, 1)
    document = json.loads(capsys.readouterr().out)
    assert (document["value"] is None) == (document["reason"] is not None)


def test_a_wrong_suffix_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPACE_SANDBOX_RESTORE_AGENT_VALUE_SUFFIX", "Firmware 3")
    assert detect() == 2
    assert "SPACE_SANDBOX_RESTORE_AGENT_VALUE_SUFFIX" in capsys.readouterr().err
