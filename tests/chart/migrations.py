"""Plays the node of migration pods: the real command, with the URL of the Secret the pod names."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.helm import NAMESPACE
from tests.support.testbed import ControlPlane

_ROOT = Path(__file__).parents[2]
_PERIOD = 0.2
"""Seconds between two looks for pods."""


class Migrations:
    """While it is entered, each migration pod of the namespace runs and ends as the command does.

    `ran` has the exit code of each, `reached` the ports that the network policies let it reach;
    `dsn` of Secrets may name a Unix socket of this machine.
    """

    def __init__(self, plane: ControlPlane, *, namespace: str = NAMESPACE) -> None:
        self._api = plane.api()
        self._namespace = namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, name="migrations")
        self.ran: list[int] = []
        self.reached: list[set[int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _play(self) -> None:
        while not self._stop.wait(_PERIOD):
            selector = "app.kubernetes.io/component=migration"
            for pod in list(self._api.items(self._pods, labelSelector=selector)):
                if pod["status"]["phase"] == "Pending":
                    self._run(pod)

    def _run(self, pod: dict[str, Any]) -> None:
        self.reached.append(self._reached(pod))
        code = self._migrate(pod)
        self.ran.append(code)
        phase = "Failed" if code else "Succeeded"
        path = f"{self._pods}/{pod['metadata']['name']}/status"
        self._api.merge(path, {"status": {"phase": phase}})

    def _reached(self, pod: dict[str, Any]) -> set[int]:
        labels = pod["metadata"]["labels"].items()
        path = f"/apis/networking.k8s.io/v1/namespaces/{self._namespace}/networkpolicies"
        return {
            port["port"]
            for policy in self._api.items(path)
            if policy["spec"]["podSelector"]["matchLabels"].items() <= labels
            for rule in policy["spec"].get("egress", ())
            for port in rule["ports"]
        }

    def _migrate(self, pod: dict[str, Any]) -> int:
        (container,) = pod["spec"]["containers"]
        secret = next(v["secret"] for v in pod["spec"]["volumes"] if v["name"] == "database")
        path = f"/api/v1/namespaces/{self._namespace}/secrets/{secret['secretName']}"
        url = base64.b64decode(self._api.get(path)["data"][secret["items"][0]["key"]])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "url")
            file.write_bytes(url)
            given = {e["name"]: e["value"] for e in container["env"]}
            given["SPACE_SANDBOX_RESTORE_DATABASE_URL_FILE"] = str(file)
            done = subprocess.run(
                [sys.executable, "-m", "sandbox_restore.cli.main", *container["args"]],
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "PYTHONPATH": str(_ROOT / "operator"),
                    **given,
                },
                capture_output=True,
                check=False,
            )
        return done.returncode
