"""Benchmarks: measured times with their conditions. Nothing here is a test."""
