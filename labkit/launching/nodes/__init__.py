"""A launch on several machines: Slurm or torchrun starts a worker on every node; the folder that
all of them see carries what ranks tell. ``practice`` knows this machine's practice cluster."""
