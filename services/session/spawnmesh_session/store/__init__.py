"""The service's statements as named functions, a module for each noun."""
