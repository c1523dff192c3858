"""A bookie, and AutoRecovery, each as a process of its own, set up by a `bookkeeper.conf`."""
