"""helm as tests use it: the one program of the test bed, with nothing of the person who runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.testbed.gomodules import KUBERNETES_VERSION

CHART = Path(__file__).parents[2] / "charts" / "sandbox-restore"
RELEASE = "sandbox-restore"
NAMESPACE = "sandbox-restore-system"
"""Release and namespace that the docs name; with them objects have the names of docs/install."""

Object = dict[str, Any]


class HelmError(AssertionError):
    """helm refused; the text is what it said."""


class Helm:
    """Runs helm; `home` is a folder for its files, `kubeconfig` whom it acts as on a server."""

    def __init__(self, program: Path, *, home: Path, kubeconfig: Path | None = None) -> None:
        self._program = program
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig or home / "no-kubeconfig"),
        }

    def run(self, *args: str, values: Mapping[str, Any] | None = None, timeout: float = 120) -> str:
        """Return what helm printed; `values` go to it as a values file. Raises HelmError."""
        if values is not None:
            args = (*args, "--values", "-")
        done = subprocess.run(
            [str(self._program), *args],
            input=json.dumps(values) if values is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self._environment,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def template(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        chart: Path = CHART,
        release: str = RELEASE,
        namespace: str = NAMESPACE,
    ) -> str:
        """Return what an install with these values would send, hooks included."""
        where = ("--namespace", namespace, "--kube-version", KUBERNETES_VERSION)
        return self.run("template", release, str(chart), *where, values=values or {})

    def objects(self, values: Mapping[str, Any] | None = None, **where: Any) -> list[Object]:
        """Return the objects of `template`."""
        return [found for found in yaml.safe_load_all(self.template(values, **where)) if found]


def pick(objects: list[Object], kind: str, name: str) -> Object:
    """Return the one object of this kind and name."""
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found
