"""Toggles of the cache tiers: each reaches an engine's command or is refused, and capacity is as planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded.args import parse_args
from dsv4_serve.engines.embedded.config import load_model_config
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.errors import PreflightError, UsageError
from dsv4_serve.expected_capacity import show_expected
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.plan import make_plan
from dsv4_serve.planner.expected import expected_capacity
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.memory_plan import Machine, plan_memory
from dsv4_serve.planner.report import as_json, as_text
from dsv4_serve.profiles.schema import Profile

SGLANG = "v4-pro-tp8-eagle-hicache"
TIERS = {
    "DSV4_HICACHE": "1",
    "DSV4_HICACHE_HOST_BYTES": "3MiB",
    "DSV4_HICACHE_DISK_DIR": "/var/cache/dsv4",
    "DSV4_HICACHE_DISK_BYTES": "9MiB",
    "DSV4_HICACHE_WRITE_POLICY": "write_back",
}


def profile(**toggles: str) -> Profile:
    return make_plan({}, toggles).profile


def words(asked: Profile) -> list[str]:
    return EmbeddedAdapter(EngineRun(Path("/models/tiny"), 1)).command(asked)[3:]


def test_every_tier_toggle_reaches_the_command() -> None:
    plain = words(profile())
    assert [word for word in words(profile(**TIERS)) if word not in plain] == [
        "--host-bytes",
        "3145728",
        "--disk-dir",
        "/var/cache/dsv4",
        "--disk-bytes",
        "9437184",
        "--write-policy",
        "write_back",
        "--hicache",
    ]
    made = parse_args(words(profile(**TIERS))).engine
    assert (made.hicache, made.host_bytes, made.disk_bytes) == (True, 3 << 20, 9 << 20)
    assert (made.disk_dir, made.write_policy) == (Path("/var/cache/dsv4"), "write_back")


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("DSV4_HICACHE_HOST_BYTES", "DSV4_HICACHE"),
        ("DSV4_HICACHE_DISK_DIR", "DSV4_HICACHE"),
        ("DSV4_HICACHE_DISK_BYTES", "DSV4_HICACHE_DISK_DIR"),
        ("DSV4_HICACHE_WRITE_POLICY", "DSV4_HICACHE"),
    ],
)
def test_a_size_or_place_of_no_tier_is_refused_not_ignored(name: str, needs: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}=.* \(environment\) has no effect without {needs}"):
        make_plan({name: TIERS[name]}, {})


def test_a_wrong_size_names_what_is_accepted() -> None:
    with pytest.raises(UsageError, match=r"'plenty' .*accepted is a size such as 2GiB, 500MB or 1048576; 0 for none"):
        make_plan({"DSV4_HICACHE": "1", "DSV4_HICACHE_HOST_BYTES": "plenty"}, {})


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["--host-bytes", "5"], "host_bytes=5: accepted is unset unless hicache is on"),
        (["--disk-dir", "x"], "accepted is unset unless hicache is on"),
        (["--hicache", "--host-bytes", "0"], "host_bytes=0: accepted is above 0 when there is no disk_dir"),
        (["--hicache", "--host-bytes", "-1"], "host_bytes=-1: accepted is 0 (no host tier) or a positive integer"),
        (["--hicache", "--disk-dir", "x", "--disk-bytes", "0"], "disk_bytes=0: accepted is a positive integer"),
        (["--hicache", "--write-policy", "never"], "invalid choice: 'never'"),
    ],
)
def test_the_engine_refuses_tiers_that_cannot_be(
    capsys: pytest.CaptureFixture[str], asked: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_args(["--model-path", "m", *asked])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_sglang_takes_the_policy_and_refuses_what_it_has_no_option_for() -> None:
    described = make_plan({}, {"DSV4_PROFILE": SGLANG, "DSV4_HICACHE_WRITE_POLICY": "write_back"}).describe()
    command = described["command"]
    assert command[command.index("--hicache-write-policy") + 1] == "write_back"
    for name in ("DSV4_HICACHE_HOST_BYTES", "DSV4_HICACHE_DISK_DIR"):
        with pytest.raises(PreflightError, match=f"{name}=.*engine 'sglang' cannot do this"):
            make_plan({}, {"DSV4_PROFILE": SGLANG, name: TIERS[name]})


def effective(**changed: object) -> dict[str, object]:
    """What an engine of `TIERS` reports of them."""
    tiers = {"host": {"limit_bytes": 3 << 20}, "disk": {"limit_bytes": 9 << 20}}
    return {"hicache": True, "write_policy": "write_back", "disk_dir": "/var/cache/dsv4", "tiers": tiers, **changed}


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({}, None),
        ({"hicache": False}, "hicache: asked was True, in effect is False"),
        ({"write_policy": "write_through"}, "write_policy: asked was write_back, in effect is write_through"),
        ({"disk_dir": "/tmp"}, "disk_dir: asked was /var/cache/dsv4, in effect is /tmp"),
        ({"tiers": {"host": {"limit_bytes": 3 << 20}}}, "tiers.disk: asked was 9437184, in effect is None"),
        (
            {"tiers": {"host": {"limit_bytes": 1}, "disk": {"limit_bytes": 9 << 20}}},
            "tiers.host: asked was 3145728, in effect is 1",
        ),
    ],
)
def test_a_tier_that_is_not_in_effect_fails_the_start(changed: dict[str, object], difference: str | None) -> None:
    adapter = EmbeddedAdapter(EngineRun(Path("/models/tiny"), 1))
    found = adapter.differences(profile(**TIERS), effective(**changed))
    about_tiers = [text for text in found if text.split(":")[0].split(".")[0] in effective()]
    assert about_tiers == ([] if difference is None else [difference])


def test_the_planner_expects_what_the_engine_reports(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_model(model)
    asked = profile(**TIERS | {"DSV4_MODEL": str(model), "DSV4_HICACHE_DISK_DIR": str(tmp_path / "disk")})
    engine = AsyncEngine.create(parse_args(words_of(asked, model)).engine)
    try:
        families = text_string_to_metric_families(engine.metrics_text())
        reported = {
            (s.name, s.labels["region"], s.labels["tier"]): s.value
            for f in families
            for s in f.samples
            if s.name.startswith("dsv4_kv_capacity")
        }
    finally:
        engine.tiers.close([])
    found = expected_capacity(asked, ModelGeometry.read(model / "config.json"), model)
    assert [each.tier for each in found] == ["gpu", "host", "disk"]
    for each in found:
        assert each.tokens == reported["dsv4_kv_capacity_tokens", "main", each.tier]
        for region, size in each.regions.items():
            assert size == reported["dsv4_kv_capacity_bytes", region, each.tier], (region, each.tier)
    assert load_model_config(model).num_hidden_layers == 4


def test_the_plan_shows_each_tier_in_tokens_and_bytes(tmp_path: Path) -> None:
    """The same numbers that stand beside what the engine reports; and preflight counts the host's."""
    model = tmp_path / "model"
    write_tiny_model(model)
    asked = profile(**TIERS | {"DSV4_MODEL": str(model)})
    geometry = ModelGeometry.read(model / "config.json")
    plan = plan_memory(asked, geometry, model, Machine())
    shown = {each["tier"]: each for each in as_json(plan)["tiers"]}
    for each in expected_capacity(asked, geometry, model):
        assert shown[each.tier]["tokens"] == each.tokens
        assert shown[each.tier]["bytes"] == sum(each.regions.values())
    assert shown["host"]["bytes"] <= 3 << 20 < shown["host"]["bytes"] * 8 / 7
    text = as_text(plan)
    assert re.search(r"^host +1,792 +\S+ MiB +3.00 MiB asked for$", text, re.MULTILINE), text
    assert re.search(r"^disk +\S+ +\S+ MiB +9.00 MiB asked for$", text, re.MULTILINE), text
    assert "tier" not in as_text(plan_memory(profile(DSV4_MODEL=str(model)), geometry, model, Machine()))


def words_of(asked: Profile, model: Path) -> list[str]:
    return EmbeddedAdapter(EngineRun(model, 1)).command(asked)[3:]


def test_what_is_expected_stands_beside_what_is_reported(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_model(model)
    metrics = LauncherMetrics()
    show_expected(metrics, profile(DSV4_MODEL=str(model)), model)
    value = metrics.registry.get_sample_value
    assert value("dsv4_kv_expected_tokens", {"region": "main", "tier": "gpu"}) == 65536
    assert value("dsv4_kv_expected_bytes", {"region": "index_scale", "tier": "gpu"}) == 65536 / 4 * 2 * 4
    assert [each.tier for each in metrics.expected] == ["gpu"]


def test_a_model_that_nobody_can_size_has_no_expectation(tmp_path: Path) -> None:
    metrics = LauncherMetrics()
    show_expected(metrics, make_plan({}, {"DSV4_MODEL": str(tmp_path / "nowhere")}).profile, tmp_path / "nowhere")
    assert metrics.expected == ()
    assert metrics.registry.get_sample_value("dsv4_kv_expected_tokens", {"region": "main", "tier": "gpu"}) is None
