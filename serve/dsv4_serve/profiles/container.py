"""What a profile needs around the engine: its image, the folders that come from outside, and the limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from dsv4_serve.profiles.part import Count, Part

Image = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$")]
Folder = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]+$")]


class Volume(Part):
    """A folder that outlives the container. `free_gib`: what it must still have room for, when it is written."""

    path: Folder
    access: Literal["ro", "rw"]
    free_gib: Annotated[int, Field(ge=0, strict=True)] = 0


class Limits(Part):
    """The least that a container must be given. `memlock_gib` counts only where locked memory is limited at all."""

    shm_gib: Count = 16
    memlock_gib: Count = 64
    nofile: Count = 65536


class Container(Part):
    """`image` as `make image` tags it; compose.yaml gives every container at least these limits and volumes."""

    image: Image
    volumes: tuple[Volume, ...] = ()
    limits: Limits = Limits()

    @field_validator("image")
    @classmethod
    def _pinned(cls, image: str) -> str:
        if image.endswith(":latest"):
            raise ValueError("latest is not a pin")
        return image
