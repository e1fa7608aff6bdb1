"""Attacks on a running mesh, which the tests of this directory share."""
