"""Several processes of one component, one for each core, under a supervisor that has no data path."""
