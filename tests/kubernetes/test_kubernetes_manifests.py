"""Manifests: valid by the schemas of their kinds, and consistent with one another, the profiles and the launcher."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from dsv4_serve.flags import BY_NAME
from dsv4_serve.profiles.load import load_profile
from kubernetes.kubernetes_manifests import CUSTOM, ENTRIES, ROOT, Object, containers, objects, of_kind, pod_templates

VERSION = "1.34"
DRAIN_SECONDS = 5 + 30 + 6 + 10
EACH = [pytest.param(found, id=f"{entry}-{found['kind']}") for entry in ENTRIES for found in objects(entry)]


@pytest.mark.parametrize("found", EACH)
def test_an_object_is_valid(found: Object) -> None:
    if found["kind"] in CUSTOM:
        schema = json.loads((ROOT / "schemas" / CUSTOM[found["kind"]]).read_text())
        jsonschema.Draft202012Validator(schema).validate(found)
    else:
        kubernetes_validate.validate(found, VERSION, strict=True)


@pytest.mark.parametrize("found", EACH)
def test_the_pods_of_a_custom_kind_are_valid_as_pods(found: Object) -> None:
    for pod in pod_templates(found):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}, "spec": pod["spec"]}
        kubernetes_validate.validate(whole, VERSION, strict=True)


def test_what_is_wrong_is_found() -> None:
    """The validators are no formality: a misspelt field, a wrong type and an unknown field of a custom kind fail."""
    serve = of_kind("base", "Deployment")[0]
    misspelt = yaml.safe_load(yaml.safe_dump(serve).replace("readinessProbe", "readynessProbe"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(misspelt, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(serve | {"spec": serve["spec"] | {"replicas": "two"}}, VERSION, strict=True)
    schema = json.loads((ROOT / "schemas" / CUSTOM["LeaderWorkerSet"]).read_text())
    group = of_kind("multinode", "LeaderWorkerSet")[0]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(group | {"spec": {"size": 2}})


def test_every_file_belongs_to_a_kustomization_and_none_lies_above_it() -> None:
    files = {path for path in ROOT.rglob("*.yaml") if path.name != "kustomization.yaml"}
    named: set[Path] = set()
    for path in ROOT.rglob("kustomization.yaml"):
        for resource in yaml.safe_load(path.read_text())["resources"]:
            target = (path.parent / resource).resolve()
            assert (target / "kustomization.yaml").is_file() if target.is_dir() else target.parent == path.parent
            named.add(target)
    assert files <= named


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_object_comes_twice(entry: str) -> None:
    counted = Counter((found["kind"], found["metadata"]["name"]) for found in objects(entry))
    assert max(counted.values()) == 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_selectors_find_what_they_are_for(entry: str) -> None:
    pods = [pod["metadata"]["labels"] for found in objects(entry) for pod in pod_templates(found)]
    given = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    services = of_kind(entry, "Service")
    selectors = [service["spec"]["selector"] for service in services]
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selectors += [found["spec"][field]["matchLabels"] for found in of_kind(entry, kind)]
    for selector in selectors:
        assert any(selector.items() <= (labels | given).items() for labels in pods), selector
    for monitor in of_kind(entry, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [s for s in services if wanted <= s["metadata"]["labels"].items()]
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
        assert monitor["spec"]["jobLabel"] in service["metadata"]["labels"]
    for scaler in of_kind(entry, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        assert target["name"] in {found["metadata"]["name"] for found in of_kind(entry, target["kind"])}


@pytest.mark.parametrize("entry", ["base", "multinode"])
def test_the_server_runs_as_its_profile_says(entry: str) -> None:
    for found in objects(entry):
        for pod in pod_templates(found):
            (container,) = pod["spec"]["containers"]
            if container["name"] != "serve":
                continue
            environment = {each["name"]: each.get("value") for each in container["env"]}
            profile = load_profile(str(environment["DSV4_PROFILE"]))
            assert profile.container is not None
            assert container["image"] == profile.container.image
            assert container["resources"]["limits"]["amd.com/gpu"] == str(profile.hardware.devices)
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {volume.path for volume in profile.container.volumes} <= mounts
            shm = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm")
            assert shm["emptyDir"]["sizeLimit"] == f"{profile.container.limits.shm_gib}Gi"
            assert all(name in BY_NAME for name in environment if name.startswith("DSV4_"))
            assert pod["spec"]["terminationGracePeriodSeconds"] > DRAIN_SECONDS


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_container_may_do_no_more_than_it_must(entry: str) -> None:
    for found in objects(entry):
        for pod in pod_templates(found):
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
            assert not pod["spec"].get("hostNetwork")
    for container in containers(entry):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert ":latest" not in container["image"]
        assert ":" in container["image"]


def test_probes_ask_our_three_endpoints_where_no_key_is_needed() -> None:
    for container in (c for entry in ("base", "multinode") for c in containers(entry) if c["name"] == "serve"):
        asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
        paths = {"startup": "/startupz", "readiness": "/readyz", "liveness": "/livez"}
        assert asked == {name: {"path": path, "port": "admin"} for name, path in paths.items()}
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600


def test_both_machines_of_a_group_are_alike() -> None:
    (group,) = of_kind("multinode", "LeaderWorkerSet")
    leader, worker = pod_templates(group)
    assert leader == worker
    profile = load_profile("v4-pro-2nodes")
    assert group["spec"]["leaderWorkerTemplate"]["size"] == profile.toggles()["DSV4_NODES"]


def test_the_operator_s_rules_are_those_of_prometheus() -> None:
    (rule,) = of_kind("base", "PrometheusRule")
    groups: list[Any] = []
    for name in ("recording_rules.yml", "alert_rules.yml"):
        groups += yaml.safe_load((ROOT.parent / "prometheus" / name).read_text())["groups"]
    assert rule["spec"]["groups"] == groups


def test_what_the_autoscaler_follows_is_a_metric_or_a_rule_of_ours() -> None:
    (scaler,) = of_kind("base", "HorizontalPodAutoscaler")
    page = (ROOT.parents[1] / "docs" / "scaling.md").read_text()
    for metric in scaler["spec"]["metrics"]:
        name = metric["pods"]["metric"]["name"]
        assert re.search(rf"as: {name}$", page, re.MULTILINE), f"docs/scaling.md has no adapter rule for {name}"
