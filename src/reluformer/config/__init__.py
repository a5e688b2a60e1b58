"""All configuration: typed, frozen, unknown keys refused with the nearest valid name."""

from reluformer.config.base import Config, load_yaml
from reluformer.config.data import DataConfig
from reluformer.config.decoding import DecodingConfig
from reluformer.config.model import ModelConfig
from reluformer.config.recipe import Recipe
from reluformer.config.training import RegularizerConfig, TrainingConfig

__all__ = [
    "Config",
    "DataConfig",
    "DecodingConfig",
    "ModelConfig",
    "Recipe",
    "RegularizerConfig",
    "TrainingConfig",
    "load_yaml",
]
