"""Runs that go wrong: ``faults`` breaks one for you, ``health`` finds what is ill. Chapter 14."""
