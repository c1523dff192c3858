"""A bookie, and AutoRecovery, as processes of their own."""
