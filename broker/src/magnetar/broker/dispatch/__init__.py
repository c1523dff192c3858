"""Which consumer gets which entries: one chooser per subscription type. Pure: they only look at consumers."""
