"""Runs a script on pretend devices, unchanged: ``python -m labkit.devices.on_pretend train.py``.

It installs the devices, as many as torchrun starts ranks here, and then is gone: ``__main__``,
``sys.argv``, ``sys.path`` and tracebacks are the script's own, as if Python had been given it. The
script finds the device as it would find a GPU, by ``torch.accelerator``; no default is set for it.
"""

import argparse
import atexit
import builtins
import os
import sys
import types
from pathlib import Path

from labkit.devices.rung import Pretend

_OPTIONS = {
    "memory_mib": "each device's memory, in MiB (default: no limit)",
    "link_gb_per_s": "how fast host and device copy to each other, in GB/s (default: no limit)",
    "link_latency_us": "what each such copy takes besides, in microseconds (default: 0)",
}
"""A field of Pretend -> what it means."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a pretend device is like, the script and its own arguments, as a command's options."""
    for field, text in _OPTIONS.items():
        parser.add_argument(_flag(field), type=float, metavar="X", help=text)
    parser.add_argument("script", help="the script, unchanged")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def wanted(chosen: argparse.Namespace) -> Pretend:
    """The device that the options describe. Raises ValueError for sizes that can be none."""
    given = {field: getattr(chosen, field) for field in _OPTIONS}
    return Pretend(**{field: value for field, value in given.items() if value is not None})


def front(pretend: Pretend | None) -> list[str]:
    """What stands before a script on Python's or torchrun's command line; nothing where there are
    no pretend devices."""
    if pretend is None:
        return []
    line = ["-m", "labkit.devices.on_pretend"]
    default = Pretend()
    for field in _OPTIONS:
        value = getattr(pretend, field)
        if value != getattr(default, field):
            line += [_flag(field), f"{value:g}"]
    return line


def main() -> None:
    """Runs the script that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m labkit.devices.on_pretend")
    add_options(parser)
    chosen = parser.parse_args()
    if not Path(chosen.script).is_file():
        parser.error(f"it runs a script; {chosen.script!r} is no file")
    ending = Ending()
    atexit.register(ending.leave)  # the first to be registered is the last to be called
    _install(wanted(chosen))
    ending.code = run(chosen.script, chosen.arguments)


class Ending:
    """How the process ends: without Python's own last steps, during which a thread of autograd may
    still free a tensor. That would abort a script now and then, after all went well."""

    def __init__(self) -> None:
        self.code = 1

    def leave(self) -> None:
        """Ends the process; the script's threads and its own exit functions are done."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.code)


def run(script: str, arguments: list[str]) -> int:
    """Runs a script as Python would; the exit code. What it raises is shown with its own lines."""
    path = Path(script)
    module = _main_module(path)
    sys.modules["__main__"] = module
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(path.resolve().parent)
    try:
        code = compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit as leaving:
        return _code(leaving)
    except BaseException as error:
        error = error.with_traceback(error.__traceback__.tb_next)  # without our line
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _install(pretend: Pretend) -> None:
    """The devices, and what they communicate with. The current one is the first, as on a GPU."""
    from labkit.devices import pretend as device
    from labkit.devices import through_host

    device.install(pretend, num_devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), index=0)
    through_host.register("pretend")


def _main_module(path: Path) -> types.ModuleType:
    """What Python would have made for the script."""
    module = types.ModuleType("__main__")
    module.__file__ = str(path.absolute())
    module.__builtins__ = builtins
    return module


def _code(leaving: SystemExit) -> int:
    """What ``sys.exit`` was given, as the system gets it; a text is printed."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
