"""Bugs of the kind that lost data elsewhere, or undo a promise of security. The tests must catch each."""
