"""Stories: one accident each, told step by step, that a rule of the protocol prevents.

With the rule in force each comes to a good end; with the rule broken (mutants.py) the same steps
lead to two live VMs, to lost state, or to a restore that is stuck.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.machine.beginnings import begin
from tests.machine.cluster import Machine, Vm
from tests.machine.ending import come_to_rest
from tests.machine.moves import Move, moves, reject
from tests.machine.story import RIGHT, WRONG, Story

Tell = Callable[[Story], Awaitable[None]]

LATE_POST = "POST /api/v1/namespaces/team-a/pods"


# --- ways to tell


async def looks(story: Story, who: int, *, times: int = 1) -> None:
    """Operator `who` (1 or 2) hears of everything and makes a pass."""
    operator = story.operators[who - 1]
    for _ in range(times):
        story.tell(operator)
        await story.step(f"operator {who} looks", lambda: story.advance(operator, 1000, fine=False))


def found(story: Story, what: str) -> list[Move]:
    return [move for move in moves(story.cluster) if move[0].startswith(what)]


class ImpossibleError(Exception):
    """The story cannot be told so: what it stands on has changed."""


async def must(story: Story, what: str) -> None:
    """The world makes that move; to node b, where there is a choice. Raises ImpossibleError."""
    possible = found(story, what)
    if not possible:
        raise ImpossibleError(f"{what}: {[m[0] for m in moves(story.cluster)]}")
    await story.step(*max(possible, key=lambda move: move[0].endswith("to b")))


async def goes_on(
    story: Story, who: int, *, without: str = "kubelet ends", rounds: int = 8
) -> None:
    """An operator and the world do what is next; the kubelet of the old VM takes its time."""
    for _ in range(rounds):
        await looks(story, who)
        next_moves = [
            m
            for m in moves(story.cluster)
            if not m[0].startswith(without) and "fails" not in m[0] and "dies" not in m[0]
        ]
        if next_moves:
            await story.step(*max(next_moves, key=lambda move: move[0].endswith("to b")))
        story.pass_time(1)


async def mislabelled(story: Story) -> None:
    """Node b gets the label of a CPU that cannot load the snapshot, and c that of one that can."""
    await story.step("b is labelled wrong", lambda: story.cluster.label("b", WRONG))
    await story.step("c is labelled right", lambda: story.cluster.label("c", RIGHT))


def machine(story: Story, node: str = "b") -> Machine:
    return story.cluster.machines[node]


def vm(story: Story) -> Vm:
    [one] = story.cluster.live()
    return one


async def ends(story: Story, *, exit_code: int = 137) -> None:
    """The VM ends by itself, and its kubelet reports it."""
    one = vm(story)
    await story.step("the VM ends", lambda: story.cluster.end(one, exit_code=exit_code))
    await must(story, "kubelet reports")


async def loaded_and_not_recorded(story: Story) -> None:
    """The VM runs on b and no operator has looked since."""
    await begin(story, "loading")
    if not story.cluster.live():
        await must(story, "runner loads")


# --- requests of the dead


async def a_post_arrives_after_its_attempt_was_cancelled(story: Story) -> None:
    """The next attempt runs already; the late pod is gated and swept."""
    await begin(story, "dead", writes=2)
    if [what for what, _ in story.conductor.late] != [LATE_POST]:
        raise ImpossibleError(story.conductor.late)
    await story.step("r1 is deleted", lambda: story.api.remove("restores", "r1"))
    await looks(story, 2)
    story.add_restore()
    await goes_on(story, 2, rounds=5)
    assert len(story.cluster.live()) == 1
    await story.step("the late POST", lambda: story.arrive(0))
    for what in ("scheduler binds", "runner loads"):
        for move in found(story, what):
            await story.step(*move)
    await come_to_rest(story)


async def a_pod_comes_late_under_the_name_of_one_that_is_gone(story: Story) -> None:
    """It is swept although its execution is active, and takes no time back from the one that is
    gone: that one is known by its UID."""
    await begin(story, "dead", writes=2)
    await goes_on(story, 2, rounds=5)
    [name] = story.api.pods
    await story.step("it is deleted by force", lambda: story.api.delete_pod(name, force=True))
    await must(story, "kubelet ends")
    await story.step("the late POST", lambda: story.arrive(0))
    story.add_restore()
    for _ in range(4):
        await looks(story, 2)
        story.pass_time(40)
    assert story.view.newest is not None
    assert story.view.newest.restore_uid == "box-r2", "the first execution is never retired"
    await come_to_rest(story)


async def a_status_comes_late(story: Story) -> None:
    """A restore has ended; the old leader's words would open it again."""
    await begin(story, "dead", writes=5)
    if "sandboxrestores/r1/status" not in story.conductor.late[0][0]:
        raise ImpossibleError(story.conductor.late)
    await story.step("deadline", lambda: story.api.edit_restore("r1", activeDeadlineSeconds=1))
    story.pass_time(5)
    await looks(story, 2, times=3)
    if "box-r1" not in story.verdicts:
        raise ImpossibleError(story.verdicts)
    await story.step("the late status", lambda: story.arrive(0))
    await come_to_rest(story)


# --- pods and their nodes


async def a_pod_is_deleted_by_force_while_it_loads(story: Story) -> None:
    """Its object stays as long as its execution needs it."""
    await loaded_and_not_recorded(story)
    [name] = story.api.pods
    await story.step("it is deleted by force", lambda: story.api.delete_pod(name, force=True))
    await goes_on(story, 2)
    await come_to_rest(story)


async def a_pod_is_bound_between_the_look_and_the_deletion(story: Story) -> None:
    """A suspended restore takes back an unbound pod, and leaves a bound one alone."""
    story.add_restore()
    await begin(story, "fresh")
    await looks(story, 1)
    await story.step("suspend", lambda: story.change_restore("r1", "suspend"))
    operator = story.operators[0]
    story.tell(operator)
    await story.step("it is about to delete", lambda: story.advance(operator, 0, fine=False))
    if not (operator.line.parked or "").startswith("DELETE"):
        raise ImpossibleError(operator.line.parked)
    await must(story, "scheduler binds")
    await must(story, "runner loads")
    await looks(story, 1)
    [pod] = story.api.pods.values()
    assert "deletionTimestamp" not in pod["metadata"], "a bound pod is taken back"
    await come_to_rest(story)


async def a_kubelet_rejects_a_pod_whose_vm_runs(story: Story) -> None:
    """`Failed`, and nothing said of the container."""
    await begin(story, "running")
    one = vm(story)
    await story.step("rejected", lambda: reject(story.cluster, one))
    story.add_restore()
    await goes_on(story, 2)
    await come_to_rest(story)


async def a_released_pod_is_deleted_by_force(story: Story) -> None:
    """Its node is Ready, and its kubelet needs its time."""
    await begin(story, "running")
    [name] = story.api.pods
    await story.step("it is deleted by force", lambda: story.api.delete_pod(name, force=True))
    story.add_restore()
    await goes_on(story, 2)
    await come_to_rest(story)


async def a_node_loses_contact_and_comes_back(story: Story) -> None:
    """Not Ready is not dead."""
    await begin(story, "running")
    await story.step("b loses contact", lambda: story.cluster.lose_contact(machine(story)))
    await must(story, "node b is marked not Ready")
    story.add_restore()
    await looks(story, 2, times=2)
    await story.step("b is back", lambda: story.cluster.find_contact(machine(story)))
    await goes_on(story, 2)
    await come_to_rest(story)


async def a_node_object_is_deleted_and_its_machine_runs_on(story: Story) -> None:
    """Absent is not dead before the grace period is over."""
    await begin(story, "running")
    await story.step("b loses its Node", lambda: story.cluster.delete_node(machine(story)))
    await must(story, "PodGC writes Failed")
    await must(story, "PodGC forces")
    story.add_restore()
    await looks(story, 2, times=2)
    await must(story, "node b registers again")
    await goes_on(story, 2)
    await come_to_rest(story)


async def another_machine_takes_the_name_of_one_that_runs_on(story: Story) -> None:
    """It is Ready and has never heard of the pod, while the old machine is only cut off."""
    await begin(story, "running")
    await story.step("b loses its Node", lambda: story.cluster.delete_node(machine(story)))
    await must(story, "PodGC writes Failed")
    await must(story, "PodGC forces")
    await story.step("another machine", lambda: story.cluster.replace(machine(story)))
    story.add_restore()
    await looks(story, 2)
    story.pass_time(62)
    await looks(story, 2)
    lost = story.rig.db.call("node_state_lost", sandbox_id=story.id)
    await story.step("node_state_lost", lambda: story.report(lost))
    await goes_on(story, 2)
    await come_to_rest(story)


async def a_machine_registers_again_and_loses_contact(story: Story) -> None:
    """Another UID may be the same machine, its VM still running: that the old one is absent proves
    nothing while the new one does not speak."""
    await begin(story, "running")
    await story.step("b loses its Node", lambda: story.cluster.delete_node(machine(story)))
    await must(story, "node b registers again")
    await looks(story, 1)
    await story.step("b loses contact", lambda: story.cluster.lose_contact(machine(story)))
    await must(story, "node b is marked not Ready")
    story.pass_time(300)
    story.add_restore()
    await looks(story, 1)
    assert story.view.active is not None, "its execution is retired while its VM runs"
    await story.step("b is back", lambda: story.cluster.find_contact(machine(story)))
    await come_to_rest(story)
    assert len(story.cluster.live()) == 1


async def an_operator_with_an_old_row_sees_a_pod_of_today(story: Story) -> None:
    """To its old view the pod belongs to nothing; it asks again before it deletes."""
    story.add_restore(suspend=True)
    await begin(story, "fresh")
    await looks(story, 2)
    await story.step("go on", lambda: story.change_restore("r1", "go on"))
    await looks(story, 1)
    await must(story, "scheduler binds")
    await must(story, "runner loads")
    old = story.operators[1]
    for news in ("pods", "restores"):
        story.tell(old, news)
    await story.step("operator 2 looks", lambda: story.advance(old, 1000, fine=False))
    [pod] = story.api.pods.values()
    assert "deletionTimestamp" not in pod["metadata"], "the pod of the active execution goes"
    await come_to_rest(story)


# --- state that exists


async def unrecorded_state_on_a_node_that_is_labelled_anew(story: Story) -> None:
    """Only the marker says that the node holds what exists nowhere else."""
    await begin(story, "running")
    story.cluster.change(vm(story))
    await ends(story)
    await looks(story, 1)
    await mislabelled(story)
    story.add_restore()
    await goes_on(story, 1)
    await come_to_rest(story)


async def a_command_was_recorded_in_an_attempt_that_never_said_ready(story: Story) -> None:
    """No marker is set then: what was recorded guards the state."""
    await loaded_and_not_recorded(story)
    one = vm(story)
    await story.step("command", lambda: story.report(story.platform.record("sandbox_command", one)))
    await ends(story)
    await looks(story, 1)
    await mislabelled(story)
    await goes_on(story, 1)
    await come_to_rest(story)


async def a_newer_snapshot_is_on_its_way(story: Story) -> None:
    await begin(story, "lost")
    await mislabelled(story)
    story.add_restore()
    await goes_on(story, 1)
    await come_to_rest(story)


async def a_node_is_labelled_anew_while_a_local_attempt_runs(story: Story) -> None:
    """A plan that comes from a pod is never redirected."""
    story.add_restore()
    await begin(story, "stored")
    await looks(story, 1)
    await must(story, "scheduler binds")
    await must(story, "runner loads")
    await mislabelled(story)
    await goes_on(story, 1, without="kubelet")
    await come_to_rest(story)


async def suspended_and_nobody_heard_of_the_snapshot(story: Story) -> None:
    """The sandbox is suspended on b; the report of its snapshot is lost for good."""
    await begin(story, "running")
    one = vm(story)
    story.cluster.change(one)
    await story.step("suspend", lambda: story.platform.capture(one, suspend=True))
    story.platform.mail = [r for r in story.platform.mail if r.function == "sandbox_suspended"]
    [report] = story.platform.mail
    await story.step("reported", lambda: story.report(story.platform.deliver(report)))
    await must(story, "kubelet reports")
    await looks(story, 1)
    assert story.view.sandbox.local_artifact_marker


async def its_node_is_drained(story: Story) -> None:
    """A give-up is for what a stuck restore left behind, not for the only copy."""
    await suspended_and_nobody_heard_of_the_snapshot(story)
    draining = "space.pplx.net/draining"
    await story.step("b is drained", lambda: story.cluster.taint("b", draining))
    await mislabelled(story)
    story.add_restore()
    await goes_on(story, 1)
    await come_to_rest(story)


async def its_pod_is_deleted_before_it_is_bound(story: Story) -> None:
    """The attempt is over, and the sandbox lives where it lived."""
    await suspended_and_nobody_heard_of_the_snapshot(story)
    story.add_restore()
    await looks(story, 1)
    name = next(n for n, pod in story.api.pods.items() if not pod["spec"].get("nodeName"))
    await story.step("deleted", lambda: story.api.delete_pod(name))
    await goes_on(story, 1)
    await come_to_rest(story)


async def a_vm_changed_something_before_its_pod_said_ready(story: Story) -> None:
    """It ended without the runner's word: the next attempt tries there first."""
    await loaded_and_not_recorded(story)
    story.cluster.change(vm(story))
    await ends(story)
    await goes_on(story, 1)
    await come_to_rest(story)


async def the_sandbox_ran_elsewhere_between_the_look_and_the_lock(story: Story) -> None:
    """By the platform's own means, and what it did is in a snapshot that the look did not see."""
    story.add_restore(suspend=True)
    await begin(story, "stored")
    await mislabelled(story)
    await looks(story, 1)
    await story.step("go on", lambda: story.change_restore("r1", "go on"))
    one = story.operators[0]
    story.tell(one, "restores")
    await story.step("about to lock", lambda: story.advance(one, 0, fine=False))
    if one.line.parked != "lock":
        raise ImpossibleError(one.line.parked)
    platform = story.platform
    await story.step("platform starts", lambda: story.report(platform.start(story.view)))
    ran = vm(story)
    await story.step("command", lambda: story.report(platform.record("sandbox_command", ran)))
    await story.step("suspend", lambda: platform.capture(ran, suspend=True))
    for _ in range(3):
        report = platform.deliverable()[0]
        await story.step(report.label, lambda report=report: story.report(platform.deliver(report)))  # type: ignore[misc]
    await must(story, "kubelet reports")
    await story.step("goes on", lambda: story.advance(one, 1000, fine=False))
    await goes_on(story, 1)
    await come_to_rest(story)


async def a_restore_that_has_succeeded_is_deleted(story: Story) -> None:
    """The sandbox stays."""
    story.add_restore()
    await begin(story, "fresh")
    await goes_on(story, 1)
    await come_to_rest(story)
    assert "box-r1" in story.cluster.succeeded
    await story.step("r1 is deleted", lambda: story.api.remove("restores", "r1"))
    await goes_on(story, 1)
    assert len(story.cluster.live()) == 1
    await come_to_rest(story)


STORIES: tuple[Tell, ...] = (
    a_post_arrives_after_its_attempt_was_cancelled,
    a_pod_comes_late_under_the_name_of_one_that_is_gone,
    a_status_comes_late,
    a_pod_is_deleted_by_force_while_it_loads,
    a_pod_is_bound_between_the_look_and_the_deletion,
    a_kubelet_rejects_a_pod_whose_vm_runs,
    a_released_pod_is_deleted_by_force,
    a_node_loses_contact_and_comes_back,
    a_node_object_is_deleted_and_its_machine_runs_on,
    another_machine_takes_the_name_of_one_that_runs_on,
    a_machine_registers_again_and_loses_contact,
    an_operator_with_an_old_row_sees_a_pod_of_today,
    unrecorded_state_on_a_node_that_is_labelled_anew,
    a_command_was_recorded_in_an_attempt_that_never_said_ready,
    a_newer_snapshot_is_on_its_way,
    a_node_is_labelled_anew_while_a_local_attempt_runs,
    its_node_is_drained,
    its_pod_is_deleted_before_it_is_bound,
    a_vm_changed_something_before_its_pod_said_ready,
    the_sandbox_ran_elsewhere_between_the_look_and_the_lock,
    a_restore_that_has_succeeded_is_deleted,
)
