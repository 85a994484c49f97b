"""Precision and memory: the exercises of chapter 05."""
