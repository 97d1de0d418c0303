"""Language models: from a Hugging Face folder or a GGUF file to a package."""
