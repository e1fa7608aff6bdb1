"""Bugs of the kind that lost data elsewhere. The tests must catch each of them."""
