"""The operator as the chart runs it: its pod's environment, files and token, on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.demo.scene import Scene
from tests.support.helm import NAMESPACE, RELEASE
from tests.support.operator_process import OperatorProcess
from tests.support.testbed import ControlPlane

PREFIX = "SPACE_SANDBOX_RESTORE_"
_URL = f"{PREFIX}DATABASE_URL"
_OUR_OWN = (f"{PREFIX}HEALTH_HOST", f"{PREFIX}HEALTH_PORT")
"""Settings that this machine decides: several operators run on it."""


def token(plane: ControlPlane, account: str) -> str:
    """A token of a service account of the release, by TokenRequest."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    answer = plane.api().post(path, {"spec": {"expirationSeconds": 3600}})
    return str(answer["status"]["token"])


def kubeconfig(plane: ControlPlane, token: str) -> str:
    """A kubeconfig for that token."""
    cluster = {"server": plane.server, "certificate-authority": str(plane.ca)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


async def operator(scene: Scene, folder: Path) -> OperatorProcess:
    """What the Deployment on the server says, as a process that is not started yet."""
    return await asyncio.to_thread(_operator, scene, folder)


def _operator(scene: Scene, folder: Path) -> OperatorProcess:
    api = scene.plane.api()
    deployment = api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment: dict[str, str] = {}
    for source in container["envFrom"]:
        environment |= _config_map(scene, source["configMapRef"]["name"])
    environment |= {item["name"]: item["value"] for item in container["env"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    prepared = scene.operator_process()
    for mount in container["volumeMounts"]:
        volume, place = volumes[mount["name"]], folder / mount["name"]
        place.mkdir(exist_ok=True)
        if "configMap" in volume:
            data = _config_map(scene, volume["configMap"]["name"])
            for item in volume["configMap"]["items"]:
                (place / item["path"]).write_text(data[item["key"]])
        else:
            (item,) = volume["secret"]["items"]
            (place / item["path"]).write_text(prepared.environment[_URL])
        for name, value in environment.items():
            environment[name] = value.replace(mount["mountPath"], str(place))
    given = token(scene.plane, spec["serviceAccountName"])
    (folder / "kubeconfig").write_text(kubeconfig(scene.plane, given))
    return OperatorProcess(
        folder / "kubeconfig",
        "",
        env={name: value for name, value in environment.items() if name not in _OUR_OWN},
        log_path=prepared.log_path,
        arguments=container["args"],
    )


def _config_map(scene: Scene, name: str) -> dict[str, str]:
    found: dict[str, Any] = scene.plane.api().get(
        f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"
    )
    data: dict[str, str] = found["data"]
    return data
