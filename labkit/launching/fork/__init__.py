"""Where ranks come from: a zygote that has imported torch forks them.

``messages`` is what notebook, zygote and ranks say to each other.
"""
