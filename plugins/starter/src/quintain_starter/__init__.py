"""The default model: small, Qwen3-shaped and trained here, so that a first run downloads nothing.

`source` is the model source `default` with its cache, `warm_start` the supervised training on demonstrations,
`architecture` the network and the tokenizer before any training.
"""
