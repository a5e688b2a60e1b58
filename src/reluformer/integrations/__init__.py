"""What connects the models to the world.

transformers   rules as attention of any Hugging Face model, ReLUFormer as one of its models, `relufy`
onnx           models for ONNX Runtime
server         the LibreTranslate API over HTTP, and the page
"""
