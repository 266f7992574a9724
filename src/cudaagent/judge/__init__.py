"""Correctness, timing and reward of a submission, decided outside the processes under test."""
