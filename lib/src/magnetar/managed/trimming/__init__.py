"""Deleting ledgers that nobody needs: which ones, and how."""
