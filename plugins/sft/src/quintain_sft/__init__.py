"""Supervised fine-tuning: `quintain sft` trains a model on demonstrations, on rollouts or on conversations.

`quintain_sft.sources.source_of` reads the examples, `quintain_sft.tuning.tune` trains on them.
"""
