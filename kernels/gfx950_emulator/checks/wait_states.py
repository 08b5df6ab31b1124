"""placeholder"""

from gfx950_emulator.isa.decoder import Program


def check_wait_states(program: Program) -> None:
    """Filled in next."""
