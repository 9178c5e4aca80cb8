"""`plan`: the decision offline, and one clear line for a bad file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.cli.main import main
from sandbox_restore.model import names
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B

ROOT = Path(__file__).parents[3]
SETTING = "SPACE_SANDBOX_RESTORE_"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, and no variable of ours."""
    for name in list(os.environ):
        if name.startswith(SETTING):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    restore()
    nodes(node("n1", INTEL_A), node("n2", AMD), node("n3", ARM), node("n4", None))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `plan` on the two files, with more arguments."""

    def plan(*arguments: str) -> tuple[int, str, str]:
        code = main(["plan", "-f", "restore.yaml", "--nodes", "nodes.json", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return plan


def node(name: str, cpu: str | None = None, **parts: Any) -> dict[str, Any]:
    """A Node as `kubectl get nodes -o json` prints it."""
    labels = {"kubernetes.io/hostname": name, **parts.pop("labels", {})}
    if cpu is not None:
        labels[names.HOST_CPU_LABEL] = cpu
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "resourceVersion": "7",
            "labels": labels,
        },
        "spec": parts,
        "status": {
            "allocatable": {names.NETWORK_SLOTS: "4"},
            "conditions": [{"type": names.NODE_SERVICES_READY, "status": "True"}],
        },
    }


def nodes(*items: Mapping[str, Any]) -> None:
    document = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}
    Path("nodes.json").write_text(json.dumps(document, indent=2))


def restore(**spec: Any) -> None:
    document = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "wake-1", "namespace": "team-a"},
        "spec": {"sandboxId": "sb-1", **spec},
    }
    Path("restore.yaml").write_text(yaml.safe_dump(document))


def document(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def expressions(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = found["pod"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = required["nodeSelectorTerms"]
    answer: list[dict[str, Any]] = term["matchExpressions"]
    return answer


def term(operator: str, *values: str) -> dict[str, Any]:
    return {"key": names.HOST_CPU_LABEL, "operator": operator, "values": list(values)}


# --- the decision


def test_the_text_says_the_decision_its_counts_and_the_affinity(run: Run) -> None:
    nodes(
        node("n1", INTEL_A),
        node("n2", AMD),
        node("n3", ARM),
        node("n4", INTEL_A, unschedulable=True),
    )
    code, out, err = run("--capture-cpu", INTEL_A)
    assert (code, err) == (ExitCode.OK, "")
    lines = out.splitlines()
    assert lines[0] == "team-a/wake-1: Constrained (LoaderReachable)"
    assert "1 of 3 published CPUs can load intel-6-106-6" in lines[2]
    assert "- 1 node with a loader is cordoned: n4" in lines
    assert "cordoned               1      3   1: n4" in lines
    assert f"loaders    {INTEL_A}" in lines
    assert f"excluded   {AMD}, {ARM}" in lines
    rendered = yaml.safe_load(out.split("The pod:\n")[1])
    assert expressions({"pod": rendered})[-1] == term("NotIn", AMD, ARM)


def test_json_and_yaml_are_one_document(run: Run) -> None:
    _, as_json, _ = run("--capture-cpu", INTEL_A, "-o", "json")
    _, as_yaml, _ = run("--capture-cpu", INTEL_A, "-o", "yaml")
    found = document(as_json)
    assert yaml.safe_load(as_yaml) == found
    assert found["restore"] == "team-a/wake-1"
    assert found["placement"]["decision"] == "Constrained"
    assert found["placement"]["excluded"] == [AMD, ARM]
    assert found["unlabelled"] == 1
    assert [gap["filter"] for gap in found["filters"]][:2] == ["nodeSelector", "nodeAffinity"]
    assert expressions(found)[-1] == term("NotIn", AMD, ARM)


def test_without_the_gate_the_pod_is_the_base_pod(run: Run) -> None:
    _, out, _ = run("--capture-cpu", INTEL_A, "--no-gate", "-o", "json")
    found = document(out)
    assert found["placement"]["reason"] == "GateOff"
    assert [item["key"] for item in expressions(found)] == [names.PLACEMENT_BLOCK_LABEL]
    _, text, _ = run("--capture-cpu", INTEL_A, "--no-gate")
    assert "loader" not in text
    assert INTEL_A not in text


def test_the_gate_can_be_as_it_is_set(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--capture-cpu", INTEL_A, "--gate-as-set", "-o", "json")
    assert document(run(*arguments)[1])["placement"]["reason"] == "GateOff"
    monkeypatch.setenv(f"{SETTING}HOST_CPU_PLACEMENT_OBSERVE", "true")
    found = document(run(*arguments)[1])
    assert found["placement"]["reason"] == "GateOff"
    assert found["observed"]["decision"] == "Constrained"
    assert [item["key"] for item in expressions(found)] == [names.PLACEMENT_BLOCK_LABEL]
    monkeypatch.setenv(f"{SETTING}HOST_CPU_PLACEMENT_ENABLED", "true")
    found = document(run(*arguments)[1])
    assert (found["placement"]["decision"], found["observed"]) == ("Constrained", None)
    monkeypatch.setenv(f"{SETTING}ROLLOUT_NAMESPACES", "team-b")
    assert document(run(*arguments)[1])["placement"]["reason"] == "GateOff"
    code, _, err = run("--gate-as-set", "--no-gate")
    assert (code, err) == (
        ExitCode.USAGE,
        "error: --gate-as-set and --no-gate: only one of them can be given\n",
    )


def test_what_stands_in_several_terms_is_written_out_in_each(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{SETTING}SOURCE_NODE_HARD_PIN", "true")
    Path("snapshot.yaml").write_text(f"uploadedBy: n1\nhostCpu: {INTEL_A}\n")
    _, out, _ = run("--snapshot", "snapshot.yaml")
    assert out.count(names.PLACEMENT_BLOCK_LABEL) == 2
    assert "&id" not in out


def test_a_listed_compatible_cpu_takes_the_restore(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{SETTING}HOST_CPU_COMPATIBILITY", f"{INTEL_B}=>{AMD[:3]}-1, x=>y")
    assert run("--capture-cpu", INTEL_B)[0] == ExitCode.USAGE
    monkeypatch.setenv(f"{SETTING}HOST_CPU_COMPATIBILITY", f"{INTEL_B}=>{INTEL_A}")
    _, out, _ = run("--capture-cpu", INTEL_B, "-o", "json")
    assert document(out)["placement"]["loaders"] == [INTEL_A]
    _, out, _ = run("--capture-cpu", INTEL_B, "--compatibility", "", "-o", "json")
    assert document(out)["placement"]["reason"] == "NoReachableLoader"
    code, _, err = run("--compatibility", f"{INTEL_B}>{INTEL_A}")
    assert code == ExitCode.USAGE
    assert err.startswith("error: --compatibility: item 1 ")


def test_a_snapshot_file_tells_what_the_database_would(run: Run) -> None:
    Path("snapshot.yaml").write_text(
        "id: snap-1\ncapturedAt: 2026-02-01T00:00:00Z\nuploadedBy: n2\nancestorCpus: []\n"
    )
    _, out, _ = run("--snapshot", "snapshot.yaml", "-o", "json")
    found = document(out)["placement"]
    assert (found["captureCpu"], found["evidence"]) == (AMD, "uploader-label")
    _, out, _ = run("--snapshot", "snapshot.yaml", "--capture-cpu", ARM, "-o", "json")
    found = document(out)["placement"]
    assert (found["captureCpu"], found["evidence"]) == (ARM, "recorded")


def test_an_unknown_capture_cpu_is_said(run: Run) -> None:
    code, out, _ = run()
    assert code == ExitCode.OK
    assert "team-a/wake-1: Unconstrained (CaptureCpuUnknown)" in out


def test_a_held_restore_has_no_pod(run: Run) -> None:
    restore(hostCpuPolicy="Required")
    code, out, _ = run("--capture-cpu", INTEL_B)
    assert code == ExitCode.OK
    assert "team-a/wake-1: Held (PlacementHeld)" in out
    assert "No pod is made while the placement is held." in out
    _, out, _ = run("--capture-cpu", INTEL_B, "-o", "json")
    assert document(out)["pod"] is None


def test_group_cohort_selector_and_refusals_count(run: Run) -> None:
    nodes(
        node("n1", INTEL_A, labels={names.NODE_GROUP_LABEL: "g"}),
        node("n2", INTEL_A, labels={names.NODE_GROUP_LABEL: "h"}),
        node("n3", INTEL_A, labels={names.NODE_GROUP_LABEL: "g", "size": "xl"}),
        node("n4", AMD, labels={names.NODE_GROUP_LABEL: "g", names.COHORT_LABEL: "blue"}),
    )
    arguments = ("--capture-cpu", INTEL_A, "--node-group", "g", "-o", "json")
    found = document(run(*arguments, "--refused", "n1")[1])
    assert found["placement"]["reachableLoaders"] == 1
    assert found["nodeExclusions"] == ["n1"]
    restore(nodeSelector={"size": "xl"})
    found = document(run(*arguments)[1])
    assert found["pod"]["nodeSelector"] == {"size": "xl"}
    assert found["placement"]["reachable"] == 1
    restore(evacuation={"cohort": "blue"})
    assert document(run(*arguments)[1])["placement"]["reason"] == "NoReachableLoader"


def test_settings_come_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{SETTING}SOURCE_NODE_HARD_PIN", "true")
    monkeypatch.setenv(f"{SETTING}SHORTLIST_FALLBACKS", "1")
    Path("snapshot.yaml").write_text(f"uploadedBy: n1\nhostCpu: {INTEL_A}\n")
    found = document(run("--snapshot", "snapshot.yaml", "-o", "json")[1])
    assert found["shortlist"] == ["n1", "n4"]
    monkeypatch.setenv(f"{SETTING}POD_TEMPLATE_FILE", "template.yaml")
    Path("template.yaml").write_text("spec: {nodeName: n1}\n")
    code, _, err = run()
    assert code == ExitCode.USAGE
    assert "template.yaml: spec.nodeName" in err


def test_nodes_may_come_as_yaml_as_one_node_or_on_standard_input(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = json.loads(Path("nodes.json").read_text())
    wanted = run("--capture-cpu", INTEL_A)
    Path("nodes.json").write_text(yaml.safe_dump(given))
    assert run("--capture-cpu", INTEL_A) == wanted
    Path("nodes.json").write_text(json.dumps(given["items"][0]))
    _, out, _ = run("--capture-cpu", INTEL_A, "-o", "json")
    assert document(out)["placement"]["nodes"] == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(given)))
    assert run("--capture-cpu", INTEL_A, "--nodes", "-") == wanted
    code, _, err = run("-f", "-", "--nodes", "-")
    assert (code, err) == (
        ExitCode.USAGE,
        "error: --filename and --nodes: only one of them can be -\n",
    )


def test_yaml_may_merge_one_mapping_into_another(run: Run) -> None:
    Path("nodes.json").write_text(
        "kind: List\nitems:\n"
        f"- metadata: {{name: n1, labels: &a {{{names.HOST_CPU_LABEL}: {INTEL_A}, zone: a}}}}\n"
        f"- metadata: {{name: n2, labels: {{<<: *a, {names.HOST_CPU_LABEL}: {AMD}}}}}\n"
    )
    restore(nodeSelector={"zone": "a"})
    found = document(run("--capture-cpu", INTEL_A, "-o", "json")[1])["placement"]
    assert (found["published"], found["reachable"]) == ([AMD, INTEL_A], 2)


# --- what is wrong is told in one line, with the place


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kind: [", "restore.yaml: line 1, column 8: not YAML: "),
        ("", "restore.yaml: 0 documents; expected one"),
        ("- a\n", "restore.yaml: list; expected a mapping"),
        ("kind: Pod\napiVersion: v1\n", "restore.yaml: kind: 'v1 Pod'; expected space.pplx.net/"),
        ("a: 1\na: 2\n", "restore.yaml: line 2, column 1: not YAML: the key 'a' stands twice"),
    ],
)
def test_a_bad_restore_file(run: Run, text: str, line: str) -> None:
    Path("restore.yaml").write_text(text)
    code, out, err = run()
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"sandboxId": 7}, "spec.sandboxId: expected str, got int"),
        ({"hostCpuPolicy": "auto"}, "spec.hostCpuPolicy: invalid enum value 'auto'"),
        (
            {"hostCpuPolciy": "Auto"},
            "spec.hostCpuPolciy: no such field; did you mean hostCpuPolicy?",
        ),
        (
            {"evacuation": {"cohrt": "x"}},
            "spec.evacuation.cohrt: no such field; did you mean cohort?",
        ),
        ({"backoffLimit": 0}, "spec.backoffLimit: expected int >= 1"),
    ],
)
def test_a_restore_that_the_api_server_would_refuse(
    run: Run, spec: dict[str, Any], line: str
) -> None:
    restore(**spec)
    code, _, err = run()
    assert (code, err) == (ExitCode.USAGE, f"error: restore.yaml: {line}\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"kind": "List",\n "items": [}', "line 2, column 12: not JSON: "),
        ('{"kind": "List",\n "items": [', "line 2: not JSON: Input data was truncated"),
        ('{"kind": "List"}', "items: missing; expected nodes"),
        ('{"kind": "List", "items": 1}', "items: expected array | null, got int"),
        ('{"kind": "PodList", "items": []}', "kind: 'PodList'; expected what `kubectl get nodes"),
        ('{"kind": "List", "items": [{"kind": "Pod"}]}', "items[0].kind: 'Pod'; expected Node"),
        ('{"kind": "List", "items": [{"metadata": {}}]}', "items[0].metadata.name: missing"),
        ("kind: List\nitems: [3]\n", "items[0]: expected object, got int"),
        ("kind: NodeList\nitems: {}\n", "items: no list; expected nodes"),
        ("no nodes\n", "str; expected a mapping"),
    ],
)
def test_a_bad_node_file(run: Run, text: str, line: str) -> None:
    Path("nodes.json").write_text(text)
    code, out, err = run()
    assert (code, out) == (ExitCode.USAGE, "")
    assert err.startswith(f"error: nodes.json: {line}")
    assert err.count("\n") == 1


def test_a_bad_node_is_told_with_its_place(run: Run) -> None:
    nodes(node("n1"), node("n2", taints=[{"key": "a", "effect": 3}]))
    assert run()[2] == "error: nodes.json: items[1].spec.taints[0].effect: expected str, got int\n"
    nodes(node("n1"), node("n1"))
    assert run()[2] == "error: nodes.json: items[1].metadata.name: 'n1' stands twice\n"


def test_files_that_are_not_there_or_no_text(run: Run, folder: Path) -> None:
    code, _, err = run("--snapshot", "none.yaml")
    assert (code, err) == (
        ExitCode.USAGE,
        "error: none.yaml: cannot be read: No such file or directory\n",
    )
    assert run("--nodes", str(folder))[2].endswith("cannot be read: Is a directory\n")
    Path("nodes.json").write_bytes(b'{"kind": "\xff"}')
    assert run()[2] == "error: nodes.json: no UTF-8 at byte 11\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hostCPU: x\n", "hostCPU: no such field; did you mean hostCpu?"),
        ("capturedAt: yesterday\n", "capturedAt: invalid RFC3339 encoded datetime"),
        ("capturedAt: 2026-02-01 00:00:00\n", "capturedAt: expected datetime with a timezone"),
        ("ancestorCpus: amd\n", "ancestorCpus: expected array, got str"),
        ("id: other\n", "id: 'other'; the restore's spec.snapshotId is 'snap-1'"),
    ],
)
def test_a_bad_snapshot_file(run: Run, text: str, line: str) -> None:
    restore(snapshotId="snap-1")
    Path("snapshot.yaml").write_text(text)
    code, _, err = run("--snapshot", "snapshot.yaml")
    assert code == ExitCode.USAGE
    assert err.startswith(f"error: snapshot.yaml: {line}")
    assert err.count("\n") == 1


def test_a_refusing_node_that_is_not_given_is_a_mistake(run: Run) -> None:
    assert run("--refused", "gone")[2] == "error: --refused: 'gone' is none of the nodes given\n"


def test_no_server_is_asked_and_no_driver_loaded() -> None:
    """It runs where there is neither a cluster nor a database, in a process of its own."""
    code = (
        "import sys; from sandbox_restore.cli.main import main;"
        "code = main(['plan', '-f', 'restore.yaml', '--nodes', 'nodes.json']);"
        "print([m for m in ('kopf', 'asyncpg', 'sqlalchemy', 'kubernetes_asyncio', 'aiohttp')"
        " if m in sys.modules], code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[] 0"
