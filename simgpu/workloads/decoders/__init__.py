"""Decoder-only transformers from a Hugging Face ``config.json``, with the kernels that transformers' modules run."""
