"""The six collectives beside each other: what every rank holds before and after. ``picture`` draws
them."""
