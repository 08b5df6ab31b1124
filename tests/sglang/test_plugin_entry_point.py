"""SGLang finds and loads the plugin through its entry point, and does not swallow what ends a start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plugin_metadata
from dsv4_serve.engines.hooks import Hook, HookError

LOAD = """
import sys
import simulated_aiter, simulated_gfx950
simulated_gfx950.activate(absent=frozenset({"aiter", "sgl_kernel", "torchvision"}))
simulated_aiter.install()
from sglang.srt.plugins import load_plugins
names = set(sys.modules)
load_plugins()
from dsv4_serve.engines.sglang import plugin
made = {name for name in set(sys.modules) - names}
assert plugin._hooks is not None, "the entry point was not found"
forced = [name for name in made if name.startswith(("sglang.", "dsv4_kernels", "torch"))]
assert not forced, forced
print(len(made))
"""


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin_metadata.build(tmp_path_factory.mktemp("metadata"))


def start(metadata: Path, after: str) -> subprocess.CompletedProcess[str]:
    """A process of SGLang's environment that finds the distribution as an installed one."""
    environment = plugin_metadata.environment(metadata)
    here = Path(__file__).parent
    environment["PYTHONPATH"] += f":{here}:{here.parent}"
    command = [sys.executable, "-W", "ignore", "-c", LOAD + after]
    return subprocess.run(command, cwd=metadata, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_sglang_finds_the_entry_point_and_nothing_is_imported_for_it(metadata: Path) -> None:
    after = """
import sglang.kernels.ops.attention.dsv4.fp4_indexer_hip as adapter
hooks = plugin.hooks()
states = hooks.states()
hooked = {name for name, state in states.items() if state == "attached"}
assert adapter.__name__ + ":aiter_fp4_paged_mqa_logits" in hooked, states
assert len(hooked) < len(states)
hooks.verify()
"""
    done = start(metadata, after)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40, "a start imports too much for the plugin"


def test_sglang_does_not_swallow_a_hook_without_a_target(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang logs a plugin's exceptions and serves without it; ours passes through its own loader."""
    import sglang.srt.plugins as loader

    from dsv4_serve.engines.sglang import plugin

    monkeypatch.syspath_prepend(metadata)
    monkeypatch.chdir(metadata)
    monkeypatch.setattr(loader, "_plugins_loaded", False)
    monkeypatch.setattr(plugin, "_hooks", None)
    gone = Hook("sglang.srt.environ", "gone", lambda original: lambda: original, "a test")
    monkeypatch.setattr(plugin, "declared", lambda: [gone])
    message = "dsv4 plugin: sglang.srt.environ:gone does not exist in this engine; it is hooked: a test"
    with pytest.raises(SystemExit, match=message):
        loader.load_plugins()


def test_a_part_that_cannot_be_imported_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4_serve.engines.sglang import plugin

    monkeypatch.setattr(plugin, "PARTS", ("dsv4_serve.engines.sglang.vanished",))
    with pytest.raises(HookError, match=r"cannot import dsv4_serve\.engines\.sglang\.vanished: No module named"):
        plugin.declared()


def test_a_process_that_sglang_did_not_load_it_in_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4_serve.engines.sglang import plugin

    monkeypatch.setattr(plugin, "_hooks", None)
    with pytest.raises(HookError, match=r"is entry point sglang.srt.plugins installed\?"):
        plugin.hooks()
