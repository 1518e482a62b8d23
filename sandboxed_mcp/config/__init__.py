"""Configuration: what the user wrote -> frozen values, everything resolved or refused.

Every error is a `ConfigError` that names the file, the setting, the value and the fix. Nothing
is skipped with a warning, and nothing is filled in silently.
"""
