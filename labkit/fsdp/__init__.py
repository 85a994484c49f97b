"""FSDP: the board, the moves and the exercises of chapter 07.

``board`` shows who holds what at every moment of a step, ``moves`` reads gather, forward, backward
and reduce of each layer out of a recording, ``hiding`` says what such an order takes where messages
run beside the computation, ``moves_picture`` draws a layer's step, ``weights_run`` joins slices,
``leaving`` says what would leave a machine, ``moments_board`` shows which layers are whole,
``training_run`` trains a model in several ways, ``keeping`` plans what ways cost, ``check``
grades the exercises. The theory and the real runs are ``labkit.sharding``'s, which ZeRO and FSDP
share.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "hiding": ["replay"],
        "keeping": ["grad_op", "ways"],
        "leaving": ["leaving_bytes"],
        "moments_board": ["moments"],
        "moves": ["by_layer", "order"],
        "moves_picture": ["ThreeMoves"],
        "training_run": ["Trainings", "each_layer", "train"],
        "weights_run": ["whole"],
    },
)
