"""One launcher with the real engine and the tiny model, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from serve.harness import COMMAND, Launcher

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "dsv4-tiny"
    write_tiny_model(directory)
    return directory


@pytest.fixture(scope="session")
def scripted_profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny profile with the engine's switch for forced tokens, which only tests use."""
    profile = yaml.safe_load((REPOSITORY / "configs" / "profiles" / "tiny.yaml").read_text())
    profile["engine"]["extra_args"] = ["--allow-token-script"]
    path = tmp_path_factory.mktemp("profiles") / "scripted.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


@pytest.fixture(scope="package")
def served(tiny_model: Path, scripted_profile: Path) -> Iterator[Launcher]:
    with Launcher(tiny_model, ["--profile", str(scripted_profile)], command=COMMAND) as running:
        yield running


@pytest.fixture
def client(served: Launcher) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as made:
        yield made
