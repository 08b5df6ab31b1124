"""What a V4.1 model directory may hold: config.json, tensors, tokenizer; n-gram hashes against published numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.config import ConfigError
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded.tokenizer import build_byte_tokenizer
from dsv4_serve.engines.embedded.v41.config import V41Config
from dsv4_serve.engines.embedded.v41.ngram import BucketLayout, NgramHash, folded_ids, multipliers
from dsv4_serve.engines.embedded.v41.tiny_config import TINY_V41_CONFIG
from dsv4_serve.engines.embedded.weights import WeightError


@pytest.fixture
def copy(tiny_v41_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_v41_dir, tmp_path / "model"))


def change(directory: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = directory / "config.json"
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))


def read(directory: Path) -> V41Config:
    _, config = load_config(directory)
    assert isinstance(config, V41Config)
    return config


def test_who_owns_who_chooses_who_consumes(tiny_v41_dir: Path) -> None:
    config = read(tiny_v41_dir)
    layers = range(config.num_hidden_layers)
    assert [config.kv_source_of(layer) for layer in layers] == [None, 1, 1, 3, 3, 3]
    assert [config.index_source_of(layer) for layer in layers] == [None, 1, 1, 3, 3, 5]
    assert config.candidate_consumers == (5,)


def test_the_text_part_may_stand_one_level_down(tiny_v41_dir: Path, copy: Path) -> None:
    def nest(raw: dict[str, Any]) -> None:
        kept = {"model_type", "architectures", "bos_token_id", "eos_token_id"}
        raw["text_config"] = {name: raw.pop(name) for name in list(raw) if name not in kept}
        raw["text_config"]["model_type"] = "deepseek_v41_text"

    change(copy, nest)
    assert read(copy) == read(tiny_v41_dir)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vision_config": {"num_hidden_layers": 32}}, "serves text only; accepted is a model without it"),
        ({"vision_n_layers": 2}, "serves text only"),
        ({"quantization_config": {"quant_method": "fp8"}}, "reads bf16 or float32 weights only"),
        ({"q_head_norm": True}, "q_head_norm=True: accepted is False"),
        ({"hc_pre_from_prev_sublayer": False}, "hc_pre_from_prev_sublayer=False: accepted is True"),
        ({"compress_ratios": [0, 2, 2, 1, 1, 4]}, "accepted is ratios 0, 1 and 2"),
        ({"kv_source_layer_ids": [3]}, "accepted is a source of ratio 2 for layer 1, at or before it"),
        ({"kv_source_layer_ids": [0, 1, 3]}, "accepted is ascending layers of ratio 1 or 2"),
        ({"index_source_layer_ids": [1, 5]}, "accepted is a source over the KV of layer 3 for layer 3"),
        ({"candidate_source_layer_id": 4}, "candidate_source_layer_id=4: accepted is -1 or an index source"),
        ({"candidate_source_layer_id": 1}, "accepted is a source over the KV of all later index sources"),
        ({"candidate_topk_blocks": 8}, "candidate_topk_blocks=8: accepted is 9 or more"),
        ({"candidate_block_size": 16}, "candidate_block_size=16: accepted is 8"),
        ({"engram_num_embeddings": [3144, 3425]}, "accepted is [3144, 3424], the sums of the primes"),
        ({"engram_max_ngram_size": 5}, "engram_max_ngram_size=5: accepted is 2 to 4"),
        ({"engram_layer_ids": [1, 6]}, "accepted is layers 0 to 5"),
        ({"model_type": "deepseek_v42"}, "accepted is 'deepseek_v4' or 'deepseek_v41'"),
    ],
)
def test_unservable_config(copy: Path, changes: dict[str, Any], says: str) -> None:
    change(copy, lambda raw: raw.update(changes))
    with pytest.raises(ConfigError) as error:
        load_config(copy)
    assert says in str(error.value)


def test_missing_fields_are_listed(copy: Path) -> None:
    change(copy, lambda raw: (raw.pop("kv_source_layer_ids"), raw.pop("engram_n_heads")))
    with pytest.raises(ConfigError, match=r"missing field\(s\) kv_source_layer_ids, engram_n_heads"):
        load_config(copy)


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [("engram_compressed_vocab_size", 200, "245, by the tokenizer"), ("engram_pad_token_id", 280, "a token, 0 to 273")],
)
def test_a_tokenizer_that_folds_otherwise_is_refused(copy: Path, field: str, value: int, accepted: str) -> None:
    """Every hash multiplier depends on the number of folded ids: the tables would be read at random."""
    change(copy, lambda raw: raw.update({field: value}))
    with pytest.raises(ConfigError, match=f"{field}={value}: accepted is {accepted}"):
        build(EngineOptions(copy, "tiny", max_total_tokens=256, context_length=256))


def test_a_tensor_of_another_layer_is_unexpected(copy: Path) -> None:
    """Layer 2 shares the KV of layer 1: a compressor of its own would never be read."""
    tensors = load_file(copy / "model.safetensors")
    name = "layers.2.attn.compressor.wkv.weight"
    save_file({**tensors, name: torch.zeros(512, 192)}, copy / "model.safetensors")
    with pytest.raises(WeightError, match=f"unexpected tensor '{name}'"):
        build(EngineOptions(copy, "tiny", max_total_tokens=256, context_length=256))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_dtype": "v4"}, "kv_dtype='v4': accepted is v41 for this model"),
        ({"hadamard": True}, "hadamard=True: accepted is False for this model"),
        ({"index_convention": "aiter"}, "index_convention='aiter': accepted is rne_v41 for this model"),
        ({"page8": True, "indexer_dtype": "fp8"}, "page8=True: accepted is False for this model"),
    ],
)
def test_formats_of_another_generation_are_refused(tiny_v41_dir: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        build(EngineOptions(tiny_v41_dir, "tiny", **options))


def test_v4_has_no_pages_of_8(tiny_dir: Path) -> None:
    with pytest.raises(OptionError, match="page8=True: accepted is False for this model"):
        build(EngineOptions(tiny_dir, "tiny", page8=True))


def test_the_released_tables_have_the_rows_that_the_primes_give() -> None:
    layout = BucketLayout.of(2, 4, 8, 16_000_000)
    assert layout.rows == (384_006_168, 384_016_682)
    assert (layout.primes[0][0][0], layout.primes[-1][-1][-1]) == (16_000_057, 16_000_889)
    assert multipliers([1, 14], 4, 99_092)[0].tolist() == [
        76632096046245,
        4839876093313,
        35959672319349,
        73987337458391,
    ]


def test_spellings_of_one_word_share_an_id() -> None:
    tokenizer = build_byte_tokenizer()
    folded, size = folded_ids(tokenizer)

    def of(text: str) -> int:
        return folded[tokenizer.encode(text, add_special_tokens=False).ids[0]]

    assert of("A") == of("a") != of("b")
    assert of("\n") == of("\t") == of(" ")
    assert size == len(set(folded)) == TINY_V41_CONFIG["engram_compressed_vocab_size"]
    # The bytes of a character are parts that no text names: each keeps an id of its own.
    assert len({folded[18 + byte] for byte in range(128, 256)}) == 128


def test_hashes_are_the_formula_s_in_plain_integers() -> None:
    """Against Python's own integers, for tokens inside a sequence, at its beginning, and beyond the tokenizer."""
    folded, size = folded_ids(build_byte_tokenizer())
    buckets = BucketLayout.of(2, 4, 2, 500)
    hashes = NgramHash(buckets, (1, 4), folded, size, pad_token=2)
    rows = [[100, 101, 102, 103], [100, -1, -1, -1], [280, 100, 101, 102]]
    found = hashes.rows(torch.tensor(rows))
    factors = multipliers((1, 4), 4, size).tolist()
    for row, tokens in enumerate(rows):
        ids = [folded[t] if 0 <= t < len(folded) else folded[2] for t in tokens]
        for layer in range(2):
            wanted, start, value = [], 0, ids[0] * factors[layer][0]
            for place in range(1, 4):
                value ^= ids[place] * factors[layer][place]
                for prime in buckets.primes[layer][place - 1]:
                    wanted.append(start + value % prime)
                    start += prime
            assert found[row, layer].tolist() == wanted


def test_the_same_seed_writes_the_same_bytes(tiny_v41_dir: Path, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "again", seed=0, family="v41")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tiny_v41_dir / name).read_bytes()
    assert (tiny_v41_dir / "model.safetensors").stat().st_size < 16_000_000


def test_any_loadable_tokenizer_folds() -> None:
    """Ids need not be dense in the texts: a vocabulary of merges folds as one of bytes does."""
    tokenizer = Tokenizer.from_str(build_byte_tokenizer().to_str())
    tokenizer.add_tokens(["The", " the", "THE"])
    folded, _ = folded_ids(tokenizer)
    assert len(set(folded[-3:])) == 1
