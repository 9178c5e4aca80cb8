"""One real node as processes: a mount namespace, containerd in it, a kubelet in it."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.realnode.available import BUSYBOX
from tests.support.realnode.config import cni_conflist, containerd_toml, kubelet_yaml
from tests.support.realnode.image import IMAGE, write_image
from tests.support.testbed import (
    ComponentDiedError,
    ControlPlane,
    ensure_module,
    wait_until,
)
from tests.support.testbed.gomodules import CONTAINERD, KUBELET
from tests.support.testbed.nodes import is_settled
from tests.support.testbed.ports import free_ports
from tests.support.testbed.processes import Component, Processes

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Where every kubelet has its plugins, whatever its own folder: so each node is given a mount
namespace in which this is a folder of its own."""

START_SECONDS = 90.0
STOP_SECONDS = 20.0
STATUS_SECONDS = 2
"""How often these kubelets report, so that tests need not wait for the usual 10 s."""


class RealNode:
    """A kubelet and a containerd of their own, which act with the rights of `admin`.

    A context manager. `folder` must be new or empty, with a short path: sockets are made in it.
    `images` are archives, such as tests.support.image makes, that its pods find beside IMAGE.
    """

    def __init__(
        self, plane: ControlPlane, name: str, *, folder: Path, images: Sequence[Path] = ()
    ) -> None:
        self.plane = plane
        self.name = name
        self.folder = folder
        self.plugins = folder / "plugins"
        """The node's device-plugins folder, as seen from outside of its namespace."""
        self.path = f"/api/v1/nodes/{name}"
        self._processes = Processes(folder, remove_root=False)
        self._holder = 0
        self._port = free_ports(1)[0]
        self._images = tuple(images)
        self._containerd = ensure_module(CONTAINERD)
        self._kubelet = ensure_module(KUBELET)

    def __enter__(self) -> "RealNode":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Whole node

    def start(self) -> None:
        """Start containerd, import the images, start the kubelet."""
        for path in (self.plugins, self.folder / "cni", self.folder / "kubelet"):
            path.mkdir(parents=True, exist_ok=True)
        DEVICE_PLUGINS.mkdir(parents=True, exist_ok=True)
        (self.folder / "containerd.toml").write_text(containerd_toml(self.folder))
        conflist = cni_conflist(
            services=self.plane.services, addresses=self.plane.root / "addresses"
        )
        (self.folder / "cni" / "pods.conflist").write_text(conflist)
        self._hold_namespace()
        self._start(
            "containerd",
            [str(self._containerd / "containerd"), "--config", f"{self.folder}/containerd.toml"],
            rank=2,
        )
        socket = self.folder / "c.sock"
        wait_until(socket.exists, what="containerd listens", timeout=START_SECONDS)
        image = self.folder / "image.tar"
        write_image(image, busybox=BUSYBOX)
        for archive in (image, *self._images):
            wait_until(
                lambda archive=archive: self.ctr("images", "import", str(archive)).returncode == 0,
                what=f"{archive.name} is imported",
                timeout=START_SECONDS,
            )
        self.start_kubelet()

    def stop(self) -> None:
        """End the kubelet, every container, containerd, and the namespace with its mounts."""
        if "kubelet" in self._processes.names:
            self._processes.stop("kubelet")
        if "containerd" in self._processes.names:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._end_containers()
        self._processes.stop_all()

    def wait_ready(self) -> None:
        """Wait until pods can be bound to the node."""
        wait_until(
            lambda: is_settled(self.get()), what=f"{self.name} is ready", timeout=START_SECONDS
        )

    def get(self) -> dict[str, Any]:
        """The Node object; empty while there is none."""
        for node in self.plane.api().items("/api/v1/nodes"):
            if node["metadata"]["name"] == self.name:
                return node
        return {}

    # Kubelet

    def start_kubelet(self) -> None:
        config = self.folder / "kubelet.yaml"
        text = kubelet_yaml(
            socket=self.folder / "c.sock", port=self._port, status_seconds=STATUS_SECONDS
        )
        config.write_text(text)
        self._start(
            "kubelet",
            [
                str(self._kubelet / "kubelet"),
                f"--config={config}",
                f"--kubeconfig={self.plane.kubeconfig}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'pki'}",
                f"--hostname-override={self.name}",
                "--v=2",
            ],
            rank=1,
        )

    def stop_kubelet(self) -> None:
        """End it as systemd would. Containers go on."""
        self._processes.stop("kubelet")

    def restart_kubelet(self, *, forget_checkpoint: bool = False) -> None:
        """Stop and start it; `forget_checkpoint` removes what it knows of devices meanwhile."""
        self.stop_kubelet()
        if forget_checkpoint:
            (self.plugins / "kubelet_internal_checkpoint").unlink(missing_ok=True)
        self.start_kubelet()

    def forget_plugins(self) -> None:
        """Empty its folder of plugins, checkpoint included, as it is on another machine."""
        for path in self.plugins.iterdir():
            path.unlink()

    def kubelet_is_up(self) -> bool:
        """The newest kubelet has reached its main loop: it has made its socket anew."""
        return (self.plugins / "kubelet.sock").exists()

    # Containers

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._containerd / "ctr"), "--address", f"{self.folder}/c.sock"]
        return subprocess.run(
            self._inside([*command, "--namespace", "k8s.io", *arguments]),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def running(self) -> dict[str, int]:
        """Container id and process id of each running container."""
        lines = self.ctr("tasks", "list").stdout.splitlines()[1:]
        rows = [line.split() for line in lines]
        return {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[2] == "RUNNING"}

    def _end_containers(self) -> None:
        for identifier in self.running():
            self.ctr("tasks", "kill", "--all", "--signal", "SIGKILL", identifier)
        deadline = time.monotonic() + STOP_SECONDS
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.1)
        for line in self.ctr("tasks", "list").stdout.splitlines()[1:]:
            self.ctr("tasks", "delete", "--force", line.split()[0])

    # Processes

    def log(self, name: str) -> Path:
        return self._processes.log(name)

    def died(self) -> str:
        """Which program ended by itself, with its last lines; empty when none did."""
        try:
            self._processes.check()
        except ComponentDiedError as error:
            return str(error)
        return ""

    def _hold_namespace(self) -> None:
        """A process whose mount namespace has this node's folder where kubelets look."""
        ready = self.folder / "namespace"
        script = (
            f"mount --make-rshared / && mount --bind {self.plugins} {DEVICE_PLUGINS} && "
            f"touch {ready} && exec tail -f {ready}"
        )
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        self._processes.start(Component(name="namespace", rank=3, command=command))
        wait_until(ready.exists, what="the node's mount namespace", timeout=START_SECONDS)
        self._holder = int(self._processes.pid("namespace"))

    def _inside(self, command: list[str]) -> list[str]:
        programs = f"{self._containerd}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        namespace = f"--mount=/proc/{self._holder}/ns/mnt"
        return ["nsenter", namespace, "--", "env", f"PATH={programs}", *command]

    def _start(self, name: str, command: list[str], *, rank: int) -> None:
        self._processes.start(Component(name=name, rank=rank, command=self._inside(command)))

    def remove(self) -> None:
        """Remove its folder; mounts that a killed kubelet left went with the namespace."""
        shutil.rmtree(self.folder, ignore_errors=True)


def idle_pod(name: str, *, node: str, slots: int = 0, resource: str) -> dict[str, Any]:
    """A pod that runs on `node` until it is ended, on the host's network."""
    limits = {"limits": {resource: str(slots)}} if slots else {}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "runner",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "resources": limits,
                }
            ],
        },
    }
