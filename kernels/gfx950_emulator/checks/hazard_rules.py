"""The wait states that gfx950 needs between dependent instructions, as a table of rules.

Hardware does not interlock these pairs; a compiler must keep them apart. LLVM does so for its own code, but not
around inline assembly. The table follows the manually-inserted-wait-states section of AMD's CDNA instruction set
manuals with the gfx950 figures that LLVM uses; tests check it against code that LLVM emitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gfx950_emulator.checks.hazard_step import Step
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import VCC
from gfx950_emulator.isa.bound import EXEC_MASK, operand_mask
from gfx950_emulator.machine.registers import SGPR_BASE, mask_of

VECTOR_FILE = (1 << SGPR_BASE) - 1
SCALAR_FILE = ((1 << 128) - 1) << SGPR_BASE
MAX_WAIT_STATES = 20
_TRANSCENDENTAL = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_LANE_SELECT = ("v_readlane_b32", "v_writelane_b32")
_PACKED_CONVERSIONS = (
    "v_cvt_pk_fp8_",
    "v_cvt_pk_bf8_",
    "v_cvt_sr_",
    "v_cvt_scalef32_pk_fp8_",
    "v_cvt_scalef32_pk_bf8_",
    "v_cvt_scalef32_pk_fp4_",
)
_PERMLANE = ("v_permlane16_swap_b32", "v_permlane32_swap_b32")


Needed = Callable[[Step, Step], int]


@dataclass(frozen=True)
class Rule:
    """`needed(producer, consumer)` wait states; 0 when the rule does not apply."""

    name: str
    needed: Needed


def _matrix_read(producer: Step) -> int:
    """Wait states before anything but an accumulating matrix instruction may use a matrix result."""
    if producer.instruction.mnemonic.endswith("f64"):
        return producer.passes + 3
    return producer.passes + (4 if producer.xdl else 2)


def _result_to_vector(producer: Step, consumer: Step) -> int:
    if producer.matrix and consumer.reads_vectors and producer.writes & consumer.reads:
        return _matrix_read(producer)
    return 0


def _result_overwritten(producer: Step, consumer: Step) -> int:
    if producer.matrix and consumer.vector_alu and producer.writes & consumer.writes:
        return _matrix_read(producer)
    return 0


def _result_to_factors(producer: Step, consumer: Step) -> int:
    if producer.matrix and consumer.matrix and producer.writes & consumer.reads:
        return _matrix_read(producer)
    return 0


def _result_to_accumulator(producer: Step, consumer: Step) -> int:
    if not (producer.matrix and consumer.matrix and producer.writes & consumer.source_c):
        return 0
    if producer.writes == consumer.source_c:
        return 0  # accumulation in place is forwarded
    if producer.instruction.mnemonic.endswith("f64"):
        return producer.passes + 1
    if producer.xdl:
        return producer.passes + 2
    return 0 if consumer.xdl else producer.passes


def _accumulator_overwritten(producer: Step, consumer: Step) -> int:
    if producer.matrix and consumer.vector_alu and producer.source_c & consumer.writes:
        return producer.passes - 1
    return 0


def _store_data_overwritten(producer: Step, consumer: Step) -> int:
    return 2 if consumer.vector_alu and producer.wide_store_data & consumer.writes else 0


def _vector_to_matrix(producer: Step, consumer: Step) -> int:
    touched = consumer.reads | consumer.source_c
    return 2 if consumer.matrix and producer.vector_alu and producer.writes & touched & VECTOR_FILE else 0


def _vector_to_permlane(producer: Step, consumer: Step) -> int:
    applies = consumer.starts(*_PERMLANE) and producer.vector_alu
    return 2 if applies and producer.writes & consumer.reads & VECTOR_FILE else 0


def _vector_to_dpp(producer: Step, consumer: Step) -> int:
    if not (consumer.dpp and producer.vector_alu):
        return 0
    if producer.writes & EXEC_MASK:
        return 5
    first = operand_mask([consumer.instruction.operands[1]])
    return 2 if producer.writes & first & VECTOR_FILE else 0


def _exec_to_matrix(producer: Step, consumer: Step) -> int:
    return 4 if consumer.matrix and producer.vector_alu and producer.writes & EXEC_MASK else 0


def _scalar_to_memory(producer: Step, consumer: Step) -> int:
    applies = producer.vector_alu and consumer.vector_memory
    return 5 if applies and producer.writes & consumer.reads & SCALAR_FILE & ~EXEC_MASK else 0


def _scalar_to_lane_select(producer: Step, consumer: Step) -> int:
    if not (producer.vector_alu and consumer.starts(*_LANE_SELECT)):
        return 0
    selector = operand_mask([consumer.instruction.operands[2]])
    return 4 if producer.writes & selector & SCALAR_FILE else 0


def _vcc_to_fmas(producer: Step, consumer: Step) -> int:
    vcc = mask_of((SGPR_BASE + VCC, SGPR_BASE + VCC + 1))
    applies = producer.vector_alu and consumer.starts("v_div_fmas")
    return 4 if applies and producer.writes & vcc else 0


def _scalar_to_vector(producer: Step, consumer: Step) -> int:
    applies = producer.vector_alu and consumer.vector_alu
    return 2 if applies and producer.writes & consumer.reads & SCALAR_FILE & ~EXEC_MASK else 0


def _transcendental(producer: Step, consumer: Step) -> int:
    applies = producer.starts(*_TRANSCENDENTAL) and consumer.vector_alu and not consumer.starts(*_TRANSCENDENTAL)
    return 1 if applies and producer.writes & consumer.reads else 0


def _partial_write(producer: Step, consumer: Step) -> int:
    if not (producer.vector_alu and consumer.vector_alu and _writes_selected_part(producer.instruction)):
        return 0
    return 1 if producer.writes & consumer.reads & VECTOR_FILE else 0


def _writes_selected_part(instruction: Instruction) -> bool:
    """Whether SDWA or op_sel moves the result to another part of the destination than its lowest bits."""
    if instruction.encoding == "sdwa":
        return instruction.modifiers.get("dst_sel", "DWORD") != "DWORD"
    if instruction.mnemonic.startswith(_PACKED_CONVERSIONS):
        return any(instruction.bits("op_sel", (0, 0, 0, 0))[2:])
    return instruction.mnemonic.endswith("16") and bool(instruction.bits("op_sel", (0, 0, 0, 0))[-1])


RULES = (
    Rule("matrix result read by a vector or memory instruction", _result_to_vector),
    Rule("matrix result overwritten by a vector instruction", _result_overwritten),
    Rule("matrix result read as A, B or scale", _result_to_factors),
    Rule("matrix result partly read as C", _result_to_accumulator),
    Rule("C of a matrix instruction overwritten", _accumulator_overwritten),
    Rule("data of a wide store overwritten", _store_data_overwritten),
    Rule("vector result read by a matrix instruction", _vector_to_matrix),
    Rule("vector result read by v_permlane", _vector_to_permlane),
    Rule("vector result read through DPP", _vector_to_dpp),
    Rule("EXEC written before a matrix instruction", _exec_to_matrix),
    Rule("SGPR written by a vector instruction, read by memory", _scalar_to_memory),
    Rule("SGPR written by a vector instruction, used as lane number", _scalar_to_lane_select),
    Rule("VCC written before v_div_fmas", _vcc_to_fmas),
    Rule("SGPR written by a vector instruction, read by another", _scalar_to_vector),
    Rule("transcendental result read", _transcendental),
    Rule("result of a partial write read", _partial_write),
)
