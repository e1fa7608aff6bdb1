"""The dialects of session files: how coding agents write them. Pure functions over parsed lines."""
