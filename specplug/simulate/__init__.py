"""Simulation of serving that the machine at hand cannot run: large batches, long contexts, bursts, other accelerators.

Recorded outputs give every draft's fate, a cost surface gives every step's time, and policies run through the engines'
own classes.  All figures are simulated.  `judge` compares policies with constant lengths, with adaptive peers, and with
a clairvoyant; `recording` makes the trajectories from traces; docs/simulate.md says what is modelled.
"""
