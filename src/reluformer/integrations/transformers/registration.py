"""Making rules and the model known to transformers."""

from __future__ import annotations

from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    pipelines,
)
from transformers.pipelines import PIPELINE_REGISTRY

from reluformer import rules
from reluformer.integrations.transformers import guard
from reluformer.integrations.transformers.attention import PREFIX, attention_function
from reluformer.integrations.transformers.configuration import ReLUFormerConfig
from reluformer.integrations.transformers.masks import mask_function
from reluformer.integrations.transformers.modeling import ReLUFormerForConditionalGeneration
from reluformer.integrations.transformers.pipeline import TASK, TranslationPipeline
from reluformer.integrations.transformers.tokenization import ReLUFormerTokenizer


def register() -> None:
    """Every registered rule as attn_implementation="reluformer:NAME" for all models of transformers, and ReLUFormer.

    After it AutoConfig, AutoModelForSeq2SeqLM and AutoTokenizer know an exported
    ReLUFormer, and `pipeline` the task "translation" again.
    Call it again after registering rules of your own; calling it twice does no harm.
    """
    for name in rules.names():
        _offer(name)
    guard.install(_offer)
    AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig, exist_ok=True)
    AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(ReLUFormerConfig, tokenizer_class=ReLUFormerTokenizer, exist_ok=True)
    PIPELINE_REGISTRY.supported_tasks.pop(TASK, None)  # registering a task twice is a warning
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)  # transformers 5 knows the name only to refuse it
    PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")


def _offer(name: str) -> None:
    AttentionInterface.register(PREFIX + name, attention_function(name))
    AttentionMaskInterface.register(PREFIX + name, mask_function)
