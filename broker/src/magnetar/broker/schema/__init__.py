"""The schema registry: types, storage in ledgers, compatibility."""
