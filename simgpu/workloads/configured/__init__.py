"""Models from a Hugging Face ``config.json``, with the kernels that the modules of transformers and diffusers run."""
