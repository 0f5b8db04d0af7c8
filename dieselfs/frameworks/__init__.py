"""Adapters for PyTorch, TensorFlow, JAX, DALI, Hugging Face and fsspec. Each needs its package."""
