"""ZeRO with DeepSpeed: the boards and the exercises of chapter 06.

``part_picture`` draws one weight on its ranks, ``order_picture`` what each stage does in a step;
``board`` shows the stages and what offload moves, ``check`` grades the exercises. ``by_hand_run``
puts the chapter's programs beside each other, ``ring_bytes`` says what a ring would send,
``opt_run`` is what a Trainer of transformers trains. The theory and the real runs are
``labkit.sharding``'s, which ZeRO and FSDP share.
"""
