"""`doctor` and `fleet` with exactly the chart's rights: from outside, and in the operator's pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chart.release import kubeconfig, token
from tests.chart.test_installed import OPERATOR_USER, may
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm, pick
from tests.support.testbed import ControlPlane, ensure_built, wait_until

ROOT = Path(__file__).parents[2]
TEAM = "team-a"
OUTSIDE = [sys.executable, "-m", "sandbox_restore.cli.main"]
IN_A_POD = [
    sys.executable,
    "-c",
    "import sys\n"
    "from kubernetes_asyncio.config import incluster_config as pod\n"
    "pod.SERVICE_TOKEN_FILENAME, pod.SERVICE_CERT_FILENAME = sys.argv[1:3]\n"
    "from sandbox_restore.cli.main import main\n"
    "sys.exit(main(sys.argv[3:]))",
]
"""The program, with the files that a kubelet mounts named by the first two arguments."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane.start(ensure_built(), kwok=False, node_grace=3600) as plane:
        for name in (NAMESPACE, TEAM):
            plane.kubectl("create", "namespace", name)
        yield plane


class Installed:
    """The release, and commands with the settings that its ConfigMap gives the operator."""

    def __init__(self, plane: ControlPlane, helm: Helm, folder: Path) -> None:
        self.plane = plane
        self._helm = helm
        self._folder = folder
        self._settings: dict[str, str] = {}
        self._namespaces: list[str] | None = None

    def configure(self, namespaces: list[str]) -> None:
        """Install or upgrade, and wait until rights that are no longer given are gone."""
        if namespaces == self._namespaces:
            return
        self._namespaces = namespaces
        values = {
            "database": {"migration": {"enabled": False}},
            "settings": {"namespaces": namespaces},
        }
        where = ("upgrade", "--install", RELEASE, str(CHART), "-n", NAMESPACE)
        self._helm.run(*where, values=values)
        objects = self._helm.objects(values)
        self._settings = pick(objects, "ConfigMap", f"{RELEASE}-settings")["data"]
        self.plane.kubectl(
            "wait", "--for=condition=Established", "crd/sandboxrestores.space.pplx.net"
        )
        wait_until(
            lambda: (
                may(self.plane, OPERATOR_USER, "list", "pods", namespace="default")
                is not bool(namespaces)
            ),
            what="the operator's rights are those of the settings",
            timeout=30,
        )

    def outside(
        self, *arguments: str, account: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command of an administrator, or of a person with an account's token."""
        config = self.plane.kubeconfig
        if account is not None:
            config = self._folder / "kubeconfig"
            config.write_text(kubeconfig(self.plane, token(self.plane, account)))
        return self._run([*OUTSIDE, *arguments], {"KUBECONFIG": str(config)})

    def in_a_pod(self, *arguments: str, account: str) -> subprocess.CompletedProcess[str]:
        """A command in a pod of this service account."""
        file = self._folder / "token"
        file.write_text(token(self.plane, account))
        server = urlsplit(self.plane.server)
        environment = {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        mounted = [str(file), str(self.plane.ca)]
        return self._run([*IN_A_POD, *mounted, *arguments], environment)

    def _run(
        self, command: Sequence[str], environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "PYTHONPATH": str(ROOT / "operator"),
                **self._settings,
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def installed(
    plane: ControlPlane, program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    folder = tmp_path_factory.mktemp("doctor")
    return Installed(plane, Helm(program, home=folder, kubeconfig=plane.kubeconfig), folder)


def found(ran: subprocess.CompletedProcess[str], about: str) -> list[tuple[str, str]]:
    """The findings about one thing: level and message."""
    findings: list[dict[str, Any]] = json.loads(ran.stdout)["findings"]
    return [(one["level"], one["message"]) for one in findings if one["about"] == about]


def settled(
    command: Callable[[], subprocess.CompletedProcess[str]],
) -> subprocess.CompletedProcess[str]:
    """The command's run once the API server has heard of every role of the release."""
    ran = command()

    def well() -> bool:
        nonlocal ran
        if [level for level, _ in found(ran, "rights")] != ["ok"]:
            ran = command()
        return [level for level, _ in found(ran, "rights")] == ["ok"]

    wait_until(well, what="no right is missing", timeout=20)
    return ran


EVERYWHERE: list[str] = []


@pytest.fixture(scope="module", params=[EVERYWHERE, [TEAM]], ids=["everywhere", "named"])
def served(installed: Installed, request: pytest.FixtureRequest) -> Installed:
    """The release with rights everywhere, and with rights in one namespace."""
    installed.configure(request.param)
    return installed


def test_doctor_finds_no_right_missing_where_the_chart_is_installed(served: Installed) -> None:
    asked = ("doctor", "--as", f"{NAMESPACE}/{RELEASE}", "-o", "json")
    ran = settled(lambda: served.outside(*asked))
    assert found(ran, "rights") == [("ok", f"{OPERATOR_USER} has all that the operator needs")]


def test_the_operators_rights_are_enough_for_doctor_and_fleet_in_its_pod(
    served: Installed,
) -> None:
    ran = settled(lambda: served.in_a_pod("doctor", "-o", "json", account=RELEASE))
    assert [level for level, _ in found(ran, "restores")] == ["ok"]
    fleet = served.in_a_pod("fleet", account=RELEASE)
    assert fleet.returncode == 0, fleet
    assert "restores not counted" not in fleet.stderr


def test_a_missing_right_is_a_problem_in_a_pod_and_a_note_for_a_person(
    installed: Installed,
) -> None:
    installed.configure([TEAM])
    ran = installed.in_a_pod("doctor", "-o", "json", account="default")
    levels = {level for level, _ in found(ran, "rights")}
    lines = [message for _, message in found(ran, "rights")]
    assert levels == {"problem"}
    assert ran.returncode == 1
    for asked in (
        f"list pods in namespace {TEAM} ",
        f"get namespaces {TEAM} ",
        f"update leases.coordination.k8s.io sandbox-restore in namespace {NAMESPACE} ",
        f"create leases.coordination.k8s.io in namespace {NAMESPACE} ",
    ):
        assert any(f"may not {asked}" in line for line in lines), (asked, lines)
    person = installed.outside("doctor", "-o", "json", account="default")
    assert {level for level, _ in found(person, "rights")} == {"note"}
