"""Which model needs which machine: the bill of a model, and the strategies that make it fit.

``models`` is the catalogue of models and GPUs, ``run`` trains a small model by each strategy.
Chapter 01.
"""
