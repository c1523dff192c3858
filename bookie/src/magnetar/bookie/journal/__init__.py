"""The journal of a bookie: many adds, one durable write, and how it is read back."""
