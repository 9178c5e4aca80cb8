"""Builds and runs a real Kubernetes control plane on one machine, with simulated nodes.

programs = ensure_built()
with ControlPlane.start(programs) as cluster:
    cluster.add_nodes([NodeSpec("a", labels={"cpu": "icelake"})])
    cluster.wait_nodes_ready()
    cluster.kubectl("get", "nodes")
"""

from tests.support.testbed.api import Api
from tests.support.testbed.build import ensure_built, ensure_helm, ensure_module
from tests.support.testbed.controlplane import ControlPlane
from tests.support.testbed.credentials import User
from tests.support.testbed.errors import (
    ApiError,
    BuildError,
    ComponentDiedError,
    DeadlineError,
    TestbedError,
)
from tests.support.testbed.nodes import NodeSpec, Taint
from tests.support.testbed.polling import wait_until
from tests.support.testbed.programs import Programs

__all__ = [
    "Api",
    "ApiError",
    "BuildError",
    "ComponentDiedError",
    "ControlPlane",
    "DeadlineError",
    "NodeSpec",
    "Programs",
    "Taint",
    "TestbedError",
    "User",
    "ensure_built",
    "ensure_helm",
    "ensure_module",
    "wait_until",
]
