"""Measure configs and keep the fastest: candidates, compiled on every core, then tried on one GPU."""
