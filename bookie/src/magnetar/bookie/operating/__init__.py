"""The operations of `magnetar.bookie.operations`, done by a running bookie's parts."""
