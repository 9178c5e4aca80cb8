"""A real node on this machine: containerd and kubelet, joined to the test bed's control plane.

node = RealNode(plane, "real-1", folder=short_folder)
with node:
    node.wait_ready()
    node.restart_kubelet()
"""

from tests.support.realnode.available import why_not
from tests.support.realnode.node import RealNode
from tests.support.realnode.service import ApiService

__all__ = ["ApiService", "RealNode", "why_not"]
