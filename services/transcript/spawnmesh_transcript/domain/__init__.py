"""The rules of a transcript: redaction, pairing of results with calls, selection by budget. No
I/O.
"""
