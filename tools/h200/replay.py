"""Times of kernels in CUDA graphs, as `dsv4 kernels bench` takes them."""

from dsv4_kernels.bench.replay import Launch, Replay, Timing, interleaved

__all__ = ["Launch", "Replay", "Timing", "interleaved"]
