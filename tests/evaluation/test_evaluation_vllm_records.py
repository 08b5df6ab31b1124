"""The comparison of vLLM's records with and without the rotation: what is compared, and how it is told."""

from __future__ import annotations

from tools import vllm_hadamard

from dsv4_serve.engines.vllm import tensors
from dsv4_serve.evaluation.shadow import Selection


def test_both_forms_are_what_the_plugin_stores_and_differ_in_the_rotation_alone() -> None:
    plain, rotated = (shadow.write for shadow in vllm_hadamard.SHADOWS)
    stored = tensors.spec(tensors.run_of(64), 64)
    assert (plain.layout, plain.convention, plain.hadamard) == (stored.layout, stored.convention, False)
    assert (rotated.layout, rotated.convention, rotated.hadamard) == (stored.layout, stored.convention, True)
    assert all(shadow.read == shadow.write for shadow in vllm_hadamard.SHADOWS)


def test_a_line_holds_the_mean_its_interval_and_the_worst() -> None:
    recalls = [1.0, 0.5, 1.0, 0.5]
    found = [Selection("plain", 1, 300, 16, recall, 0.25) for recall in recalls]
    assert vllm_hadamard.table(found).splitlines()[2:] == ["| 16 | plain | 4 | 75.0 ± 24.5 % | 50.0 % | 0.2500 |"]
