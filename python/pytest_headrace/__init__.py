"""Fixtures of headrace for pytest.

A package of its own: pytest imports it in each project that has headrace installed, and it imports headrace only when
a test asks for a fixture.
"""
