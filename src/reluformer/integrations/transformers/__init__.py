"""Hugging Face transformers: rules as the attention of any model, and our models as some of its own.

attention          a rule as `attn_implementation`, with the attention masks of transformers
pretrained         what our models have in common there
modeling           ReLUFormer, the encoder-decoder
language_modeling  the language model and its cache
tokenization       the tokenizers
pipeline           the translation pipeline, and `generate` with our search settings
registration       `register()`, which makes all of this known to transformers
run_export         a run as a directory of transformers, and back
relufy             converts a pretrained softmax model into a ReLU one

`reluformer.hub` has the public names.
"""
