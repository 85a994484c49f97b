"""A timeline as a graph of what waited for what, played again with a part of it changed."""
