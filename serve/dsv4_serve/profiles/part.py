"""What every part of a profile is: frozen, and closed to keys that it does not know."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, strict=True)]


class Part(BaseModel):
    """Every part of a profile is frozen and refuses keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)
