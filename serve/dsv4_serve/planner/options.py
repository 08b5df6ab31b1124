"""The words of a profile's command line that sizing depends on."""

from __future__ import annotations

from dsv4_serve.errors import UsageError
from dsv4_serve.flags import TRUE
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.sglang_demand import DEFAULT_WINDOW_RATIO, Server
from dsv4_serve.profiles.schema import Profile

DEFAULT_CHUNK = 8192
DEFAULT_FRACTION = 0.85
EAGLE_DRAFT_TOKENS = 4
ENGRAM_ON_HOST = "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"


def server(profile: Profile, geometry: ModelGeometry) -> Server:
    """What SGLang is told, per data-parallel rank; V4.1 sizes its window pool by requests unless told a ratio."""
    written = number(profile, "--swa-full-tokens-ratio")
    default = None if geometry.low_ratio else DEFAULT_WINDOW_RATIO
    # A DSpark step verifies the drafted block and the token before it.
    draft = {"off": 0, "eagle": EAGLE_DRAFT_TOKENS, "dspark": geometry.draft.tokens + 1}[profile.speculative]
    return Server(
        max_running_requests=max(1, profile.engine.max_running_requests // profile.dp),
        chunk_tokens=chunk_tokens(profile),
        window_ratio=default if written is None else written,
        draft_tokens=draft,
    )


def check_layout(profile: Profile, geometry: ModelGeometry) -> None:
    """UsageError when the profile's rows are those of the other generation: `--model` takes any directory."""
    generation, accepted = ("V4.1", ("v41",)) if geometry.low_ratio else ("V4", ("v4", "bf16"))
    if profile.kv_layout not in accepted:
        raise UsageError(
            f"DSV4_KV_LAYOUT={profile.kv_layout} (profile {profile.name}): {geometry.source} is of a {generation}; "
            f"accepted is {' or '.join(accepted)}, or a profile of that generation"
        )


def check_draft(profile: Profile, geometry: ModelGeometry) -> None:
    """UsageError when the profile asks for DSpark's drafts of a model that has no layers for them."""
    if profile.speculative != "dspark" or geometry.draft.tokens:
        return
    embedded = profile.engine.name == "embedded"
    others = "off or ngram" if embedded else "off" if geometry.low_ratio else "off or eagle"
    raise UsageError(
        f"DSV4_SPECULATIVE=dspark: {profile.model.name} has no DSpark draft layers ({geometry.source} has to have "
        f"dspark_target_layer_ids and dspark_block_size); accepted is a model with them, or {others}"
    )


def chunk_tokens(profile: Profile) -> int:
    return int(number(profile, "--chunked-prefill-size") or DEFAULT_CHUNK)


def memory_fraction(profile: Profile) -> float:
    """The share of HBM for weights and KV; UsageError unless it lies between 0 and 1."""
    fraction = number(profile, "--mem-fraction-static")
    if fraction is None:
        return DEFAULT_FRACTION
    if not 0 < fraction < 1:
        raise UsageError(f"--mem-fraction-static {fraction} (profile {profile.name}): accepted is above 0 and below 1")
    return fraction


def engram_on_host(profile: Profile) -> bool:
    """Whether V4.1's n-gram tables lie in host memory instead of HBM."""
    return profile.env.get(ENGRAM_ON_HOST, "0").lower() in TRUE


def number(profile: Profile, option: str) -> float | None:
    """The last value of `option` among the profile's own words; None when it is not there."""
    words = [word for given in profile.engine.extra_args for word in given.split("=", 1)]
    found = [words[at + 1] for at, word in enumerate(words[:-1]) if word == option]
    if not found:
        return None
    try:
        return float(found[-1])
    except ValueError:
        raise UsageError(f"{option} {found[-1]!r} (profile {profile.name}): accepted is a number") from None
