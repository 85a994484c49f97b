"""Precision and memory: how many bytes a number has, what the forward keeps for the backward, and
what is kept, made anew or left out instead.

The chapter works with torch itself (autocast, loss scaling, accumulation, checkpointing), with
``labkit.measure.memory``, that counts the bytes, and with ``labkit.sharding.states``, the bill by
formula. What is its own are ``formats``, the updates that a format lets through, and the exercises:
``check``, which run every answer on real ranks and count live bytes and messages, with their hints.
Chapter 05.
"""
