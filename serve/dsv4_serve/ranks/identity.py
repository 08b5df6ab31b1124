"""What the machines of one model must have in common, before any of them loads weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from dsv4_serve.manifest import package_versions
from dsv4_serve.provenance import file_digest, image_record, patches, source_digests
from dsv4_serve.settings import ServeSettings

OWN = frozenset({"DSV4_NODE_RANK", "DSV4_MODEL", "DSV4_KERNELS_DIR", "DSV4_ENGINE_PYTHON", "DSV4_API_KEYS_FILE"})
"""Toggles that may differ between machines: which one it is, and where its files are."""
MODEL_FILES = ("config.json", "model.safetensors.index.json", "tokenizer.json")
"""What tells two checkpoints apart without reading their weights."""
ABSENT = "absent"

Identity = Mapping[str, str]


def identity(settings: ServeSettings, environment: Mapping[str, str], model_dir: Path) -> dict[str, str]:
    """Names and values, flat, so that a difference can be told in one line.

    The sources of our kernels stand for the format fingerprint: they define every layout and convention, and the
    toggles choose among them. `environment` is what the adapter gives the engine.
    """
    found = {f"package {name}": version or ABSENT for name, version in package_versions().items()}
    found |= {f"sources {name}": digest for name, digest in source_digests().items()}
    found |= {f"image {name}": value for name, value in (image_record() or {}).items()}
    found["patches"] = _digest(patches())
    found |= {
        name: json.dumps(setting.value) for name, setting in settings.resolved.settings.items() if name not in OWN
    }
    found |= {f"engine variable {name}": value for name, value in environment.items()}
    found["engine words"] = json.dumps(settings.profile.engine.extra_args)
    found |= {f"model {name}": _file_digest(model_dir / name) for name in MODEL_FILES}
    return found


def differences(mine: Identity, theirs: Identity, whose: str) -> list[str]:
    """One message for each name that differs, by name; `mine` is rank 0's."""
    return [
        f"{name}: rank 0 has {mine.get(name, ABSENT)}, {whose} has {theirs.get(name, ABSENT)}"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name, ABSENT) != theirs.get(name, ABSENT)
    ]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _file_digest(path: Path) -> str:
    return file_digest(path)[:16] if path.is_file() else ABSENT
