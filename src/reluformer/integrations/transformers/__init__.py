"""Hugging Face transformers: rules as the attention of any model, and ReLUFormer as one of its models.

attention     a rule as `attn_implementation`, with the attention masks of transformers
modeling      the configuration and the model
tokenization  the tokenizer
pipeline      the translation pipeline, and `generate` with our search settings
registration  `register()`, which makes all of this known to transformers
run_export    a run as a directory of transformers, and back
relufy        converts a pretrained softmax model into a ReLU one

`reluformer.hub` has the public names.
"""
