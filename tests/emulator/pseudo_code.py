"""An interpreter of the pseudo-code in AMD's instruction set manuals: one lane of a lane-wise or scalar instruction.

Values are bit patterns with a type; a construct that is not understood raises NotComparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emulator.pseudo_code_functions import FUNCTIONS
from emulator.pseudo_code_places import Places
from emulator.pseudo_code_tokens import tokenize, type_of
from emulator.pseudo_code_values import NotComparable, Value, arithmetic, integer

_KEYWORDS = ("else", "elsif", "endif", "endfor")


class _Break(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


@dataclass
class Lane:
    """Variables of one execution; `written` has the bits of each variable that were assigned."""

    variables: dict[str, Value]
    library: Mapping[str, str] = field(default_factory=dict)
    """Pseudo-code of other instructions, which may be called by their lower-case names."""
    lambdas: dict[str, tuple[list[str], Sequence[str]]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)

    def run(self, text: str) -> None:
        """Execute a whole piece of pseudo-code."""
        _Execution(self, tokenize(text)).block()


class _Execution(Places):
    def __init__(self, lane: Lane, tokens: Sequence[str]) -> None:
        super().__init__(tokens, lane.variables, lane.written)
        self.lane = lane

    # Statements; a dead branch is parsed with `live` off

    def block(self) -> None:
        while self.peek() and self.peek() not in (*_KEYWORDS, ")"):
            if not self.accept(";"):
                self.statement()

    def statement(self) -> None:
        token = self.peek()
        if token == "if":
            self.branch()
        elif token == "for":
            self.loop()
        elif token == "break":
            self.take()
            if self.live:
                raise _Break
        elif token == "return":
            self.take()
            value = self.expression()
            if self.live:
                raise _Return(value)
        elif token == "declare":
            while self.take() != ":":
                pass
            self.take()
        elif self.peek(1) == "=" and self.peek(2) == "lambda":
            self.define()
        else:
            self.assign()

    def branch(self) -> None:
        self.take("if")
        outer, done = self.live, False
        while True:
            condition = self.skip() if done or not outer else self.expression()
            chosen = outer and not done and bool(condition.bits)
            self.take("then")
            self.live = chosen
            self.block()
            self.live = outer
            done = done or chosen
            if self.accept("elsif"):
                continue
            if self.accept("else"):
                self.live = outer and not done
                self.block()
                self.live = outer
            self.take("endif")
            return

    def skip(self) -> Value:
        """Parse an expression without effect."""
        outer, self.live = self.live, False
        value = self.expression()
        self.live = outer
        return value

    def loop(self) -> None:
        self.take("for")
        name = self.take()
        self.take("in")
        first = integer(self.expression())
        self.take(":")
        last = integer(self.expression())
        self.take("do")
        start, outer = self.at, self.live
        finished = not outer
        for index in range(first, last + 1):
            self.at = start
            if outer and not finished:
                self.lane.variables[name] = Value(index, 32, "i")
                try:
                    self.block()
                except _Break:
                    finished = True
            if finished:
                break
        self.leave_loop(start)

    def leave_loop(self, start: int) -> None:
        depth, self.at = 1, start
        while depth:
            token = self.take()
            depth += (token == "for") - (token == "endfor")

    def define(self) -> None:
        name = self.take()
        self.take("=")
        self.take("lambda")
        self.take("(")
        parameters = []
        while not self.accept(")"):
            if not self.accept(","):
                parameters.append(self.take())
        self.take("(")
        start, depth = self.at, 1
        while depth:
            token = self.take()
            depth += (token == "(") - (token == ")")
        self.lane.lambdas[name] = (parameters, self.tokens[start : self.at - 1])

    def assign(self) -> None:
        place = self.place()
        operator = self.take()
        chained = self.chained_place() if operator == "=" else None
        value = self.expression()
        if not self.live:
            return
        if chained is not None:
            self.store(chained, value)
        if isinstance(place, list):
            for part in reversed(place):
                self.store(part, Value(value.bits, part[2], "b"))
                value = Value(value.bits >> part[2], max(value.width - part[2], 1), "b")
            return
        if operator in ("+=", "-="):
            value = arithmetic(operator[0], self.load(place), value)
        elif operator != "=":
            raise NotComparable(f"assignment {operator}")
        self.store(place, value)

    # Calls

    def call(self, name: str) -> Value:
        self.take("(")
        arguments = []
        while not self.accept(")"):
            if not self.accept(","):
                arguments.append(self.expression())
        if not self.live:
            return Value(0, 64, "b")
        if name in self.lane.lambdas:
            return self.call_lambda(name, arguments)
        function: Callable[..., Value] | None = FUNCTIONS.get(name)
        if function is not None:
            return function(*arguments)
        return self.call_instruction(name, arguments)

    def call_lambda(self, name: str, arguments: list[Value]) -> Value:
        parameters, body = self.lane.lambdas[name]
        inner = Lane({**self.lane.variables, **dict(zip(parameters, arguments, strict=True))}, self.lane.library)
        inner.lambdas = self.lane.lambdas
        execution = _Execution(inner, body)
        if any(word in body for word in ("return", "declare")):
            try:
                execution.block()
            except _Return as result:
                return result.value
            raise NotComparable(f"{name} returns nothing")
        return execution.expression()

    def call_instruction(self, name: str, arguments: list[Value]) -> Value:
        text = self.lane.library.get(name)
        if text is None:
            raise NotComparable(f"function {name}")
        sources: dict[str, Any] = {f"S{i}": value for i, value in enumerate(arguments)}
        inner = Lane(sources, self.lane.library)
        inner.run(text)
        width = inner.written["D0"].bit_length()
        kind = type_of(name.rpartition("_")[2])[0]
        return Value(inner.variables["D0"].bits & ((1 << width) - 1), width, kind)
