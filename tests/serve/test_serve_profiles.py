"""Profiles: where they are found, what they refuse, and how toggles reach their fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4_serve.errors import UsageError
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.load import PROFILES, load_profile, profile_names

TINY = yaml.safe_load((PROFILES / "tiny.yaml").read_text())


def write(path: Path, **changes: Any) -> str:
    path.write_text(yaml.safe_dump({key: value for key, value in (TINY | changes).items() if value is not None}))
    return str(path)


@pytest.mark.parametrize("name", profile_names())
def test_every_committed_profile_loads_under_its_own_name(name: str) -> None:
    assert load_profile(name).name == name


def test_a_profile_given_as_a_path(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", name="mine", indexer={"dtype": "fp8"})
    plan = make_plan({"DSV4_PROFILE": path}, {})
    assert plan.profile.name == "mine"
    assert "fp8" in plan.describe()["command"]
    assert plan.describe()["flags"]["DSV4_INDEXER_DTYPE"] == {"value": "fp8", "origin": "profile"}


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"profile 'tinny': .*did you mean tiny\?"):
        load_profile("tinny")


def test_missing_file() -> None:
    with pytest.raises(UsageError, match=r"profile './none.yaml': no such file"):
        load_profile("./none.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tpp": 2}, "tpp: Extra inputs are not permitted"),
        ({"tp": "two"}, "tp: Input should be a valid integer"),
        ({"tp": 0}, "tp: Input should be greater than or equal to 1"),
        ({"hardware": {"arch": "gfx90a"}}, "hardware.arch: Input should be 'cpu', 'gfx950' or 'sm90'"),
        ({"trained": None}, "trained: Field required"),
        ({"container": {"image": "a:latest"}}, "container.image: Value error, latest is not a pin"),
        ({"container": {"image": "no tag"}}, "container.image: String should match pattern"),
        ({"container": {"image": "a:1", "volumes": [{"path": "x", "access": "ro"}]}}, "container.volumes.0.path"),
        ({"container": {"image": "a:1", "limits": {"shm_gib": 0}}}, "container.limits.shm_gib"),
        ({"model": {"name": "x"}}, "give exactly one of path"),
        ({"model": {"name": "x", "path": "/a", "tiny_seed": 0}}, "give exactly one of path"),
        ({"unverified": None}, "give exactly one of verified"),
        ({"verified": {"date": "d", "image": "i", "score": "s"}}, "give exactly one of verified"),
        ({"flags": {"DSV4_TP": 2}}, "DSV4_TP cannot stand here"),
        ({"env": {"DSV4_TP": "2"}}, "toggles belong under flags"),
    ],
)
def test_wrong_profiles_name_the_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(write(tmp_path / "wrong.yaml", **changes))
    assert message in str(caught.value)
    assert "wrong.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a: [", "not YAML"), (b"- a", "a profile is a mapping of fields"), (b"a: \xe9", "not YAML")],
)
def test_not_a_profile_at_all(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_profile(str(path))


def test_toggles_reach_their_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "p.yaml", flags={"DSV4_ALLOW_FALLBACK": True, "DSV4_SHADOW_RECALL": True})
    plan = make_plan({"DSV4_PROFILE": path}, {"DSV4_INDEXER_DTYPE": "bf16", "DSV4_MODEL": "/models/v4-small"})
    assert plan.profile.indexer.dtype == "bf16"
    assert plan.profile.model.name == "v4-small"
    assert plan.profile.model.tiny_seed is None
    assert plan.profile.flags["DSV4_SHADOW_RECALL"] is True
    assert any(warning.startswith("DSV4_SHADOW_RECALL=1 (profile)") for warning in plan.warnings)


def test_what_a_profile_leaves_out_stays_a_default() -> None:
    settings = make_plan({}, {}).resolved.settings
    assert settings["DSV4_TP"].origin == "default"
    assert settings["DSV4_KV_LAYOUT"].origin == "profile"


def test_extra_arguments_end_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "p.yaml", engine=TINY["engine"] | {"extra_args": ["--threads", "2"]})
    assert make_plan({"DSV4_PROFILE": path}, {}).describe()["command"][-2:] == ["--threads", "2"]


def test_profile_env_reaches_the_engine(tmp_path: Path) -> None:
    path = write(tmp_path / "p.yaml", env={"OMP_NUM_THREADS": "1", "HF_TOKEN": "hush"})
    described = make_plan({"DSV4_PROFILE": path}, {}).describe()
    assert described["environment"] == {"OMP_NUM_THREADS": "1", "HF_TOKEN": "[redacted]"}


@pytest.mark.parametrize("name", profile_names())
def test_production_asks_its_engine_before_it_is_ready(name: str) -> None:
    """The tiny profiles start in seconds instead; either can be had otherwise."""
    profile = load_profile(name)
    assert profile.selftest is (profile.trained and profile.hardware.arch != "cpu")
    for on in (True, False):
        assert make_plan({"DSV4_SELFTEST": str(int(on))}, {"DSV4_PROFILE": name}).profile.selftest is on
