"""Names that people and programs see on Kubernetes objects (domain.md section 2, api.md)."""

from __future__ import annotations

from typing import Final

GROUP: Final = "space.pplx.net"
VERSION: Final = "v1alpha1"
PLURAL: Final = "sandboxrestores"
KIND: Final = "SandboxRestore"
API_VERSION: Final = f"{GROUP}/{VERSION}"

HOST_CPU_LABEL: Final = f"{GROUP}/host-cpu"
PLACEMENT_BLOCK_LABEL: Final = f"{GROUP}/placement-block"
NODE_GROUP_LABEL: Final = f"{GROUP}/node-group"
COHORT_LABEL: Final = f"{GROUP}/cohort"
NETWORK_SLOTS: Final = f"{GROUP}/network-slots"
NODE_SERVICES_READY: Final = f"{GROUP}/NodeServicesReady"

FENCE: Final = f"{GROUP}/fence"
"""The finalizer and the scheduling gate of a restore pod (section 15)."""

SANDBOX_LABEL: Final = f"{GROUP}/sandbox"
"""On restore pods: the sandbox id, verbatim (ids are valid label values by schema)."""
RESTORE_UID_LABEL: Final = f"{GROUP}/restore-uid"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
EXECUTION_ANNOTATION: Final = f"{GROUP}/execution"
"""On restore pods: the id of the one execution this pod was made for."""

RESERVED_DOMAINS: Final = (GROUP, "kubernetes.io", "k8s.io")
"""Keys in these domains (or below them) are the operator's or Kubernetes' own."""

RUNNER_CONTAINER: Final = "runner"
PLAN_ENV: Final = "SANDBOX_RESTORE_PLAN"
FIELD_MANAGER: Final = "sandbox-restore"

OUT_OF_SERVICE_TAINT: Final = "node.kubernetes.io/out-of-service"
UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
