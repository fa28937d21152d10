"""Serving state of engine adapters: slots and running requests, stop detection, visible text, and step planning."""
