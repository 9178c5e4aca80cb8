"""What every table and column means, where `psql` and any client can read it."""

from __future__ import annotations

from sandbox_restore.store.migrations.run import run

revision = "0002"
down_revision = "0001"

SCHEMA = "Shared by the platform and the sandbox-restore operator; the contract is docs/schema.md."

TABLES = {
    "sandbox": "One microVM identity.",
    "snapshot": "One capture of a sandbox.",
    "execution": "One run of a sandbox in one pod; active until it is retired, exactly once.",
    "load_observation": "What one host did with one snapshot: evidence, never a rule by itself.",
    "node_cpu_history": "Which CPU each Node (name and UID) was seen to carry, and when.",
}

SANDBOX = {
    "id": "Identity of the sandbox; a Kubernetes label value.",
    "namespace": "The Kubernetes namespace that owns the sandbox.",
    "namespace_uid": "UID of that namespace, filled at the first restore; a re-created namespace "
    "of the same name owns nothing.",
    "state": "suspended, restoring, running or failed.",
    "node_group": "The node group the sandbox is confined to; null: none.",
    "node_selector": "Node labels that every pod of the sandbox requires.",
    "pinned_node": "Name of the node the sandbox lives on; null: any may take it.",
    "local_artifact_marker": "The pinned node holds state that exists nowhere else.",
    "last_command_at": "The newest command that was recorded; never goes back.",
    "last_access_at": "The newest access that reached a running VM; never goes back.",
    "restore_started_at": "When the row entered restoring; null in every other state.",
    "version": "Rises with every change of the row, its snapshots or its executions.",
}

SNAPSHOT = {
    "id": "Identity of the snapshot, unique over all sandboxes.",
    "sandbox_id": "The sandbox it was captured from.",
    "kind": "full (memory, vCPU state and disk) or diff.",
    "state": "uploading, ready or failed.",
    "captured_at": "When the VM was paused for it; null while uploading: not yet known.",
    "uploaded_by": "Name of the node that uploaded it, the source node; null: not known.",
    "host_cpu": "CPU of the host that captured it, canonical; null: not recorded.",
    "ancestor_cpus": "Capture CPUs of the snapshots it descends from, its own left out.",
    "storage_uri": "Where it lies in storage; null: nowhere but on the node.",
}

EXECUTION = {
    "id": "Identity of the execution; the pod names it.",
    "seq": "Order of creation; the newest execution of a sandbox has the highest.",
    "sandbox_id": "The sandbox it runs.",
    "snapshot_id": "The snapshot, of the same sandbox, it was started from; null: not known.",
    "source": "storage, local (what the pinned node holds) or platform (by its own means).",
    "restore_uid": "UID of the SandboxRestore whose attempt it is; null: the platform's.",
    "restore_name": "Name of that SandboxRestore; null: the platform's.",
    "attempt": "Number of the attempt of that SandboxRestore, from 1; 0: the platform's.",
    "pod_name": "Name of its pod.",
    "pod_uid": "UID of its pod; null: not known yet. No two executions of a sandbox share one.",
    "node_name": "Name of the node its pod was bound to; null: not known yet.",
    "node_uid": "UID of that Node; null: not known.",
    "node_cpu": "Host-CPU label of that Node at that time; null: none, or not known.",
    "target_node": "The pinned node that a local execution must run on.",
    "prior_pin": "The pin of the row before this execution began.",
    "gate": "Whether host-CPU placement applied, as evaluated when the attempt began.",
    "capture_cpu": "Capture CPU of the snapshot as evaluated at the begin; null: not known.",
    "state": "active or retired; at most one of a sandbox is active.",
    "outcome": "Why it was retired: suspended, failed, lost, superseded or cancelled.",
    "failure_class": "How the load failed.",
    "failure_message": "What the runner, or Kubernetes, said.",
    "created_at": "When the attempt began.",
    "loaded_at": "When its VM was seen to run; null: never.",
    "suspended_at": "When its VM was suspended, as reported; set with outcome suspended only.",
    "released_at": "When its pod lost owner and finalizer; null: not released.",
    "retired_at": "When it was retired; null: active.",
}

LOAD_OBSERVATION = {
    "execution_id": "The execution it was observed in.",
    "sandbox_id": "Its sandbox.",
    "snapshot_id": "The snapshot; null: not known.",
    "result": "loaded or cpu-incompatible.",
    "capture_cpu": "Capture CPU of the snapshot; null: not known.",
    "node_name": "Name of the node.",
    "node_uid": "UID of the Node; null: not known.",
    "node_cpu": "Host-CPU label of the Node at that time; null: none.",
    "observed_at": "When.",
}

NODE_CPU_HISTORY = {
    "node_name": "Name of the Node.",
    "node_uid": "UID of the Node: a replacement of the same name has another.",
    "host_cpu": "The canonical CPU it carried.",
    "first_seen_at": "When it was first seen to carry it.",
    "last_seen_at": "When it was last seen to carry it.",
}

COLUMNS = {
    "sandbox": SANDBOX,
    "snapshot": SNAPSHOT,
    "execution": EXECUTION,
    "load_observation": LOAD_OBSERVATION,
    "node_cpu_history": NODE_CPU_HISTORY,
}


def upgrade() -> None:
    run(f"COMMENT ON SCHEMA sandbox_restore IS {quoted(SCHEMA)}")
    for table, text in TABLES.items():
        run(f"COMMENT ON TABLE sandbox_restore.{table} IS {quoted(text)}")
        for column, meaning in COLUMNS[table].items():
            run(f"COMMENT ON COLUMN sandbox_restore.{table}.{column} IS {quoted(meaning)}")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
