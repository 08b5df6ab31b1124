"""Reader for ELF64 AMDGPU code objects: segments, symbols, metadata note, kernel descriptors."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from gfx950_emulator.errors import CodeObjectError
from gfx950_emulator.front_end import message_pack
from gfx950_emulator.front_end.kernel import Descriptor, FloatMode, UserSgprs

_PT_LOAD, _SHT_SYMTAB, _SHT_NOTE, _SHT_DYNSYM = 1, 2, 7, 11
_NT_AMDGPU_METADATA = 32
_EM_AMDGPU = 224
_EF_MACH_GFX950 = 0x4F
_DESCRIPTOR = struct.Struct("<IIIIq20sIIIHHI")


@dataclass(frozen=True)
class CodeObject:
    """A loaded code object."""

    image: bytes
    """The load segments, laid out from virtual address 0."""
    symbols: dict[str, tuple[int, int]]
    """Name to (virtual address, size)."""
    metadata: dict[str, Any]


def read_code_object(data: bytes) -> CodeObject:
    """Parse an ELF code object; raises CodeObjectError when it is not one for gfx950."""
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise CodeObjectError("not an ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    flags = struct.unpack_from("<I", data, 48)[0]
    if machine != _EM_AMDGPU:
        raise CodeObjectError(f"ELF machine {machine} is not AMDGPU ({_EM_AMDGPU})")
    if flags & 0xFF != _EF_MACH_GFX950:
        raise CodeObjectError(f"code object is for processor {flags & 0xFF:#x}, not gfx950 ({_EF_MACH_GFX950:#x})")
    sections = _sections(data)
    return CodeObject(_image(data), _symbols(data, sections), _metadata(data, sections))


def _image(data: bytes) -> bytes:
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, offset + i * size) for i in range(count)]
    loads = [h for h in headers if h[0] == _PT_LOAD]
    image = bytearray(max(h[3] + h[6] for h in loads))
    for _, _, file_offset, address, _, file_size, _, _ in loads:
        image[address : address + file_size] = data[file_offset : file_offset + file_size]
    return bytes(image)


def _sections(data: bytes) -> list[tuple[int, ...]]:
    offset = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    return [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]


def _symbols(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    symbols = {}
    for section in sections:
        if section[1] not in (_SHT_SYMTAB, _SHT_DYNSYM):
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, _, value, size = struct.unpack_from("<IBBHQQ", data, at)
            end = data.index(b"\0", strings + name)
            symbols[data[strings + name : end].decode()] = (value, size)
    return symbols


def _metadata(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, Any]:
    for section in sections:
        if section[1] != _SHT_NOTE:
            continue
        name_size, size, kind = struct.unpack_from("<III", data, section[4])
        at = section[4] + 12 + (name_size + 3) // 4 * 4
        if kind == _NT_AMDGPU_METADATA:
            metadata = message_pack.unpack(data[at : at + size])
            if isinstance(metadata, dict) and "amdhsa.kernels" in metadata:
                return metadata
    raise CodeObjectError("code object has no AMDGPU metadata note")


def read_descriptor(image: bytes, address: int) -> Descriptor:
    """Decode the 64-byte kernel descriptor at `address`."""
    fields = _DESCRIPTOR.unpack_from(image, address)
    lds, scratch, kernarg, rsrc3, rsrc1, rsrc2, properties, preload = (fields[i] for i in (0, 1, 2, 6, 7, 8, 9, 10))

    def bit(word: int, position: int) -> bool:
        return bool(word >> position & 1)

    return Descriptor(
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        user_sgprs=UserSgprs(
            private_segment_buffer=bit(properties, 0),
            dispatch_ptr=bit(properties, 1),
            queue_ptr=bit(properties, 2),
            kernarg_segment_ptr=bit(properties, 3),
            dispatch_id=bit(properties, 4),
            flat_scratch_init=bit(properties, 5),
            private_segment_size=bit(properties, 6),
            preload_length=preload & 0x7F,
            preload_offset=preload >> 7,
        ),
        user_sgpr_count=rsrc2 >> 1 & 31,
        workgroup_ids=(bit(rsrc2, 7), bit(rsrc2, 8), bit(rsrc2, 9)),
        workgroup_info=bit(rsrc2, 10),
        workitem_id_dimensions=rsrc2 >> 11 & 3,
        accum_offset=((rsrc3 & 63) + 1) * 4,
        float_mode=FloatMode(
            round_32=rsrc1 >> 12 & 3,
            round_16_64=rsrc1 >> 14 & 3,
            denormal_32=rsrc1 >> 16 & 3,
            denormal_16_64=rsrc1 >> 18 & 3,
            dx10_clamp=rsrc1 >> 21 & 1,
            fp16_overflow=rsrc1 >> 26 & 1,
        ),
    )
