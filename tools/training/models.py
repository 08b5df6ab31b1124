"""The tiny model that belongs to a config.json."""

from tools.training.model import TinyV4
from tools.training.v41.model import TinyV41

from dsv4_serve.engines.embedded.config import CommonConfig, ModelConfig
from dsv4_serve.engines.embedded.v41.config import V41Config

TinyModel = TinyV4 | TinyV41


def build(config: CommonConfig) -> TinyModel:
    """The model, its matrices not initialised."""
    if isinstance(config, V41Config):
        return TinyV41(config)
    assert isinstance(config, ModelConfig), f"no model for {type(config).__name__}"
    return TinyV4(config)
