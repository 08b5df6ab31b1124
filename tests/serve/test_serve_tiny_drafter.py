"""`dsv4 tiny-model --drafter`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4_serve.cli import app
from dsv4_serve.engines.embedded.config import read_config
from dsv4_serve.engines.embedded.dspark.config import load_drafter_config
from dsv4_serve.engines.embedded.dspark.weights import load_drafter
from dsv4_serve.engines.embedded.families import load_config


@pytest.mark.parametrize("family", ["v4", "v41"])
def test_a_random_drafter_comes_on_request(tmp_path: Path, family: str) -> None:
    done = CliRunner().invoke(app, ["tiny-model", str(tmp_path), "--family", family, "--drafter", "--json"])
    assert done.exit_code == 0, done.output
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert json.loads(done.stdout)["bytes"] == sum(path.stat().st_size for path in files)
    assert read_config(tmp_path)[0]["dspark_block_size"] == 5
    _, config = load_config(tmp_path)
    drafter = load_drafter_config(tmp_path, config)
    assert (drafter.stages, drafter.target_layers) == (3, tuple(range(config.num_hidden_layers))[-3:])
    assert load_drafter(tmp_path, drafter)["main_proj.weight"].shape == (192, 3 * 192)
