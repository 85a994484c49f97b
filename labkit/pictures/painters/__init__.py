"""A drawing as SVG, as PNG and as text, from one layout."""
