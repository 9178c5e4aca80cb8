"""What a pod template may say: one function per part, each problem with path, seen and wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandbox_restore.model import names
from sandbox_restore.placement.match import (
    TERMS_PATH,
    PodRequirements,
    label_key_problem,
    label_value_problem,
)

DOWNWARD_ENV: Final[Mapping[str, str]] = {
    "NODE_NAME": "spec.nodeName",
    "POD_NAME": "metadata.name",
    "POD_NAMESPACE": "metadata.namespace",
    "POD_UID": "metadata.uid",
}
"""Environment variables of the runner that tell it where it is (runner contract)."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
PLACEHOLDER_REGISTRY: Final = ".invalid/"
"""In the image of the built-in template, which no one can pull."""

_OPERATOR_ENV: Final = (names.PLAN_ENV, *DOWNWARD_ENV)
_METADATA: Final = ("labels", "annotations")
_DECIDED: Final[Mapping[str, str]] = {
    "nodeName": "the scheduler picks the node",
    "schedulingGates": "the operator sets its own gate",
    "ephemeralContainers": "they can only be added to a running pod",
}
"""Fields of the spec that a template may not set, and why."""
_PODS_OWN: Final = {
    "name": "the operator names each pod",
    "generateName": "the operator names each pod",
    "namespace": "a pod runs in the namespace of its SandboxRestore",
    "ownerReferences": "the operator sets the owner",
    "finalizers": "the operator sets its own finalizer",
}

Problems = list[str]


def shown(value: object) -> str:
    """A value in a message: short, and unmistakably a value."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_plain(value: object, path: str, problems: Problems) -> None:
    """Everything must be JSON: YAML also knows dates, sets and keys that are no strings."""
    if isinstance(value, dict):
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            if not isinstance(key, str):
                problems.append(f"{where}: key {shown(key)}; expected a string, put it in quotes")
            else:
                check_plain(item, where, problems)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            check_plain(item, f"{path}[{i}]", problems)
    elif not (value is None or isinstance(value, str | bool | int | float)):
        problems.append(f"{path}: {shown(value)}; expected a string, put it in quotes")


def as_pod(document: Mapping[str, Any], problems: Problems) -> Mapping[str, Any] | None:
    """The Pod of a document: a Pod, a PodTemplate, or just metadata and spec."""
    kind = document.get("kind", "Pod")
    if kind not in ("Pod", "PodTemplate") or document.get("apiVersion", "v1") != "v1":
        seen = f"{document.get('apiVersion', 'v1')} {kind}"
        problems.append(f"kind: {shown(seen)}; expected v1 Pod or v1 PodTemplate")
        return None
    pod = document
    allowed = {"apiVersion", "kind", "metadata", "spec", "status"}
    if kind == "PodTemplate":
        pod, allowed = document.get("template") or {}, {"metadata", "spec"}
        if not isinstance(pod, dict):
            problems.append(f"template: {shown(pod)}; expected metadata and spec")
            return None
    problems.extend(
        f"{key}: not a field of a {kind}; expected metadata and spec"
        for key in pod
        if key not in allowed
    )
    return pod


def check_metadata(metadata: object, problems: Problems) -> None:
    """Labels and annotations only, none of them the operator's."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        problems.append(f"metadata: {shown(metadata)}; expected labels and annotations")
        return
    for key, value in metadata.items():
        if key in _METADATA or value is None:
            continue
        why = _PODS_OWN.get(key, "a template has labels and annotations only")
        problems.append(f"metadata.{key}: {shown(value)}; expected nothing: {why}")
    for part in _METADATA:
        entries = _strings(metadata.get(part), f"metadata.{part}", problems)
        for key, value in entries.items():
            where = f"metadata.{part}[{key!r}]"
            if why := label_key_problem(key):
                problems.append(f"{where}: the key {why}")
            elif _is_operators(key):
                problems.append(f"{where}: {shown(value)}; expected nothing: the operator sets it")
            elif part == "labels" and (why := label_value_problem(value)):
                problems.append(f"{where}: {shown(value)}; the value {why}")


def _is_operators(key: str) -> bool:
    """The operator sets the labels of its own domain, and who manages the pod."""
    domain = key.rpartition("/")[0]
    ours = domain == names.GROUP or domain.endswith(f".{names.GROUP}")
    return ours or key == MANAGED_BY_LABEL


def check_spec(spec: object, problems: Problems, warnings: Problems) -> None:
    """One runner container with a readiness probe, and nothing that the operator decides."""
    if not isinstance(spec, dict):
        problems.append(f"spec: {shown(spec)}; expected a pod spec")
        return
    for key, why in _DECIDED.items():
        if spec.get(key):
            problems.append(f"spec.{key}: {shown(spec[key])}; expected nothing: {why}")
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int) or grace < 0):
        problems.append(
            f"spec.terminationGracePeriodSeconds: {shown(grace)}; expected a whole number from 0"
        )
    if spec.get("restartPolicy") not in (None, "Never"):
        warnings.append(
            f"spec.restartPolicy: {shown(spec['restartPolicy'])} is replaced by 'Never': a"
            " microVM that ended is not started again in the same pod"
        )
    if spec.get("activeDeadlineSeconds") is not None:
        warnings.append(
            f"spec.activeDeadlineSeconds: {shown(spec['activeDeadlineSeconds'])} ends the sandbox"
            " itself after that time, however well it runs"
        )
    _check_containers(spec.get("containers"), problems, warnings)
    _check_init_containers(spec.get("initContainers"), problems)
    _check_placement(spec, problems, warnings)


def _check_containers(containers: object, problems: Problems, warnings: Problems) -> None:
    if not isinstance(containers, list) or len(containers) != 1:
        count = f"{len(containers)} containers" if isinstance(containers, list) else "none"
        problems.append(
            f"spec.containers: {count}; expected exactly one, named {names.RUNNER_CONTAINER!r}"
        )
        return
    (runner,) = containers
    path = "spec.containers[0]"
    if not isinstance(runner, dict):
        problems.append(f"{path}: {shown(runner)}; expected a container")
        return
    if runner.get("name") not in (None, names.RUNNER_CONTAINER):
        problems.append(
            f"{path}.name: {shown(runner['name'])}; expected {names.RUNNER_CONTAINER!r}"
        )
    if not isinstance(runner.get("image"), str) or not runner["image"]:
        problems.append(f"{path}.image: {shown(runner.get('image'))}; expected an image")
    elif PLACEHOLDER_REGISTRY in runner["image"]:
        warnings.append(
            f"{path}.image: {runner['image']} is a placeholder; set your runner's image"
        )
    if not isinstance(runner.get("readinessProbe"), dict) or not runner["readinessProbe"]:
        problems.append(
            f"{path}.readinessProbe: {shown(runner.get('readinessProbe'))}; expected a probe:"
            " Ready means that the runner has loaded the snapshot"
        )
    if runner.get("livenessProbe"):
        warnings.append(
            f"{path}.livenessProbe: a failing probe ends the microVM for good, for the pod is not"
            " restarted"
        )
    policy = runner.get("terminationMessagePolicy")
    if policy not in (None, "File", "FallbackToLogsOnError"):
        problems.append(
            f"{path}.terminationMessagePolicy: {shown(policy)}; expected File or"
            " FallbackToLogsOnError"
        )
    _check_env(runner.get("env"), f"{path}.env", problems)
    _check_slots(runner.get("resources"), f"{path}.resources", problems, warnings)


def _check_env(env: object, path: str, problems: Problems) -> None:
    for i, item in enumerate(_mappings(env, path, problems)):
        if item.get("name") in _OPERATOR_ENV:
            problems.append(
                f"{path}[{i}].name: {shown(item['name'])}; expected another name: the operator"
                " sets this variable"
            )


def _check_slots(resources: object, path: str, problems: Problems, warnings: Problems) -> None:
    """Section 2: every sandbox pod requests a network slot."""
    if resources is None:
        resources = {}
    if not isinstance(resources, dict):
        problems.append(f"{path}: {shown(resources)}; expected requests and limits")
        return
    limits = resources.get("limits") or {}
    if not isinstance(limits, dict) or names.NETWORK_SLOTS not in limits:
        warnings.append(
            f"{path}.limits: no {names.NETWORK_SLOTS}: the pod takes no network slot, so nodes"
            " that offer none, or have none left, get it all the same"
        )


def _check_init_containers(containers: object, problems: Problems) -> None:
    for i, item in enumerate(_mappings(containers, "spec.initContainers", problems)):
        if item.get("name") == names.RUNNER_CONTAINER:
            problems.append(
                f"spec.initContainers[{i}].name: {shown(item['name'])}; expected another name"
            )


def _check_placement(spec: Mapping[str, Any], problems: Problems, warnings: Problems) -> None:
    """Node selector, required affinity and tolerations, as the API server would take them."""
    before = len(problems)
    for key, value in _strings(spec.get("nodeSelector"), "spec.nodeSelector", problems).items():
        where = f"spec.nodeSelector[{key!r}]"
        if why := label_key_problem(key):
            problems.append(f"{where}: the key {why}")
        elif why := label_value_problem(value):
            problems.append(f"{where}: {shown(value)}; the value {why}")
    for i, item in enumerate(_mappings(spec.get("tolerations"), "spec.tolerations", problems)):
        _check_toleration(item, f"spec.tolerations[{i}]", problems, warnings)
    terms = _required_terms(spec, problems)
    if terms is None or len(problems) > before:
        return
    parsed = PodRequirements.of({"spec": spec})
    problems.extend(parsed.problems)
    for i, term in enumerate(parsed.terms or ()):
        if term.empty:
            warnings.append(f"{TERMS_PATH}[{i}]: empty: matches no node, and is kept so")


def _check_toleration(
    item: Mapping[str, Any], path: str, problems: Problems, warnings: Problems
) -> None:
    for name in ("key", "operator", "value", "effect"):
        if not isinstance(item.get(name) or "", str):
            problems.append(f"{path}.{name}: {shown(item[name])}; expected a string")
    operator, effect = item.get("operator") or "", item.get("effect") or ""
    if operator in ("Gt", "Lt"):
        warnings.append(f"{path}.operator: {operator} is off in Kubernetes 1.37: tolerates nothing")
    elif operator not in ("", "Equal", "Exists"):
        problems.append(f"{path}.operator: {shown(operator)}; expected Equal or Exists")
    if effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        problems.append(
            f"{path}.effect: {shown(effect)}; expected NoSchedule, PreferNoSchedule, NoExecute or"
            " nothing"
        )
    if not item.get("key") and operator != "Exists":
        problems.append(f"{path}.operator: {shown(operator)}; expected Exists, for there is no key")
    if operator == "Exists" and item.get("value"):
        problems.append(f"{path}.value: {shown(item['value'])}; expected nothing with Exists")


def _required_terms(spec: Mapping[str, Any], problems: Problems) -> list[Any] | None:
    """The required terms, or None when there are none or their shape is wrong."""
    path = "spec"
    value: Any = spec
    for name in TERMS_PATH.split(".")[1:-1]:
        path, value = f"{path}.{name}", value.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            problems.append(f"{path}: {shown(value)}; expected a mapping")
            return None
    terms = value.get("nodeSelectorTerms")
    if not isinstance(terms, list) or not terms:
        problems.append(f"{TERMS_PATH}: {shown(terms)}; expected at least one term")
        return None
    before = len(problems)
    for i, term in enumerate(terms):
        if term is None:
            continue
        if not isinstance(term, dict):
            problems.append(f"{TERMS_PATH}[{i}]: {shown(term)}; expected a term")
            continue
        for part in ("matchExpressions", "matchFields"):
            where = f"{TERMS_PATH}[{i}].{part}"
            for j, item in enumerate(_mappings(term.get(part), where, problems)):
                _check_requirement(item, f"{where}[{j}]", problems)
    return terms if len(problems) == before else None


def _check_requirement(item: Mapping[str, Any], path: str, problems: Problems) -> None:
    """Shapes only; what they mean is judged by `match.parse_term`."""
    for name in ("key", "operator"):
        if not isinstance(item.get(name), str):
            problems.append(f"{path}.{name}: {shown(item.get(name))}; expected a string")
    values = item.get("values")
    if values is None:
        return
    if not isinstance(values, list):
        problems.append(f"{path}.values: {shown(values)}; expected a list of strings")
        return
    for i, value in enumerate(values):
        if not isinstance(value, str):
            problems.append(
                f"{path}.values[{i}]: {shown(value)}; expected a string, put it in quotes"
            )


def _strings(value: object, path: str, problems: Problems) -> dict[str, str]:
    """The entries of a map of strings; anything else is told and left out."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path}: {shown(value)}; expected a map of strings")
        return {}
    answer = {}
    for key, item in value.items():
        if isinstance(item, str):
            answer[key] = item
        else:
            problems.append(f"{path}[{key!r}]: {shown(item)}; expected a string, put it in quotes")
    return answer


def _mappings(value: object, path: str, problems: Problems) -> list[Mapping[str, Any]]:
    """The items of a list of mappings; anything else is told and stands as an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        problems.append(f"{path}: {shown(value)}; expected a list")
        return []
    answer: list[Mapping[str, Any]] = []
    for i, item in enumerate(value):
        if isinstance(item, dict):
            answer.append(item)
        else:
            problems.append(f"{path}[{i}]: {shown(item)}; expected a mapping")
            answer.append({})
    return answer
