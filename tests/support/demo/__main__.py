"""`python -m tests.support.demo`: the whole story; exit code 0 when it came out as told."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.support.demo import acts, rescue, tools
from tests.support.demo.findings import Findings, StoryError
from tests.support.demo.narrator import Narrator
from tests.support.demo.scene import Scene, raised
from tests.support.operator_process import OperatorError
from tests.support.simnode import check_record
from tests.support.testbed import TestbedError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main() -> int:
    """Tell the story."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.demo", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="at the end, wait with everything running until Ctrl-C"
    )
    keep: bool = parser.parse_args().keep
    narrator = Narrator()
    # The embedded Postgres asks for a folder of the login session, which CI runs do not have.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    try:
        asyncio.run(_tell(narrator, keep=keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        narrator.failed("interrupted; everything was ended")
        return INTERRUPTED
    except StoryError as error:
        narrator.failed(f"The story did not come out as told: {error}")
        return 1
    except (TestbedError, OperatorError) as error:
        narrator.failed(f"The story could not be told: {error}")
        return 1
    return 0


async def _tell(narrator: Narrator, *, keep: bool) -> None:
    began = time.monotonic()
    task = asyncio.current_task()
    assert task is not None
    # A CI run that is cancelled ends the story like Ctrl-C, so that nothing is left behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    narrator.title("sandbox-restore: Firecracker restores on a fleet of mixed CPUs")
    narrator.say(
        "Real here: the Kubernetes control plane, Postgres, the operator. Simulated: the nodes. "
        "They play kubelet and restore runner, and no VM runs."
    )
    nodes = acts.fleet()
    with tempfile.TemporaryDirectory(prefix="sandbox-restore-demo-") as folder:
        async with raised(
            nodes, folder=Path(folder), narrator=narrator, load_seconds=acts.LOAD_SECONDS
        ) as scene:
            acts.show_fleet(nodes, matrix=scene.matrix, narrator=narrator)
            before = await acts.gate_off(scene, narrator)
            after = await acts.gate_on(scene, narrator)
            await acts.look(scene, after, narrator)
            acts.compare(before, after, narrator)
            left = await _rescue(scene, before, narrator)
            _check_record(scene)
            settings = acts.gate_on_settings(scene.matrix)
            await tools.ask(scene, left, narrator, settings=settings)
            tools.what_next(narrator)
            if keep:
                await _keep(scene, narrator)
    narrator.gap()
    narrator.good(f"The story came out as told, in {time.monotonic() - began:.0f} s.")


async def _rescue(scene: Scene, before: Findings, narrator: Narrator) -> rescue.Stranded:
    """Tell the second act: the sandboxes that the first left stranded."""
    left = await rescue.left_by(scene, before)
    off = await rescue.gate_off(scene, left, narrator, settings=acts.OPERATOR)
    settings = acts.gate_on_settings(scene.matrix)
    on = await rescue.gate_on(scene, left, narrator, settings=settings)
    await rescue.look(scene, on, left, narrator)
    rescue.compare(off, on, narrator)
    return left


def _check_record(scene: Scene) -> None:
    """Check that no sandbox ever had two live VMs, whatever the acts looked at."""
    violations = check_record(scene.nodes.record.path)
    if violations:
        raise StoryError("; ".join(violations[:3]))


async def _keep(scene: Scene, narrator: Narrator) -> None:
    """Run the operator on until Ctrl-C."""
    async with scene.operator(**acts.gate_on_settings(scene.matrix)):
        narrator.gap()
        narrator.say("Everything runs until Ctrl-C. In another terminal:")
        narrator.point(f"export KUBECONFIG={scene.plane.kubeconfig}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
