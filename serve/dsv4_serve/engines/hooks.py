"""Hooks on an engine: declared as data, attached when their module is imported, and held to have taken effect.

SGLang's own HookRegistry imports every target in every process and only logs what it cannot patch, and vLLM has none.
Here a module that is never imported costs nothing, and a hook whose target is gone ends the process with its name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from dsv4_serve.engines.post_import import after_import, being_imported, forget

Function = Callable[..., Any]
State = Literal["attached", "dormant"]
"""A dormant hook waits for its module, which this process has not imported."""

MARK = "__dsv4_hook__"


class HookError(SystemExit):
    """The start is refused: a hook did not take effect, or what it guards cannot work.

    A SystemExit, because engines log a plugin's exceptions and serve without it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"dsv4 plugin: {message}")


@dataclass(frozen=True, slots=True)
class Hook:
    """`module`'s `attribute` ("function" or "Class.method") becomes `wrap(original)`.

    `wrap` runs once, when the module has been imported, may import what that module imports, and gives a new function;
    name and docstring of the original are copied to it. `reason` is one line for the report. With `needed` the hook
    must be attached by the time the engine is ready.
    """

    module: str
    attribute: str
    wrap: Callable[[Function], Function]
    reason: str
    needed: bool = False

    @property
    def name(self) -> str:
        return f"{self.module}:{self.attribute}"

    @property
    def key(self) -> str:
        """The attribute without its class."""
        return self.attribute.rpartition(".")[2]

    def owner(self, module: ModuleType) -> Any:
        """The module or class that holds the attribute. Raises HookError if there is none."""
        held: Any = module
        for part in self.attribute.split(".")[:-1]:
            held = getattr(held, part, None)
        if held is None or not callable(getattr(held, self.key, None)):
            raise HookError(f"{self.name} does not exist in this engine; it is hooked: {self.reason}")
        return held


class Hooks:
    """The hooks of one process."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = list(hooks)
        self._attached: dict[int, tuple[Function, Function]] = {}

    def attach(self) -> None:
        """Hook what is imported already, and the rest when it is. Raises HookError for a target that is gone."""
        by_module: dict[str, list[int]] = {}
        for index, hook in enumerate(self._hooks):
            by_module.setdefault(hook.module, []).append(index)
        swapped: dict[int, tuple[Function, Function]] = {}
        for name, indexes in by_module.items():
            module = sys.modules.get(name)
            if module is None or being_imported(module):
                after_import(name, functools.partial(self._imported, indexes))
            else:
                swapped |= self._attach(module, indexes)
        _rebind(swapped, sys.modules.values())

    def _imported(self, indexes: list[int], module: ModuleType, imported_meanwhile: list[ModuleType]) -> None:
        _rebind(self._attach(module, indexes), imported_meanwhile)

    def _attach(self, module: ModuleType, indexes: list[int]) -> dict[int, tuple[Function, Function]]:
        """{id of a replaced function: (it, its replacement)}, so that other modules' references can follow."""
        swapped: dict[int, tuple[Function, Function]] = {}
        for index in indexes:
            hook = self._hooks[index]
            owner = hook.owner(module)
            kind, original = _raw(owner, hook.key)
            made = functools.wraps(original)(_function_of(hook, original))
            setattr(made, MARK, hook)
            setattr(owner, hook.key, kind(made) if kind else made)
            self._attached[index] = (original, made)
            swapped = {at: (first, made if last is original else last) for at, (first, last) in swapped.items()}
            swapped[id(original)] = (original, made)
        return swapped

    def detach(self) -> None:
        """Put back what was there before, everywhere; dormant hooks stay dormant."""
        first: dict[int, tuple[Function, Function]] = {}
        for index, (original, made) in sorted(self._attached.items()):
            first[id(made)] = (made, first.get(id(original), (original, original))[1])
            hook = self._hooks[index]
            owner = hook.owner(sys.modules[hook.module])
            kind, _ = _raw(owner, hook.key)
            setattr(owner, hook.key, kind(first[id(made)][1]) if kind else first[id(made)][1])
        _rebind(first, sys.modules.values())
        self._attached.clear()
        for hook in self._hooks:
            forget(hook.module)

    def states(self) -> dict[str, State]:
        return {hook.name: self._state(index) for index, hook in enumerate(self._hooks)}

    def _state(self, index: int) -> State:
        return "attached" if index in self._attached else "dormant"

    def verify(self, *, ready: bool = False) -> None:
        """Raise HookError, naming it, for a hook that did not take effect: its module is imported and the attribute
        does not lead to it, or another module still holds the unhooked function. `ready`: the engine is about to
        serve, so that needed hooks may not be dormant any more.
        """
        for index, hook in enumerate(self._hooks):
            module = sys.modules.get(hook.module)
            if index in self._attached and module is not None:
                if not any(getattr(f, MARK, None) is hook for f in _chain(getattr(hook.owner(module), hook.key))):
                    raise HookError(f"{hook.name} was replaced after it had been hooked; it is hooked: {hook.reason}")
            elif module is not None and not being_imported(module):
                raise HookError(f"{hook.name} is not hooked although its module is imported: {hook.reason}")
            elif ready and hook.needed:
                raise HookError(f"{hook.name} is not hooked, its module was never imported: {hook.reason}")
        stale = _holders({id(original) for original, _ in self._attached.values()})
        if stale:
            raise HookError(f"{', '.join(stale)} still refer to functions as they were before hooking")


def _function_of(hook: Hook, original: Function) -> Function:
    made = hook.wrap(original)
    if made is original:
        raise HookError(f"{hook.name}: its wrapper returned the function unchanged")
    return made


def _raw(owner: Any, key: str) -> tuple[Callable[[Function], Any] | None, Function]:
    """(classmethod, staticmethod or None, the plain function below it)."""
    held = vars(owner).get(key) if isinstance(owner, type) else None
    if isinstance(held, (classmethod, staticmethod)):
        return type(held), held.__func__
    return None, getattr(owner, key)


def _chain(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _rebind(swapped: dict[int, tuple[Function, Function]], modules: Iterable[ModuleType]) -> None:
    """`from module import function` copies a reference: let those of `modules` follow."""
    if not swapped:
        return
    for module in list(modules):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                found = swapped.get(id(value))
                if found and value is found[0]:
                    setattr(module, name, found[1])


def _holders(originals: set[int]) -> list[str]:
    return [
        f"{module.__name__}:{name}"
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
        if id(value) in originals
    ]
