"""Does something to a module as soon as that is imported: a rank need not import it (DeepSpeed
takes a second) for that.

    imported.then("deepspeed.accelerator", tell_of_the_device)
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def then(name: str, act: Callable[[ModuleType], None]) -> None:
    """Calls ``act`` with the module: now if it is imported already, else at the end of its
    import."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watcher(name, act))


class _Watcher:
    """A finder of modules that finds none, but adds a step to the import of one."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python's own specification, with one more step at the end of the module."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def then_act(module: ModuleType) -> None:
            execute(module)
            self.act(module)

        spec.loader.exec_module = then_act
        return spec
