"""The last scene: what a platform engineer asks, and where everything else can be seen."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.demo.findings import StoryError
from tests.support.demo.narrator import Narrator
from tests.support.demo.rescue import THIRD, Stranded
from tests.support.demo.scene import Scene

_ROOT = Path(__file__).parents[3]
_PREFIX = "SPACE_SANDBOX_RESTORE_"


async def ask(
    scene: Scene, left: Stranded, narrator: Narrator, *, settings: Mapping[str, str]
) -> None:
    """Run the commands on what the acts have left."""
    narrator.act("What a platform engineer asks")
    narrator.say(
        "Can the fleet restore what it has stored? Who loads whose snapshots, and what does each "
        "CPU guard?"
    )
    narrator.command("sandbox-restore fleet", await _printed(scene, "fleet", settings=settings))
    narrator.gap()
    narrator.say(
        "May nodes be drained, once what runs there is suspended and stored? One may. All of one "
        "CPU may not."
    )
    nodes = [node.name for node in scene.fleet if node.name.startswith("icx-8370c-d4sv5")]
    for asked, code in ((nodes[:1], 0), (nodes, 1)):
        words = ("fleet", "drain-check", "--suspended-first", *asked)
        narrator.command(
            f"sandbox-restore {' '.join(words)}",
            await _printed(scene, *words, settings=settings, code=code),
        )
    narrator.gap()
    narrator.say("Why did that one restore end where it is?")
    name = f"{left.marked.namespace}/{left.marked.restore_name}{THIRD}"
    narrator.command(
        f"sandbox-restore why {name}",
        await _printed(scene, "why", name, settings=settings, code=1),
    )


async def _printed(
    scene: Scene, *arguments: str, settings: Mapping[str, str], code: int = 0
) -> str:
    """What a command prints on standard output. Raises StoryError when it ends otherwise."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandbox_restore.cli.main", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(_ROOT / "operator"),
            "KUBECONFIG": str(scene.plane.kubeconfig),
            f"{_PREFIX}DATABASE_URL": scene.dsn,
            **{f"{_PREFIX}{name.upper()}": value for name, value in settings.items()},
        },
    )
    out, err = await process.communicate()
    if process.returncode != code:
        words = err.decode(errors="replace").strip() or out.decode(errors="replace").strip()
        raise StoryError(
            f"sandbox-restore {' '.join(arguments)} ended with {process.returncode}, not {code}: "
            f"{words}"
        )
    return out.decode()


def what_next(narrator: Narrator) -> None:
    """Say what a person may try now, and where each part can be seen."""
    narrator.act("What to try next")
    python = sys.executable.replace(f"{Path.cwd()}/", "")
    for text in (
        "docs/start.md: your own restore in ten minutes, step by step.",
        "make cluster: leaves such a control plane running and prints its KUBECONFIG; "
        "make cluster-stop ends it.",
        f"{python} -m tests.support.demo --keep: tells the story and waits with everything "
        "running, for kubectl in another terminal.",
        "make test: every test, on the same real parts.",
    ):
        narrator.point(text)
    narrator.gap()
    narrator.say("Where to see the rest:")
    for text in (
        "install it: charts/sandbox-restore, docs/install.md; rights and threats: docs/security.md",
        "why, fleet, drain-check, doctor, retire, plan: docs/commands.md",
        "metrics, alerts, dashboard, logs: docs/metrics.md, docs/runbooks/, docs/logs.md, "
        "charts/sandbox-restore/files",
        "turn the gate on step by step: docs/rollout.md",
        "the node agent: docs/node-agent.md; all pages as a site: make docs",
    ):
        narrator.point(text)
