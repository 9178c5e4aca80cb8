"""Which programs are built, from which Go module, with which flags.

A folder under `go/` holds one module's go.mod and go.sum. To add a program (helm, kubelet,
containerd), add a folder and a `GoModule` here; `build.ensure_module` does the rest.
"""

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES_VERSION = "v1.37.2"
"""Release of kube-apiserver and its fellows; the same as in go/controlplane/go.mod."""

KWOK_VERSION = "v0.8.0"
"""Release of kwok; the same as in go/kwok/go.mod."""

HELM_VERSION = "v4.3.1"
"""Release of helm; the same as in go/helm/go.mod."""

BUILD_ENVIRONMENT: Mapping[str, str] = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-buildvcs=false -mod=readonly",
    "GOWORK": "off",
}
"""Environment of every build: static programs, the Go at hand, nothing of this checkout in them."""

BUILD_FLAGS: Sequence[str] = ("-trimpath",)
"""Flags of every `go build`; with them no path of the building machine gets into a program."""

_GO_FOLDER = Path(__file__).parent / "go"


@dataclass(frozen=True, slots=True)
class GoProgram:
    """One program: its file name and the Go package of its `main`."""

    name: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoModule:
    """A pinned Go module and the programs to build from it, in build order.

    `ldflags` go to the linker, `tags` (comma-separated) leave parts of it out. `minutes`,
    `cache_gb` and `programs_mb` say what a cold build costs on two cores: time, growth of the Go
    build cache, size of the programs. `free_gb` is the free disk space without which a cold build
    is not begun.
    """

    name: str
    programs: Sequence[GoProgram]
    ldflags: str
    tags: str = ""
    minutes: int
    cache_gb: float
    programs_mb: int
    free_gb: float
    folder: Path = field(default=_GO_FOLDER)

    @property
    def source(self) -> Path:
        """Folder that holds go.mod, go.sum and, for a program of ours, its sources."""
        return self.folder / self.name

    def key(self) -> str:
        """Folder name of the built programs: changes with anything that changes them."""
        digest = hashlib.sha256()
        parts = [(self.source / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts += [path.read_bytes() for path in sorted(self.source.glob("*.go"))]
        parts += [f"{name}={value}".encode() for name, value in sorted(BUILD_ENVIRONMENT.items())]
        parts += [flag.encode() for flag in (*BUILD_FLAGS, self.ldflags, *self.tags.split())]
        parts += [f"{program.name} {program.package}".encode() for program in self.programs]
        parts.append(f"{sys.platform} {platform.machine()}".encode())
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return f"{self.name}-{digest.hexdigest()[:16]}"


def _kubernetes_ldflags() -> str:
    """Linker flags that make the programs tell their release, which clients go by."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [
        f"-X {package}.{name}={value}" for package in packages for name, value in values.items()
    ]
    return " ".join(["-s", "-w", *flags])


CONTROLPLANE = GoModule(
    name="controlplane",
    programs=(
        GoProgram("etcd", "go.etcd.io/etcd/server/v3"),
        GoProgram("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        GoProgram("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        GoProgram("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        GoProgram("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ),
    ldflags=_kubernetes_ldflags(),
    minutes=14,
    cache_gb=4.5,
    programs_mb=390,
    free_gb=8,
)
"""etcd and the Kubernetes control plane."""

KWOK = GoModule(
    name="kwok",
    programs=(GoProgram("kwok", "sigs.k8s.io/kwok/cmd/kwok"),),
    ldflags=f"-s -w -X sigs.k8s.io/kwok/pkg/consts.Version={KWOK_VERSION}",
    minutes=2,
    cache_gb=1,
    programs_mb=65,
    free_gb=3,
)
"""kwok, which plays the heartbeats of simulated nodes. It needs other library releases."""

HELM = GoModule(
    name="helm",
    programs=(GoProgram("helm", "helm.sh/helm/v4/cmd/helm"),),
    ldflags=f"-s -w -X helm.sh/helm/v4/internal/version.version={HELM_VERSION}",
    minutes=4,
    cache_gb=2,
    programs_mb=60,
    free_gb=4,
)
"""helm, for the chart's tests. It needs other library releases."""

ORACLE = GoModule(
    name="oracle",
    programs=(GoProgram("oracle", "sandbox-restore/testbed/oracle"),),
    ldflags="-s -w",
    minutes=3,
    cache_gb=1.5,
    programs_mb=32,
    free_gb=3,
)
"""kube-scheduler's filter plugins as a program that answers questions (tests/support/oracle.py).

Its go.mod names the releases of go/controlplane, so that after that build little is left to do.
"""

KUBELET = GoModule(
    name="kubelet",
    programs=(GoProgram("kubelet", "k8s.io/kubernetes/cmd/kubelet"),),
    ldflags=_kubernetes_ldflags(),
    minutes=4,
    cache_gb=2,
    programs_mb=70,
    free_gb=4,
)
"""A real kubelet, for level 2; its go.mod names the releases of go/controlplane."""

CONTAINERD = GoModule(
    name="containerd",
    programs=(
        GoProgram("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        GoProgram(
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        ),
        GoProgram("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ),
    ldflags="-s -w",
    minutes=2,
    cache_gb=1,
    programs_mb=90,
    free_gb=3,
)
"""The container runtime of level 2's nodes. It needs other library releases than the kubelet."""

PROMTOOL = GoModule(
    name="promtool",
    programs=(GoProgram("promtool", "github.com/prometheus/prometheus/cmd/promtool"),),
    ldflags="-s -w",
    # It checks no configuration here: the service discoveries of every cloud stay out.
    tags="remove_all_sd",
    minutes=5,
    cache_gb=2,
    programs_mb=54,
    free_gb=3,
)
"""Prometheus' own checker and tester of rules, for the alerts."""
