"""The planner: what training a model on a cluster takes, divided so and so.

``shape`` is the model in sizes, ``cluster`` the GPUs and links, ``layout`` the division and what
can't be. ``compute`` times a layer, ``steptime`` a step with its messages and bubble, ``memory``
counts bytes by part and stage; ``stacks`` has the few constants that no data sheet says. ``plan``
is the experiment, ``search`` tries every layout, ``command`` is ``python -m labkit plan``.
"""
