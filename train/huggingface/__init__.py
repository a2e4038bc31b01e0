"""Models in the form of Hugging Face transformers: config.json and safetensors of Llama- and Qwen3-style decoders.

transformers itself is not needed, no pickle is ever read, no code of a folder is ever run.
"""
