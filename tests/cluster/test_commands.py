"""The commands as a person runs them, on the real API server and Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_restore.cli.exit_codes import ExitCode
from tests.cluster.rows import all_pins, left_stranded, row_of
from tests.cluster.test_redirect import apply, finished, gate_on, node_of, one_sandbox
from tests.support.demo.scene import LEASE_NAMESPACE, OPERATOR, Scene
from tests.support.fleet import SandboxSeed, sandbox_seeds
from tests.support.testbed import ensure_built
from tests.support.waiting import until

PREFIX = "SPACE_SANDBOX_RESTORE_"
ROOT = Path(__file__).parents[2]
READER = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reads-restores-only}
rules:
  - {apiGroups: [space.pplx.net], resources: [sandboxrestores], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reads-restores-only}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reads-restores-only}
subjects: [{kind: User, name: viewer}]
"""


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def run(
    scene: Scene,
    *arguments: str,
    kubeconfig: Path | None = None,
    database: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Ran:
    """The program in a process of its own, with the operator's settings."""
    given = {**gate_on(scene), **(settings or {})}
    if database:
        given["database_url"] = scene.postgres.dsn_for("sandbox_restore_demo", user=OPERATOR)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandbox_restore.cli.main",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(kubeconfig or scene.plane.kubeconfig),
            **{f"{PREFIX}{name.upper()}": value for name, value in given.items()},
        },
    )
    out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


# why


async def test_why_tells_a_success_and_a_stranded_restore_like_a_colleague(
    scene: Scene, namespace: str
) -> None:
    seed = await one_sandbox(scene, namespace, f"{namespace}-good")
    held = await one_sandbox(scene, namespace, f"{namespace}-held")
    wrong = node_of(scene, "intel-6-79-1")
    await left_stranded(scene, held, node=wrong, marker=False)
    await scene.report("sandbox_command", sandbox_id=held.id, command_at=datetime.now(UTC))
    async with scene.operator(**gate_on(scene)):
        await apply(scene, seed, "good", hostCpuPolicy="Required")
        await apply(scene, held, "held")
        await finished(scene, seed, "good")
        await finished(scene, held, "held")
        good = await run(scene, "why", "good", "-n", namespace)
        stuck = await run(scene, "why", f"{namespace}/held")
        told = await run(scene, "why", f"{namespace}/held", "-o", "json")
        same = await run(scene, "why", "sbr/held", "-n", namespace, "-o", "yaml")
    assert good.code == ExitCode.OK, good
    assert f"{namespace}/good: Succeeded (SnapshotLoaded" in good.out
    assert "kept off nodes with" in good.out
    assert "recorded with the snapshot" in good.out
    assert f"kubectl describe sbr good -n {namespace}" in good.out
    assert stuck.code == ExitCode.FAILED
    assert "Redirect to storage: all seven must hold" in stuck.out
    assert "blocked by SnapshotCoversActivity" in stuck.out
    assert "What helps" in stuck.out
    document = told.json
    assert len(document["redirect"]["conditions"]) == 7
    assert document["state"] == "Failed"
    assert yaml.safe_load(same.out)["redirect"] == document["redirect"]


async def test_why_of_a_held_restore_names_the_node_to_add(scene: Scene, namespace: str) -> None:
    seed = await one_sandbox(scene, namespace, namespace)
    async with scene.operator(**gate_on(scene)):
        await apply(scene, seed, "held", hostCpuPolicy="Required", nodeSelector={"disk": "fast"})
        await until(
            lambda: "PlacementHeld" in json.dumps(scene.restores(namespace)),
            deadline_s=60,
            what="the placement is held",
        )
        ran = await run(scene, "why", "held", "-n", namespace)
    assert ran.code == ExitCode.FAILED
    assert "Waiting (PlacementHeld" in ran.out
    assert f"scale up: a node with host CPU {seed.capture_cpu} with disk=fast" in _flat(ran.out)
    assert "node_selector" in ran.out or "nodeSelector" in ran.out


async def test_why_says_what_its_reader_may_not_read(scene: Scene, namespace: str) -> None:
    await scene.kubectl("apply", "-f", "-", stdin=READER)
    seed = await one_sandbox(scene, namespace, namespace)
    await apply(scene, seed, "alone")
    reader = scene.plane.kubeconfig_for("viewer")
    ran = await run(scene, "why", "alone", "-n", namespace, kubeconfig=reader, database=False)
    assert ran.code == ExitCode.FAILED
    assert "Unseen (NotSeenYet" in ran.out
    assert "the nodes as they are now: you may not list nodes" in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("why", "nobody"), ExitCode.FAILED, "there is no SandboxRestore nobody in namespace"),
        (("why", "a/b", "-n", "c"), ExitCode.USAGE, "name two namespaces"),
        (("why",), ExitCode.USAGE, "Missing argument"),
        (("fleet", "drain-check", "no-such-node"), ExitCode.USAGE, "there is no node no-such"),
        (("fleet", "--watch", "-o", "json"), ExitCode.USAGE, "--watch shows text only"),
        (("fleet", "--context", "nowhere"), ExitCode.USAGE, "nowhere"),
        (("retire", "nobody"), ExitCode.FAILED, "there is no sandbox nobody"),
        (("retire", "nobody", "--force"), ExitCode.USAGE, "--force needs --pod"),
        (("retire", "nobody", "--pod", "p"), ExitCode.USAGE, "--pod is for --force only"),
        (("doctor", "--as", "operator"), ExitCode.USAGE, "expected NAMESPACE/NAME"),
    ],
)
async def test_wrong_input_is_one_clear_line(
    scene: Scene, arguments: tuple[str, ...], code: ExitCode, words: str
) -> None:
    ran = await run(scene, *arguments)
    assert (ran.code, ran.out) == (code, ""), ran
    assert words in ran.err


@pytest.mark.parametrize("command", [("fleet", "drain-check", "n"), ("retire", "sb")])
async def test_a_command_that_needs_the_database_says_which_setting_is_missing(
    scene: Scene, command: tuple[str, ...]
) -> None:
    ran = await run(scene, *command, database=False)
    assert ran.code == ExitCode.USAGE
    assert f"{PREFIX}DATABASE_URL" in ran.err


@pytest.mark.parametrize("command", [("why", "x"), ("fleet",)])
async def test_an_api_server_that_does_not_answer_is_exit_code_4(
    scene: Scene, tmp_path: Path, command: tuple[str, ...]
) -> None:
    nowhere = tmp_path / "kubeconfig"
    config = yaml.safe_load(scene.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    nowhere.write_text(yaml.safe_dump(config))
    ran = await run(scene, *command, kubeconfig=nowhere, database=False)
    assert ran.code == ExitCode.API_SERVER
    assert "does not answer" in ran.err


# fleet


async def test_fleet_counts_what_the_cluster_has(scene: Scene, namespace: str) -> None:
    await scene.add_sandboxes(sandbox_seeds(8, seed=7, namespace=namespace, prefix=namespace))
    ran = await run(scene, "fleet", "-o", "json")
    labelled: dict[str, int] = {}
    for node in scene.fleet:
        label = node.labels.get("space.pplx.net/host-cpu")
        if label is not None:
            labelled[label] = labelled.get(label, 0) + 1
    found = {row["cpu"]: row for row in ran.json["cpus"]}
    assert {cpu: row["nodes"] for cpu, row in found.items() if cpu} == labelled
    assert found[None]["nodes"] == len(scene.fleet) - sum(labelled.values())
    captures = {row["captureCpu"]: row for row in ran.json["captures"]}
    for cpu in scene.matrix.cpus:
        assert captures[cpu]["loaders"] == sorted(
            other for other in labelled if other == cpu or f"{cpu}=>{other}" in _pairs(scene)
        )
        assert captures[cpu]["snapshots"] > 0
    text = await run(scene, "fleet")
    assert "captured on" in text.out
    assert all(cpu in text.out for cpu in labelled)
    without = await run(scene, "fleet", database=False)
    assert "Snapshots are not counted" in without.out
    assert without.code == ExitCode.OK


async def test_fleet_watch_shows_it_again_and_again(scene: Scene) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandbox_restore.cli.main", "fleet", "-w", "--interval", "1"),
        stdout=asyncio.subprocess.PIPE,
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(scene.plane.kubeconfig),
        },
    )
    assert process.stdout is not None
    heads = 0
    async with asyncio.timeout(60):
        while heads < 2:
            line = (await process.stdout.readline()).decode()
            assert line
            heads += "Ctrl-C ends it" in line
    process.terminate()
    await process.wait()


async def runs_there(scene: Scene, seed: SandboxSeed, node: str) -> None:
    """The platform runs it by its own means."""
    await scene.report(
        "execution_started",
        sandbox_id=seed.id,
        node_name=node,
        pod_name=f"{seed.id}-own",
        pod_uid=f"{seed.id}-own",
    )


async def test_drain_check_names_what_a_drain_would_take(scene: Scene, namespace: str) -> None:
    seed = await one_sandbox(scene, namespace, namespace)
    other = await one_sandbox(scene, namespace, f"{namespace}-other")
    nodes = [
        n.name for n in scene.fleet if n.labels.get("space.pplx.net/host-cpu") == seed.capture_cpu
    ]
    pinned = {pin for pin in await all_pins(scene.dsn) if pin is not None}
    free = sorted(set(nodes) - pinned)[:1]
    some = await run(scene, "fleet", "drain-check", *free)
    assert some.code == ExitCode.OK, some
    assert "every sandbox that can be restored now still can be" in some.out
    await runs_there(scene, seed, free[0])
    with_a_vm = await run(scene, "fleet", "drain-check", *free)
    assert with_a_vm.code == ExitCode.FAILED
    assert "1 sandbox running there could be restored elsewhere: suspend" in _flat(with_a_vm.out)
    trusted = await run(scene, "fleet", "drain-check", "--suspended-first", *free)
    assert trusted.code == ExitCode.OK
    every = await run(scene, "fleet", "drain-check", *nodes)
    assert every.code == ExitCode.FAILED
    assert f"needs {seed.capture_cpu}, and no node that stays has it" in _flat(every.out)
    document = (await run(scene, "fleet", "drain-check", *nodes, "-o", "json")).json
    assert (document["safe"], document["restorable"]) == (False, False)
    [kind] = [k for k in document["snapshots"] if k["captureCpu"] == seed.capture_cpu]
    assert f"{namespace}/{other.id}" in kind["examples"]
    assert kind["sandboxes"] == len(kind["examples"])
    [runs] = [s for s in document["states"] if s["sandbox"] == seed.id]
    assert runs["why"] == "next-snapshot"


# doctor


async def test_doctor_finds_an_installation_well_and_then_what_is_wrong_with_it(
    scene: Scene,
) -> None:
    lease = {"lease_name": "doctors", "lease_namespace": LEASE_NAMESPACE}
    operator = scene.plane.kubeconfig_for(OPERATOR)
    nobody = await run(scene, "doctor", kubeconfig=operator, settings=lease)
    assert nobody.code == ExitCode.FAILED
    assert "no operator has ever led here" in _flat(nobody.out)
    async with scene.operator(**gate_on(scene), **lease):
        well = await run(
            scene,
            "doctor",
            kubeconfig=operator,
            settings=lease,
        )
        told = await run(scene, "doctor", "-o", "json", kubeconfig=operator, settings=lease)
    problems = [one for one in told.json["findings"] if one["level"] == "problem"]
    # Other tests leave snapshots and restores behind; what is looked at here is the installation.
    assert {one["about"] for one in problems} <= {"snapshots", "restores"}, problems
    for words in (
        "has all that the operator needs",
        "leads, renewed",
        "installed, with every field that is written",
        "schema at revision",
    ):
        assert words in _flat(well.out)
    left = await run(scene, "doctor", kubeconfig=operator, settings=lease)
    assert "nobody holds Lease" in _flat(left.out)


async def test_doctor_tells_each_missing_right_of_an_account(scene: Scene) -> None:
    ran = await run(scene, "doctor", "--as", "default/default", "-o", "json")
    missing = [
        one["message"]
        for one in ran.json["findings"]
        if one["about"] == "rights" and one["level"] == "problem"
    ]
    assert ran.code == ExitCode.FAILED
    assert (
        "system:serviceaccount:default:default may not create pods (for making, releasing and "
        "ending restore pods)" in missing
    )
    assert len(missing) > 15


async def test_doctor_tells_wrong_settings_and_a_dead_database_as_findings(
    scene: Scene,
) -> None:
    ran = await run(scene, "doctor", settings={"workers": "many"})
    assert ran.code == ExitCode.FAILED
    assert f'{PREFIX}WORKERS="many"' in _flat(ran.out)
    dead = {"database_url": "postgresql://op:hunter2@127.0.0.1:1/space"}
    ran = await run(scene, "doctor", "-o", "json", database=False, settings=dead)
    [found] = [one for one in ran.json["findings"] if one["about"] == "database"]
    assert found["level"] == "problem"
    assert "hunter2" not in ran.out + ran.err


# retire


async def test_what_nobody_can_prove_is_retired_on_a_persons_word_only(
    scene: Scene, namespace: str
) -> None:
    """A loaded sandbox whose released pod was deleted while no operator was there to see it."""
    seed = await one_sandbox(scene, namespace, namespace)
    async with scene.operator(**gate_on(scene)):
        await apply(scene, seed, "first", hostCpuPolicy="Required")
        await finished(scene, seed, "first")
    row = await row_of(scene.dsn, seed.id)
    [execution] = row.active
    pod = execution["pod_name"]
    alive = await run(scene, "retire", seed.id, "--force", "--pod", pod)
    assert alive.code == ExitCode.FAILED
    assert "which is Ready: delete the pod" in alive.err
    await scene.kubectl("delete", "pod", pod, "-n", namespace, "--wait=true")
    told = await run(scene, "retire", seed.id)
    assert told.code == ExitCode.FAILED
    assert f"retire {seed.id} --force --pod {pod}" in told.out
    wrong = await run(scene, "retire", seed.id, "--force", "--pod", "another")
    assert wrong.code == ExitCode.FAILED
    assert "nothing retired" in wrong.err
    assert (await row_of(scene.dsn, seed.id)).active == [execution]
    forced = await run(scene, "retire", seed.id, "--force", "--pod", pod)
    assert forced.code == ExitCode.OK, forced
    row = await row_of(scene.dsn, seed.id)
    assert (row.active, row.state, row.pinned_node) == ([], "suspended", execution["node_name"])
    assert row.executions[-1]["outcome"] == "lost"
    again = await run(scene, "retire", seed.id, "--force", "--pod", pod)
    assert again.code == ExitCode.FAILED
    assert "no active execution" in again.err


# kubectl


async def test_kubectl_finds_the_program_as_its_plugin(scene: Scene, tmp_path: Path) -> None:
    plugin = tmp_path / "kubectl-sandbox_restore"
    plugin.write_text(
        f"#!{sys.executable}\nimport sys\nfrom sandbox_restore.cli.main import main\n"
        "sys.exit(main())\n"
    )
    plugin.chmod(0o755)
    kubectl = ensure_built().kubectl
    process = await asyncio.create_subprocess_exec(
        str(kubectl),
        *("sandbox-restore", "fleet", "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        env={
            "PATH": f"{tmp_path}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(scene.plane.kubeconfig),
        },
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["cpus"]


def _flat(text: str) -> str:
    """Wrapped lines as one."""
    return " ".join(text.split())


def _pairs(scene: Scene) -> list[str]:
    return [item.strip() for item in scene.matrix.compatibility().split(",")]
