"""The model: loading, the layers as plain functions, and the tokenizer behind a codec. Needs torch and transformers."""
