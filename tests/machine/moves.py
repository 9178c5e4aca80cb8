"""What the world does by itself: kube-scheduler, kubelets, runners, Kubernetes' controllers.

Each move is one event that may happen now. Which one happens is the test's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sandbox_restore.model import names
from tests.machine.cluster import (
    BROKEN,
    INCOMPATIBLE,
    Cluster,
    Machine,
    ViolationError,
    Vm,
    bound,
    fits,
    plan_of,
)
from tests.support.simapi.objects import TERMINAL, set_condition

Json = dict[str, Any]
Move = tuple[str, Callable[[], object]]


def moves(cluster: Cluster) -> list[Move]:
    """All that could happen next, in a stable order."""
    cluster.see_pods()
    found = [*_scheduler(cluster), *_controllers(cluster)]
    for vm in list(cluster.vms.values()):
        found += _runner(cluster, vm)
    return found


# --- kube-scheduler


def _scheduler(cluster: Cluster) -> Iterator[Move]:
    for name, pod in cluster.api.pods.items():
        held = pod["spec"].get("schedulingGates") or bound(pod)
        if held or "deletionTimestamp" in pod["metadata"]:
            continue
        for node in cluster.api.nodes.values():
            there = node["metadata"]["name"]
            if cluster.ready(there) and fits(pod, node):
                yield (
                    f"scheduler binds {name} to {there}",
                    lambda name=name, there=there: cluster.api.bind(name, there),
                )


# --- controllers


def _controllers(cluster: Cluster) -> Iterator[Move]:
    owners = {r["metadata"]["uid"] for r in cluster.api.restores.values()}
    for machine in cluster.machines.values():
        if machine.alive and machine.contact and cluster.node(machine.name) is None:
            yield (
                f"node {machine.name} registers again under a new UID",
                lambda m=machine: cluster.find_contact(m),
            )
        if not machine.contact and cluster.ready(machine.name):
            yield (
                f"node {machine.name} is marked not Ready",
                lambda m=machine: _mark_not_ready(cluster, m),
            )
    for name, pod in cluster.api.pods.items():
        meta = pod["metadata"]
        deleting = "deletionTimestamp" in meta
        refs = meta.get("ownerReferences", ())
        if refs and not deleting and not any(r["uid"] in owners for r in refs):
            yield f"collector deletes {name}", lambda name=name: _collect(cluster, name)
        if not bound(pod):
            continue
        node = pod["spec"]["nodeName"]
        if cluster.node(node) is None:
            yield from _pod_gc(cluster, name, pod)
        elif not cluster.ready(node):
            out = cluster.tainted(node, names.OUT_OF_SERVICE_TAINT)
            if not deleting:
                yield f"eviction of {name}", lambda name=name: cluster.api.delete_pod(name)
            elif out and meta["deletionGracePeriodSeconds"]:
                yield f"PodGC forces {name} out", lambda name=name: _force(cluster, name)


def _mark_not_ready(cluster: Cluster, machine: Machine) -> None:
    cluster.say_ready(machine.name, ready=False)
    machine.lost_at = None


def _collect(cluster: Cluster, name: str) -> None:
    """The garbage collector; it must not find a sandbox that is up and was asked to stay."""
    pod = cluster.api.pods[name]
    refs = {r["uid"] for r in pod["metadata"].get("ownerReferences", ())}
    vm = cluster.vms.get(pod["metadata"]["uid"])
    if vm is not None and vm.live and refs & cluster.succeeded:
        raise ViolationError(f"the collector kills pod {name} of a restore that has succeeded")
    cluster.api.delete_pod(name)


def _pod_gc(cluster: Cluster, name: str, pod: Json) -> Iterator[Move]:
    if pod["status"].get("phase") not in TERMINAL:
        yield f"PodGC writes Failed on {name}", lambda: _fail(cluster, name, "PodGC", "")
    elif pod["metadata"].get("deletionGracePeriodSeconds") != 0:
        yield f"PodGC forces {name} out", lambda: _force(cluster, name)


def _force(cluster: Cluster, name: str) -> None:
    cluster.api.delete_pod(name, force=True)


def _fail(cluster: Cluster, name: str, reason: str, message: str) -> None:
    """Kubernetes' own `Failed`: nothing is said of the container."""

    def put(pod: Json) -> None:
        pod["status"] |= {"phase": "Failed", "reason": reason, "message": message}
        set_condition(pod, "Ready", "False", at=cluster.api.stamp())

    cluster.api.update("pods", name, put)


# --- kubelet and runner


def _runner(cluster: Cluster, vm: Vm) -> Iterator[Move]:
    machine, pod = cluster.machines[vm.machine], cluster.pod_of(vm)
    if not machine.alive:
        return
    speaks = machine.contact and cluster.node(machine.name) is not None
    if vm.cut_off:
        if speaks and pod is not None and pod["status"].get("phase") not in TERMINAL:
            yield f"kubelet lost {vm.pod}", lambda: report(cluster, vm, lost=True)
        return
    if not vm.live and not vm.over:
        yield from _start(cluster, vm, machine, pod)
    if not speaks:
        return
    if vm.live and pod is not None and not cluster.has_to_go(vm) and not is_ready(pod):
        yield f"kubelet says {vm.pod} Ready", lambda: say_ready(cluster, vm)
    if vm.live and cluster.has_to_go(vm):
        yield f"kubelet ends {vm.pod}", lambda: cluster.end(vm)
    if vm.over and pod is not None and not _told(pod):
        yield f"kubelet reports {vm.pod}", lambda: report(cluster, vm)
    if vm.over and pod is not None and _told(pod) and _grace(pod):
        yield f"kubelet removes {vm.pod}", lambda: _force(cluster, vm.pod)


def _start(cluster: Cluster, vm: Vm, machine: Machine, pod: Json | None) -> Iterator[Move]:
    """A kubelet without contact goes on with what it knew."""
    if machine.contact and cluster.has_to_go(vm):
        yield f"kubelet drops {vm.pod}", lambda: _drop(vm)
        return
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return
    yield f"runner loads in {vm.pod}", lambda: load(cluster, vm, machine, pod)
    yield f"runner fails in {vm.pod}", lambda: cluster.end(vm, message=BROKEN, exit_code=1)
    yield f"runner dies in {vm.pod}", lambda: cluster.end(vm)


def _drop(vm: Vm) -> None:
    """Never started: what the kubelet will say of the container is that it knows nothing."""
    vm.over, vm.exit_code = True, -1


def load(cluster: Cluster, vm: Vm, machine: Machine, pod: Json) -> None:
    """The runner loads what its plan says, or says why it cannot."""
    plan = plan_of(pod)
    named = plan["restore"]["uid"] in cluster.named
    snapshot = cluster.snapshots.get(plan["snapshotId"] or "")
    if plan["source"] == "storage":
        assert snapshot is not None
        version = snapshot.version
    else:
        held = machine.local
        if held is None or (snapshot is not None and held < snapshot.version):
            cluster.end(vm, message=BROKEN, exit_code=1)
            return
        version = held
    if snapshot is not None and snapshot.cpu != machine.cpu:
        cluster.end(vm, message=INCOMPATIBLE, exit_code=1)
        return
    cluster.start(vm, version, may_go_back=named and not plan_is_rescue(cluster, plan))


def plan_is_rescue(cluster: Cluster, plan: Json) -> bool:
    """A redirected or evacuated attempt may not go back, named snapshot or not (section 14)."""
    return plan["executionId"] in cluster.rescues


def is_ready(pod: Json) -> bool:
    found = pod["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found)


def say_ready(cluster: Cluster, vm: Vm) -> None:
    def put(pod: Json) -> None:
        pod["status"] |= {
            "phase": "Running",
            "containerStatuses": [
                {"name": "runner", "state": {"running": {"startedAt": cluster.api.stamp()}}}
            ],
        }
        set_condition(pod, "Ready", "True", at=cluster.api.stamp())

    cluster.api.update("pods", vm.pod, put)


def _told(pod: Json) -> bool:
    """The kubelet has said how the container ended."""
    statuses = pod["status"].get("containerStatuses", ())
    return any("terminated" in s["state"] for s in statuses)


def _grace(pod: Json) -> int:
    """Seconds that a deletion still waits for its kubelet; 0: for nobody."""
    found: int = pod["metadata"].get("deletionGracePeriodSeconds", 0)
    return found


def report(cluster: Cluster, vm: Vm, *, lost: bool = False) -> None:
    """The kubelet's report of the end, which is proof, or that it lost the container, which is
    none."""
    stamp = cluster.api.stamp()
    ended: Json = {
        "exitCode": vm.exit_code,
        "reason": "Completed" if vm.exit_code == 0 else "Error",
        "message": vm.end,
        "startedAt": stamp,
        "finishedAt": stamp,
    }
    if lost or vm.exit_code < 0:
        ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": ""}

    def put(pod: Json) -> None:
        pod["status"] |= {
            "phase": "Succeeded" if vm.exit_code == 0 and not lost else "Failed",
            "containerStatuses": [{"name": "runner", "state": {"terminated": ended}}],
        }
        set_condition(pod, "Ready", "False", at=stamp)

    cluster.api.update("pods", vm.pod, put)


def reject(cluster: Cluster, vm: Vm) -> None:
    """A kubelet that comes back refuses a pod whose VM it has not ended yet."""

    def put(pod: Json) -> None:
        pod["status"].pop("containerStatuses", None)
        pod["status"] |= {"phase": "Failed", "reason": "NodeAffinity", "message": ""}
        set_condition(pod, "Ready", "False", at=cluster.api.stamp())

    cluster.api.update("pods", vm.pod, put)
