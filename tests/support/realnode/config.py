"""Configuration files of a real node; what is unusual in them is for small and nested machines."""

import json
from ipaddress import IPv4Network
from pathlib import Path

from tests.support.realnode.available import CNI
from tests.support.realnode.image import IMAGE


def containerd_toml(folder: Path) -> str:
    """containerd with everything of its own below `folder`.

    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE a pod's score cannot be lowered.
    """
    return f"""\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{folder}/c.sock"

[ttrpc]
address = "{folder}/t.sock"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI}"]
conf_dir = "{folder}/cni"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{IMAGE}"
"""


def cni_conflist(*, services: IPv4Network, addresses: Path) -> str:
    """A network in which a pod reaches the API server as Kubernetes tells it to, and nobody else.

    The machine's end of each pod's cable has the address of the service `kubernetes` for as long
    as the pod lives, and there is no way on from it. `addresses` is shared by all nodes of a
    control plane: it keeps who has which. Pods have theirs from the services' own range: no
    network of the machine is touched.
    """
    ipam = {
        "type": "host-local",
        "dataDir": str(addresses),
        "ranges": [[{"subnet": str(services), "gateway": str(services[1])}]],
    }
    plugins = [{"type": "ptp", "ipMasq": False, "ipam": ipam}]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


def kubelet_yaml(*, socket: Path, port: int, status_seconds: int) -> str:
    """A kubelet that takes the machine as it is: no cgroup tree of its own, no iptables, swap on.

    `status_seconds` is how often it reports the Node's status; Kubernetes' default is 10.
    """
    never = dict.fromkeys(("nodefs.available", "imagefs.available", "nodefs.inodesFree"), "0%")
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": port,
            "healthzPort": 0,
            "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "evictionHard": {"memory.available": "0%", **never},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": f"{status_seconds}s",
        }
    )
