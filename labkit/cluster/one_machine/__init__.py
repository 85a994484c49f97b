"""The practice cluster on one machine: ``plan`` lays it out, ``up_run`` starts and removes it."""
