"""Fakes and builders for tests of the operator and of the plugin."""
