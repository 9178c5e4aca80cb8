"""The CRD on a real API server: what it accepts, refuses, fills in and shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sandbox_restore.model import crd
from tests.support.testbed import ApiError, ControlPlane, ensure_built, wait_until

FILE = Path(__file__).parents[2] / crd.FILE
COLLECTION = "/apis/space.pplx.net/v1alpha1/namespaces/default/sandboxrestores"
NOW = "2026-03-01T12:00:00Z"

_numbers = count()


@dataclass(frozen=True, slots=True)
class Server:
    """Creates, changes and reads SandboxRestores."""

    plane: ControlPlane

    def create(self, spec: dict[str, Any], *, strict: bool = False, **more: Any) -> dict[str, Any]:
        name = f"r{next(_numbers)}"
        query = "?fieldValidation=Strict" if strict else ""
        body = {
            "apiVersion": "space.pplx.net/v1alpha1",
            "kind": "SandboxRestore",
            "metadata": {"name": name},
            "spec": spec,
            **more,
        }
        made: dict[str, Any] = self.plane.api().post(COLLECTION + query, body)
        return made

    def change(self, restore: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """A merge patch of the spec: None takes a field out."""
        path = f"{COLLECTION}/{restore['metadata']['name']}"
        changed: dict[str, Any] = self.plane.api().merge(path, {"spec": spec})
        return changed

    def report(self, restore: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        path = f"{COLLECTION}/{restore['metadata']['name']}/status"
        reported: dict[str, Any] = self.plane.api().merge(path, {"status": status})
        return reported

    def table(self, restore: dict[str, Any], *options: str) -> dict[str, str]:
        """What `kubectl get` shows of it, by column."""
        name = restore["metadata"]["name"]
        lines = self.plane.kubectl("get", "sbr", name, *options).stdout.splitlines()
        heads = [(head, lines[0].index(head)) for head in lines[0].split()]
        ends = [start for _, start in heads[1:]] + [None]
        return {h: lines[1][s:e].strip() for (h, s), e in zip(heads, ends, strict=True)}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ControlPlane.start(ensure_built(), kwok=False) as plane:
        plane.kubectl("apply", "-f", str(FILE))
        plane.kubectl("wait", "--for=condition=Established", f"crd/{crd.NAME}")
        found = Server(plane)
        wait_until(lambda: _served(found), what="SandboxRestores are served", timeout=20)
        yield found


def _served(server: Server) -> bool:
    try:
        server.plane.api().get(COLLECTION)
    except ApiError as error:
        # 429: the storage of the new resource is still being made.
        if error.status in (404, 429):
            return False
        raise
    return True


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    """The words of the server when it refuses as invalid."""
    with pytest.raises(ApiError) as caught:
        call(*arguments, **options)
    assert caught.value.status == 422
    return str(caught.value)


def test_the_server_knows_every_field_of_the_models(server: Server) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
    assert crd.absent_fields(server.plane.api().get(path)) == ()


def test_the_server_finds_nothing_to_complain_about_in_the_definition(server: Server) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
    conditions = {
        c["type"]: c["status"] for c in server.plane.api().get(path)["status"]["conditions"]
    }
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


def test_a_sandbox_id_alone_is_a_restore_and_the_rest_takes_its_default(server: Server) -> None:
    assert server.create({"sandboxId": "s1"}, strict=True)["spec"] == {
        "sandboxId": "s1",
        "hostCpuPolicy": "Auto",
        "nodeSelector": {},
        "backoffLimit": 4,
        "activeDeadlineSeconds": 600,
        "ttlSecondsAfterFinished": 3600,
        "suspend": False,
    }


def test_everything_the_spec_can_say_is_accepted(server: Server) -> None:
    spec = {
        "sandboxId": "7f3a.B_c-1",
        "snapshotId": "snap-1",
        "hostCpuPolicy": "Required",
        "nodeSelector": {"topology.kubernetes.io/zone": "a", "space.pplx.net/host-cpu": ""},
        "evacuation": {"cohort": "blue"},
        "backoffLimit": 1,
        "activeDeadlineSeconds": 1,
        "ttlSecondsAfterFinished": 0,
        "suspend": True,
    }
    assert server.create(spec, strict=True)["spec"] == spec


def test_a_misspelt_field_is_refused_by_strict_clients(server: Server) -> None:
    with pytest.raises(ApiError, match=r'unknown field "spec.sandboxid"'):
        server.create({"sandboxId": "s1", "sandboxid": "s2"}, strict=True)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "spec.sandboxId: Required value"),
        ({"sandboxId": ""}, "spec.sandboxId: Invalid value"),
        ({"sandboxId": "a b"}, "spec.sandboxId: Invalid value"),
        ({"sandboxId": "a\n"}, "spec.sandboxId: Invalid value"),
        ({"sandboxId": "a" * 64}, "spec.sandboxId: Too long"),
        ({"sandboxId": "s", "snapshotId": ""}, "spec.snapshotId: Invalid value"),
        ({"sandboxId": "s", "hostCpuPolicy": "Never"}, '"Auto", "Ignore", "Required"'),
        ({"sandboxId": "s", "evacuation": {}}, "spec.evacuation.cohort: Required value"),
        ({"sandboxId": "s", "evacuation": {"cohort": "-"}}, "spec.evacuation.cohort: Invalid"),
        ({"sandboxId": "s", "backoffLimit": 0}, "spec.backoffLimit: Invalid value"),
        ({"sandboxId": "s", "backoffLimit": 101}, "spec.backoffLimit: Invalid value"),
        ({"sandboxId": "s", "activeDeadlineSeconds": 0}, "activeDeadlineSeconds: Invalid value"),
        ({"sandboxId": "s", "ttlSecondsAfterFinished": -1}, "ttlSecondsAfterFinished: Invalid"),
        ({"sandboxId": "s", "suspend": "yes"}, "spec.suspend: Invalid value"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_with_its_field(
    server: Server, spec: dict[str, Any], words: str
) -> None:
    assert words in refusal(server.create, spec)


@pytest.mark.parametrize(
    "key",
    [
        "zone",
        "Zone_1.x-y",
        "example.com/zone",
        "a/b",
        "n" * 63,
        ".".join(["d" * 62] * 4) + "dd/" + "n" * 63,
    ],
)
def test_node_selector_takes_every_label_key(server: Server, key: str) -> None:
    made = server.create({"sandboxId": "s", "nodeSelector": {key: "v"}})
    assert made["spec"]["nodeSelector"] == {key: "v"}


@pytest.mark.parametrize(
    "key",
    [
        "a b",
        "",
        "-a",
        "a-",
        "/a",
        "a/",
        "a/b/c",
        "Example.com/a",
        "a..b/c",
        "n" * 64,
        ".".join(["d" * 62] * 4) + "ddd/n",
        "k" * 10_000,
        "zone\n",
    ],
)
def test_node_selector_refuses_what_is_no_label_key_and_names_it(server: Server, key: str) -> None:
    words = refusal(server.create, {"sandboxId": "s", "nodeSelector": {"good": "v", key: "v"}})
    assert "spec.nodeSelector: " in words
    assert "is not a label key" in words
    if key.isprintable() and len(key) < 1000:
        assert f'"{key}" is not' in words


@pytest.mark.parametrize("value", ["a b", "-", "v" * 64, "v\n"])
def test_node_selector_refuses_what_is_no_label_value(server: Server, value: str) -> None:
    words = refusal(server.create, {"sandboxId": "s", "nodeSelector": {"zone": value}})
    assert "spec.nodeSelector.zone: " in words


def test_node_selector_takes_at_most_32_labels(server: Server) -> None:
    labels = {f"k{number}-{'k' * 50}": "v" * 63 for number in range(33)}
    words = refusal(server.create, {"sandboxId": "s", "nodeSelector": labels})
    assert "spec.nodeSelector: Too many" in words
    del labels[f"k0-{'k' * 50}"]
    assert server.create({"sandboxId": "s", "nodeSelector": labels})


def test_an_evacuation_names_the_cohort_once(server: Server) -> None:
    twice = {
        "sandboxId": "s",
        "evacuation": {"cohort": "blue"},
        "nodeSelector": {"space.pplx.net/cohort": "blue"},
    }
    assert (
        "spec.nodeSelector: Forbidden: evacuation already names the cohort;"
        " take space.pplx.net/cohort out of nodeSelector"
    ) in refusal(server.create, twice)
    assert server.create({**twice, "evacuation": None})


FULL = {
    "sandboxId": "s",
    "snapshotId": "snap-1",
    "hostCpuPolicy": "Required",
    "evacuation": {"cohort": "blue"},
}
BARE = {"sandboxId": "s"}


@pytest.mark.parametrize(
    ("before", "field", "after"),
    [
        (FULL, "sandboxId", "other"),
        (FULL, "snapshotId", "snap-2"),
        (FULL, "hostCpuPolicy", "Auto"),
        (FULL, "evacuation", {"cohort": "green"}),
        # Taken out: a rule on the field itself would not be asked.
        (FULL, "snapshotId", None),
        (FULL, "hostCpuPolicy", None),
        (FULL, "evacuation", None),
        # Added afterwards, which is also the second half of taking out and putting in again.
        (BARE, "snapshotId", "snap-1"),
        (BARE, "hostCpuPolicy", "Ignore"),
        (BARE, "evacuation", {"cohort": "blue"}),
    ],
)
def test_an_immutable_field_cannot_be_changed_taken_out_or_added(
    server: Server, before: dict[str, Any], field: str, after: object
) -> None:
    restore = server.create(before)
    words = refusal(server.change, restore, {field: after})
    assert f"spec.{field}: Forbidden: {field} is immutable; make a new SandboxRestore" in words


def test_sandbox_id_cannot_be_taken_out(server: Server) -> None:
    words = refusal(server.change, server.create(FULL), {"sandboxId": None})
    assert "spec.sandboxId: Required value" in words


def test_the_default_policy_written_out_is_no_change(server: Server) -> None:
    restore = server.create(BARE)
    assert server.change(restore, {"hostCpuPolicy": "Auto"})["spec"]["hostCpuPolicy"] == "Auto"


def test_what_is_not_immutable_can_be_changed(server: Server) -> None:
    after = {
        "suspend": True,
        "backoffLimit": 9,
        "activeDeadlineSeconds": 60,
        "ttlSecondsAfterFinished": 1,
        "nodeSelector": {"zone": "a"},
    }
    assert server.change(server.create(FULL), after)["spec"] == FULL | after


def test_status_is_written_only_through_its_subresource(server: Server) -> None:
    restore = server.create(BARE, status={"podName": "smuggled"})
    assert "status" not in restore
    generation = restore["metadata"]["generation"]
    reported = server.report(restore, {"podName": "p"})
    assert reported["status"] == {"podName": "p"}
    assert reported["metadata"]["generation"] == generation
    server.report(restore, {"podName": "q"})
    changed = server.change(restore, {"suspend": True})
    assert changed["status"] == {"podName": "q"}
    assert changed["metadata"]["generation"] == generation + 1


def condition(kind: str, **more: object) -> dict[str, object]:
    return {
        "type": kind,
        "status": "Unknown",
        "reason": "Waiting",
        "message": "",
        "observedGeneration": 1,
        "lastTransitionTime": NOW,
        **more,
    }


def test_conditions_are_a_map_by_type(server: Server) -> None:
    restore = server.create(BARE)
    twice = {"conditions": [condition("Planned"), condition("Planned", status="True")]}
    assert "status.conditions[1]: Duplicate value" in refusal(server.report, restore, twice)


def test_conditions_of_two_owners_merge_on_apply(server: Server) -> None:
    restore = server.create(BARE)
    path = f"{COLLECTION}/{restore['metadata']['name']}/status"
    for owner, kind in (("one", "Planned"), ("two", "Placed")):
        body = {
            "apiVersion": restore["apiVersion"],
            "kind": restore["kind"],
            "metadata": {"name": restore["metadata"]["name"]},
            "status": {"conditions": [condition(kind)]},
        }
        applied = server.plane.api().request(
            "PATCH",
            f"{path}?fieldManager={owner}",
            body=body,
            content_type="application/apply-patch+yaml",
        )
    assert [one["type"] for one in applied["status"]["conditions"]] == ["Planned", "Placed"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "Maybe"}, "status.conditions[0].status: Invalid value"),
        ({"reason": ""}, "status.conditions[0].reason: Invalid value"),
        ({"lastTransitionTime": "yesterday"}, "lastTransitionTime: Invalid value"),
    ],
)
def test_a_condition_that_is_none_is_refused(
    server: Server, change: dict[str, object], words: str
) -> None:
    status = {"conditions": [condition("Planned", **change)]}
    assert words in refusal(server.report, server.create(BARE), status)


STATUS = {
    "nodeName": "node-1",
    "podName": "wake-1",
    "plan": {"source": "storage", "snapshotId": "snap-1", "capturedAt": "2026-03-01T11:00:00.25Z"},
    "placement": {"captureCpu": "intel-6-106-6", "decision": "Constrained"},
    "attempts": [{"attempt": 1, "endedAt": NOW}, {"attempt": 2}],
    "conditions": [condition("Planned"), condition("Succeeded")],
}


def test_kubectl_get_shows_where_a_restore_stands(server: Server) -> None:
    restore = server.create(BARE)
    server.report(restore, STATUS)
    row = server.table(restore)
    assert row.pop("AGE")
    assert row == {
        "NAME": restore["metadata"]["name"],
        "SUCCEEDED": "Unknown",
        "REASON": "Waiting",
        "SANDBOX": "s",
        "CAPTURE-CPU": "intel-6-106-6",
        "SOURCE": "storage",
        "NODE": "node-1",
    }


def test_kubectl_get_wide_shows_the_decision_and_the_newest_attempt(server: Server) -> None:
    restore = server.create(BARE)
    server.report(restore, STATUS)
    row = server.table(restore, "-o", "wide")
    wide = {key: row[key] for key in ("DECISION", "ATTEMPTS", "SNAPSHOT", "POD")}
    assert wide == {
        "DECISION": "Constrained",
        "ATTEMPTS": "2",
        "SNAPSHOT": "snap-1",
        "POD": "wake-1",
    }


def test_kubectl_get_shows_a_restore_nobody_has_looked_at_yet(server: Server) -> None:
    row = server.table(server.create(BARE), "-o", "wide")
    assert row["SANDBOX"] == "s"
    assert row["SUCCEEDED"] == row["ATTEMPTS"] == ""


def test_restores_are_found_by_category_and_by_sandbox(server: Server) -> None:
    restore = server.create({"sandboxId": "needle"})
    found = server.plane.kubectl(
        "get", "space", "--field-selector", "spec.sandboxId=needle", "-o", "name"
    ).stdout.split()
    assert found == [f"sandboxrestore.space.pplx.net/{restore['metadata']['name']}"]


def test_kubectl_explain_has_words_for_every_field(server: Server) -> None:
    def explain(path: str) -> str:
        wait_until(
            lambda: server.plane.kubectl("explain", path, check=False).returncode == 0,
            what=f"kubectl explain {path}",
            timeout=20,
        )
        return " ".join(server.plane.kubectl("explain", path, "--recursive=false").stdout.split())

    for part in ("spec", "status", "status.placement", "status.conditions", "status.attempts"):
        text = explain(f"sandboxrestores.{part}")
        schema = crd.object_schema()
        for name in part.split("."):
            schema = schema["properties"][name]
        fields = schema.get("items", schema)["properties"]
        for name, field in fields.items():
            assert name in text
            assert field["description"] in text, json.dumps(field)
