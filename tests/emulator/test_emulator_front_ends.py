"""Both front ends give the same kernels; what cannot be read is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emulator import lab_kernels as lab
from emulator.kernel_text import kernel_from, kernel_text
from gfx950_emulator import active, load
from gfx950_emulator.errors import CodeObjectError
from gfx950_emulator.front_end import message_pack
from gfx950_emulator.front_end.disassembly import find_objdump
from gfx950_emulator.front_end.elf import read_code_object
from gfx950_emulator.front_end.instruction import Instruction, parse_instruction
from gfx950_emulator.front_end.operand import Operand, parse_operand


def both_kernels() -> list[tuple[str, bytes, str]]:
    """(name, code object, assembly) of several compiled kernels."""
    x = torch.zeros(256, dtype=torch.int32)
    with active():
        compiled = [
            lab.sort_kernel[(1,)](x, x, BLOCK=256),
            lab.histogram_kernel[(1,)](x, x, 256, BLOCK=256),
            lab.softmax_kernel[(1,)](x.float(), torch.zeros(256), 256, 256, BLOCK=256),
        ]
    return [(c.metadata.name, c.asm["hsaco"], c.asm["amdgcn"]) for c in compiled]


def meaning(instruction: Instruction) -> tuple[object, ...]:
    operands = () if instruction.is_branch else instruction.operands
    return (
        instruction.mnemonic,
        instruction.encoding,
        operands,
        instruction.modifiers,
        instruction.raw if operands else "",
    )


def test_both_front_ends_read_the_same_kernel() -> None:
    for name, binary, text in both_kernels():
        from_binary, from_text = load(binary)[name], load(text)[name]
        assert from_binary.descriptor == from_text.descriptor
        assert from_binary.arguments == from_text.arguments
        assert from_binary.resources == from_text.resources
        # The text has no padding between the two entry points.
        code = [[meaning(i) for i in k.instructions if i.mnemonic != "s_nop"] for k in (from_binary, from_text)]
        assert code[0] == code[1]
        assert all(i.address is not None for i in from_binary.instructions)
        assert any(i.source and i.source.startswith("lab_kernels.py:") for i in from_text.instructions)


def test_objdump_is_installed_and_its_absence_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(find_objdump()).exists()
    monkeypatch.setenv("LLVM_OBJDUMP", "/nonexistent/llvm-objdump")
    with pytest.raises(CodeObjectError, match=r"install Debian's llvm-22 \(make deps\) or set LLVM_OBJDUMP"):
        find_objdump()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "not an ELF file"),
        (b"\x7fELF" + bytes(14) + b"\x3e\x00" + bytes(44), "ELF machine 62 is not AMDGPU"),
        (b"\x7fELF" + bytes(14) + b"\xe0\x00" + bytes(28) + b"\x4c\x05\x00\x00" + bytes(12), "not gfx950"),
    ],
)
def test_other_binaries_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(CodeObjectError, match=message):
        read_code_object(data)


def test_assembly_for_another_processor_is_refused() -> None:
    text = kernel_text("s_nop 0", 0).replace("gfx950", "gfx942")
    with pytest.raises(CodeObjectError, match="this emulator executes gfx950"):
        load(text)


def test_inline_assembly_without_indentation_is_read() -> None:
    text = kernel_text("s_nop 0", 0).replace("\ts_nop 0", "\t;APP\n\tv_mov_b32 v4, 1\nv_mov_b32 v5, 2\n\t;NO_APP")
    names = [i.text for i in load(text)["test_kernel"].instructions]
    assert names == ["v_mov_b32 v4, 1", "v_mov_b32 v5, 2", "s_endpgm"]


def test_branches_to_unknown_labels_are_refused() -> None:
    with pytest.raises(CodeObjectError, match=r"unknown label '\.Lnowhere'"):
        kernel_from("s_branch .Lnowhere", 0)


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("v[2:3]", Operand("vgpr", 2, 2)),
        ("a7", Operand("agpr", 7)),
        ("s[4:7]", Operand("sgpr", 4, 4)),
        ("vcc", Operand("sgpr", 106, 2)),
        ("exec_hi", Operand("sgpr", 127)),
        ("ttmp5", Operand("sgpr", 113)),
        ("-1", Operand("integer", integer=-1)),
        ("0x7f800000", Operand("integer", integer=0x7F800000)),
        ("-4.0", Operand("float", number=-4.0)),
        ("0.15915494", Operand("float", number=0.15915494)),
        ("-v4", Operand("vgpr", 4, negate=True)),
        ("|s9|", Operand("sgpr", 9, absolute=True)),
        ("-|v4|", Operand("vgpr", 4, negate=True, absolute=True)),
        ("sext(v1)", Operand("vgpr", 1, sext=True)),
        ("neg(1)", Operand("integer", integer=1, negate=True)),
        ("off", Operand("off")),
        ("src_shared_base", Operand("special", name="shared_base")),
    ],
)
def test_operands(text: str, operand: Operand) -> None:
    assert parse_operand(text) == operand


def test_modifiers() -> None:
    one = parse_instruction("buffer_load_dwordx4 v2, s[28:31], 0 offen offset:16 sc0 lds")
    assert one.flag("offen")
    assert one.flag("lds")
    assert one.number("offset") == 16
    assert [o.kind for o in one.operands] == ["vgpr", "sgpr", "integer"]
    two = parse_instruction("v_pk_add_f32 v[0:1], v[2:3], v[4:5] op_sel_hi:[1,0] neg_lo:[0,1] clamp")
    assert two.bits("op_sel_hi", (1, 1)) == (1, 0)
    assert two.bits("op_sel", (0, 0)) == (0, 0)
    assert two.flag("clamp")
    three = parse_instruction("v_max_u16_sdwa v45, v45, |v44| dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD")
    assert (three.mnemonic, three.encoding) == ("v_max_u16", "sdwa")
    assert three.modifiers["dst_sel"] == "WORD_1"
    assert three.operands[2].absolute


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x05", 5),
        (b"\xff", -1),
        (b"\xcd\x01\x00", 256),
        (b"\xd1\xff\x00", -256),
        (b"\xc3", True),
        (b"\xc0", None),
        (b"\xa3abc", "abc"),
        (b"\xd9\x03abc", "abc"),
        (b"\x92\x01\xa1x", [1, "x"]),
        (b"\x81\xa1k\x93\x01\x02\x03", {"k": [1, 2, 3]}),
        (b"\xdc\x00\x01\x07", [7]),
        (b"\xde\x00\x01\xa1k\xc2", {"k": False}),
    ],
)
def test_message_pack(data: bytes, value: object) -> None:
    assert message_pack.unpack(data) == value


@pytest.mark.parametrize("data", [b"\xcd\x01", b"\xc7\x00\x00", b""])
def test_broken_message_pack_is_refused(data: bytes) -> None:
    with pytest.raises(CodeObjectError):
        message_pack.unpack(data)
