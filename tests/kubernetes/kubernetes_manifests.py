"""The manifests under configs/kubernetes, read as kustomize would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2] / "configs" / "kubernetes"
ENTRIES = ("base", "router", "multinode")
CUSTOM = {
    "LeaderWorkerSet": "leaderworkerset.json",
    "ServiceMonitor": "servicemonitor.json",
    "PrometheusRule": "prometheusrule.json",
}
Object = dict[str, Any]


def objects(entry: str) -> list[Object]:
    """Everything that `kubectl apply -k configs/kubernetes/ENTRY` would send."""
    return list(_collect(ROOT / entry))


def _collect(folder: Path) -> Iterator[Object]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for resource in kustomization["resources"]:
        path = folder / resource
        if path.is_dir():
            yield from _collect(path)
        else:
            yield from (document for document in yaml.safe_load_all(path.read_text()) if document)


def of_kind(entry: str, kind: str) -> list[Object]:
    return [found for found in objects(entry) if found["kind"] == kind]


def pod_templates(found: Object) -> list[Object]:
    """The pods that an object makes; none for most kinds."""
    spec = found.get("spec", {})
    if found["kind"] == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        return [group["leaderTemplate"], group["workerTemplate"]]
    return [spec["template"]] if "template" in spec else []


def containers(entry: str) -> list[Object]:
    return [c for found in objects(entry) for pod in pod_templates(found) for c in pod["spec"]["containers"]]
