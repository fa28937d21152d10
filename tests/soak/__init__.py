"""Soak of real engine servers: mixed requests and faults for as long as wanted, checked for wrong tokens and leaks.

    make soak MINUTES=10

`traffic` mixes the requests, `truth` knows the answers, `client` sends, `faults` breaks things meanwhile, `leaks` reads
the server's processes, `judge` compares, `report` prints, and `run` puts them together.  `targets` describes the
engines.  docs/soak.md says what is checked, and with which tolerances.
"""
