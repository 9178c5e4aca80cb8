"""A real node on this machine: containerd and kubelet, joined to the test bed's control plane.

node = RealNode(plane, "real-1", folder=short_folder)
with node:
    node.wait_ready()
    node.restart_kubelet()
"""

from tests.support.realnode.available import why_not
from tests.support.realnode.node import RealNode

__all__ = ["RealNode", "why_not"]
