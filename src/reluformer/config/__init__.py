"""All configuration: typed, frozen, unknown keys refused with the nearest valid name."""

from reluformer.config.base import Config, load_yaml
from reluformer.config.data import DataConfig
from reluformer.config.model import ModelConfig
from reluformer.config.training import RegularizerConfig

__all__ = ["Config", "DataConfig", "ModelConfig", "RegularizerConfig", "load_yaml"]
