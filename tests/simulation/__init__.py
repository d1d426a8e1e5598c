"""Simulation: clients, publishers and their network in one thread, from a seed, with the real code.

What is simulated is what is around the code: the network between clients and publisher, the clocks,
the operator, and when a process dies. A seed always gives the same run.
`make simulate` runs many, and shows one with every step.
"""
