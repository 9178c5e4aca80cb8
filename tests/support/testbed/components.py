"""The command lines and configuration files of the control plane's programs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.support.testbed.credentials import Credentials
from tests.support.testbed.nodes import HEARTBEAT_LABEL, HEARTBEAT_VALUE
from tests.support.testbed.ports import LOOPBACK
from tests.support.testbed.processes import Component
from tests.support.testbed.programs import Programs

ETCD = "etcd"
APISERVER = "kube-apiserver"
SCHEDULER = "kube-scheduler"
CONTROLLER_MANAGER = "kube-controller-manager"
KWOK = "kwok"

# An API server whose etcd went first hangs in its shutdown, so etcd goes last; the clients go
# first, which makes the API server's own shutdown short.
_RANK_CLIENT, _RANK_APISERVER, _RANK_ETCD = 0, 1, 2

_STAGES = Path(__file__).parent / "stages" / "node.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The port of each server, all on loopback."""

    etcd: int
    etcd_peer: int
    apiserver: int
    scheduler: int
    controller_manager: int
    kwok: int

    @property
    def services(self) -> IPv4Network:
        """The addresses of services: no two control planes of a machine have the same."""
        return IPv4Network(f"10.{self.apiserver >> 8}.{self.apiserver & 255}.0/24")

    @property
    def api_service(self) -> IPv4Address:
        """The address of the service `kubernetes`, which the API server makes; port 443."""
        return self.services[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the command lines are made from.

    `root` holds everything; `node_grace` is the time in seconds after which a node without
    heartbeats is not ready; with `audit` the API server logs every request's metadata. Without
    `controllers` no controller manager runs, and admission does without what it would do.
    """

    programs: Programs
    root: Path
    ports: Ports
    credentials: Credentials
    node_grace: float
    audit: bool
    controllers: bool

    @property
    def audit_log(self) -> Path:
        """Where the API server writes one JSON line per request when `audit` is on."""
        return self.root / "audit.log"


def etcd(layout: Layout) -> Component:
    """etcd without fsync: its data is not meant to outlive a crash of the machine."""
    client = f"http://{LOOPBACK}:{layout.ports.etcd}"
    peer = f"http://{LOOPBACK}:{layout.ports.etcd_peer}"
    return Component(
        name=ETCD,
        rank=_RANK_ETCD,
        command=[
            str(layout.programs.etcd),
            f"--data-dir={layout.root / 'etcd'}",
            "--unsafe-no-fsync",
            # A lone member elects itself once the election timeout has passed: not after a second.
            "--heartbeat-interval=10",
            "--election-timeout=100",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--quota-backend-bytes={8 * 2**30}",
            "--log-level=warn",
        ],
    )


def apiserver(layout: Layout) -> Component:
    """The API server, with the admission plugins that are on by default and NodeRestriction."""
    credentials = layout.credentials
    command = [
        str(layout.programs.kube_apiserver),
        f"--etcd-servers=http://{LOOPBACK}:{layout.ports.etcd}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        "--endpoint-reconciler-type=none",
        f"--secure-port={layout.ports.apiserver}",
        f"--tls-cert-file={credentials.certificate}",
        f"--tls-private-key-file={credentials.key}",
        f"--token-auth-file={credentials.tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={credentials.account_key}",
        f"--service-account-signing-key-file={credentials.account_key}",
        f"--service-cluster-ip-range={layout.ports.services}",
        "--max-requests-inflight=4000",
        "--max-mutating-requests-inflight=2000",
        "--allow-privileged=true",
        # Without these the shutdown waits up to a minute for clients to end their watches.
        "--shutdown-send-retry-after=true",
        "--shutdown-watch-termination-grace-period=1s",
    ]
    if not layout.controllers:
        # Nobody would make the service account of a namespace, or take the taint off a new node.
        command.append("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
    if layout.audit:
        policy = layout.root / "audit-policy.json"
        _write(policy, _AUDIT_POLICY)
        command += [f"--audit-policy-file={policy}", f"--audit-log-path={layout.audit_log}"]
    return Component(name=APISERVER, rank=_RANK_APISERVER, command=command)


def scheduler(layout: Layout) -> Component:
    """The scheduler with its default profile; its client is not throttled."""
    kubeconfig = layout.credentials.kubeconfig("system:kube-scheduler")
    config = layout.root / "scheduler.json"
    _write(
        config,
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 10000},
        },
    )
    return Component(
        name=SCHEDULER,
        rank=_RANK_CLIENT,
        command=[
            str(layout.programs.kube_scheduler),
            f"--config={config}",
            *_secure_serving(layout, port=layout.ports.scheduler, kubeconfig=kubeconfig),
        ],
    )


def controller_manager(layout: Layout) -> Component:
    """The controller manager with the controllers that are on by default.

    All but one, which would patch each new node for kubelets that are not there. Lost nodes are
    tainted at once and not a few a minute, so that tests need not wait.
    """
    kubeconfig = layout.credentials.kubeconfig("system:kube-controller-manager")
    return Component(
        name=CONTROLLER_MANAGER,
        rank=_RANK_CLIENT,
        command=[
            str(layout.programs.kube_controller_manager),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--controllers=*,-ttl-controller",
            f"--root-ca-file={layout.credentials.ca}",
            f"--service-account-private-key-file={layout.credentials.account_key}",
            f"--node-monitor-grace-period={layout.node_grace}s",
            "--node-eviction-rate=1000",
            "--secondary-node-eviction-rate=1000",
            "--kube-api-qps=5000",
            "--kube-api-burst=10000",
            *_secure_serving(layout, port=layout.ports.controller_manager, kubeconfig=kubeconfig),
        ],
    )


def kwok(layout: Layout) -> Component:
    """kwok for nodes only: it renews leases, and sets Ready where a node has none or lost it.

    With no stage for pods it never starts its part that changes pods.
    """
    config = layout.root / "kwok.yaml"
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            # A quarter of the duration passes between two renewals.
            "nodeLeaseDurationSeconds": max(1, int(layout.node_grace * 0.8)),
            "nodeLeaseParallelism": 16,
            "nodePlayStageParallelism": 16,
            "manageNodesWithLabelSelector": f"{HEARTBEAT_LABEL}={HEARTBEAT_VALUE}",
            "serverAddress": f"{LOOPBACK}:{layout.ports.kwok}",
        },
    }
    config.write_text(f"{json.dumps(options)}\n---\n{_STAGES.read_text()}")
    return Component(
        name=KWOK,
        rank=_RANK_CLIENT,
        command=[
            str(layout.programs.kwok),
            f"--kubeconfig={layout.credentials.kubeconfig('kwok')}",
            f"--config={config}",
        ],
    )


def health_urls(layout: Layout) -> Mapping[str, str]:
    """Return for each component but etcd the URL that answers 200 once it works."""
    ports = layout.ports
    return {
        APISERVER: f"https://{LOOPBACK}:{ports.apiserver}/readyz",
        SCHEDULER: f"https://{LOOPBACK}:{ports.scheduler}/readyz",
        CONTROLLER_MANAGER: f"https://{LOOPBACK}:{ports.controller_manager}/healthz",
        KWOK: f"http://{LOOPBACK}:{ports.kwok}/healthz",
    }


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


def _secure_serving(layout: Layout, *, port: int, kubeconfig: Path) -> list[str]:
    """Return the flags by which a component serves its health and metrics on loopback."""
    return [
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={layout.credentials.certificate}",
        f"--tls-private-key-file={layout.credentials.key}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]


def _write(path: Path, value: object) -> None:
    """Write a configuration file as JSON, which is YAML too."""
    path.write_text(json.dumps(value, indent=2) + "\n")
