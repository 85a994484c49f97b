"""A script of your own, recorded unchanged: ``python -m labkit record train.py``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submod_attrs={"record_run": ["Record", "record"]}
)
