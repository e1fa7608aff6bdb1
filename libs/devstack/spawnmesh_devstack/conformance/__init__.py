"""Replay files of cases through running services and report which outcomes differ.

There is one module for each area; `areas.py` lists them. The replay can target any mesh that serves
the same contracts.
"""
