"""Engines that run here: the embedded one decodes a transformers model in process. Needs torch and
transformers.
"""
