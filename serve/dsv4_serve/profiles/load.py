"""Finds and reads profiles, and applies resolved toggles to them."""

from __future__ import annotations

import difflib
from pathlib import Path

import yaml
from pydantic import ValidationError

from dsv4_serve.errors import UsageError
from dsv4_serve.profiles.schema import FREE_FLAGS, INDEXER_FIELDS, OWN_FIELDS, Model, Profile
from dsv4_serve.resolve import Resolved

REPOSITORY = Path(__file__).resolve().parents[3]
PROFILES = REPOSITORY / "configs" / "profiles"


def profile_names() -> list[str]:
    """Names of the profiles that come with this checkout, sorted."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def profile_path(name_or_path: str) -> Path:
    """The file of a profile; UsageError names what there is when there is none."""
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise UsageError(f"profile {name_or_path!r}: no such file")
        return path
    path = PROFILES / f"{name_or_path}.yaml"
    if not path.is_file():
        names = profile_names()
        nearest = difflib.get_close_matches(name_or_path, names, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names) or 'none'}"
        raise UsageError(f"profile {name_or_path!r}: not in {PROFILES}; {hint} (or give the path of a YAML file)")
    return path


def load_profile(name_or_path: str) -> Profile:
    """Read and validate a profile; UsageError names each wrong field and what it accepts."""
    path = profile_path(name_or_path)
    try:
        data = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a profile is a mapping of fields, found {type(data).__name__}")
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {_where(e['loc'])}: {e['msg']}" for e in error.errors())
        raise UsageError(f"{path}: not a profile:\n{problems}") from error


def apply(profile: Profile, resolved: Resolved) -> Profile:
    """The profile as it will be served: the same, with every resolved toggle in its field."""
    own = {field: resolved[toggle] for field, toggle in OWN_FIELDS.items()}
    indexer = {field: resolved[toggle] for field, toggle in INDEXER_FIELDS.items()}
    free = {name: resolved[name] for name in sorted(FREE_FLAGS) if resolved[name] is not None}
    return profile.model_copy(
        update={
            **own,
            "model": _model(profile.model, resolved),
            "indexer": profile.indexer.model_copy(update=indexer),
            "flags": free,
        }
    )


def _model(model: Model, resolved: Resolved) -> Model:
    setting = resolved.settings["DSV4_MODEL"]
    if setting.origin in ("default", "profile"):
        return model
    path = resolved.text("DSV4_MODEL")
    return Model(name=Path(path).resolve().name, path=path, context_length=model.context_length)


def _where(location: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in location) or "profile"
