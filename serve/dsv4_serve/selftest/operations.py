"""`dsv4 selftest` of a profile whose engine is not the embedded one: the operations that its kernels serve, without it.

`layout` needs no model, so it can be asked of the kernels on this machine; what needs one is for --url.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import torch

from dsv4_kernels import backends
from dsv4_kernels.errors import BackendUnavailableError
from dsv4_serve.kernel_needs import logits_shapes
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.selftest import index_formats
from dsv4_serve.selftest.layout_readback import OPERATIONS, layout_readback
from dsv4_serve.selftest.outcome import NotRun, Outcome, ProbeFailed
from dsv4_serve.selftest.run import chosen


async def probe_operations(
    profile: Profile, names: Iterable[str] = (), begins: Callable[[str], None] = lambda name: None
) -> AsyncIterator[Outcome]:
    """The named probes, all by default: `layout` by the kernels here, the others as not run with the reason."""
    for name in chosen(names):
        begins(name)
        begun = time.monotonic()
        try:
            if name != "layout":
                raise NotRun(
                    f"it asks the model, which {profile.engine.name} serves: dsv4 selftest --url asks a server"
                )
            outcome = Outcome(name, "passed", _layout(profile), round(time.monotonic() - begun, 3))
        except NotRun as reason:
            outcome = Outcome(name, "not run", str(reason), round(time.monotonic() - begun, 3))
        except (ProbeFailed, BackendUnavailableError) as error:
            outcome = Outcome(name, "failed", str(error), round(time.monotonic() - begun, 3))
        yield outcome


def _layout(profile: Profile) -> str:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here, wanted = _architecture(device), profile.hardware.arch
    if here != wanted:
        stored = index_formats.told(profile)
        raise NotRun(f"the profile's kernels are for {wanted}, this machine has {here}; unprobed are {stored}")
    formats = index_formats.of_profile(profile)
    compiled = profile.toggles().get("DSV4_KERNELS_DIR")
    backends.activate(
        device,
        profile.indexer.backend,
        shapes=logits_shapes(profile) if profile.indexer.dtype == "fp4" else None,
        compiled_kernels=None if compiled is None else Path(str(compiled)),
        only=OPERATIONS,
    )
    return f"{layout_readback(formats, device)}; not probed: what {profile.engine.name} calls in its own process"


def _architecture(device: torch.device) -> str:
    """As profiles name it."""
    if device.type == "cpu":
        return "cpu"
    properties = torch.cuda.get_device_properties(device)
    name = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return name if name.startswith("gfx") else f"sm{properties.major}{properties.minor}"
