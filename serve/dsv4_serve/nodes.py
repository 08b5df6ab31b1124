"""One model on several machines: how many they are, which one this is, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_serve.errors import UsageError
from dsv4_serve.flags import Value
from dsv4_serve.resolve import Resolved


@dataclass(frozen=True, slots=True)
class Nodes:
    """`rank` of `count` machines; `address` is host:port of the one with rank 0, None for a single machine."""

    count: int = 1
    rank: int = 0
    address: str | None = None

    @classmethod
    def of(cls, toggles: dict[str, Value]) -> Nodes:
        """From a profile's toggles, which `refuse_wrong_nodes` has checked."""
        count, rank = toggles.get("DSV4_NODES", 1), toggles.get("DSV4_NODE_RANK", 0)
        address = toggles.get("DSV4_NODE_ADDRESS")
        assert isinstance(count, int)
        assert isinstance(rank, int)
        return cls(count, rank, None if address is None else str(address))

    @property
    def worker(self) -> bool:
        """A machine that computes for rank 0 and answers no API itself."""
        return self.rank > 0


def refuse_wrong_nodes(resolved: Resolved) -> None:
    """UsageError for a rank beyond the machines, or for several machines that cannot find each other."""
    nodes, rank = resolved.count("DSV4_NODES"), resolved.count("DSV4_NODE_RANK")
    if rank >= nodes:
        accepted = "0 for a single machine" if nodes == 1 else f"0 to {nodes - 1}"
        raise UsageError(f"{resolved.settings['DSV4_NODE_RANK']}: accepted is {accepted} (DSV4_NODES={nodes})")
    if nodes > 1 and resolved["DSV4_NODE_ADDRESS"] is None:
        raise UsageError(
            f"{resolved.settings['DSV4_NODES']} needs DSV4_NODE_ADDRESS: host:port on the machine of rank 0, "
            "the same on every machine"
        )
    if nodes == 1 and resolved.settings["DSV4_NODE_ADDRESS"].origin in ("environment", "command line"):
        raise UsageError(f"{resolved.settings['DSV4_NODE_ADDRESS']} has no effect without DSV4_NODES above 1")
