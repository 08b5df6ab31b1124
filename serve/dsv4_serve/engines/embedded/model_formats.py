"""What a model generation's caches can be stored in, and what it takes where an option does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.kv_pages import KVFormat

from .config import IndexerDtype, KVDtype
from .options import EngineOptions, OptionError


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """Accepted values, the generation's own first. Pages of 8 index keys exist for FP4 alone."""

    kv_dtypes: tuple[KVDtype, ...]
    indexer_dtypes: tuple[IndexerDtype, ...]
    hadamard: tuple[bool, ...]
    conventions: tuple[str, ...]
    page8: tuple[bool, ...]

    def settle(self, options: EngineOptions) -> EngineOptions:
        """`options` with every format decided. Raises OptionError for one that the generation does not have."""
        accepted: dict[str, tuple[object, ...]] = {
            "kv_dtype": self.kv_dtypes,
            "indexer_dtype": self.indexer_dtypes,
            "hadamard": self.hadamard,
            "index_convention": self.conventions,
            "page8": self.page8 if options.indexer_dtype == "fp4" else (False,),
        }
        decided = {}
        for name, values in accepted.items():
            value = getattr(options, name)
            decided[name] = values[0] if value is None else value
            if decided[name] not in values:
                listed = " or ".join(map(str, values))
                where = " (--kv-layout, or another profile)" if name == "kv_dtype" else ""
                raise OptionError(f"{name}={value!r}: accepted is {listed} for this model{where}")
        return replace(options, **decided)  # type: ignore[arg-type]


V4_FORMATS = ModelFormats(
    ("v4", "bf16", "float32"),
    ("fp4", "fp8", "bf16", "float32"),
    (True, False),
    ("aiter", *(name for name in CONVENTIONS if name != "aiter")),
    (False,),
)
V41_FORMATS = ModelFormats(("v41",), ("fp4", "fp8", "bf16", "float32"), (False,), ("rne_v41",), (False, True))


def v4_rows(options: EngineOptions) -> KVFormat:
    """The row format of a V4 model's caches, from settled options."""
    if options.kv_dtype is None or options.kv_dtype == "v41":
        raise OptionError(f"kv_dtype={options.kv_dtype!r}: accepted is v4, bf16 or float32 for this model")
    return options.kv_dtype
