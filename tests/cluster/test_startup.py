"""What is wrong is said in one line, with the right exit code, before anything is half started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.demo.scene import CRD, Scene
from tests.support.operator_process import OperatorProcess
from tests.support.testbed.ports import free_ports
from tests.support.waiting import until


async def ends(operator: OperatorProcess) -> tuple[int, str]:
    """Run until it ends by itself; return its exit code and what it printed."""
    await operator.start()
    code = await operator.wait(deadline_s=60)
    text = operator.log()
    assert "Traceback" not in text
    assert "operator_started" not in text
    return code, text


async def test_every_wrong_setting_is_named_at_once_before_anything_is_touched(
    scene: Scene,
) -> None:
    wrong = {
        "workers": "many",
        "rollout_percent": "101",
        "host_cpu_compatibility": "a=>b=>c",
        "wrokers": "3",
    }
    code, text = await ends(scene.operator_process(**wrong))
    assert code == 2
    for name in wrong:
        assert f"SPACE_SANDBOX_RESTORE_{name.upper()}" in text
    assert "SPACE_SANDBOX_RESTORE_WORKERS" in text


async def test_a_wrong_pod_template_is_a_wrong_setting(scene: Scene, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text("kind: Pod\nspec: {containers: []}\n")
    code, text = await ends(scene.operator_process(pod_template_file=str(template)))
    assert code == 2
    assert str(template) in text


async def test_an_unreachable_database_is_exit_code_3(scene: Scene) -> None:
    port = free_ports(1)[0]
    operator = OperatorProcess(
        scene.plane.kubeconfig,
        f"postgresql://someone:s3cret-word@127.0.0.1:{port}/db",
        log_path=scene.folder / "no-database.log",
    )
    code, text = await ends(operator)
    assert code == 3
    assert "127.0.0.1" in text
    assert str(port) in text
    assert "s3cret-word" not in text


async def test_a_database_without_the_schema_is_exit_code_5(scene: Scene) -> None:
    dsn = await scene.postgres.create_database("without_schema")
    operator = OperatorProcess(scene.plane.kubeconfig, dsn, log_path=scene.folder / "no-schema.log")
    code, text = await ends(operator)
    assert code == 5
    assert "sandbox-restore migrate" in text


async def test_an_unreachable_api_server_is_exit_code_4(scene: Scene, tmp_path: Path) -> None:
    server = f"https://127.0.0.1:{free_ports(1)[0]}"
    config = tmp_path / "kubeconfig"
    config.write_text(scene.plane.kubeconfig.read_text().replace(scene.plane.server, server))
    operator = OperatorProcess(config, scene.dsn, log_path=scene.folder / "no-api.log")
    code, text = await ends(operator)
    assert code == 4
    assert server in text


async def test_missing_rights_are_exit_code_4(scene: Scene) -> None:
    operator = OperatorProcess(
        scene.plane.kubeconfig_for("viewer"), scene.dsn, log_path=scene.folder / "rights.log"
    )
    code, text = await ends(operator)
    assert code == 4
    assert "forbidden" in text.lower()


async def test_no_kubernetes_credentials_are_a_wrong_setting(scene: Scene, tmp_path: Path) -> None:
    operator = OperatorProcess(
        tmp_path / "missing", scene.dsn, log_path=scene.folder / "no-config.log"
    )
    code, text = await ends(operator)
    assert code == 2
    assert "KUBECONFIG" in text


async def test_a_missing_crd_is_exit_code_5(scene: Scene) -> None:
    await scene.kubectl("delete", "-f", str(CRD))
    try:
        code, text = await ends(scene.operator_process())
    finally:
        await scene.kubectl("apply", "-f", str(CRD))
        await scene.kubectl(
            "wait", "--for=condition=Established", "crd/sandboxrestores.space.pplx.net"
        )
    assert code == 5
    assert CRD.name in text


async def test_an_older_crd_is_exit_code_5(scene: Scene) -> None:
    older = CRD.read_text().replace("suspendedSeconds:", "formerName:")
    assert older != CRD.read_text()
    await scene.kubectl("apply", "-f", "-", stdin=older)
    try:
        code, text = await ends(scene.operator_process())
    finally:
        await scene.kubectl("apply", "-f", str(CRD))
    assert code == 5
    assert "suspendedSeconds" in text


async def test_a_taken_port_is_a_wrong_setting(scene: Scene) -> None:
    async with scene.operator() as first:
        second = scene.operator_process(health_port=str(first.health_port))
        code, text = await ends(second)
    assert code == 2
    assert "SPACE_SANDBOX_RESTORE_HEALTH_PORT" in text


@pytest.mark.parametrize("server", ["database", "API server"])
async def test_readiness_tells_when_a_server_goes_and_when_it_is_back(
    scene: Scene, server: str
) -> None:
    stop, start = {
        "database": (scene.postgres.stop, scene.postgres.start),
        "API server": (scene.plane.stop_apiserver, scene.plane.start_apiserver),
    }[server]
    async with scene.operator(lease_duration="120s", lease_renew_interval="1s") as operator:
        stop()
        try:

            async def unready() -> bool:
                return await operator.probe("/readyz") == 503

            await until(unready, deadline_s=60, what=f"not ready without the {server}")
            assert await operator.probe("/healthz") == 200
        finally:
            start()
        await operator.wait_ready()
        assert operator.running
