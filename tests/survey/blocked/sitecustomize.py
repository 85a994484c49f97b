"""Put first on PYTHONPATH: this process and every one that it starts lack what a plain GPU machine
lacks, and say so in a file when somebody asks for it all the same."""

import sys

MISSING = ("ipywidgets", "anywidget", "IPython", "jupyterlab", "deepspeed", "accelerate")
MISSING = (*MISSING, "transformers")


class Missing:
    """Finds none of them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises ImportError for what is missing."""
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)


sys.meta_path.insert(0, Missing())
