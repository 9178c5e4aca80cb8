"""docs/stranded-restores.md against the code: every reason, condition and setting is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sandbox_restore.restore import pinned
from sandbox_restore.restore.blocked import Reason
from sandbox_restore.restore.redirect import Name
from sandbox_restore.settings import PREFIX, Settings

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "stranded-restores.md").read_text()
SETTINGS = ("node_gone_grace", "drain_marks", "observation_ttl", "redirects_per_minute")


def sections() -> dict[str, str]:
    """What stands under each heading that is a reason."""
    _, _, reasons = PAGE.partition("\n## Reasons, and what to do\n")
    parts = re.split(r"\n### `(\w+)`\n", reasons.split("\n## ")[0])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    return {slug(h) for h in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}


def test_every_reason_that_blocks_a_redirect_has_a_section_and_no_other() -> None:
    # The rate limit is no condition: the planner asks it when all seven hold.
    assert set(sections()) == {*Reason, "RedirectRateLimited"}


def test_every_section_says_what_it_means_how_to_look_and_what_to_do() -> None:
    for reason, text in sections().items():
        assert text.strip().startswith("*"), reason
        assert "\n- **Look:**" in text, reason
        assert "\n- **Do:**" in text, reason


def test_the_seven_conditions_are_shown_in_their_order() -> None:
    shown = re.findall(r"^\| (\d) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert shown == [(str(n), str(name)) for n, name in enumerate(Name, 1)]


def test_every_reason_why_a_pinned_node_cannot_load_is_shown() -> None:
    source = inspect.getsource(pinned)
    reasons = set(re.findall(r'cannot_load=True,\s+reason="(\w+)"', source))
    assert len(reasons) == 4
    assert [r for r in reasons if f"| `{r}` |" not in PAGE] == []


def test_no_reason_of_a_node_that_may_load_is_written_past_the_list() -> None:
    assert re.findall(r'cannot_load=False,\s+reason="', inspect.getsource(pinned)) == []


def test_every_setting_is_shown_with_its_default() -> None:
    for field in SETTINGS:
        row = next(line for line in PAGE.splitlines() if f"| `{PREFIX}{field.upper()}` |" in line)
        default = Settings.model_fields[field].default
        if isinstance(default, tuple):
            assert all(f"`{mark}`" in row for mark in default), field
    assert (
        f"| `{PREFIX}REDIRECTS_PER_MINUTE` | "
        f"`{Settings.model_fields['redirects_per_minute'].default}` |" in PAGE
    )


def test_links_lead_somewhere() -> None:
    for file, anchor in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", PAGE):
        target = (DOCS / file).read_text() if file else PAGE
        assert anchor in anchors(target), f"{file}#{anchor}"
