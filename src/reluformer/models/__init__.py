"""Models built from the layers, and how they are stored.

config            the sizes of a model and the rule of each of its memories
blocks            attention and feed-forward layers with their residual connections; the base of models
encoder_decoder   ReLUFormer and Transformer, from the same blocks
language_model    a decoder alone, with rotary positions or a forget gate
image_model       a classifier whose tokens are the patches of an image
storage           a directory with config.json and model.safetensors
"""

CONFIG, WEIGHTS = "config.json", "model.safetensors"
"""The files of a saved model."""
