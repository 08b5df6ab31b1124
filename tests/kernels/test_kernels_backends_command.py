"""`dsv4 kernels backends`: every operation with who offers it, in the order of asking, and why the others do not."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dsv4_kernels import registry
from dsv4_serve import kernel_backends
from dsv4_serve.errors import UsageError
from dsv4_serve.kernels_command import app


def test_every_operation_is_listed_with_reasons() -> None:
    text = CliRunner().invoke(app, ["backends"]).stdout
    assert text.startswith("gfx950: aiter, gfx950, gfx950_plain, gfx950_rows, portable, reference\n")
    assert (
        "\nrowgroup_logits: aiter, gfx950, gfx950_plain, portable, reference\n  not gfx950_rows: gfx950 has them"
        in text
    )
    assert "\n  not aiter: its writers know none of these rows\n" in text
    assert [line.partition(":")[0] for line in text.splitlines()[1:] if line[0] != " "] == list(registry.OPS)


@pytest.mark.parametrize("arch", kernel_backends.ARCHITECTURES)
def test_json_says_the_same(arch: str) -> None:
    told = json.loads(CliRunner().invoke(app, ["backends", "--arch", arch, "--json"]).stdout)
    assert (told["arch"], tuple(told["order"])) == (arch, kernel_backends.order(arch))
    for entry in told["operations"]:
        assert sorted([*entry["offered_by"], *entry["absent"]]) == sorted(told["order"])
        assert entry["offered_by"][-1] == "reference"
        assert all(entry["absent"][name] == registry.absence(name, entry["op"]) for name in entry["absent"])


def test_an_unknown_architecture_names_the_known() -> None:
    refused = CliRunner().invoke(app, ["backends", "--arch", "gfx942"])
    assert isinstance(refused.exception, UsageError)
    assert str(refused.exception) == "--arch gfx942: one of gfx950, sm90, cpu"
