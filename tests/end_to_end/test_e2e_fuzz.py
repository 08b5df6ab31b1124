"""schemathesis against our own OpenAPI document and the real engine: no 5xx, and every answer as it is described.

FUZZ_PHASES=coverage,fuzzing adds the phase that tries the edges of every field, some 900 requests (docs/operations.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dsv4_serve.profiles.load import load_profile
from serve.harness import COMMAND, Launcher

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


@pytest.fixture(scope="module")
def short(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A context so short that a request without a limit ends soon."""
    profile = load_profile("tiny").model_dump(mode="json", exclude_unset=True)
    profile["model"]["context_length"] = 32
    path = tmp_path_factory.mktemp("profiles") / "short.yaml"
    path.write_text(yaml.safe_dump(profile))
    with Launcher(tiny_model, ["--profile", str(path), "--max-choices", "2"], command=COMMAND) as running:
        yield running


@pytest.mark.slow
def test_the_api_is_what_its_document_says(short: Launcher, tmp_path: Path) -> None:
    options = {
        "--checks": ",".join(CHECKS),
        "--phases": os.environ.get("FUZZ_PHASES", "fuzzing"),
        "--max-examples": "15",
        "--workers": "4",
        "--seed": "7",
        # A slow machine is no finding.
        "--request-timeout": "120",
        "--suppress-health-check": "all",
    }
    words = [word for option in options.items() for word in option]
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{short.url}/openapi.json", *words]
    done = subprocess.run(
        [*command, "--no-shrink", "--no-color"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "Traceback" not in short.text
    assert short.chat().status_code == 200


def test_the_document_names_the_served_model_and_asks_for_keys_only_where_they_are_asked_for(
    short: Launcher, guarded: Launcher
) -> None:
    document = short.get("/openapi.json").json()
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["model"] == {"const": "dsv4-tiny"}
    assert "securitySchemes" not in document["components"]
    described = guarded.get("/openapi.json", headers={"Authorization": "Bearer some-key"}).json()
    assert described["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


@pytest.fixture
def guarded(tiny_model: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Behind it the stand-in: the document is the launcher's."""
    (tmp_path / "keys").write_text("some-key\n")
    with Launcher(tiny_model, ["--api-keys-file", str(tmp_path / "keys")]) as running:
        yield running
