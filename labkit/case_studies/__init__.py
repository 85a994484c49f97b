"""Four studies in which everything before is used together, each planned at its own size and run
here at a small one.

``llama`` is LLaMA-13B on four cards: why the plan that a textbook prints dies, and what would fit;
``llama_run`` the same script through the Hugging Face Trainer with FSDP and DeepSpeed, recorded,
advised and mended. ``perception`` is a driving net of encoders, fusion and heads on groups of
ranks, ``judged_run`` its communication policies and uneven batches, each beside the plain way.
``stories`` plans story models of 5 B and 20 B, ``story_run`` trains a small one;
``small`` says what to do with one to eight cards. Chapter 20.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["llama", "small", "stories"],
    submod_attrs={
        "judged_run": ["adapted", "foreseen", "placed", "placements", "policies", "policy_parts"],
        "llama_run": ["Script", "kept", "mended", "trained_by"],
        "picture": ["drawn", "net_on"],
        "small_run": ["ran"],
        "story_run": ["Story", "tokenizer"],
        "perception": ["POLICIES", "Perception"],
    },
)
