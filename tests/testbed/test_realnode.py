"""Why a machine has no real nodes: told in one place, which `make nodes` and the skips repeat."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from tests.support.realnode import why_not


def test_another_system_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not() == "real nodes need Linux"


def test_a_user_without_rights_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "real nodes need root"


def test_missing_programs_are_told_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    told = why_not()
    assert told.startswith("real nodes need: apt-get install runc util-linux mount iproute2")
