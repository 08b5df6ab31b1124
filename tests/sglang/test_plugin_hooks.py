"""Hooks: attached when their module is imported, followed by every reference, and a failed start where they are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4_serve.engines.hooks import Function, Hook, HookError, Hooks

TARGET = '''
def greet(name):
    """Says hello."""
    return f"hello {name}"

class Engine:
    def step(self, n):
        return n
    @staticmethod
    def size():
        return 3
    @classmethod
    def name(cls):
        return cls.__name__
'''
IMPORTER = "from plugin_target import greet as hello, Engine\n"
CIRCULAR = "import plugin_target\ngreet = plugin_target.greet\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules to hook, importable and not imported."""
    (tmp_path / "plugin_target.py").write_text(TARGET)
    (tmp_path / "plugin_importer.py").write_text(IMPORTER)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("plugin_target", "plugin_importer", "plugin_inner"):
        sys.modules.pop(name, None)


def shouting(original: Function) -> Function:
    def wrapper(*args: object) -> object:
        return str(original(*args)).upper()

    return wrapper


def hook(attribute: str, *, needed: bool = False, module: str = "plugin_target") -> Hook:
    return Hook(module, attribute, shouting, "a test", needed)


def attached(*made: Hook) -> Hooks:
    hooks = Hooks(made)
    hooks.attach()
    return hooks


def test_a_module_that_is_not_imported_is_left_alone_and_hooked_when_it_is() -> None:
    hooks = attached(hook("greet"), hook("Engine.step"), hook("Engine.size"), hook("Engine.name"))
    assert set(hooks.states().values()) == {"dormant"}
    assert "plugin_target" not in sys.modules
    hooks.verify()
    import plugin_importer  # type: ignore[import-not-found]

    assert set(hooks.states().values()) == {"attached"}
    engine = plugin_importer.Engine
    assert (plugin_importer.hello("a"), engine().step(2), engine.size(), engine.name()) == (
        "HELLO A",
        "2",
        "3",
        "ENGINE",
    )
    assert plugin_importer.hello.__doc__ == "Says hello."
    hooks.verify(ready=True)
    module = sys.modules["plugin_target"]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == type(module.__loader__).__name__ == "SourceFileLoader"


def test_references_of_modules_that_came_before_follow() -> None:
    import plugin_importer

    hooks = attached(hook("greet"))
    assert plugin_importer.hello("a") == "HELLO A"
    hooks.verify()
    hooks.detach()
    assert plugin_importer.hello("a") == sys.modules["plugin_target"].greet("a") == "hello a"
    assert hooks.states() == {"plugin_target:greet": "dormant"}


def test_references_made_while_the_module_was_imported_follow(tmp_path: Path) -> None:
    (tmp_path / "plugin_inner.py").write_text(CIRCULAR)
    (tmp_path / "plugin_target.py").write_text(TARGET + "import plugin_inner\n")
    hooks = attached(hook("greet"))
    import plugin_target  # type: ignore[import-not-found]

    assert plugin_target.plugin_inner.greet("a") == "HELLO A"
    hooks.verify()


def test_hooks_of_one_target_nest_in_their_order() -> None:
    def bracketed(original: Function) -> Function:
        return lambda *args: f"<{original(*args)}>"

    hooks = attached(hook("greet"), Hook("plugin_target", "greet", bracketed, "a test"))
    import plugin_target

    assert plugin_target.greet("a") == "<HELLO A>"
    hooks.verify()
    hooks.detach()
    assert plugin_target.greet("a") == "hello a"


@pytest.mark.parametrize("attribute", ["vanished", "Engine.vanished", "Vanished.step"])
@pytest.mark.parametrize("imported", [False, True])
def test_a_target_that_is_gone_ends_the_process_with_its_name(attribute: str, imported: bool) -> None:
    message = f"plugin_target:{attribute} does not exist in this engine; it is hooked: a test"
    if imported:
        import plugin_target

        assert plugin_target
        with pytest.raises(HookError, match=message):
            attached(hook(attribute))
        return
    hooks = attached(hook(attribute))
    with pytest.raises(HookError, match=message):
        import plugin_target
    hooks.detach()


def test_a_needed_hook_whose_module_never_came_is_named_when_a_scheduler_is_ready() -> None:
    hooks = attached(hook("greet", needed=True), hook("Engine.step"))
    hooks.verify()
    with pytest.raises(HookError, match="plugin_target:greet is not hooked, its module was never imported: a test"):
        hooks.verify(ready=True)
    hooks.detach()


def test_a_hook_that_another_plugin_threw_away_is_found() -> None:
    hooks = attached(hook("greet"))
    import plugin_target

    plugin_target.greet = len
    with pytest.raises(HookError, match="plugin_target:greet was replaced after it had been hooked"):
        hooks.verify()


def test_a_hook_that_another_plugin_wrapped_still_stands() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = attached(hook("greet"))
    import plugin_target

    try:
        HookRegistry.register("plugin_target.greet", lambda result, *args: f"({result})", HookType.AFTER)
        HookRegistry.apply_hooks()
        assert plugin_target.greet("a") == "(HELLO A)"
        hooks.verify()
    finally:
        HookRegistry.reset()


def test_a_reference_that_did_not_follow_is_found() -> None:
    import plugin_target

    original = plugin_target.greet
    hooks = attached(hook("greet"))
    sys.modules["plugin_target"].kept = original  # type: ignore[attr-defined]
    with pytest.raises(HookError, match="plugin_target:kept still refer to functions as they were before hooking"):
        hooks.verify()


def test_a_module_that_came_behind_the_hooks_back_is_found() -> None:
    hooks = attached(hook("greet"))
    hooks.detach()
    import plugin_target  # noqa: F401

    with pytest.raises(HookError, match="plugin_target:greet is not hooked although its module is imported"):
        hooks.verify()


def test_a_wrapper_that_wraps_nothing_is_refused() -> None:
    import plugin_target  # noqa: F401

    with pytest.raises(HookError, match="its wrapper returned the function unchanged"):
        attached(Hook("plugin_target", "greet", lambda original: original, "a test"))
