"""headrace's fixtures for pytest.

This is a separate package, because pytest imports it in every project that has headrace installed. It imports headrace
only when a test requests a fixture.
"""
