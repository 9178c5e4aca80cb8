"""The administrator's pod template: read strictly, with every problem told at once (section 7)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import yaml

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.model import names
from sandbox_restore.placement import template_checks as checks
from sandbox_restore.placement.match import PodRequirements

DEFAULT_TEMPLATE: Final = "default_pod_template.yaml"


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A template that can be rendered."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]
    """The pod spec with one container, `runner`, and without what the operator sets."""
    requirements: PodRequirements
    """What the template alone asks of a node, parsed once."""
    warnings: tuple[str, ...] = ()
    """What is allowed and probably not meant."""

    @property
    def grace_seconds(self) -> int:
        """How long a runner may take to end after SIGTERM; Kubernetes' default where unset."""
        found = self.spec.get("terminationGracePeriodSeconds")
        return 30 if found is None else int(found)

    @classmethod
    def parse(cls, text: str, *, origin: str = "pod template") -> PodTemplate:
        """Reads a Pod, or a PodTemplate, from YAML.

        Raises ConfigurationError with one line per problem: field path, value seen, value wanted.
        `origin` begins each line.
        """
        problems: list[str] = []
        warnings: list[str] = []
        document = _load(text, problems)
        pod = None if document is None else checks.as_pod(document, problems)
        if pod is not None:
            checks.check_metadata(pod.get("metadata"), problems)
            checks.check_spec(pod.get("spec"), problems, warnings)
        if problems or pod is None:
            raise ConfigurationError([f"{origin}: {problem}" for problem in problems])
        metadata = pod.get("metadata") or {}
        spec = dict(pod["spec"])
        spec["containers"] = [{**spec["containers"][0], "name": names.RUNNER_CONTAINER}]
        spec["restartPolicy"] = "Never"
        return cls(
            labels=dict(metadata.get("labels") or {}),
            annotations=dict(metadata.get("annotations") or {}),
            spec=spec,
            requirements=PodRequirements.of({"spec": spec}),
            warnings=tuple(f"{origin}: {warning}" for warning in warnings),
        )

    @classmethod
    def default(cls) -> PodTemplate:
        """The template in the package; its image is a placeholder."""
        text = files("sandbox_restore.placement").joinpath(DEFAULT_TEMPLATE).read_text("utf-8")
        return cls.parse(text, origin="built-in pod template")


class StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand once in a mapping; plain YAML keeps the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<` is no key: what stands beside it wins over what it brings
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _load(text: str, problems: list[str]) -> Mapping[str, Any] | None:
    """The one document of the text, or None with the problem told."""
    try:
        documents = [d for d in yaml.load_all(text, Loader=StrictLoader) if d is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problems.append(f"{where}not YAML: {getattr(error, 'problem', None) or error}")
        return None
    if len(documents) != 1:
        problems.append(f"{len(documents)} documents; expected exactly one Pod")
        return None
    (document,) = documents
    if not isinstance(document, dict):
        problems.append(f"{checks.shown(document)}; expected a Pod")
        return None
    before = len(problems)
    checks.check_plain(document, "", problems)
    return document if len(problems) == before else None
