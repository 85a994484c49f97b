"""What a rank computes on: its own GPU, a GPU shared by several ranks, a pretend device, the CPU.

``rung`` chooses one of the four for a launch and says how it is labelled; ``place`` puts a rank on
it. ``pretend`` is an accelerator of our own for machines without one, ``through_host`` lets several
ranks share one GPU.
"""
