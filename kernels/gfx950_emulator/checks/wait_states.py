"""Static check of wait states over all paths of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gfx950_emulator.checks.hazard_rules import MAX_WAIT_STATES, RULES, Rule
from gfx950_emulator.checks.hazard_step import Step, step_of
from gfx950_emulator.errors import Site, WaitStateError
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.decoder import Program
from gfx950_emulator.machine.registers import numbers_in, register_name


@dataclass(frozen=True)
class Violation:
    """Too few wait states between two instructions (indices into the kernel)."""

    rule: str
    producer: int
    consumer: int
    present: int
    needed: int
    register: str


def wait_states(instruction: Instruction) -> int:
    """Wait states that an instruction provides: one, an s_nop as many as it says."""
    if instruction.mnemonic == "s_nop":
        return instruction.operands[0].integer + 1
    return 1


def predecessors(code: tuple[Instruction, ...]) -> list[list[int]]:
    """Indices from which control can reach each instruction."""
    before: list[list[int]] = [[] for _ in code]
    for pc, instruction in enumerate(code):
        falls_through = instruction.mnemonic not in ("s_branch", "s_endpgm")
        if falls_through and pc + 1 < len(code):
            before[pc + 1].append(pc)
        if instruction.target is not None and instruction.target < len(code):
            before[instruction.target].append(pc)
    return before


def violations(program: Program) -> Iterator[Violation]:
    """All pairs of instructions that are too close on some path."""
    code = program.kernel.instructions
    steps = [step_of(i, bound) for i, bound in zip(code, program.bound, strict=True)]
    states = [wait_states(instruction) for instruction in code]
    before = predecessors(code)
    for consumer, step in enumerate(steps):
        if step.instruction.mnemonic[:2] == "s_":
            continue
        for producer, distance in _earlier(consumer, before, states):
            if not steps[producer].produced & step.touched:
                continue
            for rule in RULES:
                found = _apply(rule, steps[producer], step, producer, consumer, distance)
                if found is not None:
                    yield found


def _earlier(consumer: int, before: list[list[int]], states: list[int]) -> Iterator[tuple[int, int]]:
    """(index, wait states in between) of everything at most MAX_WAIT_STATES before an instruction."""
    nearest: dict[int, int] = {}
    pending = [(pc, 0) for pc in before[consumer]]
    while pending:
        pc, distance = pending.pop()
        if distance >= MAX_WAIT_STATES or nearest.get(pc, MAX_WAIT_STATES + 1) <= distance:
            continue
        nearest[pc] = distance
        pending += [(earlier, distance + states[pc]) for earlier in before[pc]]
    yield from nearest.items()


def _apply(
    rule: Rule, producer: Step, consumer: Step, producer_pc: int, consumer_pc: int, distance: int
) -> Violation | None:
    needed = rule.needed(producer, consumer)
    if needed <= distance:
        return None
    shared = producer.produced & consumer.touched
    names = [register_name(number) for number in numbers_in(shared)]
    return Violation(rule.name, producer_pc, consumer_pc, distance, needed, names[0] if names else "exec")


def check_wait_states(program: Program) -> None:
    """Raise WaitStateError for the first violation of a kernel."""
    for found in violations(program):
        producer = program.kernel.instructions[found.producer]
        instruction = program.kernel.instructions[found.consumer]
        error = WaitStateError(
            f"{found.rule}: {found.register} needs {found.needed} wait states after `{producer.text}` "
            f"(pc {found.producer}), there are {found.present}"
        )
        error.locate(
            Site(
                program.kernel.name,
                found.consumer,
                instruction.address,
                instruction.text,
                instruction.source,
            )
        )
        raise error
