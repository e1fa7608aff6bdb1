"""Replays files of cases through running services and tells which outcomes differ.

A module for each area; `areas.py` names them all. What one mesh answers, another that speaks the same contracts can be asked.
"""
