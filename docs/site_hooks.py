"""What MkDocs does not do by itself: links out of docs/, folders in the menu, the front page.

A link is written as it works in the repository. On the site, a file outside docs/ that some page
links to lies under repository/, and links to it are rewritten. Files keep their text: what is
Markdown becomes a page. A link to a folder leads to its README.md, or is plain text on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

OUTSIDE = "repository"
INDEX = "README.md"
FRONT = INDEX
"""The front page of the repository, and of the site."""

_FOLDER_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s#:]+)\)")
# Links of Markdown, neither in fenced blocks nor in inline code: those are told apart below.
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Write folders of the menu out, and leave out what this checkout does not have."""
    config.nav = list(_present(config.nav, Path(config.docs_dir)))
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the front page, and all outside of docs/ that pages link to, however indirectly."""
    root = Path(config.config_file_path).parent
    files.append(File.generated(config, "index.md", abs_src_path=str(root / FRONT)))
    seen = {FRONT}
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + [FRONT]
    while waiting:
        path = waiting.pop()
        if not path.endswith(".md") or not (root / path).is_file():
            continue
        for target in _targets(root, path):
            if target.startswith("docs/") or target in seen or not (root / target).is_file():
                continue
            seen.add(target)
            waiting.append(target)
            there = str(root / target)
            file = File.generated(config, f"{OUTSIDE}/{target}", abs_src_path=there)
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page to where things lie on the site; what is not there is a warning."""
    root = Path(config.config_file_path).parent
    here = _in_repository(page.file.src_uri)

    def unlinked(match: re.Match[str]) -> str:
        folder = root / _resolved(match[2], here)
        return match[1] if folder.is_dir() and not (folder / INDEX).is_file() else match[0]

    def moved(match: re.Match[str]) -> str:
        uri = _on_site(_file_of(root, _resolved(match[1], here)))
        if files.get_file_from_path(uri) is None:
            return match[0]  # MkDocs says so
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + (
            match[2] or ""
        )

    return "".join(
        text if is_code else _LINK.sub(moved, _FOLDER_LINK.sub(unlinked, text))
        for is_code, text in _split(markdown)
    )


def _targets(root: Path, path: str) -> Iterator[str]:
    """Files of the repository that a Markdown file links to."""
    for is_code, part in _split((root / path).read_text()):
        if not is_code:
            for match in _LINK.finditer(part):
                yield _file_of(root, _resolved(match[1], path))


def _file_of(root: Path, path: str) -> str:
    """What a path stands for: of a folder, the page that explains it."""
    return f"{path}/{INDEX}" if (root / path).is_dir() else path


def _resolved(link: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _in_repository(uri: str) -> str:
    if uri == "index.md":
        return FRONT
    outside = uri.removeprefix(f"{OUTSIDE}/")
    return outside if outside != uri else f"docs/{uri}"


def _on_site(path: str) -> str:
    if path == FRONT:
        return "index.md"
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"{OUTSIDE}/{path}"


def _split(text: str) -> Iterator[tuple[bool, str]]:
    """Code and the rest, in order; a link whose text is code is cut, its target is not."""
    end = 0
    for match in _CODE.finditer(text):
        yield False, text[end : match.start()]
        yield True, match[0]
        end = match.end()
    yield False, text[end:]


def _present(nav: Any, docs: Path) -> Iterator[Any]:
    for item in nav:
        if isinstance(item, str):
            if (docs / item).is_file():
                yield item
            continue
        ((title, what),) = item.items() if isinstance(item, Mapping) else ()
        if isinstance(what, list):
            below: Any = list(_present(what, docs))
        elif what == f"{OUTSIDE}/":
            below = [f"{OUTSIDE}/{name}" for name in ("CONTRIBUTING.md", "CHANGELOG.md")]
        elif what.endswith("/"):
            below = sorted(str(path.relative_to(docs)) for path in (docs / what).glob("*.md"))
            below.sort(key=lambda path: not path.endswith("README.md"))
        else:
            below = what if what == "index.md" or (docs / what).is_file() else None
        if below:
            yield {title: below}
