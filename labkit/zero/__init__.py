"""ZeRO with DeepSpeed: the boards and the exercises of chapter 06.

``order_picture`` draws what each stage does in a step, ``board`` shows the stages and what offload
moves, ``check`` grades the exercises, ``opt_run`` is what a Trainer of transformers trains. The
theory and the real runs are ``labkit.sharding``'s, which ZeRO and FSDP share.
"""
