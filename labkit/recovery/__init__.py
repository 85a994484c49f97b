"""Checkpoints that survive, and training that goes on after a rank has died. Chapter 13."""
