"""The documentation's table of numerics is the code's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfx950_emulator.__main__ import main
from gfx950_emulator.front_end.instruction import parse_instruction
from gfx950_emulator.isa.decoder import bind_instruction
from gfx950_emulator.numerics import CATEGORIES, category_of, implemented, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gfx950-emulator.md"


def test_the_page_holds_the_table_of_the_code() -> None:
    assert markdown() in PAGE.read_text(), "run python -m gfx950_emulator numerics and paste its output"


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numerics"]) == 0
    assert capsys.readouterr().out.strip() == markdown()


@pytest.mark.parametrize(
    ("mnemonic", "title"),
    [
        ("v_mfma_scale_f32_*", "order-dependent"),
        ("v_mfma_i32_*", "exact"),
        ("v_exp_f32", "1 ulp on silicon"),
        ("v_fma_f32", "IEEE"),
        ("v_pk_fma_f32", "IEEE"),
        ("v_max_f32", "exact"),
        ("v_add_u32", "exact"),
        ("v_dot4_i32_i8", "exact"),
        ("v_div_scale_f32", "assumed"),
        ("s_and_saveexec_b64", "exact"),
    ],
)
def test_categories(mnemonic: str, title: str) -> None:
    assert category_of(mnemonic).title == title


def test_every_category_is_used() -> None:
    assert {category_of(name).title for name in implemented()} == {c.title for c in CATEGORIES}


def test_listed_mnemonics_bind() -> None:
    """Scalar table entries, as a sample of the list, are implemented under their names."""
    for name in implemented():
        if name.startswith("s_") and name.endswith("_b64") and "saveexec" in name:
            assert bind_instruction(parse_instruction(f"{name} s[0:1], s[2:3]")) is not None
