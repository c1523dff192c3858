"""Damages every file of a standalone cluster that holds acknowledged messages, and looks at what it says then."""
