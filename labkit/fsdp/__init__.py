"""FSDP: the board and the exercises of chapter 07.

``board`` shows who holds what at every moment of a step, ``check`` grades the exercises. The theory
and the real runs are ``labkit.sharding``'s, which ZeRO and FSDP share.
"""
