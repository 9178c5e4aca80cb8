"""Pages as a newcomer walks them: on a copy of the tree, from the page's own blocks, in order."""

from __future__ import annotations

from tests.docs.conftest import ROOT, Clone
from tests.support.pages import Step, steps_of

START = steps_of((ROOT / "docs" / "start.md").read_text())
ROLLOUT = steps_of((ROOT / "docs" / "rollout.md").read_text())


def test_every_command_of_the_start_page_does_what_the_page_shows(clone: Clone) -> None:
    clone.walk(START)
    assert not (clone.folder / ".cluster" / "playground").exists(), "the page cleans up"


def test_the_validation_on_mixed_cpus_does_what_the_page_shows(clone: Clone) -> None:
    running = [step.command for step in START].index("OPERATOR=$!") + 1
    two_nodes = _unseen("kubectl delete node icelake-2 cascade-1")
    end = _unseen("kill $OPERATOR && wait $OPERATOR")
    clone.walk([*START[:running], two_nodes, *ROLLOUT, end])


def _unseen(command: str) -> Step:
    return Step(command=command, shown=())
