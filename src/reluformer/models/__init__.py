"""Models built from the layers, and how they are stored.

encoder_decoder   ReLUFormer and Transformer, from the same blocks
storage           a directory with config.json and model.safetensors
"""
