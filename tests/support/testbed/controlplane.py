"""A real Kubernetes control plane on this machine, with simulated nodes."""

import contextlib
import os
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType

from tests.support.testbed import components
from tests.support.testbed.api import Api
from tests.support.testbed.components import Layout, Ports
from tests.support.testbed.credentials import (
    ADMIN,
    User,
    component_users,
    default_users,
    write_credentials,
)
from tests.support.testbed.ending import Ending
from tests.support.testbed.errors import ApiError, DeadlineError, TestbedError
from tests.support.testbed.nodes import (
    HEARTBEAT_LABEL,
    NodeSpec,
    is_settled,
    node_manifest,
    ready_condition,
)
from tests.support.testbed.polling import wait_until
from tests.support.testbed.ports import LOOPBACK, free_ports
from tests.support.testbed.processes import Processes
from tests.support.testbed.programs import Programs

START_SECONDS = 120.0
"""How long the control plane may take to start; it takes 4 s on two cores, more on busy ones."""

NODE_GRACE_SECONDS = 50.0
"""Kubernetes' own default for the time after which a silent node is not ready."""

_NODE_WRITERS = 8


class ControlPlane:
    """A running control plane; a context manager that ends it.

    `root` is its folder, `server` the URL of its API server, `ca` the certificate that signed the
    server's, `kubeconfig` the file of the user `admin`, who may do everything. `services` are the
    addresses of services, `api_service` that of the service `kubernetes`, where nothing listens.
    """

    @classmethod
    def start(
        cls,
        programs: Programs,
        *,
        root: Path | None = None,
        kwok: bool = True,
        audit: bool = False,
        users: Sequence[User] = (),
        node_grace: float = NODE_GRACE_SECONDS,
        controllers: bool = True,
    ) -> "ControlPlane":
        """Start etcd, API server, scheduler, controller manager and kwok; return once all work.

        - `root`: a folder that is empty or does not exist, and is kept; without it, a temporary
          one that is removed at the end.
        - `kwok`: renew the leases of simulated nodes. Without it they are lost after `node_grace`.
        - `audit`: log every request's metadata to `audit_log`.
        - `users`: users beside `admin`, `operator`, `viewer` and `platform`.
        - `node_grace`: seconds without a heartbeat after which a node's Ready turns Unknown;
          heartbeats come five times as often. For thousands of nodes choose 600 or more: each
          heartbeat is a write.
        - `controllers`: run the controller manager. Without it, which also means without kwok,
          nodes and pods stay as they are posted: no taint on a new node, no service account, no
          garbage collection. That is for measurements with 10,000 nodes and more, which the
          controllers would take minutes to get used to.

        Raises ComponentDiedError when a program ends by itself, TestbedError when the folder
        cannot be used or something does not work within START_SECONDS. Nothing is left running.
        """
        folder, is_temporary = _folder(root)
        processes = Processes(folder, remove_root=is_temporary)
        try:
            ports = Ports(**dict(zip(Ports.__annotations__, free_ports(6), strict=True)))
            server = f"https://{LOOPBACK}:{ports.apiserver}"
            everyone = (*default_users(), *users, *component_users())
            layout = Layout(
                programs=programs,
                root=folder,
                ports=ports,
                credentials=write_credentials(
                    folder / "pki", server=server, service=ports.api_service, users=everyone
                ),
                node_grace=node_grace,
                audit=audit,
                controllers=controllers,
            )
            plane = cls(layout, processes=processes)
            plane._start_all(kwok=kwok)
        except BaseException:
            processes.stop_all()
            raise
        return plane

    def __init__(self, layout: Layout, *, processes: Processes) -> None:
        """Take over the processes of a control plane; `ControlPlane.start` is the way to one."""
        self.root = layout.root
        self.server = f"https://{LOOPBACK}:{layout.ports.apiserver}"
        self.ca = layout.credentials.ca
        self.kubeconfig = layout.credentials.kubeconfig(ADMIN)
        self.audit_log = layout.audit_log
        self.services = layout.ports.services
        self.api_service = layout.ports.api_service
        self._layout = layout
        self._processes = processes
        self._tls = ssl.create_default_context(cafile=str(self.ca))
        self._apis: dict[str, Api] = {}
        self._admin = self.api()

    def __enter__(self) -> "ControlPlane":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything, the API server before etcd; remove the folder if it was a temporary one.

        A second call does nothing.
        """
        for api in self._apis.values():
            api.close()
        self._processes.stop_all()

    def detach(self) -> list[Ending]:
        """Leave everything running when this process ends; return what `ending.end_all` needs."""
        return self._processes.release()

    # Users

    def kubeconfig_for(self, user: str) -> Path:
        """Return the kubeconfig file of `user`, who logs in with a token.

        Raises TestbedError when the API server was not told of the user at its start.
        """
        return self._layout.credentials.kubeconfig(user)

    def token_for(self, user: str) -> str:
        """Return the bearer token of `user`; errors as for `kubeconfig_for`."""
        return self._layout.credentials.user(user).token

    def api(self, *, user: str = ADMIN) -> Api:
        """Return the client of the API server that acts as `user`, the same one at each call.

        Errors as for `kubeconfig_for`.
        """
        if user not in self._apis:
            self._apis[user] = Api(self.server, ca=self.ca, token=self.token_for(user))
        return self._apis[user]

    def kubectl(
        self,
        *args: str,
        stdin: str | None = None,
        check: bool = True,
        user: str = ADMIN,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as `user`; `timeout` is seconds.

        Raises TestbedError when it takes too long or, with `check`, when it fails.
        """
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.root),
            "KUBECONFIG": str(self.kubeconfig_for(user)),
        }
        try:
            done = subprocess.run(
                [str(self._layout.programs.kubectl), *args],
                input=stdin,
                stdin=None if stdin is not None else subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TestbedError(f"kubectl {' '.join(args)}: no end after {timeout:g} s") from error
        if check and done.returncode:
            words = done.stderr.strip() or done.stdout.strip()
            raise TestbedError(f"kubectl {' '.join(args)}: exit code {done.returncode}: {words}")
        return done

    # Nodes

    def add_nodes(self, specs: Iterable[NodeSpec]) -> None:
        """Create simulated nodes; `wait_nodes_ready` waits until pods can be bound to them.

        Raises ApiError when one of them cannot be created, such as one that is there already.
        """
        now = datetime.now(UTC)
        with ThreadPoolExecutor(_NODE_WRITERS) as pool:
            pending = [
                pool.submit(self._admin.post, "/api/v1/nodes", node_manifest(spec, now=now))
                for spec in specs
            ]
            try:
                for made in pending:
                    made.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def wait_nodes_ready(
        self, *, timeout: float = 30.0, names: Collection[str] | None = None
    ) -> None:
        """Wait until the nodes are Ready and free of the not-ready taint.

        `names` are the nodes to wait for; without it, every node there is. `timeout` is seconds.
        Raises DeadlineError naming some of the nodes that are not.
        """
        waiting: list[str] = []

        def settled() -> bool:
            settled_by_name = {
                node["metadata"]["name"]: is_settled(node)
                for node in self._admin.items("/api/v1/nodes")
            }
            wanted = settled_by_name if names is None else names
            waiting[:] = [name for name in wanted if not settled_by_name.get(name)]
            return not waiting

        try:
            wait_until(settled, what="nodes are ready", timeout=timeout)
        except DeadlineError as error:
            shown = ", ".join(waiting[:5])
            raise DeadlineError(f"{error}; {len(waiting)} are not: {shown}") from error

    def set_node_ready(self, name: str, *, ready: bool) -> None:
        """Set a node's Ready condition; it stays so, and the heartbeats of the node go on.

        The node lifecycle controller then sets or takes off the node's not-ready taints.
        """
        condition = ready_condition(ready=ready, now=datetime.now(UTC))
        self._admin.strategic(
            f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}}
        )

    def silence_node(self, name: str) -> None:
        """End a node's heartbeats, as if its kubelet or its network had died.

        Its Ready condition turns Unknown once `node_grace` has passed.
        """
        self._admin.merge(
            f"/api/v1/nodes/{name}", {"metadata": {"labels": {HEARTBEAT_LABEL: None}}}
        )

    # Programs

    def stop_apiserver(self) -> None:
        """End the API server and wait for its end; everything else goes on running."""
        self._processes.stop(components.APISERVER)

    def start_apiserver(self) -> None:
        """Start the API server again, on the same port and data; return once it answers.

        Raises ComponentDiedError or TestbedError as `start` does.
        """
        self._processes.start(components.apiserver(self._layout))
        self._wait_healthy([components.APISERVER], deadline=time.monotonic() + START_SECONDS)

    def logs(self, component: str) -> Path:
        """Return the log file of a component such as `kube-apiserver` or `etcd`."""
        return self._processes.log(component)

    def _start_all(self, *, kwok: bool) -> None:
        """Start the programs and wait until each works."""
        deadline = time.monotonic() + START_SECONDS
        self._processes.start(components.etcd(self._layout))
        self._processes.start(components.apiserver(self._layout))
        self._wait_healthy([components.APISERVER], deadline=deadline)
        makers = [components.scheduler]
        if self._layout.controllers:
            makers.append(components.controller_manager)
        if self._layout.controllers and kwok:
            makers.append(components.kwok)
        clients = [make(self._layout) for make in makers]
        for component in clients:
            self._processes.start(component)
        self._wait_healthy([component.name for component in clients], deadline=deadline)
        if self._layout.controllers:
            what = "service account default/default exists"
            self._wait(what, self._has_default_account, deadline=deadline)

    def _wait_healthy(self, names: Collection[str], *, deadline: float) -> None:
        """Wait until the named components say that they work."""
        urls = components.health_urls(self._layout)
        for name in names:
            url = urls[name]
            self._wait(
                f"{name} is healthy (see {self.logs(name)})",
                partial(self._is_healthy, url),
                deadline=deadline,
            )

    def _wait(self, what: str, probe: Callable[[], bool], *, deadline: float) -> None:
        """Wait for `probe` while all started programs run."""

        def check_and_probe() -> bool:
            self._processes.check()
            return probe()

        timeout = max(0.0, deadline - time.monotonic())
        wait_until(check_and_probe, what=what, timeout=timeout, interval=0.02)

    def _is_healthy(self, url: str) -> bool:
        """Tell whether `url` answers 200."""
        request = urllib.request.Request(url)
        if url.startswith(self.server):
            request.add_header("Authorization", f"Bearer {self.token_for(ADMIN)}")
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._tls)]
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _has_default_account(self) -> bool:
        """Tell whether pods can be created in the namespace `default`."""
        with contextlib.suppress(ApiError):
            self._admin.get("/api/v1/namespaces/default/serviceaccounts/default")
            return True
        return False


def _folder(root: Path | None) -> tuple[Path, bool]:
    """Return the folder to use, and whether it is a temporary one."""
    if root is None:
        return Path(tempfile.mkdtemp(prefix="testbed-")), True
    if root.exists() and any(root.iterdir()):
        raise TestbedError(f"{root} is not empty; name a new folder for the control plane")
    root.mkdir(parents=True, exist_ok=True)
    return root.resolve(), False
